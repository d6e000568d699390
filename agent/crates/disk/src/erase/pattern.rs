//! Random bytes at the speed of a disk: xoshiro256++ (Blackman and Vigna), seeded by the kernel.
//!
//! Overwriting needs bytes that nobody could tell from old data or compress, not secrecy.

use std::fs::File;
use std::io::{self, Read};

/// A stream of random bytes.
#[derive(Debug)]
pub(super) struct Pattern([u64; 4]);

impl Pattern {
    /// A stream that nobody has seen before.
    pub(super) fn random() -> io::Result<Self> {
        let mut seed = [0_u8; 32];
        File::open("/dev/urandom")?.read_exact(&mut seed)?;
        let mut state = [0_u64; 4];
        for (word, bytes) in state.iter_mut().zip(seed.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().unwrap_or([1; 8]));
        }
        // The all-zero state would stay there.
        state[0] |= 1;
        Ok(Self(state))
    }

    fn next(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Fills a buffer whose length is a multiple of eight.
    pub(super) fn fill(&mut self, buffer: &mut [u8]) {
        for word in buffer.chunks_exact_mut(8) {
            word.copy_from_slice(&self.next().to_le_bytes());
        }
    }
}
