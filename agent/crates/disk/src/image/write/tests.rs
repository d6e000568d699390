use ferric_sys::testing::disk::{OLD_DATA, TestDisk};
use ferric_types::ErrorClass;
use ferric_types::error::chain;

use super::*;
use crate::image::target::is_zero;
use crate::image::testing::{TestSource, disk_content, path, progress, qcow2, spec, tool};

pub(super) const MIB: usize = 1 << 20;
/// Odd on purpose: ends within a cluster and within a sector of 4096 bytes.
pub(super) const VIRTUAL: usize = 6 * MIB + 3 * 512;
pub(super) const DISK: u64 = 8 << 20;

/// How a test reads an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Ranges,
    /// With so few extents in memory that many windows are needed.
    Windows,
    InOrder,
    /// And the server does not say how long the file is.
    InOrderUnsized,
}

pub(super) const MODES: [Mode; 4] = [Mode::Ranges, Mode::Windows, Mode::InOrder, Mode::InOrderUnsized];

pub(super) fn source(file: &[u8], mode: Mode) -> TestSource {
    let ranges = matches!(mode, Mode::Ranges | Mode::Windows);
    TestSource { ranges, hides_size: mode == Mode::InOrderUnsized, ..TestSource::ranged(file.to_vec()) }
}

pub(super) fn write(
    source: &mut TestSource,
    spec: &ImageSpec,
    disk: &TestDisk,
    mode: Mode,
) -> Result<WriteReport, ImageError> {
    let max_extents = if mode == Mode::Windows { 20 } else { MAX_EXTENTS };
    write_within(source, spec, &disk.open().unwrap(), &progress(), max_extents)
}

/// Writes a file and compares the whole disk with what it should be.
pub(super) fn assert_written(name: &str, file: &[u8], format: Option<&str>, content: &[u8], mode: Mode, sector: u32) {
    let disk = TestDisk::used(DISK).unwrap().sector(sector);
    let report = write(&mut source(file, mode), &spec(file, format), &disk, mode)
        .unwrap_or_else(|error| panic!("{name} {mode:?}: {}", chain(&error)));
    assert_eq!(report.downloaded_bytes, u64::try_from(file.len()).unwrap(), "{name} {mode:?}");
    assert_eq!(report.virtual_bytes, u64::try_from(content.len()).unwrap(), "{name} {mode:?}");
    assert_disk(&format!("{name} {mode:?}"), &disk, content, sector);
}

pub(super) fn assert_disk(name: &str, disk: &TestDisk, content: &[u8], sector: u32) {
    let mut want = vec![OLD_DATA; usize::try_from(DISK).unwrap()];
    // The head is written whole.
    want[..content.len().next_multiple_of(usize::try_from(sector).unwrap()).max(MIB)].fill(0);
    let wiped = want.len() - MIB;
    want[wiped..].fill(0);
    want[..content.len()].copy_from_slice(content);
    let got = disk.bytes(0, want.len()).unwrap();
    // Whole slices first: comparing bytes one by one takes long without optimisation.
    if got != want
        && let Some(at) = (0..want.len()).find(|at| got[*at] != want[*at])
    {
        panic!("{name}: byte {at} is {:#x}, not {:#x}", got[at], want[at]);
    }
}

/// Nothing at all was written.
pub(super) fn assert_untouched(name: &str, disk: &TestDisk) {
    let bytes = disk.bytes(0, usize::try_from(DISK).unwrap()).unwrap();
    assert!(bytes == vec![OLD_DATA; bytes.len()], "{name}: something was written");
}

/// No table at either end, whatever is in between; or a disk on which nothing was written yet.
pub(super) fn assert_no_table(name: &str, disk: &TestDisk) {
    let len = usize::try_from(DISK).unwrap();
    if disk.bytes(0, len).unwrap() == vec![OLD_DATA; len] {
        return;
    }
    assert!(is_zero(&disk.bytes(0, MIB).unwrap()), "{name}: the head is not zero");
    assert!(is_zero(&disk.bytes(DISK - (1 << 16), len >> 8).unwrap()), "{name}: the tail is not zero");
}

