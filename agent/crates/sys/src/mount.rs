//! File systems that the agent itself needs.

use std::io;
use std::path::Path;

use rustix::mount::{MountFlags, mount};

/// Mounts the kernel's debugging files, where there are none yet.
///
/// # Errors
/// The caller may not, or the kernel has none.
pub fn mount_debugfs(target: &Path) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::NODEV;
    match mount("debugfs", target, "debugfs", flags, None) {
        Ok(()) | Err(rustix::io::Errno::BUSY) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
