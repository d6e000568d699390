//! Progress of a long command, shared between the thread that works and the API that shows it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

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
    /// Seconds left at this rate, when known.
    pub eta: Option<u64>,
}

#[derive(Debug)]
struct Phase {
    name: String,
    done_bytes: u64,
    total_bytes: Option<u64>,
    began: Instant,
    held_up: Option<String>,
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
        let phase = Phase { name: name.into(), done_bytes: 0, total_bytes, began: Instant::now(), held_up: None };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(phase);
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
        let millis = u64::try_from(phase.began.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        let rate = phase.done_bytes.saturating_mul(1000) / millis;
        let left = phase.total_bytes.map(|total| total.saturating_sub(phase.done_bytes));
        let eta = left.and_then(|left| left.checked_div(rate));
        Some(ProgressReport {
            phase: phase.held_up.as_ref().map_or_else(|| phase.name.clone(), |why| format!("{}, {why}", phase.name)),
            done_bytes: phase.done_bytes,
            total_bytes: phase.total_bytes,
            rate,
            eta,
        })
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
}
