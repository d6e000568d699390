//! Pauses between tries: pure sequences over a random generator that tests seed (protocol sections 7 and 9, inspection
//! section 2).

use std::time::Duration;

use fastrand::Rng;

/// Longest pause between two lookups before the configured minimum is looked at.
const MAX_LOOKUP_PAUSE_SECONDS: f64 = 60.0;

/// Extra pauses after "node is locked", the last one repeating.
const CONFLICT_PAUSES: [Duration; 3] = [Duration::from_secs(5), Duration::from_secs(10), Duration::from_secs(30)];

/// Tries to post inspection data.
pub(super) const INSPECTION_TRIES: u32 = 5;

/// A random number of seconds from `low` to `high`.
fn between(rng: &mut Rng, low: f64, high: f64) -> Duration {
    let seconds = low + (high - low).max(0.0) * rng.f64();
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// Pause after the `attempt`-th lookup, from 1: random, with an upper end that doubles up to a minute.
pub(super) fn lookup_pause(rng: &mut Rng, attempt: u32, interval: Duration) -> Duration {
    let low = interval.as_secs_f64();
    let doubled = 2_f64.powi(i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX));
    between(rng, low, doubled.min(MAX_LOOKUP_PAUSE_SECONDS).max(low))
}

/// Extra pause after the `conflict`-th answer that the node is locked, from 1. The count never starts again.
pub(super) fn conflict_pause(conflict: usize) -> Duration {
    let [.., last] = CONFLICT_PAUSES;
    CONFLICT_PAUSES.get(conflict.saturating_sub(1)).copied().unwrap_or(last)
}

/// Time to the next heartbeat after an accepted one: early enough for one to get lost, and spread, so that the agents
/// of a data centre that was switched on at once do not come all together.
pub(super) fn heartbeat_interval(rng: &mut Rng, timeout: Duration) -> Duration {
    let timeout = timeout.as_secs_f64();
    between(rng, timeout * 0.3, timeout * 0.6)
}

/// Time to the next heartbeat after a failed one.
pub(super) fn heartbeat_retry(rng: &mut Rng) -> Duration {
    between(rng, 5.0, 10.0)
}

/// Pause after the `attempt`-th failed inspection post, from 1.
pub(super) fn inspection_pause(attempt: u32) -> Duration {
    let seconds = 1.5 * 2_f64.powi(i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX));
    Duration::from_secs_f64(seconds.clamp(5.0, 30.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookup_pauses_stay_between_the_interval_and_a_doubling_limit() {
        let mut rng = Rng::with_seed(7);
        let cases = [(1, 1, 1.0), (2, 1, 2.0), (5, 1, 16.0), (7, 1, 60.0), (5000, 1, 60.0), (3, 90, 90.0), (3, 0, 4.0)];
        for (attempt, interval, high) in cases {
            let interval = Duration::from_secs(interval);
            let pauses: Vec<f64> = (0..500).map(|_| lookup_pause(&mut rng, attempt, interval).as_secs_f64()).collect();
            let (min, max) = pauses.iter().fold((f64::MAX, 0.0_f64), |(min, max), p| (p.min(min), p.max(max)));
            let low = interval.as_secs_f64();
            assert!(min >= low && max <= high, "attempt {attempt}: {min} to {max}");
            // Spread over the whole range, not bunched at one end.
            assert!(max - min >= 0.9 * (high - low), "attempt {attempt}: {min} to {max}");
        }
    }

    #[test]
    fn conflicts_pause_5_then_10_then_30_seconds() {
        let pauses: Vec<u64> = (1..=5).map(|conflict| conflict_pause(conflict).as_secs()).collect();
        assert_eq!(pauses, [5, 10, 30, 30, 30]);
    }

    #[test]
    fn heartbeats_are_spread_over_the_middle_of_the_timeout() {
        let mut rng = Rng::with_seed(1);
        let beats: Vec<f64> =
            (0..500).map(|_| heartbeat_interval(&mut rng, Duration::from_secs(300)).as_secs_f64()).collect();
        assert!(beats.iter().all(|beat| (90.0..=180.0).contains(beat)));
        assert!(beats.iter().any(|beat| *beat < 99.0) && beats.iter().any(|beat| *beat > 171.0));
        assert!((0..500).all(|_| (5.0..=10.0).contains(&heartbeat_retry(&mut rng).as_secs_f64())));
    }

    #[test]
    fn inspection_posts_pause_5_5_6_12_seconds() {
        let pauses: Vec<u64> = (1..INSPECTION_TRIES).map(|attempt| inspection_pause(attempt).as_secs()).collect();
        assert_eq!(pauses, [5, 5, 6, 12]);
        assert_eq!(inspection_pause(100).as_secs(), 30);
    }
}
