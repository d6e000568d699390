//! Taking extents out of the file as it goes by, in the order in which they lie there.

use std::io::BufRead;

use super::left::Leftovers;
use super::table::{Extent, Kind, MARKER_BYTES, marked_len};
use super::{Header, Qcow2Error};
use crate::image::download::Chunks;
use crate::image::error::ImageError;
use crate::image::sink::Sink;

/// Gives the extents of the file in order, and takes the tables among them.
pub(super) trait Tables {
    /// The next extent; they come in order of their place in the file.
    fn next(&mut self) -> Option<Extent>;

    /// A table that has gone by.
    fn table(
        &mut self,
        extent: Extent,
        bytes: &[u8],
        passed: Passed<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<(), ImageError>;
}

/// How far the file has gone by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Passed<'a> {
    /// Offset of the next byte.
    pub(super) position: u64,
    /// What is still at hand of the bytes before.
    pub(super) left: &'a Leftovers,
}

/// What of a compressed cluster, whose length is given in sectors of 512 bytes, may be another's.
const SHARED_BYTES: u64 = 511;

/// Position in the file, and the bytes before it that may be needed again.
#[derive(Debug)]
pub(super) struct Copier<'a> {
    id: &'a str,
    header: &'a Header,
    /// Offset in the file of the next byte.
    position: u64,
    /// The bytes just before `position`, of the last compressed cluster: the next may begin within its last sector.
    recent: Vec<u8>,
    /// Where the last compressed cluster ends, at most.
    packed_end: u64,
    /// What belongs to no extent so far.
    left: Leftovers,
}

impl<'a> Copier<'a> {
    /// Up to `keep` bytes that have gone by and belong to nothing stay at hand for compressed clusters whose table comes
    /// after them.
    pub(super) const fn new(id: &'a str, header: &'a Header, keep: usize) -> Self {
        Self { id, header, position: 0, recent: Vec::new(), packed_end: 0, left: Leftovers::new(keep) }
    }

    pub(super) const fn position(&self) -> u64 {
        self.position
    }

    fn oldest(&self) -> u64 {
        self.position - u64::try_from(self.recent.len()).unwrap_or_default()
    }

    /// Handles all extents that `tables` gives.
    pub(super) fn run(
        &mut self,
        file: &mut Chunks,
        tables: &mut dyn Tables,
        sink: &mut Sink<'_>,
    ) -> Result<(), ImageError> {
        while let Some(extent) = tables.next() {
            if extent.kind == Kind::Packed {
                self.packed(file, extent, sink)?;
                continue;
            }
            if extent.host < self.position {
                return Err(ImageError::Broken(Qcow2Error::Overlap { offset: extent.host }));
            }
            self.advance_to(file, extent.host)?;
            if extent.kind == Kind::Table {
                self.table(file, extent, tables, sink)?;
            } else {
                self.data(file, extent, sink)?;
            }
        }
        Ok(())
    }

    /// Reads the rest of what `file` has. A next part of the file may begin within the last cluster of this one.
    pub(super) fn finish(&mut self, file: &mut Chunks) -> Result<(), ImageError> {
        let longest = usize::try_from(self.header.longest_packed()).unwrap_or(usize::MAX);
        loop {
            let bytes = self.fill(file)?;
            let len = bytes.len();
            if len == 0 {
                return Ok(());
            }
            remember(&mut self.recent, longest, bytes);
            file.consume(len);
            self.position += u64::try_from(len).unwrap_or_default();
        }
    }

    fn advance_to(&mut self, file: &mut Chunks, host: u64) -> Result<(), ImageError> {
        if self.position < host {
            self.settle();
        }
        while self.position < host {
            let bytes = self.fill(file)?;
            let len = bytes.len().min(usize::try_from(host - self.position).unwrap_or(usize::MAX));
            let Some(bytes) = bytes.get(..len).filter(|bytes| !bytes.is_empty()) else {
                return Err(ImageError::Broken(Qcow2Error::CutShort { offset: host }));
            };
            // The end of the last sector of a compressed cluster may be another's.
            let claimed = (self.packed_end.saturating_sub(SHARED_BYTES)).saturating_sub(self.position);
            let unclaimed = usize::try_from(claimed).ok().and_then(|claimed| bytes.get(claimed..)).unwrap_or_default();
            self.left.push(self.position + claimed, unclaimed);
            file.consume(len);
            self.position += u64::try_from(len).unwrap_or_default();
        }
        Ok(())
    }

