//! One attempt at writing an image.

use ferric_sys::block_dev::BlockDev;
use ferric_types::Progress;

use super::checksum::Checksum;
use super::download::Tally;
use super::error::ImageError;
use super::format::Format;
use super::place::Place;
use super::qcow2::MAX_EXTENTS;
use super::source::ImageSource;
use super::target::Target;
use attempt::{Attempt, Content};

mod attempt;

/// What is to be written.
#[derive(Debug, Clone)]
pub struct ImageSpec {
    /// Identifier, for errors.
    pub id: String,
    /// Format as Ironic declares it.
    pub disk_format: Option<String>,
    /// What the file as downloaded must hash to.
    pub checksum: Checksum,
    /// Formats that may be written.
    pub permitted_formats: Vec<Format>,
    /// Whether the content is judged beyond its signature.
    pub deep_inspection: bool,
    /// Memory that may be used to unpack a compressed file, in bytes.
    pub unpack_bytes: u64,
    /// Whether what was written is read back from the disk and compared.
    pub read_back: bool,
}

impl ImageSpec {
    fn is_declared_raw(&self) -> bool {
        matches!(self.disk_format.as_deref().and_then(Format::from_name), Some(Format::Raw | Format::Gpt))
    }
}

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteReport {
    /// Format of the image.
    pub format: Format,
    /// Size of the disk in the image.
    pub virtual_bytes: u64,
    /// Size of the file.
    pub downloaded_bytes: u64,
    /// Bytes written to the disk.
    pub written_bytes: u64,
    /// Bytes of the disk that were zeroed instead.
    pub zeroed_bytes: u64,
    /// Digest of the file.
    pub checksum: String,
}

/// Writes an image to a disk in one pass and checks it. Until everything is on the medium and the checksum holds, the
/// disk has no partition table: the first MiB is zeroed at the start and written last. What can be refused is refused
/// before anything is written.
///
/// # Errors
/// Any [`ImageError`]; [`ImageError::is_worth_another_try`] tells whether the caller should begin again.
pub fn write_image(
    source: &mut dyn ImageSource,
    spec: &ImageSpec,
    device: &BlockDev,
    progress: &Progress,
) -> Result<WriteReport, ImageError> {
    write_to(source, spec, device, Place::Disk, progress)
}

/// [`write_image`] into any place.
///
/// # Errors
/// As for [`write_image`].
pub(super) fn write_to(
    source: &mut dyn ImageSource,
    spec: &ImageSpec,
    device: &BlockDev,
    place: Place<'_>,
    progress: &Progress,
) -> Result<WriteReport, ImageError> {
    let target = Target::new(device, place)?;
    let target = if spec.read_back { target.reading_back() } else { target };
    write_target(source, spec, &target, progress, MAX_EXTENTS)
}

/// [`write_to`] with a limit to the extents of a qcow2 file that are kept in memory.
fn write_target(
    source: &mut dyn ImageSource,
    spec: &ImageSpec,
    target: &Target<'_>,
    progress: &Progress,
    max_extents: usize,
) -> Result<WriteReport, ImageError> {
    let attempt = Attempt { spec, target, progress, max_extents };
    let mut tally = Tally { hasher: spec.checksum.algorithm.hasher(), bytes: 0 };
    let size_bytes = source.size_bytes();
    let outcome = match size_bytes {
        Some(file_bytes) if source.has_ranges() => attempt.with_ranges(source, file_bytes, &mut tally),
        _ => attempt.in_order(source, &mut tally),
    };
    match outcome {
        // A broken image may be a broken download: the checksum tells, and with it whether another try makes sense.
        Err(error) if error.is_content() => {
            attempt.hash_rest(source, &mut tally)?;
            attempt.verify(size_bytes, tally)?;
            Err(error)
        }
        Err(error) => Err(error),
        Ok(content) => {
            progress.phase("flush", None);
            target.flush()?;
            let downloaded_bytes = tally.bytes;
            let checksum = attempt.verify(size_bytes, tally)?;
            let Content { format, virtual_bytes } = content;
            target.read_back(virtual_bytes, progress)?;
            target.finish()?;
            let (written_bytes, zeroed_bytes) = target.counts();
            Ok(WriteReport { format, virtual_bytes, downloaded_bytes, written_bytes, zeroed_bytes, checksum })
        }
    }
}

/// [`write_image`] with a limit to the extents of a qcow2 file that are kept in memory.
#[cfg(test)]
fn write_within(
    source: &mut dyn ImageSource,
    spec: &ImageSpec,
    device: &BlockDev,
    progress: &Progress,
    max_extents: usize,
) -> Result<WriteReport, ImageError> {
    write_target(source, spec, &Target::new(device, Place::Disk)?, progress, max_extents)
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod packed_tests;
#[cfg(test)]
mod place_tests;
#[cfg(test)]
mod refusal_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod vmdk_vhd_tests;
