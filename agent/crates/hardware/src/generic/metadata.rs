//! `erase_devices_metadata`: wipe partition tables and signatures (hardware section 5.4).

use std::path::Path;
use std::time::Duration;

use ferric_disk::wipe;
use ferric_sys::attr;
use ferric_types::error::{CommandError, chain};
use serde_json::{Value, json};

use super::targets::{answer, checked_disks, for_each_disk, holds_raid_member, is_raid_member, reason_to_skip};
use crate::context::StepContext;
use crate::probe::disks::{Disk, DiskKind};

/// Pause between two tries to get a device for oneself.
const BUSY_PAUSE: Duration = Duration::from_secs(1);
/// Disks worked on at a time: each is a few writes, mostly waiting.
const CONCURRENCY: usize = 8;

/// Wipes every disk that may be erased, partitions before the disk that holds them and arrays before their members.
/// A device that fails does not keep the others from being wiped; the step fails in the end.
pub(super) fn erase_devices_metadata(context: &StepContext<'_>) -> Result<Value, CommandError> {
    let disks = checked_disks(context)?;
    context.progress.phase("erase metadata", None);
    let (arrays, members): (Vec<Disk>, Vec<Disk>) = disks.into_iter().partition(|disk| disk.kind == DiskKind::Raid);
    let mut outcomes = for_each_disk(&arrays, CONCURRENCY, |disk| wipe_disk(context, disk));
    outcomes.extend(for_each_disk(&members, CONCURRENCY, |disk| wipe_disk(context, disk)));
    // The reference agent answers null; what became of each disk is in the log.
    answer("Erasing metadata", outcomes).map(|_| Value::Null)
}

fn wipe_disk(context: &StepContext<'_>, disk: &Disk) -> Result<Value, String> {
    let skip = |reason: &str| {
        tracing::warn!(disk = disk.info.name, reason, "metadata not erased");
        Ok(json!({"skipped": reason}))
    };
    if let Some(reason) = reason_to_skip(context, disk) {
        return skip(reason);
    }
    if disk.read_only {
        return skip("read-only");
    }
    let mut failures = Vec::new();
    // Logical partitions have the higher numbers and lie in an extended one, so the last comes first.
    for partition in disk.partitions.iter().rev() {
        if let Err(reason) = wipe_partition(context, partition) {
            failures.push(reason);
        }
    }
    if holds_raid_member(context, disk).map_err(|error| chain(&error))? {
        return if failures.is_empty() { skip("member of a software RAID array") } else { Err(failures.join("; ")) };
    }
    if let Err(reason) = wipe_device(context, &disk.info.name) {
        failures.push(reason);
    }
    if failures.is_empty() { Ok(Value::Null) } else { Err(failures.join("; ")) }
}

fn wipe_partition(context: &StepContext<'_>, partition: &str) -> Result<(), String> {
    let kname = Path::new(partition).file_name().unwrap_or_default();
    let read_only = attr::read_optional(&context.machine.root.path("sys/class/block").join(kname).join("ro"));
    if read_only.is_some_and(|flag| flag == "1") {
        tracing::warn!(partition, "metadata not erased: read-only");
        return Ok(());
    }
    if is_raid_member(context, partition).unwrap_or(false) {
        tracing::warn!(partition, "metadata not erased: member of a software RAID array");
        return Ok(());
    }
    wipe_device(context, partition)
}

fn wipe_device(context: &StepContext<'_>, device: &str) -> Result<(), String> {
    let path = context.machine.root.path(device);
    let dev = wipe::open_exclusive(&path, BUSY_PAUSE).map_err(|error| chain(&error))?;
    wipe::destroy_metadata(&dev).map_err(|error| chain(&error))?;
    if let Err(error) = dev.reread_table() {
        tracing::warn!(device, reason = chain(&error), "the kernel keeps the old partitions");
    }
    Ok(())
}
