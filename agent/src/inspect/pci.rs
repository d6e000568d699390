//! The `pci-devices` collector (inspection section 3.2).

use ferric_hardware::probe::pci;
use serde_json::{Map, Value};

use super::{CollectError, Collector};
use crate::app::App;

/// The collector.
pub const PCI_DEVICES: Collector = Collector { name: "pci-devices", collect };

fn collect(app: &App, body: &mut Map<String, Value>) -> Result<(), CollectError> {
    body.insert("pci_devices".to_owned(), serde_json::to_value(pci::devices(&app.machine.root)?)?);
    Ok(())
}
