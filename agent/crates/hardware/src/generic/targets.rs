//! What erasing may touch and what it leaves alone, the same for both erasing steps (hardware sections 5.1 and 5.4).

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ferric_sys::attr;
use ferric_types::error::{CommandError, ErrorClass};
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

/// Disks that may be erased: all but those on the skip list. Every one of them has passed the check for protected file
/// systems, so that nothing is erased when any is refused.
pub(super) fn checked(context: &StepContext<'_>) -> Result<Targets, CommandError> {
    // A disk that is not seen yet would keep its data without anybody knowing.
    disks::settle(&context.machine.root, SETTLE_LIMIT);
    let all = context.registry.disks(context.machine, context.settings)?;
    let arrays: Vec<String> =
        all.iter().filter(|disk| disk.kind == DiskKind::Raid).map(|disk| disk.kname.clone()).collect();
    let disks = skip_list::without_skipped(&context.machine.root, context.node, all)?;
    let kept_arrays = arrays.into_iter().filter(|kname| !disks.iter().any(|disk| disk.kname == *kname)).collect();
    Targets { disks, kept_arrays, unreadable: Vec::new() }.looked_at(context)
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
