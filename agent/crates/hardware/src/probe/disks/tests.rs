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
    assert_eq!(names(&tree), ["/dev/sdfd1", "/dev/vda"]);
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
    assert_eq!(names, ["/dev/sda", "/dev/md127", "/dev/sdb"]);
    assert_eq!(found[1].kind, DiskKind::Raid);
    assert_eq!(found[0].partitions, ["/dev/sda1"]);
    assert_eq!(found[0].holders, ["/dev/md127"]);
    assert!(found[1].holders.is_empty() && found[1].partitions.is_empty());
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

#[test]
fn usb_storage_is_waited_for_until_it_is_scanned_or_the_time_is_over() {
    let tree = MachineTree::new().unwrap();
    assert!(settle(&tree.root(), Duration::ZERO));
    tree.file("sys/bus/usb/drivers/usb-storage/bind", "").unwrap();
    tree.file("sys/bus/usb/drivers/usb-storage/1-1:1.0/bInterfaceClass", "08").unwrap();
    tree.file("sys/bus/usb/drivers/usb-storage/1-1:1.0/host6/uevent", "").unwrap();
    assert!(!settle(&tree.root(), Duration::from_millis(50)));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            let unit = "sys/bus/usb/drivers/usb-storage/1-1:1.0/host6/target6:0:0/6:0:0:0";
            tree.file(&format!("{unit}/type"), "0").unwrap();
            assert!(!settle(&tree.root(), Duration::ZERO), "the disk is found, but has no node yet");
            tree.file(&format!("{unit}/block/sdb/size"), "8").unwrap();
        });
        assert!(settle(&tree.root(), Duration::from_secs(20)));
    });
}
