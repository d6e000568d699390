//! The list of disks.

mod hostile;
mod many;

use super::*;
use ferric_sys::testing::machine::MachineTree;

const VIRTIO: &str = "pci0000:00/0000:00:03.0/virtio0";

fn scsi(host: u32) -> String {
    format!("pci0000:00/0000:00:05.0/virtio1/host{host}/target{host}:0:0/{host}:0:0:0")
}

fn names(tree: &MachineTree) -> Vec<String> {
    disks(&tree.root()).unwrap().into_iter().map(|disk| disk.info.name).collect()
}

#[test]
fn what_is_no_disk_is_left_out() {
    let tree = MachineTree::new().unwrap();
    let size = [("size", "20971520")];
    tree.disk("vda", VIRTIO, "254:0", &size).unwrap();
    tree.disk("fd0", "platform/floppy.0", "2:0", &[("size", "2880")]).unwrap();
    tree.disk("ram0", "virtual/x", "1:0", &size).unwrap();
    tree.disk("zram0", "virtual/y", "253:0", &size).unwrap();
    tree.disk("loop0", "virtual/z", "7:0", &size).unwrap();
    tree.disk("sr0", &scsi(1), "11:0", &[("size", "2048"), ("device/type", "5")]).unwrap();
    tree.disk("sdb", &scsi(2), "8:16", &[("size", "0")]).unwrap();
    tree.disk("nvme0c0n1", "virtual/nvme-subsystem/s", "259:9", &[("size", "8"), ("hidden", "1")]).unwrap();
    tree.disk("dm-0", "virtual/dm", "253:7", &[("size", "8"), ("dm/uuid", "LVM-abc"), ("dm/name", "vg-lv")]).unwrap();
    tree.disk("sdfd1", &scsi(3), "8:48", &size).unwrap();
    let mmc = "pci0000:00/0000:00:1a.0/mmc_host/mmc0/mmc0:0001";
    for (number, name) in ["mmcblk0", "mmcblk0boot0", "mmcblk0boot1", "mmcblk0rpmb", "mmcblk1boot"].iter().enumerate() {
        tree.disk(name, mmc, &format!("179:{}", number * 8), &size).unwrap();
    }
    // A tape robot, an enclosure, and a disk whose zones the host has to look after.
    for (number, kind) in ["8", "13", "20"].iter().enumerate() {
        let name = format!("sd{}", ["x", "y", "z"][number]);
        let attributes = [("size", "4096"), ("device/type", *kind)];
        tree.disk(&name, &scsi(20 + u32::try_from(number).unwrap()), &format!("65:{number}"), &attributes).unwrap();
    }
    assert_eq!(names(&tree), ["/dev/sdfd1", "/dev/mmcblk0", "/dev/mmcblk1boot", "/dev/vda"]);
}

#[test]
fn sizes_are_bytes_whatever_the_sector() {
    let tree = MachineTree::new().unwrap();
    let queue = [
        ("size", "20971520"),
        ("queue/logical_block_size", "4096"),
        ("queue/physical_block_size", "4096"),
        ("queue/rotational", "1"),
        ("ro", "1"),
    ];
    tree.disk("vda", VIRTIO, "254:0", &queue).unwrap();
    let disk = disks(&tree.root()).unwrap().remove(0);
    assert_eq!(disk.info.size, 10_737_418_240);
    assert_eq!((disk.info.logical_sectors, disk.info.physical_sectors), (4096, 4096));
    assert!(disk.info.rotational && disk.read_only);
}

#[test]
fn missing_attributes_are_defaults() {
    let tree = MachineTree::new().unwrap();
    tree.disk("sda", &scsi(0), "8:0", &[("size", "2048")]).unwrap();
    let disk = disks(&tree.root()).unwrap().remove(0);
    assert_eq!((disk.info.logical_sectors, disk.info.physical_sectors, disk.info.rotational), (512, 512, false));
    assert_eq!((disk.info.serial, disk.info.model, disk.info.tran), (None, None, None));
    assert_eq!(disk.serials, [None, None, None]);
}

