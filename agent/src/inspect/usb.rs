//! The `usb-devices` collector (inspection section 3).

use serde_json::{Map, Value};

use super::{CollectError, Collector};
use crate::app::App;

/// The collector.
pub const USB_DEVICES: Collector = Collector { name: "usb-devices", collect };

fn collect(app: &App, body: &mut Map<String, Value>) -> Result<(), CollectError> {
    body.insert("usb_devices".to_owned(), serde_json::to_value(app.registry.usb_devices(&app.machine))?);
    Ok(())
}
