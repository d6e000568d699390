use std::collections::BTreeSet;
use std::sync::Arc;

use super::*;
use crate::probe::smbios::{Smbios, dmi};
use crate::probe::text::hex;
use crate::probe::{disks, numa, pci, usb};
use crate::{MANAGERS, Registry, Settings, extra};
use ferric_sys::testing::exec::ScriptedExec;
use ferric_sys::testing::machine::MachineTree;
use ferric_types::Inventory;
use proptest::prelude::*;

fn fixtures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures/machines");
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.is_dir()).collect()
}

fn write(tree: &Tree, folder: &Path) {
    for (path, entry) in tree {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match entry {
            Entry::File(content) => fs::write(path, content).unwrap(),
            Entry::Link(target) => std::os::unix::fs::symlink(target, path).unwrap(),
        }
    }
}

fn inventory(machine: &Machine) -> Inventory {
    Registry::new(MANAGERS, machine).unwrap().inventory(machine, &Settings::default())
}

/// What the other collectors find that names nobody: what there is to tell, where the values are names.
fn collected(machine: &Machine) -> serde_json::Value {
    let root = &machine.root;
    let interfaces: BTreeSet<String> = nics::names(root).into_iter().collect();
    let items = extra::items(machine, &inventory(machine), &disks::disks(root).unwrap()).into_value();
    let keys = items.as_array().unwrap().iter().map(|item| (item[0].clone(), item[1].clone(), item[2].clone()));
    let shape = |value: &serde_json::Value| value.as_object().map(|map| map.keys().cloned().collect::<Vec<_>>());
    let dmi = dmi::decode(&Smbios::read(root).unwrap_or_default());
    let devices = dmi["memory"]["devices"].as_array().map(|devices| devices.iter().map(shape).collect::<Vec<_>>());
    serde_json::json!({
        "interfaces": interfaces,
        "pci": pci::devices(root).unwrap_or_default(),
        "numa": numa::topology(root),
        "usb": usb::devices(root),
        "bios": dmi["bios"],
        "devices": devices,
        "extra": keys.collect::<Vec<_>>(),
        "boot": replay::settings(root).pxe_interface.map(|address| address.len()),
    })
}

/// What must not be in a capture, and what takes its place when two inventories are compared.
fn identities(inventory: &mut Inventory) -> Vec<String> {
    let mut found = Vec::new();
    let mut take = |value: &mut String| found.push(std::mem::replace(value, "?".to_owned()));
    for disk in &mut inventory.disks {
        for value in [
            &mut disk.serial,
            &mut disk.wwn,
            &mut disk.wwn_with_extension,
            &mut disk.wwn_vendor_extension,
            &mut disk.by_path,
        ] {
            value.as_mut().map(&mut take);
        }
    }
    for nic in &mut inventory.interfaces {
        for value in [&mut nic.ipv4_address, &mut nic.ipv6_address, &mut nic.client_id] {
            value.as_mut().map(&mut take);
        }
        // On VMBus that is a UUID.
        nic.pci_address.as_mut().filter(|address| address.len() == 36).map(&mut take);
        take(&mut nic.mac_address);
    }
    for interface in &mut inventory.host_interfaces {
        take(&mut interface.service_uuid);
        for value in [&mut interface.mac_address, &mut interface.service_hostname] {
            value.as_mut().map(&mut take);
        }
    }
    for value in [&mut inventory.bmc_address, &mut inventory.bmc_v6address, &mut inventory.bmc_mac] {
        value.as_mut().map(&mut take);
    }
    take(&mut inventory.system_vendor.serial_number);
    inventory.hostname.clear();
    found
}

/// Where a name is told in a capture.
fn told<'a>(tree: &'a Tree, name: &[u8]) -> Option<&'a Path> {
    let has = |bytes: &[u8]| bytes.windows(name.len()).any(|found| found == name);
    let tells = |(path, entry): &(&PathBuf, &Entry)| {
        has(path.as_os_str().as_encoded_bytes())
            || match entry {
                Entry::File(content) => has(content),
                Entry::Link(target) => has(target.as_os_str().as_encoded_bytes()),
            }
    };
    tree.iter().find(tells).map(|(path, _)| path.as_path())
}

