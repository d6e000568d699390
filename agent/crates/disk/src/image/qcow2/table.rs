//! Entries of the L1 and L2 tables, and the extents that they add up to.

use super::{Family, Header, Qcow2Error};

/// Offset bits of L1 entries and of L2 entries for clusters that are not compressed.
const OFFSET_MASK: u64 = 0x00ff_ffff_ffff_fe00;
const COMPRESSED: u64 = 1 << 62;
const ZERO: u64 = 1;
/// The file's unit of VMDK and VHD.
const SECTOR: u64 = 512;
/// A VHD block that is not in the file.
const NO_BLOCK: u64 = 0xffff_ffff;

/// What stands before a compressed grain of a VMDK file: its place on the disk in sectors, its length.
pub(in crate::image) const MARKER_BYTES: usize = 12;

/// Length of the compressed data behind a marker, which must be that of the cluster at `guest`; `offset` is its place in
/// the file.
pub(in crate::image) fn marked_len(
    marker: &[u8],
    header: &Header,
    guest: u64,
    offset: u64,
) -> Result<usize, Qcow2Error> {
    let Some((sector, rest)) = marker.split_first_chunk() else { return Err(Qcow2Error::CutShort { offset }) };
    let Some((length, _)) = rest.split_first_chunk() else { return Err(Qcow2Error::CutShort { offset }) };
    let length = u32::from_le_bytes(*length);
    let fits = length > 0 && u64::from(length) <= header.longest_packed();
    if u64::from_le_bytes(*sector).checked_mul(SECTOR) != Some(guest) || !fits {
        return Err(Qcow2Error::Marker { offset });
    }
    usize::try_from(length).ok().ok_or(Qcow2Error::Marker { offset })
}

/// Where the L2 table of an L1 entry is; `None` when the disk has nothing there.
pub(super) fn l1_entry(raw: u64, header: &Header) -> Result<Option<u64>, Qcow2Error> {
    let offset = match header.family {
        Family::Qcow2 => raw & OFFSET_MASK,
        Family::Vmdk { .. } | Family::Vhd { .. } => raw * SECTOR,
    };
    if !header.is_aligned(offset) {
        return Err(Qcow2Error::Misaligned { what: "an L2 table", offset });
    }
    Ok((offset != 0).then_some(offset))
}

/// What an L2 entry says of a cluster of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    /// Reads as zeroes: never written, or marked as zero.
    Nothing,
    /// A whole cluster of the file.
    Data {
        /// Offset in the file.
        host: u64,
    },
    /// A compressed cluster.
    Packed {
        /// Offset in the file; any byte.
        host: u64,
        /// Length up to the end of its last sector.
        len: u32,
    },
}

impl Entry {
    pub(super) fn parse(raw: u64, header: &Header) -> Result<Self, Qcow2Error> {
        match header.family {
            Family::Qcow2 => Self::of_qcow2(raw, header),
            Family::Vhd { .. } if raw == NO_BLOCK => Ok(Self::Nothing),
            Family::Vhd { bitmap_bytes } => Ok(Self::Data { host: raw * SECTOR + bitmap_bytes }),
            Family::Vmdk { .. } if raw == 0 => Ok(Self::Nothing),
            // Otherwise the second sector is the descriptor's.
            Family::Vmdk { zeroed, .. } if raw == 1 => {
                if zeroed {
                    Ok(Self::Nothing)
                } else {
                    Err(Qcow2Error::Entry { entry: raw })
                }
            }
            // The length is in the file; at least one sector.
            Family::Vmdk { packed: true, .. } => Ok(Self::Packed { host: raw * SECTOR, len: 512 }),
            Family::Vmdk { .. } => Ok(Self::Data { host: raw * SECTOR }),
        }
    }

