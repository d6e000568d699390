//! The `extra-hardware` collector: the list that the `hardware-detect` tool makes, with benchmarks when asked for.

use ferric_hardware::extra::{self, benchmark};
use serde_json::{Map, Value};
use tracing::info;

use super::{CollectError, Collector};
use crate::app::App;
use crate::logs::redact;

/// The collector.
pub const EXTRA_HARDWARE: Collector = Collector { name: "extra-hardware", collect };

/// Benchmarks by their names in `ipa-inspection-benchmarks`.
const BENCHMARKS: [&str; 3] = ["cpu", "mem", "disk"];

fn collect(app: &App, body: &mut Map<String, Value>) -> Result<(), CollectError> {
    let wanted = &app.config().inspection_benchmarks;
    if let Some(unknown) = wanted.iter().find(|name| !BENCHMARKS.contains(&name.as_str())) {
        return Err(CollectError::UnknownBenchmark { name: unknown.clone() });
    }
    let machine = &app.machine;
    let disks = app.registry.disks(machine, &app.settings())?;
    let mut items = extra::items(machine, &app.inventory(), &disks);
    let cmdline = ferric_sys::attr::read_optional(&machine.root.path("proc/cmdline")).unwrap_or_default();
    items.add("system", "kernel", "cmdline", String::from_utf8_lossy(&redact(cmdline.as_bytes())).into_owned().into());
    let times = benchmark::Times::default();
    for name in BENCHMARKS.into_iter().filter(|name| wanted.iter().any(|wanted| wanted == name)) {
        info!(benchmark = name, "measuring");
        match name {
            "cpu" => benchmark::cpu(&mut items, &machine.root, &times),
            "mem" => benchmark::memory(&mut items, &machine.root, &times),
            _ => benchmark::disks(&mut items, &disks, &times),
        }
    }
    body.insert("data".to_owned(), items.into_value());
    Ok(())
}
