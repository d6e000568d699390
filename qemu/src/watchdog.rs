//! Signs that a guest will never get further, and the time limit on a whole machine.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use crate::process::Process;

/// Text on a console after which waiting is pointless.
const MARKERS: &[&str] = &[
    "Kernel panic",
    "---[ end",
    "BUG: soft lockup",
    "BUG: kernel NULL pointer",
    "BUG: unable to handle",
    "Oops:",
    "No bootable device",
    "BdsDxe: No bootable option",
];

/// What counts as a sign that the guest hangs.
#[derive(Debug, Clone)]
pub struct HangMarkers {
    texts: Vec<String>,
}

impl Default for HangMarkers {
    fn default() -> Self {
        Self { texts: MARKERS.iter().map(|text| (*text).to_owned()).collect() }
    }
}

impl HangMarkers {
    /// No sign at all.
    pub fn none() -> Self {
        Self { texts: Vec::new() }
    }

    /// One more text.
    pub fn add(&mut self, text: &str) {
        self.texts.push(text.to_owned());
    }

    /// Drops the markers that occur in `text` or that `text` occurs in: a test that provokes a panic says
    /// `tolerate("Kernel panic")`.
    pub fn tolerate(&mut self, text: &str) {
        self.texts.retain(|marker| !marker.contains(text) && !text.contains(marker.as_str()));
    }

    /// The marker that `line` holds.
    pub fn find(&self, line: &str) -> Option<&str> {
        self.texts.iter().map(String::as_str).find(|marker| line.contains(marker))
    }
}

/// Kills a machine that outlives its time limit; dropped with the machine.
#[derive(Debug)]
pub(crate) struct Watchdog {
    /// Dropping it ends the thread.
    _cancel: Sender<()>,
}

impl Watchdog {
    pub(crate) fn start(process: Arc<Process>, limit: Duration) -> Self {
        let (cancel, cancelled) = channel::<()>();
        // Detached: it ends with the sender or after killing, and holds nothing else.
        drop(std::thread::spawn(move || {
            if cancelled.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                process.kill_because(&format!("machine killed by its time limit of {} s", limit.as_secs()));
            }
        }));
        Self { _cancel: cancel }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_console_lines_are_told_apart() {
        let markers = HangMarkers::default();
        let cases = [
            ("[    1.9] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000100", Some("Kernel panic")),
            ("[    2.0] ---[ end Kernel panic - not syncing: VFS: Unable to mount root fs ]---", Some("Kernel panic")),
            ("[   61.2] ---[ end trace 0000000000000000 ]---", Some("---[ end")),
            ("[   48.1] watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [kworker/1:1:39]", Some("BUG: soft lockup")),
            ("No bootable device.", Some("No bootable device")),
            ("[    0.5] Run /init as init process", None),
            ("kernel panics are reported", None),
        ];
        for (line, expected) in cases {
            assert_eq!(markers.find(line), expected, "{line}");
        }
    }

    #[test]
    fn tolerated_text_is_no_marker_any_more() {
        let mut markers = HangMarkers::default();
        markers.tolerate("Kernel panic");
        assert_eq!(markers.find("Kernel panic - not syncing: sysrq"), None);
        markers.tolerate("---[ end");
        assert_eq!(markers.find("---[ end Kernel panic"), None);
        markers.add("my marker");
        assert_eq!(markers.find("a my marker b"), Some("my marker"));
        assert_eq!(HangMarkers::none().find("Kernel panic"), None);
    }
}
