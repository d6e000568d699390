//! A machine with sixty disks, as storage servers have them.

use std::time::{Duration, Instant};

use super::*;

const DISKS: usize = 60;

/// `sda` to `sdbh`, as the kernel counts.
fn kname(number: usize) -> String {
    let letter = |index: usize| char::from(b'a' + u8::try_from(index % 26).unwrap());
    match number / 26 {
        0 => format!("sd{}", letter(number)),
        more => format!("sd{}{}", letter(more - 1), letter(number)),
    }
}

/// Sixty SAS disks behind an expander, each with three partitions, and all links that udev would have made.
fn storage_server() -> MachineTree {
    let tree = MachineTree::new().unwrap();
    let expander = "pci0000:3a/0000:3a:00.0/0000:3b:00.0/host0/port-0:0/expander-0:0";
    tree.file("sys/class/sas_host/host0/uevent", "").unwrap();
    tree.file("sys/class/sas_device/expander-0:0/sas_address", "0x500056b3000000ff").unwrap();
    for number in 0..DISKS {
        let kname = kname(number);
        let (port, end) = (format!("port-0:0:{number}"), format!("end_device-0:0:{number}"));
        let device = format!("{expander}/{port}/{end}/target0:0:{number}/0:0:{number}:0");
        let part = |name: &str| (1..4).map(|part| format!("{name}{part}")).collect::<Vec<_>>();
        let mut attributes: Vec<(String, &str)> = [
            ("size", "7814037168"),
            ("ro", "0"),
            ("removable", "0"),
            ("queue/rotational", "1"),
            ("queue/logical_block_size", "512"),
            ("queue/physical_block_size", "4096"),
            ("device/vendor", "SEAGATE"),
            ("device/model", "ST4000NM0025"),
            ("device/type", "0"),
            ("device/state", "running"),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec();
        attributes.extend(part(&kname).into_iter().map(|part| (format!("{part}/size"), "2048")));
        let attributes: Vec<(&str, &str)> = attributes.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        tree.disk(&kname, &device, &format!("8:{}", number * 16), &attributes).unwrap();
        tree.file(&format!("sys/devices/{device}/scsi_device/0:0:{number}:0/uevent"), "").unwrap();
        let serial = [&b"\0\x80\0\x08"[..], format!("ZC1{number:05}").as_bytes()].concat();
        tree.bytes(&format!("sys/devices/{device}/vpd_pg80"), &serial).unwrap();
        let mut page = b"\0\x83\0\x0c\x01\x03\0\x08\x50\x00\xc5\x00\xa0\x00\x00".to_vec();
        page.push(u8::try_from(number).unwrap());
        tree.bytes(&format!("sys/devices/{device}/vpd_pg83"), &page).unwrap();
        tree.file(&format!("sys/class/sas_port/{port}/num_phys"), "1").unwrap();
        tree.file(&format!("sys/class/sas_device/{end}/phy_identifier"), &number.to_string()).unwrap();
        for (index, part) in part(&kname).into_iter().enumerate() {
            let dir = format!("sys/devices/{device}/block/{kname}/{part}");
            tree.file(&format!("{dir}/dev"), &format!("8:{}", number * 16 + index + 1)).unwrap();
            tree.file(&format!("{dir}/partition"), &(index + 1).to_string()).unwrap();
            tree.link(&format!("sys/class/block/{part}"), &dir).unwrap();
        }
        for name in [kname.clone()].into_iter().chain(part(&kname)) {
            for link in super::links(&tree.root(), &name) {
                tree.link(&format!("dev/disk/{link}"), &format!("dev/{name}")).unwrap();
            }
        }
    }
    tree
}

#[test]
fn sixty_disks_are_listed_in_far_less_than_a_second() {
    let tree = storage_server();
    let begun = Instant::now();
    let found = disks(&tree.root()).unwrap();
    let took = begun.elapsed();
    let names: Vec<String> = found.iter().map(|disk| disk.kname.clone()).collect();
    assert_eq!(names, (0..DISKS).map(kname).collect::<Vec<_>>());
    let mut serials: Vec<&String> = found.iter().filter_map(|disk| disk.info.serial.as_ref()).collect();
    serials.sort();
    serials.dedup();
    assert_eq!((serials.len(), serials[0].as_str()), (DISKS, "ZC100000"));
    for (number, disk) in found.iter().enumerate() {
        let by_path = format!("/dev/disk/by-path/pci-0000:3b:00.0-sas-exp0x500056b3000000ff-phy{number}-lun-0");
        assert_eq!((disk.info.by_path.as_ref(), disk.by_paths.len()), (Some(&by_path), 1));
        assert_eq!((disk.partitions.len(), disk.info.tran.as_deref()), (3, Some("sas")));
    }
    println!("{DISKS} disks took {took:?}");
    assert!(took < Duration::from_secs(1), "{took:?}");
}
