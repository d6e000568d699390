//! VMDK files of one sparse extent: `monolithicSparse` and `streamOptimized` (VMware Virtual Disk Format 1.1).
//!
//! Their grains are found as the clusters of a qcow2 file are, through the grain directory and grain tables. A
//! `streamOptimized` file may have these behind the grains; then its last sectors say where they are, and who cannot ask
//! for those goes from marker to marker ([`write_marked`]).

mod descriptor;
mod marked;

use super::qcow2::{Family, Header};
use super::unpack::Compression;

pub(super) use marked::write_marked;

const SECTOR: u64 = 512;
/// In place of the grain directory's sector: the footer says it.
const AT_END: u64 = u64::MAX;
/// Marker, copy of the header and end of the stream.
pub(super) const FOOTER_BYTES: usize = 3 * 512;
/// Longest grain directory, as long as the longest L1 table of qcow2.
const MAX_DIRECTORY_BYTES: u64 = 32 << 20;

/// Header flags: the line ends are to be looked at, a second directory, an entry of 1 means zeroes, compressed, markers.
const LINE_ENDS: u32 = 1 << 0;
const SECOND_DIRECTORY: u32 = 1 << 1;
const ZEROED: u32 = 1 << 2;
const COMPRESSED: u32 = 1 << 16;
const MARKERS: u32 = 1 << 17;
const KNOWN: u32 = LINE_ENDS | SECOND_DIRECTORY | ZEROED | COMPRESSED | MARKERS;

/// Types of markers.
const END: u32 = 0;
const TABLE: u32 = 1;
const DIRECTORY: u32 = 2;
const FOOTER: u32 = 3;

/// What the first sectors of a file say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sparse {
    /// Without `l1_offset` when that is at the end.
    pub(super) header: Header,
    /// Whether the tables are behind the grains.
    pub(super) tables_at_end: bool,
    /// Where the first grain or marker may be.
    data_offset: u64,
    /// The first sector up to the grain directory's offset, which a footer must repeat.
    fixed: [u8; 48],
}

impl Sparse {
    /// Reads the header and the descriptor from the first bytes of a file.
    ///
    /// # Errors
    /// What is wrong with the file, as what follows "the vmdk file".
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        if !bytes.starts_with(b"KDMV") {
            return Err("is not one of a single sparse extent");
        }
        let sector = bytes.first_chunk::<512>().ok_or("is cut short")?;
        let (version, flags) = (le32(sector, 4), le32(sector, 8));
        if !(1..=3).contains(&version) {
            return Err("has an unknown version");
        }
        if flags & !KNOWN != 0 {
            return Err("needs unknown features");
        }
        if flags & LINE_ENDS != 0 && sector.get(73..77) != Some(b"\n \r\n") {
            return Err("was damaged by a transfer as text");
        }
        let packed = flags & COMPRESSED != 0;
        if packed != (flags & MARKERS != 0) || packed != (le16(sector, 77) == 1) || le16(sector, 77) > 1 {
            return Err("is compressed in an unknown way");
        }
        let (grain, tables) = (le64(sector, 20), le32(sector, 44));
        if !grain.is_power_of_two() || !(8..=4096).contains(&grain) || tables != 512 {
            return Err("has grains or tables of a size that is not supported");
        }
        let (at, length) = (le64(sector, 28), le64(sector, 36));
        let end = length.checked_add(1).and_then(|sectors| sectors.checked_mul(SECTOR));
        let text =
            end.and_then(|end| bytes.get(512..usize::try_from(end).ok()?)).ok_or("has no descriptor of its own")?;
        if at != 1 || text.is_empty() {
            return Err("has no descriptor in its second sector");
        }
        descriptor::check(text)?;
        let virtual_bytes = le64(sector, 12).checked_mul(SECTOR).ok_or("has an impossible size")?;
        let mut header = Header {
            family: Family::Vmdk { zeroed: flags & ZEROED != 0, packed },
            version,
            cluster_bits: (grain * SECTOR).trailing_zeros(),
            virtual_bytes,
            l1_offset: 0,
            l1_entries: 0,
            compression: Compression::Zlib,
            header_bytes: end.unwrap_or_default(),
        };
        header.l1_entries = virtual_bytes.div_ceil(header.l2_coverage());
        if header.l1_entries * header.entry_bytes() > MAX_DIRECTORY_BYTES {
            return Err("has too long a grain directory");
        }
        let directory = le64(sector, 56);
        let tables_at_end = directory == AT_END;
        if tables_at_end && !packed {
            return Err("has its tables at the end without markers");
        }
        if !tables_at_end {
            header.l1_offset = offset(directory, &header)?;
        }
        let data_offset = le64(sector, 64).saturating_mul(SECTOR).max(header.header_bytes);
        let fixed = sector.first_chunk().copied().ok_or("is cut short")?;
        Ok(Self { header, tables_at_end, data_offset, fixed })
    }

    /// The header with the place of the grain directory, from the last [`FOOTER_BYTES`] of the file.
    ///
    /// # Errors
    /// As for [`Sparse::parse`].
    pub(super) fn with_footer(&self, tail: &[u8]) -> Result<Header, &'static str> {
        let (sectors, _) = tail.as_chunks::<512>();
        let [marker, footer, end] = sectors else { return Err("is cut short") };
        let wanted = [Marker { value: 1, size: 0, kind: FOOTER }, Marker { value: 0, size: 0, kind: END }];
        if [marker, end].map(Marker::parse) != wanted {
            return Err("has no footer");
        }
        self.check_footer(footer)
    }

    fn check_footer(&self, footer: &[u8; 512]) -> Result<Header, &'static str> {
        let directory = le64(footer, 56);
        if !footer.starts_with(&self.fixed) || directory == AT_END {
            return Err("has a footer that does not fit its header");
        }
        Ok(Header { l1_offset: offset(directory, &self.header)?, ..self.header })
    }
}

/// Where a directory is in the file.
fn offset(directory: u64, header: &Header) -> Result<u64, &'static str> {
    let at = directory.checked_mul(SECTOR).filter(|at| at.checked_add(MAX_DIRECTORY_BYTES).is_some());
    at.filter(|at| *at >= header.header_bytes).ok_or("has its grain directory in an impossible place")
}

/// What stands before everything in a file with markers: a compressed grain when it has a size, else what `kind` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Marker {
    value: u64,
    size: u32,
    kind: u32,
}

impl Marker {
    fn parse(sector: &[u8; 512]) -> Self {
        Self { value: le64(sector, 0), size: le32(sector, 8), kind: le32(sector, 12) }
    }
}

fn le16(bytes: &[u8; 512], at: usize) -> u16 {
    u16::try_from(number(bytes, at, 2)).unwrap_or_default()
}

fn le32(bytes: &[u8; 512], at: usize) -> u32 {
    u32::try_from(number(bytes, at, 4)).unwrap_or_default()
}

fn le64(bytes: &[u8; 512], at: usize) -> u64 {
    number(bytes, at, 8)
}

fn number(bytes: &[u8; 512], at: usize, len: usize) -> u64 {
    bytes.iter().skip(at).take(len).rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

#[cfg(test)]
pub(super) mod tests;
