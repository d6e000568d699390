//! The link between PID 1 and its worker: short words over a pair of sockets.
//!
//! Worker to PID 1: `ping` while its event loop turns, and the words of [`PowerAction`](super::power::PowerAction).
//! PID 1 to worker: `settled` once the devices that were there at the start have their drivers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

use super::inherit;

/// How often the worker says that it lives.
pub const PING_EVERY: Duration = Duration::from_secs(5);
/// After this long without a word PID 1 takes the worker for hung.
pub const HUNG_AFTER: Duration = Duration::from_secs(90);

pub(super) const PING: &str = "ping";
pub(super) const SETTLED: &str = "settled";

const WORD_BYTES: usize = 64;

static LINK: OnceLock<Option<Link>> = OnceLock::new();

/// One end of the link.
#[derive(Debug)]
pub struct Link(OwnedFd);

impl Link {
    /// Both ends.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn pair() -> io::Result<(Self, Self)> {
        let flags = SocketFlags::CLOEXEC;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self(one), Self(other)))
    }

    /// Sends a word; never waits.
    ///
    /// # Errors
    /// The other side is gone or does not read.
    pub fn send(&self, word: &str) -> io::Result<()> {
        send(&self.0, word.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// The next word, waiting for it if asked to; `None` when the other side is gone.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is none and waiting was not asked for.
    pub fn receive(&self, wait: bool) -> io::Result<Option<String>> {
        let flags = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        let mut word = [0; WORD_BYTES];
        loop {
            match recv(&self.0, &mut word, flags) {
                Ok((0, _)) => return Ok(None),
                Ok((length, _)) => {
                    let word = word.get(..length).unwrap_or_default();
                    return Ok(Some(String::from_utf8_lossy(word).into_owned()));
                }
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The worker's link to PID 1; `None` when PID 1 is not ours.
pub fn get() -> Option<&'static Link> {
    LINK.get_or_init(|| inherit::take_link().map(Link)).as_ref()
}

#[derive(Debug)]
struct Flag {
    set: Mutex<bool>,
    changed: Condvar,
}

static SETTLED_FLAG: Flag = Flag { set: Mutex::new(false), changed: Condvar::new() };

impl Flag {
    fn set(&self) {
        *self.set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    fn wait(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        while !*set {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return false };
            set = self.changed.wait_timeout(set, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// Reads PID 1's words in a thread, for the worker.
pub(super) fn listen() {
    let Some(link) = get() else {
        // Somebody else looks after devices here, and did so before the agent started.
        SETTLED_FLAG.set();
        return;
    };
    let read = move || {
        while let Ok(Some(word)) = link.receive(true) {
            if word == SETTLED {
                SETTLED_FLAG.set();
            }
        }
    };
    let thread = std::thread::Builder::new().name("pid 1".to_owned()).stack_size(64 * 1024);
    if let Err(error) = thread.spawn(read) {
        tracing::warn!("not listening to PID 1: {error}");
        SETTLED_FLAG.set();
    }
}

/// Waits until the devices that were there at the start have their drivers; false when that took longer than `limit`.
/// Blocks: from async code, on a blocking thread.
pub fn wait_settled(limit: Duration) -> bool {
    SETTLED_FLAG.wait(limit)
}

/// Tells PID 1 for ever that this event loop turns. Run it as a task of the loop that everything else runs on.
pub async fn keep_alive() {
    let Some(link) = get() else { return };
    let mut ticks = tokio::time::interval(PING_EVERY);
    loop {
        ticks.tick().await;
        // A full socket means that PID 1 has pings enough.
        let _sent = link.send(PING);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_arrive_whole_and_the_end_is_seen() {
        let (one, other) = Link::pair().unwrap();
        one.send(PING).unwrap();
        one.send("power-off").unwrap();
        assert_eq!(other.receive(true).unwrap().as_deref(), Some(PING));
        assert_eq!(other.receive(false).unwrap().as_deref(), Some("power-off"));
        assert_eq!(other.receive(false).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(one);
        assert_eq!(other.receive(true).unwrap(), None);
        assert!(other.send(PING).is_err());
    }

    #[test]
    fn a_flag_is_waited_for_and_remembered() {
        let flag = Flag { set: Mutex::new(false), changed: Condvar::new() };
        assert!(!flag.wait(Duration::from_millis(5)));
        flag.set();
        assert!(flag.wait(Duration::ZERO));
    }
}
