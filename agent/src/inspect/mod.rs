//! In-band inspection: collectors, and the document made from what they find (inspection sections 1 to 3).

pub mod collectors;
pub mod dmi;
pub mod extra;
pub mod lldp;
pub mod logs;
pub mod numa;
pub mod pci;
pub mod usb;

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::{Map, Value};
use tracing::{error, info};

use crate::app::App;

/// Collectors when none are configured.
pub const DEFAULT_COLLECTORS: &[&str] = &["default", "logs"];

/// A producer of inspection data.
#[derive(Debug, Clone, Copy)]
pub struct Collector {
    /// Name in `ipa-inspection-collectors`.
    pub name: &'static str,
    /// Adds its keys to the document.
    pub collect: fn(&App, &mut Map<String, Value>) -> Result<(), CollectError>,
}

/// Why a collector failed.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// A file or directory that must be there is not.
    #[error(transparent)]
    Attr(#[from] ferric_sys::attr::AttrError),
    /// The firmware does not describe the machine.
    #[error("the firmware of this machine has no SMBIOS tables")]
    NoSmbios,
    /// The disks cannot be listed.
    #[error(transparent)]
    Hardware(#[from] ferric_hardware::HardwareError),
    /// `ipa-inspection-benchmarks` asks for what there is not.
    #[error("there is no benchmark {name:?}; there are cpu, mem and disk")]
    UnknownBenchmark {
        /// Its name.
        name: String,
    },
    /// Something could not be written as JSON.
    #[error("encoding the inventory")]
    Encode(#[from] serde_json::Error),
}

/// Every collector of this image.
pub const COLLECTORS: &[Collector] = &[
    collectors::DEFAULT,
    logs::LOGS,
    pci::PCI_DEVICES,
    numa::NUMA_TOPOLOGY,
    dmi::DMI_DECODE,
    usb::USB_DEVICES,
    lldp::LLDP,
    extra::EXTRA_HARDWARE,
];

/// What an inspection found.
#[derive(Debug)]
pub struct Document {
    /// Body of the POST.
    pub body: Map<String, Value>,
    /// Whether every collector did its work. If not, the UUID that Ironic answers is ignored, as the reference agent
    /// does.
    pub complete: bool,
}

/// Runs the collectors. Failures are collected under `error`; the document is always worth posting.
pub fn collect(app: &App, names: &[String]) -> Document {
    collect_with(COLLECTORS, app, names)
}

fn collect_with(collectors: &[Collector], app: &App, names: &[String]) -> Document {
    let mut body = Map::new();
    let mut errors = Vec::new();
    let unknown: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|name| collectors.iter().all(|collector| collector.name != *name))
        .collect();
    if unknown.is_empty() {
        for name in names {
            let Some(collector) = collectors.iter().find(|collector| collector.name == name) else { continue };
            info!(collector = name, "collecting");
            // What the hardware says must not keep the rest from being told.
            let reason = match catch_unwind(AssertUnwindSafe(|| (collector.collect)(app, &mut body))) {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => ferric_types::error::chain(&error),
                Err(_panic) => "it panicked; the log says why".to_owned(),
            };
            errors.push(format!("collector {name} failed: {reason}"));
        }
    } else {
        let known: Vec<&str> = collectors.iter().map(|collector| collector.name).collect();
        errors.push(format!(
            "unknown inspection collector(s) {}; this image has {}",
            unknown.join(", "),
            known.join(", ")
        ));
    }
    for text in &errors {
        error!("{text}");
    }
    let complete = errors.is_empty();
    let error = (!complete).then(|| {
        let list: Vec<String> = errors.iter().map(|text| format!("* {text}")).collect();
        format!("The following errors were encountered:\n{}", list.join("\n"))
    });
    body.insert("error".to_owned(), error.map_or(Value::Null, Value::String));
    Document { body, complete }
}

#[cfg(test)]
mod tests;
