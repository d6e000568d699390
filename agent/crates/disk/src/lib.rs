//! Disks: writing images, partition tables, software RAID, wiping and erasing, config drives, boot entries, files put into
//! images.
//!
//! Everything here blocks; the agent calls it from a blocking thread. Devices are reached through
//! [`ferric_sys::block_dev::BlockDev`], downloads through [`image::source::Fetch`].

pub mod boot;
pub mod configdrive;
pub mod erase;
pub mod filesystem;
pub mod holders;
pub mod image;
pub mod inject;
pub mod iso9660;
pub mod partition;
pub mod raid;
pub mod table;
pub mod volume;
pub mod wipe;
