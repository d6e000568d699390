//! What erasing may touch and what it leaves alone, the same for both erasing steps (hardware sections 5.1 and 5.4).

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ferric_disk::holders;
use ferric_disk::raid::config;
use ferric_sys::{Root, attr};
use ferric_types::error::{CommandError, ErrorClass, chain};
use serde_json::{Map, Value};

use crate::context::StepContext;
use crate::guard;
use crate::probe::disks::{self, Disk, DiskKind};
use crate::skip_list;

/// Longest wait for disks that the kernel is still scanning.
const SETTLE_LIMIT: Duration = Duration::from_secs(10);

/// What a step works on.
pub(super) struct Targets {
    /// Disks that may be erased.
    pub(super) disks: Vec<Disk>,
    /// Md arrays on the skip list, by kernel name.
    pub(super) kept_arrays: Vec<String>,
    /// Disks that could not be looked at, and why: they fail, and keep no other from being erased.
    pub(super) unreadable: Vec<(Disk, String)>,
}

/// Disks that may be erased: all but those on the skip list, and the arrays that lie on them. Every one of them has passed
/// the check for protected file systems, so that nothing is erased when any is refused. What the kernel has put on top of
/// them is taken down: volumes and mappings, swap space, mounted file systems, bcache, and arrays that are none of Ironic's.
pub(super) fn checked(context: &StepContext<'_>) -> Result<Targets, CommandError> {
    // A disk that is not seen yet would keep its data without anybody knowing.
    disks::settle(&context.machine.root, SETTLE_LIMIT);
    let targets = list(context)?.looked_at(context)?;
    if !release(context, &targets) {
        return Ok(targets);
    }
    // Arrays and volumes may be disks of their own: they are gone now.
    let mut again = list(context)?;
    again.disks.retain(|disk| targets.unreadable.iter().all(|(unreadable, _)| unreadable.kname != disk.kname));
    Ok(Targets { unreadable: targets.unreadable, ..again })
}

