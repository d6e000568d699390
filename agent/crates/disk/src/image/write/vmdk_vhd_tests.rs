//! VMDK and VHD files: every kind arrives byte for byte, and whatever is done to them leaves no bootable disk.

use ferric_sys::testing::disk::{OLD_DATA, TestDisk};
use ferric_types::ErrorClass;
use ferric_types::error::chain;
use proptest::prelude::*;

use super::tests::{DISK, MIB, MODES, Mode, VIRTUAL, assert_disk, assert_no_table, assert_untouched, source, write};
use super::*;
use crate::image::target::is_zero;
use crate::image::testing::{TestSource, disk_content, path, progress, qcow2, spec as plain_spec, tool};
use crate::image::vmdk::tests::stream_optimized;

/// A file of `content` that `qemu-img convert` makes.
fn made(content: &[u8], format: &str, options: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let (raw, made) = (path(dir.path(), "raw"), path(dir.path(), "made"));
    std::fs::write(&raw, content).unwrap();
    tool("qemu-img", &["convert", "-f", "raw", "-O", format, "-o", options, &raw, &made]);
    std::fs::read(made).unwrap()
}

/// What `qemu-img convert` reads out of a file.
fn flat(file: &[u8], format: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let (from, raw) = (path(dir.path(), "from"), path(dir.path(), "raw"));
    std::fs::write(&from, file).unwrap();
    tool("qemu-img", &["convert", "-f", format, "-O", "raw", &from, &raw]);
    std::fs::read(raw).unwrap()
}

fn spec(file: &[u8], disk_format: Option<&str>) -> ImageSpec {
    let permitted_formats = vec![Format::Raw, Format::Gpt, Format::Qcow2, Format::Vmdk, Format::Vhd];
    ImageSpec { permitted_formats, ..plain_spec(file, disk_format) }
}

/// Every kind of file, with its format's name.
fn files(content: &[u8]) -> [(&'static str, &'static str, Vec<u8>); 6] {
    [
        ("sparse", "vmdk", made(content, "vmdk", "subformat=monolithicSparse")),
        ("zeroed grains", "vmdk", made(content, "vmdk", "subformat=monolithicSparse,zeroed_grain=on")),
        ("stream, tables first", "vmdk", made(content, "vmdk", "subformat=streamOptimized")),
        ("stream, tables last", "vmdk", stream_optimized(content)),
        ("dynamic", "vhd", made(content, "vpc", "subformat=dynamic,force_size=on")),
        ("fixed", "vhd", made(content, "vpc", "subformat=fixed,force_size=on")),
    ]
}

fn assert_written(name: &str, file: &[u8], format: Option<&str>, content: &[u8], mode: Mode, sector: u32) {
    let disk = TestDisk::used(DISK).unwrap().sector(sector);
    let report = write(&mut source(file, mode), &spec(file, format), &disk, mode)
        .unwrap_or_else(|error| panic!("{name} {mode:?}: {}", chain(&error)));
    assert_eq!(report.downloaded_bytes, u64::try_from(file.len()).unwrap(), "{name} {mode:?}");
    assert_eq!(report.virtual_bytes, u64::try_from(content.len()).unwrap(), "{name} {mode:?}");
    assert_disk(&format!("{name} {mode:?}"), &disk, content, sector);
}

#[test]
fn every_kind_arrives_byte_for_byte() {
    let content = disk_content(VIRTUAL);
    for (name, format, file) in files(&content) {
        for mode in MODES {
            assert_written(name, &file, Some(format), &content, mode, 512);
        }
        assert_written(name, &file, Some(format), &content, Mode::Ranges, 4096);
        if name != "fixed" {
            assert_written(name, &file, None, &content, Mode::Ranges, 512);
            assert_written(name, &file, Some("unknown"), &content, Mode::InOrder, 512);
        }
        let read = flat(&file, if format == "vhd" { "vpc" } else { format });
        assert!(read == content, "{name}: qemu-img reads something else");
    }
}

/// Empty, and with data in the last grain alone.
#[test]
fn mostly_empty_disks_arrive_byte_for_byte() {
    let empty = vec![0; 5 * MIB + 512];
    let mut last = empty.clone();
    last[5 * MIB..].fill(9);
    for content in [empty, last] {
        for (name, format, file) in files(&content) {
            for mode in [Mode::Ranges, Mode::InOrder, Mode::InOrderUnsized] {
                assert_written(name, &file, Some(format), &content, mode, 512);
            }
        }
    }
}

