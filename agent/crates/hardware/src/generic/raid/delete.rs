//! `delete_configuration`.
//!
//! Arrays are wiped, stopped, and all their members wiped at both ends, where every superblock is, so that none comes back
//! at the next boot. Then what is left of former arrays, then the disks' tables. A second pass takes what the first one has
//! laid open; what is still there after it is an error.
//!
//! Volumes on the node's skip list stay as they are. Others that share a disk with one are wiped but not taken apart: they
//! will be used again in the same place (pitfall B16). The array of EFI system partitions next to them stays, too.

use std::time::Duration;

use ferric_disk::raid::mdadm;
use ferric_disk::{table, wipe};
use ferric_sys::block_dev::{Access, BlockDev};
use ferric_types::error::{CommandError, chain};

use super::arrays::{self, Device, MdArray};
use super::{failed, skipped_names};
use crate::context::StepContext;
use crate::probe::disks;
use crate::skip_list;

const SETTLE_LIMIT: Duration = Duration::from_secs(10);
/// Pause between two tries to get a device for oneself, or to stop an array.
const BUSY_PAUSE: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 500 });
const STOP_TRIES: u32 = 10;
const PASSES: u32 = 2;
/// Name of the array of EFI system partitions.
pub(super) const ESP: &str = "esp";

/// What becomes of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// It is taken apart.
    Delete,
    /// What is on it is wiped; the array stays.
    Wipe,
    /// It is left alone.
    Keep,
}

/// What becomes of each array, in the order of `arrays`; `is_protected` are those that must stay.
pub(super) fn decide(arrays: &[MdArray], is_protected: impl Fn(&MdArray) -> bool) -> Vec<Action> {
    let protected: Vec<&MdArray> = arrays.iter().filter(|array| is_protected(array)).collect();
    let shares =
        |array: &MdArray| protected.iter().any(|other| other.disks.iter().any(|disk| array.disks.contains(disk)));
    let action = |array: &MdArray| match shares(array) {
        // One with a disk in common with itself.
        true if protected.iter().any(|other| other.kname == array.kname) => Action::Keep,
        true if array.name.as_deref() == Some(ESP) => Action::Keep,
        true => Action::Wipe,
        false => Action::Delete,
    };
    arrays.iter().map(action).collect()
}

/// Disks that must be left alone because hints on the node's skip list match them, by kernel name.
pub(super) fn skipped_disks(context: &StepContext<'_>) -> Result<Vec<String>, CommandError> {
    let all = context.registry.disks(context.machine, context.settings)?;
    let names: Vec<String> = all.iter().map(|disk| disk.kname.clone()).collect();
    let usable = skip_list::without_skipped(&context.machine.root, context.node, all)?;
    Ok(names.into_iter().filter(|name| !usable.iter().any(|disk| disk.kname == *name)).collect())
}

/// Whether an array is to be left alone, by its volume's name or by hints for it or one of its disks.
pub(super) fn is_protected(array: &MdArray, names: &[String], skipped: &[String]) -> bool {
    array.name.as_ref().is_some_and(|name| names.contains(name))
        || skipped.contains(&array.kname)
        || array.disks.iter().any(|disk| skipped.contains(disk))
}

/// Deletes all arrays that may be deleted, and what is left of former ones.
pub(super) fn delete(context: &StepContext<'_>) -> Result<(), CommandError> {
    context.progress.phase("delete software RAID", None);
    disks::settle(&context.machine.root, SETTLE_LIMIT);
    let (names, skipped) = (skipped_names(context.node), skipped_disks(context)?);
    let mut remaining = Vec::new();
    for _ in 0..PASSES {
        assemble(context);
        let devices = arrays::devices(&context.machine.root);
        let arrays = arrays::list_among(&context.machine.root, &devices);
        let actions = decide(&arrays, |array| is_protected(array, &names, &skipped));
        pass(context, &devices, &arrays, &actions, &skipped);
        let left = arrays::list(&context.machine.root);
        let actions = decide(&left, |array| is_protected(array, &names, &skipped));
        let is_left = left.iter().zip(actions).filter(|(_, action)| *action == Action::Delete);
        remaining = is_left.map(|(array, _)| array.device()).collect();
        if remaining.is_empty() {
            return Ok(());
        }
    }
    Err(failed(format!("Unable to clean all softraid correctly. Remaining {remaining:?}")))
}

/// Starts what can be started, so that all of it is seen. That there is nothing, or no program, is ordinary.
fn assemble(context: &StepContext<'_>) {
    if let Err(error) = context.machine.exec.run(&mdadm::assemble_all()) {
        tracing::debug!(reason = chain(&error), "arrays cannot be started");
    }
}

