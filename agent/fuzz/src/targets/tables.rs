//! Partition tables and file systems on a disk that an image has been written to.

use ferric_disk::partition::identity;
use ferric_disk::table::{self, TableKind};
use ferric_disk::{boot, filesystem as fs};
use ferric_sys::testing::disk::TestDisk;

use super::{choice, seal};

/// The first part of an input goes to the beginning of the disk, the rest to its end.
const FIRST_BYTES: usize = 34 * 512;
const DISK_BYTES: usize = 2 << 20;
const PARTITION_BYTES: u64 = 64 << 10;

/// A partition table: what it is said to hold is on the disk, repairing it once is enough, and a partition is added only
/// where there is none.
pub fn table(data: &[u8]) {
    let (flags, data) = choice(data);
    let sector = if flags & 1 == 0 { 512 } else { 4096 };
    let mut bytes = vec![0; DISK_BYTES];
    let (first, last) = data.split_at(data.len().min(FIRST_BYTES * usize::from(flags & 1 == 0).max(1)));
    bytes[..first.len()].copy_from_slice(first);
    let last = &last[..last.len().min(DISK_BYTES / 2)];
    bytes[DISK_BYTES - last.len()..].copy_from_slice(last);
    if flags & 2 == 0 {
        seal::gpt(&mut bytes, sector);
    }
    let disk = TestDisk::zeroed(u64::try_from(DISK_BYTES).unwrap()).unwrap().sector(u32::try_from(sector).unwrap());
    let dev = disk.open().unwrap();
    dev.write_at(0, &bytes[..DISK_BYTES / 8]).unwrap();
    dev.write_at(u64::try_from(DISK_BYTES / 8 * 7).unwrap(), &bytes[DISK_BYTES / 8 * 7..]).unwrap();
    let _any = table::read(&dev);
    let _any = table::disk_id(&dev);
    let Ok(found) = table::validate(&dev) else {
        let _any = table::fix_backup_gpt(&dev);
        return;
    };
    for partition in &found.partitions {
        let _any = identity::uuid_of(&dev, partition);
        let _any = fs::label(&dev, partition.start_bytes, partition.size_bytes);
    }
    if found.kind == TableKind::Gpt {
        match table::fix_backup_gpt(&dev) {
            Ok(_) => assert!(!table::fix_backup_gpt(&dev).unwrap(), "repaired twice"),
            Err(_) => return,
        }
        assert_eq!(table::read(&dev).unwrap().unwrap().partitions, found.partitions, "repairing changed the table");
    }
    let added = match found.kind {
        TableKind::Gpt => table::gpt::add_last(&dev, PARTITION_BYTES),
        TableKind::Mbr => table::mbr::add_last(&dev, PARTITION_BYTES),
    };
    if let Ok(added) = added {
        let end = added.start_bytes + added.size_bytes;
        assert!(added.size_bytes >= PARTITION_BYTES && end <= dev.size_bytes(), "{added:?}");
        for other in &found.partitions {
            // A chain of logical partitions may lie anywhere.
            let apart = other.start_bytes + other.size_bytes <= added.start_bytes || other.start_bytes >= end;
            assert!(apart || other.number > 4 && found.kind == TableKind::Mbr, "{added:?} over {other:?}");
        }
        assert!(table::read(&dev).unwrap().unwrap().partitions.contains(&added), "the new partition is not there");
    }
}

/// A file system in a partition: label, UUID, the loaders of an EFI system partition.
pub fn filesystem(data: &[u8]) {
    let size = u64::try_from(data.len()).unwrap().next_multiple_of(512).max(512);
    let disk = TestDisk::zeroed(size).unwrap();
    let dev = disk.open().unwrap();
    dev.write_at(0, data).unwrap();
    let _any = fs::label(&dev, 0, size);
    let _any = identity::identify(&dev, 0, size);
    let _any = boot::esp::loaders(&dev, 0, size, None);
}
