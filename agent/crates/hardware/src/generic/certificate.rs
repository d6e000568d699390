//! A record of what was done to each disk, in the words of NIST SP 800-88 Revision 1, appendix G: kept where the archive of
//! logs takes it from (`var-log/erase-certificate-N.json`), one for each step.

use std::time::{SystemTime, UNIX_EPOCH};

use ferric_types::error::chain;
use serde_json::{Value, json};

use super::targets::Outcomes;
use crate::context::StepContext;
use crate::probe::disks::Disk;
use crate::probe::system;

/// No more than so many are kept; a machine is cleaned once or twice between two boots.
const MOST: u32 = 32;

/// Writes the certificate. Erasing has not failed when that fails: it is told in the log.
pub(super) fn write<'a>(
    context: &StepContext<'_>,
    disks: impl IntoIterator<Item = &'a Disk>,
    outcomes: &Outcomes,
    began: SystemTime,
) {
    if outcomes.is_empty() {
        return;
    }
    let directory = context.machine.root.path("var/log");
    let medium = |disk: &Disk| Some(medium(disk, outcomes.get(&disk.info.name)?));
    let document = document(context, disks.into_iter().filter_map(medium).collect(), began).to_string();
    let free = (1..=MOST).map(|number| directory.join(format!("erase-certificate-{number}.json")));
    let written =
        std::fs::create_dir_all(&directory).and_then(|()| match free.into_iter().find(|path| !path.exists()) {
            Some(path) => std::fs::write(path, document),
            None => Err(std::io::Error::other("there are too many of them")),
        });
    if let Err(error) = written {
        tracing::warn!(error = chain(&error), "keeping the certificate of erasure");
    }
}

fn document(context: &StepContext<'_>, media: Vec<Value>, began: SystemTime) -> Value {
    let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let vendor = system::vendor(&context.machine.root);
    json!({
        "document": "certificate of media disposition",
        "standard": "NIST SP 800-88 Revision 1",
        "node": context.node.uuid(),
        "system": {
            "manufacturer": vendor.manufacturer,
            "product": vendor.product_name,
            "serial_number": vendor.serial_number,
        },
        "tool": {"name": "ferric-agent", "version": env!("CARGO_PKG_VERSION")},
        "began_unix": seconds(began),
        "ended_unix": seconds(SystemTime::now()),
        "media": media,
    })
}

fn medium(disk: &Disk, outcome: &Result<Value, String>) -> Value {
    let info = &disk.info;
    let null = Value::Null;
    let (result, reason, verdict) = match outcome {
        Ok(value) => match value.get("skipped") {
            Some(reason) => ("not sanitized", reason.clone(), &null),
            None => ("sanitized", Value::Null, value),
        },
        Err(reason) => ("failed", json!(reason), &null),
    };
    json!({
        "device": info.name,
        "manufacturer": info.vendor,
        "model": info.model,
        "serial_number": info.serial,
        "world_wide_name": info.wwn,
        "media_type": if info.rotational { "magnetic disk" } else { "flash or virtual disk" },
        "bytes": info.size,
        "result": result,
        "reason": reason,
        "sanitization": verdict["sanitization"],
        "method_asked": verdict["asked"],
        "method_used": verdict["method"],
        "random_passes": verdict["random_passes"],
        "zeroed": verdict["zeroed"],
        "seconds": verdict["seconds"],
        "verification": if verdict["verified"] == true { "samples read back" } else { "none" },
        "samples": verdict["samples_checked"],
    })
}
