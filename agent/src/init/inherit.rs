//! What PID 1 hands to its worker: three open files, named in one environment variable.

use std::fmt;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::{Mutex, OnceLock, PoisonError};

use ferric_sys::process::take_inherited;

/// The variable: numbers of the handover file, the log ring and the link to PID 1, separated by commas.
pub const VARIABLE: &str = "FERRIC_SUPERVISOR";

#[derive(Debug, Default)]
struct Inherited {
    handover: Option<OwnedFd>,
    ring: Option<OwnedFd>,
    link: Option<OwnedFd>,
    supervised: bool,
}

static INHERITED: OnceLock<Mutex<Inherited>> = OnceLock::new();

/// Numbers of the three files, as written into the variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    /// Handover file.
    pub handover: RawFd,
    /// Log ring.
    pub ring: RawFd,
    /// Link to PID 1.
    pub link: RawFd,
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{},{}", self.handover, self.ring, self.link)
    }
}

impl Numbers {
    /// Reads the variable; `None` unless it holds three different numbers.
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split(',').map(|number| number.parse().ok());
        let (handover, ring, link) = (numbers.next()??, numbers.next()??, numbers.next()??);
        let distinct = handover != ring && ring != link && handover != link;
        (distinct && numbers.next().is_none()).then_some(Self { handover, ring, link })
    }
}

fn inherited() -> &'static Mutex<Inherited> {
    INHERITED.get_or_init(|| {
        #[expect(clippy::disallowed_methods, reason = "a message from PID 1, not a setting")]
        let variable = std::env::var(VARIABLE).unwrap_or_default();
        let inherited = Numbers::parse(&variable).map(|numbers| Inherited {
            handover: take_inherited(numbers.handover),
            ring: take_inherited(numbers.ring),
            link: take_inherited(numbers.link),
            supervised: true,
        });
        Mutex::new(inherited.unwrap_or_default())
    })
}

fn take(pick: impl FnOnce(&mut Inherited) -> Option<OwnedFd>) -> Option<OwnedFd> {
    pick(&mut inherited().lock().unwrap_or_else(PoisonError::into_inner))
}

/// Whether this process is the worker of our own PID 1.
pub fn supervised() -> bool {
    inherited().lock().unwrap_or_else(PoisonError::into_inner).supervised
}

/// The handover file; once.
pub fn take_handover() -> Option<OwnedFd> {
    take(|inherited| inherited.handover.take())
}

/// The log ring; once.
pub fn take_ring() -> Option<OwnedFd> {
    take(|inherited| inherited.ring.take())
}

/// The link to PID 1; once.
pub fn take_link() -> Option<OwnedFd> {
    take(|inherited| inherited.link.take())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_is_written_and_read() {
        let numbers = Numbers { handover: 5, ring: 6, link: 9 };
        assert_eq!(Numbers::parse(&numbers.to_string()), Some(numbers));
        for bad in ["", "1", "1,2", "1,2,3,4", "a,b,c", "5,5,6", "5,6,6"] {
            assert_eq!(Numbers::parse(bad), None, "{bad}");
        }
    }
}
