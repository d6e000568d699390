//! The file system of a partition, mounted while somebody works in it.

use std::io;
use std::path::{Path, PathBuf};

use ferric_sys::block_dev::{Access, BlockDev, BlockDevError};
use ferric_types::ErrorClass;
use rustix::io::Errno;

use crate::boot::foreign::{ImageRoot, Mounted};
use crate::partition::identity::{self, Identity};

/// A file system could not be used.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The partition cannot be read.
    #[error("looking for a file system on {}", path.display())]
    Device {
        /// Partition.
        path: PathBuf,
        /// Reason.
        #[source]
        source: BlockDevError,
    },
    /// Nothing known is on it.
    #[error("{} holds no file system that is known", path.display())]
    Unknown {
        /// Partition.
        path: PathBuf,
    },
    /// It is no file system.
    #[error("{} holds {kind}, which is no file system", path.display())]
    NoFileSystem {
        /// Partition.
        path: PathBuf,
        /// What is on it.
        kind: &'static str,
    },
    /// The kernel cannot.
    #[error(
        "the kernel of this ramdisk has no driver for the file system on {} ({kind}): use a profile that has the module \
         {kind}", path.display()
    )]
    NoDriver {
        /// Partition.
        path: PathBuf,
        /// What is on it.
        kind: &'static str,
    },
    /// It cannot be mounted.
    #[error("mounting the {kind} file system on {}", path.display())]
    Mount {
        /// Partition.
        path: PathBuf,
        /// What is on it.
        kind: &'static str,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// It stays in use, so that what was written may not be on the disk.
    #[error("unmounting {}", path.display())]
    Unmount {
        /// Partition.
        path: PathBuf,
        /// Reason.
        #[source]
        source: io::Error,
    },
}

impl VolumeError {
    /// Error class for the conductor, where the file system is the image's.
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::Device { .. } | Self::Unmount { .. } => ErrorClass::CommandExecution,
            _ => ErrorClass::InvalidImage,
        }
    }
}

/// The kind of file system on a device, by the name of its driver.
///
/// # Errors
/// [`VolumeError::Device`], [`VolumeError::Unknown`], [`VolumeError::NoFileSystem`].
pub fn identify(path: &Path) -> Result<&'static str, VolumeError> {
    let dev =
        BlockDev::open(path, Access::Read).map_err(|source| VolumeError::Device { path: path.to_owned(), source })?;
    driver(path, identity::identify(&dev, 0, dev.size_bytes()))
}

/// The name of the driver for what was found on a partition.
///
/// # Errors
/// [`VolumeError::Unknown`], [`VolumeError::NoFileSystem`].
pub fn driver(path: &Path, found: Option<Identity>) -> Result<&'static str, VolumeError> {
    match found.map(|found| found.kind) {
        None => Err(VolumeError::Unknown { path: path.to_owned() }),
        Some(kind) if kind.ends_with("_member") || matches!(kind, "crypto_LUKS" | "swap") => {
            Err(VolumeError::NoFileSystem { path: path.to_owned(), kind })
        }
        // One driver is for all three.
        Some("ext2" | "ext3") => Ok("ext4"),
        Some(kind) => Ok(kind),
    }
}

/// Mounts a file system of the kind for as long as `work` takes, whatever that gives, and takes it away again.
///
/// # Errors
/// [`VolumeError::NoDriver`], [`VolumeError::Mount`], [`VolumeError::Unmount`].
pub fn with_volume<T>(
    path: &Path,
    mount_point: &Path,
    kind: &'static str,
    work: impl FnOnce(&ImageRoot) -> T,
) -> Result<T, VolumeError> {
    let mount_failed = |source: io::Error| match source.raw_os_error() {
        Some(errno) if errno == Errno::NODEV.raw_os_error() => VolumeError::NoDriver { path: path.to_owned(), kind },
        _ => VolumeError::Mount { path: path.to_owned(), kind, source },
    };
    let mounted = Mounted::new(path, mount_point, kind).map_err(mount_failed)?;
    let image = ImageRoot::open(mount_point).map_err(mount_failed)?;
    let done = work(&image);
    drop(image);
    mounted.unmount().map_err(|source| VolumeError::Unmount { path: path.to_owned(), source })?;
    Ok(done)
}
