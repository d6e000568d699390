//! What lies inside of a disk: the partitions of every table that is or was on it, and what md, bcache and LVM keep in
//! them. No driver is needed, so that what nobody has activated is found as well.
//!
//! A table that was made for another sector size, or whose primary copy is gone, still tells where a file system may be
//! that comes to light when a new partition begins at the same place (pitfall B4). Everything here is somebody else's
//! bytes: numbers are bounded, and what makes no sense is passed over.

use std::collections::VecDeque;

use ferric_sys::block_dev::BlockDev;

use crate::raid::superblock;

/// More than a sound disk has.
const MAX_LAYERS: usize = 512;
/// A volume in an array in a partition is at depth 3.
const MAX_DEPTH: u32 = 5;
/// Largest table of a GPT, and largest description of a volume group, that are read.
const MAX_TABLE_BYTES: usize = 256 << 10;
/// The sector sizes that tables are made for.
const SECTORS: [u64; 2] = [512, 4096];

/// A range of a disk in which something begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layer {
    /// Where it begins, bytes.
    pub start_bytes: u64,
    /// Its size, bytes.
    pub size_bytes: u64,
    /// Whether a system would find it now; otherwise it is of a former table.
    pub is_current: bool,
    depth: u32,
}

/// A range within another one; whether a system finds it.
struct Range {
    start: u64,
    size: u64,
    is_current: bool,
    /// Whether it is scanned for partitions as a disk is.
    is_disk: bool,
}

/// All ranges within a disk or partition, outer ones before those in them. What cannot be read holds nothing.
pub fn layers(dev: &BlockDev) -> Vec<Layer> {
    let mut found: Vec<Layer> = Vec::new();
    let whole = Layer { start_bytes: 0, size_bytes: dev.size_bytes(), is_current: true, depth: 0 };
    let mut waiting = VecDeque::from([(whole, true)]);
    while let Some((outer, is_disk)) = waiting.pop_front() {
        let Ok(part) = dev.part(dev.path(), outer.start_bytes, outer.size_bytes) else { continue };
        for inner in within(&part, is_disk) {
            let Some(room) = outer.size_bytes.checked_sub(inner.start).filter(|room| *room >= 512) else { continue };
            let layer = Layer {
                start_bytes: outer.start_bytes + inner.start,
                size_bytes: inner.size.clamp(512, room),
                is_current: outer.is_current && inner.is_current,
                depth: outer.depth + 1,
            };
            let is_known = |known: &Layer| {
                (known.start_bytes, known.size_bytes) == (layer.start_bytes, layer.size_bytes)
                    && known.is_current >= layer.is_current
            };
            if layer.depth <= MAX_DEPTH && found.len() < MAX_LAYERS && !found.iter().any(is_known) {
                found.push(layer);
                waiting.push_back((layer, inner.is_disk));
            }
        }
    }
    found
}

fn within(part: &BlockDev, is_disk: bool) -> Vec<Range> {
    let mut ranges = Vec::new();
    for sector in SECTORS {
        let is_current = is_disk && sector == u64::from(part.logical_sector());
        let last = (part.size_bytes() / sector).saturating_sub(1);
        for (lba, is_current) in [(1, is_current), (last, false)] {
            ranges.extend(gpt(part, sector, lba, is_current).into_iter().flatten());
        }
        ranges.extend(mbr(part, sector, is_current).into_iter().flatten());
    }
    ranges.extend(array(part));
    ranges.extend(cached(part));
    ranges.extend(volumes(part).into_iter().flatten());
    ranges
}

fn read(part: &BlockDev, offset: u64, len: usize) -> Option<Vec<u8>> {
    let end = offset.checked_add(u64::try_from(len).ok()?)?;
    let mut bytes = vec![0; Some(len).filter(|_| end <= part.size_bytes())?];
    part.read_at(offset, &mut bytes).ok()?;
    Some(bytes)
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?)))
}

