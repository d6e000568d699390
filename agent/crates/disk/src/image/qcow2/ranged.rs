//! Writing a qcow2 file from a server that gives ranges.
//!
//! The tables are read by ranges, in the order of the disk, and turned into extents in the order of the file. When there
//! are more extents than memory allows, only the lowest ones are kept; the file is read up to where they end, then the
//! tables are walked again for the next window. The bytes of tables that go by later, with everything else that is
//! hashed, are compared with what was read before: what lands on the disk follows only from bytes under the checksum.
//! Tables near each other in the file are read by one request; a file that needs too many all the same is refused.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::Read;

use ferric_types::Progress;

use super::copy::{Copier, Passed, Tables};
use super::effort::Effort;
use super::table::{Entry, Extent, Kind, MARKER_BYTES, Piece, check_overlap, entries, l1_entry, marked_len};
use super::walk::{Walker, invalid};
use super::{Header, Qcow2Error};
use crate::image::download::{Tally, pump};
use crate::image::error::ImageError;
use crate::image::format::FormatError;
use crate::image::sink::Sink;
use crate::image::source::{ImageSource, SourceError};
use crate::image::unpack::{UnpackError, Unpacker};

/// Most gaps that are kept to be zeroed while the rest is written (16 bytes each).
const MAX_GAPS: usize = 32 << 10;
/// How much of a disk shows what its partition table is like, with sectors of up to 4096 bytes.
const FIRST_BYTES: u64 = 8192;

/// An image and what is needed to read it.
pub(in crate::image) struct Ranged<'a> {
    /// Image, for errors.
    pub(in crate::image) id: &'a str,
    /// Header as read.
    pub(in crate::image) header: &'a Header,
    /// The header's bytes.
    pub(in crate::image) header_bytes: &'a [u8],
    /// The file's last bytes, when they were needed to find the tables.
    pub(in crate::image) tail: &'a [u8],
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
    walker.check_effort(&window)?;
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
    /// The first bytes of the disk in the image, empty where it has none: for who must know them before anything is
    /// written. Only what is in one cluster is given.
    pub(in crate::image) fn first_bytes(&self, source: &mut dyn ImageSource) -> Result<Vec<u8>, ImageError> {
        let mut read = |what, offset, len: u64| {
            self.check_inside(what, offset, len).map_err(invalid)?;
            let mut bytes = vec![0; usize::try_from(len).unwrap_or_default()];
            source.read_exact_at(offset, &mut bytes).map_err(|source| self.download_error(source))?;
            Ok::<_, ImageError>(bytes)
        };
        let header = self.header;
        let entry = |bytes: &[u8]| entries(bytes, header).next().unwrap_or_default();
        let mut raw = entry(&read("the L1 table", header.l1_offset, header.entry_bytes())?);
        if header.has_l2() {
            let Some(l2) = l1_entry(raw, header).map_err(invalid)? else { return Ok(Vec::new()) };
            raw = entry(&read("an L2 table", l2, header.entry_bytes())?);
        }
        match Entry::parse(raw, header).map_err(invalid)? {
            Entry::Nothing => Ok(Vec::new()),
            Entry::Data { host } => read("a cluster", host, self.rest(host, header.cluster_bytes().min(FIRST_BYTES))),
            Entry::Packed { host, len } => {
                let (mut host, mut len) = (host, u64::from(len));
                if header.has_markers() {
                    let marker_bytes = u64::try_from(MARKER_BYTES).unwrap_or_default();
                    let marker = read("a cluster", host, marker_bytes)?;
                    let packed = marked_len(&marker, header, 0, host).map_err(invalid)?;
                    (host, len) = (host + marker_bytes, u64::try_from(packed).unwrap_or_default());
                }
                // The length reaches to the end of a sector, which a file need not have.
                let packed = read("a cluster", host, self.rest(host, len))?;
                let mut cluster = vec![0; usize::try_from(header.cluster_bytes()).unwrap_or_default()];
                let broken = |source| ImageError::Broken(Qcow2Error::Cluster { offset: 0, source });
                match Unpacker::new(header.compression).and_then(|mut unpacker| unpacker.unpack(&packed, &mut cluster))
                {
                    // The last grain of a VMDK file may be shorter than the others, and there may be only one.
                    Err(UnpackError::Short { .. }) if header.has_markers() => {}
                    result => result.map_err(broken)?,
                }
                Ok(cluster)
            }
        }
    }

    /// How much of a cluster at `host` is in the file, which may end within its last one; at least a byte, so that one that
    /// is not there at all is refused.
    fn rest(&self, host: u64, len: u64) -> u64 {
        len.min(self.file_bytes.saturating_sub(host)).max(1)
    }

    pub(super) fn download_error(&self, source: SourceError) -> ImageError {
        ImageError::Download { id: self.id.to_owned(), source }
    }

    /// Refuses what is not within the file.
    pub(super) fn check_inside(&self, what: &'static str, offset: u64, len_bytes: u64) -> Result<(), Qcow2Error> {
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
    /// How many extents there are in all.
    total: u64,
    /// What walking the tables once takes.
    effort: Effort,
}

