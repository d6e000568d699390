//! The disk being written: its two ends are held back until the image is known to be good.
//!
//! The first MiB holds the partition table and whatever boots a disk without one. The last 64 KiB hold the backup GPT
//! when the image is as large as the disk; firmware would rebuild the first table from it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use ferric_sys::aligned::AlignedBuf;
use ferric_sys::block_dev::{BlockDev, BlockDevError, DirectIo};
use ferric_types::Progress;

use super::error::ImageError;
use super::place::{Place, other_sector};
use super::read_back::Sums;

/// How much of the beginning is held back.
pub(super) const HEAD_BYTES: u64 = 1 << 20;
/// How much of the end is held back.
const TAIL_BYTES: u64 = 64 << 10;
/// How much of the end is zeroed at the start, so that no old table or RAID superblock comes back to life.
const WIPE_BYTES: u64 = 1 << 20;
/// Zeroing goes in steps of this size, so that progress shows.
const ZERO_STEP_BYTES: u64 = 256 << 20;

/// What is held back of one end.
#[derive(Debug, Default)]
struct Held {
    start: u64,
    bytes: Vec<u8>,
    touched: bool,
}

impl Held {
    fn end(&self) -> u64 {
        self.start + u64::try_from(self.bytes.len()).unwrap_or_default()
    }

    /// Takes in the part of a write that lies here.
    fn take(&mut self, offset: u64, bytes: &[u8]) {
        let from = usize::try_from(offset - self.start).unwrap_or(usize::MAX);
        if let Some(place) = self.bytes.get_mut(from..).and_then(|rest| rest.get_mut(..bytes.len())) {
            place.copy_from_slice(bytes);
            self.touched = true;
        }
    }
}

/// A disk that an image is being written to.
#[derive(Debug)]
pub(super) struct Target<'a> {
    dev: &'a BlockDev,
    place: Place<'a>,
    direct: DirectIo<'a>,
    zeroes_efficiently: bool,
    head_end: u64,
    tail_start: u64,
    head: Mutex<Held>,
    tail: Mutex<Held>,
    written_bytes: AtomicU64,
    zeroed_bytes: AtomicU64,
    /// What was written, when it is to be read back.
    sums: Option<Sums>,
}

impl<'a> Target<'a> {
    /// Looks at the disk; nothing is written yet.
    pub(super) fn new(dev: &'a BlockDev, place: Place<'a>) -> Result<Self, ImageError> {
        let device_error = |source| ImageError::Device { device: dev.path().to_owned(), source };
        if dev.is_read_only().map_err(device_error)? {
            return Err(ImageError::ReadOnly { device: dev.path().to_owned() });
        }
        let size = dev.size_bytes();
        let head_end = HEAD_BYTES.min(size);
        let tail_start = size.saturating_sub(TAIL_BYTES).max(head_end);
        let held = |start, end: u64| {
            Mutex::new(Held { start, bytes: vec![0; usize::try_from(end - start).unwrap_or_default()], touched: false })
        };
        Ok(Self {
            dev,
            place,
            direct: dev.direct().map_err(device_error)?,
            zeroes_efficiently: dev.zeroes_efficiently(),
            head_end,
            tail_start,
            head: held(0, head_end),
            tail: held(tail_start, size),
            written_bytes: AtomicU64::new(0),
            zeroed_bytes: AtomicU64::new(0),
            sums: None,
        })
    }

    /// Has everything noted that is written, and read back by [`Target::read_back`] and [`Target::finish`].
    pub(super) fn reading_back(mut self) -> Self {
        self.sums = Some(Sums::new(self.dev.size_bytes()));
        self
    }

    /// Whether bytes for `offset` can be written from where they lie.
    pub(super) fn takes_directly(&self, offset: u64, bytes: &[u8]) -> bool {
        let numbers =
            [offset, u64::try_from(bytes.len()).unwrap_or(1), u64::try_from(bytes.as_ptr().addr()).unwrap_or(1)];
        numbers.iter().all(|number| number.is_multiple_of(self.dev.logical_sector().into()))
    }

    pub(super) const fn dev(&self) -> &BlockDev {
        self.dev
    }

    /// Whether zeroing costs the device less than being sent the zeroes.
    pub(super) const fn zeroes_efficiently(&self) -> bool {
        self.zeroes_efficiently
    }

    /// Refuses an image with these first bytes where it has no business.
    pub(super) fn check_head(&self, head: &[u8]) -> Result<(), ImageError> {
        if self.place.is_wrong_for(head) {
            return Err(ImageError::NestedTable { device: self.dev.path().to_owned() });
        }
        let sector = self.dev.logical_sector();
        if let Some(image_sector) = other_sector(head, sector) {
            return Err(ImageError::SectorSize { device: self.dev.path().to_owned(), image_sector, sector });
        }
        if let Place::Judged(judge) = self.place {
            judge(head).map_err(ImageError::Place)?;
        }
        Ok(())
    }