/// Partitions of the GPT whose header is in sector `lba` (UEFI specification 2.10 section 5.3), whatever its checksums, and
/// the sector of its other header.
fn gpt(part: &BlockDev, sector: u64, lba: u64, is_current: bool) -> Option<Vec<Range>> {
    let header = read(part, lba.checked_mul(sector)?, 92)?;
    if !header.starts_with(b"EFI PART") {
        return None;
    }
    let (other, first) = (long(&header, 32)?, long(&header, 72)?);
    let (count, each) = (usize::try_from(word(&header, 80)?).ok()?, usize::try_from(word(&header, 84)?).ok()?);
    // The other header, in the place where a disk of two sectors has one.
    let before = other.checked_mul(sector).and_then(|offset| offset.checked_sub(512));
    let mut ranges: Vec<Range> =
        before.map(|start| Range { start, size: 1024, is_current: false, is_disk: false }).into_iter().collect();
    let table = read(part, first.checked_mul(sector)?, count.checked_mul(each)?.min(MAX_TABLE_BYTES))?;
    for entry in table.chunks(each.max(128)) {
        let (Some(from), Some(to)) = (long(entry, 32), long(entry, 40)) else { break };
        let is_used = entry.iter().take(16).any(|byte| *byte != 0);
        let (Some(start), Some(sectors)) = (from.checked_mul(sector), to.checked_sub(from)) else { continue };
        if is_used {
            let size = sectors.saturating_add(1).saturating_mul(sector);
            ranges.push(Range { start, size, is_current, is_disk: false });
        }
    }
    Some(ranges)
}

/// Type, start and length of the entries of a boot record.
fn record(part: &BlockDev, offset: u64, sector: u64) -> Option<Vec<(u8, u64, u64)>> {
    let bytes = read(part, offset, 512)?;
    let table = bytes.get(446..510).filter(|_| bytes.ends_with(&[0x55, 0xaa]))?;
    let entries: Vec<_> = table
        .chunks_exact(16)
        .filter_map(|entry| Some((*entry.get(4)?, word(entry, 8)? * sector, word(entry, 12)? * sector)))
        .collect();
    // A FAT boot sector ends in the same two bytes; its code makes no sense as boot flags.
    table.iter().step_by(16).all(|flag| matches!(flag, 0 | 0x80)).then_some(entries)
}

/// Partitions of an MBR, also of one beside a GPT, and the records of logical ones.
fn mbr(part: &BlockDev, sector: u64, is_current: bool) -> Option<Vec<Range>> {
    let mut ranges = Vec::new();
    let range = |start, size| Range { start, size, is_current, is_disk: false };
    for (kind, start, size) in record(part, 0, sector)? {
        if kind == 0 || kind == 0xee || size == 0 || start == 0 {
            continue;
        }
        ranges.push(range(start, size));
        let mut at = Some(start).filter(|_| matches!(kind, 0x05 | 0x0f | 0x85));
        while let Some(entries) = at.filter(|_| ranges.len() < 64).and_then(|at| record(part, at, sector)) {
            let here = at.unwrap_or_default();
            let [(kind, from, size), (_, link, _), ..] = entries.as_slice() else { break };
            if *kind != 0 {
                ranges.push(range(here + from, *size));
            }
            let next = (*link > 0).then_some(start + link).filter(|next| *next > here);
            ranges.extend(next.map(|next| range(next, 512)));
            at = next;
        }
    }
    Some(ranges)
}

/// The data of a member of an md array of version 1, where it is that of the array.
fn array(part: &BlockDev) -> Option<Range> {
    let place = superblock::read(part).ok()??.offset;
    let head = read(part, place, 256)?;
    let (start, size) = (long(&head, 128)?, long(&head, 136)?);
    (word(&head, 4) == Some(1)).then_some(Range {
        start: start.checked_mul(512)?,
        size: size.saturating_mul(512),
        is_current: true,
        is_disk: true,
    })
}

