//! Fakes for tests of the crates above (feature `testing`).

pub mod disk;
pub mod exec;
pub mod machine;
