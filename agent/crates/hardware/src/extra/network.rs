//! Network interfaces.

use ferric_sys::attr;
use ferric_types::inventory::NetworkInterface;

use super::Items;
use crate::machine::Machine;

pub(super) fn add(items: &mut Items, machine: &Machine, nics: &[NetworkInterface]) {
    for nic in nics {
        let folder = machine.root.path("sys/class/net").join(&nic.name);
        // What the link runs at now, Mbit/s; -1, with or without its sign, or unreadable without a link.
        let mbps = attr::read_u64(&folder.join("speed")).ok().filter(|speed| (1..0xffff_ffff).contains(speed));
        let duplex = attr::read_optional(&folder.join("duplex")).filter(|duplex| duplex != "unknown");
        let firmware = machine.net.facts(&nic.name).firmware;
        for (key, value) in [
            ("businfo", nic.pci_address.as_deref().map(place)),
            ("vendor", nic.vendor.clone()),
            ("product", nic.product.clone()),
            ("firmware", firmware),
            ("size", mbps.map(|mbps| (mbps * 1_000_000).to_string())),
            ("ipv4", nic.ipv4_address.clone()),
            ("link", Some(if nic.has_carrier { "yes" } else { "no" }.to_owned())),
            ("driver", nic.driver.clone()),
            ("duplex", duplex),
            ("speed", mbps.map(speed)),
            ("serial", Some(nic.mac_address.clone())),
        ] {
            items.text("network", &nic.name, key, value);
        }
    }
}

/// Place on the bus as `lshw` writes it.
fn place(address: &str) -> String {
    match address.strip_prefix("virtio") {
        Some(number) => format!("virtio@{number}"),
        None if address.contains(':') => format!("pci@{address}"),
        None => address.to_owned(),
    }
}

fn speed(mbps: u64) -> String {
    if mbps >= 1000 && mbps.is_multiple_of(1000) { format!("{}Gbit/s", mbps / 1000) } else { format!("{mbps}Mbit/s") }
}