/// The data of a disk that bcache has a cache for (kernel `include/uapi/linux/bcache.h`).
fn cached(part: &BlockDev) -> Option<Range> {
    let head = read(part, 4096, 192)?;
    head.get(24..).filter(|rest| rest.starts_with(&[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca]))?;
    let sectors = match long(&head, 16)? {
        1 => 16,
        4.. => long(&head, 184)?,
        _ => return None,
    };
    Some(Range { start: sectors.checked_mul(512)?, size: part.size_bytes(), is_current: true, is_disk: true })
}

/// Where the logical volumes of an LVM physical volume begin on it, each of their segments (lvm2 `format_text/layout.h`).
fn volumes(part: &BlockDev) -> Option<Vec<Range>> {
    let labels = read(part, 0, 2048)?;
    let (index, label) = (0_u64..).zip(labels.chunks_exact(512)).find(|(_, sector)| {
        sector.starts_with(b"LABELONE") && sector.get(24..).is_some_and(|rest| rest.starts_with(b"LVM2 001"))
    })?;
    let header = usize::try_from(word(label, 20)?).ok()?;
    // The name of the physical volume and its size, then two lists of areas that each end with an empty one: data, metadata.
    let area = |number: usize| Some((long(label, header + 40 + 16 * number)?, long(label, header + 48 + 16 * number)?));
    let mut numbers = 0..8;
    let data = area(0)?.0;
    numbers.find(|number| area(*number).is_some_and(|(offset, size)| offset == 0 && size == 0))?;
    let description = area(numbers.next()?)?;
    let text = description_of(part, description).unwrap_or_default();
    tracing::trace!(label = index, data, bytes = text.len(), "physical volume");
    let mut ranges: Vec<Range> = segments(&text)
        .into_iter()
        .filter_map(|(from, sectors)| {
            let start = from.checked_mul(512)?.checked_add(data)?;
            Some(Range { start, size: sectors.saturating_mul(512), is_current: true, is_disk: true })
        })
        .collect();
    // Where the first volume begins, should the description be damaged.
    ranges.push(Range { start: data, size: part.size_bytes(), is_current: true, is_disk: true });
    Some(ranges)
}

/// The text that describes a volume group, from the ring that it is in.
fn description_of(part: &BlockDev, (place, size): (u64, u64)) -> Option<String> {
    let header = read(part, place, 64)?;
    header.get(4..).filter(|rest| rest.starts_with(b" LVM2 x[5A%r0N*>"))?;
    let (from, len) = (long(&header, 40)?, usize::try_from(long(&header, 48)?).ok()?.min(MAX_TABLE_BYTES));
    let first = usize::try_from(size.checked_sub(from)?).unwrap_or(usize::MAX).min(len);
    let mut bytes = read(part, place.checked_add(from)?, first)?;
    // The ring's first sector is its header.
    bytes.extend(read(part, place.checked_add(512)?, len - first)?);
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// First sector and length of each piece of a volume in the description of a group, counted from the start of its data.
fn segments(text: &str) -> Vec<(u64, u64)> {
    let (mut extent, mut extents, mut is_list) = (8192, 1, false);
    let mut found = Vec::new();
    for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
        let (key, value) = line.split_once('=').map_or(("", line), |(key, value)| (key.trim(), value.trim()));
        match (key, value.parse::<u64>()) {
            ("extent_size", Ok(sectors)) => extent = sectors,
            ("extent_count", Ok(count)) => extents = count,
            ("stripes", _) => is_list = true,
            ("", _) if is_list && line.starts_with(']') => is_list = false,
            ("", _) if is_list => {
                let first =
                    line.trim_end_matches(',').rsplit(',').next().and_then(|word| word.trim().parse::<u64>().ok());
                let place = first.and_then(|first| first.checked_mul(extent));
                found.extend(place.map(|place| (place, extents.saturating_mul(extent))));
            }
            _ => {}
        }
        if found.len() >= MAX_LAYERS {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests;