#[test]
fn a_captured_machine_is_the_same_but_for_what_names_it() {
    for fixture in fixtures() {
        let name = fixture.display();
        let machine = replay::machine(&fixture).unwrap();
        let tree = capture(&machine, None).unwrap();
        // Hundreds of small files are slow on some disks.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        write(&tree, dir.path());
        let captured = replay::machine(dir.path()).unwrap();
        assert_eq!(collected(&captured), collected(&machine), "{name}");
        let mut seen = inventory(&captured);
        let mut real = inventory(&machine);
        let (invented, names) = (identities(&mut seen), identities(&mut real));
        let lines = |inventory: &Inventory| serde_json::to_string_pretty(inventory).unwrap();
        for (seen, real) in lines(&seen).lines().zip(lines(&real).lines()) {
            assert_eq!(seen, real, "{name}");
        }
        assert_eq!(seen, real, "{name}");
        assert_eq!(invented.len(), names.len(), "{name}");
        for (invented, real) in invented.iter().zip(&names) {
            // Where a device is plugged in tells nothing, unless its name is part of it; addresses for documentation are
            // no secret, and neither is what nobody has filled in.
            let is_place = real.starts_with("/dev/disk/by-path");
            let is_documentation = ["192.0.2.", "2001:db8:"].iter().any(|net| real.starts_with(net));
            let has_digits = real.len() >= 8 && real.bytes().any(|byte| byte.is_ascii_digit());
            if is_place || is_documentation || !has_digits {
                continue;
            }
            assert_ne!(invented, real, "{name}");
            let bare = real.trim_start_matches("0x").split('%').next().unwrap_or_default();
            assert_eq!(told(&tree, bare.as_bytes()), None, "{name}: {real}");
        }
    }
}

#[test]
fn links_out_of_the_tree_are_left_out() {
    for (path, target, inside) in [
        ("sys/block/sda", "../devices/pci0000:00/block/sda", true),
        ("sys/block/sda", "../../etc/shadow", true),
        ("sys/block/sda", "../../../etc/shadow", false),
        ("sys/block/sda", "/etc/shadow", false),
        ("a", "b/../../c", false),
    ] {
        assert_eq!(stays_inside(Path::new(path), Path::new(target)), inside, "{path} -> {target}");
    }
}

/// A machine with one serial number, one hardware address, one world-wide name and one UUID in all places where they can be.
fn planted(tree: &MachineTree, serial: &str, mac: [u8; 6], wwn: [u8; 8], uuid: [u8; 16], host: &str) {
    let pci = "sys/devices/pci0000:00/0000:00:05.0";
    let ata = "pci0000:00/0000:00:05.0/ata1/host0/target0:0:0/0:0:0:0";
    let text = |path: &str, text: &str| tree.file(path, text).unwrap();
    let bytes = |path: &str, bytes: &[u8]| tree.bytes(path, bytes).unwrap();
    let sized = |head: &[u8], body: &[u8]| [head, &[u8::try_from(body.len()).unwrap()], body].concat();
    tree.disk("sda", ata, "8:0", &[("size", "20971520"), ("device/vendor", "ATA"), ("device/model", "MODEL 5")])
        .unwrap();
    bytes(&format!("sys/devices/{ata}/vpd_pg80"), &sized(b"\0\x80\0", format!("{serial:>20}").as_bytes()));
    let units = [
        sized(b"\x02\0\0", format!("{serial:>20}").as_bytes()),
        sized(b"\x02\x01\0", format!("ATA     {:<40}{serial:>20}", "MODEL 5").as_bytes()),
        sized(b"\x01\x03\0", &wwn),
    ];
    bytes(&format!("sys/devices/{ata}/vpd_pg83"), &sized(b"\0\x83\0", &units.concat()));
    let mut identify = vec![0; 572];
    identify[1] = 0x89;
    for (place, text) in [(20, format!("{serial:>20}")), (54, format!("{:<40}", "MODEL 5"))] {
        for (pair, to) in text.as_bytes().chunks(2).zip(identify[60 + place..].chunks_mut(2)) {
            to.copy_from_slice(&[pair[1], pair[0]]);
        }
    }
    for (pair, to) in wwn.chunks(2).zip(identify[60 + 216..].chunks_mut(2)) {
        to.copy_from_slice(&[pair[1], pair[0]]);
    }
    bytes(&format!("sys/devices/{ata}/vpd_pg89"), &identify);
    text(&format!("sys/devices/{ata}/wwid"), &format!("naa.{}", hex(&wwn)));
    text(&format!("sys/devices/{ata}/uevent"), &format!("MODALIAS=scsi\nPARTNAME={serial}"));
    text(
        "run/udev/data/b8:0",
        &format!("E:ID_SERIAL=MODEL_5_{serial}\nE:ID_SERIAL_SHORT={serial}\nE:ID_WWN=0x{}", hex(&wwn)),
    );
    tree.link(&format!("dev/disk/by-id/ata-MODEL_5_{serial}"), "dev/sda").unwrap();
    let nvme = "pci0000:00/0000:00:06.0/nvme/nvme0";
    let wwid = format!("nvme.144d-{}-4d4f44454c-00000001", hex(format!("{serial:<20}").as_bytes()));
    tree.disk("nvme0n1", nvme, "259:0", &[("size", "8"), ("wwid", &wwid), ("device/serial", &format!("{serial:<20}"))])
        .unwrap();
    let usb = format!("{pci}/usb1/1-1");
    text(&format!("{usb}/serial"), &serial.to_uppercase());
    text(&format!("{usb}/net/enx{}/address", hex(&mac)), &colons(&mac));
    tree.link(&format!("sys/class/net/enx{}", hex(&mac)), &format!("{usb}/net/enx{}", hex(&mac))).unwrap();
    text("proc/cmdline", &format!("ip=10.9.8.7 BOOTIF=01-{}", colons(&mac).replace(':', "-")));
    text(&format!("{pci}/host1/fc_host/host1/port_name"), &format!("0x{}", hex(&wwn)));
    text(&format!("{pci}/host1/fc_host/host1/symbolic_name"), &format!("Emulex FV1 HN:{host}. OS:Linux"));
    text("proc/sys/kernel/hostname", &format!("{host}.example"));
    text("sys/devices/virtual/block/dm-0/dm/name", &format!("vg_{host}-root"));
    text("sys/devices/virtual/block/dm-0/dm/uuid", &format!("LVM-{}", hex(&uuid)));
    text("proc/cpuinfo", &format!("processor : 0\nSerial\t\t: {serial}"));
    text("proc/self/mountinfo", &format!("22 1 0:44 / /srv/{serial} rw - nfs {host}:/{serial} rw"));
    let strings = |kind: u8, fields: &[u8], texts: &[&str]| {
        let fields = [&[kind, u8::try_from(fields.len() + 4).unwrap(), 0, 0], fields].concat();
        let texts: Vec<u8> = texts.iter().flat_map(|text| [text.as_bytes(), b"\0"].concat()).collect();
        [fields, texts, vec![0]].concat()
    };
    let table = [
        strings(1, &[&[1, 2, 0, 3][..], &uuid, &[6]].concat(), &["Maker", "Product", serial]),
        strings(2, &[1, 0, 0, 2, 3], &["Maker", &serial.to_lowercase(), &format!("tag {serial}")]),
        strings(11, &[1], &[&format!("Owner: {serial}")]),
        strings(17, &[&[0; 19][..], &[1, 2, 3, 0]].concat(), &["Maker", serial, serial]),
        strings(221, &[&[1][..], &mac].concat(), &[serial]),
        strings(127, &[], &[]),
    ];
    bytes("sys/firmware/dmi/tables/DMI", &table.concat());
}

