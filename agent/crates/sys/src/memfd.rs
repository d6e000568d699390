//! Memory that outlives a process: anonymous files handed down from PID 1 to its worker.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// An anonymous file of `size_bytes` zero bytes.
///
/// # Errors
/// The kernel has no memory or no file descriptors left.
pub fn create(name: &str, size_bytes: u64) -> io::Result<File> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC)?;
    ftruncate(&fd, size_bytes)?;
    Ok(File::from(fd))
}

/// Bytes before the text: how many were ever written (8), the rest reserved.
const HEADER: usize = 64;

/// A ring of bytes in shared memory, written by several processes and threads without locks.
///
/// Two writers never get the same place. A reader may see a line that is half old and half new when it reads in the
/// very moment of a write; this is a log, and such a line is worth more than a lock that a killed process holds.
#[derive(Debug)]
pub struct SharedRing {
    base: *mut u8,
    capacity: usize,
}

// SAFETY: the memory behind `base` is mapped until drop and only touched through atomics.
#[expect(unsafe_code, reason = "shared memory is reached through a raw pointer")]
unsafe impl Send for SharedRing {}
// SAFETY: as for `Send`.
#[expect(unsafe_code, reason = "shared memory is reached through a raw pointer")]
unsafe impl Sync for SharedRing {}

impl SharedRing {
    /// Maps the ring of a file made by [`create`]; without a file, memory of this process and its forks.
    ///
    /// # Errors
    /// The size is too small for a ring, or the memory cannot be mapped.
    #[expect(unsafe_code, reason = "mmap")]
    pub fn map(file: Option<&OwnedFd>, size_bytes: usize) -> io::Result<Self> {
        use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
        let capacity = size_bytes.checked_sub(HEADER).filter(|capacity| *capacity > 0);
        let capacity = capacity.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "ring too small"))?;
        if let Some(file) = file {
            let actual = rustix::fs::fstat(file)?.st_size;
            if u64::try_from(actual).ok() < u64::try_from(size_bytes).ok() {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "file smaller than the ring"));
            }
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no existing memory. It stays valid for
        // `size_bytes` bytes: nobody shrinks the file, which only PID 1 and its worker hold.
        let base = unsafe {
            match file {
                Some(file) => mmap(std::ptr::null_mut(), size_bytes, prot, MapFlags::SHARED, file.as_fd(), 0)?,
                None => mmap_anonymous(std::ptr::null_mut(), size_bytes, prot, MapFlags::SHARED)?,
            }
        };
        Ok(Self { base: base.cast(), capacity })
    }

    #[expect(unsafe_code, reason = "shared memory is reached through a raw pointer")]
    fn written(&self) -> &AtomicU64 {
        // SAFETY: `base` is page-aligned and the header lies within the mapping, which lives as long as `self`.
        unsafe { AtomicU64::from_ptr(self.base.cast()) }
    }

    #[expect(unsafe_code, reason = "shared memory is reached through a raw pointer")]
    fn byte(&self, index: usize) -> &AtomicU8 {
        debug_assert!(index < self.capacity, "callers reduce the index by the capacity");
        // SAFETY: HEADER + index < HEADER + capacity, the mapping's size; the mapping lives as long as `self`.
        unsafe { AtomicU8::from_ptr(self.base.add(HEADER + index % self.capacity)) }
    }

    /// Appends bytes; the oldest fall out. Of more bytes than fit, the last ones stay.
    pub fn append(&self, bytes: &[u8]) {
        let bytes = bytes.get(bytes.len().saturating_sub(self.capacity)..).unwrap_or(bytes);
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let start = self.written().fetch_add(length, Ordering::AcqRel);
        let mut index = self.index(start);
        for byte in bytes {
            self.byte(index).store(*byte, Ordering::Relaxed);
            index = if index + 1 == self.capacity { 0 } else { index + 1 };
        }
    }

    /// The bytes in the ring, oldest first.
    pub fn snapshot(&self) -> Vec<u8> {
        let end = self.written().load(Ordering::Acquire);
        let capacity = u64::try_from(self.capacity).unwrap_or(u64::MAX);
        let length = usize::try_from(end.min(capacity)).unwrap_or(self.capacity);
        let start = self.index(end.saturating_sub(capacity.min(end)));
        (0..length).map(|offset| self.byte((start + offset) % self.capacity).load(Ordering::Relaxed)).collect()
    }

    fn index(&self, position: u64) -> usize {
        let capacity = u64::try_from(self.capacity).unwrap_or(u64::MAX);
        usize::try_from(position % capacity).unwrap_or(0)
    }
}

impl Drop for SharedRing {
    #[expect(unsafe_code, reason = "munmap")]
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `map` with this size and no reference into it outlives `self`.
        let _unmapped = unsafe { rustix::mm::munmap(self.base.cast(), HEADER + self.capacity) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_bytes_stay() {
        let ring = SharedRing::map(None, HEADER + 8).unwrap();
        assert_eq!(ring.snapshot(), b"");
        ring.append(b"abcde");
        assert_eq!(ring.snapshot(), b"abcde");
        ring.append(b"fghij");
        assert_eq!(ring.snapshot(), b"cdefghij");
        ring.append(b"0123456789abc");
        assert_eq!(ring.snapshot(), b"56789abc");
    }

    #[test]
    fn two_mappings_of_one_file_are_one_ring() {
        let file = create("ring", 4096).unwrap();
        let fd = OwnedFd::from(file.try_clone().unwrap());
        let (one, two) = (SharedRing::map(Some(&fd), 4096).unwrap(), SharedRing::map(Some(&fd), 4096).unwrap());
        one.append(b"one ");
        two.append(b"two");
        assert_eq!(one.snapshot(), b"one two");
        assert!(SharedRing::map(Some(&fd), 8192).is_err());
        assert!(SharedRing::map(None, HEADER).is_err());
    }

    #[test]
    fn threads_lose_no_bytes() {
        let ring = SharedRing::map(None, HEADER + 4096).unwrap();
        std::thread::scope(|scope| {
            for byte in [b'a', b'b', b'c', b'd'] {
                let ring = &ring;
                scope.spawn(move || (0..100).for_each(|_| ring.append(&[byte; 7])));
            }
        });
        let text = ring.snapshot();
        assert_eq!(text.len(), 2800);
        for byte in *b"abcd" {
            assert_eq!(text.iter().filter(|b| **b == byte).count(), 700);
        }
    }
}
