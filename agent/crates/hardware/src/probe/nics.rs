//! Network interfaces (hardware section 2.1): sysfs, and what only sockets tell ([`NicFacts`]).

use std::net::Ipv6Addr;

use ferric_sys::ioctl::net::NicFacts;
use ferric_sys::{Root, attr};
use ferric_types::inventory::NetworkInterface;

use super::text::with_colons;

/// Interfaces of the inventory in the kernel's order: hardware, bonds and VLANs, with an address that does not begin
/// with `fa:` (Neutron's own interfaces).
pub fn interfaces(root: &Root, facts: &dyn Fn(&str) -> NicFacts) -> Vec<NetworkInterface> {
    names(root).into_iter().filter_map(|name| interface(root, &name, &facts(&name))).collect()
}

/// Names of the interfaces that count as hardware: those with a device, bonds, and VLANs by their name. `lo`,
/// bridges, tunnels and the like are left out.
pub fn names(root: &Root) -> Vec<String> {
    let class = root.path("sys/class/net");
    let mut names: Vec<(u64, String)> = attr::list(&class)
        .into_iter()
        .filter(|name| {
            let dir = class.join(name);
            is_vlan(name) || dir.join("device").exists() || dir.join("bonding").exists()
        })
        .map(|name| (attr::read_u64(&class.join(&name).join("ifindex")).unwrap_or(u64::MAX), name))
        .collect();
    names.sort();
    names.into_iter().map(|(_, name)| name).collect()
}

/// One interface, or `None` when it has no address of its own or one of Neutron's.
pub fn interface(root: &Root, name: &str, facts: &NicFacts) -> Option<NetworkInterface> {
    let dir = root.path("sys/class/net").join(name);
    let mac_address = mac_address(&attr::read_optional(&dir.join("address")), facts)?;
    if mac_address.starts_with("fa:") {
        tracing::debug!(interface = name, mac_address, "left out of the inventory: an address of Neutron");
        return None;
    }
    let speed_now = attr::read_u64(&dir.join("speed")).ok().filter(|speed| *speed > 0);
    Some(NetworkInterface {
        name: name.to_owned(),
        mac_address,
        ipv4_address: facts.ipv4.map(|address| address.to_string()),
        ipv6_address: facts.ipv6.map(|address| ipv6_text(address, name)),
        has_carrier: attr::read_trimmed(&dir.join("carrier")).is_ok_and(|carrier| carrier == "1"),
        lldp: None,
        vendor: attr::read_optional(&dir.join("device/vendor")),
        product: attr::read_optional(&dir.join("device/device")),
        client_id: None,
        biosdevname: None,
        speed_mbps: facts.max_speed_mbps.or(speed_now),
        pci_address: attr::link_name(&dir.join("device")),
        driver: attr::link_name(&dir.join("device/driver")),
    })
}

/// Whether a name is one of a VLAN: all that follows its first dot is digits.
pub fn is_vlan(name: &str) -> bool {
    name.split_once('.').is_some_and(|(_, id)| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The permanent address where the driver knows it, since a bond member shows the bond's; else the current one.
fn mac_address(current: &Option<String>, facts: &NicFacts) -> Option<String> {
    if let Some(address) = facts.permanent_address.as_ref().filter(|address| address.iter().any(|byte| *byte != 0)) {
        return Some(with_colons(address));
    }
    let current = current.as_ref()?.to_lowercase();
    current.bytes().any(|byte| byte != b'0' && byte != b':').then_some(current)
}

fn ipv6_text(address: Ipv6Addr, interface: &str) -> String {
    if address.is_unicast_link_local() { format!("{address}%{interface}") } else { address.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_sys::testing::machine::MachineTree;

    fn nic(tree: &MachineTree, name: &str, address: &str) {
        tree.file(&format!("sys/class/net/{name}/address"), address).unwrap();
        tree.file(&format!("sys/devices/{name}/vendor"), "0x8086").unwrap();
        tree.link(&format!("sys/class/net/{name}/device"), &format!("sys/devices/{name}")).unwrap();
    }

    #[test]
    fn vlans_are_known_by_their_name() {
        for (name, want) in
            [("eth0.100", true), ("eth0", false), ("eth0.", false), ("eth0.x1", false), ("a.1.2", false)]
        {
            assert_eq!(is_vlan(name), want, "{name}");
        }
    }

    #[test]
    fn interfaces_without_hardware_without_address_or_of_neutron_are_left_out() {
        let tree = MachineTree::new().unwrap();
        tree.file("sys/class/net/lo/address", "00:00:00:00:00:00").unwrap();
        tree.file("sys/class/net/br0/address", "52:54:00:00:00:09").unwrap();
        tree.file("sys/class/net/bond0/address", "52:54:00:00:00:01").unwrap();
        tree.file("sys/class/net/bond0/bonding/mode", "802.3ad 4").unwrap();
        nic(&tree, "eth0", "52:54:00:00:00:01");
        nic(&tree, "eth1", "FA:16:3e:00:00:01");
        nic(&tree, "eth2", "00:00:00:00:00:00");
        let facts = |name: &str| match name {
            "eth0" => NicFacts { permanent_address: Some(vec![0x52, 0x54, 0, 0, 0, 0xee]), ..NicFacts::default() },
            _ => NicFacts::default(),
        };
        let found: Vec<_> =
            interfaces(&tree.root(), &facts).into_iter().map(|nic| (nic.name, nic.mac_address)).collect();
        let want = [("bond0", "52:54:00:00:00:01"), ("eth0", "52:54:00:00:00:ee")];
        assert_eq!(found, want.map(|(name, mac)| (name.to_owned(), mac.to_owned())));
    }

    #[test]
    fn link_local_addresses_carry_their_scope() {
        assert_eq!(ipv6_text("fe80::1".parse().unwrap(), "eth0"), "fe80::1%eth0");
        assert_eq!(ipv6_text("2001:db8::1".parse().unwrap(), "eth0"), "2001:db8::1");
    }

    #[test]
    fn a_link_that_is_down_has_neither_carrier_nor_speed() {
        let tree = MachineTree::new().unwrap();
        nic(&tree, "eth0", "52:54:00:00:00:01");
        tree.file("sys/class/net/eth0/speed", "-1").unwrap();
        let found = interface(&tree.root(), "eth0", &NicFacts::default()).unwrap();
        assert_eq!((found.has_carrier, found.speed_mbps), (false, None));
        assert_eq!(found.vendor.as_deref(), Some("0x8086"));
    }
}
