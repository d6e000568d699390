//! The file header.

use super::Qcow2Error;
use crate::image::unpack::Compression;

const MAGIC: &[u8] = b"QFI\xfb";
/// Header lengths: version 2 has no field for it; version 3 says it.
const V2_BYTES: usize = 72;
const V3_BYTES: u64 = 104;
/// Longest L1 table, as in QEMU (`QCOW_MAX_L1_SIZE`).
const MAX_L1_BYTES: u64 = 32 << 20;

/// Incompatible feature bits.
const DIRTY: u64 = 1 << 0;
const CORRUPT: u64 = 1 << 1;
const DATA_FILE: u64 = 1 << 2;
const COMPRESSION_TYPE: u64 = 1 << 3;
const EXTENDED_L2: u64 = 1 << 4;

/// Which file format the tables are those of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Two levels, entries of 8 bytes, L2 tables of one cluster.
    Qcow2,
    /// Two levels, entries of 4 bytes in sectors, L2 tables of 512 entries.
    Vmdk {
        /// Whether an entry of 1 is a cluster of zeroes.
        zeroed: bool,
        /// Whether clusters are compressed; each has a marker before it.
        packed: bool,
    },
    /// One level, entries of 4 bytes in sectors.
    Vhd {
        /// Length of the sector bitmap before each cluster.
        bitmap_bytes: u64,
    },
}

/// What is needed of the header of a qcow2 file, or of another with such tables, to read the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Format of the tables.
    pub family: Family,
    /// That of the file; 2 or 3 for qcow2.
    pub version: u32,
    /// log2 of the cluster size.
    pub cluster_bits: u32,
    /// Size of the disk in the image.
    pub virtual_bytes: u64,
    /// Where the L1 table is in the file.
    pub l1_offset: u64,
    /// Entries of the L1 table that the disk needs.
    pub l1_entries: u64,
    /// How compressed clusters are compressed.
    pub compression: Compression,
    /// Length of the header's fixed part as read, in bytes.
    pub header_bytes: u64,
}

impl Header {
    /// Reads a header from the first bytes of a file; 4 KiB are plenty.
    ///
    /// # Errors
    /// Any [`Qcow2Error`] that is about the header.
    pub fn parse(bytes: &[u8]) -> Result<Self, Qcow2Error> {
        if !bytes.starts_with(MAGIC) {
            return Err(Qcow2Error::NotQcow2);
        }
        let version = be32(bytes, 4)?;
        if !matches!(version, 2 | 3) {
            return Err(Qcow2Error::Version { version });
        }
        if be64(bytes, 8)? != 0 || be32(bytes, 16)? != 0 {
            return Err(Qcow2Error::BackingFile);
        }
        let cluster_bits = be32(bytes, 20)?;
        if !(9..=21).contains(&cluster_bits) {
            return Err(Qcow2Error::Header { what: "cluster bits", value: u64::from(cluster_bits) });
        }
        let method = be32(bytes, 32)?;
        if method != 0 {
            return Err(Qcow2Error::Encrypted { method });
        }
        let (header_bytes, compression) = extended(bytes, version, cluster_bits)?;
        let virtual_bytes = be64(bytes, 24)?;
        let mut header = Self {
            family: Family::Qcow2,
            version,
            cluster_bits,
            virtual_bytes,
            l1_offset: be64(bytes, 40)?,
            l1_entries: 0,
            compression,
            header_bytes,
        };
        header.l1_entries = header.needed_l1(u64::from(be32(bytes, 36)?))?;
        Ok(header)
    }

    fn needed_l1(&self, l1_size: u64) -> Result<u64, Qcow2Error> {
        let needed = self.virtual_bytes.div_ceil(self.l2_coverage());
        if l1_size < needed || l1_size * 8 > MAX_L1_BYTES {
            return Err(Qcow2Error::Header { what: "L1 size", value: l1_size });
        }
        if needed > 0 && !self.is_aligned(self.l1_offset) || self.l1_offset.checked_add(MAX_L1_BYTES).is_none() {
            return Err(Qcow2Error::Misaligned { what: "the L1 table", offset: self.l1_offset });
        }
        if needed > 0 && self.l1_offset == 0 {
            return Err(Qcow2Error::Overlap { offset: 0 });
        }
        Ok(needed)
    }

    /// Size of a cluster.
    pub const fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Size of a table's entry.
    pub const fn entry_bytes(&self) -> u64 {
        match self.family {
            Family::Qcow2 => 8,
            Family::Vmdk { .. } | Family::Vhd { .. } => 4,
        }
    }

    /// Whether L1 entries tell where L2 tables are, and not where clusters are.
    pub const fn has_l2(&self) -> bool {
        !matches!(self.family, Family::Vhd { .. })
    }

