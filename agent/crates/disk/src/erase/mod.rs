//! Erasing a whole disk and proving it: overwrite passes, then zeroes, then samples read back from the medium.
//!
//! A pass of zeroes goes through the kernel's "zero out", which uses the device's own WRITE ZEROES (or a discard that
//! is known to read back zeroes) where it has one, and writes zeroes otherwise. Secure erase by the drive's firmware
//! (ATA, NVMe) is not done here.

mod pattern;
mod samples;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use ferric_sys::aligned::AlignedBuf;
use ferric_sys::block_dev::{BlockDev, BlockDevError};
use ferric_types::{ErrorClass, Progress};
use serde::Serialize;

use pattern::Pattern;
use samples::Samples;

/// Bytes of one write.
const CHUNK_BYTES: u64 = 1 << 20;
/// Bytes of one zeroing request, so that progress shows.
const ZERO_BYTES: u64 = 64 << 20;
/// How often a failing request is tried: arrays that still initialise fail for a while (pitfall B2).
const TRIES: u32 = 4;

/// What to do to a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EraseOptions {
    /// Passes of random bytes.
    pub iterations: u32,
    /// Whether a pass of zeroes comes last.
    pub zeroize: bool,
}

impl EraseOptions {
    /// Bytes that erasing a disk of this size handles, for progress.
    pub fn work_bytes(&self, size_bytes: u64) -> u64 {
        size_bytes.saturating_mul(u64::from(self.iterations) + u64::from(self.zeroize))
    }
}

/// Proof of an erasure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EraseVerdict {
    /// Passes of random bytes.
    pub random_passes: u32,
    /// Whether zeroes were written last.
    pub zeroed: bool,
    /// Bytes of the disk.
    pub bytes: u64,
    /// Places that were read back and hold what they should.
    pub samples_checked: usize,
}