    /// Bytes written and bytes zeroed so far.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.written_bytes.load(Ordering::Relaxed), self.zeroed_bytes.load(Ordering::Relaxed))
    }

    /// Makes the place for the image and zeroes both ends of it. From here on a disk has no partition table.
    pub(super) fn begin(&self) -> Result<(), ImageError> {
        if let Place::Partition(make) = self.place {
            make().map_err(ImageError::Place)?;
        }
        self.clear()
    }

    fn clear(&self) -> Result<(), ImageError> {
        let size = self.dev.size_bytes();
        self.device(|dev| dev.zero_range(0, self.head_end))?;
        let wipe_from = size.saturating_sub(WIPE_BYTES).max(self.head_end);
        self.device(|dev| dev.zero_range(wipe_from, size - wipe_from))?;
        self.device(BlockDev::flush)
    }

    /// Writes bytes of the image; those of the two ends are kept for [`Target::finish`]. Any thread may call it.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), ImageError> {
        let (len_bytes, size_bytes) = (u64::try_from(bytes.len()).unwrap_or(u64::MAX), self.dev.size_bytes());
        if offset.checked_add(len_bytes).is_none_or(|end| end > size_bytes) {
            let path = self.dev.path().to_owned();
            return self.device(|_| Err(BlockDevError::OutOfRange { path, offset, len_bytes, size_bytes }));
        }
        let (head, offset, rest) = split(offset, bytes, self.head_end);
        if !head.is_empty() {
            lock(&self.head).take(offset - u64::try_from(head.len()).unwrap_or_default(), head);
        }
        let (middle, offset, tail) = split(offset, rest, self.tail_start);
        if !tail.is_empty() {
            lock(&self.tail).take(offset, tail);
        }
        if middle.is_empty() {
            return Ok(());
        }
        let len_bytes = u64::try_from(middle.len()).unwrap_or_default();
        let offset = offset - len_bytes;
        if let Some(sums) = &self.sums {
            sums.add(offset, middle);
        }
        if self.zeroes_efficiently && is_zero(middle) {
            self.device(|dev| dev.zero_range(offset, len_bytes))?;
            self.zeroed_bytes.fetch_add(len_bytes, Ordering::Relaxed);
            return Ok(());
        }
        self.device(|_| self.direct.write_at(offset, middle))?;
        self.written_bytes.fetch_add(len_bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Makes a part of the image zero. What lies in the two ends is zero already.
    pub(super) fn zero(&self, offset: u64, len_bytes: u64, mut done: impl FnMut(u64)) -> Result<(), ImageError> {
        let end = (offset + len_bytes).min(self.tail_start);
        let mut from = offset.max(self.head_end);
        while from < end {
            let step = (end - from).min(ZERO_STEP_BYTES);
            self.device(|dev| dev.zero_range(from, step))?;
            self.zeroed_bytes.fetch_add(step, Ordering::Relaxed);
            done(step);
            from += step;
        }
        Ok(())
    }

    /// Puts everything but the two ends on the medium.
    pub(super) fn flush(&self) -> Result<(), ImageError> {
        self.device(BlockDev::flush)
    }

    /// Reads everything but the two ends back, from the medium, when that was asked for. `image_bytes` is the size of the
    /// disk in the image. To be called after [`Target::flush`].
    pub(super) fn read_back(&self, image_bytes: u64, progress: &Progress) -> Result<(), ImageError> {
        let Some(sums) = &self.sums else { return Ok(()) };
        let end = image_bytes.next_multiple_of(self.dev.logical_sector().into()).min(self.tail_start);
        progress.phase("read back", Some(end.saturating_sub(self.head_end)));
        let read = |offset, place: &mut [u8]| self.device(|_| self.direct.read_at(offset, place));
        match sums.find_difference(self.head_end, end, progress, &read)? {
            Some((from, to)) => Err(self.differs(from, to)),
            None => Ok(()),
        }
    }

    fn differs(&self, from: u64, to: u64) -> ImageError {
        ImageError::ReadBack { device: self.dev.path().to_owned(), from, to }
    }

    /// Writes the two ends, the head last of all. To be called when the image is known to be good and flushed.
    /// When it fails the head is zeroed again.
    pub(super) fn finish(&self) -> Result<(), ImageError> {
        let (head, tail) = (lock(&self.head), lock(&self.tail));
        let written = self.check_head(&head.bytes).and_then(|()| self.write_ends(&head, &tail));
        let written = written.and_then(|()| [&*tail, &*head].into_iter().try_for_each(|end| self.read_end_back(end)));
        if written.is_err() {
            // The first error is the one to report; if the disk is gone there is nothing to zero.
            let _cleared = self.clear();
        }
        written
    }

    fn write_ends(&self, head: &Held, tail: &Held) -> Result<(), ImageError> {
        if tail.touched {
            self.device(|dev| dev.write_at(tail.start, &tail.bytes))?;
            self.device(BlockDev::flush)?;
        }
        self.device(|dev| dev.write_at(head.start, &head.bytes))?;
        let held_bytes = head.end() - head.start + if tail.touched { tail.end() - tail.start } else { 0 };
        self.written_bytes.fetch_add(held_bytes, Ordering::Relaxed);
        self.device(BlockDev::flush)
    }

    fn read_end_back(&self, held: &Held) -> Result<(), ImageError> {
        if self.sums.is_none() || !held.touched {
            return Ok(());
        }
        let mut memory = AlignedBuf::zeroed(held.bytes.len());
        let place = memory.get_mut(..held.bytes.len()).unwrap_or_default();
        self.device(|_| self.direct.read_at(held.start, place))?;
        if *place == *held.bytes { Ok(()) } else { Err(self.differs(held.start, held.end().saturating_sub(1))) }
    }

    fn device<T>(&self, action: impl FnOnce(&BlockDev) -> Result<T, BlockDevError>) -> Result<T, ImageError> {
        action(self.dev).map_err(|source| ImageError::Device { device: self.dev.path().to_owned(), source })
    }
}