#[test]
fn raw_images_arrive_byte_for_byte() {
    for (name, len) in [("one byte", 1), ("a sector", 512), ("odd", VIRTUAL + 7), ("whole disk", 8 * MIB)] {
        let mut content = if len > 512 { disk_content(len) } else { vec![3; len] };
        // A disk with a backup GPT in its last sector.
        *content.last_mut().unwrap() = 0xee;
        for mode in [Mode::Ranges, Mode::InOrder, Mode::InOrderUnsized] {
            for format in [Some("raw"), None] {
                assert_written(name, &content, format, &content, mode, 512);
            }
            assert_written(name, &content, Some("raw"), &content, mode, 4096);
        }
    }
}

#[test]
fn a_qcow2_file_declared_raw_is_written_as_it_is() {
    let file = qcow2(&disk_content(2 * MIB), &[]);
    assert_written("qcow2 as raw", &file, Some("raw"), &file, Mode::Ranges, 512);
    assert_written("qcow2 as raw", &file, Some("raw"), &file, Mode::InOrder, 512);
}

#[test]
fn every_kind_of_qcow2_arrives_byte_for_byte() {
    let content = disk_content(VIRTUAL);
    let zstd = "compression_type=zstd";
    let cases: [(&str, &[&str]); 16] = [
        ("defaults", &[]),
        ("version 2", &["-o", "compat=0.10"]),
        ("version 2, zlib", &["-c", "-o", "compat=0.10"]),
        ("clusters of 512 bytes", &["-o", "cluster_size=512"]),
        ("clusters of 4 KiB", &["-o", "cluster_size=4k"]),
        ("clusters of 2 MiB", &["-o", "cluster_size=2M"]),
        ("zlib", &["-c"]),
        ("zlib, 4 KiB", &["-c", "-o", "cluster_size=4k"]),
        ("zlib, 2 MiB", &["-c", "-o", "cluster_size=2M"]),
        ("zstd", &["-c", "-o", zstd]),
        ("zstd, 512 bytes", &["-c", "-o", "compression_type=zstd,cluster_size=512"]),
        ("zstd, 2 MiB", &["-c", "-o", "compression_type=zstd,cluster_size=2M"]),
        ("zstd, not compressed", &["-o", zstd]),
        ("no holes", &["-S", "0"]),
        ("out of order", &["-W", "-m", "16"]),
        ("wide reference counts", &["-o", "refcount_bits=64,lazy_refcounts=on"]),
    ];
    for (name, args) in cases {
        let file = qcow2(&content, args);
        for mode in MODES {
            assert_written(name, &file, Some("qcow2"), &content, mode, 512);
        }
        assert_written(name, &file, None, &content, Mode::Ranges, 4096);
    }
}

#[test]
fn preallocated_images_arrive_byte_for_byte() {
    let content = disk_content(VIRTUAL);
    for preallocation in ["metadata", "falloc", "full"] {
        let file = qcow2(&content, &["-o", &format!("preallocation={preallocation}")]);
        for mode in [Mode::Ranges, Mode::Windows] {
            assert_written(preallocation, &file, Some("qcow2"), &content, mode, 512);
        }
        if preallocation == "metadata" {
            assert_written(preallocation, &file, Some("qcow2"), &content, Mode::InOrder, 512);
            continue;
        }
        // All data first, then the tables.
        let disk = TestDisk::used(DISK).unwrap();
        let error = write(&mut source(&file, Mode::InOrder), &spec(&file, None), &disk, Mode::InOrder).unwrap_err();
        assert!(matches!(error, ImageError::NotSequential { .. }), "{}", chain(&error));
        assert_untouched(preallocation, &disk);
    }
}

#[test]
fn an_image_that_was_used_for_a_while_arrives_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    let (file, flat) = (path(dir.path(), "used.qcow2"), path(dir.path(), "flat.raw"));
    tool("qemu-img", &["create", "-q", "-f", "qcow2", &file, "6M"]);
    tool(
        "qemu-io",
        &[
            "-c",
            "write -P 1 4M 300k",
            "-c",
            "write -P 2 1M 70k",
            "-c",
            "write -c -P 3 3M 64k",
            "-c",
            "write -P 4 0 512",
            "-c",
            "write -c -P 5 2M 64k",
            "-c",
            "write -P 6 5M 1M",
            "-c",
            "write -z 4M 64k",
            "-c",
            "write -c -P 7 1536k 64k",
            &file,
        ],
    );
    tool("qemu-img", &["snapshot", "-c", "one", &file]);
    tool("qemu-io", &["-c", "write -P 8 1M 10k", "-c", "write -z 5M 128k", "-c", "discard 3M 64k", &file]);
    tool("qemu-img", &["convert", "-f", "qcow2", "-O", "raw", &file, &flat]);
    let (file, content) = (std::fs::read(file).unwrap(), std::fs::read(flat).unwrap());
    for mode in [Mode::Ranges, Mode::Windows] {
        for sector in [512, 4096] {
            assert_written("used", &file, Some("qcow2"), &content, mode, sector);
        }
    }
    // The snapshot moved the tables behind their data.
    let disk = TestDisk::used(DISK).unwrap();
    let error = write(&mut source(&file, Mode::InOrder), &spec(&file, None), &disk, Mode::InOrder).unwrap_err();
    assert!(matches!(error, ImageError::NotSequential { .. }), "{}", chain(&error));
    assert!(error.to_string().contains("Range") && error.to_string().contains("raw"), "{error}");
    assert_untouched("used", &disk);
}

