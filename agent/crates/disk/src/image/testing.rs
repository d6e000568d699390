//! An image server in memory, for tests.

use std::io::{self, Read};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ferric_types::Progress;

use super::checksum::{Algorithm, Checksum};
use super::format::Format;
use super::source::{Fetch, FetchRequest, ImageSource, SourceError};
use super::write::ImageSpec;

/// A file on a server, with the faults that a test wants.
#[derive(Debug, Clone, Default)]
pub(super) struct TestSource {
    pub(super) bytes: Arc<Vec<u8>>,
    pub(super) ranges: bool,
    pub(super) hides_size: bool,
    /// The stream fails at this offset.
    pub(super) cut_at: Option<u64>,
    /// The stream, but no range, has one wrong bit at this offset.
    pub(super) flipped_at: Option<u64>,
    /// How often a range was asked for.
    pub(super) range_requests: u64,
}

impl TestSource {
    pub(super) fn ranged(bytes: Vec<u8>) -> Self {
        Self { bytes: Arc::new(bytes), ranges: true, ..Self::default() }
    }

    pub(super) fn in_order(bytes: Vec<u8>) -> Self {
        Self { ranges: false, ..Self::ranged(bytes) }
    }
}

impl ImageSource for TestSource {
    fn size_bytes(&self) -> Option<u64> {
        (!self.hides_size).then(|| u64::try_from(self.bytes.len()).unwrap())
    }

    fn has_ranges(&self) -> bool {
        self.ranges
    }

    fn stream(&mut self, offset: u64) -> Result<Box<dyn Read + Send + '_>, SourceError> {
        assert!(offset == 0 || self.ranges, "a range was asked for");
        Ok(Box::new(Stream { source: self, at: usize::try_from(offset).unwrap() }))
    }

    fn read_exact_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        assert!(self.ranges, "a range was asked for");
        self.range_requests += 1;
        let offset = usize::try_from(offset).unwrap();
        buf.copy_from_slice(&self.bytes[offset..offset + buf.len()]);
        Ok(())
    }
}

struct Stream<'a> {
    source: &'a TestSource,
    at: usize,
}

impl Read for Stream<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let cut = self.source.cut_at.map_or(usize::MAX, |cut| usize::try_from(cut).unwrap());
        if self.at >= cut {
            let failed = SourceError::Failed {
                url: "http://images/disk".to_owned(),
                tries: 10,
                source: "connection reset".into(),
            };
            return Err(failed.into_io());
        }
        let end = self.source.bytes.len().min(cut);
        // Odd lengths, as a network gives them.
        let len = (end - self.at).min(buf.len()).min(61_441);
        let from = &self.source.bytes[self.at..self.at + len];
        buf[..len].copy_from_slice(from);
        if let Some(flipped) = self.source.flipped_at.map(|flipped| usize::try_from(flipped).unwrap())
            && (self.at..self.at + len).contains(&flipped)
        {
            buf[flipped - self.at] ^= 1;
        }
        self.at += len;
        Ok(len)
    }
}

/// A server that has one file, under any URL with `good` in it; counts what is asked of it.
#[derive(Debug, Default)]
pub(super) struct TestServer {
    pub(super) image: TestSource,
    pub(super) list: String,
    pub(super) opened: AtomicU32,
    /// The first opens give a damaged download.
    pub(super) bad_downloads: u32,
}

impl Fetch for TestServer {
    fn open(&self, request: &FetchRequest) -> Result<Box<dyn ImageSource>, SourceError> {
        let opened = self.opened.fetch_add(1, Ordering::SeqCst);
        let url = request.url.clone();
        if url.contains("gone") {
            return Err(SourceError::Fatal { url, source: "Received status code 404".into() });
        }
        if !url.contains("good") {
            return Err(SourceError::Failed { url, tries: 2, source: "connection refused".into() });
        }
        let mut image = self.image.clone();
        if opened < self.bad_downloads {
            image.flipped_at = Some(u64::try_from(image.bytes.len()).unwrap() - 1);
        }
        Ok(Box::new(image))
    }

    fn get(&self, _request: &FetchRequest, _limit: u64) -> Result<Vec<u8>, SourceError> {
        Ok(self.list.clone().into_bytes())
    }
}

pub(super) fn sha256(bytes: &[u8]) -> String {
    let mut hasher = Algorithm::Sha256.hasher();
    hasher.update(bytes);
    hasher.finish()
}

