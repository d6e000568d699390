//! Processes as PID 1 sees them: signals as a file, inherited descriptors, children.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::process::{Pid, Signal, WaitOptions};
use rustix::thread::{CpuSet, sched_setaffinity};

/// Takes over a descriptor that this process inherited under a number it was told.
///
/// The descriptor is closed for programs started from here. `None` when the number is not open.
/// The caller must ask for each number once only.
#[expect(unsafe_code, reason = "a number becomes a descriptor")]
pub fn take_inherited(number: RawFd) -> Option<OwnedFd> {
    if number < 3 {
        return None;
    }
    // SAFETY: borrowing only to ask the kernel whether the number is open; -1 is excluded above.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_getfd(borrowed).ok()?;
    fcntl_setfd(borrowed, FdFlags::CLOEXEC).ok()?;
    // SAFETY: the number is open, was handed to this process for this purpose and nobody else owns it here.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Lets programs started from here inherit a descriptor; gives the number to tell them.
///
/// # Errors
/// Never for an open descriptor.
pub fn make_inheritable(fd: impl AsFd) -> io::Result<RawFd> {
    fcntl_setfd(&fd, FdFlags::empty())?;
    Ok(fd.as_fd().as_raw_fd())
}

/// Keeps the calling thread on one processor, by its number.
///
/// # Errors
/// There is no such processor, or it is offline.
pub fn pin_thread(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Signals that arrive as data instead of interrupting.
#[derive(Debug)]
pub struct SignalFd(OwnedFd);

impl SignalFd {
    /// Blocks the signals in this thread and all threads it starts later, and opens a descriptor for them.
    ///
    /// # Errors
    /// The kernel has no descriptor left.
    #[expect(unsafe_code, reason = "signal sets have no safe wrapper here")]
    pub fn new(signals: &[Signal]) -> io::Result<Self> {
        // SAFETY: `set` is plain data that sigemptyset initialises before use; the other calls read it, and the
        // descriptor that signalfd gives is new and owned by nobody.
        unsafe {
            let mut set = std::mem::zeroed::<libc::sigset_t>();
            libc::sigemptyset(&raw mut set);
            for signal in signals {
                libc::sigaddset(&raw mut set, signal.as_raw());
            }
            if libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
            let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(Self(OwnedFd::from_raw_fd(fd))) }
        }
    }

    /// The next signal; `None` when none is waiting.
    pub fn next(&self) -> Option<Signal> {
        let mut info = [0_u8; size_of::<libc::signalfd_siginfo>()];
        let length = rustix::io::read(&self.0, &mut info).ok()?;
        // The first field of signalfd_siginfo is the number, a u32 in the machine's byte order (signalfd(2)).
        let number = info.get(..4).filter(|_| length == info.len())?;
        let number = u32::from_ne_bytes(number.try_into().ok()?);
        Signal::from_named_raw(i32::try_from(number).ok()?)
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Lets a program start with no signal blocked. Without it a child inherits what [`SignalFd::new`] blocked, and
/// could not even be ended politely.
#[expect(unsafe_code, reason = "code between fork and exec")]
pub fn unblock_signals_in(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    let unblock = || {
        // SAFETY: both calls are async-signal-safe (signal-safety(7)); the set lives on this stack and is
        // initialised before it is read.
        let failed = unsafe {
            let mut set = std::mem::zeroed::<libc::sigset_t>();
            libc::sigemptyset(&raw mut set);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut())
        };
        if failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(failed)) }
    };
    // SAFETY: the closure allocates nothing, takes no locks and makes only async-signal-safe calls.
    unsafe { command.pre_exec(unblock) };
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// Collects one child that has ended, of whatever parentage (PID 1 inherits orphans); `None` when there is none.
pub fn reap() -> Option<(u32, Exit)> {
    loop {
        let waited = rustix::process::wait(WaitOptions::NOHANG);
        match waited {
            Ok(Some((pid, status))) => {
                let exit = match (status.exit_status(), status.terminating_signal()) {
                    (Some(code), _) => Exit::Code(code),
                    (None, Some(signal)) => Exit::Signal(signal),
                    (None, None) => continue,
                };
                return Some((u32::try_from(pid.as_raw_nonzero().get()).unwrap_or(0), exit));
            }
            Err(rustix::io::Errno::INTR) => {}
            Ok(None) | Err(_) => return None,
        }
    }
}

/// Sends a signal to one process.
///
/// # Errors
/// It is gone.
pub fn signal(pid: u32, signal: Signal) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no process has this id"))?;
    Ok(rustix::process::kill_process(pid, signal)?)
}

/// Sends a signal to every process but PID 1 and the kernel's. Refused unless this is PID 1: anywhere else it would
/// end the session of whoever runs it.
///
/// # Errors
/// This process is not PID 1, or there is no other process.
#[expect(unsafe_code, reason = "kill(-1) has no safe wrapper")]
pub fn signal_all(signal: Signal) -> io::Result<()> {
    if std::process::id() != 1 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "only PID 1 may signal every process"));
    }
    // SAFETY: kill reads its two numbers and touches no memory.
    if unsafe { libc::kill(-1, signal.as_raw()) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(unsafe_code, reason = "raise")]
    fn a_blocked_signal_is_read_as_data() {
        // In a thread of its own: the mask is the thread's, and raise aims at the thread that calls it.
        let read = std::thread::spawn(|| {
            let signals = SignalFd::new(&[Signal::USR2]).unwrap();
            assert_eq!(signals.next(), None);
            // SAFETY: raise takes a number and touches no memory.
            assert_eq!(unsafe { libc::raise(libc::SIGUSR2) }, 0);
            signals.next()
        });
        assert_eq!(read.join().unwrap(), Some(Signal::USR2));
    }

    #[test]
    fn a_child_starts_with_no_signal_blocked() {
        let blocked = |unblock: bool| {
            // In a thread of its own, as above.
            let read = std::thread::spawn(move || {
                let _signals = SignalFd::new(&[Signal::USR1]).unwrap();
                #[expect(clippy::disallowed_methods, reason = "this is about how processes start")]
                let mut command = std::process::Command::new("grep");
                if unblock {
                    unblock_signals_in(&mut command);
                }
                command.args(["SigBlk", "/proc/self/status"]).output().unwrap().stdout
            });
            let line = String::from_utf8(read.join().unwrap()).unwrap();
            u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap() & (1 << (libc::SIGUSR1 - 1)) != 0
        };
        assert!(blocked(false) && !blocked(true));
    }

    #[test]
    fn only_open_numbers_are_taken_over() {
        assert!(take_inherited(-1).is_none());
        assert!(take_inherited(1).is_none());
        assert!(take_inherited(9999).is_none());
        let file = crate::memfd::create("x", 1).unwrap();
        let number = std::os::fd::IntoRawFd::into_raw_fd(file);
        let taken = take_inherited(number).unwrap();
        assert!(fcntl_getfd(&taken).unwrap().contains(FdFlags::CLOEXEC));
        make_inheritable(&taken).unwrap();
        assert!(!fcntl_getfd(&taken).unwrap().contains(FdFlags::CLOEXEC));
    }

    #[test]
    fn signalling_everything_is_for_pid_1_only() {
        assert_eq!(signal_all(Signal::CONT).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
