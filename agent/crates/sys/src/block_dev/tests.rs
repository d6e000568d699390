use std::io::{Read, Seek, SeekFrom, Write};

use tempfile::NamedTempFile;

use super::*;
use crate::aligned::AlignedBuf;

fn disk(len: u64) -> (NamedTempFile, BlockDev) {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), vec![0xa5; usize::try_from(len).unwrap()]).unwrap();
    let dev = BlockDev::open(file.path(), Access::Exclusive).unwrap();
    (file, dev)
}

#[test]
fn a_file_has_its_length_and_the_sectors_it_is_given() {
    let (file, dev) = disk(1 << 20);
    assert_eq!((dev.size_bytes(), dev.logical_sector(), dev.physical_sector()), (1 << 20, 512, 512));
    assert!(!dev.is_block() && !dev.is_read_only().unwrap());
    let dev = BlockDev::open_file_as(file.path(), Access::Read, 4096).unwrap();
    assert_eq!(dev.logical_sector(), 4096);
    assert!(dev.is_read_only().unwrap());
}

#[test]
fn what_is_no_disk_is_refused_with_its_path() {
    let missing = BlockDev::open("/ferric-no-such-disk", Access::Read).unwrap_err();
    assert!(matches!(missing, BlockDevError::Open { .. }) && missing.to_string().contains("ferric-no-such-disk"));
    let null = BlockDev::open("/dev/null", Access::Write).unwrap_err();
    assert!(matches!(null, BlockDevError::NotADisk { .. }), "{null}");
}

#[test]
fn nothing_is_read_or_written_past_the_end() {
    let (file, dev) = disk(8192);
    let mut buf = [0; 16];
    for error in [
        dev.read_at(8190, &mut buf).unwrap_err(),
        dev.write_at(8190, &buf).unwrap_err(),
        dev.write_at(u64::MAX - 3, &buf).unwrap_err(),
        dev.zero_range(8192, 1).unwrap_err(),
        dev.discard_range(0, 8193).unwrap_err(),
        dev.direct().unwrap().write_at(8192, &buf).unwrap_err(),
    ] {
        assert!(matches!(error, BlockDevError::OutOfRange { size_bytes: 8192, .. }), "{error}");
    }
    assert_eq!(std::fs::read(file.path()).unwrap(), vec![0xa5; 8192]);
}

#[test]
fn zeroing_touches_the_range_and_nothing_else() {
    for (offset, len) in [(0, 1 << 20), (1, 10), (511, 2), (700, 100_000), (4096, 65536), (1_048_000, 576), (512, 0)] {
        let (file, dev) = disk(1 << 20);
        dev.zero_range(offset, len).unwrap();
        dev.flush().unwrap();
        let mut want = vec![0xa5; 1 << 20];
        want[usize::try_from(offset).unwrap()..usize::try_from(offset + len).unwrap()].fill(0);
        assert!(std::fs::read(file.path()).unwrap() == want, "{offset}+{len}");
    }
}

#[test]
fn zeroes_are_written_where_no_hole_can_be_punched() {
    let (file, dev) = disk(300_000);
    dev.write_zeroes(1000, 250_000).unwrap();
    let bytes = std::fs::read(file.path()).unwrap();
    assert!(bytes[..1000].iter().chain(&bytes[250_000..]).all(|byte| *byte == 0xa5));
    assert!(bytes[1000..250_000].iter().all(|byte| *byte == 0));
}

#[test]
fn direct_transfers_and_unaligned_ones_agree() {
    let (file, dev) = disk(1 << 20);
    let direct = dev.direct().unwrap();
    let mut buf = AlignedBuf::zeroed(8192);
    buf.fill(1);
    direct.write_at(4096, &buf).unwrap();
    direct.write_at(100_001, b"unaligned").unwrap();
    dev.flush().unwrap();
    let bytes = std::fs::read(file.path()).unwrap();
    assert!(bytes[4096..12288].iter().all(|byte| *byte == 1));
    assert_eq!((bytes[4095], bytes[12288]), (0xa5, 0xa5));
    assert_eq!(&bytes[100_001..100_010], b"unaligned");
    let mut back = AlignedBuf::zeroed(8192);
    direct.read_at(4096, &mut back).unwrap();
    assert_eq!(*back, *buf);
}

#[test]
fn the_cursor_reads_writes_and_seeks() {
    let (_file, dev) = disk(1000);
    let mut cursor = dev.cursor();
    assert_eq!(cursor.seek(SeekFrom::End(-4)).unwrap(), 996);
    assert_eq!(cursor.write(b"abcdef").unwrap(), 4);
    assert_eq!(cursor.write_all(b"x").unwrap_err().kind(), io::ErrorKind::WriteZero);
    assert_eq!(cursor.seek(SeekFrom::Current(-5)).unwrap(), 995);
    let mut rest = Vec::new();
    cursor.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"\xa5abcd");
    assert!(cursor.seek(SeekFrom::Current(-1001)).is_err());
}

#[test]
fn a_read_only_disk_refuses_writes_with_device_and_reason() {
    let (file, _dev) = disk(4096);
    let dev = BlockDev::open(file.path(), Access::Read).unwrap();
    let error = dev.write_at(0, b"x").unwrap_err();
    assert!(matches!(error, BlockDevError::Write { .. }), "{error}");
    assert!(error.to_string().contains(file.path().to_str().unwrap()), "{error}");
    assert!(!error.is_busy() && !error.is_medium_error());
    assert!(dev.reread_table().is_ok());
}

#[test]
fn a_part_is_a_device_of_its_own_on_the_same_disk() {
    let (file, dev) = disk(1 << 20);
    let part = dev.part("/dev/x1", 64 << 10, 128 << 10).unwrap();
    assert_eq!((part.size_bytes(), part.path()), (128 << 10, Path::new("/dev/x1")));
    part.write_at(0, b"begin").unwrap();
    part.zero_range(4096, 8192).unwrap();
    let mut buffer = AlignedBuf::zeroed(4096);
    buffer.fill(7);
    part.direct().unwrap().write_at(32 << 10, &buffer).unwrap();
    part.discard_range(16 << 10, 4096).unwrap();
    part.part("/dev/x1a", 64 << 10, 4096).unwrap().write_at(0, b"inner").unwrap();
    assert!(part.write_at(128 << 10, b"x").is_err() && dev.part("/dev/x2", 1 << 20, 1).is_err());
    let bytes = std::fs::read(file.path()).unwrap();
    let at = |offset: usize, len: usize| &bytes[(64 << 10) + offset..][..len];
    assert_eq!((at(0, 6), at(64 << 10, 6)), (&b"begin\xa5"[..], &b"inner\xa5"[..]));
    assert!(at(4096, 8192).iter().all(|byte| *byte == 0) && at(16 << 10, 4096).iter().all(|byte| *byte == 0));
    assert!(at(32 << 10, 4096).iter().all(|byte| *byte == 7));
    assert!(bytes[..64 << 10].iter().chain(&bytes[192 << 10..]).all(|byte| *byte == 0xa5));
}
