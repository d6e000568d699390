//! Whatever a disk says of itself, the list is made, soon, and no name leads elsewhere.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

/// What sysfs can show in one attribute.
fn text() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..80),
        "[ -~]{0,60}".prop_map(String::into_bytes),
        Just(b"../../../etc/passwd".to_vec()),
        Just(b"18446744073709551616".to_vec()),
        Just(vec![b' '; 4096]),
    ]
}

/// Attributes that are read of disks, below the directory of the block device.
const ATTRIBUTES: [&str; 16] = [
    "serial",
    "wwid",
    "nguid",
    "eui",
    "nsid",
    "hidden",
    "ro",
    "removable",
    "queue/logical_block_size",
    "queue/physical_block_size",
    "queue/rotational",
    "device/vendor",
    "device/model",
    "device/name",
    "device/state",
    "device/access_state",
];

const PLACES: [(&str, &str); 5] = [
    ("vda", VIRTIO),
    ("nvme0n1", "pci0000:00/0000:00:04.0/nvme/nvme0"),
    ("mmcblk0", "pci0000:00/0000:00:06.0/mmc_host/mmc0/mmc0:0001"),
    ("sda", "pci0000:00/0000:00:07.0/usb1/1-1/1-1:1.0/host6/target6:0:0/6:0:0:0"),
    ("sdb", "pci0000:00/0000:00:05.0/virtio1/host2/target2:0:0/2:0:0:0"),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_attributes_are_survived(
        place in 0..PLACES.len(),
        texts in proptest::collection::vec(text(), ATTRIBUTES.len()),
        pages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..600), 3),
        serial in text(),
        label in text(),
    ) {
        let (kname, device) = PLACES[place];
        let tree = MachineTree::new().unwrap();
        tree.disk(kname, device, "8:0", &[("size", "2048")]).unwrap();
        for (attribute, text) in ATTRIBUTES.iter().zip(&texts) {
            tree.bytes(&format!("sys/block/{kname}/{attribute}"), text).unwrap();
        }
        for (number, page) in [0x80, 0x83, 0x89].into_iter().zip(pages) {
            let mut page = page;
            if let Some(code) = page.get_mut(1) {
                *code = number;
            }
            tree.bytes(&format!("sys/devices/{device}/vpd_pg{number:x}"), &page).unwrap();
        }
        tree.bytes("sys/devices/pci0000:00/0000:00:07.0/usb1/1-1/serial", &serial).unwrap();
        tree.file("sys/devices/pci0000:00/0000:00:07.0/usb1/1-1/idVendor", "1234").unwrap();
        tree.bytes("run/udev/data/b8:0", &[&b"E:ID_SERIAL="[..], &label].concat()).unwrap();
        let begun = Instant::now();
        let found = disks(&tree.root()).unwrap();
        let links = links(&tree.root(), kname);
        prop_assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        // Only an attribute that hides a disk takes it from the list.
        prop_assert_eq!(found.len(), usize::from(texts[5].trim_ascii() != b"1"));
        for link in links {
            let (folder, name) = link.split_once('/').unwrap();
            prop_assert!(["by-path", "by-id"].contains(&folder) && !name.contains('/') && name != "..", "{}", link);
        }
        for disk in found {
            prop_assert!(serde_json::to_string(&disk.info).is_ok());
            prop_assert!(disk.info.serial.as_ref().is_none_or(|serial| serial.len() <= 3 * 4096));
        }
    }
}

#[test]
fn the_list_does_not_depend_on_what_is_mounted() {
    let tree = MachineTree::new().unwrap();
    tree.disk("vda", VIRTIO, "254:0", &[("size", "2048")]).unwrap();
    let mountinfo = tree.path("proc/self/mountinfo");
    let _absent = std::fs::remove_file(&mountinfo);
    assert_eq!(names(&tree), ["/dev/vda"], "no such file");
    tree.bytes("proc/self/mountinfo", b"36 35 254:1 / /mnt/\xff\xfe rw - ext4 /dev/vda1 rw\n").unwrap();
    assert_eq!(names(&tree), ["/dev/vda"], "a name that is not UTF-8");
}

#[test]
fn sectors_of_no_size_are_those_of_any_other_disk() {
    let tree = MachineTree::new().unwrap();
    let queue = [("size", "2048"), ("queue/logical_block_size", "0"), ("queue/physical_block_size", "0")];
    tree.disk("vda", VIRTIO, "254:0", &queue).unwrap();
    let info = disks(&tree.root()).unwrap().remove(0).info;
    assert_eq!((info.logical_sectors, info.physical_sectors), (512, 512));
}
