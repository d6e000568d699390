//! Making the partitions of a plan, and what is in them before the image comes.

use std::io;
use std::path::{Path, PathBuf};

use ferric_sys::block_dev::{BlockDev, BlockDevError};
use ferric_types::ErrorClass;

use super::{Layout, Planned, Role};
use crate::configdrive::{self, ConfigDriveError, Payload};
use crate::filesystem::Slice;
use crate::table::{self, Guid, Partition, TableError};
use crate::wipe::{self, WipeError};

/// Name that each partition of a GPT has: what the reference agent's tool makes of a word that means something on MBR only.
const NAME: &str = "primary";
/// Label of the EFI system partition.
const ESP_LABEL: [u8; 11] = *b"efi-part   ";
/// FAT32 has at least 65525 clusters, and its tables need some room, too.
const FAT32_CLUSTERS: u32 = 70_000;
/// Label of the swap space.
const SWAP_LABEL: &[u8; 5] = b"swap1";
/// What is cleared at the beginning of a partition: room for every signature that could come back to life.
const CLEARED_BYTES: u64 = 1 << 20;

/// Partitions could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// What was on the disk could not be wiped.
    #[error(transparent)]
    Wipe(#[from] WipeError),
    /// The table could not be written.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The config drive could not be written.
    #[error(transparent)]
    ConfigDrive(#[from] ConfigDriveError),
    /// A partition could not be written.
    #[error("preparing partition {}", path.display())]
    Device {
        /// Partition.
        path: PathBuf,
        /// Reason.
        #[source]
        source: BlockDevError,
    },
    /// A file system could not be made.
    #[error("making a file system on {}", path.display())]
    Format {
        /// Partition.
        path: PathBuf,
        /// Reason.
        #[source]
        source: io::Error,
    },
}

impl MakeError {
    /// Error class for the conductor.
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::Wipe(error) => error.class(),
            Self::Table(error) => error.class(),
            Self::ConfigDrive(error) => error.class(),
            Self::Device { .. } | Self::Format { .. } => ErrorClass::Deployment,
        }
    }
}

/// What goes into the partitions besides the image.
#[derive(Debug, Clone, Copy)]
pub struct Content<'a> {
    /// Config drive.
    pub config_drive: Option<&'a Payload<'a>>,
    /// UUID of the node, for errors.
    pub node: &'a str,
    /// Whether the config drive is rebuilt as FAT.
    pub rebuild: bool,
    /// Whether table and scratch space stay as they are: the layout has been found to be the same.
    pub keep: bool,
}

/// Makes everything but the content of the root and ephemeral partitions.
///
/// # Errors
/// Any [`MakeError`].
pub fn make(dev: &BlockDev, layout: &Layout, content: &Content<'_>) -> Result<(), MakeError> {
    if !content.keep {
        wipe::destroy_metadata(dev)?;
        let partitions: Vec<Partition> = layout.partitions.iter().map(partition).collect();
        let active = layout.partitions.iter().find(|planned| planned.active).map(|planned| planned.number);
        table::create(dev, layout.kind, &partitions, active)?;
    }
    for planned in &layout.partitions {
        if content.keep && planned.role == Role::Ephemeral {
            continue;
        }
        fill(dev, planned, content)?;
    }
    dev.flush().map_err(|source| MakeError::Device { path: dev.path().to_owned(), source })
}

/// The partition as the table has it.
fn partition(planned: &Planned) -> Partition {
    let Planned { number, start_bytes, size_bytes, kind, .. } = *planned;
    Partition { number, start_bytes, size_bytes, kind, guid: None, name: NAME.to_owned() }
}

fn fill(dev: &BlockDev, planned: &Planned, content: &Content<'_>) -> Result<(), MakeError> {
    let path = table::partition_path(dev.path(), planned.number);
    let device = |source| MakeError::Device { path: path.clone(), source };
    let Planned { start_bytes, size_bytes, .. } = *planned;
    dev.zero_range(start_bytes, size_bytes.min(CLEARED_BYTES)).map_err(device)?;
    match (planned.role, content.config_drive) {
        (Role::Esp, _) => {
            format_esp(dev, start_bytes, size_bytes).map_err(|source| MakeError::Format { path: path.clone(), source })
        }
        (Role::Swap, _) => make_swap(dev, start_bytes, size_bytes, &path),
        (Role::ConfigDrive, Some(drive)) => {
            Ok(configdrive::write_into(dev, drive, &partition(planned), content.node, content.rebuild)?)
        }
        _ => Ok(()),
    }
}

/// An empty FAT file system, FAT32 as firmware expects it on an internal disk (UEFI 2.10 section 13.3.1.1).
fn format_esp(dev: &BlockDev, start_bytes: u64, size_bytes: u64) -> io::Result<()> {
    let sector = u16::try_from(dev.logical_sector()).map_err(io::Error::other)?;
    let sectors = u32::try_from(size_bytes / u64::from(sector)).map_err(io::Error::other)?;
    let [a, b, c, d, ..] = Guid::random()?.0;
    let options = fatfs::FormatVolumeOptions::new()
        .bytes_per_sector(sector)
        .total_sectors(sectors)
        .volume_id(u32::from_le_bytes([a, b, c, d]))
        .volume_label(ESP_LABEL);
    // One that is too small for FAT32 gets what fits.
    let options = if sectors > FAT32_CLUSTERS { options.fat_type(fatfs::FatType::Fat32) } else { options };
    fatfs::format_volume(Slice::writable(dev, start_bytes, size_bytes), options)
}

/// The header of a swap space in its first memory page (kernel `include/linux/swap.h`, version 1): boot area, version,
/// last page, no bad pages, UUID and label; the signature ends the page.
fn make_swap(dev: &BlockDev, start_bytes: u64, size_bytes: u64, path: &Path) -> Result<(), MakeError> {
    let page = rustix::param::page_size();
    let pages = size_bytes / u64::try_from(page).unwrap_or(4096);
    // Larger ones are used up to there only.
    let last = u32::try_from(pages - 1).unwrap_or(u32::MAX);
    let uuid = Guid::random().map_err(|source| MakeError::Format { path: path.to_owned(), source })?;
    let mut header = vec![0; page];
    for (offset, bytes) in [
        (1024, &1_u32.to_le_bytes()[..]),
        (1028, &last.to_le_bytes()),
        (1036, &swapped(uuid)),
        (1052, SWAP_LABEL),
        (page - 10, b"SWAPSPACE2"),
    ] {
        if let Some(place) = header.get_mut(offset..offset + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }
    dev.write_at(start_bytes, &header).map_err(|source| MakeError::Device { path: path.to_owned(), source })
}

/// A GUID as file systems have it: in the order of its text.
const fn swapped(guid: Guid) -> [u8; 16] {
    let [a0, a1, a2, a3, b0, b1, c0, c1, d0, d1, d2, d3, d4, d5, d6, d7] = guid.0;
    [a3, a2, a1, a0, b1, b0, c1, c0, d0, d1, d2, d3, d4, d5, d6, d7]
}

#[cfg(test)]
mod tests;
