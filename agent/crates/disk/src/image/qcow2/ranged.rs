//! Writing a qcow2 file from a server that gives ranges.
//!
//! The tables are read by ranges, in the order of the disk, and turned into extents in the order of the file. When there
//! are more extents than memory allows, only the lowest ones are kept; the file is read up to where they end, then the
//! tables are walked again for the next window. The bytes of tables that go by later, with everything else that is
//! hashed, are compared with what was read before: what lands on the disk follows only from bytes under the checksum.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::Read;

use ferric_types::Progress;

use super::copy::{Copier, Passed, Tables};
use super::table::{Entry, Extent, Kind, Piece, Runs, check_overlap, entries, l1_entry};
use super::{Header, Qcow2Error};
use crate::image::download::{Tally, pump};
use crate::image::error::ImageError;
use crate::image::format::FormatError;
use crate::image::sink::Sink;
use crate::image::source::ImageSource;

/// How much of the L1 table is read at a time.
const L1_STEP_BYTES: u64 = 64 << 10;

/// An image and what is needed to read it.
pub(in crate::image) struct Ranged<'a> {
    /// Image, for errors.
    pub(in crate::image) id: &'a str,
    /// Header as read.
    pub(in crate::image) header: &'a Header,
    /// The header's bytes.
    pub(in crate::image) header_bytes: &'a [u8],
    /// Size of the file.
    pub(in crate::image) file_bytes: u64,
    /// Most extents to keep.
    pub(in crate::image) max_extents: usize,
}

/// Writes the whole image. Nothing is written when its tables are no good.
pub(in crate::image) fn write_ranged(
    image: &Ranged<'_>,
    source: &mut dyn ImageSource,
    tally: &mut Tally,
    progress: &Progress,
    sink: &mut Sink<'_>,
) -> Result<(), ImageError> {
    let walker = Walker { image, keys: RandomState::new() };
    let mut window = walker.window(source, 0)?;
    walker.zero_gaps(source, &mut window, progress, sink)?;
    let digest = window.digest;
    progress.phase("write", Some(image.file_bytes));
    let mut copier = Copier::new(image.id, image.header, 0);
    loop {
        let begin = copier.position();
        // The last window reads on to the end of the file, whatever is there.
        let len = if window.next.is_some() { window.end(image).saturating_sub(begin) } else { u64::MAX };
        let stream = source.stream(begin).map_err(|source| image.download_error(source))?;
        let mut planned = Planned { image, keys: &walker.keys, extents: window.extents.iter() };
        pump(Box::new(stream.take(len)), tally, progress, |chunks| {
            copier.run(chunks, &mut planned, sink)?;
            copier.finish(chunks)
        })?;
        let Some(next) = window.next else { return Ok(()) };
        // Frees the old window before the new one grows.
        drop(std::mem::take(&mut window.extents));
        window = walker.window(source, next)?;
        if window.digest != digest {
            return Err(ImageError::Changed { id: image.id.to_owned() });
        }
    }
}

impl Ranged<'_> {
    fn download_error(&self, source: crate::image::source::SourceError) -> ImageError {
        ImageError::Download { id: self.id.to_owned(), source }
    }

    /// Refuses what is not within the file.
    fn check_inside(&self, what: &'static str, offset: u64, len_bytes: u64) -> Result<(), Qcow2Error> {
        match offset.checked_add(len_bytes) {
            Some(end) if end <= self.file_bytes => Ok(()),
            _ => Err(Qcow2Error::OutsideFile { what, offset, file_bytes: self.file_bytes }),
        }
    }
}

/// The extents of a part of the file.
struct Window {
    /// In the order of the file.
    extents: Vec<Extent>,
    /// Where the next window begins; `None` when this is the last.
    next: Option<u64>,
    /// Keyed hash of all tables.
    digest: u64,
    /// Bytes of the disk that are zero.
    gap_bytes: u64,
}

impl Window {
    fn end(&self, image: &Ranged<'_>) -> u64 {
        let end = self.extents.iter().map(|extent| extent.end(image.header)).max().unwrap_or_default();
        end.min(image.file_bytes)
    }
}

/// Walks the tables.
struct Walker<'a> {
    image: &'a Ranged<'a>,
    keys: RandomState,
}

type Visit<'v> = dyn FnMut(Piece) -> Result<(), ImageError> + 'v;