    /// Whether a marker with the length stands before each compressed cluster.
    pub const fn has_markers(&self) -> bool {
        matches!(self.family, Family::Vmdk { packed: true, .. })
    }

    /// Entries of an L2 table: of qcow2, which has one cluster for it.
    pub const fn l2_entries(&self) -> u64 {
        match self.family {
            Family::Qcow2 => self.cluster_bytes() / 8,
            Family::Vmdk { .. } => 512,
            Family::Vhd { .. } => 1,
        }
    }

    /// Most that a compressed cluster takes up: what does not shrink is not stored compressed.
    pub(in crate::image) const fn longest_packed(&self) -> u64 {
        self.cluster_bytes() + self.cluster_bytes() / 8 + 512
    }

    /// Bytes of the disk that one L2 table describes.
    pub const fn l2_coverage(&self) -> u64 {
        self.cluster_bytes() * self.l2_entries()
    }

    /// Entries that the L2 table for the disk's bytes from `guest` on needs.
    pub(super) fn l2_needed(&self, guest: u64) -> u64 {
        self.virtual_bytes.saturating_sub(guest).div_ceil(self.cluster_bytes()).min(self.l2_entries())
    }

    pub(super) const fn is_aligned(&self, offset: u64) -> bool {
        !matches!(self.family, Family::Qcow2) || offset.is_multiple_of(self.cluster_bytes())
    }
}

/// What version 3 adds: length of the header and compression; feature bits are judged.
fn extended(bytes: &[u8], version: u32, cluster_bits: u32) -> Result<(u64, Compression), Qcow2Error> {
    if version == 2 {
        return if bytes.len() < V2_BYTES {
            Err(Qcow2Error::Short)
        } else {
            Ok((u64::try_from(V2_BYTES).unwrap_or_default(), Compression::Deflate))
        };
    }
    let features = be64(bytes, 72)?;
    if features & CORRUPT != 0 {
        return Err(Qcow2Error::MarkedCorrupt);
    }
    if features & DATA_FILE != 0 {
        return Err(Qcow2Error::DataFile);
    }
    if features & EXTENDED_L2 != 0 {
        return Err(Qcow2Error::Subclusters);
    }
    // A file that was not closed properly may have wrong reference counts, which are of no interest here.
    let unknown = features & !(DIRTY | COMPRESSION_TYPE);
    if unknown != 0 {
        return Err(Qcow2Error::Features { bits: unknown });
    }
    let refcount_order = u64::from(be32(bytes, 96)?);
    if refcount_order > 6 {
        return Err(Qcow2Error::Header { what: "reference count order", value: refcount_order });
    }
    let header_bytes = u64::from(be32(bytes, 100)?);
    if header_bytes < V3_BYTES || header_bytes > 1 << cluster_bits || !header_bytes.is_multiple_of(8) {
        return Err(Qcow2Error::Header { what: "header length", value: header_bytes });
    }
    let compression_type = if header_bytes > V3_BYTES { array::<1>(bytes, 104)?[0] } else { 0 };
    let compression = match (features & COMPRESSION_TYPE != 0, compression_type) {
        (false, 0) => Compression::Deflate,
        (true, 1) => Compression::Zstd,
        (_, other) => return Err(Qcow2Error::Header { what: "compression type", value: u64::from(other) }),
    };
    // What lies behind the fields that are read is of no interest, and need not be at hand.
    Ok((header_bytes.min(V3_BYTES + 8), compression))
}

fn array<const N: usize>(bytes: &[u8], offset: usize) -> Result<[u8; N], Qcow2Error> {
    bytes.get(offset..).and_then(|rest| rest.first_chunk()).copied().ok_or(Qcow2Error::Short)
}

fn be32(bytes: &[u8], offset: usize) -> Result<u32, Qcow2Error> {
    array(bytes, offset).map(u32::from_be_bytes)
}