fn pass(context: &StepContext<'_>, devices: &[Device], arrays: &[MdArray], actions: &[Action], skipped: &[String]) {
    let mut kept_members: Vec<&str> = Vec::new();
    let mut deleted_members: Vec<&str> = Vec::new();
    let mut disks: Vec<&str> = Vec::new();
    for (array, action) in arrays.iter().zip(actions) {
        let (device, name) = (array.device(), array.name.as_deref().unwrap_or_default());
        tracing::info!(array = device, name, level = array.level, ?action, members = ?array.members, "software RAID");
        let members = array.members.iter().map(String::as_str);
        if *action == Action::Keep {
            kept_members.extend(members);
            continue;
        }
        wipe_quietly(context, &array.kname);
        if *action == Action::Wipe {
            kept_members.extend(members);
            continue;
        }
        stop(context, &device);
        deleted_members.extend(members);
        disks.extend(array.disks.iter().map(String::as_str));
    }
    let is_kept = |device: &Device| kept_members.contains(&device.kname.as_str()) || skipped.contains(&device.disk);
    let kept_disks: Vec<&str> =
        devices.iter().filter(|device| is_kept(device)).map(|device| device.disk.as_str()).collect();
    // Partitions come first: what is on the disk itself may lie over them.
    for device in devices.iter().filter(|device| !is_kept(device)) {
        let was_member = deleted_members.contains(&device.kname.as_str());
        // A disk that has partitions to keep is not looked at as a whole.
        if device.partition.is_none() && kept_disks.contains(&device.kname.as_str()) {
            continue;
        }
        if was_member || device.superblock.is_some() {
            wipe_quietly(context, &device.kname);
        }
    }
    disks.dedup();
    for disk in disks {
        let gone: Vec<u32> = devices
            .iter()
            .filter(|device| device.disk == disk && deleted_members.contains(&device.kname.as_str()))
            .filter_map(|device| device.partition)
            .collect();
        clear_disk(context, disk, kept_disks.contains(&disk).then_some(gone.as_slice()));
    }
}

/// Stops an array. Whoever has just looked at it may hold it for a moment (pitfall D10).
fn stop(context: &StepContext<'_>, device: &str) {
    for attempt in 1..=STOP_TRIES {
        match super::mdadm(context, &mdadm::stop(device)) {
            Ok(()) => return,
            Err(error) if attempt == STOP_TRIES => {
                tracing::warn!(array = device, reason = error.details, "the array was not stopped");
            }
            Err(_) => std::thread::sleep(BUSY_PAUSE),
        }
    }
}

/// Wipes all signatures of a device. A failure shows when arrays are looked for again.
fn wipe_quietly(context: &StepContext<'_>, kname: &str) {
    let path = context.machine.root.path(disks::device_path(kname));
    let wiped = wipe::open_exclusive(&path, BUSY_PAUSE).and_then(|dev| wipe::destroy_metadata(&dev));
    if let Err(error) = wiped {
        tracing::warn!(device = kname, reason = chain(&error), "not wiped");
    }
}

/// Removes the partitions of a disk: all of them, or where others stay, only those that are `gone`.
fn clear_disk(context: &StepContext<'_>, kname: &str, gone: Option<&[u32]>) {
    let path = context.machine.root.path(disks::device_path(kname));
    let cleared = match gone {
        None => wipe::open_exclusive(&path, BUSY_PAUSE)
            .and_then(|dev| wipe::destroy_metadata(&dev).map(|()| dev))
            .map_err(|error| chain(&error))
            .and_then(|dev| dev.reread_table().map_err(|error| chain(&error))),
        Some(gone) => remove_partitions(&path, gone),
    };
    if let Err(reason) = cleared {
        tracing::warn!(disk = kname, reason, "partitions not removed");
    }
}

fn remove_partitions(path: &std::path::Path, gone: &[u32]) -> Result<(), String> {
    let dev = BlockDev::open(path, Access::Write).map_err(|error| chain(&error))?;
    table::edit(&dev, gone, &[]).map_err(|error| chain(&error))?;
    if !dev.is_block() {
        return Ok(());
    }
    // Others are in use, so that the kernel does not read the whole table again.
    gone.iter().try_for_each(|number| dev.delete_partition(*number)).map_err(|error| chain(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(kname: &str, name: Option<&str>, disks: &[&str]) -> MdArray {
        MdArray {
            kname: kname.to_owned(),
            level: "raid1".to_owned(),
            name: name.map(str::to_owned),
            members: disks.iter().map(|disk| format!("{disk}1")).collect(),
            disks: disks.iter().map(|disk| (*disk).to_owned()).collect(),
        }
    }

    #[test]
    fn arrays_next_to_one_that_is_kept_are_only_wiped() {
        use Action::{Delete, Keep, Wipe};
        let pair = ["sda", "sdb"];
        let arrays = [
            array("md0", Some("root"), &pair),
            array("md1", Some("data"), &pair),
            array("md2", Some("esp"), &pair),
            array("md3", Some("other"), &["sdb", "sdc"]),
            array("md4", None, &["sdc", "sdd"]),
        ];
        for (names, skipped, want) in [
            (&[][..], &[][..], [Delete, Delete, Delete, Delete, Delete]),
            (&["data"], &[], [Wipe, Keep, Keep, Wipe, Delete]),
            (&["data", "root"], &[], [Keep, Keep, Keep, Wipe, Delete]),
            (&["other"], &[], [Wipe, Wipe, Keep, Keep, Wipe]),
            (&["nosuch"], &[], [Delete, Delete, Delete, Delete, Delete]),
            // By a hint that matches a disk, or the array itself.
            (&[], &["sdd"], [Delete, Delete, Delete, Wipe, Keep]),
            (&[], &["md4"], [Delete, Delete, Delete, Wipe, Keep]),
        ] {
            let owned = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
            let (names, skipped) = (owned(names), owned(skipped));
            let found = decide(&arrays, |array| is_protected(array, &names, &skipped));
            assert_eq!(found, want, "{names:?} {skipped:?}");
        }
    }
}
