//! Erasing disks and their metadata, and the firmware's logs.

use ferric_types::error::ErrorClass;
use serde_json::{Value, json};

use super::{Lab, MIB, lab};

/// md superblock magic of version 1.2, 4 KiB from the start.
const MD_MAGIC: [u8; 4] = 0xa92b_4efc_u32.to_le_bytes();

#[test]
fn erase_devices_erases_disks_and_tells_what_became_of_each() {
    let mut lab = lab();
    lab.disk("vda", 8 * MIB, false).disk("sdb", 8 * MIB, false).disk("vdc", 8 * MIB, true).disk("vdd", 8 * MIB, false);
    lab.tree.link("dev/disk/by-label/ir-vfd-dev", "dev/sdb").unwrap();
    // Anybody can write a superblock; only the kernel makes an array of it.
    lab.write("vdc", MIB + 4096, &MD_MAGIC);
    lab.write("vdc1", 4096, &MD_MAGIC);
    lab.tree.file("sys/block/vdd/ro", "1").unwrap();
    let node = json!({"driver_internal_info": {
        "agent_erase_skip_read_only": true, "disk_erasure_concurrency": 4, "agent_erase_devices_iterations": "0",
    }});
    let result = lab.clean("erase_devices", &node).unwrap();
    assert_eq!(result["/dev/vda"]["zeroed"], true, "{result}");
    assert_eq!(result["/dev/vda"]["method"], "overwrite");
    assert_eq!(result["/dev/sdb"]["skipped"], "virtual media of the BMC");
    assert_eq!(result["/dev/vdc"]["zeroed"], true, "{result}");
    assert_eq!(result["/dev/vdd"]["skipped"], "read-only");
    for (disk, want) in [("vda", 0), ("sdb", 0xa5), ("vdc", 0), ("vdd", 0xa5)] {
        assert_eq!(lab.byte(disk, 5 * MIB), want, "{disk}");
    }
    let report = lab.progress.report().unwrap();
    assert_eq!(
        (report.phase.as_str(), report.total_bytes),
        ("erase /dev/vda, /dev/sdb, /dev/vdc, /dev/vdd", Some(32 * MIB))
    );
    assert_eq!(report.done_bytes, 32 * MIB);
}

#[test]
fn a_read_only_disk_fails_the_erasure_by_name_and_the_others_are_erased() {
    let mut lab = lab();
    lab.disk("vda", 4 * MIB, false).disk("vdb", 4 * MIB, false);
    lab.tree.file("sys/block/vda/ro", "1").unwrap();
    let error = lab.clean("erase_devices", &json!({})).unwrap_err();
    assert_eq!(error.class, ErrorClass::BlockDeviceErase);
    assert!(error.details.contains("/dev/vda: it is read-only") && error.details.contains("Done: /dev/vdb"), "{error}");
    assert_eq!((lab.byte("vda", 0), lab.byte("vdb", 2 * MIB)), (0xa5, 0));
}

#[test]
fn a_machine_without_disks_or_with_all_of_them_skipped_has_nothing_to_erase() {
    let mut lab = lab();
    assert_eq!(lab.clean("erase_devices", &json!({})).unwrap(), json!({}));
    lab.disk("vda", 4 * MIB, false);
    let node = json!({"properties": {"skip_block_devices": [{"name": "/dev/vda"}]}});
    assert_eq!(lab.clean("erase_devices", &node).unwrap(), json!({}));
    assert_eq!(lab.clean("erase_devices_metadata", &node).unwrap(), Value::Null);
    assert_eq!(lab.byte("vda", 0), 0xa5);
}

#[test]
fn erasing_stops_before_the_first_disk_when_any_is_protected() {
    let mut lab = lab();
    lab.disk("vda", 4 * MIB, false).disk("vdb", 4 * MIB, false);
    lab.write("vdb", 0x1_0000, &[0x01, 0x16, 0x19, 0x70]);
    for step in ["erase_devices", "erase_devices_metadata"] {
        let error = lab.clean(step, &json!({})).unwrap_err();
        assert_eq!(error.class, ErrorClass::ProtectedDevice, "{step}");
        assert_eq!(lab.byte("vda", 0), 0xa5, "{step}");
    }
    let off = json!({"driver_internal_info": {"wipe_special_filesystems": false}});
    assert_eq!(lab.clean("erase_devices_metadata", &off).unwrap(), Value::Null);
    assert_eq!(lab.byte("vdb", 0x1_0000), 0);
}

#[test]
fn metadata_is_wiped_from_partitions_and_disks_at_both_ends_only() {
    let mut lab = lab();
    lab.disk("vda", 16 * MIB, true).disk("vdb", 16 * MIB, false).disk("vdc", 16 * MIB, true);
    lab.tree.file("sys/block/vdb/ro", "1").unwrap();
    lab.write("vdc1", 4096, &MD_MAGIC);
    assert_eq!(lab.clean("erase_devices_metadata", &json!({})).unwrap(), Value::Null);
    for (name, offset, want) in [
        ("vda", 0, 0),
        ("vda", 16 * MIB - 1, 0),
        ("vda", 8 * MIB, 0xa5),
        ("vda1", 1024, 0),
        ("vdb", 0, 0xa5),
        ("vdc", 0, 0),
        ("vdc1", 4096, 0),
    ] {
        assert_eq!(lab.byte(name, offset), want, "{name} at {offset}");
    }
}