impl Window {
    fn end(&self, image: &Ranged<'_>) -> u64 {
        // How long a marked cluster is stands before it in the file; it ends before the next extent.
        let marked = self.next.filter(|_| image.header.has_markers());
        let ends = || self.extents.iter().map(|extent| extent.end(image.header)).max().unwrap_or_default();
        marked.unwrap_or_else(ends).min(image.file_bytes)
    }
}

impl Walker<'_> {
    /// The lowest extents from the offset `from` of the file on.
    fn window(&self, source: &mut dyn ImageSource, from: u64) -> Result<Window, ImageError> {
        let max = self.image.max_extents;
        let mut extents: Vec<Extent> = Vec::new();
        let (mut next, mut gap_bytes, mut total) = (None, 0, 0);
        let (digest, effort) = self.walk(source, &mut |piece| {
            let extent = match piece {
                Piece::Gap { len_bytes, .. } => {
                    gap_bytes += len_bytes;
                    return Ok(());
                }
                Piece::Extent(extent) => extent,
            };
            total += 1;
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
        Ok(Window { extents, next, digest, gap_bytes, total, effort })
    }

    /// Refuses an image whose tables have to be walked too often.
    fn check_effort(&self, first: &Window) -> Result<(), ImageError> {
        let Window { next, total, effort: Effort { pieces, requests, .. }, .. } = first;
        let per_window = u64::try_from(self.image.max_extents * 3 / 4).unwrap_or(u64::MAX).max(1);
        // A window is three quarters of what is kept, and more than one window means one more walk for the gaps.
        let walks = if next.is_some() { total.div_ceil(per_window) + 1 } else { 1 };
        tracing::debug!(image = self.image.id, pieces, requests, walks, "tables of the image read");
        first.effort.check(self.image.file_bytes, walks)
    }

    /// Zeroes what the image does not fill: at once, so that the disk is written from its beginning to its end, or where the
    /// device does it by itself and there is not too much to keep, while the rest is written.
    fn zero_gaps(
        &self,
        source: &mut dyn ImageSource,
        window: &mut Window,
        progress: &Progress,
        sink: &mut Sink<'_>,
    ) -> Result<(), ImageError> {
        if window.gap_bytes == 0 {
            return Ok(());
        }
        if window.next.is_none() && sink.zeroes_efficiently() {
            let mut gaps = Vec::new();
            self.gaps(window, |guest, len_bytes| {
                if gaps.len() <= MAX_GAPS {
                    gaps.push((guest, len_bytes));
                }
                Ok(())
            })?;
            if gaps.len() <= MAX_GAPS {
                return sink.zero_aside(gaps);
            }
        }
        progress.phase("zero", Some(window.gap_bytes));
        let mut zero = |guest, len_bytes| sink.zero_now(guest, len_bytes, |step| progress.add(step));
        if window.next.is_none() {
            return self.gaps(window, zero);
        }
        // Not all extents are at hand, so the tables tell once more.
        self.walk(source, &mut |piece| match piece {
            Piece::Gap { guest, len_bytes } => zero(guest, len_bytes),
            Piece::Extent(_) => Ok(()),
        })
        .map(drop)
    }

    /// Gives what is between the extents of the only window, in the order of the disk.
    fn gaps(
        &self,
        window: &mut Window,
        mut visit: impl FnMut(u64, u64) -> Result<(), ImageError>,
    ) -> Result<(), ImageError> {
        let header = self.image.header;
        window.extents.sort_unstable_by_key(|extent| extent.guest);
        let mut at = 0;
        for extent in window.extents.iter().filter(|extent| extent.kind != Kind::Table) {
            if extent.guest > at {
                visit(at, extent.guest - at)?;
            }
            let clusters = if extent.kind == Kind::Data { u64::from(extent.len) } else { 1 };
            at = extent.guest + clusters * header.cluster_bytes();
        }
        if at < header.virtual_bytes {
            visit(at, header.virtual_bytes - at)?;
        }
        window.extents.sort_unstable();
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

    fn table(
        &mut self,
        extent: Extent,
        bytes: &[u8],
        _passed: Passed<'_>,
        _sink: &mut Sink<'_>,
    ) -> Result<(), ImageError> {
        if self.keys.hash_one(bytes) == extent.guest {
            Ok(())
        } else {
            Err(ImageError::Changed { id: self.image.id.to_owned() })
        }
    }
}