/// More than one grain table, and a disk in the image that does not end with one.
#[test]
fn several_grain_tables_work() {
    let size = 70 * MIB + 512;
    let mut content = vec![0; size];
    for at in [0, 31 * MIB, 33 * MIB + 7, size - 512] {
        content[at..at + 512].fill(3);
    }
    for (name, format, file) in files(&content) {
        for mode in MODES {
            let disk = TestDisk::zeroed(80 << 20).unwrap();
            let dev = disk.open().unwrap();
            // Old data in the way.
            dev.write_at(40 << 20, &[OLD_DATA; 4096]).unwrap();
            write(&mut source(&file, mode), &spec(&file, Some(format)), &disk, mode)
                .unwrap_or_else(|error| panic!("{name} {mode:?}: {}", chain(&error)));
            assert!(disk.bytes(0, size).unwrap() == content, "{name} {mode:?}");
        }
    }
}

#[test]
fn a_vmdk_that_was_used_for_a_while_arrives_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    let file = path(dir.path(), "used.vmdk");
    tool("qemu-img", &["create", "-q", "-f", "vmdk", "-o", "zeroed_grain=on", &file, "70M"]);
    let work =
        ["write -P 1 40M 300k", "write -P 2 1M 70k", "write -z 40M 64k", "write -P 4 0 512", "write -P 5 69M 1M"];
    let mut args: Vec<&str> = work.iter().flat_map(|line| ["-c", line]).collect();
    args.push(&file);
    tool("qemu-io", &args);
    let file = std::fs::read(file).unwrap();
    let content = flat(&file, "vmdk");
    for mode in MODES {
        let disk = TestDisk::zeroed(80 << 20).unwrap();
        write(&mut source(&file, mode), &spec(&file, None), &disk, mode)
            .unwrap_or_else(|error| panic!("{mode:?}: {}", chain(&error)));
        assert!(disk.bytes(0, content.len()).unwrap() == content, "{mode:?}");
    }
}

/// The table is seen before anything is written, with ranges; otherwise the partition is left empty.
#[test]
fn an_image_of_a_whole_disk_does_not_get_into_a_partition() {
    for (name, format, file) in files(&disk_content(2 * MIB)) {
        for mode in [Mode::Ranges, Mode::InOrder] {
            let disk = TestDisk::used(DISK).unwrap();
            let (dev, spec) = (disk.open().unwrap(), spec(&file, Some(format)));
            let place = Place::Partition(&|| Ok(()));
            let error = write_to(&mut source(&file, mode), &spec, &dev, place, &progress()).expect_err(name);
            assert!(matches!(error, ImageError::NestedTable { .. }), "{name} {mode:?}: {}", chain(&error));
            if mode == Mode::Ranges {
                assert_untouched(name, &disk);
            } else {
                assert_no_table(name, &disk);
            }
        }
    }
}

/// The directory and tables of a sparse file, put behind its grains.
#[test]
fn tables_behind_the_data_need_ranges() {
    let content = disk_content(VIRTUAL);
    let mut file = made(&content, "vmdk", "subformat=monolithicSparse");
    let number = |file: &[u8], at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    let sector = |len: usize| u32::try_from(len / 512).unwrap();
    let table = usize::try_from(number(&file, usize::try_from(number(&file, 56)).unwrap() * 512)).unwrap() * 512;
    file.resize(file.len().next_multiple_of(512), 0);
    let moved = sector(file.len());
    file.extend_from_within(table..table + 2048);
    let directory = sector(file.len());
    file.extend(moved.to_le_bytes());
    file.resize(file.len().next_multiple_of(512), 0);
    file[56..60].copy_from_slice(&directory.to_le_bytes());
    for mode in [Mode::Ranges, Mode::Windows] {
        assert_written("moved", &file, Some("vmdk"), &content, mode, 512);
    }
    for mode in [Mode::InOrder, Mode::InOrderUnsized] {
        let disk = TestDisk::used(DISK).unwrap();
        let error = write(&mut source(&file, mode), &spec(&file, None), &disk, mode).unwrap_err();
        assert!(matches!(error, ImageError::NotSequential { .. }), "{}", chain(&error));
        assert_untouched("moved", &disk);
    }
}

