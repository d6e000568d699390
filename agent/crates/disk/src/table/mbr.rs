//! Master boot records: the partition table of BIOS machines (no standard; layout as every system has it since DOS).

use ferric_sys::block_dev::BlockDev;

use super::{Guid, Partition, PartitionType, TableError};

/// Where the four entries begin.
const ENTRIES: usize = 446;
/// System id of the protective entry that a GPT disk has.
const PROTECTIVE: u8 = 0xee;
/// System id of FAT32 with LBA, what a config drive gets.
const FAT32_LBA: u8 = 0x0c;
/// More logical partitions than the kernel itself takes.
const MAX_LOGICAL: u32 = 60;
/// Alignment of partitions made here.
const ALIGN_BYTES: u64 = 1 << 20;
/// CHS that means "see the LBA fields".
const LBA_ONLY: [u8; 3] = [0xfe, 0xff, 0xff];

#[derive(Debug, Clone, Copy)]
struct Entry {
    kind: u8,
    start: u32,
    sectors: u32,
}

impl Entry {
    fn read(bytes: &[u8]) -> Self {
        let word = |at: usize| {
            let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).unwrap_or([0; 4]);
            u32::from_le_bytes(word)
        };
        Self { kind: bytes.get(4).copied().unwrap_or(0), start: word(8), sectors: word(12) }
    }

    /// As it stands in the table.
    fn bytes(self, active: bool) -> [u8; 16] {
        let mut bytes = [0_u8; 16];
        bytes[0] = if active { 0x80 } else { 0 };
        bytes[1..4].copy_from_slice(&LBA_ONLY);
        bytes[4] = self.kind;
        bytes[5..8].copy_from_slice(&LBA_ONLY);
        bytes[8..12].copy_from_slice(&self.start.to_le_bytes());
        bytes[12..].copy_from_slice(&self.sectors.to_le_bytes());
        bytes
    }

    const fn is_used(self) -> bool {
        self.kind != 0 && self.sectors != 0
    }

    const fn is_extended(self) -> bool {
        matches!(self.kind, 0x05 | 0x0f | 0x85)
    }
}

/// A sector that ends as a boot record does.
fn read_record(dev: &BlockDev, lba: u64) -> Result<Option<[u8; 512]>, TableError> {
    let mut sector = [0_u8; 512];
    let offset = lba.saturating_mul(u64::from(dev.logical_sector()));
    if offset.saturating_add(512) > dev.size_bytes() {
        return Ok(None);
    }
    dev.read_at(offset, &mut sector).map_err(|source| TableError::Device { path: dev.path().to_owned(), source })?;
    Ok(Some(sector).filter(|sector| sector.ends_with(&[0x55, 0xaa])))
}

fn entries(sector: &[u8; 512]) -> [Entry; 4] {
    let mut entries = sector[ENTRIES..510].chunks_exact(16).map(Entry::read);
    let mut next = || entries.next().unwrap_or(Entry { kind: 0, start: 0, sectors: 0 });
    [next(), next(), next(), next()]
}

fn read_sector(dev: &BlockDev, lba: u64) -> Result<Option<[Entry; 4]>, TableError> {
    let Some(sector) = read_record(dev, lba)? else { return Ok(None) };
    let flags = sector[ENTRIES..510].iter().step_by(16);
    // A FAT boot sector ends in the same two bytes; its code makes no sense as boot flags.
    Ok(flags.into_iter().all(|flag| matches!(flag, 0x00 | 0x80)).then(|| entries(&sector)))
}

/// Whether the MBR says that the disk has a GPT: without that neither Linux (`is_pmbr_valid` in
/// `block/partitions/efi.c`) nor firmware looks for one.
///
/// # Errors
/// [`TableError::Device`].
pub(super) fn is_protective(dev: &BlockDev) -> Result<bool, TableError> {
    let is_protective = |entry: Entry| entry.kind == PROTECTIVE && entry.start == 1;
    Ok(read_record(dev, 0)?.is_some_and(|sector| entries(&sector).into_iter().any(is_protective)))
}