#[test]
fn names_with_a_slash_are_written_with_one() {
    let tree = MachineTree::new().unwrap();
    tree.disk("cciss!c0d0", "pci0000:00/0000:05:00.0/cciss0", "104:0", &[("size", "2048")]).unwrap();
    let disk = disks(&tree.root()).unwrap().remove(0);
    assert_eq!((disk.info.name.as_str(), disk.kname.as_str()), ("/dev/cciss/c0d0", "cciss!c0d0"));
}

/// An array md127 over the partitions of two disks.
fn raid() -> MachineTree {
    let tree = MachineTree::new().unwrap();
    for (disk, host, minor) in [("sda", 0, 0), ("sdb", 1, 16)] {
        let device = scsi(host);
        let attributes =
            [("size", "40960"), (&*format!("{disk}1/partition"), "1"), (&*format!("{disk}1/size"), "20480")];
        tree.disk(disk, &device, &format!("8:{minor}"), &attributes).unwrap();
        let partition = format!("sys/devices/{device}/block/{disk}/{disk}1");
        tree.file(&format!("{partition}/dev"), &format!("8:{}", minor + 1)).unwrap();
        tree.link(&format!("sys/class/block/{disk}1"), &partition).unwrap();
        tree.link(&format!("{partition}/holders/md127"), "sys/devices/virtual/md/block/md127").unwrap();
    }
    tree.disk("md127", "virtual/md", "9:127", &[("size", "20000"), ("md/level", "raid1")]).unwrap();
    for member in ["sda1", "sdb1"] {
        tree.link(&format!("sys/devices/virtual/md/block/md127/slaves/{member}"), &format!("sys/class/block/{member}"))
            .unwrap();
    }
    tree
}

#[test]
fn arrays_are_disks_listed_once_and_their_members_name_them() {
    let found = disks(&raid().root()).unwrap();
    let names: Vec<_> = found.iter().map(|disk| disk.info.name.as_str()).collect();
    assert_eq!(names, ["/dev/sda", "/dev/sdb", "/dev/md127"]);
    assert_eq!(found[2].kind, DiskKind::Raid);
    assert_eq!(found[0].partitions, ["/dev/sda1"]);
    assert_eq!(found[0].holders, ["/dev/md127"]);
    assert!(found[2].holders.is_empty() && found[2].partitions.is_empty());
}

#[test]
fn the_order_in_which_an_array_was_found_changes_nothing() {
    // Members that are whole disks, and an array that came up before the second of them; it has no partitions.
    for first in ["sda", "sdb"] {
        let tree = MachineTree::new().unwrap();
        let second = if first == "sda" { "sdb" } else { "sda" };
        tree.disk("md0", "virtual/md", "9:0", &[("size", "20000"), ("md/level", "raid10")]).unwrap();
        for (name, host) in [(first, 0), (second, 1)] {
            let minor = if name == "sda" { "8:0" } else { "8:16" };
            tree.disk(name, &scsi(host), minor, &[("size", "40960")]).unwrap();
            tree.link(&format!("sys/devices/{}/block/{name}/holders/md0", scsi(host)), "sys/class/block/md0").unwrap();
            tree.link(&format!("sys/devices/virtual/md/block/md0/slaves/{name}"), &format!("sys/block/{name}"))
                .unwrap();
        }
        // One that is stopped has no size, and no level.
        tree.disk("md1", "virtual/md", "9:1", &[("size", "0")]).unwrap();
        tree.disk("md2", "virtual/md", "9:2", &[("size", "0"), ("md/level", "container")]).unwrap();
        assert_eq!(names(&tree), ["/dev/sda", "/dev/sdb", "/dev/md0"], "{first} first");
        let found = disks(&tree.root()).unwrap();
        assert_eq!(
            (&found[0].holders, &found[1].holders),
            (&vec!["/dev/md0".to_owned()], &vec!["/dev/md0".to_owned()])
        );
    }
}