    fn of_qcow2(raw: u64, header: &Header) -> Result<Self, Qcow2Error> {
        if raw & COMPRESSED != 0 {
            // The lower bits are the offset, the upper ones count additional sectors of 512 bytes.
            let offset_bits = 62 - (header.cluster_bits - 8);
            let host = raw & ((1 << offset_bits) - 1);
            let sectors = (raw & (COMPRESSED - 1)) >> offset_bits;
            let len = (sectors + 1) * 512 - host % 512;
            let len = u32::try_from(len).ok().ok_or(Qcow2Error::Entry { entry: raw })?;
            return Ok(Self::Packed { host, len });
        }
        if raw & ZERO != 0 {
            return if header.version < 3 { Err(Qcow2Error::Entry { entry: raw }) } else { Ok(Self::Nothing) };
        }
        match raw & OFFSET_MASK {
            0 => Ok(Self::Nothing),
            host if header.is_aligned(host) => Ok(Self::Data { host }),
            offset => Err(Qcow2Error::Misaligned { what: "a data cluster", offset }),
        }
    }
}

/// Entries of a table: big-endian, and little-endian in VMDK files.
pub(super) fn entries<'b>(bytes: &'b [u8], header: &Header) -> impl Iterator<Item = u64> + use<'b> {
    let little = matches!(header.family, Family::Vmdk { .. });
    let size = if header.entry_bytes() == 8 { 8 } else { 4 };
    bytes.chunks_exact(size).map(move |entry| match *entry {
        [a, b, c, d, e, f, g, h] => u64::from_be_bytes([a, b, c, d, e, f, g, h]),
        [a, b, c, d] if little => u32::from_le_bytes([a, b, c, d]).into(),
        [a, b, c, d] => u32::from_be_bytes([a, b, c, d]).into(),
        _ => 0,
    })
}

/// What an extent of the file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Clusters that follow each other in the file and on the disk; `len` counts them.
    Data,
    /// One compressed cluster; `len` is its length in bytes.
    Packed,
    /// A table or the header; `len` is its length in bytes.
    Table,
}

/// A part of the file that something has to be done with when it goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    /// Offset in the file.
    pub(super) host: u64,
    /// Offset on the disk; for a table what its reader wants to remember of it.
    pub(super) guest: u64,
    /// See [`Kind`].
    pub(super) len: u32,
    /// What it is.
    pub(super) kind: Kind,
}

const _: () = assert!(size_of::<Extent>() == 24);

impl Extent {
    /// Where it ends in the file.
    pub(super) fn end(&self, header: &Header) -> u64 {
        let len = u64::from(self.len);
        self.host.saturating_add(if self.kind == Kind::Data { len * header.cluster_bytes() } else { len })
    }
}

impl Ord for Extent {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.host, self.guest, self.len).cmp(&(other.host, other.guest, other.len))
    }
}

impl PartialOrd for Extent {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Refuses extents, sorted by their place in the file, that share a place. Compressed clusters may: a length is given
/// in sectors, so that it reaches into the next one.
pub(super) fn check_overlap(extents: &[Extent], header: &Header) -> Result<(), Qcow2Error> {
    let (mut solid_end, mut packed_end) = (0, 0);
    for extent in extents {
        let packed = extent.kind == Kind::Packed;
        if extent.host < solid_end || (!packed && extent.host < packed_end) {
            return Err(Qcow2Error::Overlap { offset: extent.host });
        }
        let end = if packed { &mut packed_end } else { &mut solid_end };
        *end = extent.end(header).max(*end);
    }
    Ok(())
}

/// A piece of the disk in the order of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece {
    /// It comes from the file. Also carries tables.
    Extent(Extent),
    /// It is zero.
    Gap {
        /// Offset on the disk.
        guest: u64,
        /// Length in bytes, up to the end of the disk.
        len_bytes: u64,
    },
}

/// Joins clusters, given in the order of the disk, to pieces.
#[derive(Debug)]
pub(super) struct Runs<'a> {
    header: &'a Header,
    current: Option<Piece>,
}

