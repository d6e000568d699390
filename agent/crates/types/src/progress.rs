//! Progress of a long command, shared between the thread that works and the API that shows it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// What a reader of the API sees under `progress` while a command runs. Ironic ignores it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProgressReport {
    /// What is being done, such as `write` or `erase /dev/sda`; with what holds it up after a comma.
    pub phase: String,
    /// Bytes done in this phase.
    pub done_bytes: u64,
    /// Bytes to do in this phase, when known.
    pub total_bytes: Option<u64>,
    /// Bytes per second since the phase began.
    pub rate: u64,
    /// Seconds left at this rate, when known; where there are disks, those of the disk that needs longest.
    pub eta: Option<u64>,
    /// Each disk, where several are worked on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<DiskReport>,
}

/// One disk of several in a [`ProgressReport`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DiskReport {
    /// Device path.
    pub name: String,
    /// `waiting`, what is being done to it, or how it ended: `done`, `skipped`, `failed`.
    pub state: String,
    /// Bytes done; where the disk does the work itself, what it says or promised.
    pub done_bytes: u64,
    /// Bytes to do.
    pub total_bytes: u64,
    /// Bytes per second of what is being done now.
    pub rate: u64,
    /// Seconds left, when known.
    pub eta: Option<u64>,
}

/// State of a disk that has not been begun.
const WAITING: &str = "waiting";

#[derive(Debug)]
struct Phase {
    name: String,
    done_bytes: u64,
    total_bytes: Option<u64>,
    began: Instant,
    held_up: Option<String>,
    disks: Vec<Disk>,
}

#[derive(Debug)]
struct Disk {
    name: String,
    state: String,
    done_bytes: u64,
    total_bytes: u64,
    /// When the work that goes on was begun, and where the count stood.
    began: Option<(Instant, u64)>,
    /// How long that takes, for a disk that works by itself and does not tell how far it is.
    expected: Option<Duration>,
}

impl Disk {
    fn report(&self) -> DiskReport {
        let elapsed = self.began.map_or(Duration::ZERO, |(began, _)| began.elapsed());
        let mut done_bytes = self.done_bytes;
        let mut eta = None;
        if let (Some(expected), Some((_, from))) = (self.expected, self.began) {
            // Promises are not kept to the second: the end is only shown when it is reached.
            let part = elapsed.min(expected * 99 / 100).as_micros();
            let done = u128::from(self.total_bytes - from) * part / expected.as_micros().max(1);
            done_bytes = from + u64::try_from(done).unwrap_or(0);
            eta = Some(expected.saturating_sub(elapsed).as_secs());
        }
        let moved = self.began.map_or(0, |(_, from)| done_bytes.saturating_sub(from));
        let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
        let rate = moved.saturating_mul(1000) / millis;
        if self.began.is_some() {
            eta = eta.or_else(|| (self.total_bytes - done_bytes).checked_div(rate));
        }
        let (name, state) = (self.name.clone(), self.state.clone());
        DiskReport { name, state, done_bytes, total_bytes: self.total_bytes, rate, eta }
    }
}

/// A handle to report progress through; clones share one state. A command that never reports shows no progress.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Mutex<Option<Phase>>>);

impl Progress {
    /// A handle with nothing to show yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a phase; counts begin at zero. `total_bytes` is `None` when the amount is not known.
    pub fn phase(&self, name: impl Into<String>, total_bytes: Option<u64>) {
        let phase = Phase {
            name: name.into(),
            done_bytes: 0,
            total_bytes,
            began: Instant::now(),
            held_up: None,
            disks: Vec::new(),
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(phase);
    }

    /// Names the disks of the current phase with the bytes to do for each; the counts of the phase are the sums of
    /// theirs from now on.
    pub fn disks(&self, disks: impl IntoIterator<Item = (String, u64)>) -> Vec<DiskProgress> {
        let waiting = |(name, total_bytes)| Disk {
            name,
            state: WAITING.to_owned(),
            done_bytes: 0,
            total_bytes,
            began: None,
            expected: None,
        };
        let disks: Vec<Disk> = disks.into_iter().map(waiting).collect();
        let handles = (0..disks.len()).map(|index| DiskProgress { progress: self.clone(), index }).collect();
        if let Some(phase) = self.0.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            phase.disks = disks;
        }
        handles
    }

