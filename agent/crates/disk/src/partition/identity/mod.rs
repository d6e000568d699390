//! What is in a partition, and the UUID by which systems find it.
//!
//! Places and magics are those of the formats' own documentation (kernel `Documentation/filesystems`, LUKS on-disk
//! format 1 and 2, LVM2 label, md superblocks 0.90 and 1.x). A member of something larger (RAID, LUKS, LVM) is told
//! before the file system that may show through.

use std::fmt::Write as _;

use ferric_sys::block_dev::BlockDev;

use crate::filesystem;
use crate::table::{self, Partition, Table};

/// How much of the beginning is looked at: up to the btrfs superblock.
const HEAD_BYTES: u64 = 68 << 10;
const MD_MAGIC: u32 = 0xa92b_4efc;
/// Bytes of an md superblock that are looked at.
const MD_BYTES: usize = 64;
/// Memory pages a swap space may have been made for.
const PAGES: [usize; 5] = [4096, 8192, 16_384, 32_768, 65_536];

/// A file system or the like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its name as `blkid` gives it.
    pub kind: &'static str,
    /// Its UUID as `blkid` gives it; `None` when it has none.
    pub uuid: Option<String>,
}

/// What is in a part of a disk; `None` when it is nothing known, or cannot be read.
pub fn identify(dev: &BlockDev, start_bytes: u64, size_bytes: u64) -> Option<Identity> {
    let mut head = vec![0; usize::try_from(HEAD_BYTES.min(size_bytes)).ok()?];
    dev.read_at(start_bytes, &mut head).ok()?;
    let at_end = |from_end: u64, align: u64| {
        let offset = (size_bytes.checked_sub(from_end)?) / align * align;
        let mut bytes = [0; MD_BYTES];
        dev.read_at(start_bytes + offset, &mut bytes).ok()?;
        md(&bytes)
    };
    // Metadata 1.0 is in the last 8 KiB, 0.90 in the last but one of whole 64 KiB.
    let old = || at_end(65536, 65536);
    at_end(8192, 4096).or_else(old).or_else(|| in_head(&head))
}

/// The UUID by which a system finds a partition: that of its file system, else its own, else nothing.
pub fn uuid_of(dev: &BlockDev, partition: &Partition) -> String {
    identify(dev, partition.start_bytes, partition.size_bytes)
        .and_then(|found| found.uuid)
        .or_else(|| partition_uuid(dev, partition))
        .unwrap_or_default()
}

/// The UUID of a partition itself, as in `PARTUUID=`: its GUID, or the identifier of the MBR and the number.
pub fn partition_uuid(dev: &BlockDev, partition: &Partition) -> Option<String> {
    if let Some(guid) = partition.guid {
        return Some(guid.to_string());
    }
    let id = table::disk_id(dev).ok()?;
    Some(format!("{}-{:02x}", id.strip_prefix("0x")?, partition.number))
}

/// The partition that is meant by the UUID of its file system or its own, or else by the label of its file system (deploy
/// section 8).
pub fn find<'t>(dev: &BlockDev, table: &'t Table, uuid: &str) -> Option<&'t Partition> {
    let is_meant = |partition: &&Partition| {
        let inside = identify(dev, partition.start_bytes, partition.size_bytes).and_then(|found| found.uuid);
        [inside, partition_uuid(dev, partition)].iter().flatten().any(|known| known.eq_ignore_ascii_case(uuid))
    };
    let is_labelled = |partition: &&Partition| {
        filesystem::label(dev, partition.start_bytes, partition.size_bytes).is_some_and(|label| label == uuid)
    };
    let partitions = || table.partitions.iter();
    partitions().find(is_meant).or_else(|| partitions().find(is_labelled))
}

