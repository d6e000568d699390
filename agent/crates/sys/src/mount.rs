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

/// Mounts a file system whose content is somebody else's: nothing in it is run, is a device or gives rights, and damage in
/// an ext file system does not halt the machine, whatever its superblock says.
///
/// # Errors
/// The kernel has no driver for it (`ENODEV`), or it is damaged.
pub fn mount_foreign(device: &Path, target: &Path, kind: &str) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::NOATIME;
    let options = kind.starts_with("ext").then_some(c"errors=remount-ro");
    let kind = CString::new(kind)?;
    Ok(mount(device, target, kind.as_c_str(), flags, options)?)
}

/// Takes a mounted file system away again. With `lazily` it goes as soon as nobody uses it any more.
///
/// # Errors
/// It is in use, or it is none.
pub fn unmount_from(target: &Path, lazily: bool) -> io::Result<()> {
    Ok(unmount(target, if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() })?)
}