impl Walker<'_> {
    /// The lowest extents from the offset `from` of the file on.
    fn window(&self, source: &mut dyn ImageSource, from: u64) -> Result<Window, ImageError> {
        let max = self.image.max_extents;
        let mut extents: Vec<Extent> = Vec::new();
        let (mut next, mut gap_bytes) = (None, 0);
        let digest = self.walk(source, &mut |piece| {
            let extent = match piece {
                Piece::Gap { len_bytes, .. } => {
                    gap_bytes += len_bytes;
                    return Ok(());
                }
                Piece::Extent(extent) => extent,
            };
            if extent.host < from || next.is_some_and(|next| extent.host >= next) {
                return Ok(());
            }
            extents.push(extent);
            if extents.len() >= max {
                let keep = max * 3 / 4;
                let (_, first_dropped, _) = extents.select_nth_unstable(keep);
                let border = first_dropped.host;
                extents.retain(|extent| extent.host < border);
                if extents.is_empty() {
                    // More compressed clusters in one place than all the rest.
                    return Err(ImageError::Format(FormatError::Qcow2(Qcow2Error::Overlap { offset: border })));
                }
                next = Some(border);
            }
            Ok(())
        })?;
        extents.sort_unstable();
        check_overlap(&extents, self.image.header).map_err(FormatError::Qcow2)?;
        Ok(Window { extents, next, digest, gap_bytes })
    }

    /// Zeroes what the image does not fill.
    fn zero_gaps(
        &self,
        source: &mut dyn ImageSource,
        window: &mut Window,
        progress: &Progress,
        sink: &mut Sink<'_>,
    ) -> Result<(), ImageError> {
        progress.phase("zero", Some(window.gap_bytes));
        let mut zero = |guest, len_bytes| sink.zero_now(guest, len_bytes, |step| progress.add(step));
        if window.next.is_some() {
            // Not all extents are at hand, so the tables tell once more.
            self.walk(source, &mut |piece| match piece {
                Piece::Gap { guest, len_bytes } => zero(guest, len_bytes),
                Piece::Extent(_) => Ok(()),
            })?;
            return Ok(());
        }
        let header = self.image.header;
        window.extents.sort_unstable_by_key(|extent| extent.guest);
        let mut at = 0;
        for extent in window.extents.iter().filter(|extent| extent.kind != Kind::Table) {
            if extent.guest > at {
                zero(at, extent.guest - at)?;
            }
            let clusters = if extent.kind == Kind::Data { u64::from(extent.len) } else { 1 };
            at = extent.guest + clusters * header.cluster_bytes();
        }
        if at < header.virtual_bytes {
            zero(at, header.virtual_bytes - at)?;
        }
        window.extents.sort_unstable();
        Ok(())
    }

    /// Reads all tables in the order of the disk and gives all pieces of it. Memory: one table.
    fn walk(&self, source: &mut dyn ImageSource, visit: &mut Visit<'_>) -> Result<u64, ImageError> {
        let (image, header) = (self.image, self.image.header);
        let invalid = |error| ImageError::Format(FormatError::Qcow2(error));
        let mut digest = self.keys.build_hasher();
        let mut runs = Runs::new(header);
        self.table(0, image.header_bytes, &mut digest, visit)?;
        image.check_inside("the L1 table", header.l1_offset, header.l1_entries * 8).map_err(invalid)?;
        let (mut guest, mut l2_tables, mut l2_bytes) = (0_u64, 0, Vec::new());
        let mut l1_at = header.l1_offset;
        let l1_end = header.l1_offset + header.l1_entries * 8;
        while l1_at < l1_end {
            let mut l1 = vec![0; usize::try_from((l1_end - l1_at).min(L1_STEP_BYTES)).unwrap_or_default()];
            source.read_exact_at(l1_at, &mut l1).map_err(|source| image.download_error(source))?;
            self.table(l1_at, &l1, &mut digest, visit)?;
            for raw in entries(&l1) {
                if let Some(host) = l1_entry(raw, header).map_err(invalid)? {
                    l2_tables += 1;
                    // Tables do not share a place, so this many take up this much of the file.
                    if l2_tables > image.file_bytes / header.cluster_bytes() {
                        return Err(invalid(Qcow2Error::TooManyTables));
                    }
                    l2_bytes.resize(usize::try_from(header.l2_needed(guest) * 8).unwrap_or_default(), 0);
                    image.check_inside("an L2 table", host, header.l2_needed(guest) * 8).map_err(invalid)?;
                    source.read_exact_at(host, &mut l2_bytes).map_err(|source| image.download_error(source))?;
                    self.table(host, &l2_bytes, &mut digest, visit)?;
                    self.l2(guest, &l2_bytes, &mut runs, visit)?;
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
        Ok(digest.finish())
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

    fn l2(&self, guest: u64, table: &[u8], runs: &mut Runs<'_>, visit: &mut Visit<'_>) -> Result<(), ImageError> {
        let header = self.image.header;
        let mut guest = guest;
        for raw in entries(table) {
            let entry = Entry::parse(raw, header).map_err(FormatError::Qcow2)?;
            if let Entry::Data { host } | Entry::Packed { host, .. } = entry {
                self.image.check_inside("a cluster", host, 1).map_err(FormatError::Qcow2)?;
            }
            if let Some(piece) = runs.push(guest, entry) {
                visit(piece)?;
            }
            guest += header.cluster_bytes();
        }
        Ok(())
    }
}

/// Extents of a window; its tables have been read already and are only compared.
struct Planned<'a> {
    image: &'a Ranged<'a>,
    keys: &'a RandomState,
    extents: std::slice::Iter<'a, Extent>,
}

impl Tables for Planned<'_> {
    fn next(&mut self) -> Option<Extent> {
        self.extents.next().copied()
    }

    fn table(&mut self, extent: Extent, bytes: &[u8], _passed: Passed, _sink: &mut Sink<'_>) -> Result<(), ImageError> {
        if self.keys.hash_one(bytes) == extent.guest {
            Ok(())
        } else {
            Err(ImageError::Changed { id: self.image.id.to_owned() })
        }
    }
}
