//! The `numa-topology` collector (inspection section 3.3).

use ferric_hardware::probe::numa;
use serde_json::{Map, Value};
use tracing::warn;

use super::{CollectError, Collector};
use crate::app::App;

/// The collector.
pub const NUMA_TOPOLOGY: Collector = Collector { name: "numa-topology", collect };

fn collect(app: &App, body: &mut Map<String, Value>) -> Result<(), CollectError> {
    match numa::topology(&app.machine.root) {
        Some(topology) => {
            body.insert("numa_topology".to_owned(), serde_json::to_value(topology)?);
        }
        // As in the reference agent the key is absent then.
        None => warn!("the kernel does not tell of NUMA nodes, or not in a known form"),
    }
    Ok(())
}
