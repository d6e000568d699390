//! Erasing disks and their metadata, and the firmware's logs.

use ferric_types::error::ErrorClass;
use ferric_types::step::StepKind;
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
    let states: Vec<(&str, &str)> = report.disks.iter().map(|disk| (disk.name.as_str(), disk.state.as_str())).collect();
    let want = [("/dev/vda", "done"), ("/dev/sdb", "skipped"), ("/dev/vdc", "done"), ("/dev/vdd", "skipped")];
    assert_eq!(states, want);
}

#[test]
fn a_certificate_of_what_was_done_to_each_disk_is_kept_with_the_logs() {
    let mut lab = lab();
    lab.disk("vda", 4 * MIB, false).disk("vdb", 4 * MIB, false).disk("vdc", 4 * MIB, false);
    lab.tree.file("sys/class/dmi/id/product_serial", "S-1").unwrap();
    lab.tree.file("sys/block/vdb/ro", "1").unwrap();
    std::fs::remove_file(lab.tree.path("dev/vdc")).unwrap();
    // What cannot be looked at is not erased as long as it is looked at.
    let internal = json!({"wipe_special_filesystems": false, "disk_erasure_concurrency": 4});
    let node = json!({"uuid": "u-1", "driver_internal_info": internal});
    for number in 1..=2 {
        lab.clean("erase_devices", &node).unwrap_err();
        let text = std::fs::read(lab.tree.path(format!("var/log/erase-certificate-{number}.json"))).unwrap();
        let document: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(document["standard"], "NIST SP 800-88 Revision 1");
        assert_eq!((&document["node"], &document["system"]["serial_number"]), (&json!("u-1"), &json!("S-1")));
        assert!(document["began_unix"].as_u64() <= document["ended_unix"].as_u64(), "{document}");
        let media: Vec<[&Value; 5]> = document["media"]
            .as_array()
            .unwrap()
            .iter()
            .map(|m| [&m["device"], &m["result"], &m["sanitization"], &m["method_used"], &m["verification"]])
            .collect();
        let want = [
            [json!("/dev/vda"), json!("sanitized"), json!("clear"), json!("overwrite"), json!("samples read back")],
            [json!("/dev/vdb"), json!("failed"), Value::Null, Value::Null, json!("none")],
            [json!("/dev/vdc"), json!("failed"), Value::Null, Value::Null, json!("none")],
        ];
        assert_eq!(media, want.each_ref().map(|row| row.each_ref()));
        assert_eq!(document["media"][1]["reason"], "it is read-only, so that it cannot be erased");
        assert_eq!(document["media"][0]["serial_number"], "serial-vda");
    }
}

#[test]
fn an_nvme_disk_that_cannot_erase_itself_is_overwritten_only_where_the_node_allows_it() {
    let mut lab = lab();
    lab.disk("nvme0n1", 4 * MIB, false).disk("vda", 4 * MIB, false);
    let error = lab.clean("erase_devices", &json!({})).unwrap_err();
    assert_eq!(error.class, ErrorClass::BlockDeviceErase);
    let words = "/dev/nvme0n1: Block device ";
    assert!(error.details.contains(words) && error.details.contains("it does not answer"), "{error}");
    assert!(error.details.contains("Done: /dev/vda"), "{error}");
    assert_eq!((lab.byte("nvme0n1", MIB), lab.byte("vda", MIB)), (0xa5, 0));
    for flag in
        [json!({"agent_continue_if_secure_erase_failed": true}), json!({"agent_enable_nvme_secure_erase": false})]
    {
        lab.medium("nvme0n1", 4 * MIB);
        let result = lab.clean("erase_devices", &json!({"driver_internal_info": flag})).unwrap();
        assert_eq!(result["/dev/nvme0n1"]["method"], "overwrite", "{flag}: {result}");
        assert_eq!(lab.byte("nvme0n1", MIB), 0, "{flag}");
    }
}

