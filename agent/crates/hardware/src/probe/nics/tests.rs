//! Every field of an interface on several kinds of devices.

use std::net::{Ipv4Addr, Ipv6Addr};

use ferric_sys::testing::machine::MachineTree;
use serde_json::{Value, json};

use super::*;

fn nic(tree: &MachineTree, name: &str, address: &str) {
    tree.file(&format!("sys/class/net/{name}/address"), address).unwrap();
    tree.file(&format!("sys/devices/{name}/vendor"), "0x8086").unwrap();
    tree.link(&format!("sys/class/net/{name}/device"), &format!("sys/devices/{name}")).unwrap();
}

#[test]
fn vlans_are_known_by_their_name() {
    for (name, want) in
        [("eth0.100", true), ("eth0", false), ("eth0.", false), ("eth0.x1", false), ("a.1.2", false), (".5", true)]
    {
        assert_eq!(is_vlan(name), want, "{name}");
    }
}

/// A kind of device: its name, files of the interface, its device below `sys/devices` with files, and the driver.
struct Kind {
    name: &'static str,
    files: &'static [(&'static str, &'static str)],
    device: &'static str,
    device_files: &'static [(&'static str, &'static str)],
    driver: &'static str,
    facts: fn() -> NicFacts,
    want: fn() -> Value,
}

const UP: &[(&str, &str)] = &[("address", "52:54:00:00:00:01"), ("carrier", "1"), ("speed", "10000")];

fn v4() -> Option<Ipv4Addr> {
    Some(Ipv4Addr::new(192, 0, 2, 5))
}

