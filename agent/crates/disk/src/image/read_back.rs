//! Reading an image back from the disk to see whether it is there.
//!
//! Nothing of the image is kept for that but sums: each 512 bytes that are not zero have a keyed hash, which takes in their
//! place, and the hashes of a stretch of the disk are added up. So it does not matter in which order they were written, and
//! what is not zero where nothing was written is noticed as well.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use ferric_sys::aligned::AlignedBuf;
use ferric_types::Progress;

use super::error::ImageError;
use super::target::is_zero;

/// What has a hash of its own. All writes begin at multiples of it, and all but that of an image's end end there.
const UNIT_BYTES: usize = 512;
/// A sum is at least for so much of the disk, and there are at most so many of them.
const STRETCH_BYTES: u64 = 1 << 20;
const STRETCHES: u64 = 4096;
/// How much is read at a time, and by how many threads.
const STEP_BYTES: usize = 1 << 20;
const READERS: usize = 4;

/// Fills memory from a place of the disk; called by several threads.
type Reading<'r> = dyn Fn(u64, &mut [u8]) -> Result<(), ImageError> + Sync + 'r;

/// Sums of what was written to a disk.
#[derive(Debug)]
pub(super) struct Sums {
    keys: RandomState,
    stretch_bytes: u64,
    sums: Vec<AtomicU64>,
}

impl Sums {
    pub(super) fn new(disk_bytes: u64) -> Self {
        let stretch_bytes = disk_bytes.div_ceil(STRETCHES).next_multiple_of(STRETCH_BYTES).max(STRETCH_BYTES);
        Self { keys: RandomState::new(), stretch_bytes, sums: Self::zeroes(disk_bytes.div_ceil(stretch_bytes)) }
    }

    fn zeroes(count: u64) -> Vec<AtomicU64> {
        (0..count).map(|_| AtomicU64::new(0)).collect()
    }

    /// Takes in bytes that are at `offset` of the disk; any thread may call it.
    pub(super) fn add(&self, offset: u64, bytes: &[u8]) {
        self.add_to(&self.sums, offset, bytes);
    }

    fn add_to(&self, sums: &[AtomicU64], mut offset: u64, bytes: &[u8]) {
        for unit in bytes.chunks(UNIT_BYTES) {
            if !is_zero(unit) {
                let mut whole = [0; UNIT_BYTES];
                whole.iter_mut().zip(unit).for_each(|(to, from)| *to = *from);
                let stretch = usize::try_from(offset / self.stretch_bytes).unwrap_or(usize::MAX);
                if let Some(sum) = sums.get(stretch) {
                    sum.fetch_add(self.keys.hash_one((offset, whole)), Ordering::Relaxed);
                }
            }
            offset += u64::try_from(UNIT_BYTES).unwrap_or_default();
        }
    }