#[test]
fn volumes_of_firmware_raid_are_arrays() {
    let tree = MachineTree::new().unwrap();
    let raid = [("size", "8192"), ("dm/uuid", "DMRAID-isw_dfhhjhhjd_Volume0"), ("dm/name", "isw_dfhhjhhjd_Volume0")];
    tree.disk("dm-0", "virtual/dm", "253:0", &raid).unwrap();
    let part =
        [("size", "4096"), ("dm/uuid", "part1-DMRAID-isw_dfhhjhhjd_Volume0"), ("dm/name", "isw_dfhhjhhjd_Volume0p1")];
    tree.disk("dm-1", "virtual/dm", "253:1", &part).unwrap();
    let found = disks(&tree.root()).unwrap();
    assert_eq!((found.len(), found[0].kind), (1, DiskKind::Raid));
}

#[test]
fn a_disk_that_vanishes_while_it_is_looked_at_is_left_out_and_others_are_not() {
    let tree = MachineTree::new().unwrap();
    tree.disk("vda", VIRTIO, "254:0", &[("size", "2048")]).unwrap();
    tree.disk("sda", &scsi(1), "8:0", &[("size", "2048")]).unwrap();
    tree.disk("sdb", &scsi(2), "8:16", &[("size", "2048")]).unwrap();
    // Gone between the listing of the folder and the look at the device, and in the middle of that look.
    std::fs::remove_dir_all(tree.path(format!("sys/devices/{}/block", scsi(1)))).unwrap();
    std::fs::remove_file(tree.path("sys/class/block/sdb")).unwrap();
    assert_eq!(names(&tree), ["/dev/vda"]);
    assert!(links(&tree.root(), "sda").is_empty());
    // A machine on which disks come and go all the time.
    std::thread::scope(|scope| {
        let churn = scope.spawn(|| {
            for _ in 0..30 {
                tree.disk("sdc", &scsi(3), "8:32", &[("size", "2048"), ("device/model", "X")]).unwrap();
                std::fs::remove_dir_all(tree.path(format!("sys/devices/{}", scsi(3)))).unwrap();
                std::fs::remove_file(tree.path("sys/block/sdc")).unwrap();
                std::fs::remove_file(tree.path("sys/class/block/sdc")).unwrap();
            }
        });
        while !churn.is_finished() {
            assert!(names(&tree).contains(&"/dev/vda".to_owned()));
        }
    });
}

#[test]
fn the_device_mapper_stands_for_the_paths_it_holds() {
    let tree = MachineTree::new().unwrap();
    for (disk, host, minor) in [("sda", 0, 0), ("sdb", 1, 16)] {
        let device = scsi(host);
        tree.disk(disk, &device, &format!("8:{minor}"), &[("size", "40960"), ("device/vendor", "ACME")]).unwrap();
        tree.bytes(&format!("sys/devices/{device}/vpd_pg80"), b"\0\x80\0\x02S1").unwrap();
        tree.link(&format!("sys/devices/{device}/block/{disk}/holders/dm-0"), "sys/class/block/dm-0").unwrap();
    }
    let dm = [("size", "40960"), ("dm/uuid", "mpath-36001"), ("dm/name", "mpatha")];
    tree.disk("dm-0", "virtual/dm", "253:0", &dm).unwrap();
    for member in ["sda", "sdb"] {
        tree.link(&format!("sys/devices/virtual/dm/block/dm-0/slaves/{member}"), &format!("sys/class/block/{member}"))
            .unwrap();
    }
    let found = disks(&tree.root()).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].info.name.as_str(), found[0].kind), ("/dev/dm-0", DiskKind::Multipath));
    assert_eq!(found[0].info.serial.as_deref(), Some("S1"));
}

