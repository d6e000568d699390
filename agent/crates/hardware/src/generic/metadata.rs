//! `erase_devices_metadata`: wipe partition tables and signatures (hardware section 5.4).

use std::path::Path;
use std::time::Duration;

use ferric_disk::wipe;
use ferric_sys::attr;
use ferric_sys::block_dev::BlockDev;
use ferric_types::error::{CommandError, chain};
use serde_json::{Value, json};

use super::targets::{Outcomes, answer, arrays_of, arrays_on, checked, for_each_disk, reason_to_skip};
use crate::context::StepContext;
use crate::probe::disks::{Disk, DiskKind};

/// Pause between two tries to get a device for oneself.
const BUSY_PAUSE: Duration = Duration::from_secs(1);
/// Disks worked on at a time: each is a few writes, mostly waiting.
const CONCURRENCY: usize = 8;

/// Wipes every disk that may be erased, partitions before the disk that holds them and arrays before their members.
/// A device that fails does not keep the others from being wiped; the step fails in the end.
///
/// A member of an assembled array keeps its metadata when the array's own is wiped here, or is to be kept: as with the
/// reference agent an array outlives cleaning until it is deleted. A superblock alone makes no member.
pub(super) fn erase_devices_metadata(context: &StepContext<'_>) -> Result<Value, CommandError> {
    let targets = checked(context)?;
    let mut outcomes = targets.failed();
    context.progress.phase("erase metadata", None);
    outcomes.extend(wipe_disks(context, targets.disks, targets.kept_arrays));
    // The reference agent answers null; what became of each disk is in the log.
    answer("Erasing metadata", outcomes).map(|_| Value::Null)
}

/// Wipes disks that have passed the checks, arrays first.
pub(super) fn wipe_disks(context: &StepContext<'_>, disks: Vec<Disk>, kept_arrays: Vec<String>) -> Outcomes {
    let (arrays, members): (Vec<Disk>, Vec<Disk>) = disks.into_iter().partition(|disk| disk.kind == DiskKind::Raid);
    let seen: Vec<String> = arrays.iter().map(|array| array.kname.clone()).chain(kept_arrays).collect();
    let mut outcomes = for_each_disk(&arrays, CONCURRENCY, |disk| wipe_disk(context, disk, &seen));
    outcomes.extend(for_each_disk(&members, CONCURRENCY, |disk| wipe_disk(context, disk, &seen)));
    outcomes
}

/// `seen` are the arrays that this step wipes or that are to be kept.
fn wipe_disk(context: &StepContext<'_>, disk: &Disk, seen: &[String]) -> Result<Value, String> {
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
    let arrays = arrays_of(context, disk);
    if let Some(array) = arrays.iter().find(|array| !seen.contains(array)) {
        failures.push(format!(
            "it is a member of the array /dev/{array}, which is inactive or of an unknown kind and was not wiped; stop it"
        ));
    } else if !arrays.is_empty() {
        return if failures.is_empty() { skip("member of a software RAID array") } else { Err(failures.join("; ")) };
    } else if let Err(reason) = wipe_with_table(context, &disk.info.name) {
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
    if !arrays_on(context, partition).is_empty() {
        tracing::warn!(partition, "metadata not erased: member of an assembled array");
        return Ok(());
    }
    wipe_device(context, partition).map(drop)
}

fn wipe_with_table(context: &StepContext<'_>, disk: &str) -> Result<(), String> {
    let dev = wipe_device(context, disk)?;
    if let Err(error) = dev.reread_table() {
        tracing::warn!(disk, reason = chain(&error), "the kernel keeps the old partitions");
    }
    Ok(())
}

fn wipe_device(context: &StepContext<'_>, device: &str) -> Result<BlockDev, String> {
    let path = context.machine.root.path(device);
    let dev = wipe::open_exclusive(&path, BUSY_PAUSE).map_err(|error| chain(&error))?;
    wipe::destroy_metadata(&dev).map_err(|error| chain(&error))?;
    Ok(dev)
}
