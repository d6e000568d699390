//! Partition tables: reading, checking, repairing after an image was written, adding the config drive's partition.
//!
//! GPT structures are read and written by the `gptman` crate, after checks of our own that keep a hostile table from
//! making it allocate or loop; MBR is small enough to be read here. References: UEFI specification 2.10 chapter 5.

pub mod gpt;
pub mod guid;
pub mod mbr;

use std::path::PathBuf;

use ferric_sys::block_dev::{BlockDev, BlockDevError};
use ferric_types::ErrorClass;

pub use guid::Guid;

/// A partition table could not be read, is not valid, or could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The device could not be read, written or re-read.
    #[error("using the partition table of {}", path.display())]
    Device {
        /// Disk.
        path: PathBuf,
        /// Reason.
        #[source]
        source: BlockDevError,
    },
    /// There is no partition table.
    #[error(
        "Unable to find a valid partition table on the disk after writing the image. {} holds neither a GPT nor an MBR \
         partition table; the image may be corrupt, not a whole-disk image, or made for another sector size than \
         {sector} bytes", path.display()
    )]
    NoTable {
        /// Disk.
        path: PathBuf,
        /// Its logical sector, bytes.
        sector: u32,
    },
    /// There is a table without a partition.
    #[error("No partitions found on the device {} after writing the image.", path.display())]
    NoPartitions {
        /// Disk.
        path: PathBuf,
    },
    /// The GPT contradicts itself or the disk.
    #[error("the GPT of {} is not valid: {reason}", path.display())]
    InvalidGpt {
        /// Disk.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The GPT could not be handled by the library.
    #[error("using the GPT of {}", path.display())]
    Gpt {
        /// Disk.
        path: PathBuf,
        /// Reason.
        #[source]
        source: Box<gptman::Error>,
    },
    /// The kernel has no random bytes for an identifier.
    #[error("making an identifier for {}", path.display())]
    Random {
        /// Disk.
        path: PathBuf,
        /// Reason.
        #[source]
        source: std::io::Error,
    },
    /// The partition does not fit.
    #[error("{} has no room of {wanted_bytes} bytes after its last partition", path.display())]
    NoRoom {
        /// Disk.
        path: PathBuf,
        /// Size wanted.
        wanted_bytes: u64,
    },
    /// An MBR has all its primary partitions in use.
    #[error("{} uses MBR partitioning and already has {primaries} primary partitions", path.display())]
    MbrFull {
        /// Disk.
        path: PathBuf,
        /// How many there are.
        primaries: usize,
    },
}

impl TableError {
    /// Error class for the conductor.
    pub const fn class(&self) -> ErrorClass {
        ErrorClass::Deployment
    }
}

/// Which kind of table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableKind {
    /// GUID partition table.
    Gpt,
    /// Master boot record.
    Mbr,
}

/// Type of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionType {
    /// GPT type GUID.
    Gpt(Guid),
    /// MBR system id.
    Mbr(u8),
}

/// One partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Number, from 1, as the kernel counts.
    pub number: u32,
    /// Where it begins, bytes.
    pub start_bytes: u64,
    /// Its size, bytes.
    pub size_bytes: u64,
    /// Its type.
    pub kind: PartitionType,
    /// Its own GUID; GPT only.
    pub guid: Option<Guid>,
    /// Its name; GPT only.
    pub name: String,
}

/// A partition table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// GPT or MBR.
    pub kind: TableKind,
    /// Partitions in use, by number.
    pub partitions: Vec<Partition>,
}

/// Reads the partition table, or `None` when there is none.
///
/// # Errors
/// [`TableError::Device`], or [`TableError::InvalidGpt`] for a GPT that contradicts itself.
pub fn read(dev: &BlockDev) -> Result<Option<Table>, TableError> {
    if let Some(gpt) = gpt::read(dev)? {
        return Ok(Some(Table { kind: TableKind::Gpt, partitions: gpt::partitions(dev, &gpt) }));
    }
    Ok(mbr::read(dev)?.map(|partitions| Table { kind: TableKind::Mbr, partitions }))
}

