//! The `lldp` collector (inspection section 3.5).

use serde_json::{Map, Value};

use super::{CollectError, Collector};
use crate::app::App;

/// The collector.
pub const LLDP: Collector = Collector { name: "lldp", collect };

fn collect(app: &App, body: &mut Map<String, Value>) -> Result<(), CollectError> {
    let settings = app.settings();
    // Frames that are in the inventory already are not waited for a second time.
    let known = app.inventory().interfaces;
    let frames = if settings.collect_lldp {
        known.into_iter().map(|interface| (interface.name, interface.lldp.unwrap_or_default())).collect()
    } else {
        app.registry.lldp(&app.machine, &settings, &known)
    };
    body.insert("lldp_raw".to_owned(), serde_json::to_value(frames)?);
    Ok(())
}