/// The identifier of the disk, as it stands in its MBR; zero for a disk that has none.
///
/// # Errors
/// [`TableError::Device`].
pub fn disk_signature(dev: &BlockDev) -> Result<[u8; 4], TableError> {
    let mut id = [0; 4];
    dev.read_at(440, &mut id).map_err(|source| TableError::Device { path: dev.path().to_owned(), source })?;
    Ok(id)
}

/// Partitions of an MBR, logical ones included; `None` when the disk has no MBR or only the protective one of a GPT.
///
/// # Errors
/// [`TableError::Device`].
pub fn read(dev: &BlockDev) -> Result<Option<Vec<Partition>>, TableError> {
    let Some(entries) = read_sector(dev, 0)? else { return Ok(None) };
    if entries.iter().any(|entry| entry.kind == PROTECTIVE) {
        return Ok(None);
    }
    let mut found = Vec::new();
    for (number, entry) in (1_u32..).zip(entries) {
        if entry.is_used() {
            found.push(partition(dev, number, u64::from(entry.start), entry));
        }
    }
    if let Some(extended) = entries.into_iter().find(|entry| entry.is_extended() && entry.is_used()) {
        read_logical(dev, extended, &mut found)?;
    }
    Ok(Some(found))
}

/// Follows the chain of extended boot records; each must lie behind the one before, so a loop ends it.
fn read_logical(dev: &BlockDev, extended: Entry, found: &mut Vec<Partition>) -> Result<(), TableError> {
    let base = u64::from(extended.start);
    let (mut at, mut number) = (base, 5_u32);
    while number < 5 + MAX_LOGICAL {
        let Some([logical, link, _, _]) = read_sector(dev, at)? else { break };
        if logical.is_used() {
            found.push(partition(dev, number, at + u64::from(logical.start), logical));
            number += 1;
        }
        let next = base + u64::from(link.start);
        if !link.is_used() || next <= at {
            break;
        }
        at = next;
    }
    Ok(())
}

fn partition(dev: &BlockDev, number: u32, start: u64, entry: Entry) -> Partition {
    let sector = u64::from(dev.logical_sector());
    Partition {
        number,
        start_bytes: start * sector,
        size_bytes: u64::from(entry.sectors) * sector,
        kind: PartitionType::Mbr(entry.kind),
        guid: None,
        name: String::new(),
    }
}

/// Adds a primary partition of at least `size_bytes` at the end of the disk, or below 2 TiB on a larger one, since an
/// MBR cannot describe more (pitfall C21), and returns it.
///
/// # Errors
/// [`TableError::MbrFull`], [`TableError::NoRoom`], [`TableError::Device`].
pub fn add_last(dev: &BlockDev, size_bytes: u64) -> Result<Partition, TableError> {
    let path = || dev.path().to_owned();
    let device = |source| TableError::Device { path: path(), source };
    let no_room = || TableError::NoRoom { path: path(), wanted_bytes: size_bytes };
    let entries =
        read_sector(dev, 0)?.ok_or_else(|| TableError::NoTable { path: path(), sector: dev.logical_sector() })?;
    let primaries = entries.iter().filter(|entry| entry.is_used()).count();
    let Some(slot) = entries.iter().position(|entry| !entry.is_used()).filter(|_| primaries <= 3) else {
        return Err(TableError::MbrFull { path: path(), primaries });
    };
    let sector = u64::from(dev.logical_sector());
    let end = (dev.size_bytes() / sector).min(u64::from(u32::MAX));
    let align = ALIGN_BYTES / sector;
    let start = end.checked_sub(size_bytes.div_ceil(sector)).map(|start| start / align * align);
    let last_used = entries
        .iter()
        .filter(|entry| entry.is_used())
        .map(|entry| u64::from(entry.start) + u64::from(entry.sectors))
        .max()
        .unwrap_or(align);
    let start = start.filter(|start| *start >= last_used.max(1)).ok_or_else(no_room)?;
    let word = |value: u64| u32::try_from(value).map_err(|_beyond_mbr| no_room());
    let entry = Entry { kind: FAT32_LBA, start: word(start)?, sectors: word(end - start)? };
    let bytes = entry.bytes(false);
    let offset = u64::try_from(ENTRIES + 16 * slot).map_err(|_never| no_room())?;
    dev.write_at(offset, &bytes).map_err(device)?;
    dev.flush().map_err(device)?;
    let number = u32::try_from(slot + 1).map_err(|_never| no_room())?;
    Ok(partition(dev, number, start, entry))
}