/// Reads the table and makes sure that it has a partition and that no partition lies over the table itself (deploy
/// section 2, step 5).
///
/// # Errors
/// [`TableError::NoTable`], [`TableError::NoPartitions`], or those of [`read`].
pub fn validate(dev: &BlockDev) -> Result<Table, TableError> {
    let path = dev.path().to_owned();
    let table = match gpt::read(dev)? {
        Some(gpt) => {
            gpt::check_places(dev, &gpt)?;
            Some(Table { kind: TableKind::Gpt, partitions: gpt::partitions(dev, &gpt) })
        }
        None => read(dev)?,
    };
    let kind = table.as_ref().map(|table| table.kind);
    if kind != Some(TableKind::Gpt) && gpt::has_signature(dev)? {
        if kind.is_none() {
            let reason = "the MBR has no entry of type 0xee that begins at sector 1, so that no system looks for a GPT";
            return Err(TableError::InvalidGpt { path, reason: reason.to_owned() });
        }
        tracing::warn!(disk = %path.display(), "the image has an MBR and a GPT that it does not tell of: the MBR counts");
    }
    let table = table.ok_or_else(|| TableError::NoTable { path: path.clone(), sector: dev.logical_sector() })?;
    if table.partitions.is_empty() { Err(TableError::NoPartitions { path }) } else { Ok(table) }
}

/// Writes a new table of partitions, which get GUIDs of their own. `active` is the number of the one that an MBR marks as
/// the one to boot.
///
/// # Errors
/// [`TableError::Device`], [`TableError::Gpt`].
pub fn create(
    dev: &BlockDev,
    kind: TableKind,
    partitions: &[Partition],
    active: Option<u32>,
) -> Result<(), TableError> {
    match kind {
        TableKind::Gpt => gpt::create(dev, partitions),
        TableKind::Mbr => mbr::create(dev, partitions, active),
    }
}

/// Takes partitions out of a table by their numbers, then adds others with the numbers and places they have; whatever else
/// is in the table stays. On an MBR only primary ones.
///
/// # Errors
/// [`TableError::NoTable`]; [`TableError::NoRoom`] for a partition whose number or place is taken; [`TableError::Device`],
/// [`TableError::Gpt`].
pub fn edit(dev: &BlockDev, gone: &[u32], new: &[Partition]) -> Result<(), TableError> {
    match read(dev)?.map(|table| table.kind) {
        Some(TableKind::Gpt) => gpt::edit(dev, gone, new),
        Some(TableKind::Mbr) => mbr::edit(dev, gone, new),
        None => Err(TableError::NoTable { path: dev.path().to_owned(), sector: dev.logical_sector() }),
    }
}

/// Makes the kernel read the table again.
///
/// # Errors
/// [`TableError::Device`] when a partition stays in use.
pub fn reread(dev: &BlockDev) -> Result<(), TableError> {
    dev.reread_table().map_err(|source| TableError::Device { path: dev.path().to_owned(), source })
}

/// The disk identifier of the MBR as Ironic wants it (`0x7c82b1a4`; `0x00000000` for a disk that has none).
///
/// # Errors
/// [`TableError::Device`].
pub fn disk_id(dev: &BlockDev) -> Result<String, TableError> {
    Ok(format!("0x{:08x}", u32::from_le_bytes(mbr::disk_signature(dev)?)))
}

/// Moves the backup GPT to the end of the disk, where an image smaller than the disk does not have it. Returns
/// whether anything had to be done; a disk without a GPT is left alone.
///
/// # Errors
/// [`TableError::Device`], [`TableError::Gpt`] or [`TableError::InvalidGpt`].
pub fn fix_backup_gpt(dev: &BlockDev) -> Result<bool, TableError> {
    gpt::fix_backup(dev)
}

/// Path of the device node of a partition: `/dev/sda1`, `/dev/nvme0n1p1`.
pub fn partition_path(disk: &std::path::Path, number: u32) -> PathBuf {
    let name = disk.to_string_lossy();
    let infix = if name.ends_with(|c: char| c.is_ascii_digit()) { "p" } else { "" };
    PathBuf::from(format!("{name}{infix}{number}"))
}

#[cfg(test)]
mod tests;
