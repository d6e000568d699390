//! Misbehaviour on order. Each fault belongs to one path and may wear off after some requests.

use std::time::Duration;

/// One kind of misbehaviour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Closes the connection after this many bytes of the body.
    CutAfter(u64),
    /// Sends this many bytes of the body, then nothing, connection open.
    StallAfter(u64),
    /// Closes the connection instead of answering.
    NoAnswer,
    /// Answers a range with 200 and the whole body.
    IgnoreRange,
    /// Answers 206 with a range that begins this many bytes after the one asked for, and says so truthfully.
    WrongRange(u64),
    /// Says that ranges are not supported (`Accept-Ranges: none`) and ignores them.
    NoRanges,
    /// Gives a new ETag with each answer, as when the file is replaced all the time.
    ChangingEtag,
    /// Gives neither ETag nor Last-Modified.
    NoValidators,
    /// Answers with this status and a short text.
    Status(u16),
    /// Answers 302 with this location.
    Redirect(String),
    /// Sends at most this many bytes in a second.
    Throttle(u64),
    /// Sends pieces of this many bytes with a pause after each.
    Trickle(u64, Duration),
    /// Waits before the answer.
    Delay(Duration),
    /// Flips all bits of the byte at this offset of the content.
    Corrupt(u64),
    /// Sends the body in chunks, without a length.
    Chunked,
    /// Claims this length; the body has its own.
    ClaimLength(u64),
}

/// A fault and how often it still acts.
#[derive(Debug, Clone)]
struct Armed {
    fault: Fault,
    /// `None` for ever.
    left: Option<u32>,
}

/// The faults of one path.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults {
    armed: Vec<Armed>,
}

impl Faults {
    pub(super) fn add(&mut self, fault: Fault, times: Option<u32>) {
        self.armed.push(Armed { fault, left: times });
    }

    pub(super) fn clear(&mut self) {
        self.armed.clear();
    }

    /// The faults that act on the next request; each of them is used up by one. Of several faults of one kind the first acts.
    pub(super) fn take(&mut self) -> Vec<Fault> {
        let mut acting: Vec<Fault> = Vec::new();
        for armed in &mut self.armed {
            let again =
                acting.iter().any(|fault| std::mem::discriminant(fault) == std::mem::discriminant(&armed.fault));
            if again || armed.left == Some(0) {
                continue;
            }
            armed.left = armed.left.map(|left| left - 1);
            acting.push(armed.fault.clone());
        }
        self.armed.retain(|armed| armed.left != Some(0));
        acting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_wear_off_and_the_same_kind_queues() {
        let mut faults = Faults::default();
        faults.add(Fault::CutAfter(10), Some(1));
        faults.add(Fault::CutAfter(20), Some(2));
        faults.add(Fault::NoRanges, None);
        assert_eq!(faults.take(), [Fault::CutAfter(10), Fault::NoRanges]);
        assert_eq!(faults.take(), [Fault::CutAfter(20), Fault::NoRanges]);
        assert_eq!(faults.take(), [Fault::CutAfter(20), Fault::NoRanges]);
        assert_eq!(faults.take(), [Fault::NoRanges]);
        faults.clear();
        assert_eq!(faults.take(), []);
    }
}