#[test]
fn one_disk_over_two_adapters_is_listed_once_by_the_path_that_answers() {
    let tree = MachineTree::new().unwrap();
    for (name, host, minor) in [("sda", 0, "8:0"), ("sdb", 1, "8:16"), ("sdc", 2, "8:32")] {
        let device = format!("pci0000:00/0000:00:{:02x}.0/host{host}/target{host}:0:0/{host}:0:0:0", 5 + host);
        tree.disk(name, &device, minor, &[("size", "40960")]).unwrap();
        tree.file(&format!("sys/devices/{device}/scsi_device/{host}:0:0:0/uevent"), "").unwrap();
        let serial = if name == "sdc" { "S2" } else { "S1" };
        let page = [&b"\0\x80\0\x02"[..], serial.as_bytes()].concat();
        tree.bytes(&format!("sys/devices/{device}/vpd_pg80"), &page).unwrap();
        let page = b"\0\x83\0\x0c\x01\x03\0\x08\x50\x00\xc5\x00\x11\x22\x33\x44";
        tree.bytes(&format!("sys/devices/{device}/vpd_pg83"), page).unwrap();
    }
    let names = |tree: &MachineTree| -> Vec<String> { names(tree) };
    assert_eq!(names(&tree), ["/dev/sda", "/dev/sdc"]);
    // The first path is there, but nothing can be read through it.
    tree.bytes("dev/sdb", &[0; 4096]).unwrap();
    assert_eq!(names(&tree), ["/dev/sdb", "/dev/sdc"]);
    let found = disks(&tree.root()).unwrap();
    assert_eq!(found[0].other_paths, [OtherPath { name: "/dev/sda".to_owned(), hctl: Some("0:0:0:0".to_owned()) }]);
    let paths = ["pci-0000:00:06.0-scsi-0:0:0:0", "pci-0000:00:05.0-scsi-0:0:0:0"];
    assert_eq!(found[0].by_paths, paths.map(|path| format!("/dev/disk/by-path/{path}")));
    // It keeps its name when the other path comes back, and until its own is gone.
    tree.bytes("dev/sda", &[0; 4096]).unwrap();
    assert_eq!(names(&tree), ["/dev/sdb", "/dev/sdc"]);
    std::fs::remove_file(tree.path("dev/sdb")).unwrap();
    assert_eq!(names(&tree), ["/dev/sda", "/dev/sdc"]);
}

#[test]
fn nvme_paths_stand_behind_the_head_or_are_put_together_by_the_name_of_the_namespace() {
    let tree = MachineTree::new().unwrap();
    let attributes = [("size", "8"), ("wwid", "eui.0025388b71b5e6a3"), ("nsid", "1"), ("device/serial", "S1")];
    // With the kernel's own multipath: the head below the subsystem, a hidden node for each controller.
    tree.disk("nvme0n1", "virtual/nvme-subsystem/nvme-subsys0", "259:0", &attributes).unwrap();
    for (number, name) in ["nvme0c0n1", "nvme0c1n1"].iter().enumerate() {
        let device = format!("pci0000:00/0000:00:0{}.0/nvme/nvme{number}", number + 3);
        tree.disk(name, &device, &format!("259:{}", number + 1), &[("size", "8"), ("hidden", "1")]).unwrap();
        let link = format!("sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme{number}");
        tree.link(&link, &format!("sys/devices/{device}")).unwrap();
    }
    // Without it: a node for each.
    for number in 5..7 {
        let device = format!("pci0000:00/0000:00:1{number}.0/nvme/nvme{number}");
        let attributes = [("size", "16"), ("wwid", "eui.0025388b71b5e6ff"), ("nsid", "1"), ("device/serial", "S2")];
        tree.disk(&format!("nvme{number}n1"), &device, &format!("259:{}", number + 10), &attributes).unwrap();
    }
    let found = disks(&tree.root()).unwrap();
    let names: Vec<&str> = found.iter().map(|disk| disk.kname.as_str()).collect();
    assert_eq!(names, ["nvme0n1", "nvme5n1"]);
    let places = ["pci-0000:00:03.0-nvme-1", "pci-0000:00:04.0-nvme-1"];
    assert_eq!(found[0].by_paths, places.map(|place| format!("/dev/disk/by-path/{place}")));
    assert_eq!(found[0].info.serial.as_deref(), Some("S1"));
    assert_eq!(found[0].info.tran.as_deref(), Some("nvme"));
}

