//! Config drives: reading what the conductor sends, and putting it on the disk (deploy section 7).

pub(crate) mod encoding;
mod payload;
mod rebuild;

use std::io::{self, Read};
use std::path::PathBuf;

use ferric_sys::block_dev::{BlockDev, BlockDevError};
use ferric_types::ErrorClass;

use crate::filesystem;
use crate::image::source::{Fetch, FetchRequest, SourceError};
use crate::table::{self, Partition, TableError, TableKind, gpt, mbr};

pub use payload::Payload;

/// Label by which an instance finds its config drive.
const LABEL: &str = "config-2";
/// Size of the partition made for it, and largest config drive.
pub const MAX_BYTES: u64 = 64 << 20;
/// Largest download: base64 of gzip that does not compress.
const MAX_DOWNLOAD_BYTES: u64 = MAX_BYTES / 3 * 4 + (1 << 20);

/// Bytes copied at a time.
const COPY_BYTES: usize = 256 << 10;

/// A config drive could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ConfigDriveError {
    /// The download failed.
    #[error("Can't download the configdrive content for node {node}")]
    Download {
        /// Node.
        node: String,
        /// Reason.
        #[source]
        source: SourceError,
    },
    /// It is on a server and does not fit into memory, where it is unpacked and checked before the disk is touched.
    #[error(
        "the config drive for node {node} does not fit into the {} MiB of memory that this machine can spare",
        memory_bytes >> 20
    )]
    NoMemory {
        /// Node.
        node: String,
        /// Memory that can be spared.
        memory_bytes: u64,
    },
    /// Content that is no base64.
    #[error(
        "Config drive for node {node} is not base64 encoded or the content is malformed. Expected base64 of a \
         gzip-compressed ISO 9660 or FAT image, or an http(s) URL of one"
    )]
    NotBase64 {
        /// Node.
        node: String,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// Content that is no gzip.
    #[error("decompressing the config drive for node {node}")]
    Gzip {
        /// Node.
        node: String,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// It is larger than the partition made for it.
    #[error("Config drive size exceeds maximum limit of 64MiB. The config drive for node {node} is larger than that")]
    TooLarge {
        /// Node.
        node: String,
    },
    /// Two partitions carry the label.
    #[error("More than one partition with label \"config-2\" exists on device {}: {numbers:?}", path.display())]
    Ambiguous {
        /// Disk.
        path: PathBuf,
        /// Partitions.
        numbers: Vec<u32>,
    },
    /// The image's own config drive partition is too small.
    #[error("partition {number} of {} has {size_bytes} bytes, the config drive has {payload_bytes}", path.display())]
    NoFit {
        /// Disk.
        path: PathBuf,
        /// Partition.
        number: u32,
        /// Its size.
        size_bytes: u64,
        /// Size of the config drive.
        payload_bytes: u64,
    },
    /// An MBR has no free primary partition.
    #[error(
        "Config drive cannot be created for node {node}. Disk ({}) uses MBR partitioning and already has {primaries} \
         primary partitions.", path.display()
    )]
    MbrFull {
        /// Node.
        node: String,
        /// Disk.
        path: PathBuf,
        /// How many there are.
        primaries: usize,
    },
    /// The partition could not be made.
    #[error("Failed to create config drive on disk {} for node {node}", path.display())]
    Table {
        /// Node.
        node: String,
        /// Disk.
        path: PathBuf,
        /// Reason.
        #[source]
        source: Box<TableError>,
    },
    /// It could not be written.
    #[error("Failed to create config drive on disk {} for node {node}", path.display())]
    Write {
        /// Node.
        node: String,
        /// Disk.
        path: PathBuf,
        /// Reason.
        #[source]
        source: BlockDevError,
    },
    /// It could not be turned into a FAT file system.
    #[error(
        "A failure occurred while attempting to format, copy, and re-create the configuration drive on {}",
        path.display()
    )]
    Rebuild {
        /// Disk.
        path: PathBuf,
        /// Reason.
        #[source]
        source: io::Error,
    },
}

impl ConfigDriveError {
    /// Error class for the conductor.
    pub const fn class(&self) -> ErrorClass {
        ErrorClass::Deployment
    }
}

/// Turns what the conductor sent into the image of a file system: base64 of gzip, or a URL of that or of the image
/// itself. `request` makes a request of a URL, so that it gets the settings of the image's download. What a URL holds may
/// take up to `memory_bytes`.
///
/// # Errors
/// All but those of writing.
pub fn decode<'a>(
    input: &'a str,
    node: &str,
    memory_bytes: u64,
    fetch: &dyn Fetch,
    request: impl FnOnce(&str) -> FetchRequest,
) -> Result<Payload<'a>, ConfigDriveError> {
    let is_url = input.starts_with("http://") || input.starts_with("https://");
    let payload = if is_url {
        let limit = MAX_DOWNLOAD_BYTES.min(memory_bytes);
        let content = fetch.get(&request(input), limit).map_err(|source| match source {
            SourceError::TooLarge { .. } if limit == MAX_DOWNLOAD_BYTES => {
                ConfigDriveError::TooLarge { node: node.to_owned() }
            }
            SourceError::TooLarge { .. } => ConfigDriveError::NoMemory { node: node.to_owned(), memory_bytes },
            source => ConfigDriveError::Download { node: node.to_owned(), source },
        })?;
        Payload::downloaded(content, MAX_BYTES)
    } else {
        Payload::text(input.as_bytes(), MAX_BYTES)
    };
    let payload = payload.map_err(|source| match encoding::is_malformed(&source) {
        true => ConfigDriveError::NotBase64 { node: node.to_owned(), source },
        false => ConfigDriveError::Gzip { node: node.to_owned(), source },
    })?;
    if payload.size_bytes() > MAX_BYTES {
        return Err(ConfigDriveError::TooLarge { node: node.to_owned() });
    }
    Ok(payload)
}