#[test]
fn an_empty_image_zeroes_its_part_of_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let file = path(dir.path(), "empty.qcow2");
    tool("qemu-img", &["create", "-q", "-f", "qcow2", &file, "6M"]);
    let file = std::fs::read(file).unwrap();
    for mode in MODES {
        assert_written("empty", &file, Some("qcow2"), &vec![0; 6 * MIB], mode, 512);
    }
}

#[test]
fn what_is_refused_by_its_header_leaves_the_disk_as_it_was() {
    let good = qcow2(&disk_content(2 * MIB), &[]);
    let changed = |offset: usize, bytes: &[u8]| {
        let mut file = good.clone();
        file[offset..offset + bytes.len()].copy_from_slice(bytes);
        file
    };
    let (unsafe_image, too_large) = ("Security: Image failed safety check", "only 8388608");
    let cases = [
        ("backing file", changed(8, &600_u64.to_be_bytes()), unsafe_image),
        ("data file", changed(72, &4_u64.to_be_bytes()), unsafe_image),
        ("extended L2", changed(72, &16_u64.to_be_bytes()), unsafe_image),
        ("unknown feature", changed(72, &(1_u64 << 40).to_be_bytes()), unsafe_image),
        ("encrypted", changed(32, &1_u32.to_be_bytes()), unsafe_image),
        ("cluster bits", changed(20, &8_u32.to_be_bytes()), unsafe_image),
        ("8 EiB", changed(24, &(1_u64 << 63).to_be_bytes()), unsafe_image),
        ("larger than the disk", changed(24, &(9_u64 << 20).to_be_bytes()), too_large),
        ("no disk at all", changed(24, &0_u64.to_be_bytes()), "the image is empty"),
        ("other format", disk_content(2 * MIB), "Security: Expected format was qcow2, but image was actually gpt"),
        ("not permitted", [b"QED\0".as_slice(), &[0; 600]].concat(), "Security: Detected image format was qed"),
        ("nothing", Vec::new(), "the image is empty"),
    ];
    for (name, file, want) in cases {
        for mode in [Mode::Ranges, Mode::InOrder] {
            let disk = TestDisk::used(DISK).unwrap();
            let error = write(&mut source(&file, mode), &spec(&file, Some("qcow2")), &disk, mode).expect_err(name);
            assert!(chain(&error).contains(want), "{name} {mode:?}: {}", chain(&error));
            let class = if want == too_large { ErrorClass::ImageWrite } else { ErrorClass::InvalidImage };
            assert_eq!(error.class(), class, "{name}");
            assert!(!error.is_worth_another_try(), "{name}");
            assert_untouched(name, &disk);
        }
    }
}

