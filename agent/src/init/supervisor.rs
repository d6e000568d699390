//! Keeps a worker running: starts it, watches it, starts it again.
//!
//! ```text
//!            spawn                    exit, signal, hung
//!  pausing ---------> running -----------------------------> pausing (1, 2, 5, 10, 30 s)
//!     ^                  |
//!     |                  | "power-off", "reboot", "lockdown", Ctrl-Alt-Del, signals
//!     |                  v
//!     +-- never --- the end (returned to the caller)
//! ```
//!
//! What must survive lies in the handover file, which the supervisor also writes: how often and why it started again.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ferric_sys::process::{Exit, SignalFd, make_inheritable, reap, signal, unblock_signals_in};
use ferric_sys::{Root, attr};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use tracing::{debug, error, info, warn};

use super::inherit::{Numbers, VARIABLE};
use super::link::{HUNG_AFTER, Link, PING, SETTLED};
use super::plug::Settled;
use super::power::PowerAction;
use crate::handover::Handover;

/// Pauses before the next start, the last one for ever.
const PAUSES: [Duration; 5] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
];
/// A worker that ran this long was healthy; the next pause is the shortest again.
const HEALTHY_AFTER: Duration = Duration::from_secs(300);

/// How the worker is started.
#[derive(Debug, Clone)]
pub struct Program {
    /// Program file.
    pub path: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
}

/// The pause before start number `failures + 1` in a row.
fn pause(failures: usize) -> Duration {
    PAUSES.get(failures.saturating_sub(1)).or(PAUSES.last()).copied().unwrap_or(Duration::from_secs(1))
}

#[derive(Debug)]
struct Worker {
    pid: u32,
    link: Link,
    started: Instant,
    last_word: Instant,
    oom_kills: u64,
    hung: bool,
}

/// The supervisor's state; it outlives a panic in its own code.
#[derive(Debug)]
pub struct Supervisor {
    program: Program,
    signals: SignalFd,
    handover: Handover,
    handover_file: Option<File>,
    ring: OwnedFd,
    settled: Option<Settled>,
    is_settled: bool,
    hung_after: Duration,
    worker: Option<Worker>,
    /// The machine is to end, so the end of the worker is nothing to tell about.
    is_ending: bool,
    failures: usize,
    start_at: Instant,
}

impl Supervisor {
    /// A supervisor that has not started anything yet. `signals` must hold CHLD, TERM, INT, USR1 and USR2.
    pub fn new(program: Program, signals: SignalFd, ring: OwnedFd) -> Self {
        let handover = Handover::create();
        let handover_file = handover.try_clone_file();
        Self {
            program,
            signals,
            handover,
            handover_file,
            ring,
            settled: None,
            is_settled: false,
            hung_after: HUNG_AFTER,
            worker: None,
            is_ending: false,
            failures: 0,
            start_at: Instant::now(),
        }
    }

    /// Tells workers when `settled` says so.
    pub(super) fn watch_devices(&mut self, settled: Option<Settled>) {
        self.is_settled = settled.is_none();
        self.settled = settled;
    }

    /// Sets after how long without a word a worker counts as hung.
    #[must_use]
    pub const fn hung_after(mut self, time: Duration) -> Self {
        self.hung_after = time;
        self
    }

    /// Keeps a worker running until the machine is to end; gives how. The worker may still run then.
    pub fn run(&mut self) -> PowerAction {
        self.is_ending = false;
        loop {
            if self.worker.is_none() && Instant::now() >= self.start_at {
                self.start();
            }
            self.wait();
            if let Some(action) = self.signalled() {
                return action;
            }
            if let Some(action) = self.hear() {
                return action;
            }
            self.check_settled();
            self.check_hung();
        }
    }

    /// Waits for a signal that asks for the machine's end, with no worker running.
    pub(super) fn wait_for_signal(&mut self) -> PowerAction {
        loop {
            if let Some(action) = self.signalled() {
                return action;
            }
            let mut descriptors = [PollFd::new(&self.signals, PollFlags::IN)];
            let _ready = poll(&mut descriptors, None);
        }
    }

    /// The running worker's process id.
    pub fn worker_pid(&self) -> Option<u32> {
        self.worker.as_ref().map(|worker| worker.pid)
    }