/// Puts a config drive on a disk: into the image's own partition labelled `config-2`, or into a new one of 64 MiB at
/// the end. On a disk whose sectors are larger than those of its file system, or when `rebuild` is set, it becomes a FAT file
/// system with the same content (pitfall C20). Returns the partition.
///
/// # Errors
/// All but those of reading.
pub fn write(dev: &BlockDev, image: &Payload<'_>, node: &str, rebuild: bool) -> Result<Partition, ConfigDriveError> {
    let partition = place(dev, image.size_bytes(), node)?;
    write_into(dev, image, &partition, node, rebuild)?;
    Ok(partition)
}

/// Room that a config drive needs in a partition of its own. One that becomes a FAT file system gets as much as in a
/// whole-disk image, as the same files take more room there.
pub fn room_bytes(image: &Payload<'_>, sector: u32, rebuild: bool) -> u64 {
    if rebuild::is_due(image, sector, rebuild) { MAX_BYTES } else { image.size_bytes() }
}

/// Puts a config drive into a partition that was made for it.
///
/// # Errors
/// [`ConfigDriveError::Write`], [`ConfigDriveError::Rebuild`], [`ConfigDriveError::Gzip`].
pub fn write_into(
    dev: &BlockDev,
    image: &Payload<'_>,
    partition: &Partition,
    node: &str,
    rebuild: bool,
) -> Result<(), ConfigDriveError> {
    if rebuild::is_due(image, dev.logical_sector(), rebuild) {
        tracing::info!(device = %dev.path().display(), "writing the config drive as FAT");
        rebuild::write(dev, image, partition)
            .map_err(|source| ConfigDriveError::Rebuild { path: dev.path().to_owned(), source })?;
    } else {
        if rebuild {
            tracing::warn!("the config drive is no ISO 9660 or FAT file system and is written as it is");
        }
        copy(dev, image, partition, node)?;
    }
    dev.flush().map_err(failed(dev, node))?;
    let label = filesystem::label(dev, partition.start_bytes, partition.size_bytes);
    if !label.as_deref().is_some_and(|label| label.eq_ignore_ascii_case(LABEL)) {
        tracing::warn!(
            label,
            content = image.describe(),
            "the config drive is no ISO 9660 or FAT file system labelled {LABEL}: the instance may not find it"
        );
    }
    Ok(())
}

fn failed<'a>(dev: &'a BlockDev, node: &'a str) -> impl Fn(BlockDevError) -> ConfigDriveError + 'a {
    |source| ConfigDriveError::Write { node: node.to_owned(), path: dev.path().to_owned(), source }
}

/// Writes the image as it is.
fn copy(dev: &BlockDev, image: &Payload<'_>, partition: &Partition, node: &str) -> Result<(), ConfigDriveError> {
    let unreadable = |source| ConfigDriveError::Gzip { node: node.to_owned(), source };
    let mut reader = image.reader();
    let mut buffer = vec![0; COPY_BYTES];
    let mut offset = partition.start_bytes;
    loop {
        let count = reader.read(&mut buffer).map_err(unreadable)?;
        if count == 0 {
            return Ok(());
        }
        dev.write_at(offset, buffer.get(..count).unwrap_or_default()).map_err(failed(dev, node))?;
        offset += u64::try_from(count).unwrap_or_default();
    }
}

fn place(dev: &BlockDev, len_bytes: u64, node: &str) -> Result<Partition, ConfigDriveError> {
    let path = || dev.path().to_owned();
    let in_table = |source| match source {
        TableError::MbrFull { primaries, path } => ConfigDriveError::MbrFull { node: node.to_owned(), path, primaries },
        source => ConfigDriveError::Table { node: node.to_owned(), path: path(), source: Box::new(source) },
    };
    let found = table::validate(dev).map_err(in_table)?;
    let mut labelled: Vec<Partition> = found
        .partitions
        .into_iter()
        .filter(|partition| {
            filesystem::label(dev, partition.start_bytes, partition.size_bytes)
                .is_some_and(|label| label.eq_ignore_ascii_case(LABEL))
        })
        .collect();
    if labelled.len() > 1 {
        let numbers = labelled.iter().map(|partition| partition.number).collect();
        return Err(ConfigDriveError::Ambiguous { path: path(), numbers });
    }
    if let Some(partition) = labelled.pop() {
        if len_bytes > partition.size_bytes {
            let Partition { number, size_bytes, .. } = partition;
            return Err(ConfigDriveError::NoFit { path: path(), number, size_bytes, payload_bytes: len_bytes });
        }
        return Ok(partition);
    }
    let made = match found.kind {
        TableKind::Gpt => {
            table::fix_backup_gpt(dev).map_err(in_table)?;
            gpt::add_last(dev, MAX_BYTES)
        }
        TableKind::Mbr => mbr::add_last(dev, MAX_BYTES),
    };
    made.map_err(in_table)
}

#[cfg(test)]
mod tests;
