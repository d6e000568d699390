//! md superblocks, versions 0.90 and 1.x (kernel `include/uapi/linux/raid/md_p.h`), for reading.

use ferric_sys::block_dev::{BlockDev, BlockDevError};

const MAGIC: u32 = 0xa92b_4efc;
/// As much of it as is looked at.
const HEAD_BYTES: usize = 256;

/// What a member says of its array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Identifier of the array.
    pub uuid: [u8; 16],
    /// Name of the array, without the name of the host that may stand before it; 0.90 has none.
    pub name: Option<String>,
    /// Level in the kernel's numbers: 0, 1, 4, 5, 6, 10, and negative ones for what is no RAID.
    pub level: i32,
    /// How many members the array has when it is whole.
    pub raid_disks: u32,
    /// Where it is, bytes from the start of the device.
    pub offset: u64,
}

/// Where superblocks of a device of that size may be, with the kind that may be there: for 1.x the place must also be in
/// the superblock itself.
fn places(size: u64) -> Vec<(u64, u32)> {
    let sectors = size / 512;
    // 1.0: at least 8 KiB before the end, a multiple of 4 KiB; 0.90: the last whole 64 KiB that have 64 KiB behind them.
    let at_end = sectors.checked_sub(16).map(|sector| (sector & !7) * 512);
    let old = (size & !0xffff).checked_sub(0x1_0000);
    let new = [Some(4096), Some(0), at_end].into_iter().flatten().map(|offset| (offset, 1));
    new.chain(old.map(|offset| (offset, 0))).collect()
}

/// The superblock of a device, or `None`.
///
/// # Errors
/// The device cannot be read.
pub fn read(dev: &BlockDev) -> Result<Option<Superblock>, BlockDevError> {
    let mut head = [0_u8; HEAD_BYTES];
    for (offset, major) in places(dev.size_bytes()) {
        if offset.saturating_add(4096) > dev.size_bytes() {
            continue;
        }
        dev.read_at(offset, &mut head)?;
        if let Some(found) = parse(&head, offset).filter(|_| word(&head, 4) == Some(major)) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn word(head: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?))
}

fn signed(head: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?))
}

/// A superblock from its first bytes, found at `offset` of a device.
pub fn parse(head: &[u8], offset: u64) -> Option<Superblock> {
    if word(head, 0)? != MAGIC {
        return None;
    }
    match word(head, 4)? {
        1 => parse_new(head, offset),
        0 => parse_old(head, offset),
        _ => None,
    }
}

fn parse_new(head: &[u8], offset: u64) -> Option<Superblock> {
    let place = u64::from_le_bytes(head.get(144..152)?.try_into().ok()?);
    // A copy of a superblock, or that of a partition at the disk's end seen from the disk.
    if place.checked_mul(512)? != offset {
        return None;
    }
    let name = head.get(32..64)?.split(|byte| *byte == 0).next()?;
    let name = String::from_utf8_lossy(name);
    let name = name.split_once(':').map_or(&*name, |(_, name)| name);
    Some(Superblock {
        uuid: head.get(16..32)?.try_into().ok()?,
        name: Some(name.to_owned()).filter(|name| !name.is_empty()),
        level: signed(head, 72)?,
        raid_disks: word(head, 92)?,
        offset,
    })
}

fn parse_old(head: &[u8], offset: u64) -> Option<Superblock> {
    let mut uuid = [0; 16];
    for (part, at) in uuid.chunks_exact_mut(4).zip([20, 52, 56, 60]) {
        part.copy_from_slice(head.get(at..at + 4)?);
    }
    Some(Superblock { uuid, name: None, level: signed(head, 28)?, raid_disks: word(head, 40)?, offset })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_sys::testing::disk::TestDisk;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn new_kind(offset: u64, name: &[u8]) -> Vec<u8> {
        let mut head = vec![0; HEAD_BYTES];
        for (at, bytes) in [
            (0, &MAGIC.to_le_bytes()[..]),
            (4, &1_u32.to_le_bytes()),
            (16, &[7; 16]),
            (32, name),
            (72, &10_i32.to_le_bytes()),
            (92, &4_u32.to_le_bytes()),
            (144, &(offset / 512).to_le_bytes()),
        ] {
            head[at..at + bytes.len()].copy_from_slice(bytes);
        }
        head
    }

    #[test]
    fn each_version_is_found_at_its_place() {
        let size = 16 * MIB + 4096 + 512;
        let found = |name: Option<&str>, offset| Superblock {
            uuid: [7; 16],
            name: name.map(str::to_owned),
            level: 10,
            raid_disks: 4,
            offset,
        };
        let at_end = 16 * MIB + 4096 - 8192;
        for (place, name, want) in [
            (0, &b"root"[..], Some(found(Some("root"), 0))),
            (4096, b"host.example:data", Some(found(Some("data"), 4096))),
            (at_end, b"esp", Some(found(Some("esp"), at_end))),
            (4096, b"", Some(found(None, 4096))),
            (8192, b"root", None),
        ] {
            let disk = TestDisk::zeroed(size).unwrap();
            let dev = disk.open().unwrap();
            dev.write_at(place, &new_kind(place, name)).unwrap();
            assert_eq!(read(&dev).unwrap(), want, "at {place}");
        }
        let disk = TestDisk::zeroed(size).unwrap();
        let dev = disk.open().unwrap();
        dev.write_at(4096, &new_kind(0, b"root")).unwrap();
        assert_eq!(read(&dev).unwrap(), None, "a superblock that says it is elsewhere");
    }

    #[test]
    fn the_old_version_has_its_identifier_in_pieces_and_no_name() {
        let disk = TestDisk::zeroed(16 * MIB + 512).unwrap();
        let dev = disk.open().unwrap();
        let mut head = vec![0; HEAD_BYTES];
        for (at, value) in [(0, MAGIC), (8, 90), (20, 1), (28, 1), (40, 2), (52, 2), (56, 3), (60, 4)] {
            head[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        let offset = 16 * MIB - 0x1_0000;
        dev.write_at(offset, &head).unwrap();
        let found = read(&dev).unwrap().unwrap();
        let uuid = [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0];
        assert_eq!(found, Superblock { uuid, name: None, level: 1, raid_disks: 2, offset });
    }

    #[test]
    fn small_devices_have_none() {
        for size in [0, 512, 4096, 8192, 0x1_0000] {
            let disk = TestDisk::zeroed(size).unwrap();
            assert_eq!(read(&disk.open().unwrap()).unwrap(), None, "{size}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_looked_at(
            mut head in proptest::collection::vec(any::<u8>(), 0..300), major in 0_u32..3, offset in any::<u64>(),
        ) {
            for (at, value) in [(0, MAGIC), (4, major)] {
                if let Some(place) = head.get_mut(at..at + 4) {
                    place.copy_from_slice(&value.to_le_bytes());
                }
            }
            let _superblock = parse(&head, offset);
        }
    }
}