/// A table of SMBIOS with names in the places where makers and dealers put them.
fn tagged_table() -> Vec<u8> {
    let structure = |kind: u8, fields: &[u8], texts: &[&str]| {
        let texts: Vec<u8> = texts.iter().flat_map(|text| [text.as_bytes(), b"\0"].concat()).collect();
        [&[kind, u8::try_from(fields.len() + 4).unwrap(), 0, 0], fields, &texts, &[0]].concat()
    };
    [
        structure(2, &[1, 0, 0, 2, 3, 0, 4], &["Maker", "BOARDSER123", "NONE77AA1234", "RackPayroll9"]),
        structure(17, &[&[0; 19][..], &[1, 2, 3, 0]].concat(), &["Maker", "DIMMSER778", "DIMMTAG778"]),
        structure(22, &[0, 1, 2, 3], &["Maker", "BATDATE0907", "BATSER7788"]),
        structure(41, &[1, 0, 0], &["PayrollNic7"]),
        structure(46, &[1, 0, 1, 0, 0], &["UefiPath/MAC(0a0b0c0d0e0f)"]),
        structure(127, &[], &[]),
        structure(1, &[0, 0, 0, 1], &["TRAILSER77"]),
    ]
    .concat()
}

#[test]
fn names_of_networks_people_and_dealers_are_not_told() {
    let tree = MachineTree::new().unwrap();
    let pci = "sys/devices/pci0000:00/0000:00:05.0";
    for (path, content) in [
        (
            "sys/devices/virtual/nvme-fabrics/ctl/nvme0/address",
            "traddr=10.44.55.66,trsvcid=4420,host_traddr=10.44.55.67",
        ),
        ("sys/devices/virtual/nvme-fabrics/ctl/nvme1/address", "traddr=nn-0x20000025b5a1b2c3:pn-0x20010025b5d4e5f6"),
        (&format!("{pci}/host1/session1/connection1:0/iscsi_connection/connection1:0/address"), "10.44.55.68"),
        (&format!("{pci}/net/payroll-br0/phys_switch_id"), "506b4b0300c7d8e9"),
        (&format!("{pci}/net/payroll-br0/address"), "52:54:00:11:22:33"),
        (&format!("{pci}/host1/fc_host/host1/symbolic_name"), "Emulex FV1 DV14. HN:othersrv. OS:Linux"),
        (&format!("{pci}/usb1/1-1/input/input3/name"), "Bob Smith's iPhone"),
        ("sys/devices/virtual/block/dm-0/dm/name", "mpathpayroll"),
        ("proc/cmdline", "quiet BOOTIF=3c-fd-fe-a1-b2-c3"),
        ("proc/self/mountinfo", "22 1 253:0 / / rw - xfs /dev/mapper/vgother-lvsalaries rw"),
    ] {
        tree.file(path, content).unwrap();
    }
    tree.link("sys/class/net/payroll-br0", &format!("{pci}/net/payroll-br0")).unwrap();
    tree.link("dev/disk/by-path/ip-10.44.55.69:3260-iscsi-iqn.2001-05.com.payroll:vol77-lun-0", "dev/sdz").unwrap();
    tree.bytes("sys/firmware/dmi/tables/DMI", &tagged_table()).unwrap();
    let captured = capture(&Machine::at(tree.root(), Arc::new(ScriptedExec::new())), None).unwrap();
    for secret in [
        "10.44.55.66",
        "10.44.55.67",
        "10.44.55.68",
        "10.44.55.69",
        "a1b2c3",
        "d4e5f6",
        "c7d8e9",
        "a1-b2-c3",
        "payroll",
        "othersrv",
        "Bob Smith",
        "vol77",
        "salaries",
        "BOARDSER",
        "NONE77",
        "RackPayroll",
        "DIMMSER",
        "DIMMTAG",
        "BATDATE",
        "BATSER",
        "PayrollNic",
        "0a0b0c0d0e0f",
        "TRAILSER",
    ] {
        assert_eq!(told(&captured, secret.as_bytes()), None, "{secret}");
    }
    // The interface has one name everywhere.
    let link = captured.iter().find(|(path, _)| path.starts_with("sys/class/net")).unwrap();
    let Entry::Link(target) = link.1 else { unreachable!() };
    assert_eq!(link.0.file_name(), target.file_name());
    assert!(captured.keys().any(|path| path.ends_with(Path::new(link.0.file_name().unwrap()).join("address"))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn nothing_planted_anywhere_is_told(
        serial in "[A-Z][A-Z0-9]{6,19}|[A-Z]{6,12}[a-z]|[0-9]{6,16}[A-Z]|[A-Z0-9]{5}-[a-z0-9]{4}[0-9]",
        mac in any::<[u8; 6]>(),
        wwn in any::<[u8; 8]>(),
        uuid in any::<[u8; 16]>(),
        host in "[a-z]{3,8}[0-9]{2}",
    ) {
        // A maker's first half stays, so the other half has to be told from it.
        let mac = [&[0x52, 0x54, 0][..], &mac[3..]].concat().try_into().unwrap();
        let wwn: [u8; 8] = [&[0x50, 0, 0xc5][..], &wwn[3..]].concat().try_into().unwrap();
        let has_name = serial.to_lowercase().bytes().any(|byte| !serial.starts_with(char::from(byte)));
        let is_placeholder = ["DEFAULT", "EMPTY", "FILLED", "INVALID", "UNKNOWN"].iter().any(|word| serial == *word);
        prop_assume!(has_name && !is_placeholder && uuid.iter().collect::<BTreeSet<_>>().len() > 4);
        let tree = MachineTree::new().unwrap();
        planted(&tree, &serial, mac, wwn, uuid, &host);
        let machine = Machine::at(tree.root(), Arc::new(ScriptedExec::new()));
        let captured = capture(&machine, None).unwrap();
        let mut secrets = vec![hex(&mac), colons(&mac), dashes(&mac), hex(&wwn), hex(&uuid), host.clone()];
        secrets.push(format!("{}.example", host));
        secrets.extend([serial.clone(), serial.to_lowercase(), serial.to_uppercase(), hex(serial.as_bytes())]);
        for secret in secrets {
            prop_assert_eq!(told(&captured, secret.as_bytes()), None, "{}", secret);
        }
        for secret in [&mac[..], &wwn, &uuid] {
            prop_assert_eq!(told(&captured, secret), None, "{:?}", secret);
        }
        // The words of IDENTIFY DEVICE are the other way round.
        let padded = format!("{serial:>20}");
        let words: Vec<u8> = padded.as_bytes().chunks(2).flat_map(|pair| [pair[1], pair[0]]).collect();
        let from = words.len() - serial.len().next_multiple_of(2);
        prop_assert_eq!(told(&captured, &words[from..]), None, "{} in words", serial);
    }
}

fn colons(bytes: &[u8]) -> String {
    crate::probe::text::with_colons(bytes)
}

fn dashes(bytes: &[u8]) -> String {
    colons(bytes).replace(':', "-")
}