#[test]
fn hostile_tables_are_refused_before_anything_is_written() {
    let good = qcow2(&disk_content(2 * MIB), &[]);
    let l1 = usize::try_from(u64::from_be_bytes(good[40..48].try_into().unwrap())).unwrap();
    let l2 = u64::from_be_bytes(good[l1..l1 + 8].try_into().unwrap()) & 0x00ff_ffff_ffff_fe00;
    let l2 = usize::try_from(l2).unwrap();
    let changed = |offset: usize, value: u64| {
        let mut file = good.clone();
        file[offset..offset + 8].copy_from_slice(&value.to_be_bytes());
        file
    };
    let first = u64::from_be_bytes(good[l2..l2 + 8].try_into().unwrap());
    let far = 1 << 50;
    for (name, file, want) in [
        ("L1 outside", changed(40, far), "L1 table at"),
        ("L2 outside", changed(l1, far), "L2 table at"),
        ("L2 not aligned", changed(l1, 0x40200), "does not begin at a cluster"),
        ("L1 is its own L2", changed(l1, u64::try_from(l1).unwrap()), "use the same place"),
        ("L2 is the header", changed(l1, 0), ""),
        ("data outside", changed(l2 + 8, far), "a cluster at"),
        ("compressed outside", changed(l2 + 8, 1 << 62 | far), "a cluster at"),
        ("data not aligned", changed(l2 + 8, 0x50200), "does not begin at a cluster"),
        ("data twice", changed(l2 + 8, first), "use the same place"),
        ("data in its own table", changed(l2 + 8, u64::try_from(l2).unwrap()), "use the same place"),
        ("data in the header", changed(l2 + 8, 1 << 62), "use the same place"),
    ] {
        let disk = TestDisk::used(DISK).unwrap();
        let result = write(&mut source(&file, Mode::Ranges), &spec(&file, None), &disk, Mode::Ranges);
        if want.is_empty() {
            // An L1 entry of 0 means that there is nothing.
            assert_disk(name, &disk, &vec![0; 2 * MIB], 512);
            continue;
        }
        let error = result.expect_err(name);
        assert!(chain(&error).contains(want), "{name}: {}", chain(&error));
        assert_eq!(error.class(), ErrorClass::InvalidImage, "{name}");
        assert_untouched(name, &disk);
        // In order the same is found later, or is something that cannot be done in order; never a success.
        let disk = TestDisk::used(DISK).unwrap();
        let error = write(&mut source(&file, Mode::InOrder), &spec(&file, None), &disk, Mode::InOrder).expect_err(name);
        assert_eq!(error.class(), ErrorClass::InvalidImage, "{name}: {}", chain(&error));
    }
}

#[test]
fn a_wrong_checksum_leaves_no_table() {
    let content = disk_content(6 * MIB);
    let files = [("raw", content.clone()), ("qcow2", qcow2(&content, &[])), ("zlib", qcow2(&content, &["-c"]))];
    for (name, file) in files {
        for mode in MODES {
            // The last byte, one in the middle of the data, and one in the tables.
            for at in [file.len() - 1, file.len() / 2 + 77, 0x3_0001] {
                let disk = TestDisk::used(DISK).unwrap();
                let mut source = source(&file, mode);
                source.flipped_at = Some(u64::try_from(at).unwrap());
                let error = write(&mut source, &spec(&file, None), &disk, mode).expect_err(name);
                assert_eq!(error.class(), ErrorClass::ImageChecksum, "{name} {mode:?} {at}: {}", chain(&error));
                let text = error.to_string();
                let device = disk.path().display();
                let want = format!("Image failed to verify against checksum. location: {device}; image ID: image-1;");
                assert!(text.starts_with(&want) && text.contains("verification checksum: "), "{text}");
                assert!(error.is_worth_another_try());
                assert_no_table(name, &disk);
            }
        }
    }
}

#[test]
fn a_broken_image_with_the_right_checksum_is_invalid() {
    let text: Vec<u8> = (0..4 * MIB).map(|at| u8::try_from(at / 100 % 200).unwrap()).collect();
    let mut file = qcow2(&text, &["-c"]);
    let len = file.len();
    file[len - 30_000..len - 25_000].fill(0xff);
    for mode in MODES {
        let disk = TestDisk::used(DISK).unwrap();
        let error = write(&mut source(&file, mode), &spec(&file, None), &disk, mode).unwrap_err();
        assert_eq!(error.class(), ErrorClass::InvalidImage, "{mode:?} {}", chain(&error));
        assert!(chain(&error).contains("compressed cluster"), "{}", chain(&error));
        assert_no_table("broken", &disk);
    }
}

#[test]
fn a_truncated_file_is_refused() {
    let content = disk_content(4 * MIB);
    let file = qcow2(&content, &[]);
    let short = &file[..file.len() - 3 * 65536];
    for mode in MODES {
        let disk = TestDisk::used(DISK).unwrap();
        let error = write(&mut source(short, mode), &spec(short, None), &disk, mode).unwrap_err();
        assert_eq!(error.class(), ErrorClass::InvalidImage, "{mode:?} {}", chain(&error));
        if matches!(mode, Mode::Ranges) {
            assert_untouched("truncated", &disk);
        } else {
            assert!(disk.bytes(510, 2).unwrap() != [0x55, 0xaa]);
        }
    }
}

