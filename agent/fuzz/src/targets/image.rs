//! Whole images, through the whole pipeline.

use std::io::{Read, Write};

use ferric_disk::image::checksum::{Algorithm, Checksum};
use ferric_disk::image::source::{ImageSource, SourceError};
use ferric_disk::image::{Format, ImageError, ImageSpec, WriteReport, write_image};
use ferric_sys::testing::disk::TestDisk;
use ferric_types::error::chain;
use ferric_types::{ErrorClass, Progress};

use super::{choice, seal};

/// Size of the disk: the two ends that are held back, and a part between.
const DISK_BYTES: u64 = 2560 << 10;
const HEAD_BYTES: usize = 1 << 20;
/// What the disk holds before: all of the part between, the first and the last page.
const OLD: u8 = 0xa5;

/// An image file as a server has it. Whoever asks for what is behind its end is at fault.
struct Server<'a> {
    file: &'a [u8],
    ranges: bool,
}

impl ImageSource for Server<'_> {
    fn size_bytes(&self) -> Option<u64> {
        u64::try_from(self.file.len()).ok()
    }

    fn has_ranges(&self) -> bool {
        self.ranges
    }

    fn stream(&mut self, offset: u64) -> Result<Box<dyn Read + Send + '_>, SourceError> {
        assert!(offset == 0 || self.ranges, "a range was asked for");
        Ok(Box::new(&self.file[usize::try_from(offset).unwrap()..]))
    }

    fn read_exact_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        assert!(self.ranges, "a range was asked for");
        let offset = usize::try_from(offset).unwrap();
        buf.copy_from_slice(&self.file[offset..offset + buf.len()]);
        Ok(())
    }
}

/// A qcow2 file.
pub fn qcow2(data: &[u8]) {
    both_ways(data, Some("qcow2"));
}

/// A VMDK file. One with its tables at its end is read by its markers alone in one pass, so that the two ways need not lead to
/// the same when tables and markers contradict each other.
pub fn vmdk(data: &[u8]) {
    let has_tables_at_end = data.get(56..64) == Some(&[0xff; 8]);
    let [by_ranges, in_order] = both(data, Some("vmdk"));
    if !has_tables_at_end {
        compare(by_ranges, in_order);
    }
}

/// A VHD file; its checksums are made right, so that what lies behind them is reached.
pub fn vhd(data: &[u8]) {
    let mut file = data.to_vec();
    seal::vhd(&mut file);
    both_ways(&file, Some("vhd"));
}

/// An image compressed as a whole, as it is or packed here and then damaged; declared raw or not at all.
pub fn packed(data: &[u8]) {
    let (kind, rest) = choice(data);
    let (at, content) = choice(rest);
    let at = usize::from(at) * 8;
    let mut file = match kind & 3 {
        0 => content.to_vec(),
        1 => gzip(content),
        2 => zstd::bulk::compress(content, 1).unwrap(),
        _ => xz(content),
    };
    match kind >> 2 & 7 {
        // Another member behind it.
        1 => file.extend_from_within(..),
        2 => file.push(kind),
        3 => file.truncate(at),
        4 | 5 => {
            let len = file.len();
            if let Some(byte) = file.get_mut(if kind & 32 == 0 { at } else { len.saturating_sub(at / 8 + 1) }) {
                *byte ^= 1 << (kind >> 6);
            }
        }
        _ => {}
    }
    both_ways(&file, if kind & 64 == 0 { Some("raw") } else { None });
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn xz(content: &[u8]) -> Vec<u8> {
    let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 0);
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

type Outcome = (Result<WriteReport, ImageError>, Vec<u8>);

fn both_ways(file: &[u8], format: Option<&str>) {
    let [by_ranges, in_order] = both(file, format);
    compare(by_ranges, in_order);
}

/// Writes a file by ranges and in order: each way ends in a disk with an image, or in a refusal and a disk without a table.
fn both(file: &[u8], format: Option<&str>) -> [Outcome; 2] {
    let outcomes = [true, false].map(|ranges| write(file, format, ranges));
    for error in outcomes.iter().filter_map(|(result, _)| result.as_ref().err()) {
        // Not the disk's, which only does as it is told.
        let is_refusal = matches!(error.class(), ErrorClass::InvalidImage | ErrorClass::ImageWrite)
            && !matches!(error, ImageError::Device { .. } | ImageError::Stopped { .. });
        assert!(is_refusal, "{}", chain(error));
    }
    outcomes
}

/// Both ways lead to the same, and what can be read in one pass can be read by ranges too.
fn compare((by_ranges, first): Outcome, (in_order, second): Outcome) {
    match (by_ranges, in_order) {
        (Ok(by_ranges), Ok(in_order)) => {
            assert_eq!(by_ranges.virtual_bytes, in_order.virtual_bytes);
            assert_eq!(by_ranges.format, in_order.format);
            // Not byte by byte, which takes longer than all the rest.
            assert!(first == second, "the disks differ");
        }
        (Err(error), Ok(_)) => panic!("by ranges: {}", chain(&error)),
        // One pass only takes longer, or needs what comes later.
        (Ok(_), Err(ImageError::NotSequential { .. } | ImageError::Scattered { .. })) | (Err(_), Err(_)) => {}
        (Ok(_), Err(error)) => panic!("in order: {}", chain(&error)),
    }
}

fn write(file: &[u8], format: Option<&str>, ranges: bool) -> Outcome {
    let disk = TestDisk::zeroed(DISK_BYTES).unwrap();
    let device = disk.open().unwrap();
    let tail = DISK_BYTES - 4096;
    device.write_at(0, &[OLD; 4096]).unwrap();
    device.write_at(1 << 20, &[OLD; 512 << 10]).unwrap();
    device.write_at(tail, &[OLD; 4096]).unwrap();
    let mut hasher = Algorithm::Sha256.hasher();
    hasher.update(file);
    let spec = ImageSpec {
        id: "image".to_owned(),
        disk_format: format.map(str::to_owned),
        checksum: Checksum { algorithm: Algorithm::Sha256, hex: hasher.finish() },
        permitted_formats: vec![Format::Raw, Format::Gpt, Format::Qcow2, Format::Vmdk, Format::Vhd],
        deep_inspection: true,
        unpack_bytes: 16 << 20,
        read_back: false,
    };
    let result = write_image(&mut Server { file, ranges }, &spec, &device, &Progress::new());
    let bytes = disk.bytes(0, usize::try_from(DISK_BYTES).unwrap()).unwrap();
    if let Err(error) = &result {
        let (head, old) = (&bytes[..HEAD_BYTES], [OLD; 4096]);
        let is_zero = |bytes: &[u8]| bytes == &[0; HEAD_BYTES][..bytes.len()];
        let untouched = head[..4096] == old && bytes[usize::try_from(tail).unwrap()..] == old;
        assert!(is_zero(head) || untouched && is_zero(&head[4096..]), "the disk has a head: {}", chain(error));
    }
    (result, bytes)
}
