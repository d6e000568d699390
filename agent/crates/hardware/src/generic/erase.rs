//! `erase_devices`: overwrite every disk (hardware section 5.1).
//!
//! Secure erase by the drive (NVMe format, ATA security) is not offered yet: the node's flags for it have no effect, and
//! every disk is overwritten, which the flags allow as the fallback.

use std::time::Duration;

use ferric_disk::erase::{EraseOptions, erase_device};
use ferric_disk::wipe;
use ferric_types::Node;
use ferric_types::error::{CommandError, chain};
use serde_json::{Value, json};

use super::targets::{Targets, answer, arrays_of, checked, for_each_disk, reason_to_skip};
use crate::context::StepContext;
use crate::probe::disks::Disk;

/// Pause between two tries to get a disk for oneself.
const BUSY_PAUSE: Duration = Duration::from_secs(1);
/// Passes beyond this are a mistake, not a policy.
const MAX_ITERATIONS: u64 = 100;

/// Erases every disk that may be erased, several at a time, and answers with what became of each.
pub(super) fn erase_devices(context: &StepContext<'_>) -> Result<Value, CommandError> {
    let Targets { disks, kept_arrays } = checked(context)?;
    let options = options(context.node);
    let total = disks.iter().map(|disk| options.work_bytes(disk.info.size)).fold(0_u64, u64::saturating_add);
    context.progress.phase(format!("erase {}", names(&disks)), Some(total));
    let concurrency = internal_number(context.node, "disk_erasure_concurrency").unwrap_or(1);
    let outcomes = for_each_disk(&disks, usize::try_from(concurrency).unwrap_or(1), |disk| {
        let outcome = erase_one(context, disk, &kept_arrays, options)?;
        if outcome.get("skipped").is_some() {
            context.progress.add(options.work_bytes(disk.info.size));
        }
        Ok(outcome)
    });
    answer("Erasing", outcomes)
}

fn names(disks: &[Disk]) -> String {
    disks.iter().map(|disk| disk.info.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// A whole number of `driver_internal_info`, given as a number or as text.
fn internal_number(node: &Node, key: &str) -> Option<u64> {
    match node.lookup("driver_internal_info", key)? {
        Value::String(text) => text.trim().parse().ok(),
        value => value.as_u64(),
    }
}

/// Passes as the conductor set them. As with `shred`, no iterations and no zeroes would change nothing.
fn options(node: &Node) -> EraseOptions {
    let iterations = internal_number(node, "agent_erase_devices_iterations").unwrap_or(1).min(MAX_ITERATIONS);
    EraseOptions {
        iterations: u32::try_from(iterations).unwrap_or(1),
        zeroize: node.internal_flag("agent_erase_devices_zeroize", true),
    }
}

fn erase_one(
    context: &StepContext<'_>,
    disk: &Disk,
    kept_arrays: &[String],
    options: EraseOptions,
) -> Result<Value, String> {
    let skipped = |reason: &str| {
        tracing::warn!(disk = disk.info.name, reason, "not erased");
        Ok(json!({"skipped": reason}))
    };
    if let Some(reason) = reason_to_skip(context, disk) {
        return skipped(reason);
    }
    let arrays = arrays_of(context, disk);
    if let Some(array) = arrays.iter().find(|array| !kept_arrays.contains(array)) {
        // Erasing the array does not reach what lies beside it on its members.
        return Err(format!("it is a member of the assembled array /dev/{array}; stop the array to have it erased"));
    }
    if let Some(array) = arrays.first() {
        return skipped(&format!("member of the software RAID array /dev/{array}, which is on the skip list"));
    }
    if disk.read_only {
        if context.node.internal_flag("agent_erase_skip_read_only", false) {
            return skipped("read-only");
        }
        return Err("it is read-only, so that it cannot be erased".to_owned());
    }
    let path = context.machine.root.path(&disk.info.name);
    let dev = wipe::open_exclusive(&path, BUSY_PAUSE).map_err(|error| chain(&error))?;
    let verdict = erase_device(&dev, options, context.progress).map_err(|error| chain(&error))?;
    if let Err(error) = dev.reread_table() {
        tracing::warn!(disk = disk.info.name, reason = chain(&error), "the kernel keeps the old partitions");
    }
    tracing::info!(disk = disk.info.name, ?verdict, "erased");
    let mut verdict = serde_json::to_value(&verdict).map_err(|error| error.to_string())?;
    if let Some(verdict) = verdict.as_object_mut() {
        verdict.insert("method".to_owned(), json!("overwrite"));
    }
    Ok(verdict)
}