#[test]
fn a_file_that_ends_within_its_last_cluster_is_complete() {
    let mut content = vec![0; 4 * MIB];
    content[MIB..MIB + 65536 + 512].fill(9);
    let mut file = qcow2(&content, &[]);
    let end = file.len() - file.iter().rev().take_while(|byte| **byte == 0).count();
    file.truncate(end);
    for mode in MODES {
        assert_written("short cluster", &file, None, &content, mode, 512);
    }
}

#[test]
fn a_cut_download_leaves_no_table() {
    let content = disk_content(6 * MIB);
    for (name, file) in [("raw", content.clone()), ("qcow2", qcow2(&content, &[])), ("zlib", qcow2(&content, &["-c"]))]
    {
        for mode in MODES {
            let disk = TestDisk::used(DISK).unwrap();
            let mut source = source(&file, mode);
            source.cut_at = Some(u64::try_from(file.len() * 3 / 4).unwrap());
            let error = write(&mut source, &spec(&file, None), &disk, mode).expect_err(name);
            assert_eq!(error.class(), ErrorClass::ImageDownload, "{name} {mode:?}: {}", chain(&error));
            let want = "Download of image image-1 failed: downloading http://images/disk, 10 tries: connection reset";
            assert_eq!(chain(&error), want, "{name} {mode:?}");
            assert_no_table(name, &disk);
        }
    }
}

#[test]
fn a_file_that_changes_on_the_server_is_noticed() {
    // The stream carries the whole file under a good checksum; the ranges gave other tables.
    let file = qcow2(&disk_content(4 * MIB), &[]);
    let l1 = u64::from_be_bytes(file[40..48].try_into().unwrap());
    let mut source = source(&file, Mode::Ranges);
    source.flipped_at = Some(l1 + 7);
    let mut streamed = file;
    streamed[usize::try_from(l1).unwrap() + 7] ^= 1;
    let disk = TestDisk::used(DISK).unwrap();
    let error = write(&mut source, &spec(&streamed, None), &disk, Mode::Ranges).unwrap_err();
    assert!(matches!(error, ImageError::Changed { .. }), "{}", chain(&error));
    assert_eq!(error.class(), ErrorClass::ImageDownload);
    assert_no_table("changed", &disk);
}

#[test]
fn a_raw_image_larger_than_the_disk_is_refused() {
    let content = disk_content(9 * MIB);
    for mode in [Mode::Ranges, Mode::InOrder, Mode::InOrderUnsized] {
        let disk = TestDisk::used(DISK).unwrap();
        let error = write(&mut source(&content, mode), &spec(&content, None), &disk, mode).unwrap_err();
        assert!(matches!(error, ImageError::TooLarge { .. }), "{error}");
        assert_eq!(error.class(), ErrorClass::ImageWrite);
        if mode == Mode::InOrderUnsized {
            // Known only when the disk is full.
            assert_no_table("too large", &disk);
        } else {
            assert_untouched("too large", &disk);
        }
    }
}

#[test]
fn a_read_only_disk_is_refused_at_once() {
    let content = disk_content(2 * MIB);
    let disk = TestDisk::used(DISK).unwrap();
    let dev = BlockDev::open(disk.path(), ferric_sys::block_dev::Access::Read).unwrap();
    let mut source = TestSource::in_order(content.clone());
    let error = write_image(&mut source, &spec(&content, None), &dev, &progress()).unwrap_err();
    assert!(matches!(error, ImageError::ReadOnly { .. }), "{error}");
}

#[test]
fn progress_counts_the_bytes_of_the_file() {
    let content = disk_content(4 * MIB);
    let disk = TestDisk::used(DISK).unwrap();
    let mut source = TestSource::ranged(qcow2(&content, &[]));
    let progress = progress();
    let spec = spec(&source.bytes, None);
    let watcher = progress.clone();
    let report = write_image(&mut source, &spec, &disk.open().unwrap(), &progress).unwrap();
    assert_eq!(watcher.report().unwrap().phase, "flush");
    assert_eq!(report.format, Format::Qcow2);
    assert_eq!(report.checksum, spec.checksum.hex);
    // Holes are zeroed, not written; the held-back head is written whole.
    assert!(report.zeroed_bytes > 0 && report.written_bytes > 0, "{report:?}");
    assert!(report.written_bytes + report.zeroed_bytes >= report.virtual_bytes, "{report:?}");
}
