//! Access to the machine: sysfs and procfs, block devices, ioctls, mounts, programs.
//!
//! This is the only crate with unsafe code. Everything above reaches the machine through two seams: [`Root`], a
//! prefix for `/sys`, `/proc`, `/dev`, `/run` and `/etc`, so that a test can hand in a fixture tree, and
//! [`exec::Exec`], which runs a program, so that a test can script one.

pub mod aligned;
pub mod attr;
pub mod block_dev;
pub mod cell;
pub mod exec;
pub mod ioctl;
pub mod kmod;
pub mod memfd;
pub mod mount;
pub mod netdev;
pub mod netlink;
pub mod packet;
pub mod process;
pub mod reboot;
pub mod root;
pub mod swap;
#[cfg(feature = "testing")]
pub mod testing;
pub mod uevent;

pub use cell::Cell;
pub use exec::{Cmd, Exec, ExecError, Output, SystemExec};
pub use root::Root;
