//! Writing over a whole disk, discarding it, and zeroing it.
//!
//! Zeroing and discarding go in steps that grow until one takes a good part of a second: progress shows on a slow disk,
//! no step is longer than a driver's patience, and an agent that is ended does not keep the machine waiting for a disk.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ferric_sys::aligned::AlignedBuf;
use ferric_sys::block_dev::{BlockDev, BlockDevError};
use ferric_types::DiskProgress;

use super::pattern::Pattern;

/// Bytes of one write, and of the smallest step.
const CHUNK_BYTES: u64 = 1 << 20;
/// The largest step.
const MOST_BYTES: u64 = 1 << 30;
/// A quicker step is doubled, a slower one halved.
const QUICK: Duration = Duration::from_millis(250);
const SLOW: Duration = Duration::from_secs(1);
/// Writes in flight: one is filled while others are under way.
const WRITERS: usize = 3;
/// How often a failing request is tried: arrays that still initialise fail for a while (pitfall B2).
const TRIES: u32 = 4;

/// Why overwriting ended early.
#[derive(Debug)]
pub(super) enum Stopped {
    Device(BlockDevError),
    Randomness(io::Error),
}

/// A pass of random bytes.
pub(super) fn random(dev: &BlockDev, progress: &DiskProgress) -> Result<(), Stopped> {
    let direct = dev.direct().map_err(Stopped::Device)?;
    let (next, failed) = (AtomicU64::new(0), AtomicBool::new(false));
    let first: Mutex<Option<Stopped>> = Mutex::new(None);
    let writer = || -> Result<(), Stopped> {
        let mut pattern = Pattern::random().map_err(Stopped::Randomness)?;
        let mut buffer = AlignedBuf::zeroed(usize::try_from(CHUNK_BYTES).unwrap_or(1 << 20));
        while !failed.load(Ordering::Relaxed) {
            let offset = next.fetch_add(CHUNK_BYTES, Ordering::Relaxed);
            if offset >= dev.size_bytes() {
                break;
            }
            let len = CHUNK_BYTES.min(dev.size_bytes() - offset);
            pattern.fill(&mut buffer);
            let bytes = usize::try_from(len).ok().and_then(|len| buffer.get(..len)).unwrap_or(&buffer);
            with_patience(|| direct.write_at(offset, bytes)).map_err(Stopped::Device)?;
            progress.add(len);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| {
                if let Err(reason) = writer() {
                    failed.store(true, Ordering::Relaxed);
                    first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
                }
            });
        }
    });
    first.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// A pass of zeroes, by the device's own command where it has one.
pub(super) fn zeroes(dev: &BlockDev, progress: &DiskProgress) -> Result<(), BlockDevError> {
    in_steps(dev, progress, |offset, len| dev.zero_range(offset, len))
}

/// Discards everything.
pub(super) fn discard(dev: &BlockDev, progress: &DiskProgress) -> Result<(), BlockDevError> {
    in_steps(dev, progress, |offset, len| dev.discard_range(offset, len))
}

fn in_steps(
    dev: &BlockDev,
    progress: &DiskProgress,
    work: impl Fn(u64, u64) -> Result<(), BlockDevError>,
) -> Result<(), BlockDevError> {
    let (mut offset, mut step) = (0, CHUNK_BYTES);
    while offset < dev.size_bytes() {
        let len = step.min(dev.size_bytes() - offset);
        let began = Instant::now();
        with_patience(|| work(offset, len))?;
        progress.add(len);
        offset += len;
        step = next_step(step, began.elapsed());
    }
    Ok(())
}

fn next_step(step: u64, took: Duration) -> u64 {
    match took {
        took if took < QUICK => (step * 2).min(MOST_BYTES),
        took if took > SLOW => (step / 2).max(CHUNK_BYTES),
        _ => step,
    }
}

/// Tries again after a medium error, with growing pauses.
fn with_patience(mut work: impl FnMut() -> Result<(), BlockDevError>) -> Result<(), BlockDevError> {
    let mut pause = Duration::from_millis(500);
    for _again in 1..TRIES {
        match work() {
            Err(error) if error.is_medium_error() => {
                tracing::warn!(error = ferric_types::error::chain(&error), "trying again");
                std::thread::sleep(pause);
                pause *= 2;
            }
            result => return result,
        }
    }
    work()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_grow_on_quick_disks_and_shrink_on_slow_ones() {
        for (step, millis, want) in [
            (CHUNK_BYTES, 1, 2 * CHUNK_BYTES),
            (CHUNK_BYTES, 700, CHUNK_BYTES),
            (CHUNK_BYTES, 60_000, CHUNK_BYTES),
            (8 * CHUNK_BYTES, 1500, 4 * CHUNK_BYTES),
            (MOST_BYTES, 1, MOST_BYTES),
        ] {
            assert_eq!(next_step(step, Duration::from_millis(millis)), want, "{step} in {millis} ms");
        }
    }
}
