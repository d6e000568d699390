//! How probes and steps reach the machine.

use std::fmt;
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
    pub net: NicQuery,
}

/// Asks for the facts of a network interface by its name.
#[derive(Clone)]
pub struct NicQuery(Arc<dyn Fn(&str) -> NicFacts + Send + Sync>);

impl NicQuery {
    /// Asks a function, such as a table of a test.
    pub fn new(ask: impl Fn(&str) -> NicFacts + Send + Sync + 'static) -> Self {
        Self(Arc::new(ask))
    }

    /// Facts of an interface; what is not known is left empty.
    pub fn facts(&self, interface: &str) -> NicFacts {
        (self.0)(interface)
    }
}

impl fmt::Debug for NicQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NicQuery")
    }
}

impl Machine {
    /// The machine this program runs on.
    pub fn host() -> Self {
        Self { root: Root::host(), exec: Arc::new(SystemExec), net: NicQuery::new(net::facts) }
    }

    /// A tree of files that stands for a machine, whose network interfaces answer no ioctl.
    pub fn at(root: Root, exec: Arc<dyn Exec>) -> Self {
        Self { root, exec, net: NicQuery::new(|_| NicFacts::default()) }
    }
}