impl Targets {
    /// Sets disks apart that cannot be looked at. What cannot be checked is not safe.
    fn looked_at(mut self, context: &StepContext<'_>) -> Result<Self, CommandError> {
        for disk in std::mem::take(&mut self.disks) {
            match guard::check(context.machine, context.settings, context.node, &disk) {
                Ok(()) => self.disks.push(disk),
                Err(error) if error.class == ErrorClass::BlockDevice => {
                    tracing::error!(disk = disk.info.name, reason = error.details, "disk failed");
                    self.unreadable.push((disk, error.details));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(self)
    }

    /// The disks that could not be looked at, as outcomes.
    pub(super) fn failed(&self) -> Outcomes {
        self.unreadable.iter().map(|(disk, reason)| (disk.info.name.clone(), Err(reason.clone()))).collect()
    }
}

fn list(context: &StepContext<'_>) -> Result<Targets, CommandError> {
    let root = &context.machine.root;
    let all = context.registry.disks(context.machine, context.settings)?;
    let names: Vec<String> = all.iter().map(|disk| disk.kname.clone()).collect();
    let is_array = |disk: &Disk| disk.kind == DiskKind::Raid;
    let arrays: Vec<String> = all.iter().filter(|disk| is_array(disk)).map(|disk| disk.kname.clone()).collect();
    let mut disks = skip_list::without_skipped(root, context.node, all)?;
    let is_left = |disks: &[Disk], kname: &String| disks.iter().any(|disk| disk.kname == *kname);
    let spared: Vec<String> = names.into_iter().filter(|kname| !is_left(&disks, kname)).collect();
    disks.retain(|disk| {
        let below = spared.iter().find(|spared| is_array(disk) && is_below(root, spared, &disk.kname));
        if let Some(below) = below {
            tracing::info!(disk = disk.info.name, below, "left alone: it is also on a disk of the node's skip list");
        }
        below.is_none()
    });
    let kept_arrays = arrays.into_iter().filter(|kname| !is_left(&disks, kname)).collect();
    Ok(Targets { disks, kept_arrays, unreadable: Vec::new() })
}

/// Whether an array is on a disk, or on a partition of it.
fn is_below(root: &Root, disk: &str, array: &str) -> bool {
    let class = root.path("sys/class/block");
    attr::list(&class.join(array).join("slaves")).iter().any(|slave| {
        let place = std::fs::canonicalize(class.join(slave)).unwrap_or_default();
        slave == disk || place.parent().and_then(Path::file_name).is_some_and(|parent| parent == disk)
    })
}

/// Takes down what is on top of the disks, and says whether there was anything. What stays makes the disk fail later.
fn release(context: &StepContext<'_>, targets: &Targets) -> bool {
    let root = &context.machine.root;
    let touched = |disk: &&Disk| !disk.read_only && reason_to_skip(context, disk).is_none();
    let names: Vec<String> = targets.disks.iter().filter(touched).map(|disk| disk.kname.clone()).collect();
    // Arrays that Ironic had made outlive cleaning until it has them deleted, as with the reference agent. Those of a
    // tenant would come back with all that is on them.
    let is_ours = ["raid_config", "target_raid_config"]
        .into_iter()
        .any(|key| context.node.get(key).is_some_and(config::is_software));
    let is_kept = |disk: &&Disk| match disk.kind {
        DiskKind::Physical => false,
        DiskKind::Multipath => true,
        DiskKind::Raid => is_ours || disk.kname.starts_with("dm-"),
    };
    let kept = targets.disks.iter().filter(is_kept).map(|disk| disk.kname.clone());
    // One that does not run is no disk.
    let idle = attr::list(&root.path("sys/block")).into_iter().filter(|kname| is_ours && kname.starts_with("md"));
    let kept: Vec<String> = kept.chain(targets.kept_arrays.iter().cloned()).chain(idle).collect();
    let (found, errors) = holders::release(root, &names, &kept);
    for error in &errors {
        tracing::error!(error = chain(error), "not taken down");
    }
    found
}

/// Why a disk is left alone, as the operator reads it.
pub(super) fn reason_to_skip(context: &StepContext<'_>, disk: &Disk) -> Option<&'static str> {
    disks::is_virtual_media(&context.machine.root, &disk.kname).then_some("virtual media of the BMC")
}

/// Md arrays that the kernel has assembled from a disk or a partition, by kernel name. A superblock on a device is no
/// array: whoever has used the disk may have written one.
pub(super) fn arrays_on(context: &StepContext<'_>, device: &str) -> Vec<String> {
    let kname = device.trim_start_matches("/dev/").replace('/', "!");
    let holders = attr::list(&context.machine.root.path("sys/class/block").join(kname).join("holders"));
    holders.into_iter().filter(|holder| holder.starts_with("md")).collect()
}

/// Md arrays that the kernel has assembled from a disk or from any of its partitions, by kernel name.
pub(super) fn arrays_of(context: &StepContext<'_>, disk: &Disk) -> Vec<String> {
    let devices = disk.partitions.iter().chain([&disk.info.name]);
    let mut arrays: Vec<String> = devices.flat_map(|device| arrays_on(context, device)).collect();
    arrays.sort();
    arrays.dedup();
    arrays
}

/// What became of each disk, by name.
pub(super) type Outcomes = BTreeMap<String, Result<Value, String>>;

/// Works on several disks at a time and keeps what became of each. A panic in one does not stop the others.
pub(super) fn for_each_disk(
    disks: &[Disk],
    concurrency: usize,
    work: impl Fn(&Disk) -> Result<Value, String> + Sync,
) -> Outcomes {
    let alone: Vec<Vec<usize>> = (0..disks.len()).map(|index| vec![index]).collect();
    for_each_group(disks, &alone, concurrency, |group, tell| {
        for index in group {
            if let Some(disk) = disks.get(*index) {
                tell(*index, work(disk));
            }
        }
    })
}

/// As [`for_each_disk`], for groups of disks, given by index, that are worked on together; `work` tells what became of
/// each disk as soon as it knows. One of which it does not tell has failed.
pub(super) fn for_each_group(
    disks: &[Disk],
    groups: &[Vec<usize>],
    concurrency: usize,
    work: impl Fn(&[usize], &dyn Fn(usize, Result<Value, String>)) + Sync,
) -> Outcomes {
    let next = AtomicUsize::new(0);
    let outcomes: Mutex<Outcomes> = Mutex::new(BTreeMap::new());
    let known = || outcomes.lock().unwrap_or_else(PoisonError::into_inner);
    let tell = |index: usize, outcome: Result<Value, String>| {
        let Some(disk) = disks.get(index) else { return };
        if let Err(reason) = &outcome {
            tracing::error!(disk = disk.info.name, reason, "disk failed");
        }
        known().insert(disk.info.name.clone(), outcome);
    };
    let worker = || {
        while let Some(group) = groups.get(next.fetch_add(1, Ordering::Relaxed)) {
            if catch_unwind(AssertUnwindSafe(|| work(group, &tell))).is_err() {
                let untold =
                    |index: &&usize| disks.get(**index).is_some_and(|disk| !known().contains_key(&disk.info.name));
                for index in group.iter().filter(untold).copied().collect::<Vec<_>>() {
                    tell(index, Err("the agent failed while working on it; see its log".to_owned()));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..concurrency.clamp(1, groups.len().max(1)) {
            scope.spawn(worker);
        }
    });
    outcomes.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// The step's answer: one entry for each disk; an error that tells of all of them when any failed.
pub(super) fn answer(what: &str, outcomes: Outcomes) -> Result<Value, CommandError> {
    let failed: Vec<String> =
        outcomes.iter().filter_map(|(disk, outcome)| Some(format!("{disk}: {}", outcome.as_ref().err()?))).collect();
    if failed.is_empty() {
        let done: Map<String, Value> =
            outcomes.into_iter().filter_map(|(disk, outcome)| Some((disk, outcome.ok()?))).collect();
        return Ok(Value::Object(done));
    }
    let mut details = format!("{what} failed on {} of {} disks: {}", failed.len(), outcomes.len(), failed.join("; "));
    let skipped = |outcome: &Value| outcome.get("skipped").and_then(Value::as_str).map(str::to_owned);
    let rest = outcomes.iter().filter_map(|(disk, outcome)| Some((disk, outcome.as_ref().ok()?)));
    let (left, done): (Vec<_>, Vec<_>) = rest.partition(|(_, outcome)| skipped(outcome).is_some());
    for (word, disks) in [("Done", done), ("Skipped", left)] {
        let named = |(disk, outcome): (&String, &Value)| match skipped(outcome) {
            Some(reason) => format!("{disk} ({reason})"),
            None => disk.clone(),
        };
        if !disks.is_empty() {
            details = format!("{details}. {word}: {}", disks.into_iter().map(named).collect::<Vec<_>>().join(", "));
        }
    }
    Err(CommandError::new(ErrorClass::BlockDeviceErase, details))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_types::inventory::BlockDevice;
    use serde_json::json;

    fn disks(names: &[&str]) -> Vec<Disk> {
        let disk = |name: &&str| Disk::plain(BlockDevice { name: (*name).to_owned(), ..BlockDevice::default() });
        names.iter().map(disk).collect()
    }

    #[test]
    fn every_disk_is_worked_on_whatever_happens_to_others() {
        let names = ["/dev/a", "/dev/b", "/dev/c", "/dev/d"];
        let outcomes = for_each_disk(&disks(&names), 2, |disk| match disk.kname.as_str() {
            "a" => Err("EIO".to_owned()),
            "b" => panic!("a bug"),
            "d" => Ok(json!({"skipped": "read-only"})),
            _ => Ok(json!("done")),
        });
        let error = answer("Erasing", outcomes).unwrap_err();
        assert_eq!(error.class, ErrorClass::BlockDeviceErase);
        assert_eq!(
            error.details,
            "Erasing failed on 2 of 4 disks: /dev/a: EIO; /dev/b: the agent failed while working on it; see its log. \
             Done: /dev/c. Skipped: /dev/d (read-only)"
        );
    }

    #[test]
    fn a_failure_in_a_group_does_not_undo_what_was_told() {
        let names = ["/dev/a", "/dev/b", "/dev/c", "/dev/d"];
        let outcomes = for_each_group(&disks(&names), &[vec![0, 1, 2], vec![3]], 1, |group, tell| {
            tell(group[0], Ok(json!("done")));
            assert!(group.len() == 1, "a bug");
        });
        let states: Vec<bool> = outcomes.values().map(Result::is_ok).collect();
        assert_eq!(states, [true, false, false, true], "{outcomes:?}");
    }

    #[test]
    fn work_on_several_disks_overlaps_as_far_as_allowed() {
        let names: Vec<String> = (0..8).map(|number| format!("/dev/d{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let outcomes = for_each_disk(&disks(&names), 3, |_| {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::sleep(std::time::Duration::from_millis(20));
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(Value::Null)
        });
        assert_eq!(outcomes.len(), 8);
        assert_eq!(most.into_inner(), 3);
    }

    #[test]
    fn a_machine_without_disks_has_an_empty_answer() {
        assert_eq!(answer("Erasing", for_each_disk(&[], 4, |_| Ok(Value::Null))).unwrap(), json!({}));
    }
}