impl<'a> Runs<'a> {
    pub(super) const fn new(header: &'a Header) -> Self {
        Self { header, current: None }
    }

    /// Adds the cluster at `guest`; gives the piece that it ended.
    pub(super) fn push(&mut self, guest: u64, entry: Entry) -> Option<Piece> {
        let next = match entry {
            Entry::Nothing => return self.push_gap(guest, self.header.cluster_bytes()),
            Entry::Data { host } => Extent { host, guest, len: 1, kind: Kind::Data },
            Entry::Packed { host, len } => Extent { host, guest, len, kind: Kind::Packed },
        };
        if let Some(Piece::Extent(run)) = &mut self.current
            && next.kind == Kind::Data
            && run.kind == Kind::Data
            && run.end(self.header) == next.host
            && run.guest + (next.host - run.host) == guest
            && let Some(len) = run.len.checked_add(1)
        {
            run.len = len;
            return None;
        }
        self.current.replace(Piece::Extent(next))
    }

    /// Adds a part of the disk that is zero; what reaches beyond its end is left out.
    pub(super) fn push_gap(&mut self, guest: u64, len_bytes: u64) -> Option<Piece> {
        let more = len_bytes.min(self.header.virtual_bytes.saturating_sub(guest));
        if let Some(Piece::Gap { guest: start, len_bytes }) = &mut self.current
            && *start + *len_bytes == guest
        {
            *len_bytes += more;
            return None;
        }
        self.current.replace(Piece::Gap { guest, len_bytes: more })
    }