    /// Lets the recent bytes go.
    fn settle(&mut self) {
        let shared = usize::try_from(SHARED_BYTES).unwrap_or_default();
        let tail = self.recent.get(self.recent.len().saturating_sub(shared)..).unwrap_or_default();
        self.left.push(self.position - u64::try_from(tail.len()).unwrap_or_default(), tail);
        self.recent.clear();
    }

    fn table(
        &mut self,
        file: &mut Chunks,
        extent: Extent,
        tables: &mut dyn Tables,
        sink: &mut Sink<'_>,
    ) -> Result<(), ImageError> {
        self.settle();
        self.collect(file, u64::from(extent.len))?;
        if self.recent.len() < usize::try_from(extent.len).unwrap_or(usize::MAX) {
            return Err(self.cut_short());
        }
        let passed = Passed { position: self.position, left: &self.left };
        let taken = tables.table(extent, &self.recent, passed, sink);
        self.recent.clear();
        taken
    }

    fn fill<'c>(&self, file: &'c mut Chunks) -> Result<&'c [u8], ImageError> {
        file.fill_buf().map_err(|error| ImageError::from_stream(self.id, error))
    }

    /// Drops recent bytes but the last `len`.
    fn forget(&mut self, len: usize) {
        self.recent.drain(..self.recent.len().saturating_sub(len));
    }

    /// Whole clusters. The file may end within the last one: what is missing reads as zeroes.
    fn data(&mut self, file: &mut Chunks, extent: Extent, sink: &mut Sink<'_>) -> Result<(), ImageError> {
        let cluster_bytes = self.header.cluster_bytes();
        let on_disk = self.header.virtual_bytes.saturating_sub(extent.guest);
        let total = (u64::from(extent.len) * cluster_bytes).min(on_disk);
        self.settle();
        let mut done = 0;
        while done < total {
            let most = usize::try_from(total - done).unwrap_or(usize::MAX);
            let Some(piece) = file.next(most).map_err(|error| ImageError::from_stream(self.id, error))? else {
                if done <= u64::from(extent.len.saturating_sub(1)) * cluster_bytes {
                    return Err(self.cut_short());
                }
                return sink.zero(extent.guest + done, total - done);
            };
            let len = u64::try_from(piece.len()).unwrap_or_default();
            sink.write_piece(extent.guest + done, piece)?;
            done += len;
            self.position += len;
        }
        Ok(())
    }

    /// A compressed cluster, which may begin within the last sector of the one before it, or lie in what was left. Most are
    /// in one piece, which stays to be read for that reason; others are put together behind the recent bytes.
    fn packed(&mut self, file: &mut Chunks, extent: Extent, sink: &mut Sink<'_>) -> Result<(), ImageError> {
        let header = self.header;
        let len = header.cluster_bytes().min(header.virtual_bytes.saturating_sub(extent.guest));
        let len = usize::try_from(len).unwrap_or_default();
        if extent.host < self.oldest() {
            return sink.unpack(extent.guest, len, self.packed_left(extent)?);
        }
        self.advance_to(file, extent.host)?;
        // Bytes from the cluster on that are at hand already. Older ones go, in large steps.
        let have = usize::try_from(self.position - extent.host).unwrap_or(usize::MAX);
        if self.recent.len() > 2 * have {
            self.forget(have);
        }
        let (mut wanted, mut skip) = (u64::from(extent.len).min(header.longest_packed()), 0);
        if header.has_markers() {
            skip = MARKER_BYTES;
            let marker = self.look_at(file, have, MARKER_BYTES, |marker| {
                marked_len(marker, header, extent.guest, extent.host).map_err(ImageError::Broken)
            })?;
            wanted = u64::try_from(MARKER_BYTES + marker).unwrap_or(u64::MAX);
        }
        self.packed_end = self.packed_end.max(extent.host.saturating_add(wanted));
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        if have == 0
            && let Some(piece) = file.peek(wanted).map_err(|error| ImageError::from_stream(self.id, error))?
        {
            return sink.unpack_piece(extent.guest, len, piece.part(skip, wanted));
        }
        self.look_at(file, have, wanted, |bytes| {
            let packed = bytes.get(skip..).unwrap_or_default();
            if packed.is_empty() {
                return Err(ImageError::Broken(Qcow2Error::CutShort { offset: extent.host }));
            }
            sink.unpack(extent.guest, len, packed)
        })
    }

    /// A compressed cluster that has gone by before its table came.
    fn packed_left(&self, extent: Extent) -> Result<&[u8], ImageError> {
        let mut packed = self.left.from(extent.host);
        let mut wanted = usize::try_from(u64::from(extent.len).min(self.header.longest_packed())).unwrap_or(usize::MAX);
        if self.header.has_markers() && !packed.is_empty() {
            wanted = marked_len(packed, self.header, extent.guest, extent.host).map_err(ImageError::Broken)?;
            packed = packed.get(MARKER_BYTES..).unwrap_or_default();
        }
        // One that is not there as a whole lies over something else.
        let packed = packed.get(..wanted).filter(|packed| !packed.is_empty());
        packed.ok_or(ImageError::Broken(Qcow2Error::Overlap { offset: extent.host }))
    }

    /// Gives `visit` up to `wanted` bytes, of which `have` have gone by already; fewer when the file ends. What the block at
    /// hand has of them stays to be read.
    fn look_at<T>(
        &mut self,
        file: &mut Chunks,
        have: usize,
        wanted: usize,
        visit: impl FnOnce(&[u8]) -> Result<T, ImageError>,
    ) -> Result<T, ImageError> {
        let start = self.recent.len().saturating_sub(have);
        let mut ahead = 0;
        loop {
            let missing = wanted.saturating_sub(self.recent.len() - start);
            if missing == 0 {
                break;
            }
            let bytes = self.fill(file)?;
            if let Some(bytes) = bytes.get(..missing) {
                self.recent.extend_from_slice(bytes);
                ahead = missing;
                break;
            }
            let len = bytes.len();
            if len == 0 {
                break;
            }
            self.recent.extend_from_slice(bytes);
            file.consume(len);
            self.position += u64::try_from(len).unwrap_or_default();
        }
        let bytes = self.recent.get(start..).unwrap_or_default();
        let result = visit(bytes.get(..wanted).unwrap_or(bytes));
        self.recent.truncate(self.recent.len() - ahead);
        result
    }

    /// Adds up to `count` bytes to the recent ones; fewer when the file ends.
    fn collect(&mut self, file: &mut Chunks, count: u64) -> Result<(), ImageError> {
        let mut left = usize::try_from(count).unwrap_or(usize::MAX);
        while left > 0 {
            let bytes = self.fill(file)?;
            let len = bytes.len().min(left);
            let Some(bytes) = bytes.get(..len).filter(|bytes| !bytes.is_empty()) else { break };
            self.recent.extend_from_slice(bytes);
            file.consume(len);
            self.position += u64::try_from(len).unwrap_or_default();
            left -= len;
        }
        Ok(())
    }

    fn cut_short(&self) -> ImageError {
        ImageError::Broken(Qcow2Error::CutShort { offset: self.position })
    }
}

/// Adds bytes that have gone by, when any are to be kept; otherwise there are none now that are just before.
fn remember(recent: &mut Vec<u8>, keep: usize, bytes: &[u8]) {
    if keep == 0 {
        recent.clear();
        return;
    }
    let bytes = bytes.get(bytes.len().saturating_sub(keep)..).unwrap_or(bytes);
    if recent.len() + bytes.len() > 2 * keep {
        recent.drain(..recent.len().saturating_sub(keep.saturating_sub(bytes.len())));
    }
    recent.extend_from_slice(bytes);
}