fn lock(held: &Mutex<Held>) -> std::sync::MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes before `border`, the offset where the rest begins, and the rest.
fn split(offset: u64, bytes: &[u8], border: u64) -> (&[u8], u64, &[u8]) {
    let before = usize::try_from(border.saturating_sub(offset)).unwrap_or(usize::MAX).min(bytes.len());
    let (before, rest) = bytes.split_at_checked(before).unwrap_or((bytes, &[]));
    (before, offset + u64::try_from(before.len()).unwrap_or_default(), rest)
}

/// Whether all bytes are zero; quick to say no.
pub(super) fn is_zero(bytes: &[u8]) -> bool {
    let (blocks, rest) = bytes.as_chunks::<64>();
    let zero = |block: &[u8; 64]| {
        let (words, _) = block.as_chunks::<8>();
        words.iter().fold(0, |all, word| all | u64::from_ne_bytes(*word)) == 0
    };
    blocks.iter().all(zero) && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_sys::testing::disk::{OLD_DATA, TestDisk};

    const MIB: u64 = 1 << 20;

    #[test]
    fn one_byte_that_is_not_zero_is_found_anywhere() {
        for len in [1, 63, 64, 65, 4096, 5000] {
            let mut bytes = vec![0; len];
            assert!(is_zero(&bytes), "{len}");
            for at in [0, len / 2, len - 1] {
                bytes[at] = 1;
                assert!(!is_zero(&bytes), "{at} of {len}");
                bytes[at] = 0;
            }
        }
        assert!(is_zero(&[]));
    }

    #[test]
    fn both_ends_stay_zero_until_the_end() {
        let disk = TestDisk::used(8 * MIB).unwrap();
        let dev = disk.open().unwrap();
        let target = Target::new(&dev, Place::Disk).unwrap();
        assert_eq!(disk.bytes(0, 4).unwrap(), [OLD_DATA; 4]);
        target.begin().unwrap();
        // One write over everything, and one that crosses the border of the head.
        target.write(0, &vec![1; 8 << 20]).unwrap();
        target.write(MIB - 512, &[2; 1024]).unwrap();
        target.flush().unwrap();
        let before = disk.bytes(0, 8 << 20).unwrap();
        assert!(is_zero(&before[..1 << 20]) && is_zero(&before[(8 << 20) - (64 << 10)..]));
        assert!(before[1 << 20..][..512].iter().all(|byte| *byte == 2));
        assert!(before[(1 << 20) + 512..(8 << 20) - (64 << 10)].iter().all(|byte| *byte == 1));
        target.finish().unwrap();
        let mut want = vec![1; 8 << 20];
        want[(1 << 20) - 512..][..1024].fill(2);
        assert!(disk.bytes(0, 8 << 20).unwrap() == want);
    }

    #[test]
    fn an_untouched_end_is_wiped_and_stays_so() {
        let disk = TestDisk::used(8 * MIB).unwrap();
        let dev = disk.open().unwrap();
        let target = Target::new(&dev, Place::Disk).unwrap();
        target.begin().unwrap();
        target.write(0, &vec![1; 2 << 20]).unwrap();
        target.zero(2 * MIB, MIB, |_| ()).unwrap();
        target.finish().unwrap();
        let bytes = disk.bytes(0, 8 << 20).unwrap();
        assert!(bytes[..2 << 20].iter().all(|byte| *byte == 1));
        assert!(is_zero(&bytes[2 << 20..3 << 20]) && is_zero(&bytes[7 << 20..]));
        assert!(bytes[3 << 20..7 << 20].iter().all(|byte| *byte == OLD_DATA));
        assert_eq!(target.counts(), (2 * MIB, MIB));
    }

    #[test]
    fn a_disk_smaller_than_its_ends_works() {
        for size in [4096, MIB, MIB + 4096] {
            let disk = TestDisk::used(size).unwrap();
            let dev = disk.open().unwrap();
            let target = Target::new(&dev, Place::Disk).unwrap();
            target.begin().unwrap();
            let len = usize::try_from(size).unwrap();
            assert!(is_zero(&disk.bytes(0, len).unwrap()), "{size}");
            target.write(0, &vec![3; len]).unwrap();
            assert!(is_zero(&disk.bytes(0, len).unwrap()), "{size}");
            target.finish().unwrap();
            assert!(disk.bytes(0, len).unwrap().iter().all(|byte| *byte == 3), "{size}");
        }
    }
}
