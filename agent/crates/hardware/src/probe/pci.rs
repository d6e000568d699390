//! PCI devices as the `pci-devices` collector sends them (inspection section 3.2).

use ferric_sys::{Root, attr};
use serde::Serialize;

/// One PCI device. The numbers are hexadecimal text without `0x`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PciDevice {
    /// Vendor.
    pub vendor_id: String,
    /// Device.
    pub product_id: String,
    /// Class, subclass and programming interface.
    pub class: String,
    /// Revision.
    pub revision: Option<String>,
    /// Address, such as `0000:18:00.0`.
    pub bus: String,
    /// NUMA node as text; `-1` when it belongs to none.
    pub numa_node_id: Option<String>,
}

/// Every PCI device whose vendor, device and class can be read, by address.
///
/// # Errors
/// The machine has no PCI bus, or it cannot be listed.
pub fn devices(root: &Root) -> Result<Vec<PciDevice>, attr::AttrError> {
    let bus = root.path("sys/bus/pci/devices");
    if let Err(source) = std::fs::read_dir(&bus) {
        return Err(attr::AttrError::Read { path: bus, source });
    }
    Ok(attr::list(&bus).into_iter().filter_map(|address| device(&bus.join(&address), address)).collect())
}

fn device(dir: &std::path::Path, bus: String) -> Option<PciDevice> {
    let hex = |name: &str| {
        let text = attr::read_optional(&dir.join(name))?;
        Some(text.strip_prefix("0x").unwrap_or(&text).to_owned())
    };
    Some(PciDevice {
        vendor_id: hex("vendor")?,
        product_id: hex("device")?,
        class: hex("class")?,
        revision: hex("revision"),
        numa_node_id: attr::read_optional(&dir.join("numa_node")),
        bus,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_sys::testing::machine::MachineTree;

    #[test]
    fn devices_lose_their_prefix_and_unreadable_ones_are_left_out() {
        let tree = MachineTree::new().unwrap();
        for (address, attributes) in [
            (
                "0000:18:00.0",
                &[("vendor", "0x8086"), ("device", "0x1572"), ("class", "0x020000"), ("revision", "0x02")][..],
            ),
            ("0000:00:01.0", &[("vendor", "0x1af4"), ("device", "0x1000"), ("class", "0x020000"), ("numa_node", "-1")]),
            ("0000:00:02.0", &[("vendor", "0x1af4"), ("device", "0x1000")]),
        ] {
            for (name, value) in attributes {
                tree.file(&format!("sys/bus/pci/devices/{address}/{name}"), value).unwrap();
            }
        }
        let found = devices(&tree.root()).unwrap();
        assert_eq!(
            serde_json::to_value(&found).unwrap(),
            serde_json::json!([
                {"vendor_id": "1af4", "product_id": "1000", "class": "020000", "revision": null, "bus": "0000:00:01.0", "numa_node_id": "-1"},
                {"vendor_id": "8086", "product_id": "1572", "class": "020000", "revision": "02", "bus": "0000:18:00.0", "numa_node_id": null},
            ])
        );
    }

    #[test]
    fn a_machine_without_a_pci_bus_is_an_error_that_names_the_directory() {
        let tree = MachineTree::new().unwrap();
        assert!(devices(&tree.root()).unwrap_err().to_string().contains("sys/bus/pci/devices"));
    }
}