#[test]
fn express_erasure_wipes_the_metadata_of_what_does_not_erase_itself() {
    let mut lab = lab();
    lab.disk("nvme0n1", 16 * MIB, false).disk("vda", 16 * MIB, true).disk("vdb", 16 * MIB, false);
    lab.tree.file("sys/block/vdb/ro", "1").unwrap();
    assert_eq!(lab.clean("erase_devices_express", &json!({})).unwrap(), Value::Null);
    for (name, offset, want) in [
        ("nvme0n1", 0, 0),
        ("nvme0n1", 8 * MIB, 0xa5),
        ("vda", 16 * MIB - 1, 0),
        ("vda", 8 * MIB, 0xa5),
        ("vdb", 0, 0xa5),
    ] {
        assert_eq!(lab.byte(name, offset), want, "{name} at {offset}");
    }
    std::fs::remove_file(lab.tree.path("dev/vda1")).unwrap();
    let error =
        lab.clean("erase_devices_express", &json!({"driver_internal_info": {"wipe_special_filesystems": false}}));
    let error = error.unwrap_err();
    assert_eq!(error.class, ErrorClass::BlockDeviceErase);
    assert!(error.details.starts_with("Express erasing failed on 1 of 3 disks: /dev/vda: "), "{error}");
}

/// A boot entry with a path of one node, a file or a network address.
fn boot_entry(file: Option<&str>) -> Vec<u8> {
    let data: Vec<u8> = match file {
        Some(file) => file.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect(),
        None => b"http://boot".to_vec(),
    };
    let kind: [u8; 2] = if file.is_some() { [4, 4] } else { [3, 24] };
    let length = u16::try_from(data.len() + 4).unwrap().to_le_bytes();
    let path = [&kind, &length[..], &data, &[0x7f, 0xff, 4, 0]].concat();
    let all = u16::try_from(path.len()).unwrap().to_le_bytes();
    [&[7, 0, 0, 0, 1, 0, 0, 0][..], &all, b"x\0\0\0", &path].concat()
}