#[test]
fn serial_numbers_are_found_by_every_spelling_that_udev_has_for_them() {
    let tree = MachineTree::new().unwrap();
    let attributes = [("size", "8"), ("device/model", "ACME Fast"), ("device/serial", "S1"), ("nsid", "1")];
    tree.disk("nvme0n1", "pci0000:00/0000:00:04.0/nvme/nvme0", "259:0", &attributes).unwrap();
    let disk = disks(&tree.root()).unwrap().remove(0);
    let known: Vec<&str> = disk.serials.iter().flatten().map(String::as_str).collect();
    assert_eq!(known, ["S1", "S1", "ACME_Fast_S1", "ACME_Fast_S1_1"]);
}

#[test]
fn other_links_lead_to_the_disk_as_well() {
    let tree = MachineTree::new().unwrap();
    tree.disk("sda", &scsi(0), "8:0", &[("size", "2048")]).unwrap();
    tree.link("dev/disk/by-id/own-name", "dev/sda").unwrap();
    tree.link("dev/disk/by-label/DATA", "dev/sda").unwrap();
    tree.link("dev/disk/by-label/OTHER", "dev/sdb").unwrap();
    tree.link("dev/mapper/alias", "dev/sda").unwrap();
    let disk = disks(&tree.root()).unwrap().remove(0);
    assert_eq!(disk.by_ids, ["/dev/disk/by-id/own-name", "/dev/disk/by-label/DATA", "/dev/mapper/alias"]);
}

#[test]
fn only_usb_media_are_virtual_whatever_the_label_says() {
    let tree = MachineTree::new().unwrap();
    let usb = "pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0/host6/target6:0:0/6:0:0:0";
    tree.disk("sda", usb, "8:0", &[("size", "2048")]).unwrap();
    tree.disk("sdb", &scsi(1), "8:16", &[("size", "2048")]).unwrap();
    for (label, device, want) in [
        ("ir-vfd-dev", "sda", true),
        ("IR-VFD-DEV", "sda", true),
        ("VMEDIA_BOOT_ISO", "sda", true),
        ("my-data", "sda", false),
        ("ir-vfd-dev", "sdb", false),
    ] {
        tree.link(&format!("dev/disk/by-label/{label}"), &format!("dev/{device}")).unwrap();
        assert_eq!(is_virtual_media(&tree.root(), device), want, "{label} on {device}");
        std::fs::remove_file(tree.path(format!("dev/disk/by-label/{label}"))).unwrap();
    }
}

#[test]
fn links_that_exist_are_used_and_the_inventory_shows_our_own_first() {
    let tree = MachineTree::new().unwrap();
    tree.disk("vda", VIRTIO, "254:0", &[("size", "2048")]).unwrap();
    let shown = |tree: &MachineTree| disks(&tree.root()).unwrap().remove(0).info.by_path;
    assert_eq!(shown(&tree).as_deref(), Some("/dev/disk/by-path/pci-0000:00:03.0"));
    tree.link("dev/disk/by-path/other", "dev/vdb").unwrap();
    tree.link("dev/disk/by-path/virtio-pci-0000:00:03.0", "dev/vda").unwrap();
    assert_eq!(shown(&tree).as_deref(), Some("/dev/disk/by-path/virtio-pci-0000:00:03.0"));
    tree.link("dev/disk/by-path/pci-0000:00:03.0", "dev/vda").unwrap();
    let disk = disks(&tree.root()).unwrap().remove(0);
    assert_eq!(disk.info.by_path.as_deref(), Some("/dev/disk/by-path/pci-0000:00:03.0"));
    assert_eq!(disk.by_paths.len(), 2);
}

#[test]
fn a_machine_without_sysfs_is_an_error_that_names_the_directory() {
    let error = disks(&Root::at("/ferric-no-such-root")).unwrap_err();
    assert!(ferric_types::error::chain(&error).contains("sys/block"), "{error}");
}
