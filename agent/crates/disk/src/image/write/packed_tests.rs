//! Images that are compressed as a whole.

use ferric_sys::testing::disk::TestDisk;
use ferric_types::ErrorClass;
use ferric_types::error::chain;

use super::tests::{DISK, MIB, Mode, VIRTUAL, assert_no_table, assert_untouched, assert_written, source, write};
use super::*;
use crate::image::compressed::FileCompression;
use crate::image::compressed::tests::{ALL, packed};
use crate::image::testing::{disk_content, qcow2, spec};

#[test]
fn compressed_raw_images_arrive_byte_for_byte() {
    let content = disk_content(VIRTUAL);
    for (packing, file) in packings(&content) {
        for mode in [Mode::Ranges, Mode::InOrder, Mode::InOrderUnsized] {
            for format in [Some("raw"), None] {
                assert_written(packing, &file, format, &content, mode, 512);
            }
        }
        assert_written(packing, &file, Some("raw"), &content, Mode::InOrder, 4096);
    }
}

/// `content` packed by each of the programs.
fn packings(content: &[u8]) -> [(&'static str, Vec<u8>); 3] {
    ALL.map(|compression| (compression.name(), packed(compression, content)))
}

#[test]
fn compressed_images_that_cannot_be_are_refused_before_anything_is_written() {
    let mut hybrid = disk_content(MIB);
    hybrid[0x8001..0x8006].copy_from_slice(b"CD001");
    let nested = packed(FileCompression::Gzip, &disk_content(MIB));
    let contents = [
        ("qcow2", qcow2(&disk_content(MIB), &[]), "the format qcow2"),
        ("packed twice", nested, "the format gzip"),
        ("nothing", Vec::new(), "the image is empty"),
        ("ISO and disk", hybrid, "matched multiple potential formats"),
    ];
    for (name, content, want) in contents {
        for (packing, file) in packings(&content) {
            for mode in [Mode::Ranges, Mode::InOrder] {
                assert_refused(&format!("{name}, {packing}"), &file, None, mode, want);
            }
        }
    }
    for (packing, file) in packings(&disk_content(MIB)) {
        let want = format!("Expected format was qcow2, but image was actually {packing}");
        assert_refused(packing, &file, Some("qcow2"), Mode::Ranges, &want);
    }
}

fn assert_refused(name: &str, file: &[u8], format: Option<&str>, mode: Mode, want: &str) {
    let disk = TestDisk::used(DISK).unwrap();
    let error = write(&mut source(file, mode), &spec(file, format), &disk, mode).expect_err(name);
    assert!(chain(&error).contains(want), "{name} {mode:?}: {}", chain(&error));
    assert_eq!(error.class(), ErrorClass::InvalidImage, "{name} {mode:?}");
    assert_untouched(&format!("{name} {mode:?}"), &disk);
}

#[test]
fn a_compressed_image_larger_than_the_disk_is_refused_by_what_its_ends_say() {
    for (packing, file) in packings(&vec![5; 9 * MIB]) {
        if packing == "gzip" {
            continue;
        }
        let disk = TestDisk::used(DISK).unwrap();
        let error =
            write(&mut source(&file, Mode::Ranges), &spec(&file, Some("raw")), &disk, Mode::Ranges).unwrap_err();
        assert!(
            matches!(error, ImageError::TooLarge { image_bytes, .. } if image_bytes == 9 << 20),
            "{packing}: {error}"
        );
        assert_untouched(packing, &disk);
    }
    // A gzip file does not tell; without ranges neither does an xz file. It turns out on the way.
    for (packing, file) in packings(&vec![5; 9 * MIB]) {
        let disk = TestDisk::used(DISK).unwrap();
        let error =
            write(&mut source(&file, Mode::InOrder), &spec(&file, Some("raw")), &disk, Mode::InOrder).unwrap_err();
        assert!(matches!(error, ImageError::TooLarge { .. }), "{packing}: {error}");
        assert_no_table(packing, &disk);
    }
}

#[test]
fn broken_compressed_images_leave_no_table_and_the_checksum_is_looked_at_first() {
    for (packing, good) in packings(&disk_content(VIRTUAL)) {
        let at = good.len() * 2 / 3;
        let mut flipped = good.clone();
        flipped[at] ^= 4;
        let followed = [good.as_slice(), b"something"].concat();
        for (name, file) in [("cut", &good[..at]), ("flipped", &flipped[..]), ("followed", &followed)] {
            for mode in [Mode::Ranges, Mode::InOrderUnsized] {
                let name = format!("{packing}, {name}, {mode:?}");
                let disk = TestDisk::used(DISK).unwrap();
                // The image itself is broken.
                let error = write(&mut source(file, mode), &spec(file, Some("raw")), &disk, mode).expect_err(&name);
                assert!(matches!(error, ImageError::Compressed(_)), "{name}: {}", chain(&error));
                assert!(!error.is_worth_another_try(), "{name}");
                assert_no_table(&name, &disk);
                // Its download is.
                let error = write(&mut source(file, mode), &spec(&good, Some("raw")), &disk, mode).expect_err(&name);
                assert!(matches!(error, ImageError::Checksum { .. }), "{name}: {}", chain(&error));
                assert_no_table(&name, &disk);
            }
        }
    }
}