/// What the first bytes show.
fn in_head(head: &[u8]) -> Option<Identity> {
    let found = |kind, uuid| Some(Identity { kind, uuid });
    let starts = |offset: usize, magic: &[u8]| head.get(offset..).is_some_and(|bytes| bytes.starts_with(magic));
    for offset in [0, 4096] {
        if let Some(member) = head.get(offset..).and_then(md) {
            return Some(member);
        }
    }
    if starts(0, b"LUKS\xba\xbe") {
        return found("crypto_LUKS", head.get(168..208).and_then(text));
    }
    if let Some(label) =
        [0, 512, 1024, 1536].into_iter().find(|at| starts(*at, b"LABELONE") && starts(at + 24, b"LVM2 001"))
    {
        return found("LVM2_member", lvm_uuid(head.get(label..)?));
    }
    if starts(0, b"XFSB") {
        return found("xfs", uuid(head, 32));
    }
    if starts(1080, &[0x53, 0xef]) {
        return found(ext_kind(head), uuid(head, 1128));
    }
    if starts(0x1_0040, b"_BHRfS_M") {
        return found("btrfs", uuid(head, 0x1_0020));
    }
    if PAGES.iter().any(|page| starts(page - 10, b"SWAPSPACE2")) {
        return found("swap", uuid(head, 1036));
    }
    let is_fat32 = starts(82, b"FAT32");
    if (is_fat32 || starts(54, b"FAT1")) && matches!(head.first(), Some(0xeb | 0xe9)) {
        let at = if is_fat32 { 66 } else { 38 };
        let serial = head.get(at..at + 5).filter(|bytes| matches!(bytes.first(), Some(0x28 | 0x29)));
        return found("vfat", serial.and_then(|bytes| Some(fat_serial(word(bytes, 1)?))));
    }
    None
}

/// ext2, 3 and 4 differ in their features: a journal makes 3, anything that 3 does not know makes 4.
fn ext_kind(head: &[u8]) -> &'static str {
    let flags = |at: usize| word(head, at).unwrap_or_default();
    let (compatible, incompatible, read_only) = (flags(1116), flags(1120), flags(1124));
    // Known to ext3: filetype, recovery, journal device and meta_bg; sparse_super, large_file and btree_dir.
    if incompatible & !0x1e != 0 || read_only & !0x7 != 0 {
        "ext4"
    } else if compatible & 4 != 0 {
        "ext3"
    } else {
        "ext2"
    }
}

/// An md superblock, at whose beginning `bytes` begin.
fn md(bytes: &[u8]) -> Option<Identity> {
    if word(bytes, 0)? != MD_MAGIC {
        return None;
    }
    let uuid = match word(bytes, 4)? {
        1 => uuid(bytes, 16),
        0 => {
            let part = |at: usize| bytes.get(at..at + 4);
            uuid(&[part(20)?, part(52)?, part(56)?, part(60)?].concat(), 0)
        }
        _ => return None,
    };
    Some(Identity { kind: "linux_raid_member", uuid })
}

/// The UUID of a physical volume: 32 letters and digits where the label says, in groups.
fn lvm_uuid(label: &[u8]) -> Option<String> {
    let at = usize::try_from(word(label, 20)?).ok().filter(|at| *at <= 480)?;
    let id = text(label.get(at..at + 32)?).filter(|id| id.len() == 32)?;
    let mut grouped = String::new();
    for (index, c) in id.chars().enumerate() {
        if matches!(index, 6 | 10 | 14 | 18 | 22 | 26) {
            grouped.push('-');
        }
        grouped.push(c);
    }
    Some(grouped)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// 16 bytes in their usual form; all zero is none.
fn uuid(bytes: &[u8], at: usize) -> Option<String> {
    let bytes = bytes.get(at..at.checked_add(16)?)?;
    if bytes.iter().all(|byte| *byte == 0) {
        return None;
    }
    let mut text = String::with_capacity(36);
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        write!(text, "{byte:02x}").ok()?;
    }
    Some(text)
}

fn fat_serial(serial: u32) -> String {
    format!("{:04X}-{:04X}", serial >> 16, serial & 0xffff)
}

/// Letters, digits and dashes up to the first NUL.
fn text(bytes: &[u8]) -> Option<String> {
    let text = bytes.split(|byte| *byte == 0).next()?;
    let good = !text.is_empty() && text.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-');
    good.then(|| String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests;