const KINDS: &[Kind] = &[
    Kind {
        name: "virtio",
        files: &[("address", "52:54:00:00:00:01"), ("carrier", "1"), ("speed", "-1")],
        device: "pci0000:00/0000:00:03.0/virtio0",
        device_files: &[("vendor", "0x1af4"), ("device", "0x0001")],
        driver: "virtio_net",
        facts: || NicFacts {
            permanent_address: Some(vec![0x52, 0x54, 0, 0, 0, 1]),
            ipv4: v4(),
            ipv6: Some(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1)),
            ..NicFacts::default()
        },
        want: || {
            json!({
                "name": "virtio", "mac_address": "52:54:00:00:00:01", "ipv4_address": "192.0.2.5",
                "ipv6_address": "fe80::1%virtio", "has_carrier": true, "lldp": null, "vendor": "0x1af4", "product": "0x0001",
                "client_id": null, "biosdevname": null, "speed_mbps": null, "pci_address": "virtio0", "driver": "virtio_net",
                "predictable_names": {"path": "enp0s3"},
            })
        },
    },
    Kind {
        name: "onboard",
        files: &[("address", "aa:aa:aa:aa:aa:aa"), ("carrier", "1"), ("speed", "1000")],
        device: "pci0000:17/0000:17:00.0/0000:18:00.0",
        device_files: &[("vendor", "0x8086"), ("device", "0x1572"), ("index", "1")],
        driver: "i40e",
        facts: || NicFacts {
            // The address on the wire is a bond's.
            permanent_address: Some(vec![0x3c, 0xfd, 0xfe, 1, 2, 3]),
            max_speed_mbps: Some(10_000),
            firmware: Some("9.20 0x8000d8c5 22.5.7".to_owned()),
            ipv6: Some("2001:db8::5".parse().unwrap()),
            ..NicFacts::default()
        },
        want: || {
            json!({
                "name": "onboard", "mac_address": "3c:fd:fe:01:02:03", "ipv4_address": null, "ipv6_address": "2001:db8::5",
                "has_carrier": true, "lldp": null, "vendor": "0x8086", "product": "0x1572", "client_id": null,
                "biosdevname": "em1", "speed_mbps": 10000, "pci_address": "0000:18:00.0", "driver": "i40e",
                "firmware": "9.20 0x8000d8c5 22.5.7", "predictable_names": {"onboard": "eno1", "path": "enp24s0"},
            })
        },
    },
    Kind {
        name: "card",
        // A driver that is down has no carrier to read, and shows the unknown speed as it is stored.
        files: &[("address", "00:1B:21:AA:BB:CC"), ("speed", "4294967295")],
        device: "pci0000:3a/0000:3a:00.0/0000:3b:00.0",
        device_files: &[("vendor", "0x14e4"), ("device", "0x16d7")],
        driver: "bnxt_en",
        facts: NicFacts::default,
        want: || {
            json!({
                "name": "card", "mac_address": "00:1b:21:aa:bb:cc", "ipv4_address": null, "ipv6_address": null,
                "has_carrier": false, "lldp": null, "vendor": "0x14e4", "product": "0x16d7", "client_id": null,
                "biosdevname": "p2p1", "speed_mbps": null, "pci_address": "0000:3b:00.0", "driver": "bnxt_en",
                "predictable_names": {"slot": "ens2", "path": "enp59s0"},
            })
        },
    },
    Kind {
        name: "usb",
        files: &[("address", "00:e0:4c:68:00:01"), ("carrier", "0"), ("speed", "100")],
        device: "pci0000:00/0000:00:14.0/usb1/1-14/1-14:1.0",
        device_files: &[],
        driver: "cdc_ether",
        facts: || NicFacts { max_speed_mbps: Some(1_000), ..NicFacts::default() },
        want: || {
            json!({
                "name": "usb", "mac_address": "00:e0:4c:68:00:01", "ipv4_address": null, "ipv6_address": null,
                "has_carrier": false, "lldp": null, "vendor": null, "product": null, "client_id": null, "biosdevname": null,
                "speed_mbps": 1000, "pci_address": "1-14:1.0", "driver": "cdc_ether",
            })
        },
    },
    Kind {
        name: "bond0",
        files: &[("address", "52:54:00:00:00:01"), ("carrier", "1"), ("speed", "20000"), ("bonding/mode", "802.3ad 4")],
        device: "",
        device_files: &[],
        driver: "",
        facts: || NicFacts { permanent_address: Some(vec![0; 6]), ipv4: v4(), ..NicFacts::default() },
        want: || {
            json!({
                "name": "bond0", "mac_address": "52:54:00:00:00:01", "ipv4_address": "192.0.2.5", "ipv6_address": null,
                "has_carrier": true, "lldp": null, "vendor": null, "product": null, "client_id": null, "biosdevname": null,
                "speed_mbps": 20000, "pci_address": null, "driver": null,
            })
        },
    },
    Kind {
        name: "bond0.100",
        files: UP,
        device: "",
        device_files: &[],
        driver: "",
        facts: || NicFacts {
            ipv6: Some("fe80::2".parse().unwrap()),
            max_speed_mbps: Some(25_000),
            ..NicFacts::default()
        },
        want: || {
            json!({
                "name": "bond0.100", "mac_address": "52:54:00:00:00:01", "ipv4_address": null,
                "ipv6_address": "fe80::2%bond0.100", "has_carrier": true, "lldp": null, "vendor": null, "product": null,
                "client_id": null, "biosdevname": null, "speed_mbps": 25000, "pci_address": null, "driver": null,
            })
        },
    },
    Kind {
        name: "ib0",
        files: &[
            ("address", "a0:00:00:27:fe:80:00:00:00:00:00:00:7c:fe:90:03:00:29:26:52"),
            ("carrier", "1"),
            ("speed", "100000"),
            ("type", "32"),
        ],
        device: "pci0000:80/0000:80:02.0/0000:81:00.0",
        device_files: &[("vendor", "0x15b3"), ("device", "0x1013")],
        driver: "mlx5_core",
        facts: || NicFacts {
            ipv4: v4(),
            ipv6: Some("fe80::3".parse().unwrap()),
            firmware: Some("12.28.1002 (MT_2180110032)".to_owned()),
            max_speed_mbps: Some(100_000),
            ..NicFacts::default()
        },
        want: || {
            json!({
                "name": "ib0", "mac_address": "7c:fe:90:29:26:52", "ipv4_address": "192.0.2.5", "ipv6_address": null,
                "has_carrier": true, "lldp": null, "vendor": "0x15b3", "product": "0x1013",
                "client_id": "ff:00:00:00:00:00:02:00:00:02:c9:00:7c:fe:90:03:00:29:26:52", "biosdevname": null,
                "speed_mbps": null, "pci_address": null, "driver": null, "firmware": "12.28.1002 (MT_2180110032)",
                "predictable_names": {"path": "ibp129s0"},
            })
        },
    },
    Kind {
        name: "mlnx",
        files: &[("address", "7c:fe:90:29:26:53"), ("carrier", "1"), ("speed", "25000")],
        device: "pci0000:80/0000:80:03.0/0000:82:00.0",
        device_files: &[("vendor", "0x15b3"), ("device", "0x1015")],
        driver: "mlx5_core",
        facts: || NicFacts { max_speed_mbps: Some(100_000), ..NicFacts::default() },
        want: || {
            json!({
                "name": "mlnx", "mac_address": "7c:fe:90:29:26:53", "ipv4_address": null, "ipv6_address": null,
                "has_carrier": true, "lldp": null, "vendor": "0x15b3", "product": "0x1015", "client_id": null,
                "biosdevname": null, "speed_mbps": 100000, "pci_address": "0000:82:00.0", "driver": "mlx5_core",
                "predictable_names": {"path": "enp130s0"},
            })
        },
    },
];