    /// The last piece.
    pub(super) const fn finish(&mut self) -> Option<Piece> {
        self.current.take()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::image::unpack::Compression;

    fn header(cluster_bits: u32) -> Header {
        Header {
            family: Family::Qcow2,
            version: 3,
            cluster_bits,
            virtual_bytes: 100 << cluster_bits,
            l1_offset: 0x30000,
            l1_entries: 1,
            compression: Compression::Deflate,
            header_bytes: 112,
        }
    }

    #[test]
    fn entries_mean_what_the_specification_says() {
        let v3 = header(16);
        let v2 = Header { version: 2, ..v3 };
        let copied = 1 << 63;
        for (raw, want) in [
            (0, Entry::Nothing),
            (1, Entry::Nothing),
            (0x50001, Entry::Nothing),
            (copied | 0x50000, Entry::Data { host: 0x50000 }),
            // 64 KiB clusters: 54 bits of offset, then sectors.
            (COMPRESSED | 0x5_0203, Entry::Packed { host: 0x5_0203, len: 512 - 3 }),
            (COMPRESSED | (3 << 54) | 0x5_0200, Entry::Packed { host: 0x5_0200, len: 4 * 512 }),
            (COMPRESSED | (255 << 54), Entry::Packed { host: 0, len: 256 * 512 }),
        ] {
            assert_eq!(Entry::parse(raw, &v3).unwrap(), want, "{raw:#x}");
        }
        assert!(matches!(Entry::parse(0x50200, &v3), Err(Qcow2Error::Misaligned { offset: 0x50200, .. })));
        assert!(matches!(Entry::parse(1, &v2), Err(Qcow2Error::Entry { entry: 1 })));
        assert_eq!(l1_entry(copied | 0x40000, &v3).unwrap(), Some(0x40000));
        assert_eq!(l1_entry(copied, &v3).unwrap(), None);
        assert!(l1_entry(0x40200, &v3).is_err());
    }

    #[test]
    fn clusters_that_follow_each_other_are_one_piece() {
        let header = header(16);
        let c = header.cluster_bytes();
        let mut runs = Runs::new(&header);
        let mut pieces = Vec::new();
        let data = |host| Entry::Data { host: host * c };
        let packed = Entry::Packed { host: 7, len: 100 };
        for (index, entry) in [data(5), data(6), data(8), Entry::Nothing, Entry::Nothing, packed, data(9), data(9)]
            .into_iter()
            .enumerate()
        {
            pieces.extend(runs.push(u64::try_from(index).unwrap() * c, entry));
        }
        pieces.extend(runs.push_gap(8 * c, 1000 * c));
        pieces.extend(runs.finish());
        let extent = |host, guest, len, kind| Piece::Extent(Extent { host, guest: guest * c, len, kind });
        assert_eq!(
            pieces,
            [
                extent(5 * c, 0, 2, Kind::Data),
                extent(8 * c, 2, 1, Kind::Data),
                Piece::Gap { guest: 3 * c, len_bytes: 2 * c },
                extent(7, 5, 100, Kind::Packed),
                extent(9 * c, 6, 1, Kind::Data),
                extent(9 * c, 7, 1, Kind::Data),
                Piece::Gap { guest: 8 * c, len_bytes: 92 * c },
            ]
        );
    }

    #[test]
    fn only_compressed_clusters_may_share_a_place() {
        let header = header(16);
        let extent = |host, len, kind| Extent { host, guest: 0, len, kind };
        let ok = [
            extent(0, 112, Kind::Table),
            extent(0x10000, 2, Kind::Data),
            extent(0x30000, 1000, Kind::Packed),
            extent(0x30100, 1000, Kind::Packed),
            extent(0x40000, 1, Kind::Data),
        ];
        assert!(check_overlap(&ok, &header).is_ok());
        for bad in [
            [extent(0x10000, 2, Kind::Data), extent(0x20000, 1, Kind::Data)],
            [extent(0x10000, 1, Kind::Data), extent(0x10000, 1, Kind::Data)],
            [extent(0x10000, 1, Kind::Data), extent(0x1ffff, 9, Kind::Packed)],
            [extent(0x1ffff, 9, Kind::Packed), extent(0x20000, 1, Kind::Data)],
            [extent(0x10000, 512, Kind::Table), extent(0x10000, 1, Kind::Data)],
        ] {
            assert!(matches!(check_overlap(&bad, &header), Err(Qcow2Error::Overlap { .. })), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_entry_gives_numbers_in_range(raw in any::<u64>(), cluster_bits in 9_u32..=21) {
            let header = header(cluster_bits);
            match Entry::parse(raw, &header) {
                Ok(Entry::Packed { len, .. }) => prop_assert!(u64::from(len) <= 2 * header.cluster_bytes()),
                Ok(Entry::Data { host }) => prop_assert!(header.is_aligned(host) && host > 0),
                Ok(Entry::Nothing) | Err(_) => {}
            }
        }

        #[test]
        fn pieces_cover_the_disk_exactly_once(entries in proptest::collection::vec((0_u64..4, 0_u64..8), 1..100)) {
            let header = Header { virtual_bytes: u64::try_from(entries.len()).unwrap() * 65536 - 100, ..header(16) };
            let mut runs = Runs::new(&header);
            let mut pieces = Vec::new();
            for (index, (kind, host)) in entries.iter().enumerate() {
                let entry = match kind {
                    0 => Entry::Nothing,
                    1 => Entry::Packed { host: *host, len: 512 },
                    _ => Entry::Data { host: host * 65536 },
                };
                pieces.extend(runs.push(u64::try_from(index).unwrap() * 65536, entry));
            }
            pieces.extend(runs.finish());
            let mut at = 0;
            for piece in pieces {
                let (guest, len) = match piece {
                    Piece::Gap { guest, len_bytes } => (guest, len_bytes),
                    Piece::Extent(Extent { guest, len, kind: Kind::Data, .. }) => (guest, u64::from(len) * 65536),
                    Piece::Extent(extent) => (extent.guest, 65536),
                };
                prop_assert_eq!(guest, at);
                at += len;
            }
            prop_assert!(at == header.virtual_bytes || at == header.virtual_bytes + 100);
        }
    }
}
