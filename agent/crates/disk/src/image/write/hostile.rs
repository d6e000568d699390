//! Images and disks that misbehave in ways nobody has thought of.

use std::os::fd::AsRawFd;

use ferric_sys::block_dev::Access;
use ferric_sys::testing::disk::{OLD_DATA, TestDisk};
use ferric_types::ErrorClass;
use ferric_types::error::chain;
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, SealFlags};

use super::*;
use crate::image::target::is_zero;
use crate::image::testing::{TestSource, disk_content, progress, qcow2, shuffled, spec, tiny_clusters};

const HEAD: usize = 1 << 20;
const DISK: u64 = 3 << 20;

/// A small image with many tables, and where its header and tables end.
fn small_image() -> Vec<u8> {
    qcow2(&disk_content(2 << 20), &["-c", "-o", "cluster_size=512"])
}

fn attempt(file: &[u8], ranges: bool, max_extents: usize) -> Result<(), TestCaseError> {
    let disk = TestDisk::used(DISK).unwrap();
    let mut source = TestSource { ranges, ..TestSource::ranged(file.to_vec()) };
    let result = write_within(&mut source, &spec(file, None), &disk.open().unwrap(), &progress(), max_extents);
    if let Err(error) = result {
        let head = disk.bytes(0, HEAD).unwrap();
        prop_assert!(is_zero(&head) || head == vec![OLD_DATA; HEAD], "{}", chain(&error));
        let class = error.class();
        prop_assert!(matches!(class, ErrorClass::InvalidImage | ErrorClass::ImageWrite), "{}", chain(&error));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Words of the header and of the tables get other values, among them values that are words elsewhere.
    #[test]
    fn damaged_tables_never_leave_a_bootable_disk(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 0_u8..4, any::<u64>()), 1..6),
        ranges in any::<bool>(),
        few in any::<bool>(),
    ) {
        thread_local! {
            static IMAGE: Vec<u8> = small_image();
        }
        let mut file = IMAGE.with(Clone::clone);
        // The header, the first tables, and whatever lies behind them.
        let words = file.len() / 8;
        for (index, kind, value) in changes {
            let (at, value) = match kind {
                0 => (index.index(14), value),
                1 => (index.index(words.min(2048)), value),
                2 => (index.index(words.min(2048)), value & 0x1f_ffff),
                _ => (index.index(words), value & 0x00ff_ffff_ffff_fe00),
            };
            file[at * 8..at * 8 + 8].copy_from_slice(&value.to_be_bytes());
        }
        attempt(&file, ranges, if few { 500 } else { MAX_EXTENTS })?;
    }

    #[test]
    fn an_image_cut_anywhere_never_leaves_a_bootable_disk(end in any::<prop::sample::Index>(), ranges in any::<bool>()) {
        thread_local! {
            static IMAGE: Vec<u8> = small_image();
        }
        let mut file = IMAGE.with(Clone::clone);
        file.truncate(end.index(file.len()));
        if !file.is_empty() {
            attempt(&file, ranges, MAX_EXTENTS)?;
        }
    }
}

/// Compressed clusters, all in one place: more than fit into a window.
#[test]
fn clusters_piled_up_in_one_place_end_with_an_error() {
    let mut file = small_image();
    let l1 = usize::try_from(u64::from_be_bytes(file[40..48].try_into().unwrap())).unwrap();
    let l2 = u64::from_be_bytes(file[l1..l1 + 8].try_into().unwrap()) & 0x00ff_ffff_ffff_fe00;
    let l2 = usize::try_from(l2).unwrap();
    let entry = 1_u64 << 62 | u64::try_from(file.len() - 512).unwrap();
    for index in 0..64 {
        file[l2 + index * 8..][..8].copy_from_slice(&entry.to_be_bytes());
    }
    let disk = TestDisk::used(DISK).unwrap();
    let mut source = TestSource::ranged(file.clone());
    let result = write_within(&mut source, &spec(&file, None), &disk.open().unwrap(), &progress(), 30);
    assert!(result.is_err());
}

/// Every window asks for all tables, so that their number must not be that of the requests.
#[test]
fn tiny_clusters_in_any_order_arrive_with_few_requests() {
    const TABLES: u64 = 200;
    let tables: Vec<u64> = (0..TABLES).collect();
    let file = tiny_clusters(&tables, &shuffled(TABLES, TABLES * 65));
    let mut want = vec![0; 200 * 64 * 512];
    for (number, cluster) in (0_u64..).zip(want.chunks_exact_mut(512)) {
        cluster[..8].copy_from_slice(&number.to_be_bytes());
    }
    let disk = TestDisk::used(8 << 20).unwrap();
    let mut source = TestSource::ranged(file.clone());
    write_within(&mut source, &spec(&file, None), &disk.open().unwrap(), &progress(), 4000).unwrap();
    assert!(disk.bytes(0, want.len()).unwrap() == want);
    // 5 windows of two requests each, and the header.
    assert!(source.range_requests <= 20, "{}", source.range_requests);
}

/// What would take hours is refused in a moment, and before anything is written.
#[test]
fn a_file_cut_into_countless_pieces_is_refused_at_once() {
    const TABLES: u64 = 4097;
    let front: Vec<u64> = (0..TABLES).collect();
    // Tables in falling order, none of them read together with another.
    let back: Vec<u64> = (0..65_600).rev().collect();
    for (name, file, want) in [
        ("pieces", tiny_clusters(&front, &shuffled(TABLES, TABLES * 65)), "more than 262144 pieces of data"),
        ("tables", tiny_clusters(&back, &[]), "more than 65536 requests for its tables"),
    ] {
        let disk = TestDisk::zeroed(4 << 30).unwrap();
        let dev = disk.open().unwrap();
        dev.write_at(0, &[OLD_DATA; 512]).unwrap();
        let mut source = TestSource::ranged(file.clone());
        let error = write_image(&mut source, &spec(&file, None), &dev, &progress()).expect_err(name);
        let text = chain(&error);
        assert!(text.contains(want) && text.contains("qemu-img convert"), "{name}: {text}");
        assert_eq!(error.class(), ErrorClass::InvalidImage, "{name}");
        assert_eq!(disk.bytes(0, 512).unwrap(), [OLD_DATA; 512], "{name}: something was written");
    }
}

/// A disk that takes no more from its middle on: a memory file that may not grow.
#[test]
fn a_disk_that_fails_in_the_middle_is_named_and_left_without_a_table() {
    for (name, file) in [("raw", disk_content(6 << 20)), ("qcow2", qcow2(&disk_content(6 << 20), &["-c"]))] {
        let memory = rustix::fs::memfd_create("disk", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&memory, 8 << 20).unwrap();
        let device = BlockDev::open(format!("/proc/self/fd/{}", memory.as_raw_fd()), Access::Exclusive).unwrap();
        device.write_at(0, &vec![OLD_DATA; 4 << 20]).unwrap();
        rustix::fs::ftruncate(&memory, 4 << 20).unwrap();
        rustix::fs::fcntl_add_seals(&memory, SealFlags::GROW).unwrap();
        let mut source = TestSource::ranged(file.clone());
        let error = write_image(&mut source, &spec(&file, None), &device, &progress()).expect_err(name);
        assert_eq!(error.class(), ErrorClass::ImageWrite, "{name}: {}", chain(&error));
        let text = chain(&error);
        assert!(text.starts_with("Writing image to device /proc/self/fd/"), "{name}: {text}");
        assert!(!error.is_worth_another_try());
        let mut head = vec![1; HEAD];
        device.read_at(0, &mut head).unwrap();
        assert!(is_zero(&head), "{name}: the head is not zero");
    }
}
