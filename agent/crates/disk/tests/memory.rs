//! Memory of a whole write, measured: this is the only test of its process.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use ferric_disk::image::checksum::{Algorithm, Checksum};
use ferric_disk::image::source::{ImageSource, SourceError};
use ferric_disk::image::{Format, ImageError, ImageSpec, write_image};
use ferric_sys::testing::disk::TestDisk;
use ferric_types::Progress;

/// What a write may add to the process; the worker's budget is 32 MiB in all.
const LIMIT_KIB: u64 = 20 << 10;

struct FileSource {
    file: File,
    has_ranges: bool,
}

impl ImageSource for FileSource {
    fn size_bytes(&self) -> Option<u64> {
        Some(self.file.metadata().unwrap().len())
    }

    fn has_ranges(&self) -> bool {
        self.has_ranges
    }

    fn stream(&mut self, offset: u64) -> Result<Box<dyn Read + Send + '_>, SourceError> {
        self.file.seek(SeekFrom::Start(offset)).unwrap();
        Ok(Box::new(&self.file))
    }

    fn read_exact_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        self.file.read_exact_at(buf, offset).unwrap();
        Ok(())
    }
}

/// A number of /proc/self/status in KiB.
fn status_kib(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// How much the peak of the process grows while an image is written.
fn growth_kib(image: &Path, has_ranges: bool, disk_bytes: u64) -> u64 {
    let disk = TestDisk::zeroed(disk_bytes).unwrap();
    let spec = ImageSpec {
        id: "image".to_owned(),
        disk_format: None,
        checksum: Checksum { algorithm: Algorithm::Sha256, hex: "unknown".to_owned() },
        permitted_formats: vec![Format::Raw, Format::Gpt, Format::Qcow2],
        deep_inspection: true,
    };
    let mut source = FileSource { file: File::open(image).unwrap(), has_ranges };
    // 5 sets the peak back to what is used now (proc_pid_clear_refs(5)).
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status_kib("VmRSS");
    let error = write_image(&mut source, &spec, &disk.open().unwrap(), &Progress::new()).unwrap_err();
    assert!(matches!(error, ImageError::Checksum { .. }), "{}", ferric_types::error::chain(&error));
    status_kib("VmHWM").saturating_sub(before)
}

#[expect(clippy::disallowed_methods, reason = "tests make their images with the reference tools")]
fn qemu_img(args: &[&str]) {
    let output = std::process::Command::new("qemu-img").args(args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A qcow2 file of 512-byte clusters that lie in the file in the reverse order of the disk, so that no two of them can
/// be joined: the most extents that a file of its size can have.
fn scattered(path: &Path, clusters: u64) {
    let tables = clusters.div_ceil(64);
    let l1_clusters = (tables * 8).div_ceil(512);
    let (l1, l2) = (512, 512 + l1_clusters * 512);
    let data = l2 + tables * 512;
    let mut header = vec![0; 512];
    header[..4].copy_from_slice(b"QFI\xfb");
    header[4..8].copy_from_slice(&3_u32.to_be_bytes());
    header[20..24].copy_from_slice(&9_u32.to_be_bytes());
    header[24..32].copy_from_slice(&(clusters * 512).to_be_bytes());
    header[36..40].copy_from_slice(&u32::try_from(tables).unwrap().to_be_bytes());
    header[40..48].copy_from_slice(&l1.to_be_bytes());
    header[100..104].copy_from_slice(&104_u32.to_be_bytes());
    let mut file = std::io::BufWriter::new(File::create(path).unwrap());
    file.write_all(&header).unwrap();
    for table in 0..l1_clusters * 64 {
        let offset = if table < tables { l2 + table * 512 } else { 0 };
        file.write_all(&offset.to_be_bytes()).unwrap();
    }
    for cluster in 0..tables * 64 {
        let offset = if cluster < clusters { data + (clusters - 1 - cluster) * 512 } else { 0 };
        file.write_all(&offset.to_be_bytes()).unwrap();
    }
    for cluster in 0..clusters {
        file.write_all(&[u8::try_from(cluster % 255).unwrap() + 1; 512]).unwrap();
    }
    file.flush().unwrap();
}

#[test]
fn a_write_needs_the_same_little_memory_whatever_the_image() {
    let dir = tempfile::tempdir().unwrap();
    let raw = dir.path().join("raw");
    let mut file = File::create(&raw).unwrap();
    let mut block = vec![0; 1 << 20];
    for index in 0..96_u64 {
        // Every other MiB hardly shrinks, so that compressed clusters of 2 MiB are as long as they get.
        let mut state = index + 1;
        for word in block.chunks_exact_mut(8) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let kept = if index % 8 == 7 { state >> 60 } else { state & 0x00ff_ffff_ffff_ffff };
            word.copy_from_slice(&kept.to_le_bytes());
        }
        file.write_all(&block).unwrap();
    }
    drop((file, block));
    let name = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let convert = |made: &str, options: &[&str]| {
        let (from, to) = (name("raw"), name(made));
        qemu_img(&[&["convert", "-f", "raw", "-O", "qcow2"], options, &[&from, &to]].concat());
    };
    convert("plain", &[]);
    convert("zlib", &["-c"]);
    convert("zstd-2m", &["-c", "-o", "compression_type=zstd,cluster_size=2M"]);
    convert("zlib-2m", &["-c", "-o", "cluster_size=2M"]);
    scattered(&dir.path().join("scattered"), 160 << 10);
    let disk_bytes = 256 << 20;
    for image in ["raw", "plain", "zlib", "zlib-2m", "zstd-2m", "scattered"] {
        for has_ranges in [true, false] {
            if image == "scattered" && !has_ranges {
                continue;
            }
            let growth = growth_kib(&dir.path().join(image), has_ranges, disk_bytes);
            println!("{image}, ranges {has_ranges}: {growth} KiB");
            assert!(growth <= LIMIT_KIB, "{image}, ranges {has_ranges}: {growth} KiB");
        }
    }
}
