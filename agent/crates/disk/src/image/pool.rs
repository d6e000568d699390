//! Memory of the pipeline: blocks of one size that go from the thread that downloads to those that hash and write without
//! being copied, and come back when the last of them is done.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use ferric_sys::aligned::AlignedBuf;

/// Size of a block.
pub(super) const BLOCK_BYTES: usize = 1 << 20;

/// A limited number of blocks, made as they are needed.
#[derive(Debug)]
pub(super) struct Pool {
    free: Receiver<AlignedBuf>,
    home: Sender<AlignedBuf>,
    made: usize,
    limit: Arc<AtomicUsize>,
}

impl Pool {
    pub(super) fn new(blocks: usize) -> Self {
        let (home, free) = channel();
        Self { free, home, made: 0, limit: Arc::new(AtomicUsize::new(blocks)) }
    }

    /// How many blocks there may be, which another thread may raise.
    pub(super) fn limit(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.limit)
    }

    /// A block with any content; waits until one is free.
    pub(super) fn take(&mut self) -> Block {
        let memory = match self.free.try_recv() {
            Ok(memory) => Some(memory),
            Err(_) if self.made < self.limit.load(Ordering::Relaxed) => {
                self.made += 1;
                None
            }
            // The channel stays open, since its other end is right here.
            Err(_) => self.free.recv().ok(),
        };
        let memory = memory.unwrap_or_else(|| AlignedBuf::zeroed(BLOCK_BYTES));
        Block { memory: Some(memory), home: self.home.clone() }
    }
}

/// A block, which goes back to its pool when it is dropped.
pub(super) struct Block {
    /// Always there.
    memory: Option<AlignedBuf>,
    home: Sender<AlignedBuf>,
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.as_deref().unwrap_or_default()
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.as_deref_mut().unwrap_or_default()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            // The pool is gone when its owner is done.
            let _unneeded = self.home.send(memory);
        }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Block")
    }
}

/// A part of a filled block, which several threads may hold.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    block: Arc<Block>,
    from: usize,
    to: usize,
}

impl Piece {
    pub(super) fn new(block: Block, from: usize, to: usize) -> Self {
        Self { block: Arc::new(block), from, to }
    }

    /// At most `len` bytes from the place `from` on.
    pub(super) fn part(&self, from: usize, len: usize) -> Self {
        let from = self.from.saturating_add(from).min(self.to);
        Self { block: Arc::clone(&self.block), from, to: from.saturating_add(len).min(self.to) }
    }

    /// Whether both are parts of one block.
    pub(super) fn is_beside(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.block, &other.block)
    }
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.block.get(self.from..self.to).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_comes_back_with_its_last_part() {
        let mut pool = Pool::new(1);
        let mut block = pool.take();
        block[7..10].copy_from_slice(&[1, 2, 3]);
        let piece = Piece::new(block, 7, 10);
        let part = piece.part(1, 9);
        assert_eq!((&piece[..], &part[..], &piece.part(4, 1)[..]), (&[1, 2, 3][..], &[2, 3][..], &[][..]));
        drop(piece);
        assert!(pool.free.try_recv().is_err(), "a part of it is still in use");
        std::thread::scope(|scope| {
            scope.spawn(move || drop(part));
            // Waits for the other thread.
            assert_eq!(pool.take().len(), BLOCK_BYTES);
        });
    }
}
