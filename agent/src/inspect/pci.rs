//! The `pci-devices` collector (inspection section 3.2).

use std::path::Path;

use ferric_sys::{Root, attr};
use serde_json::{Map, Value, json};

use super::{CollectError, Collector};
use crate::app::App;

/// The collector.
pub const PCI_DEVICES: Collector = Collector { name: "pci-devices", collect };

fn collect(app: &App, body: &mut Map<String, Value>) -> Result<(), CollectError> {
    body.insert("pci_devices".to_owned(), Value::Array(devices(&app.machine.root)?));
    Ok(())
}

/// Every PCI device with its identifiers as hexadecimal text without `0x`; a device whose identifiers cannot be read
/// is left out.
fn devices(root: &Root) -> Result<Vec<Value>, CollectError> {
    let path = root.path("sys/bus/pci/devices");
    if let Err(source) = std::fs::read_dir(&path) {
        return Err(CollectError::Read { path, source });
    }
    Ok(attr::list(&path).into_iter().filter_map(|bus| device(&path.join(&bus), &bus)).collect())
}

fn device(path: &Path, bus: &str) -> Option<Value> {
    let hex = |name: &str| {
        let text = attr::read_optional(&path.join(name))?;
        Some(text.strip_prefix("0x").unwrap_or(&text).to_owned())
    };
    Some(json!({
        "vendor_id": hex("vendor")?,
        "product_id": hex("device")?,
        "class": hex("class")?,
        "revision": hex("revision"),
        "bus": bus,
        "numa_node_id": attr::read_optional(&path.join("numa_node")),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_listed_with_plain_hex_and_broken_ones_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("sys/bus/pci/devices");
        for (bus, files) in [
            (
                "0000:18:00.0",
                &[
                    ("vendor", "0x8086\n"),
                    ("device", "0x1572\n"),
                    ("class", "0x020000\n"),
                    ("revision", "0x02\n"),
                    ("numa_node", "-1\n"),
                ][..],
            ),
            ("0000:19:00.0", &[("vendor", "0x8086\n"), ("class", "0x020000\n")][..]),
            ("0000:1a:00.0", &[("vendor", "0x1af4\n"), ("device", "0x1000\n"), ("class", "0x020000\n")][..]),
        ] {
            std::fs::create_dir_all(base.join(bus)).unwrap();
            for (name, text) in files {
                std::fs::write(base.join(bus).join(name), text).unwrap();
            }
        }
        let found = devices(&Root::at(dir.path())).unwrap();
        assert_eq!(
            found[0],
            json!({"vendor_id": "8086", "product_id": "1572", "class": "020000", "revision": "02", "bus": "0000:18:00.0", "numa_node_id": "-1"})
        );
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!((&found[1]["revision"], &found[1]["numa_node_id"]), (&Value::Null, &Value::Null));
    }

    #[test]
    fn a_machine_without_a_pci_bus_is_a_failure_of_the_collector() {
        let dir = tempfile::tempdir().unwrap();
        let error = devices(&Root::at(dir.path())).unwrap_err().to_string();
        assert!(error.contains("sys/bus/pci/devices"), "{error}");
    }
}
