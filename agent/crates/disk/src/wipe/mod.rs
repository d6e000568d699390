//! Signatures of file systems, volume managers and partition tables: finding them, and wiping them all.
//!
//! The table of them is in `magics`; where to look besides the disk itself, in [`layers`](layers()): inside of partitions,
//! arrays and volumes, also those of former tables. What is inside is wiped before what is around it, so that nothing comes
//! back when the power fails in between (pitfalls B3, B4, B6).

use std::path::{Path, PathBuf};
use std::time::Duration;

use ferric_sys::Root;
use ferric_sys::aligned::AlignedBuf;
use ferric_sys::block_dev::{Access, BlockDev, BlockDevError, DirectIo};
use ferric_types::ErrorClass;
use ferric_types::error::chain;
use rustix::io::Errno;

use crate::holders;

mod layers;
mod magics;

pub use layers::{Layer, layers};
use magics::{FORMATS, LONGEST};

/// A signature that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// Its name as `blkid` and `lsblk` give it.
    pub name: &'static str,
    /// Where it is, bytes from the start.
    pub offset: u64,
}

/// A device could not be wiped.
#[derive(Debug, thiserror::Error)]
pub enum WipeError {
    /// Someone holds it: a mounted file system, an md array, a device mapper.
    #[error(
        "Destroying metadata failed on device {}: it is still in use after {} s{}", path.display(), waited.as_secs(),
        by(holders)
    )]
    Busy {
        /// Device.
        path: PathBuf,
        /// How long it was tried.
        waited: Duration,
        /// Who is known to hold it.
        holders: Vec<String>,
    },
    /// It could not be opened, read or written.
    #[error("wiping {}", path.display())]
    Device {
        /// Device.
        path: PathBuf,
        /// Reason.
        #[source]
        source: BlockDevError,
    },
    /// A signature is still there after it was written over.
    #[error("{} still shows a {name} signature at byte {offset} after it was wiped", path.display())]
    Remains {
        /// Device.
        path: PathBuf,
        /// Signature.
        name: &'static str,
        /// Its place.
        offset: u64,
    },
}

fn by(holders: &[String]) -> String {
    if holders.is_empty() { String::new() } else { format!(", by {}", holders.join(", ")) }
}

impl WipeError {
    /// Error class for the conductor.
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::Busy { .. } => ErrorClass::Deployment,
            Self::Device { .. } | Self::Remains { .. } => ErrorClass::BlockDeviceErase,
        }
    }
}

/// Bytes wiped at each end whatever is found: every signature but the far copies lies in here, and both copies of a GPT for
/// sectors of any size.
const ENDS_BYTES: u64 = 4 << 20;
/// The same for what is inside.
const LAYER_ENDS_BYTES: u64 = 256 << 10;
/// How long a device may stay in use by someone who is about to let go (udev-like probes, a stopping array).
const BUSY_TRIES: u32 = 20;
/// What is read in one piece: most signatures are in here.
const HEAD_BYTES: u64 = 0x1_2000;
/// Bytes of one write.
const CHUNK_BYTES: usize = 1 << 20;
/// Where a write of that size fails, each piece of this size is written alone.
const PIECE_BYTES: usize = 4096;
/// A disk on which that many pieces fail is dead, and may take half a minute for each.
const MAX_BAD_PIECES: usize = 8;
/// Failures in different places after which the rest of a device is not tried.
const MAX_FAILURES: usize = 3;
/// How often a failing write is tried: arrays that still initialise, and adapters that reset, fail for a while (pitfall B2).
const TRIES: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// All signatures on a device.
///
/// # Errors
/// The device cannot be read.
pub fn signatures(dev: &BlockDev) -> Result<Vec<Signature>, BlockDevError> {
    let size = dev.size_bytes();
    let mut head = vec![0_u8; usize::try_from(HEAD_BYTES.min(size)).unwrap_or(0)];
    dev.read_at(0, &mut head)?;
    let mut found: Vec<Signature> = Vec::new();
    for format in FORMATS {
        for offset in format.places.iter().filter_map(|place| place.of(size)) {
            let mut buffer = [0_u8; LONGEST];
            let len = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX).min(LONGEST);
            let here = usize::try_from(offset).ok().and_then(|at| head.get(at..at + len));
            match (here, buffer.get_mut(..len)) {
                (Some(here), Some(buffer)) => buffer.copy_from_slice(here),
                (None, Some(buffer)) if len > 0 => dev.read_at(offset, buffer)?,
                _ => continue,
            }
            let is_known = found.iter().any(|known| known.name == format.name && known.offset == offset);
            if !is_known && format.magics.iter().any(|magic| buffer.starts_with(magic)) {
                found.push(Signature { name: format.name, offset });
            }
        }
    }
    Ok(found)
}

/// Opens a device for oneself, waiting for those who are about to let go.
///
/// # Errors
/// [`WipeError::Busy`], [`WipeError::Device`].
pub fn open_exclusive(path: &Path, pause: Duration) -> Result<BlockDev, WipeError> {
    let mut tries = 0;
    loop {
        tries += 1;
        match BlockDev::open(path, Access::Exclusive) {
            Ok(dev) => return Ok(dev),
            Err(error) if error.is_busy() && tries < BUSY_TRIES => std::thread::sleep(pause),
            Err(error) if error.is_busy() => {
                let holders = holders::of_node(&Root::host(), path);
                return Err(WipeError::Busy { path: path.to_owned(), waited: pause * BUSY_TRIES, holders });
            }
            Err(source) => return Err(WipeError::Device { path: path.to_owned(), source }),
        }
    }
}

