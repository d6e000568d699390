//! How probes and steps reach the machine.

use std::sync::Arc;

use ferric_sys::ioctl::net::{self, NicFacts};
use ferric_sys::{Exec, Root, SystemExec};

/// The machine, or a tree that stands for one in a test.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Where `/sys`, `/proc`, `/dev`, `/run` and `/etc` begin.
    pub root: Root,
    /// Runs programs.
    pub exec: Arc<dyn Exec>,
    /// What the kernel tells of a network interface through sockets rather than files.
    pub net: fn(&str) -> NicFacts,
}

impl Machine {
    /// The machine this program runs on.
    pub fn host() -> Self {
        Self { root: Root::host(), exec: Arc::new(SystemExec), net: net::facts }
    }

    /// A tree of files that stands for a machine, whose network interfaces answer no ioctl.
    pub fn at(root: Root, exec: Arc<dyn Exec>) -> Self {
        Self { root, exec, net: |_| NicFacts::default() }
    }
}