#[test]
fn what_is_not_permitted_or_not_so_is_refused_untouched() {
    let content = disk_content(2 * MIB);
    let big = disk_content(9 * MIB);
    let base = made(&content, "vmdk", "subformat=monolithicSparse");
    let sparse = |from: &[u8], to: &[u8]| {
        let mut file = base.clone();
        let at = file.windows(from.len()).position(|bytes| bytes == from).unwrap();
        file[at..at + to.len()].copy_from_slice(to);
        file
    };
    let mut differencing = made(&content, "vpc", "subformat=dynamic,force_size=on");
    differencing[63] = 4;
    differencing[67] -= 1;
    let fixed = made(&content, "vpc", "subformat=fixed,force_size=on");
    let flat_text = b"# Disk DescriptorFile\nversion=1\nRW 1 FLAT \"/dev/sda\" 0\n".repeat(20);
    for (name, file, format, want) in [
        ("parent", sparse(b"parentCID=ffffffff", b"parentCID=12345678"), Some("vmdk"), "has a parent"),
        ("flat", sparse(b"monolithicSparse", b"monolithicFlat\"\n"), None, "neither monolithicSparse"),
        ("path", sparse(b"SPARSE \"", b"SPARSE /"), None, "another place"),
        ("descriptor alone", flat_text, None, "not one of a single sparse extent"),
        ("differencing", differencing, Some("vhd"), "has a parent"),
        ("qcow2 as vmdk", qcow2(&content, &[]), Some("vmdk"), "Expected format was vmdk"),
        ("vmdk as vhd", base.clone(), Some("vhd"), "Expected format was vhd"),
        ("raw as vhd", content.clone(), Some("vhd"), "no footer of a known version"),
        ("fixed as vmdk", fixed.clone(), Some("vmdk"), "Expected format was vmdk, but image was actually gpt"),
        ("fixed, cut", fixed[512..].to_vec(), Some("vhd"), "not as long as its footer says"),
    ] {
        let disk = TestDisk::used(DISK).unwrap();
        let error = write(&mut source(&file, Mode::Ranges), &spec(&file, format), &disk, Mode::Ranges).expect_err(name);
        assert!(chain(&error).contains(want), "{name}: {}", chain(&error));
        assert_eq!(error.class(), ErrorClass::InvalidImage, "{name}");
        assert_untouched(name, &disk);
        let error =
            write(&mut source(&file, Mode::InOrder), &spec(&file, format), &disk, Mode::InOrder).expect_err(name);
        assert!(chain(&error).contains(want), "{name}: {}", chain(&error));
        assert_eq!(error.class(), ErrorClass::InvalidImage, "{name}");
        assert_no_table(name, &disk);
    }
    // The size is in the header, or is that of the file.
    for (name, format, file) in files(&big) {
        for mode in MODES {
            let disk = TestDisk::used(DISK).unwrap();
            let error = write(&mut source(&file, mode), &spec(&file, Some(format)), &disk, mode).expect_err(name);
            assert!(matches!(error, ImageError::TooLarge { .. }), "{name} {mode:?}: {}", chain(&error));
            if name == "fixed" && mode == Mode::InOrderUnsized {
                assert_no_table(name, &disk);
            } else {
                assert_untouched(name, &disk);
            }
        }
    }
    // By default neither format is permitted.
    for (name, format, file) in files(&content) {
        let disk = TestDisk::used(DISK).unwrap();
        let error = write(&mut source(&file, Mode::Ranges), &plain_spec(&file, Some(format)), &disk, Mode::Ranges)
            .expect_err(name);
        assert!(error.to_string().starts_with("Security: "), "{name}: {error}");
        assert_untouched(name, &disk);
    }
}

#[test]
fn a_wrong_checksum_or_a_cut_leaves_no_table() {
    let content = disk_content(6 * MIB);
    for (name, format, file) in files(&content) {
        for mode in MODES {
            for at in [file.len() - 1, file.len() / 2 + 77] {
                let disk = TestDisk::used(DISK).unwrap();
                let mut source = source(&file, mode);
                source.flipped_at = Some(u64::try_from(at).unwrap());
                let error = write(&mut source, &spec(&file, Some(format)), &disk, mode).expect_err(name);
                assert_eq!(error.class(), ErrorClass::ImageChecksum, "{name} {mode:?} {at}: {}", chain(&error));
                assert_no_table(name, &disk);
            }
            let disk = TestDisk::used(DISK).unwrap();
            let mut source = source(&file, mode);
            source.cut_at = Some(u64::try_from(file.len() * 3 / 4).unwrap());
            let error = write(&mut source, &spec(&file, Some(format)), &disk, mode).expect_err(name);
            assert_eq!(error.class(), ErrorClass::ImageDownload, "{name} {mode:?}: {}", chain(&error));
            assert_no_table(name, &disk);
        }
    }
}

#[test]
fn a_file_that_changes_on_the_server_is_noticed() {
    let file = stream_optimized(&disk_content(4 * MIB));
    // The footer, which only says where the tables are.
    for at in [file.len() - 1024 + 100, file.len() - 1536 + 40] {
        let mut source = source(&file, Mode::Ranges);
        source.flipped_at = Some(u64::try_from(at).unwrap());
        let mut streamed = file.clone();
        streamed[at] ^= 1;
        let disk = TestDisk::used(DISK).unwrap();
        let error = write(&mut source, &spec(&streamed, None), &disk, Mode::Ranges).unwrap_err();
        assert!(matches!(error, ImageError::Changed { .. }), "{}", chain(&error));
        assert_no_table("changed", &disk);
    }
}

