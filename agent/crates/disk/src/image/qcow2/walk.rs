//! Walking the tables of a file on a server that gives ranges, those near each other by one request.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use super::Qcow2Error;
use super::effort::Effort;
use super::ranged::Ranged;
use super::table::{Entry, Extent, Kind, Piece, Runs, entries, l1_entry};
use crate::image::error::ImageError;
use crate::image::format::FormatError;
use crate::image::source::{ImageSource, SourceError};

/// How much of the L1 table is read at a time.
const L1_STEP_BYTES: u64 = 64 << 10;
/// L2 tables with no more than this between them are read together, up to so much at a time.
const NEAR_BYTES: u64 = 64 << 10;
const READ_BYTES: u64 = 1 << 20;

/// Walks the tables.
pub(super) struct Walker<'a> {
    pub(super) image: &'a Ranged<'a>,
    pub(super) keys: RandomState,
}

pub(super) type Visit<'v> = dyn FnMut(Piece) -> Result<(), ImageError> + 'v;

impl Walker<'_> {
    /// Reads all tables in the order of the disk and gives all pieces of it. Memory: a few neighbouring tables.
    pub(super) fn walk(
        &self,
        source: &mut dyn ImageSource,
        visit: &mut Visit<'_>,
    ) -> Result<(u64, Effort), ImageError> {
        let (image, header) = (self.image, self.image.header);
        let mut digest = self.keys.build_hasher();
        let mut effort = Effort::default();
        let mut runs = Runs::new(header);
        self.table(0, image.header_bytes, &mut digest, visit)?;
        if !image.tail.is_empty() {
            let tail_bytes = u64::try_from(image.tail.len()).unwrap_or_default();
            self.table(image.file_bytes.saturating_sub(tail_bytes), image.tail, &mut digest, visit)?;
        }
        let l1_bytes = header.l1_entries * header.entry_bytes();
        image.check_inside("the L1 table", header.l1_offset, l1_bytes).map_err(invalid)?;
        let (mut guest, mut l2_tables, mut near) = (0_u64, 0, Near::default());
        let mut l1_at = header.l1_offset;
        let l1_end = header.l1_offset + l1_bytes;
        let mut l1 = Vec::new();
        while l1_at < l1_end {
            l1.resize(usize::try_from((l1_end - l1_at).min(L1_STEP_BYTES)).unwrap_or_default(), 0);
            source.read_exact_at(l1_at, &mut l1).map_err(|source| image.download_error(source))?;
            effort.requests += 1;
            self.table(l1_at, &l1, &mut digest, visit)?;
            if !header.has_l2() {
                self.clusters(guest, &l1, &mut runs, &mut effort, visit)?;
                effort.check(image.file_bytes, 1)?;
                guest += u64::try_from(l1.len()).unwrap_or_default() / header.entry_bytes() * header.cluster_bytes();
                l1_at += u64::try_from(l1.len()).unwrap_or_default();
                continue;
            }
            for (index, raw) in entries(&l1, header).enumerate() {
                if let Some(host) = l1_entry(raw, header).map_err(invalid)? {
                    l2_tables += 1;
                    // Tables do not share a place, so this many take up this much of the file.
                    if l2_tables > image.file_bytes / (header.l2_entries() * header.entry_bytes()) {
                        return Err(invalid(Qcow2Error::TooManyTables));
                    }
                    let len_bytes = header.l2_needed(guest) * header.entry_bytes();
                    image.check_inside("an L2 table", host, len_bytes).map_err(invalid)?;
                    if !near.holds(host, len_bytes) {
                        let end = self.end_of_neighbours(entries(&l1, header).skip(index), guest);
                        near.read(source, host, end).map_err(|source| image.download_error(source))?;
                        effort.requests += 1;
                    }
                    let l2 = near.get(host, len_bytes);
                    self.table(host, l2, &mut digest, visit)?;
                    self.clusters(guest, l2, &mut runs, &mut effort, visit)?;
                    effort.check(image.file_bytes, 1)?;
                } else if let Some(piece) = runs.push_gap(guest, header.l2_coverage()) {
                    visit(piece)?;
                }
                guest = guest.saturating_add(header.l2_coverage());
            }
            l1_at += u64::try_from(l1.len()).unwrap_or_default();
        }
        if let Some(piece) = runs.finish() {
            visit(piece)?;
        }
        Ok((digest.finish(), effort))
    }

    /// Where the last of the L2 tables ends that are worth reading with the first of `tables`, entries of the L1 table
    /// for the disk's bytes from `guest` on.
    fn end_of_neighbours(&self, tables: impl Iterator<Item = u64>, mut guest: u64) -> u64 {
        let header = self.image.header;
        let (mut begin, mut end) = (None, 0_u64);
        for raw in tables {
            let len_bytes = header.l2_needed(guest) * header.entry_bytes();
            guest = guest.saturating_add(header.l2_coverage());
            let host = match l1_entry(raw, header) {
                Ok(Some(host)) => host,
                Ok(None) => continue,
                // It is refused when its turn comes.
                Err(_) => break,
            };
            let (first, next_end) = (*begin.get_or_insert(host), host.saturating_add(len_bytes));
            let is_far = host < end || host - end > NEAR_BYTES || next_end - first > READ_BYTES;
            // Whether the first one is within the file has been seen already.
            if end > 0 && (is_far || next_end > self.image.file_bytes) {
                break;
            }
            end = next_end;
        }
        end
    }

    /// Notes a table that has been read.
    fn table(
        &self,
        host: u64,
        bytes: &[u8],
        digest: &mut impl Hasher,
        visit: &mut Visit<'_>,
    ) -> Result<(), ImageError> {
        let fingerprint = self.keys.hash_one(bytes);
        digest.write_u64(host);
        digest.write_u64(fingerprint);
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        visit(Piece::Extent(Extent { host, guest: fingerprint, len, kind: Kind::Table }))
    }

    /// The clusters of a table for the disk's bytes from `guest` on.
    fn clusters(
        &self,
        guest: u64,
        table: &[u8],
        runs: &mut Runs<'_>,
        effort: &mut Effort,
        visit: &mut Visit<'_>,
    ) -> Result<(), ImageError> {
        let header = self.image.header;
        let mut guest = guest;
        for raw in entries(table, header) {
            let entry = Entry::parse(raw, header).map_err(FormatError::Qcow2)?;
            if let Entry::Data { host } | Entry::Packed { host, .. } = entry {
                self.image.check_inside("a cluster", host, 1).map_err(FormatError::Qcow2)?;
            }
            if let Some(piece) = runs.push(guest, entry) {
                if let Piece::Extent(extent) = &piece {
                    effort.piece(extent, header);
                }
                visit(piece)?;
            }
            guest += header.cluster_bytes();
        }
        Ok(())
    }
}

pub(super) fn invalid(error: Qcow2Error) -> ImageError {
    ImageError::Format(FormatError::Qcow2(error))
}

/// A part of the file with one or more tables.
#[derive(Debug, Default)]
struct Near {
    begin: u64,
    bytes: Vec<u8>,
}

impl Near {
    fn read(&mut self, source: &mut dyn ImageSource, begin: u64, end: u64) -> Result<(), SourceError> {
        self.begin = begin;
        self.bytes.resize(usize::try_from(end.saturating_sub(begin)).unwrap_or_default(), 0);
        source.read_exact_at(begin, &mut self.bytes)
    }

    fn holds(&self, host: u64, len_bytes: u64) -> bool {
        let end = self.begin + u64::try_from(self.bytes.len()).unwrap_or_default();
        !self.bytes.is_empty() && host >= self.begin && host + len_bytes <= end
    }

    /// A table that is held.
    fn get(&self, host: u64, len_bytes: u64) -> &[u8] {
        let from = usize::try_from(host.saturating_sub(self.begin)).unwrap_or(usize::MAX);
        let len = usize::try_from(len_bytes).unwrap_or(usize::MAX);
        self.bytes.get(from..).and_then(|rest| rest.get(..len)).unwrap_or_default()
    }
}