/// An image with the right checksum, in a format that Ironic declares or not.
pub(super) fn spec(file: &[u8], disk_format: Option<&str>) -> ImageSpec {
    ImageSpec {
        id: "image-1".to_owned(),
        disk_format: disk_format.map(str::to_owned),
        checksum: Checksum { algorithm: Algorithm::Sha256, hex: sha256(file) },
        permitted_formats: vec![Format::Raw, Format::Gpt, Format::Qcow2],
        deep_inspection: true,
        unpack_bytes: 16 << 20,
        read_back: false,
    }
}

pub(super) fn progress() -> Progress {
    Progress::new()
}

/// Bytes that look like a used disk: noise, text, holes and short runs of zeroes, with a partition table.
pub(super) fn disk_content(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        // One of several kinds for each 32 KiB.
        let block = bytes.len() >> 15;
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let word = match block % 11 {
            0 | 4 | 5 => state.to_le_bytes(),
            1 | 6 => (state >> 60).to_le_bytes(),
            2 => *b"lorem ip",
            3 if bytes.len() % 4096 < 512 => [7; 8],
            _ => [0; 8],
        };
        bytes.extend(word);
    }
    bytes.truncate(len);
    bytes[446..510].fill(0);
    bytes[446..462].copy_from_slice(&[0x80, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 16, 0, 0]);
    bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
    bytes
}

/// Runs a program of qemu-utils.
#[expect(clippy::disallowed_methods, reason = "tests make their images with the reference tools")]
pub(super) fn tool(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A qcow2 file of `content`, made by `qemu-img convert` with further arguments.
pub(super) fn qcow2(content: &[u8], args: &[&str]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let (raw, made) = (path(dir.path(), "raw"), path(dir.path(), "qcow2"));
    std::fs::write(&raw, content).unwrap();
    let mut all = vec!["convert", "-f", "raw", "-O", "qcow2"];
    all.extend(args);
    all.extend([raw.as_str(), made.as_str()]);
    tool("qemu-img", &all);
    std::fs::read(made).unwrap()
}

/// A qcow2 file with clusters of 512 bytes: `tables` are the places of its L2 tables, `clusters` those of the clusters in
/// the order of the disk, both as numbers of clusters behind the L1 table. The content of a cluster is its number.
pub(super) fn tiny_clusters(tables: &[u64], clusters: &[u64]) -> Vec<u8> {
    let table_count = u64::try_from(tables.len()).unwrap();
    let (l1, first) = (512, 512 + (table_count * 8).next_multiple_of(512));
    let highest = tables.iter().chain(clusters).max().unwrap();
    let mut file = vec![0; usize::try_from(first + (highest + 1) * 512).unwrap()];
    let mut put = |at: u64, bytes: &[u8]| {
        let at = usize::try_from(at).unwrap();
        file[at..at + bytes.len()].copy_from_slice(bytes);
    };
    put(0, b"QFI\xfb");
    put(4, &3_u32.to_be_bytes());
    put(20, &9_u32.to_be_bytes());
    put(24, &(table_count * 64 * 512).to_be_bytes());
    put(36, &u32::try_from(table_count).unwrap().to_be_bytes());
    put(40, &512_u64.to_be_bytes());
    put(100, &104_u32.to_be_bytes());
    for (number, table) in (0_u64..).zip(tables) {
        put(l1 + number * 8, &(first + table * 512).to_be_bytes());
    }
    for (number, cluster) in (0_u64..).zip(clusters) {
        let table = tables[usize::try_from(number / 64).unwrap()];
        put(first + table * 512 + number % 64 * 8, &(first + cluster * 512).to_be_bytes());
        if clusters.len() < 100_000 {
            put(first + cluster * 512, &number.to_be_bytes());
        }
    }
    file
}

/// The numbers from `from` to `to` in an order that looks random.
pub(super) fn shuffled(from: u64, to: u64) -> Vec<u64> {
    let mut numbers: Vec<u64> = (from..to).collect();
    let mut state = 1_u64;
    for index in (1..numbers.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        numbers.swap(index, usize::try_from((state >> 33) % (u64::try_from(index).unwrap() + 1)).unwrap());
    }
    numbers
}

pub(super) fn path(dir: &Path, name: &str) -> String {
    dir.join(name).to_str().unwrap().to_owned()
}