    /// Ends the worker: politely, then not.
    pub fn end_worker(&mut self, limit: Duration) {
        self.is_ending = true;
        for (sent, limit) in [(Signal::TERM, limit), (Signal::KILL, Duration::from_secs(2))] {
            let Some(pid) = self.worker_pid() else { return };
            // It may be gone already, which the reaping below finds out.
            let _gone = signal(pid, sent);
            let deadline = Instant::now() + limit;
            while self.worker.is_some() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
                self.reap();
            }
        }
    }

    fn start(&mut self) {
        match self.spawn() {
            Ok(worker) => {
                debug!("worker {} started", worker.pid);
                if self.is_settled {
                    let _sent = worker.link.send(SETTLED);
                }
                self.worker = Some(worker);
            }
            Err(source) => {
                self.failures += 1;
                let pause = pause(self.failures);
                error!("starting the agent: {source}; trying again in {} s", pause.as_secs());
                self.start_at = Instant::now() + pause;
            }
        }
    }

    fn spawn(&mut self) -> io::Result<Worker> {
        let (link, theirs) = Link::pair()?;
        if self.handover_file.is_none() {
            // There was no memory for it before.
            self.handover = Handover::create();
            self.handover_file = self.handover.try_clone_file();
        }
        let handover = self.handover_file.as_ref().ok_or_else(|| io::Error::other("no handover file"))?;
        let numbers = Numbers {
            handover: make_inheritable(handover)?,
            ring: make_inheritable(&self.ring)?,
            link: make_inheritable(&theirs)?,
        };
        #[expect(clippy::disallowed_methods, reason = "the worker is not a tool with an output to wait for")]
        let mut command = Command::new(&self.program.path);
        unblock_signals_in(&mut command);
        let child = command.args(&self.program.args).env(VARIABLE, numbers.to_string()).stdin(Stdio::null()).spawn()?;
        let now = Instant::now();
        let oom_kills = oom_kills(&Root::host());
        Ok(Worker { pid: child.id(), link, started: now, last_word: now, oom_kills, hung: false })
    }

    /// Waits for the next thing to happen.
    fn wait(&self) {
        let now = Instant::now();
        let next = match &self.worker {
            Some(worker) => worker.last_word + self.hung_after,
            None => self.start_at,
        };
        // A second more than needed does no harm, a second less would turn the loop once for nothing.
        let left = next.saturating_duration_since(now) + Duration::from_millis(1);
        let timeout = Timespec::try_from(left).ok();
        let mut descriptors = vec![PollFd::new(&self.signals, PollFlags::IN)];
        descriptors.extend(self.worker.as_ref().map(|worker| PollFd::new(&worker.link, PollFlags::IN)));
        descriptors
            .extend(self.settled.as_ref().map(|settled| PollFd::from_borrowed_fd(settled.as_fd(), PollFlags::IN)));
        // EINTR and everything else: look at all of them and wait again.
        let _ready = poll(&mut descriptors, timeout.as_ref());
    }

    fn signalled(&mut self) -> Option<PowerAction> {
        while let Some(signal) = self.signals.next() {
            match signal {
                Signal::CHILD => {}
                Signal::INT => {
                    info!("Ctrl-Alt-Del pressed");
                    return Some(PowerAction::Reboot);
                }
                Signal::TERM => return Some(PowerAction::Reboot),
                Signal::USR1 | Signal::USR2 => return Some(PowerAction::PowerOff),
                other => debug!("signal {other:?} ignored"),
            }
        }
        // One CHLD can stand for several children, so look every time.
        self.reap();
        None
    }

    /// Collects all children that have ended: orphans without a word, the worker with its cause.
    fn reap(&mut self) {
        while let Some((pid, exit)) = reap() {
            if self.worker.as_ref().is_some_and(|worker| worker.pid == pid) {
                // Words sent just before the end still count.
                if let Some(worker) = self.worker.take() {
                    self.ended(&worker, exit);
                }
            } else {
                debug!("process {pid} ended: {exit:?}");
            }
        }
    }

    fn ended(&mut self, worker: &Worker, exit: Exit) {
        if self.is_ending {
            debug!("the agent ended: {exit:?}");
            return;
        }
        let oom = oom_kills(&Root::host()) > worker.oom_kills;
        let cause = describe(exit, worker.hung, oom);
        self.failures = if worker.started.elapsed() >= HEALTHY_AFTER { 1 } else { self.failures + 1 };
        let pause = pause(self.failures);
        self.start_at = Instant::now() + pause;
        error!("the agent ended ({cause}); starting it again in {} s", pause.as_secs());
        let mut state = self.handover.load().unwrap_or_default();
        state.restarts += 1;
        state.last_exit = Some(cause);
        self.handover.save(&state);
    }

    fn hear(&mut self) -> Option<PowerAction> {
        let worker = self.worker.as_mut()?;
        loop {
            match worker.link.receive(false) {
                Ok(Some(word)) => {
                    worker.last_word = Instant::now();
                    match PowerAction::from_word(&word) {
                        Some(action) => return Some(action),
                        None if word == PING => {}
                        None => warn!("the agent sent {:?}, which means nothing", word.escape_debug().to_string()),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Ok(None) | Err(_) => {
                    // It closed its end. Its death comes as a signal; until then do not turn for nothing.
                    std::thread::sleep(Duration::from_millis(5));
                    return None;
                }
            }
        }
    }

    fn check_settled(&mut self) {
        if !self.is_settled && self.settled.as_ref().is_some_and(Settled::take) {
            self.is_settled = true;
            info!("all devices have their drivers");
            if let Some(worker) = &self.worker {
                // A worker that ended gets the word when it starts again.
                let _sent = worker.link.send(SETTLED);
            }
        }
    }

    fn check_hung(&mut self) {
        let Some(worker) = self.worker.as_mut().filter(|worker| worker.last_word.elapsed() >= self.hung_after) else {
            return;
        };
        error!("the agent has not given a sign of life for {} s, ending it", self.hung_after.as_secs());
        worker.hung = true;
        worker.last_word = Instant::now();
        if let Err(error) = signal(worker.pid, Signal::KILL) {
            debug!("killing worker {}: {error}", worker.pid);
        }
    }
}

/// What to tell people about the end of a worker.
fn describe(exit: Exit, hung: bool, oom: bool) -> String {
    match exit {
        _ if hung => "it hung and was killed".to_owned(),
        Exit::Signal(9) if oom => "killed by the kernel: out of memory".to_owned(),
        Exit::Signal(number) => {
            let name = match number {
                4 => " SIGILL",
                6 => " SIGABRT",
                7 => " SIGBUS",
                9 => " SIGKILL",
                11 => " SIGSEGV",
                15 => " SIGTERM",
                31 => " SIGSYS",
                _ => "",
            };
            format!("killed by signal {number}{name}")
        }
        Exit::Code(101) => "it panicked, exit code 101".to_owned(),
        Exit::Code(code) => format!("exit code {code}"),
    }
}

/// How often the kernel has killed a process for memory (`oom_kill` in /proc/vmstat, since 4.13).
fn oom_kills(root: &Root) -> u64 {
    let stat = attr::read_trimmed(&root.path("proc/vmstat")).unwrap_or_default();
    stat.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_stay_at_the_longest() {
        let seconds: Vec<u64> = (1..9).map(|failures| pause(failures).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 5, 10, 30, 30, 30, 30]);
    }

    #[test]
    fn causes_are_told_in_words() {
        let cases = [
            (Exit::Code(0), false, false, "exit code 0"),
            (Exit::Code(101), false, false, "it panicked, exit code 101"),
            (Exit::Signal(9), false, false, "killed by signal 9 SIGKILL"),
            (Exit::Signal(9), false, true, "killed by the kernel: out of memory"),
            (Exit::Signal(9), true, true, "it hung and was killed"),
            (Exit::Signal(11), false, true, "killed by signal 11 SIGSEGV"),
            (Exit::Signal(64), false, false, "killed by signal 64"),
        ];
        for (exit, hung, oom, want) in cases {
            assert_eq!(describe(exit, hung, oom), want);
        }
    }

    #[test]
    fn oom_kills_are_counted_from_vmstat() {
        let dir = std::env::temp_dir().join(format!("ferric-vmstat-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("proc")).unwrap();
        std::fs::write(dir.join("proc/vmstat"), "nr_free_pages 1\noom_kill 3\n").unwrap();
        assert_eq!(oom_kills(&Root::at(&dir)), 3);
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(oom_kills(&Root::at(&dir)), 0);
    }
}
