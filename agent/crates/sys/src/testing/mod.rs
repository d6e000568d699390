//! Fakes for tests of the crates above (feature `testing`).

pub mod disk;
