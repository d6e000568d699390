//! Memory aligned for direct I/O.
#![expect(unsafe_code, reason = "aligned allocation")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Alignment that satisfies direct I/O on every device: one page, at least the largest logical sector in use.
pub const ALIGNMENT: usize = 4096;

/// A byte buffer of fixed length that begins at a multiple of [`ALIGNMENT`].
pub struct AlignedBuf {
    start: NonNull<u8>,
    layout: Layout,
}

impl AlignedBuf {
    /// A zeroed buffer of `len` bytes, rounded up to a multiple of [`ALIGNMENT`] (and to at least one).
    pub fn zeroed(len: usize) -> Self {
        let len = len.max(1).next_multiple_of(ALIGNMENT);
        let Ok(layout) = Layout::from_size_align(len, ALIGNMENT) else {
            handle_alloc_error(Layout::new::<u8>());
        };
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start, layout }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` is valid for `layout.size()` initialised bytes and owned by self.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and self is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout, freed only here.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

// SAFETY: the buffer owns its memory as Box<[u8]> would; nothing else points to it.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access only reads.
unsafe impl Sync for AlignedBuf {}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuf").field("len", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_zeroed_and_writable() {
        for len in [0, 1, 4096, 5000, 1 << 20] {
            let mut buf = AlignedBuf::zeroed(len);
            assert_eq!(buf.as_ptr().addr() % ALIGNMENT, 0, "{len}");
            assert!(buf.len() >= len && buf.len().is_multiple_of(ALIGNMENT) && !buf.is_empty(), "{len}");
            assert!(buf.iter().all(|byte| *byte == 0), "{len}");
            buf.fill(7);
            assert_eq!(buf.last(), Some(&7), "{len}");
        }
    }
}
