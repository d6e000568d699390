//! The `default` collector: the inventory and what Ironic's hooks read beside it.

use std::time::Duration;

use ferric_hardware::probe::disks;
use ferric_hardware::root_device;
use serde_json::{Map, Value, json};

use super::{CollectError, Collector};
use crate::app::App;

/// The collector.
pub const DEFAULT: Collector = Collector { name: "default", collect };

/// Longest wait for USB storage, such as a BMC's virtual disks; the kernel itself takes a second over each.
const USB_WAIT: Duration = Duration::from_secs(5);

fn collect(app: &App, body: &mut Map<String, Value>) -> Result<(), CollectError> {
    // The disk that would be chosen without hints, once the drivers have found it; a machine may have none.
    let root_disk = match root_device::wait(&app.registry, &app.machine, &app.settings(), None) {
        Ok(disk) => Some(serde_json::to_value(disk.info)?),
        Err(error) => {
            tracing::warn!(%error, "inspecting without a root disk");
            None
        }
    };
    disks::settle(&app.machine.root, USB_WAIT);
    let (inventory, unlisted) = app.look();
    let boot_interface = inventory.boot.pxe_interface.clone();
    body.insert("inventory".to_owned(), serde_json::to_value(&inventory)?);
    if let Some(disk) = root_disk {
        body.insert("root_disk".to_owned(), disk);
    }
    body.insert("boot_interface".to_owned(), json!(boot_interface));
    let config = app.config();
    let collectors = config
        .inspection_collectors
        .clone()
        .unwrap_or_else(|| super::DEFAULT_COLLECTORS.iter().map(|name| (*name).to_owned()).collect());
    let managers: Vec<Value> = app
        .registry
        .managers()
        .into_iter()
        .map(|(name, version)| json!({ "name": name, "version": version }))
        .collect();
    body.insert("configuration".to_owned(), json!({ "collectors": collectors, "managers": managers }));
    // All else is in the document by now: an empty list must not pass for a machine that has none.
    unlisted.into_iter().next().map_or(Ok(()), |error| Err(error.into()))
}