#[test]
fn boot_entries_of_installed_systems_are_deleted_and_others_stay() {
    const GLOBAL: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";
    let lab = lab();
    let run = |args: Value| {
        lab.with(&json!({}), |context| {
            lab.registry.execute(StepKind::Clean, "clean_uefi_nvram", context, args.as_object().unwrap())
        })
    };
    assert_eq!(run(json!({})).unwrap(), Value::Null, "no UEFI");
    let path = |name: &str| format!("sys/firmware/efi/efivars/{name}-{GLOBAL}");
    let fill = || {
        for (name, file) in [
            ("Boot0000", None),
            ("Boot0001", Some("\\EFI\\debian\\shimx64.efi")),
            ("Boot000A", Some("\\EFI\\x\\GRUBX64.EFI")),
            ("Boot0100", Some("\\EFI\\BOOT\\BOOTX64.EFI")),
        ] {
            lab.tree.bytes(&path(name), &boot_entry(file)).unwrap();
        }
        lab.tree.bytes(&path("BootOrder"), &[7, 0, 0, 0, 1, 0, 0, 0, 10, 0, 0, 1]).unwrap();
    };
    let left = || {
        let names = ferric_sys::attr::list(&lab.tree.path("sys/firmware/efi/efivars"));
        names.iter().filter_map(|name| name.strip_suffix(&format!("-{GLOBAL}")).map(str::to_owned)).collect::<Vec<_>>()
    };
    fill();
    assert_eq!(run(json!({})).unwrap(), Value::Null);
    assert_eq!(left(), ["Boot0000", "Boot0100", "BootOrder"]);
    // On efivarfs a shorter value replaces a longer one; in a file its tail stays.
    let order = std::fs::read(lab.tree.path(path("BootOrder"))).unwrap();
    assert_eq!(&order[..8], [7, 0, 0, 0, 0, 0, 0, 1]);
    fill();
    assert_eq!(run(json!({"match_patterns": ["^uri\\(HTTP"]})).unwrap(), Value::Null);
    assert_eq!(left(), ["Boot0001", "Boot000A", "Boot0100", "BootOrder"]);
    assert_eq!(run(json!({"match_patterns": "x"})).unwrap_err().class, ErrorClass::InvalidCommandParams);
    assert_eq!(run(json!({"match_patterns": []})).unwrap(), Value::Null);
    assert_eq!(left().len(), 4);
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

/// A node that has had arrays made.
fn node_with_arrays() -> Value {
    json!({"raid_config": {"logical_disks": [{"controller": "software", "raid_level": "1", "size_gb": "MAX"}]}})
}

#[test]
fn a_member_of_an_array_of_ironic_keeps_its_metadata_and_is_never_called_erased() {
    let lab = lab_with_array("raid1");
    assert_eq!(lab.clean("erase_devices_metadata", &node_with_arrays()).unwrap(), Value::Null);
    for (name, want) in [("vda", 0xa5), ("vda1", 0xa5), ("md127", 0), ("vdb", 0)] {
        assert_eq!(lab.byte(name, 4096), want, "{name}");
    }
    let state = lab.tree.path("sys/class/block/md127/md/array_state");
    assert_eq!(ferric_sys::attr::read_trimmed(&state).unwrap(), "clean");
    let error = lab.clean("erase_devices", &node_with_arrays()).unwrap_err();
    assert_eq!(error.class, ErrorClass::BlockDeviceErase);
    assert!(error.details.contains("/dev/vda: it is a member of the assembled array /dev/md127"), "{error}");
    assert!(error.details.contains("Done: /dev/md127, /dev/vdb"), "{error}");
    // What the operator wants to keep is no reason to fail.
    let keep = json!({"properties": {"skip_block_devices": [{"volume_name": "root"}]}});
    let result = lab.clean("erase_devices", &keep).unwrap();
    assert!(result["/dev/vda"]["skipped"].as_str().unwrap().contains("on the skip list"), "{result}");
    assert_eq!(lab.clean("erase_devices_metadata", &keep).unwrap(), Value::Null);
    assert_eq!(lab.byte("vda", 4096), 0xa5);
    assert_eq!(ferric_sys::attr::read_trimmed(&state).unwrap(), "clean");
}

#[test]
fn an_array_of_a_tenant_is_wiped_and_stopped() {
    let lab = lab_with_array("raid1");
    // It does not go away in a tree of files.
    lab.clean("erase_devices", &json!({})).unwrap_err();
    assert_eq!(lab.byte("md127", 4096), 0);
    let state = lab.tree.path("sys/class/block/md127/md/array_state");
    assert_eq!(ferric_sys::attr::read_trimmed(&state).unwrap(), "clear");
}

#[test]
fn an_array_on_a_disk_of_the_skip_list_is_left_alone() {
    let mut lab = lab_with_array("raid1");
    lab.disk("vdc", 16 * MIB, true);
    lab.tree.link("sys/class/block/vdc1/holders/md127", "sys/class/block/md127").unwrap();
    lab.tree.link("sys/class/block/md127/slaves/vdc1", "sys/class/block/vdc1").unwrap();
    let node = json!({"properties": {"skip_block_devices": [{"serial": "serial-vdc"}]}});
    assert_eq!(lab.clean("erase_devices_metadata", &node).unwrap(), Value::Null);
    for (name, want) in [("vda", 0xa5), ("vdc", 0xa5), ("md127", 0xa5), ("vdb", 0)] {
        assert_eq!(lab.byte(name, 4096), want, "{name}");
    }
    let result = lab.clean("erase_devices", &node).unwrap();
    assert!(result["/dev/vda"]["skipped"].is_string() && result.get("/dev/md127").is_none(), "{result}");
}

#[test]
fn a_member_of_an_array_that_was_not_wiped_fails_the_step() {
    let lab = lab_with_array("");
    for node in [json!({}), node_with_arrays()] {
        let error = lab.clean("erase_devices_metadata", &node).unwrap_err();
        let words = "/dev/vda: it is a member of the array /dev/md127, which is inactive";
        assert!(error.details.contains(words), "{error}");
    }
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
fn a_disk_that_cannot_be_looked_at_fails_by_name_and_the_others_are_erased() {
    for step in ["erase_devices", "erase_devices_metadata", "erase_devices_express"] {
        // With and without the look for what is protected.
        for look in [true, false] {
            let mut lab = lab();
            lab.disk("vda", 4 * MIB, false).disk("vdb", 4 * MIB, false);
            std::fs::remove_file(lab.tree.path("dev/vdb")).unwrap();
            let node = json!({"driver_internal_info": {"wipe_special_filesystems": look}});
            let error = lab.clean(step, &node).unwrap_err();
            assert_eq!(error.class, ErrorClass::BlockDeviceErase, "{step}: {error}");
            assert!(error.details.contains("failed on 1 of 2 disks: /dev/vdb: "), "{step}: {error}");
            assert!(error.details.contains("No such file"), "{step}: {error}");
            assert_eq!(lab.byte("vda", 0), 0, "{step}");
        }
    }
}