fn be64(bytes: &[u8], offset: usize) -> Result<u64, Qcow2Error> {
    array(bytes, offset).map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A good version 3 header of a 1 GiB disk, then changed.
    fn v3(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = vec![0; 112];
        bytes[..4].copy_from_slice(MAGIC);
        put32(&mut bytes, 4, 3);
        put32(&mut bytes, 20, 16);
        put64(&mut bytes, 24, 1 << 30);
        put32(&mut bytes, 36, 2);
        put64(&mut bytes, 40, 0x30000);
        put32(&mut bytes, 96, 4);
        put32(&mut bytes, 100, 112);
        change(&mut bytes);
        bytes
    }

    fn put32(bytes: &mut [u8], offset: usize, value: u32) {
        bytes[offset..offset + 4].copy_from_slice(&value.to_be_bytes());
    }

    fn put64(bytes: &mut [u8], offset: usize, value: u64) {
        bytes[offset..offset + 8].copy_from_slice(&value.to_be_bytes());
    }

    #[test]
    fn good_headers_are_read() {
        let header = Header::parse(&v3(|_| ())).unwrap();
        assert_eq!((header.version, header.cluster_bytes(), header.virtual_bytes), (3, 65536, 1 << 30));
        assert_eq!((header.l1_offset, header.l1_entries, header.l2_coverage()), (0x30000, 2, 512 << 20));
        assert_eq!((header.compression, header.header_bytes), (Compression::Deflate, 112));
        let zstd = Header::parse(&v3(|bytes| {
            put64(bytes, 72, COMPRESSION_TYPE | DIRTY);
            bytes[104] = 1;
        }));
        assert_eq!(zstd.unwrap().compression, Compression::Zstd);
        let v2 = Header::parse(&v3(|bytes| {
            put32(bytes, 4, 2);
            bytes[72..].fill(0xff);
        }));
        assert_eq!(v2.unwrap().version, 2);
        // Internal snapshots and unknown compatible features do no harm.
        let snapshots = v3(|bytes| {
            put32(bytes, 60, 3);
            put64(bytes, 80, u64::MAX);
        });
        assert!(Header::parse(&snapshots).is_ok());
    }

    #[test]
    fn hostile_headers_are_refused() {
        type Change = fn(&mut Vec<u8>);
        let cases: [(&str, Change); 25] = [
            ("not a qcow2", |bytes| bytes[0] = b'q'),
            ("version 1", |bytes| put32(bytes, 4, 1)),
            ("version 4", |bytes| put32(bytes, 4, 4)),
            ("backing file", |bytes| put64(bytes, 8, 0x200)),
            ("backing", |bytes| put32(bytes, 16, 9)),
            ("cluster bits 8", |bytes| put32(bytes, 20, 8)),
            ("cluster bits 22", |bytes| put32(bytes, 20, 22)),
            ("encrypted", |bytes| put32(bytes, 32, 2)),
            ("L1 size 1", |bytes| put32(bytes, 36, 1)),
            ("L1 size", |bytes| put32(bytes, 36, u32::MAX)),
            ("L1 size", |bytes| put64(bytes, 24, 1 << 63)),
            ("L1 size", |bytes| put64(bytes, 24, u64::MAX)),
            ("L1 table", |bytes| put64(bytes, 40, 0x30001)),
            ("L1 table", |bytes| put64(bytes, 40, u64::MAX << 16)),
            ("same place", |bytes| put64(bytes, 40, 0)),
            ("corrupt", |bytes| put64(bytes, 72, CORRUPT)),
            ("external data file", |bytes| put64(bytes, 72, DATA_FILE)),
            ("subclusters", |bytes| put64(bytes, 72, 1 << 4)),
            ("0x20", |bytes| put64(bytes, 72, 1 << 5)),
            ("0x8000000000000000", |bytes| put64(bytes, 72, 1 << 63)),
            ("compression type 0", |bytes| put64(bytes, 72, COMPRESSION_TYPE)),
            ("compression type 1", |bytes| bytes[104] = 1),
            ("header length 96", |bytes| put32(bytes, 100, 96)),
            ("header length 65544", |bytes| put32(bytes, 100, 65544)),
            ("cut short", |bytes| bytes.truncate(100)),
        ];
        for (want, change) in cases {
            let error = Header::parse(&v3(change)).expect_err(want).to_string();
            assert!(error.contains(want), "{want}: {error}");
        }
        for bit in 4..64 {
            assert!(Header::parse(&v3(|bytes| put64(bytes, 72, 1 << bit))).is_err(), "bit {bit}");
        }
        let short = v3(|bytes| {
            put32(bytes, 4, 2);
            bytes.truncate(71);
        });
        assert!(matches!(Header::parse(&short), Err(Qcow2Error::Short)));
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_header_or_an_error(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), good in any::<bool>()) {
            if good && bytes.len() > 8 {
                bytes[..4].copy_from_slice(MAGIC);
                put32(&mut bytes, 4, 3);
            }
            let _any = Header::parse(&bytes);
        }

        #[test]
        fn one_changed_byte_never_gives_numbers_out_of_range(at in 4_usize..112, value in any::<u8>()) {
            if let Ok(header) = Header::parse(&v3(|bytes| bytes[at] = value)) {
                prop_assert!((9..=21).contains(&header.cluster_bits));
                prop_assert!(header.l1_entries * 8 <= MAX_L1_BYTES);
                prop_assert!(u128::from(header.l1_entries) * u128::from(header.l2_coverage()) >= u128::from(header.virtual_bytes));
            }
        }
    }
}