/// Wipes both ends of a device and every far signature, and before that the same of everything inside of it; flushes, and
/// makes sure that no signature is left.
///
/// # Errors
/// [`WipeError::Device`], [`WipeError::Remains`].
pub fn destroy_metadata(dev: &BlockDev) -> Result<(), WipeError> {
    let failed = |source| WipeError::Device { path: dev.path().to_owned(), source };
    let layers = layers(dev);
    let eraser = Eraser { dev, direct: dev.direct().map_err(failed)?, zeroes: AlignedBuf::zeroed(CHUNK_BYTES) };
    let inner = layers.iter().map(|layer| (layer.start_bytes, layer.size_bytes, LAYER_ENDS_BYTES));
    let ranges: Vec<(u64, u64, u64)> = inner.rev().chain([(0, dev.size_bytes(), ENDS_BYTES)]).collect();
    // A bad sector in one place does not keep the others from being wiped.
    let failures = ranges.iter().filter_map(|(start, size, ends)| eraser.wipe(*start, *size, *ends).err());
    let failure = failures.take(MAX_FAILURES).reduce(|first, _| first);
    dev.flush().map_err(failed)?;
    if let Some(failure) = failure {
        return Err(failed(failure));
    }
    for (start, size, _) in ranges {
        let part = dev.part(dev.path(), start, size).map_err(failed)?;
        if let Some(Signature { name, offset }) = signatures(&part).map_err(failed)?.into_iter().next() {
            return Err(WipeError::Remains { path: dev.path().to_owned(), name, offset: start + offset });
        }
    }
    Ok(())
}

/// Zeroes by plain writes: a device that only pretends to zero ranges must not keep a signature.
struct Eraser<'a> {
    dev: &'a BlockDev,
    direct: DirectIo<'a>,
    zeroes: AlignedBuf,
}

impl Eraser<'_> {
    /// Wipes all signatures of a range of the device, and `ends` bytes at both of its ends.
    fn wipe(&self, start: u64, size: u64, ends: u64) -> Result<(), BlockDevError> {
        let part = self.dev.part(self.dev.path(), start, size)?;
        let sector = u64::from(self.dev.logical_sector());
        for Signature { name, offset } in signatures(&part)? {
            tracing::info!(device = %self.dev.path().display(), signature = name, offset = start + offset, "wiping");
            // Of one that crosses a sector's end the first part is enough.
            let from = (start + offset) / sector * sector;
            self.zero(from, sector.min(self.dev.size_bytes() - from))?;
        }
        let head = ends.min(size);
        self.zero(start, head)?;
        let tail = size.saturating_sub(ends).max(head);
        self.zero(start + tail, size - tail)
    }

    fn zero(&self, offset: u64, len: u64) -> Result<(), BlockDevError> {
        let mut done = 0;
        while done < len {
            let step = usize::try_from(len - done).unwrap_or(usize::MAX).min(CHUNK_BYTES);
            let write = |at: u64, bytes: usize| self.direct.write_at(at, self.zeroes.get(..bytes).unwrap_or_default());
            patiently(FIRST_PAUSE, || write(offset + done, step))
                .or_else(|error| piecewise(error, offset + done, step, write))?;
            done += u64::try_from(step).unwrap_or(u64::MAX);
        }
        Ok(())
    }
}

/// Writes what can be written of a range that failed as a whole. The error is that of the first piece, so that it tells the
/// place; of a device that is gone, the one that is known.
fn piecewise(
    whole: BlockDevError,
    offset: u64,
    len: usize,
    write: impl Fn(u64, usize) -> Result<(), BlockDevError>,
) -> Result<(), BlockDevError> {
    if !is_passing(&whole) {
        return Err(whole);
    }
    let pieces = (0..len).step_by(PIECE_BYTES).map(|from| (from, PIECE_BYTES.min(len - from)));
    let failures = pieces
        .filter_map(|(from, bytes)| write(offset + u64::try_from(from).unwrap_or(u64::MAX), bytes).err())
        .take(MAX_BAD_PIECES);
    // Goes through all of them.
    failures.reduce(|first, _| first).map_or(Ok(()), Err)
}

/// Errors after which the block layer may well do the same request (`block/blk-core.c`, `blk_errors`).
fn is_passing(error: &BlockDevError) -> bool {
    let passing = [
        Errno::IO,
        Errno::NOSPC,
        Errno::TIMEDOUT,
        Errno::NOLINK,
        Errno::REMOTEIO,
        Errno::NODATA,
        Errno::NOMEM,
        Errno::AGAIN,
    ];
    let errno = error.io().and_then(std::io::Error::raw_os_error);
    passing.iter().any(|passing| errno == Some(passing.raw_os_error()))
}

/// Tries again after an error that may pass, with growing pauses.
fn patiently(first: Duration, mut work: impl FnMut() -> Result<(), BlockDevError>) -> Result<(), BlockDevError> {
    let mut pause = first;
    for _again in 1..TRIES {
        match work() {
            Err(error) if is_passing(&error) => {
                tracing::warn!(error = chain(&error), "trying again");
                std::thread::sleep(pause);
                pause *= 2;
            }
            result => return result,
        }
    }
    work()
}

#[cfg(test)]
mod tests;