    /// Reads the disk from `begin` to `end`, where everything that was taken in lies, and gives the first and the last
    /// byte of the first stretch that is not what was written.
    pub(super) fn find_difference(
        &self,
        begin: u64,
        end: u64,
        progress: &Progress,
        read: &Reading<'_>,
    ) -> Result<Option<(u64, u64)>, ImageError> {
        let found = Self::zeroes(u64::try_from(self.sums.len()).unwrap_or_default());
        let next = AtomicU64::new(begin);
        let step = u64::try_from(STEP_BYTES).unwrap_or_default();
        let reader = || {
            let mut memory = AlignedBuf::zeroed(STEP_BYTES);
            loop {
                let offset = next.fetch_add(step, Ordering::Relaxed);
                let len = usize::try_from(end.saturating_sub(offset).min(step)).unwrap_or_default();
                let Some(place) = memory.get_mut(..len).filter(|place| !place.is_empty()) else {
                    return Ok::<(), ImageError>(());
                };
                // The others stop as well.
                read(offset, place).inspect_err(|_| next.store(end, Ordering::Relaxed))?;
                self.add_to(&found, offset, place);
                progress.add(u64::try_from(len).unwrap_or_default());
            }
        };
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(reader)).collect();
            // A thread that panicked has the panic go on in this one.
            readers
                .into_iter()
                .try_for_each(|reader| reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })?;
        let differs = |(found, written): (&AtomicU64, &AtomicU64)| {
            found.load(Ordering::Relaxed) != written.load(Ordering::Relaxed)
        };
        let stretch = found.iter().zip(&self.sums).position(differs);
        Ok(stretch.map(|stretch| {
            let from = u64::try_from(stretch).unwrap_or_default() * self.stretch_bytes;
            (from.max(begin), (from + self.stretch_bytes).min(end) - 1)
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const MIB: usize = 1 << 20;

    fn at(index: usize) -> u64 {
        u64::try_from(index).unwrap()
    }

    /// What is read back of a disk that has `bytes`.
    fn difference(sums: &Sums, bytes: &[u8], begin: u64) -> Option<(u64, u64)> {
        let disk = Mutex::new(bytes);
        let read = |offset: u64, place: &mut [u8]| {
            let offset = usize::try_from(offset).unwrap();
            place.copy_from_slice(&disk.lock().unwrap()[offset..offset + place.len()]);
            Ok(())
        };
        sums.find_difference(begin, at(bytes.len()), &Progress::new(), &read).unwrap()
    }

    #[test]
    fn one_wrong_bit_is_found_and_the_order_of_writing_is_not_told() {
        let mut bytes: Vec<u8> = (0..4 * MIB).map(|index| u8::try_from(index / 700 % 256).unwrap()).collect();
        bytes[2 * MIB..3 * MIB].fill(0);
        let sums = Sums::new(at(bytes.len()));
        for (from, to) in [(3 * MIB, 4 * MIB), (MIB + 512, 3 * MIB), (MIB, MIB + 512)] {
            sums.add(at(from), &bytes[from..to]);
        }
        assert_eq!(difference(&sums, &bytes, at(MIB)), None);
        let stretch = |number: usize| Some((at(number * MIB), at((number + 1) * MIB) - 1));
        for (wrong, want) in [(MIB, 1), (2 * MIB - 1, 1), (2 * MIB + 77, 2), (4 * MIB - 1, 3)] {
            bytes[wrong] ^= 0x10;
            assert_eq!(difference(&sums, &bytes, at(MIB)), stretch(want), "{wrong}");
            bytes[wrong] ^= 0x10;
        }
        // Sectors that changed places.
        let (one, other) = bytes[MIB..2 * MIB].split_at_mut(MIB / 2);
        one[..512].swap_with_slice(&mut other[..512]);
        assert_eq!(difference(&sums, &bytes, at(MIB)), stretch(1));
    }

    #[test]
    fn a_short_end_counts_as_filled_up_with_zeroes() {
        let mut bytes = vec![0; 1024];
        bytes[512..600].fill(7);
        let sums = Sums::new(1024);
        sums.add(512, &bytes[512..600]);
        assert_eq!(difference(&sums, &bytes, 0), None);
        bytes[600] = 1;
        assert_eq!(difference(&sums, &bytes, 0), Some((0, 1023)));
    }

    #[test]
    fn a_disk_that_cannot_be_read_is_an_error() {
        let sums = Sums::new(8 << 20);
        let device = std::path::PathBuf::from("/dev/x");
        let read = |offset: u64, _: &mut [u8]| match offset {
            0 => Err(ImageError::ReadOnly { device: device.clone() }),
            _ => Ok(()),
        };
        assert!(sums.find_difference(0, 8 << 20, &Progress::new(), &read).is_err());
    }

    #[test]
    fn the_memory_of_the_largest_disk_is_small() {
        for disk_bytes in [512, 1 << 20, 1 << 40, 1 << 60] {
            let sums = Sums::new(disk_bytes);
            assert!(sums.sums.len() <= 4096, "{disk_bytes}");
            assert!(at(sums.sums.len()) * sums.stretch_bytes >= disk_bytes, "{disk_bytes}");
        }
    }
}
