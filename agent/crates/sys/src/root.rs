//! Where the machine's file systems begin.

use std::path::{Path, PathBuf};

/// Prefix for `/sys`, `/proc`, `/dev`, `/run` and `/etc`: `/` on a machine, a fixture tree in a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Root {
    /// The machine itself.
    pub fn host() -> Self {
        Self(PathBuf::from("/"))
    }

    /// A tree that stands for the machine.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The path of a file of the machine: `path("sys/block")` or `path("/sys/block")`.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Whether this is the machine itself rather than a tree standing for it. Ioctls only make sense then.
    pub fn is_host(&self) -> bool {
        self.0 == Path::new("/")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_and_relative_names_stay_below_the_root() {
        let root = Root::at("/fixture");
        assert_eq!(root.path("/sys/block"), Path::new("/fixture/sys/block"));
        assert_eq!(root.path("sys/block"), Path::new("/fixture/sys/block"));
        assert!(!root.is_host());
        assert!(Root::host().is_host());
    }
}
