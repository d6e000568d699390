//! What can go wrong with a disk.

use std::io;
use std::path::PathBuf;

/// An operation on a disk failed.
#[derive(Debug, thiserror::Error)]
pub enum BlockDevError {
    /// It could not be opened.
    #[error("opening {}", path.display())]
    Open {
        /// Device.
        path: PathBuf,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// The path names neither a block device nor a regular file.
    #[error("{} is not a disk", path.display())]
    NotADisk {
        /// Path.
        path: PathBuf,
    },
    /// The kernel would not tell something about it.
    #[error("asking for the {what} of {}", path.display())]
    Query {
        /// Device.
        path: PathBuf,
        /// What was asked.
        what: &'static str,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// A read failed.
    #[error("reading {len_bytes} bytes at {offset} of {}", path.display())]
    Read {
        /// Device.
        path: PathBuf,
        /// Where, in bytes.
        offset: u64,
        /// How much.
        len_bytes: u64,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// A write failed.
    #[error("writing {len_bytes} bytes at {offset} of {}", path.display())]
    Write {
        /// Device.
        path: PathBuf,
        /// Where, in bytes.
        offset: u64,
        /// How much.
        len_bytes: u64,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// A discard failed or is not supported.
    #[error("discarding {len_bytes} bytes at {offset} of {}", path.display())]
    Discard {
        /// Device.
        path: PathBuf,
        /// Where, in bytes.
        offset: u64,
        /// How much.
        len_bytes: u64,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// The range does not lie within the device.
    #[error("{len_bytes} bytes at {offset} are not within {} of {size_bytes} bytes", path.display())]
    OutOfRange {
        /// Device.
        path: PathBuf,
        /// Where, in bytes.
        offset: u64,
        /// How much.
        len_bytes: u64,
        /// Size of the device.
        size_bytes: u64,
    },
    /// Written data could not be put on the medium.
    #[error("flushing {}", path.display())]
    Flush {
        /// Device.
        path: PathBuf,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// The kernel would not read the partition table again.
    #[error("reading the partition table of {} again", path.display())]
    Reread {
        /// Device.
        path: PathBuf,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// The kernel would not add or forget a partition.
    #[error("telling the kernel of partition {number} of {}", path.display())]
    Partition {
        /// Device.
        path: PathBuf,
        /// Partition number.
        number: u32,
        /// Reason.
        #[source]
        source: io::Error,
    },
}

impl BlockDevError {
    /// The operating system's error, where there is one.
    pub const fn io(&self) -> Option<&io::Error> {
        match self {
            Self::Open { source, .. }
            | Self::Query { source, .. }
            | Self::Read { source, .. }
            | Self::Write { source, .. }
            | Self::Discard { source, .. }
            | Self::Flush { source, .. }
            | Self::Reread { source, .. }
            | Self::Partition { source, .. } => Some(source),
            Self::NotADisk { .. } | Self::OutOfRange { .. } => None,
        }
    }

    /// Whether someone else holds the device (`EBUSY`).
    pub fn is_busy(&self) -> bool {
        self.io().is_some_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
    }

    /// Whether the medium failed (`EIO`), which may be worth another try.
    pub fn is_medium_error(&self) -> bool {
        self.io().and_then(io::Error::raw_os_error) == Some(rustix::io::Errno::IO.raw_os_error())
    }
}
