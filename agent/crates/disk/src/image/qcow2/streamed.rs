//! Writing a qcow2 file that can only be read from its beginning to its end.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::copy::{Copier, Passed, Tables};
use super::effort::Effort;
use super::table::{Entry, Extent, Kind, Piece, Runs, entries, l1_entry};
use super::{Header, Qcow2Error};
use crate::image::download::Chunks;
use crate::image::error::ImageError;
use crate::image::sink::Sink;

/// Longest L1 table that is kept, and how far from the beginning of the file it may be: data would lie before it.
const MAX_L1_BYTES: u64 = 1 << 20;
const MAX_L1_OFFSET: u64 = 32 << 20;

/// How much of the file is kept that no table has laid claim to so far.
const LEFT_BYTES: usize = 1 << 20;

/// `guest` of the one extent that is the L1 table.
const L1: u64 = u64::MAX;

/// Writes the whole image from `file`, which is at the beginning of the file. Nothing is written before the first
/// tables have shown that their data is still to come.
pub(in crate::image) fn write_streamed(
    id: &str,
    header: &Header,
    max_extents: usize,
    file: &mut Chunks,
    sink: &mut Sink<'_>,
) -> Result<(), ImageError> {
    let l1_bytes = header.l1_entries * header.entry_bytes();
    if header.l1_offset > MAX_L1_OFFSET {
        return Err(ImageError::NotSequential { reason: "its L1 table is not at its beginning" });
    }
    let len = u32::try_from(l1_bytes).ok().filter(|len| u64::from(*len) <= MAX_L1_BYTES);
    let len = len.ok_or(ImageError::NotSequential { reason: "its L1 table is too long" })?;
    let (ahead, gaps) = (BinaryHeap::new(), Vec::new());
    let mut found = Discovered { header, max_extents, ahead, gaps, effort: Effort::default() };
    if len > 0 {
        found.ahead.push(Reverse(Extent { host: header.l1_offset, guest: L1, len, kind: Kind::Table }));
    }
    let mut copier = Copier::new(id, header, LEFT_BYTES);
    copier.run(file, &mut found, sink)?;
    found.zero_gaps(sink)?;
    copier.finish(file)
}

/// Extents that the tables so far have promised.
struct Discovered<'a> {
    header: &'a Header,
    max_extents: usize,
    ahead: BinaryHeap<Reverse<Extent>>,
    /// Parts of the disk without an L2 table, to be zeroed once it is clear that the image can be written.
    gaps: Vec<(u64, u64)>,
    effort: Effort,
}

