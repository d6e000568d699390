//! Why an image did not get onto a disk.

use std::io;
use std::path::PathBuf;

use ferric_sys::block_dev::BlockDevError;
use ferric_types::{CommandError, ErrorClass};

use super::checksum::ChecksumError;
use super::compressed::UnpackFileError;
use super::format::FormatError;
use super::qcow2::Qcow2Error;
use super::source::SourceError;

/// Writing an image failed. Whenever something had been written, the disk is left without a partition table.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The download failed.
    #[error("Download of image {id} failed")]
    Download {
        /// Image.
        id: String,
        /// Reason.
        #[source]
        source: SourceError,
    },
    /// Every URL failed, each in its own way.
    #[error("Download of image {id} failed: {}", failures.join("; "))]
    AllUrls {
        /// Image.
        id: String,
        /// One text for each URL.
        failures: Vec<String>,
        /// How many tries were made at all of them.
        tries: u32,
    },
    /// The download ended early or went on for too long.
    #[error("Download of image {id} failed: {got_bytes} bytes came instead of {want_bytes}")]
    Length {
        /// Image.
        id: String,
        /// Bytes that came.
        got_bytes: u64,
        /// Bytes that the server had announced.
        want_bytes: u64,
    },
    /// The connection's reader failed with something that is no [`SourceError`].
    #[error("Download of image {id} failed")]
    Stream {
        /// Image.
        id: String,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// Parts of the file that were read twice were not the same, so it changed on the server.
    #[error("Download of image {id} failed: the file changed on the server during the download")]
    Changed {
        /// Image.
        id: String,
    },
    /// How to log in to the image server is not clear.
    #[error("Download of image {id} failed: {reason}")]
    Credentials {
        /// Image.
        id: String,
        /// What is missing.
        reason: String,
    },
    /// No checksum can be had.
    #[error(transparent)]
    NoChecksum(#[from] ChecksumError),
    /// The image is not what it should be.
    #[error(
        "Image failed to verify against checksum. location: {location}; image ID: {id}; image checksum: {expected}; \
         verification checksum: {actual}"
    )]
    Checksum {
        /// Where it was written.
        location: String,
        /// Image.
        id: String,
        /// What it should have been.
        expected: String,
        /// What it was.
        actual: String,
    },
    /// The image's format is not accepted.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The compressed file turned out to be broken while it was being written, or needs more memory than there is.
    #[error("the image cannot be unpacked")]
    Compressed(#[source] UnpackFileError),
    /// The image file turned out to be broken while it was being written.
    #[error("the image is broken")]
    Broken(#[source] Qcow2Error),
    /// The image file cannot be written in the order in which it is downloaded.
    #[error(
        "the image cannot be written while it is downloaded from beginning to end, because {reason}; have a \
         server with support for Range requests serve it, or convert it to raw"
    )]
    NotSequential {
        /// What stands in the way.
        reason: &'static str,
    },
    /// The image file would take out of all proportion long.
    #[error(
        "the image is scattered all over its file, so that writing it takes too long (more than {limit} {what}); \
         lay it out anew with qemu-img convert and clusters of 64 KiB, or convert it to raw"
    )]
    Scattered {
        /// What there is too much of.
        what: &'static str,
        /// How much there may be.
        limit: u64,
    },
    /// The disk is too small.
    #[error("the image needs {image_bytes} bytes, but {} has only {device_bytes}", device.display())]
    TooLarge {
        /// Disk.
        device: PathBuf,
        /// What the image needs.
        image_bytes: u64,
        /// What there is.
        device_bytes: u64,
    },
    /// The image was made for another kind of disk.
    #[error(
        "the image has a partition table for disks with sectors of {image_sector} bytes, but {} has sectors of {sector} \
         bytes; deploy an image that was made for these", device.display()
    )]
    SectorSize {
        /// Disk.
        device: PathBuf,
        /// What the image needs, bytes.
        image_sector: u32,
        /// What the disk has, bytes.
        sector: u32,
    },
    /// An image of a whole disk was to go into a partition.
    #[error(
        "the image has a partition table of its own, so it is one of a whole disk, but it was to be written into the \
         partition {}; deploy it as a whole-disk image (in Ironic: no kernel and ramdisk with the image, or image_type \
         whole-disk)", device.display()
    )]
    NestedTable {
        /// Partition.
        device: PathBuf,
    },
    /// The partition could not be made.
    #[error(transparent)]
    Place(CommandError),
    /// The disk is write-protected.
    #[error("{} is read-only", device.display())]
    ReadOnly {
        /// Disk.
        device: PathBuf,
    },
    /// The disk failed.
    #[error("Writing image to device {} failed", device.display())]
    Device {
        /// Disk.
        device: PathBuf,
        /// Reason.
        #[source]
        source: BlockDevError,
    },
    /// The disk does not have what was written to it.
    #[error(
        "{} does not give back what was written to it: there is a difference between its bytes {from} and {to}; the disk, \
         its cable, its controller or the machine's memory is at fault", device.display()
    )]
    ReadBack {
        /// Disk.
        device: PathBuf,
        /// First byte of the part with the difference.
        from: u64,
        /// Last byte of it.
        to: u64,
    },
    /// A thread of the pipeline ended before its time.
    #[error("Writing image to device {} failed: {what}", device.display())]
    Stopped {
        /// Disk.
        device: PathBuf,
        /// Which thread.
        what: &'static str,
    },
}

