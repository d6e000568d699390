//! Taking extents out of the file as it goes by, in the order in which they lie there.

use std::io::BufRead;

use super::table::{Extent, Kind, MARKER_BYTES, marked_len};
use super::{Header, Qcow2Error};
use crate::image::error::ImageError;
use crate::image::sink::Sink;

/// Gives the extents of the file in order, and takes the tables among them.
pub(super) trait Tables {
    /// The next extent; they come in order of their place in the file.
    fn next(&mut self) -> Option<Extent>;

    /// A table that has gone by.
    fn table(&mut self, extent: Extent, bytes: &[u8], passed: Passed, sink: &mut Sink<'_>) -> Result<(), ImageError>;
}

/// How far the file has gone by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Passed {
    /// Offset of the next byte.
    pub(super) position: u64,
    /// Offset of the oldest byte still at hand.
    pub(super) oldest: u64,
}

/// Position in the file, and the bytes before it that may be needed again.
#[derive(Debug)]
pub(super) struct Copier<'a> {
    id: &'a str,
    header: &'a Header,
    /// Offset in the file of the next byte.
    position: u64,
    /// The bytes just before `position`: from the last compressed cluster on, since the next may begin within its last
    /// sector, and at least `keep` of them.
    recent: Vec<u8>,
    keep: usize,
}

impl<'a> Copier<'a> {
    /// `keep` bytes that have gone by stay at hand for compressed clusters whose table comes after them.
    pub(super) const fn new(id: &'a str, header: &'a Header, keep: usize) -> Self {
        Self { id, header, position: 0, recent: Vec::new(), keep }
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
        file: &mut dyn BufRead,
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

    /// Reads the rest of what `file` has.
    pub(super) fn finish(&mut self, file: &mut dyn BufRead) -> Result<(), ImageError> {
        loop {
            let len = self.fill(file)?.len();
            if len == 0 {
                return Ok(());
            }
            file.consume(len);
            self.position += u64::try_from(len).unwrap_or_default();
        }
    }

    fn advance_to(&mut self, file: &mut dyn BufRead, host: u64) -> Result<(), ImageError> {
        while self.position < host {
            let bytes = self.fill(file)?;
            let len = bytes.len().min(usize::try_from(host - self.position).unwrap_or(usize::MAX));
            let Some(bytes) = bytes.get(..len).filter(|bytes| !bytes.is_empty()) else {
                return Err(ImageError::Broken(Qcow2Error::CutShort { offset: host }));
            };
            remember(&mut self.recent, self.keep, bytes);
            file.consume(len);
            self.position += u64::try_from(len).unwrap_or_default();
        }
        Ok(())
    }

    fn table(
        &mut self,
        file: &mut dyn BufRead,
        extent: Extent,
        tables: &mut dyn Tables,
        sink: &mut Sink<'_>,
    ) -> Result<(), ImageError> {
        self.forget(self.keep);
        let before = self.recent.len();
        self.collect(file, u64::from(extent.len))?;
        let bytes = self.recent.get(before..).unwrap_or_default();
        if bytes.len() < usize::try_from(extent.len).unwrap_or(usize::MAX) {
            return Err(self.cut_short());
        }
        let passed = Passed { position: self.position, oldest: self.oldest() };
        tables.table(extent, bytes, passed, sink)
    }

    fn fill<'c>(&self, file: &'c mut dyn BufRead) -> Result<&'c [u8], ImageError> {
        file.fill_buf().map_err(|error| ImageError::from_stream(self.id, error))
    }

    /// Drops recent bytes but the last `len`.
    fn forget(&mut self, len: usize) {
        self.recent.drain(..self.recent.len().saturating_sub(len));
    }

    /// Whole clusters. The file may end within the last one: what is missing reads as zeroes.
    fn data(&mut self, file: &mut dyn BufRead, extent: Extent, sink: &mut Sink<'_>) -> Result<(), ImageError> {
        let cluster_bytes = self.header.cluster_bytes();
        let on_disk = self.header.virtual_bytes.saturating_sub(extent.guest);
        let total = (u64::from(extent.len) * cluster_bytes).min(on_disk);
        let mut done = 0;
        while done < total {
            let bytes = self.fill(file)?;
            let len = bytes.len().min(usize::try_from(total - done).unwrap_or(usize::MAX));
            let Some(bytes) = bytes.get(..len).filter(|bytes| !bytes.is_empty()) else {
                if done == 0 || total - done >= cluster_bytes {
                    return Err(self.cut_short());
                }
                return sink.zero(extent.guest + done, total - done);
            };
            sink.write(extent.guest + done, bytes)?;
            remember(&mut self.recent, self.keep, bytes);
            file.consume(len);
            let len = u64::try_from(len).unwrap_or_default();
            done += len;
            self.position += len;
        }
        Ok(())
    }

    /// A compressed cluster, which may begin within the last sector of the one before it.
    fn packed(&mut self, file: &mut dyn BufRead, extent: Extent, sink: &mut Sink<'_>) -> Result<(), ImageError> {
        if extent.host < self.oldest() {
            return Err(ImageError::Broken(Qcow2Error::Overlap { offset: extent.host }));
        }
        self.advance_to(file, extent.host)?;
        // Bytes from the cluster on that are at hand already. Older ones go, in large steps where many are kept.
        let have = usize::try_from(self.position - extent.host).unwrap_or(usize::MAX);
        if self.recent.len() > 2 * self.keep.max(have) {
            self.forget(self.keep.max(have));
        }
        let start = self.recent.len().saturating_sub(have);
        let header = self.header;
        let longest = header.longest_packed();
        let mut wanted = usize::try_from(u64::from(extent.len).min(longest)).unwrap_or(usize::MAX);
        let mut skip = 0;
        if header.has_markers() {
            skip = MARKER_BYTES;
            let marker = self.collect_from(file, start, MARKER_BYTES)?;
            wanted =
                MARKER_BYTES + marked_len(marker, header, extent.guest, extent.host).map_err(ImageError::Broken)?;
        }
        let packed = self.collect_from(file, start, wanted)?.get(skip..).unwrap_or_default();
        if packed.is_empty() {
            return Err(ImageError::Broken(Qcow2Error::CutShort { offset: extent.host }));
        }
        let len = header.cluster_bytes().min(header.virtual_bytes.saturating_sub(extent.guest));
        sink.unpack(extent.guest, usize::try_from(len).unwrap_or_default(), packed)
    }

    /// Up to `wanted` bytes from the place `start` of the recent ones on, read as needed; fewer when the file ends.
    fn collect_from(&mut self, file: &mut dyn BufRead, start: usize, wanted: usize) -> Result<&[u8], ImageError> {
        let have = self.recent.len().saturating_sub(start);
        self.collect(file, u64::try_from(wanted.saturating_sub(have)).unwrap_or_default())?;
        let bytes = self.recent.get(start..).unwrap_or_default();
        Ok(bytes.get(..wanted).unwrap_or(bytes))
    }

    /// Adds up to `count` bytes to the recent ones; fewer when the file ends.
    fn collect(&mut self, file: &mut dyn BufRead, count: u64) -> Result<(), ImageError> {
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
