//! Network interfaces (hardware section 2.1): sysfs, and what only sockets tell ([`NicFacts`]).

use std::net::Ipv6Addr;

use ferric_sys::ioctl::net::NicFacts;
use ferric_sys::{Root, attr};
use ferric_types::inventory::NetworkInterface;

use super::infiniband;
use super::naming::Namer;
use super::text::with_colons;

/// `SPEED_UNKNOWN`, which some drivers show without its sign.
const UNKNOWN_SPEED: u64 = 0xffff_ffff;
/// Vendor whose InfiniBand ports Ironic knows.
const MELLANOX: &str = "0x15b3";

/// Interfaces of the inventory in the kernel's order: hardware, bonds and VLANs, with an address that does not begin
/// with `fa:` (Neutron's own interfaces).
pub fn interfaces(root: &Root, facts: &dyn Fn(&str) -> NicFacts) -> Vec<NetworkInterface> {
    let names = names(root);
    let namer = Namer::new(root, &names);
    names.into_iter().filter_map(|name| interface(root, &namer, &name, &facts(&name))).collect()
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
pub fn interface(root: &Root, namer: &Namer, name: &str, facts: &NicFacts) -> Option<NetworkInterface> {
    let dir = root.path("sys/class/net").join(name);
    let address = mac_address(&attr::read_optional(&dir.join("address")), facts)?;
    let vendor = attr::read_optional(&dir.join("device/vendor"));
    let infiniband = infiniband::identity(&address).filter(|_| vendor.as_deref() == Some(MELLANOX));
    let (mac_address, client_id) = infiniband.map_or((address, None), |(mac, client_id)| (mac, Some(client_id)));
    if mac_address.starts_with("fa:") {
        tracing::debug!(interface = name, mac_address, "left out of the inventory: an address of Neutron");
        return None;
    }
    let common = NetworkInterface {
        name: name.to_owned(),
        mac_address,
        ipv4_address: facts.ipv4.map(|address| address.to_string()),
        has_carrier: attr::read_trimmed(&dir.join("carrier")).is_ok_and(|carrier| carrier == "1"),
        vendor,
        product: attr::read_optional(&dir.join("device/device")),
        client_id,
        firmware: facts.firmware.clone(),
        ..NetworkInterface::default()
    };
    let (predictable_names, biosdevname) = namer.names(&dir);
    if common.client_id.is_some() {
        // The reference agent knows no more of these ports.
        return Some(NetworkInterface { predictable_names, ..common });
    }
    let speed_now = attr::read_u64(&dir.join("speed")).ok().filter(|speed| (1..UNKNOWN_SPEED).contains(speed));
    Some(NetworkInterface {
        ipv6_address: facts.ipv6.map(|address| ipv6_text(address, name)),
        biosdevname: biosdevname.filter(|_| !is_vlan(name)),
        speed_mbps: facts.max_speed_mbps.or(speed_now),
        pci_address: attr::link_name(&dir.join("device")),
        driver: attr::link_name(&dir.join("device/driver")),
        predictable_names,
        ..common
    })
}

/// Whether a name is one of a VLAN: all that follows its first dot is digits.
pub fn is_vlan(name: &str) -> bool {
    name.split_once('.').is_some_and(|(_, id)| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The permanent address where the driver knows it, since a bond member shows the bond's; else the current one. What is no
/// address is left out.
fn mac_address(current: &Option<String>, facts: &NicFacts) -> Option<String> {
    let permanent = facts.permanent_address.as_deref().map(with_colons);
    permanent.filter(|address| is_address(address)).or_else(|| {
        let current = current.as_ref()?.to_lowercase();
        is_address(&current).then_some(current)
    })
}

/// Whether a text is an address of Ethernet (6 octets) or InfiniBand (20 octets), and not all zeros.
fn is_address(text: &str) -> bool {
    let is_octet = |octet: &str| octet.len() == 2 && octet.bytes().all(|byte| byte.is_ascii_hexdigit());
    matches!(text.split(':').count(), 6 | 20)
        && text.split(':').all(is_octet)
        && text.bytes().any(|byte| byte != b'0' && byte != b':')
}

fn ipv6_text(address: Ipv6Addr, interface: &str) -> String {
    if address.is_unicast_link_local() { format!("{address}%{interface}") } else { address.to_string() }
}

#[cfg(test)]
mod tests;