impl ImageError {
    /// Class on the wire.
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::Download { source, .. } => source.class(),
            Self::AllUrls { .. } | Self::Length { .. } | Self::Stream { .. } | Self::Changed { .. } => {
                ErrorClass::ImageDownload
            }
            Self::Credentials { .. } => ErrorClass::ImageDownloadFatal,
            Self::NoChecksum(error) => error.class(),
            Self::Checksum { .. } => ErrorClass::ImageChecksum,
            Self::Format(error) => error.class(),
            Self::Place(error) => error.class,
            Self::NestedTable { .. } => ErrorClass::InvalidImage,
            Self::Compressed(_) | Self::Broken(_) | Self::NotSequential { .. } | Self::Scattered { .. } => {
                ErrorClass::InvalidImage
            }
            Self::TooLarge { .. }
            | Self::SectorSize { .. }
            | Self::ReadOnly { .. }
            | Self::Device { .. }
            | Self::ReadBack { .. }
            | Self::Stopped { .. } => ErrorClass::ImageWrite,
        }
    }

    /// Whether the whole download may be tried again: it or its checksum failed, and not for good.
    pub const fn is_worth_another_try(&self) -> bool {
        match self {
            Self::Place(_) => false,
            // Another download of the same list or credentials changes nothing; a time limit is over for good.
            Self::NoChecksum(ChecksumError::List { .. })
            | Self::Download { source: SourceError::TimedOut { .. }, .. } => false,
            error => matches!(error.class(), ErrorClass::ImageDownload | ErrorClass::ImageChecksum),
        }
    }

    /// How many tries of a connection it took to fail; one when the connection was not to blame.
    pub(super) const fn connection_tries(&self) -> u32 {
        match self {
            Self::Download { source, .. } => source.tries(),
            Self::AllUrls { tries, .. } => *tries,
            _ => 1,
        }
    }

    /// Whether the bytes of the image are at fault, so that its checksum should be looked at before this is believed.
    pub(super) const fn is_content(&self) -> bool {
        matches!(self, Self::Broken(_) | Self::Changed { .. } | Self::Compressed(_))
    }

    pub(super) fn from_stream(id: &str, error: io::Error) -> Self {
        match SourceError::from_io(error) {
            Ok(source) => Self::Download { id: id.to_owned(), source },
            Err(error) => match error.downcast() {
                Ok(source) => Self::Compressed(source),
                Err(source) => Self::Stream { id: id.to_owned(), source },
            },
        }
    }
}