    /// Adds bytes to the current phase; several threads may do so.
    pub fn add(&self, bytes: u64) {
        if let Some(phase) = self.0.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            phase.done_bytes = phase.done_bytes.saturating_add(bytes);
            phase.held_up = None;
        }
    }

    /// Says what holds the current phase up, such as `try 3 of 10: connection refused`, until bytes come again or the
    /// next phase begins.
    pub fn hold_up(&self, why: impl Into<String>) {
        if let Some(phase) = self.0.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            phase.held_up = Some(why.into());
        }
    }

    /// Sets the bytes done, for work that starts again from an earlier point.
    pub fn set(&self, done_bytes: u64) {
        if let Some(phase) = self.0.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            phase.done_bytes = done_bytes;
        }
    }

    /// The state now, with rate and time left.
    pub fn report(&self) -> Option<ProgressReport> {
        let guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let phase = guard.as_ref()?;
        let disks: Vec<DiskReport> = phase.disks.iter().map(Disk::report).collect();
        let sum = |of: fn(&DiskReport) -> u64| disks.iter().map(of).fold(0, u64::saturating_add);
        let (done_bytes, total_bytes) = if disks.is_empty() {
            (phase.done_bytes, phase.total_bytes)
        } else {
            (sum(|disk| disk.done_bytes), Some(sum(|disk| disk.total_bytes)))
        };
        let millis = u64::try_from(phase.began.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        let rate = done_bytes.saturating_mul(1000) / millis;
        // Disks go on side by side: the one that needs longest decides, and then come those that wait.
        let (slowest, left) = match disks.iter().filter_map(|disk| disk.eta).max() {
            Some(slowest) => (slowest, Some(sum(|disk| if disk.state == WAITING { disk.total_bytes } else { 0 }))),
            None => (0, total_bytes.map(|total| total.saturating_sub(done_bytes))),
        };
        let eta = left.and_then(|left| left.checked_div(rate)).map(|eta| eta.saturating_add(slowest));
        Some(ProgressReport {
            phase: phase.held_up.as_ref().map_or_else(|| phase.name.clone(), |why| format!("{}, {why}", phase.name)),
            done_bytes,
            total_bytes,
            rate,
            eta,
            disks,
        })
    }
}

/// A handle to report the progress of one disk through; see [`Progress::disks`]. One that belongs to a phase that is over
/// reports nothing.
#[derive(Debug, Clone, Default)]
pub struct DiskProgress {
    progress: Progress,
    index: usize,
}