#[test]
fn every_field_of_every_kind_of_device_is_as_the_reference_agent_has_it() {
    let tree = MachineTree::new().unwrap();
    tree.file("proc/cpuinfo", "flags\t\t: fpu sse2").unwrap();
    tree.file("sys/bus/pci/slots/2/address", "0000:3b:00").unwrap();
    for (place, kind) in KINDS.iter().enumerate() {
        let dir = format!("sys/class/net/{}", kind.name);
        tree.file(&format!("{dir}/ifindex"), &(place + 2).to_string()).unwrap();
        kind.files.iter().for_each(|(name, text)| tree.file(&format!("{dir}/{name}"), text).unwrap());
        if !kind.device.is_empty() {
            let device = format!("sys/devices/{}", kind.device);
            kind.device_files.iter().for_each(|(name, text)| tree.file(&format!("{device}/{name}"), text).unwrap());
            std::fs::create_dir_all(tree.path(&device)).unwrap();
            tree.link(&format!("{device}/driver"), &format!("sys/bus/drivers/{}", kind.driver)).unwrap();
            tree.link(&format!("{dir}/device"), &device).unwrap();
        }
    }
    let facts = |name: &str| KINDS.iter().find(|kind| kind.name == name).map(|kind| (kind.facts)()).unwrap();
    let found = interfaces(&tree.root(), &facts);
    let names: Vec<&str> = found.iter().map(|nic| nic.name.as_str()).collect();
    assert_eq!(names, KINDS.iter().map(|kind| kind.name).collect::<Vec<_>>(), "in the kernel's order");
    for (nic, kind) in found.iter().zip(KINDS) {
        let (seen, want) = (serde_json::to_value(nic).unwrap(), (kind.want)());
        assert_eq!(seen, want, "{}", kind.name);
        // Keys that Ironic's hooks and rules read are there even when unknown, and in the order of the reference agent.
        let keys: Vec<&String> = seen.as_object().unwrap().keys().collect();
        let known: Vec<&String> = want.as_object().unwrap().keys().collect();
        assert_eq!(keys, known, "{}", kind.name);
    }
}

