//! Images into partitions.

use std::sync::Mutex;

use ferric_sys::testing::disk::TestDisk;
use ferric_types::error::chain;
use ferric_types::{CommandError, ErrorClass};

use super::tests::{DISK, MIB, Mode, assert_untouched, source};
use super::*;
use crate::image::compressed::FileCompression;
use crate::image::compressed::tests::packed;
use crate::image::testing::{disk_content, progress, qcow2, spec};

/// A partition table, and the same without its signature.
fn contents() -> (Vec<u8>, Vec<u8>) {
    let mut disk = disk_content(2 * MIB);
    disk[446..462].copy_from_slice(&[0x80, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0]);
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk[462..510].fill(0);
    let mut partition = disk.clone();
    partition[510] = 0;
    (disk, partition)
}

/// Every form of an image, and whether its first bytes are known before anything is written.
fn forms(content: &[u8]) -> Vec<(&'static str, Vec<u8>, Mode, bool)> {
    let plain = qcow2(content, &[]);
    let dense = qcow2(content, &["-c"]);
    vec![
        ("raw", content.to_vec(), Mode::Ranges, true),
        ("raw", content.to_vec(), Mode::InOrder, true),
        ("gzip", packed(FileCompression::Gzip, content), Mode::InOrder, true),
        ("xz", packed(FileCompression::Xz, content), Mode::InOrder, true),
        ("zstd", packed(FileCompression::Zstd, content), Mode::Ranges, true),
        ("qcow2", plain.clone(), Mode::Ranges, true),
        ("qcow2 -c", dense.clone(), Mode::Ranges, true),
        ("qcow2", plain, Mode::InOrder, false),
        ("qcow2 -c", dense, Mode::InOrderUnsized, false),
    ]
}

#[test]
fn an_image_of_a_whole_disk_does_not_get_into_a_partition() {
    for (name, file, mode, early) in forms(&contents().0) {
        let disk = TestDisk::used(DISK).unwrap();
        let made = Mutex::new(0);
        let make = || {
            *made.lock().unwrap() += 1;
            Ok(())
        };
        let dev = disk.open().unwrap();
        let result = write_to(&mut source(&file, mode), &spec(&file, None), &dev, Place::Partition(&make), &progress());
        let error = result.unwrap_err();
        assert!(matches!(error, ImageError::NestedTable { .. }), "{name} {mode:?}: {}", chain(&error));
        assert_eq!((error.class(), error.is_worth_another_try()), (ErrorClass::InvalidImage, false));
        assert_eq!(*made.lock().unwrap(), i32::from(!early), "{name} {mode:?}");
        if early {
            assert_untouched(name, &disk);
        } else {
            assert!(
                disk.bytes(0, MIB).unwrap().iter().all(|byte| *byte == 0),
                "{name} {mode:?}: begins with something"
            );
        }
    }
}

#[test]
fn a_judged_image_is_refused_before_anything_is_written_where_that_can_be() {
    for (name, file, mode, early) in forms(&contents().0) {
        let disk = TestDisk::used(DISK).unwrap();
        let dev = disk.open().unwrap();
        let judge = |head: &[u8]| match head.get(510..512) {
            Some([0x55, 0xaa]) => Err(CommandError::new(ErrorClass::InvalidImage, "judged")),
            _ => Ok(()),
        };
        let error = write_to(&mut source(&file, mode), &spec(&file, None), &dev, Place::Judged(&judge), &progress())
            .unwrap_err();
        assert_eq!((error.class(), error.to_string().contains("judged")), (ErrorClass::InvalidImage, true), "{name}");
        assert!(!error.is_worth_another_try());
        if early {
            assert_untouched(name, &disk);
        } else {
            assert!(disk.bytes(0, MIB).unwrap().iter().all(|byte| *byte == 0), "{name} {mode:?}: a table is left");
        }
    }
}

#[test]
fn the_partition_is_made_before_the_image_is_written_to_it() {
    for (name, file, mode, _) in forms(&contents().1) {
        let disk = TestDisk::used(DISK).unwrap();
        let dev = disk.open().unwrap();
        let window = dev.part("/dev/vda1", 2 << 20, 4 << 20).unwrap();
        let made = Mutex::new(Vec::new());
        let make = || {
            made.lock().unwrap().extend(disk.bytes(2 << 20, 1024).unwrap());
            Ok(())
        };
        write_to(&mut source(&file, mode), &spec(&file, None), &window, Place::Partition(&make), &progress())
            .unwrap_or_else(|error| panic!("{name} {mode:?}: {}", chain(&error)));
        // Once, with the old data still there.
        assert_eq!(*made.lock().unwrap(), [0xa5; 1024], "{name} {mode:?}");
        assert!(disk.bytes(2 << 20, 2 * MIB).unwrap() == contents().1, "{name} {mode:?}");
        for at in [0, 6 << 20] {
            assert!(disk.bytes(at, 2 * MIB).unwrap().iter().all(|byte| *byte == 0xa5), "{name} {mode:?}: beside it");
        }
    }
}

#[test]
fn a_partition_that_cannot_be_made_ends_it() {
    let disk = TestDisk::used(DISK).unwrap();
    let make = || Err(CommandError::new(ErrorClass::Deployment, "no such disk"));
    let file = contents().1;
    let dev = disk.open().unwrap();
    let error =
        write_to(&mut source(&file, Mode::Ranges), &spec(&file, None), &dev, Place::Partition(&make), &progress())
            .unwrap_err();
    assert_eq!((error.class(), error.is_worth_another_try()), (ErrorClass::Deployment, false));
    assert_untouched("refused", &disk);
}