/// See [`super::edit`]; primary partitions only.
pub(super) fn edit(dev: &BlockDev, gone: &[u32], new: &[Partition]) -> Result<(), TableError> {
    let device = |source| TableError::Device { path: dev.path().to_owned(), source };
    let sector = u64::from(dev.logical_sector());
    let write = |number: u32, bytes: [u8; 16]| {
        let offset = u64::try_from(ENTRIES).unwrap_or_default() + 16 * u64::from(number.saturating_sub(1));
        dev.write_at(offset, &bytes).map_err(device)
    };
    for number in gone.iter().filter(|number| (1..=4).contains(*number)) {
        write(*number, [0; 16])?;
    }
    for partition in new {
        let no_room = || TableError::NoRoom { path: dev.path().to_owned(), wanted_bytes: partition.size_bytes };
        let used = read(dev)?.unwrap_or_default();
        let end = |partition: &Partition| partition.start_bytes + partition.size_bytes;
        let is_taken = |other: &Partition| {
            other.number == partition.number || other.start_bytes < end(partition) && end(other) > partition.start_bytes
        };
        let PartitionType::Mbr(kind) = partition.kind else { continue };
        if !(1..=4).contains(&partition.number) || used.iter().any(is_taken) {
            return Err(no_room());
        }
        let word = |bytes: u64| u32::try_from(bytes / sector).map_err(|_beyond_mbr| no_room());
        let entry = Entry { kind, start: word(partition.start_bytes)?, sectors: word(partition.size_bytes)? };
        write(partition.number, entry.bytes(false))?;
    }
    dev.flush().map_err(device)
}

/// Writes a new MBR of up to four primary partitions, without boot code and with an identifier of its own.
///
/// # Errors
/// [`TableError::NoRoom`] for a partition that an MBR cannot describe, [`TableError::Device`].
pub(super) fn create(dev: &BlockDev, partitions: &[Partition], active: Option<u32>) -> Result<(), TableError> {
    let device = |source| TableError::Device { path: dev.path().to_owned(), source };
    let sector_bytes = u64::from(dev.logical_sector());
    let mut sector = [0_u8; 512];
    let random = Guid::random().map_err(|source| TableError::Random { path: dev.path().to_owned(), source })?;
    sector[440..444].copy_from_slice(&random.0[..4]);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    for partition in partitions {
        let no_room = || TableError::NoRoom { path: dev.path().to_owned(), wanted_bytes: partition.size_bytes };
        let PartitionType::Mbr(kind) = partition.kind else { continue };
        let word = |bytes: u64| u32::try_from(bytes / sector_bytes).map_err(|_beyond_mbr| no_room());
        let entry = Entry { kind, start: word(partition.start_bytes)?, sectors: word(partition.size_bytes)? };
        let slot = usize::try_from(partition.number).ok().and_then(|number| number.checked_sub(1));
        let place = slot.filter(|slot| *slot < 4).and_then(|slot| sector.get_mut(ENTRIES + 16 * slot..)?.get_mut(..16));
        place.ok_or_else(no_room)?.copy_from_slice(&entry.bytes(active == Some(partition.number)));
    }
    dev.write_at(0, &sector).map_err(device)?;
    dev.flush().map_err(device)
}
