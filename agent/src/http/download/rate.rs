//! The rule against transfers that trickle: they never trip a limit on silence and would last for days.

use std::time::Duration;

/// Waiting time over which the rate is judged.
pub const RATE_WINDOW: Duration = Duration::from_secs(60);

/// Bytes that must arrive in [`RATE_WINDOW`]: 1 KiB a second, a tenth of the slowest modem link anyone would boot over.
pub const MIN_BYTES: u64 = 60 * 1024;

/// Watches the bytes that arrive while somebody waits for them.
#[derive(Debug)]
pub(super) struct RateWatch {
    window: Duration,
    min_bytes: u64,
    waited: Duration,
    arrived: u64,
}

impl RateWatch {
    pub(super) fn new(window: Duration, min_bytes: u64) -> Self {
        Self { window, min_bytes, waited: Duration::ZERO, arrived: 0 }
    }

    /// Counts a piece and the time spent waiting for it. False when a window has passed with too few bytes; the next
    /// window begins after each.
    pub(super) fn is_fast_enough(&mut self, waited: Duration, bytes: u64) -> bool {
        self.waited += waited;
        self.arrived += bytes;
        if self.waited < self.window {
            return true;
        }
        let enough = self.arrived >= self.min_bytes;
        self.waited = Duration::ZERO;
        self.arrived = 0;
        enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_a_minute_is_a_trickle_and_a_slow_link_is_not() {
        // (bytes a piece, seconds between pieces, pieces until it is noticed)
        let cases = [(1, 59, Some(2)), (1024, 2, Some(30)), (1024, 1, None), (1_048_576, 59, None), (0, 1, Some(60))];
        for (bytes, seconds, noticed) in cases {
            let mut watch = RateWatch::new(RATE_WINDOW, MIN_BYTES);
            let at = (1..=1000).find(|_| !watch.is_fast_enough(Duration::from_secs(seconds), bytes));
            assert_eq!(at, noticed, "{bytes} bytes each {seconds} s");
        }
    }

    #[test]
    fn time_without_waiting_does_not_count() {
        let mut watch = RateWatch::new(RATE_WINDOW, MIN_BYTES);
        assert!((0..100_000).all(|_| watch.is_fast_enough(Duration::ZERO, 1)));
    }
}