/// A disk could not be erased.
#[derive(Debug, thiserror::Error)]
pub enum EraseError {
    /// No pass at all was asked for.
    #[error("erasing {} with 0 passes and no zeroes would change nothing", path.display())]
    Nothing {
        /// Disk.
        path: PathBuf,
    },
    /// Reading or writing failed, also when tried again.
    #[error("erasing {}", path.display())]
    Device {
        /// Disk.
        path: PathBuf,
        /// Reason.
        #[source]
        source: BlockDevError,
    },
    /// No randomness, or no memory for the buffers.
    #[error("preparing to erase {}", path.display())]
    Prepare {
        /// Disk.
        path: PathBuf,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// The disk said that it had written, and has not.
    #[error("{} still holds old data at byte {offset} after it was erased", path.display())]
    NotErased {
        /// Disk.
        path: PathBuf,
        /// First place found.
        offset: u64,
    },
}

impl EraseError {
    /// Error class for the conductor.
    pub const fn class(&self) -> ErrorClass {
        ErrorClass::BlockDeviceErase
    }
}

/// Erases a disk and reads samples back. `progress` counts bytes; the caller has named the phase.
///
/// # Errors
/// Any [`EraseError`]. The disk then holds a mix of old data and new.
pub fn erase_device(dev: &BlockDev, options: EraseOptions, progress: &Progress) -> Result<EraseVerdict, EraseError> {
    let path = || dev.path().to_owned();
    let device = |source| EraseError::Device { path: path(), source };
    let prepare = |source| EraseError::Prepare { path: path(), source };
    if options.work_bytes(1) == 0 {
        return Err(EraseError::Nothing { path: path() });
    }
    let mut samples = Samples::take(dev).map_err(device)?;
    for pass in 1..=options.iterations {
        tracing::info!(device = %dev.path().display(), pass, "overwriting with random bytes");
        let pattern = Pattern::random().map_err(prepare)?;
        overwrite(dev, pattern, progress).map_err(device)?;
        dev.flush().map_err(device)?;
        samples.must_have_changed(dev).map_err(device)?.map_or(Ok(()), |offset| not_erased(dev, offset))?;
        samples = Samples::take(dev).map_err(device)?;
    }
    if options.zeroize {
        tracing::info!(device = %dev.path().display(), "writing zeroes");
        zero(dev, progress).map_err(device)?;
        dev.flush().map_err(device)?;
        samples.must_be_zero(dev).map_err(device)?.map_or(Ok(()), |offset| not_erased(dev, offset))?;
    }
    Ok(EraseVerdict {
        random_passes: options.iterations,
        zeroed: options.zeroize,
        bytes: dev.size_bytes(),
        samples_checked: samples.len(),
    })
}

fn not_erased(dev: &BlockDev, offset: u64) -> Result<(), EraseError> {
    Err(EraseError::NotErased { path: dev.path().to_owned(), offset })
}

fn overwrite(dev: &BlockDev, mut pattern: Pattern, progress: &Progress) -> Result<(), BlockDevError> {
    let mut buffer = AlignedBuf::zeroed(usize::try_from(CHUNK_BYTES).unwrap_or(1 << 20));
    let direct = dev.direct()?;
    let mut offset = 0;
    while offset < dev.size_bytes() {
        let len = CHUNK_BYTES.min(dev.size_bytes() - offset);
        pattern.fill(&mut buffer);
        let bytes = usize::try_from(len).ok().and_then(|len| buffer.get(..len)).unwrap_or(&buffer);
        with_patience(|| direct.write_at(offset, bytes))?;
        progress.add(len);
        offset += len;
    }
    Ok(())
}

fn zero(dev: &BlockDev, progress: &Progress) -> Result<(), BlockDevError> {
    let mut offset = 0;
    while offset < dev.size_bytes() {
        let len = ZERO_BYTES.min(dev.size_bytes() - offset);
        with_patience(|| dev.zero_range(offset, len))?;
        progress.add(len);
        offset += len;
    }
    Ok(())
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
    use ferric_sys::block_dev::Access;
    use ferric_sys::testing::disk::TestDisk;

    const SIZE: u64 = (5 << 20) + 512;

    fn erase(options: EraseOptions) -> (TestDisk, EraseVerdict) {
        let disk = TestDisk::used(SIZE).unwrap();
        let dev = BlockDev::open(disk.path(), Access::Exclusive).unwrap();
        let progress = Progress::new();
        progress.phase("erase", Some(options.work_bytes(SIZE)));
        let verdict = erase_device(&dev, options, &progress).unwrap();
        assert_eq!(progress.report().unwrap().done_bytes, options.work_bytes(SIZE));
        (disk, verdict)
    }

    #[test]
    fn the_last_pass_leaves_zeroes_everywhere() {
        for iterations in [0, 2] {
            let (disk, verdict) = erase(EraseOptions { iterations, zeroize: true });
            assert!(std::fs::read(disk.path()).unwrap().iter().all(|byte| *byte == 0), "{iterations}");
            assert!(verdict.samples_checked > 3 && verdict.zeroed, "{verdict:?}");
        }
    }

    #[test]
    fn random_passes_leave_nothing_of_the_old_data() {
        let (disk, _) = erase(EraseOptions { iterations: 1, zeroize: false });
        let bytes = std::fs::read(disk.path()).unwrap();
        assert_eq!(u64::try_from(bytes.len()).unwrap(), SIZE);
        for (index, sector) in bytes.chunks(512).enumerate() {
            assert!(sector.iter().any(|byte| *byte != 0xa5), "sector {index}");
        }
        // Random bytes do not repeat from one MiB to the next.
        assert!(bytes[..1 << 20] != bytes[1 << 20..2 << 20]);
    }

    #[test]
    fn nothing_to_do_is_an_error() {
        let disk = TestDisk::used(4096).unwrap();
        let dev = BlockDev::open(disk.path(), Access::Exclusive).unwrap();
        let error = erase_device(&dev, EraseOptions { iterations: 0, zeroize: false }, &Progress::new()).unwrap_err();
        assert!(matches!(error, EraseError::Nothing { .. }), "{error}");
    }

    #[test]
    fn a_disk_that_only_pretends_is_found_out() {
        let disk = TestDisk::used(SIZE).unwrap();
        let dev = BlockDev::open(disk.path(), Access::Exclusive).unwrap();
        let samples = Samples::take(&dev).unwrap();
        assert_eq!(samples.must_have_changed(&dev).unwrap(), Some(0));
        assert_eq!(samples.must_be_zero(&dev).unwrap(), Some(0));
        dev.zero_range(0, SIZE - 512).unwrap();
        assert_eq!(samples.must_be_zero(&dev).unwrap(), Some(SIZE - 512));
    }
}