#[test]
fn streams_that_make_no_sense_are_refused() {
    let content = [vec![1; 65536], vec![2; 65536], vec![3; 65536]].concat();
    let file = stream_optimized(&content);
    let first = 128 * 512;
    // Each grain takes one sector.
    let changed = |changes: &[(usize, &[u8])]| {
        let mut file = file.clone();
        for (at, bytes) in changes {
            file[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        file
    };
    let mut longer = file.clone();
    longer.extend([0; 512]);
    for (name, file, want) in [
        ("grain twice", changed(&[(first + 512, &[0])]), "not in the order of the disk"),
        ("grains in another order", changed(&[(first, &[128]), (first + 512, &[0])]), "not in the order of the disk"),
        ("not at a grain", changed(&[(first, &[1])]), "not what the tables say"),
        ("beyond the disk", changed(&[(first + 2, &[1])]), "not what the tables say"),
        ("far beyond the disk", changed(&[(first, &[0xff; 8])]), "not what the tables say"),
        ("huge grain", changed(&[(first + 8, &[0xff; 4])]), "not what the tables say"),
        ("unknown marker", changed(&[(first + 8, &[0, 0, 0, 0, 9])]), "not what the tables say"),
        ("end without footer", changed(&[(first, &[0; 16])]), "not what the tables say"),
        ("other footer", changed(&[(file.len() - 1024 + 12, &[1])]), "does not fit its header"),
        ("something behind the end", longer, "something follows its end"),
        ("no zlib", changed(&[(first + 12, &[0; 2])]), "compressed cluster for byte 0"),
    ] {
        let disk = TestDisk::used(DISK).unwrap();
        let error = write(&mut source(&file, Mode::InOrder), &spec(&file, None), &disk, Mode::InOrder).expect_err(name);
        assert!(chain(&error).contains(want), "{name}: {}", chain(&error));
        assert_eq!(error.class(), ErrorClass::InvalidImage, "{name}");
        assert_no_table(name, &disk);
        let disk = TestDisk::used(DISK).unwrap();
        let error = write(&mut source(&file, Mode::Ranges), &spec(&file, None), &disk, Mode::Ranges).err();
        // An unknown marker that no table points to is nothing to who reads the tables.
        assert!(error.is_none_or(|error| error.class() == ErrorClass::InvalidImage), "{name}");
    }
}

fn attempt(file: &[u8], format: &str, ranges: bool, max_extents: usize) -> Result<(), TestCaseError> {
    const HEAD: usize = 1 << 20;
    let disk = TestDisk::used(3 << 20).unwrap();
    let mut source = TestSource { ranges, ..TestSource::ranged(file.to_vec()) };
    let spec = spec(file, Some(format));
    let result = write_within(&mut source, &spec, &disk.open().unwrap(), &progress(), max_extents);
    if let Err(error) = result {
        let head = disk.bytes(0, HEAD).unwrap();
        prop_assert!(is_zero(&head) || head == vec![OLD_DATA; HEAD], "{}", chain(&error));
        let class = error.class();
        prop_assert!(matches!(class, ErrorClass::InvalidImage | ErrorClass::ImageWrite), "{}", chain(&error));
    }
    Ok(())
}

thread_local! {
    static SMALL: [(&'static str, &'static str, Vec<u8>); 6] = files(&disk_content(2 << 20));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    /// Words of the header and of the tables get other values, among them values that are words elsewhere.
    #[test]
    fn damaged_files_never_leave_a_bootable_disk(
        which in 0_usize..6,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 0_u8..5, any::<u32>()), 1..6),
        ranges in any::<bool>(),
        few in any::<bool>(),
    ) {
        let (_, format, mut file) = SMALL.with(|files| files[which].clone());
        let words = file.len() / 4;
        for (index, kind, value) in changes {
            let (at, value) = match kind {
                0 => (index.index(24), value.to_le_bytes()),
                // Tables at the beginning, and those at the end.
                1 => (index.index(words.min(4096)), (value & 0xfff).to_le_bytes()),
                2 => (index.index(words.min(4096)), (value & 0xfff).to_be_bytes()),
                3 => (words - 1 - index.index(words.min(1024)), (value & 0xfff).to_le_bytes()),
                _ => (index.index(words), value.to_le_bytes()),
            };
            file[at * 4..at * 4 + 4].copy_from_slice(&value);
        }
        attempt(&file, format, ranges, if few { 20 } else { MAX_EXTENTS })?;
    }

    #[test]
    fn a_file_cut_anywhere_never_leaves_a_bootable_disk(
        which in 0_usize..6,
        end in any::<prop::sample::Index>(),
        ranges in any::<bool>(),
    ) {
        let (_, format, mut file) = SMALL.with(|files| files[which].clone());
        file.truncate(end.index(file.len()));
        if !file.is_empty() {
            attempt(&file, format, ranges, MAX_EXTENTS)?;
        }
    }
}
