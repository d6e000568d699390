//! File systems that the agent itself needs, and those of images.

use std::ffi::CString;
use std::io;
use std::path::Path;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

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

/// Mounts a file system whose content is somebody else's: nothing in it is run, is a device or gives rights.
///
/// # Errors
/// The kernel has no driver for it (`ENODEV`), or it is damaged.
pub fn mount_foreign(device: &Path, target: &Path, kind: &str) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::NOATIME;
    let kind = CString::new(kind)?;
    Ok(mount(device, target, kind.as_c_str(), flags, None)?)
}

/// Takes a mounted file system away again. With `anyhow` it goes as soon as nobody uses it any more.
///
/// # Errors
/// It is in use, or it is none.
pub fn unmount_from(target: &Path, anyhow: bool) -> io::Result<()> {
    Ok(unmount(target, if anyhow { UnmountFlags::DETACH } else { UnmountFlags::empty() })?)
}
