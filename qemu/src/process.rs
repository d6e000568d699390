//! A QEMU process that does not outlive the program that started it.
//!
//! On drop it gets SIGKILL. If this program itself dies, the kernel does it: QEMU is started through `setpriv
//! --pdeathsig KILL` (util-linux). That signal is tied to the *thread* that forked, so all machines are started from
//! one thread that lives as long as the program.

use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::artifacts;

type Order = (Command, Sender<std::io::Result<Child>>);

/// A running or ended process.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    child: Child,
    ended: Option<ExitStatus>,
    /// Why we killed it, if we did.
    reason: Option<String>,
}

impl Process {
    /// Starts `program` with what `prepare` adds to the command.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(program: &std::path::Path, prepare: impl FnOnce(&mut Command)) -> Result<Self> {
        let mut command = match artifacts::program("setpriv", "util-linux") {
            Ok(setpriv) => {
                let mut command = Command::new(setpriv);
                command.args(["--pdeathsig", "KILL", "--"]).arg(program);
                command
            }
            // Then only the drop kills it; better than no machine.
            Err(_) => Command::new(program),
        };
        prepare(&mut command);
        let child = spawn(command)
            .context("handing over to the thread that starts machines")?
            .with_context(|| format!("starting {}", program.display()))?;
        Ok(Self { pid: child.id(), state: Mutex::new(State { child, ended: None, reason: None }) })
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The exit status if it has ended.
    pub fn ended(&self) -> Option<ExitStatus> {
        let mut state = self.lock();
        if state.ended.is_none() {
            state.ended = state.child.try_wait().ok().flatten();
        }
        state.ended
    }

    /// Waits for the end; `None` when `limit` passes first.
    pub fn wait(&self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            if Instant::now() >= deadline {
                return None;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills it (SIGKILL) and collects its status.
    pub fn kill(&self) {
        let mut state = self.lock();
        if state.ended.is_none() {
            // It may have ended by itself meanwhile; the wait tells.
            drop(state.child.kill());
            state.ended = state.child.wait().ok();
        }
    }

    /// Kills it and remembers why, for the error of whoever waits for it.
    pub(crate) fn kill_because(&self, reason: &str) {
        {
            let mut state = self.lock();
            if state.ended.is_none() {
                state.reason = Some(reason.to_owned());
            }
        }
        self.kill();
    }

    /// How it ended, in words.
    pub fn epitaph(&self) -> Option<String> {
        let status = self.ended()?;
        let reason = self.lock().reason.clone();
        Some(reason.unwrap_or_else(|| format!("qemu ended ({status})")))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts `command` from the thread that lives as long as the program.
fn spawn(command: Command) -> Result<std::io::Result<Child>> {
    static STARTER: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (sender, orders) = channel::<Order>();
        drop(std::thread::spawn(move || {
            for (mut command, reply) in orders {
                // Nobody waits any more: the child is dropped by the failed send.
                drop(reply.send(command.spawn()));
            }
        }));
        Mutex::new(sender)
    });
    let (reply, answer) = channel();
    starter.lock().unwrap_or_else(PoisonError::into_inner).send((command, reply))?;
    Ok(answer.recv()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn sleeper() -> Process {
        Process::start(Path::new("/bin/sleep"), |command| {
            command.arg("60");
        })
        .unwrap()
    }

    fn alive(pid: u32) -> bool {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
    }

    #[test]
    fn dropped_process_is_dead_and_collected() {
        let process = sleeper();
        let pid = process.pid();
        assert!(alive(pid) && process.ended().is_none());
        drop(process);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn process_survives_the_thread_that_asked_for_it() {
        let process = std::thread::spawn(sleeper).join().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        assert!(process.ended().is_none(), "{:?}", process.epitaph());
    }

    #[test]
    fn process_dies_with_this_program() {
        // The death signal is set in the child before it becomes the program; the kernel shows it nowhere, so a second
        // program is started that starts a sleeper the same way and is then killed.
        let setpriv = artifacts::program("setpriv", "util-linux").unwrap();
        let script = format!("{} --pdeathsig KILL -- sleep 60 & echo $!; wait", setpriv.display());
        let mut shell =
            Command::new("/bin/sh").args(["-c", &script]).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(shell.stdout.take().unwrap()), &mut line).unwrap();
        let pid: u32 = line.trim().parse().unwrap();
        std::thread::sleep(Duration::from_millis(200));
        assert!(alive(pid));
        shell.kill().unwrap();
        shell.wait().unwrap();
        let deadline = Instant::now() + Duration::from_secs(5);
        while alive(pid) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(!alive(pid));
    }

    #[test]
    fn reason_of_a_kill_is_told() {
        let process = sleeper();
        process.kill_because("too slow");
        assert_eq!(process.epitaph().as_deref(), Some("too slow"));
    }
}