#[test]
fn interfaces_without_hardware_without_address_or_of_neutron_are_left_out() {
    let tree = MachineTree::new().unwrap();
    tree.file("sys/class/net/lo/address", "00:00:00:00:00:00").unwrap();
    tree.file("sys/class/net/br0/address", "52:54:00:00:00:09").unwrap();
    tree.file("sys/class/net/br0/bridge/bridge_id", "8000.525400000009").unwrap();
    tree.file("sys/class/net/veth1/address", "52:54:00:00:00:08").unwrap();
    tree.file("sys/class/net/bonding_masters", "bond0").unwrap();
    tree.file("sys/class/net/bond0/address", "52:54:00:00:00:01").unwrap();
    tree.file("sys/class/net/bond0/bonding/mode", "802.3ad 4").unwrap();
    nic(&tree, "eth0", "52:54:00:00:00:01");
    nic(&tree, "eth1", "FA:16:3e:00:00:01");
    nic(&tree, "eth2", "00:00:00:00:00:00");
    nic(&tree, "eth3", "");
    nic(&tree, "eth4", "fa:16:3e:00:00:02");
    nic(&tree, "eth5", "52:54:00:00:00:05");
    let permanent = |address: [u8; 6]| NicFacts { permanent_address: Some(address.into()), ..NicFacts::default() };
    let facts = |name: &str| match name {
        "eth0" => permanent([0x52, 0x54, 0, 0, 0, 0xee]),
        // The address that counts is the permanent one, for this rule as well.
        "eth4" => permanent([0x52, 0x54, 0, 0, 0, 4]),
        "eth5" => permanent([0xfa, 0x16, 0x3e, 0, 0, 5]),
        _ => NicFacts::default(),
    };
    let found: Vec<_> = interfaces(&tree.root(), &facts).into_iter().map(|nic| (nic.name, nic.mac_address)).collect();
    let want = [("bond0", "52:54:00:00:00:01"), ("eth0", "52:54:00:00:00:ee"), ("eth4", "52:54:00:00:00:04")];
    assert_eq!(found, want.map(|(name, mac)| (name.to_owned(), mac.to_owned())));
}

#[test]
fn both_members_of_a_bond_have_their_own_address() {
    let tree = MachineTree::new().unwrap();
    tree.file("sys/class/net/bond0/address", "52:54:00:00:00:01").unwrap();
    tree.file("sys/class/net/bond0/bonding/slaves", "eth0 eth1").unwrap();
    nic(&tree, "eth0", "52:54:00:00:00:01");
    nic(&tree, "eth1", "52:54:00:00:00:01");
    let facts = |name: &str| NicFacts {
        permanent_address: name
            .strip_prefix("eth")
            .map(|number| vec![0x52, 0x54, 0, 0, 0, number.parse::<u8>().unwrap() + 1]),
        ..NicFacts::default()
    };
    let found: Vec<_> = interfaces(&tree.root(), &facts).into_iter().map(|nic| nic.mac_address).collect();
    assert_eq!(found, ["52:54:00:00:00:01", "52:54:00:00:00:01", "52:54:00:00:00:02"]);
}

#[test]
fn an_infiniband_port_of_another_maker_keeps_its_long_address() {
    let tree = MachineTree::new().unwrap();
    let address = "80:00:00:03:fe:80:00:00:00:00:00:00:00:11:75:01:01:aa:bb:cc";
    nic(&tree, "ib0", address);
    let found = interfaces(&tree.root(), &|_| NicFacts::default()).remove(0);
    assert_eq!((found.mac_address.as_str(), found.client_id), (address, None));
}

#[test]
fn link_local_addresses_carry_their_scope() {
    assert_eq!(ipv6_text("fe80::1".parse().unwrap(), "eth0"), "fe80::1%eth0");
    assert_eq!(ipv6_text("2001:db8::1".parse().unwrap(), "eth0"), "2001:db8::1");
}

#[test]
fn an_interface_without_a_valid_address_is_left_out() {
    for (address, permanent, want) in [
        ("not a mac \u{1b}[31m", None, None),
        ("52:54:00:00:00", None, None),
        ("52:54:00:00:00:0g", None, None),
        ("52:54:00:00:00:01:02", None, None),
        ("52:54:00:00:00:01", Some(vec![1]), Some("52:54:00:00:00:01")),
        ("junk", Some(vec![0x52, 0x54, 0, 0, 0, 2]), Some("52:54:00:00:00:02")),
    ] {
        let tree = MachineTree::new().unwrap();
        nic(&tree, "eth0", address);
        let facts = |_: &str| NicFacts { permanent_address: permanent.clone(), ..NicFacts::default() };
        let found: Vec<String> = interfaces(&tree.root(), &facts).into_iter().map(|nic| nic.mac_address).collect();
        assert_eq!(found, want.into_iter().collect::<Vec<_>>(), "{address:?}");
    }
}
