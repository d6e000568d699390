//! Software RAID (hardware section 7): what a configuration asks for, where its partitions go, the calls of `mdadm` that
//! make its arrays, and the superblocks that tell which array a device belongs to.
//!
//! Everything but reading superblocks is pure. Partitions are made by [`crate::table`]; `mdadm` is run by the caller,
//! which also knows what the kernel has assembled.

pub mod config;
pub mod esp;
pub mod mdadm;
pub mod plan;
pub mod superblock;

pub use config::{ConfigError, Level, Size, Volume};
pub use mdadm::Array;
pub use plan::{Plan, PlanError, RaidDisk, Request};
pub use superblock::Superblock;
