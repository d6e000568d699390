//! Images of one file system: the partitions around it, made by our own code (deploy section 6).
//!
//! [`layout`] plans them, [`make`] writes them, [`identity`] tells what file system is in one and by which UUID it is
//! found. The image itself goes into the root partition like any other onto a disk.

pub mod identity;
pub mod layout;
pub mod make;

pub use identity::Identity;
pub use layout::{Layout, LayoutError, Planned, Role, Wanted};