impl Discovered<'_> {
    fn l1(&mut self, bytes: &[u8], passed: Passed<'_>) -> Result<(), ImageError> {
        let mut runs = Runs::new(self.header);
        let mut guest = 0_u64;
        for raw in entries(bytes, self.header) {
            if !self.header.has_l2() {
                let entry = Entry::parse(raw, self.header).map_err(ImageError::Broken)?;
                match runs.push(guest, entry) {
                    Some(Piece::Extent(extent)) => self.promise(extent, passed)?,
                    gap => self.note_gap(gap),
                }
            } else if let Some(host) = l1_entry(raw, self.header).map_err(ImageError::Broken)? {
                let len_bytes = self.header.l2_needed(guest) * self.header.entry_bytes();
                let len = u32::try_from(len_bytes).unwrap_or(u32::MAX);
                self.promise(Extent { host, guest, len, kind: Kind::Table }, passed)?;
            } else {
                self.note_gap(runs.push_gap(guest, self.header.l2_coverage()));
            }
            guest = guest.saturating_add(self.header.l2_coverage());
        }
        match runs.finish() {
            Some(Piece::Extent(extent)) => self.promise(extent, passed)?,
            gap => self.note_gap(gap),
        }
        Ok(())
    }

    fn note_gap(&mut self, piece: Option<Piece>) {
        if let Some(Piece::Gap { guest, len_bytes }) = piece {
            self.gaps.push((guest, len_bytes));
        }
    }

    fn l2(&mut self, table: Extent, bytes: &[u8], passed: Passed<'_>, sink: &mut Sink<'_>) -> Result<(), ImageError> {
        let header = self.header;
        let each = |visit: &mut dyn FnMut(Piece) -> Result<(), ImageError>| {
            let mut runs = Runs::new(header);
            let mut guest = table.guest;
            for raw in entries(bytes, header) {
                let entry = Entry::parse(raw, header).map_err(ImageError::Broken)?;
                runs.push(guest, entry).map_or(Ok(()), &mut *visit)?;
                guest += header.cluster_bytes();
            }
            runs.finish().map_or(Ok(()), visit)
        };
        // All of the table is judged before any of it is acted upon.
        each(&mut |piece| match piece {
            Piece::Extent(extent) => self.promise(extent, passed),
            Piece::Gap { .. } => Ok(()),
        })?;
        self.zero_gaps(sink)?;
        each(&mut |piece| match piece {
            Piece::Gap { guest, len_bytes } => sink.zero(guest, len_bytes),
            Piece::Extent(_) => Ok(()),
        })
    }

    fn promise(&mut self, extent: Extent, passed: Passed<'_>) -> Result<(), ImageError> {
        let is_left = extent.kind == Kind::Packed && !passed.left.from(extent.host).is_empty();
        if extent.host < passed.position && !is_left {
            return Err(ImageError::NotSequential { reason: "its tables do not come before the data they describe" });
        }
        if self.ahead.len() >= self.max_extents {
            return Err(ImageError::NotSequential { reason: "its tables describe too much that comes later" });
        }
        self.effort.piece(&extent, self.header);
        self.effort.check(passed.position, 1)?;
        self.ahead.push(Reverse(extent));
        Ok(())
    }

    fn zero_gaps(&mut self, sink: &mut Sink<'_>) -> Result<(), ImageError> {
        self.gaps.drain(..).try_for_each(|(guest, len_bytes)| sink.zero(guest, len_bytes))
    }
}

impl Tables for Discovered<'_> {
    fn next(&mut self) -> Option<Extent> {
        self.ahead.pop().map(|Reverse(extent)| extent)
    }

    fn table(
        &mut self,
        extent: Extent,
        bytes: &[u8],
        passed: Passed<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<(), ImageError> {
        if bytes.is_empty() {
            return Err(ImageError::Broken(Qcow2Error::CutShort { offset: extent.host }));
        }
        if extent.guest == L1 { self.l1(bytes, passed) } else { self.l2(extent, bytes, passed, sink) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::qcow2::left::Leftovers;
    use crate::image::unpack::Compression;

    #[test]
    fn a_file_of_countless_pieces_is_given_up() {
        let header = Header {
            family: crate::image::qcow2::Family::Qcow2,
            version: 3,
            cluster_bits: 9,
            virtual_bytes: 1 << 40,
            l1_offset: 512,
            l1_entries: 1,
            compression: Compression::Deflate,
            header_bytes: 112,
        };
        for (step, position, fails) in [(512, 0, true), (512, 8 << 30, false), (0, 0, false)] {
            let (ahead, gaps) = (BinaryHeap::new(), Vec::new());
            let mut found = Discovered { header: &header, max_extents: 10, ahead, gaps, effort: Effort::default() };
            let left = Leftovers::new(0);
            let passed = Passed { position, left: &left };
            let result: Result<(), ImageError> = (1..=300_000).try_for_each(|piece| {
                let (host, guest) = (position + piece * 512, piece * step);
                // Compressed clusters near each other are no pieces of their own.
                let kind = if step == 0 { Kind::Packed } else { Kind::Data };
                found.promise(Extent { host, guest, len: 1, kind }, passed)?;
                found.ahead.clear();
                Ok(())
            });
            assert_eq!(result.is_err(), fails, "{step} {position}");
            assert!(result.is_ok() || matches!(result, Err(ImageError::Scattered { limit: 262_144, .. })));
        }
    }
}
