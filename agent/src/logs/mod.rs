//! Where log lines go: every console, the kernel's log, a ring in memory, journald where there is one.
//!
//! A console may be stuck (a serial line with flow control and nobody listening) or slow (a scrolling frame buffer);
//! so each has a thread and a short queue of its own, and lines that find the queue full are counted and left out.
//! The ring is shared memory: it also holds what a worker said before it was killed.

pub mod bundle;
mod console;
mod kmsg;
mod layer;
mod redact;
mod ring;

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::time::Duration;

use ferric_sys::Root;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

pub use kmsg::records as kernel_log;
pub use redact::hide;
pub(crate) use redact::redact;
pub use ring::Ring;

use crate::init::inherit;

/// Size of the ring in memory.
pub const RING_BYTES: usize = 1 << 20;

static RING: OnceLock<Ring> = OnceLock::new();
static CONSOLES: OnceLock<console::Consoles> = OnceLock::new();

/// Where lines go besides the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// All consoles of the machine and the kernel's log: our own ramdisk.
    Machine,
    /// Standard error, or journald where it runs: a service, or a developer's shell.
    Service,
}

/// Starts logging for a worker, wherever it runs.
pub fn init_worker(debug: bool) {
    init(if inherit::supervised() { Output::Machine } else { Output::Service }, debug);
}

/// Starts logging. A second call changes nothing.
pub fn init(output: Output, debug: bool) {
    let level = if debug { LevelFilter::DEBUG } else { LevelFilter::INFO };
    let ours = Targets::new().with_default(LevelFilter::WARN).with_targets([
        ("ferric", level),
        ("ferric_agent", level),
        ("ferric_sys", level),
        ("ferric_disk", level),
        ("ferric_hardware", level),
    ]);
    let journal = (output == Output::Service).then(|| tracing_journald::layer().ok()).flatten();
    let sinks = layer::Sinks {
        ring: ring(),
        consoles: (output == Output::Machine).then(|| CONSOLES.get_or_init(|| console::Consoles::open(&Root::host()))),
        kmsg: if output == Output::Machine { kmsg::Kmsg::open() } else { None },
        stderr: output == Output::Service && journal.is_none(),
    };
    let lines = layer::Lines::new(sinks);
    // It fails when a subscriber is there already, as in tests: that one stays.
    let _already =
        tracing_subscriber::registry().with(lines.with_filter(ours.clone())).with(journal.with_filter(ours)).try_init();
}

/// The lines of this boot, oldest first, of PID 1 and of every worker.
pub fn ring() -> &'static Ring {
    RING.get_or_init(|| Ring::open(inherit::take_ring().as_ref()))
}

/// Makes the file of PID 1 the ring of this process; only before the first line.
pub fn use_ring(file: &OwnedFd) {
    RING.get_or_init(|| Ring::open(Some(file)));
}

/// Waits until the consoles have written what they were given, at most this long.
pub fn flush(limit: Duration) {
    if let Some(consoles) = CONSOLES.get() {
        consoles.flush(limit);
    }
}

/// Writes a line to every console at once, past queues and filters: for the last words of a process that panics.
pub fn last_words(text: &str) {
    ring().push(text);
    match CONSOLES.get() {
        Some(consoles) => consoles.send(text),
        None => layer::to_stderr(text),
    }
    flush(Duration::from_millis(300));
}