/// A disk whose partition the kernel has made a part of an array, and what the kernel says of that array.
fn lab_with_array(level: &str) -> Lab {
    let mut lab = lab();
    lab.disk("vda", 16 * MIB, true).disk("vdb", 16 * MIB, false);
    let attributes = [("size", "16384"), ("md/level", level), ("md/array_state", "clean")];
    lab.tree.disk("md127", "virtual", "9:127", &attributes).unwrap();
    lab.medium("md127", 8 * MIB);
    lab.tree.link("sys/class/block/vda1/holders/md127", "sys/class/block/md127").unwrap();
    lab.tree.link("sys/class/block/md127/slaves/vda1", "sys/class/block/vda1").unwrap();
    lab
}

#[test]
fn a_member_of_an_assembled_array_keeps_its_metadata_and_is_never_called_erased() {
    let lab = lab_with_array("raid1");
    assert_eq!(lab.clean("erase_devices_metadata", &json!({})).unwrap(), Value::Null);
    for (name, want) in [("vda", 0xa5), ("vda1", 0xa5), ("md127", 0), ("vdb", 0)] {
        assert_eq!(lab.byte(name, 4096), want, "{name}");
    }
    let error = lab.clean("erase_devices", &json!({})).unwrap_err();
    assert_eq!(error.class, ErrorClass::BlockDeviceErase);
    assert!(error.details.contains("/dev/vda: it is a member of the assembled array /dev/md127"), "{error}");
    assert!(error.details.contains("Done: /dev/md127, /dev/vdb"), "{error}");
    // What the operator wants to keep is no reason to fail.
    let keep = json!({"properties": {"skip_block_devices": [{"volume_name": "root"}]}});
    let result = lab.clean("erase_devices", &keep).unwrap();
    assert!(result["/dev/vda"]["skipped"].as_str().unwrap().contains("on the skip list"), "{result}");
    assert_eq!(lab.clean("erase_devices_metadata", &keep).unwrap(), Value::Null);
    assert_eq!(lab.byte("vda", 4096), 0xa5);
}

#[test]
fn a_member_of_an_array_that_was_not_wiped_fails_the_step() {
    let lab = lab_with_array("");
    let error = lab.clean("erase_devices_metadata", &json!({})).unwrap_err();
    assert!(error.details.contains("/dev/vda: it is a member of the array /dev/md127, which is inactive"), "{error}");
    assert_eq!((lab.byte("vda", 4096), lab.byte("vda1", 4096), lab.byte("vdb", 4096)), (0xa5, 0xa5, 0));
}

#[test]
fn a_disk_that_cannot_be_opened_fails_the_step_and_not_the_others() {
    let mut lab = lab();
    lab.disk("vda", 8 * MIB, true).disk("vdb", 8 * MIB, false);
    std::fs::remove_file(lab.tree.path("dev/vda1")).unwrap();
    let error = lab.clean("erase_devices_metadata", &json!({})).unwrap_err();
    assert_eq!(error.class, ErrorClass::BlockDeviceErase);
    assert!(error.details.contains("vda1") && error.details.contains("Done: /dev/vdb"), "{error}");
    assert_eq!((lab.byte("vda", 0), lab.byte("vdb", 0)), (0, 0));
}

#[test]
fn erase_pstore_deletes_every_entry_and_needs_none() {
    let lab = lab();
    assert_eq!(lab.clean("erase_pstore", &json!({})).unwrap(), Value::Null);
    lab.tree.file("proc/mounts", "pstore /sys/fs/pstore pstore rw 0 0").unwrap();
    for name in ["dmesg-efi-1", "console-ramoops-0"] {
        lab.tree.file(&format!("sys/fs/pstore/{name}"), "secret").unwrap();
    }
    assert_eq!(lab.clean("erase_pstore", &json!({})).unwrap(), Value::Null);
    assert_eq!(std::fs::read_dir(lab.tree.path("sys/fs/pstore")).unwrap().count(), 0);
    std::fs::create_dir(lab.tree.path("sys/fs/pstore/stuck")).unwrap();
    let error = lab.clean("erase_pstore", &json!({})).unwrap_err();
    assert!(error.class == ErrorClass::Cleaning && error.details.contains("stuck"), "{error}");
}

#[test]
fn a_disk_that_vanishes_between_the_list_and_the_look_at_it_is_named_and_nothing_is_erased() {
    for step in ["erase_devices", "erase_devices_metadata"] {
        let mut lab = lab();
        lab.disk("vda", 4 * MIB, false).disk("vdb", 4 * MIB, false);
        std::fs::remove_file(lab.tree.path("dev/vdb")).unwrap();
        let error = lab.clean(step, &json!({})).unwrap_err();
        assert!(error.details.contains("dev/vdb") && error.details.contains("No such file"), "{step}: {error}");
        assert_eq!(lab.byte("vda", 0), 0xa5, "{step}");
        // With the protection off it is met when it is to be erased, and the others are.
        let node = json!({"driver_internal_info": {"wipe_special_filesystems": false}});
        let error = lab.clean(step, &node).unwrap_err();
        assert_eq!(error.class, ErrorClass::BlockDeviceErase, "{step}: {error}");
        assert!(error.details.contains("failed on 1 of 2 disks: /dev/vdb: "), "{step}: {error}");
        assert_eq!(lab.byte("vda", 0), 0, "{step}");
    }
}
