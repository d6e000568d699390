//! GUID partition tables.

use std::io::{Seek, SeekFrom};

use ferric_sys::block_dev::BlockDev;
use gptman::{GPT, GPTHeader, GPTPartitionEntry};

use super::{Guid, Partition, PartitionType, TableError, mbr};

/// More entries than any tool writes; a hostile header could claim four billion.
const MAX_ENTRIES: u32 = 1024;
/// Size of an entry. The standard allows more; neither Linux (`block/partitions/efi.c`) nor the library does.
const ENTRY_BYTES: u32 = 128;
/// Alignment of partitions made here.
const ALIGN_BYTES: u64 = 1 << 20;

/// Reads the GPT: the primary one, or the backup at the end of the disk where the primary is damaged. `None` when
/// there is neither, or when the MBR does not tell of one: what looks like a GPT is then left over from earlier times.
///
/// # Errors
/// [`TableError::InvalidGpt`], [`TableError::Gpt`], [`TableError::Device`].
pub fn read(dev: &BlockDev) -> Result<Option<GPT>, TableError> {
    if !mbr::is_protective(dev)? {
        return Ok(None);
    }
    let sector = u64::from(dev.logical_sector());
    let last = (dev.size_bytes() / sector).saturating_sub(1);
    // The library takes the backup when, and only when, the primary one is damaged.
    let primary = look(dev, 1)?;
    let backup = if primary == Copy::Whole || last <= 1 { Copy::Absent } else { look(dev, last)? };
    if primary == Copy::Absent && backup != Copy::Whole {
        return Ok(None);
    }
    let gpt = GPT::read_from(&mut dev.cursor(), sector)
        .map_err(|source| TableError::Gpt { path: dev.path().to_owned(), source: Box::new(source) })?;
    check_entries(dev, &gpt, sector)?;
    Ok(Some(gpt))
}

/// Whether there is something like a header in the place of the primary one, whatever the MBR says.
///
/// # Errors
/// [`TableError::Device`].
pub(super) fn has_signature(dev: &BlockDev) -> Result<bool, TableError> {
    is_signed(dev, 1)
}