impl DiskProgress {
    fn change(&self, change: impl FnOnce(&mut Disk)) {
        if let Some(phase) = self.progress.0.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            phase.held_up = None;
            if let Some(disk) = phase.disks.get_mut(self.index) {
                change(disk);
            }
        }
    }

    /// Starts something with the disk that takes it from where it is to its end. `expected` is how long that takes, for
    /// work that the disk does by itself.
    pub fn begin(&self, state: &str, expected: Option<Duration>) {
        self.change(|disk| {
            state.clone_into(&mut disk.state);
            disk.began = Some((Instant::now(), disk.done_bytes));
            disk.expected = expected;
        });
    }

    /// Adds bytes; several threads may do so.
    pub fn add(&self, bytes: u64) {
        self.change(|disk| disk.done_bytes = disk.done_bytes.saturating_add(bytes).min(disk.total_bytes));
    }

    /// Takes the disk's own word for how far it is, in parts of 65,536.
    pub fn tell(&self, part: u16) {
        self.change(|disk| {
            disk.expected = None;
            let done = u128::from(disk.total_bytes) * u128::from(part) / 65536;
            disk.done_bytes = u64::try_from(done).unwrap_or(0).max(disk.done_bytes);
        });
    }

    /// Ends the work: `done`, `skipped` or `failed`. Nothing of it is left to do then.
    pub fn end(&self, state: &str) {
        self.change(|disk| {
            state.clone_into(&mut disk.state);
            (disk.began, disk.expected) = (None, None);
            disk.done_bytes = disk.total_bytes;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_shown_before_the_first_phase() {
        let progress = Progress::new();
        progress.add(5);
        assert_eq!(progress.report(), None);
    }

    #[test]
    fn clones_share_one_count_and_a_new_phase_resets_it() {
        let progress = Progress::new();
        progress.phase("write", Some(100));
        progress.clone().add(40);
        let report = progress.report().unwrap();
        assert_eq!((report.phase.as_str(), report.done_bytes, report.total_bytes), ("write", 40, Some(100)));
        progress.phase("flush", None);
        let report = progress.report().unwrap();
        assert_eq!((report.done_bytes, report.total_bytes, report.eta), (0, None, None));
    }

    #[test]
    fn what_holds_a_phase_up_is_shown_until_it_goes_on() {
        let progress = Progress::new();
        progress.hold_up("nothing to hold up");
        assert_eq!(progress.report(), None);
        let shown = |progress: &Progress| progress.report().unwrap().phase;
        progress.phase("write", Some(100));
        progress.add(40);
        progress.hold_up("try 1 of 10: connection reset");
        assert_eq!(shown(&progress), "write, try 1 of 10: connection reset");
        assert_eq!(progress.report().unwrap().done_bytes, 40);
        progress.add(1);
        assert_eq!(shown(&progress), "write");
        progress.hold_up("try 1 of 10: connection reset");
        progress.phase("flush", None);
        assert_eq!(shown(&progress), "flush");
    }

    #[test]
    fn disks_are_counted_one_by_one_and_the_slowest_says_when_it_ends() {
        let progress = Progress::new();
        assert!(progress.disks([]).is_empty());
        progress.phase("erase", None);
        let disks =
            progress.disks([("/dev/a".to_owned(), 1000), ("/dev/b".to_owned(), 1 << 40), ("/dev/c".to_owned(), 8)]);
        disks[0].begin("overwrite", None);
        disks[1].begin("ata-security-erase", Some(Duration::from_secs(7200)));
        disks[0].add(400);
        disks[0].add(1 << 50);
        let report = progress.report().unwrap();
        let states: Vec<&str> = report.disks.iter().map(|disk| disk.state.as_str()).collect();
        assert_eq!(states, ["overwrite", "ata-security-erase", "waiting"]);
        assert_eq!((report.disks[0].done_bytes, report.total_bytes), (1000, Some((1 << 40) + 1008)));
        assert!((7190..=7200).contains(&report.eta.unwrap()), "{report:?}");
        disks[1].tell(0x8000);
        disks[2].end("skipped");
        let report = progress.report().unwrap();
        assert_eq!(report.disks[1].done_bytes, 1 << 39);
        assert_eq!((report.disks[2].done_bytes, report.disks[2].eta), (8, None));
        assert_eq!(report.done_bytes, 1008 + (1 << 39));
        progress.phase("next", None);
        disks[0].add(1);
        let report = progress.report().unwrap();
        assert!(report.disks.is_empty() && report.done_bytes == 0, "{report:?}");
    }

    #[test]
    fn what_a_disk_does_by_itself_is_counted_by_its_promise_but_never_to_the_end() {
        let progress = Progress::new();
        progress.phase("erase", None);
        let disk = &progress.disks([("/dev/a".to_owned(), 1000)])[0];
        disk.begin("ata-security-erase", Some(Duration::from_millis(20)));
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(progress.report().unwrap().done_bytes, 990);
        disk.end("done");
        assert_eq!(progress.report().unwrap().done_bytes, 1000);
    }

    #[test]
    fn disks_are_left_out_of_the_report_where_there_are_none() {
        let progress = Progress::new();
        progress.phase("write", None);
        assert!(!serde_json::to_string(&progress.report()).unwrap().contains("disks"));
    }
}