fn is_signed(dev: &BlockDev, lba: u64) -> Result<bool, TableError> {
    let sector = u64::from(dev.logical_sector());
    let mut signature = [0_u8; 8];
    if (lba + 1) * sector > dev.size_bytes() {
        return Ok(false);
    }
    dev.read_at(lba * sector, &mut signature)
        .map_err(|source| TableError::Device { path: dev.path().to_owned(), source })?;
    Ok(&signature == b"EFI PART")
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Copy {
    Absent,
    Damaged,
    Whole,
}

/// Looks at one copy of the table before the library does, which panics at what it does not expect. An error is a copy
/// with the right checksums that claims what cannot be.
fn look(dev: &BlockDev, lba: u64) -> Result<Copy, TableError> {
    let sector = u64::from(dev.logical_sector());
    let mut cursor = dev.cursor();
    let mut reader = &mut cursor;
    if !is_signed(dev, lba)? {
        return Ok(Copy::Absent);
    }
    // A header that cannot be read is reported by whoever reads it next.
    let header = reader.seek(SeekFrom::Start(lba * sector)).ok().and_then(|_| GPTHeader::read_from(&mut reader).ok());
    let Some(header) = header else { return Ok(Copy::Damaged) };
    let invalid = |reason| TableError::InvalidGpt { path: dev.path().to_owned(), reason };
    check_header(&header, lba, dev.size_bytes() / sector, sector).map_err(invalid)?;
    let Ok(entries) = header.read_partitions(&mut reader, sector) else { return Ok(Copy::Damaged) };
    let mut used = entries.iter().filter(|entry| entry.is_used()).peekable();
    if used.peek().is_some() && used.all(|entry| entry.starting_lba == 0) {
        let reason = "every partition begins at sector 0, which holds the protective MBR; the usable sectors are";
        return Err(invalid(format!("{reason} {} to {}", header.first_usable_lba, header.last_usable_lba)));
    }
    Ok(Copy::Whole)
}

/// Bounds of the fields of a header on a disk of so many sectors, beyond which sums and products overflow.
fn check_header(header: &GPTHeader, lba: u64, sectors: u64, sector: u64) -> Result<(), String> {
    let (entries, entry_bytes) = (header.number_of_partition_entries, header.size_of_partition_entry);
    let (first, last) = (header.first_usable_lba, header.last_usable_lba);
    if entries == 0 || entries > MAX_ENTRIES {
        return Err(format!("it claims {entries} entries, expected 1 to {MAX_ENTRIES}"));
    }
    if entry_bytes != ENTRY_BYTES {
        return Err(format!("it claims entries of {entry_bytes} bytes, expected {ENTRY_BYTES}"));
    }
    if header.primary_lba != lba {
        return Err(format!("its header in sector {lba} says that it is in sector {}", header.primary_lba));
    }
    let start = header.partition_entry_lba;
    if start < 2 || start.checked_add(table_sectors(header, sector)).is_none_or(|end| end > sectors) {
        return Err(format!("its entries cannot begin in sector {start} of {sectors}"));
    }
    if first > last || last == u64::MAX {
        return Err(format!("it claims that sectors {first} to {last} are usable"));
    }
    Ok(())
}

/// Refuses partitions that are not on the disk: Linux takes no notice of them (`block/partitions/efi.c`).
fn check_entries(dev: &BlockDev, gpt: &GPT, sector: u64) -> Result<(), TableError> {
    let sectors = dev.size_bytes() / sector;
    for (number, entry) in gpt.iter().filter(|(_, entry)| entry.is_used()) {
        let (start, end) = (entry.starting_lba, entry.ending_lba);
        let what = if start > end {
            "it ends before it begins".to_owned()
        } else if end >= sectors {
            format!("the disk ends at sector {}", sectors.saturating_sub(1))
        } else {
            continue;
        };
        return Err(misplaced(dev, gpt, number, &what));
    }
    Ok(())
}

/// Refuses partitions that lie over the table, or over the place where its backup has to be on this disk: whoever writes
/// to the one destroys the other. Other sloppiness is let be, see [`fix_backup`].
///
/// # Errors
/// [`TableError::InvalidGpt`], [`TableError::Device`].
pub(super) fn check_places(dev: &BlockDev, gpt: &GPT) -> Result<(), TableError> {
    let sector = u64::from(dev.logical_sector());
    let last = (dev.size_bytes() / sector).saturating_sub(1);
    let table = table_sectors(&gpt.header, sector);
    // From the backup only the place of its own entries is known; the primary ones go where they always are.
    let entries = if gpt.header.is_primary() { gpt.header.partition_entry_lba } else { 2 };
    let backup = last.saturating_sub(table);
    let reserved = [
        ("hold the protective MBR and the header", 0, 1),
        ("hold the table's entries", entries, entries.saturating_add(table - 1)),
        ("are for the backup of the table", backup, last),
    ];
    for (number, entry) in gpt.iter().filter(|(_, entry)| entry.is_used()) {
        let (start, end) = (entry.starting_lba, entry.ending_lba);
        let hit = reserved.iter().find(|(_, from, to)| start <= *to && end >= *from);
        if let Some((what, from, to)) = hit
            && !(start == 0 && is_iso9660(dev)?)
        {
            return Err(misplaced(dev, gpt, number, &format!("sectors {from} to {to} {what}")));
        }
    }
    Ok(())
}

/// How many sectors the entries take.
fn table_sectors(header: &GPTHeader, sector: u64) -> u64 {
    let bytes = u64::from(header.number_of_partition_entries) * u64::from(header.size_of_partition_entry);
    bytes.div_ceil(sector).max(1)
}

/// Whether the disk is a CD image: one that also boots from a disk has a partition over all of it, its table included,
/// which nobody writes to.
fn is_iso9660(dev: &BlockDev) -> Result<bool, TableError> {
    let mut magic = [0_u8; 5];
    let offset = (32 << 10) + 1;
    if offset + 5 > dev.size_bytes() {
        return Ok(false);
    }
    dev.read_at(offset, &mut magic).map_err(|source| TableError::Device { path: dev.path().to_owned(), source })?;
    Ok(&magic == b"CD001")
}

fn misplaced(dev: &BlockDev, gpt: &GPT, number: u32, what: &str) -> TableError {
    let (start, end) = gpt
        .iter()
        .find(|(found, _)| *found == number)
        .map_or((0, 0), |(_, entry)| (entry.starting_lba, entry.ending_lba));
    let header = &gpt.header;
    TableError::InvalidGpt {
        path: dev.path().to_owned(),
        reason: format!(
            "partition {number} covers sectors {start} to {end}, but {what}; the usable sectors are {} to {}",
            header.first_usable_lba, header.last_usable_lba
        ),
    }
}

/// What is not as it should be, but common enough in images, hybrids of disk and CD above all, and taken by Linux.
pub(super) fn oddities(gpt: &GPT) -> Vec<String> {
    let header = &gpt.header;
    let mut found = Vec::new();
    let mut used: Vec<_> = gpt.iter().filter(|(_, entry)| entry.is_used()).collect();
    used.sort_by_key(|(_, entry)| entry.starting_lba);
    let mut furthest: Option<(u32, u64)> = None;
    for (number, entry) in used {
        let (start, end) = (entry.starting_lba, entry.ending_lba);
        if start < header.first_usable_lba || end > header.last_usable_lba {
            found.push(format!(
                "partition {number} covers sectors {start} to {end}, of which {} to {} are usable: UEFI firmware may \
                 not see it",
                header.first_usable_lba, header.last_usable_lba
            ));
        }
        if let Some((other, other_end)) = furthest.filter(|(_, other_end)| start <= *other_end) {
            found.push(format!(
                "partition {number} (sectors {start} to {end}) overlaps partition {other}, which ends at {other_end}"
            ));
        }
        if furthest.is_none_or(|(_, other_end)| end > other_end) {
            furthest = Some((number, end));
        }
    }
    found
}

/// Partitions in use.
pub fn partitions(dev: &BlockDev, gpt: &GPT) -> Vec<Partition> {
    let sector = u64::from(dev.logical_sector());
    gpt.iter()
        .filter(|(_, entry)| entry.is_used())
        .map(|(number, entry)| Partition {
            number,
            start_bytes: entry.starting_lba * sector,
            size_bytes: (entry.ending_lba - entry.starting_lba + 1) * sector,
            kind: PartitionType::Gpt(Guid(entry.partition_type_guid)),
            guid: Some(Guid(entry.unique_partition_guid)),
            name: entry.partition_name.as_str().to_owned(),
        })
        .collect()
}

/// See [`super::fix_backup_gpt`].
pub(super) fn fix_backup(dev: &BlockDev) -> Result<bool, TableError> {
    let sector = u64::from(dev.logical_sector());
    let Some(mut gpt) = read(dev)? else { return Ok(false) };
    for oddity in oddities(&gpt) {
        tracing::warn!(disk = %dev.path().display(), oddity, "the partition table of the image is unusual");
    }
    let last = dev.size_bytes() / sector - 1;
    if gpt.header.is_primary() && gpt.header.backup_lba == last && backup_matches(dev, &gpt, last * sector) {
        return Ok(false);
    }
    let old_backup = gpt.header.backup_lba;
    if gpt.header.is_backup() {
        // The primary header is damaged: make it anew from the backup.
        gpt.header.primary_lba = 1;
        gpt.header.backup_lba = last;
        gpt.header.partition_entry_lba = 2;
    }
    write(dev, &mut gpt)?;
    let covered = gpt.iter().any(|(_, entry)| entry.is_used() && entry.ending_lba >= old_backup);
    if old_backup > 1 && old_backup < gpt.header.last_usable_lba && !covered {
        // A second "EFI PART" in the middle of the disk only misleads recovery tools.
        dev.zero_range(old_backup * sector, sector)
            .map_err(|source| TableError::Device { path: dev.path().to_owned(), source })?;
    }
    Ok(true)
}

fn backup_matches(dev: &BlockDev, gpt: &GPT, offset: u64) -> bool {
    let mut header = [0_u8; 92];
    dev.read_at(offset, &mut header).is_ok()
        && header.starts_with(b"EFI PART")
        && header.get(56..72) == Some(&gpt.header.disk_guid[..])
        && header.get(88..92) == Some(&gpt.header.partition_entry_array_crc32.to_le_bytes()[..])
}

/// Fits the table to the disk and writes both copies.
fn write(dev: &BlockDev, gpt: &mut GPT) -> Result<(), TableError> {
    let failed = |source: gptman::Error| TableError::Gpt { path: dev.path().to_owned(), source: Box::new(source) };
    let sector = u64::from(dev.logical_sector());
    let first_usable = gpt.header.first_usable_lba;
    gpt.header.update_from(&mut dev.cursor(), sector).map_err(failed)?;
    // Where the first partition may begin is the image's choice.
    gpt.header.first_usable_lba = gpt.header.first_usable_lba.max(first_usable).min(gpt.header.last_usable_lba);
    let end = gpt.iter().filter(|(_, entry)| entry.is_used()).map(|(_, entry)| entry.ending_lba).max();
    if let Some(end) = end.filter(|end| *end > gpt.header.last_usable_lba) {
        return Err(TableError::InvalidGpt {
            path: dev.path().to_owned(),
            reason: format!(
                "its last partition ends at sector {end}, where the backup table must be (last usable sector {})",
                gpt.header.last_usable_lba
            ),
        });
    }
    gpt.write_into(&mut dev.cursor()).map_err(failed)?;
    dev.flush().map_err(|source| TableError::Device { path: dev.path().to_owned(), source })
}

/// Adds a partition of at least `size_bytes` at the end of the disk, aligned to 1 MiB, as Linux data, and returns it.
/// The backup table must be at its place ([`super::fix_backup_gpt`]).
///
/// # Errors
/// [`TableError::NoRoom`], [`TableError::Gpt`], [`TableError::Device`].
pub fn add_last(dev: &BlockDev, size_bytes: u64) -> Result<Partition, TableError> {
    let path = || dev.path().to_owned();
    let no_room = || TableError::NoRoom { path: path(), wanted_bytes: size_bytes };
    let sector = u64::from(dev.logical_sector());
    let mut gpt = read(dev)?.ok_or_else(|| TableError::NoTable { path: path(), sector: dev.logical_sector() })?;
    let end = gpt.header.last_usable_lba;
    let align = ALIGN_BYTES / sector;
    let start = (end + 1).checked_sub(size_bytes.div_ceil(sector)).map(|start| start / align * align);
    let start = start.filter(|start| *start >= gpt.header.first_usable_lba).ok_or_else(no_room)?;
    let overlaps = gpt.iter().any(|(_, entry)| entry.is_used() && entry.ending_lba >= start);
    let number = gpt.iter().find(|(_, entry)| entry.is_unused()).map(|(number, _)| number);
    let Some(number) = number.filter(|_| !overlaps) else { return Err(no_room()) };
    let guid = Guid::random()
        .map_err(|source| TableError::Gpt { path: path(), source: Box::new(gptman::Error::Io(source)) })?;
    gpt[number] = GPTPartitionEntry {
        partition_type_guid: Guid::LINUX_DATA.0,
        unique_partition_guid: guid.0,
        starting_lba: start,
        ending_lba: end,
        attribute_bits: 0,
        partition_name: "".into(),
    };
    write(dev, &mut gpt)?;
    Ok(Partition {
        number,
        start_bytes: start * sector,
        size_bytes: (end - start + 1) * sector,
        kind: PartitionType::Gpt(Guid::LINUX_DATA),
        guid: Some(guid),
        name: String::new(),
    })
}

/// See [`super::edit`].
pub(super) fn edit(dev: &BlockDev, gone: &[u32], new: &[Partition]) -> Result<(), TableError> {
    let path = || dev.path().to_owned();
    let random = || {
        let gptman_error = |source| TableError::Gpt { path: path(), source: Box::new(gptman::Error::Io(source)) };
        Guid::random().map_err(gptman_error)
    };
    let sector = u64::from(dev.logical_sector());
    let mut gpt = read(dev)?.ok_or_else(|| TableError::NoTable { path: path(), sector: dev.logical_sector() })?;
    let entries = gpt.header.number_of_partition_entries;
    for number in gone.iter().filter(|number| (1..=entries).contains(*number)) {
        gpt[*number] = GPTPartitionEntry::empty();
    }
    for partition in new {
        let PartitionType::Gpt(kind) = partition.kind else { continue };
        let (start, end) =
            (partition.start_bytes / sector, (partition.start_bytes + partition.size_bytes) / sector - 1);
        let overlaps =
            gpt.iter().any(|(_, entry)| entry.is_used() && entry.starting_lba <= end && entry.ending_lba >= start);
        let is_free = (1..=entries).contains(&partition.number) && gpt[partition.number].is_unused();
        if overlaps || !is_free {
            return Err(TableError::NoRoom { path: path(), wanted_bytes: partition.size_bytes });
        }
        gpt[partition.number] = GPTPartitionEntry {
            partition_type_guid: kind.0,
            unique_partition_guid: random()?.0,
            starting_lba: start,
            ending_lba: end,
            attribute_bits: 0,
            partition_name: partition.name.as_str().into(),
        };
    }
    write(dev, &mut gpt)
}

/// Writes a new GPT with its protective MBR.
///
/// # Errors
/// [`TableError::Gpt`], [`TableError::Device`].
pub(super) fn create(dev: &BlockDev, partitions: &[Partition]) -> Result<(), TableError> {
    let failed = |source: gptman::Error| TableError::Gpt { path: dev.path().to_owned(), source: Box::new(source) };
    let random = || Guid::random().map_err(|source| failed(gptman::Error::Io(source)));
    let sector = u64::from(dev.logical_sector());
    let mut gpt = GPT::new_from(&mut dev.cursor(), sector, random()?.0).map_err(failed)?;
    for partition in partitions {
        let PartitionType::Gpt(kind) = partition.kind else { continue };
        gpt[partition.number] = GPTPartitionEntry {
            partition_type_guid: kind.0,
            unique_partition_guid: random()?.0,
            starting_lba: partition.start_bytes / sector,
            ending_lba: (partition.start_bytes + partition.size_bytes) / sector - 1,
            attribute_bits: 0,
            partition_name: partition.name.as_str().into(),
        };
    }
    GPT::write_protective_mbr_into(&mut dev.cursor(), sector).map_err(failed)?;
    gpt.write_into(&mut dev.cursor()).map_err(failed)?;
    dev.flush().map_err(|source| TableError::Device { path: dev.path().to_owned(), source })
}
