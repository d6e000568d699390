//! Taking extents out of the file as it goes by, in the order in which they lie there.

use std::io::BufRead;

use super::table::{Extent, Kind};
use super::{Header, Qcow2Error};
use crate::image::download::Chunks;
use crate::image::error::ImageError;
use crate::image::sink::Sink;

/// Gives the extents of the file in order, and takes the tables among them.
pub(super) trait Tables {
    /// The next extent; they come in order of their place in the file.
    fn next(&mut self) -> Option<Extent>;

    /// A table that has gone by; the file is now at `position`.
    fn table(&mut self, extent: Extent, bytes: &[u8], position: u64, sink: &mut Sink<'_>) -> Result<(), ImageError>;
}

/// Position in the file, and the bytes before it that may be needed again.
#[derive(Debug)]
pub(super) struct Copier<'a> {
    id: &'a str,
    header: &'a Header,
    /// Offset in the file of the next byte.
    position: u64,
    /// The bytes just before `position` from where the last compressed cluster began.
    recent: Vec<u8>,
}

impl<'a> Copier<'a> {
    pub(super) const fn new(id: &'a str, header: &'a Header) -> Self {
        Self { id, header, position: 0, recent: Vec::new() }
    }

    pub(super) const fn position(&self) -> u64 {
        self.position
    }

    /// Handles all extents that `tables` gives.
    pub(super) fn run(
        &mut self,
        chunks: &mut Chunks,
        tables: &mut dyn Tables,
        sink: &mut Sink<'_>,
    ) -> Result<(), ImageError> {
        while let Some(extent) = tables.next() {
            if extent.kind == Kind::Packed {
                self.packed(chunks, extent, sink)?;
                continue;
            }
            if extent.host < self.position {
                return Err(ImageError::Broken(Qcow2Error::Overlap { offset: extent.host }));
            }
            self.recent.clear();
            self.advance_to(chunks, extent.host)?;
            if extent.kind == Kind::Table {
                self.collect(chunks, u64::from(extent.len))?;
                if self.recent.len() < usize::try_from(extent.len).unwrap_or(usize::MAX) {
                    return Err(self.cut_short());
                }
                tables.table(extent, &self.recent, self.position, sink)?;
                self.recent.clear();
            } else {
                self.data(chunks, extent, sink)?;
            }
        }
        Ok(())
    }

    /// Reads the rest of what `chunks` has.
    pub(super) fn finish(&mut self, chunks: &mut Chunks) -> Result<(), ImageError> {
        let before = chunks.position();
        chunks.skip_to_end().map_err(|error| ImageError::from_stream(self.id, error))?;
        self.position += chunks.position() - before;
        Ok(())
    }

    fn advance_to(&mut self, chunks: &mut Chunks, host: u64) -> Result<(), ImageError> {
        let wanted = host - self.position;
        let skipped = chunks.skip(wanted).map_err(|error| ImageError::from_stream(self.id, error))?;
        self.position += skipped;
        if skipped < wanted { Err(ImageError::Broken(Qcow2Error::CutShort { offset: host })) } else { Ok(()) }
    }

    fn fill<'c>(&self, chunks: &'c mut Chunks) -> Result<&'c [u8], ImageError> {
        chunks.fill_buf().map_err(|error| ImageError::from_stream(self.id, error))
    }

    /// Whole clusters. The file may end within the last one: what is missing reads as zeroes.
    fn data(&mut self, chunks: &mut Chunks, extent: Extent, sink: &mut Sink<'_>) -> Result<(), ImageError> {
        let cluster_bytes = self.header.cluster_bytes();
        let on_disk = self.header.virtual_bytes.saturating_sub(extent.guest);
        let total = (u64::from(extent.len) * cluster_bytes).min(on_disk);
        let mut done = 0;
        while done < total {
            let bytes = self.fill(chunks)?;
            let len = bytes.len().min(usize::try_from(total - done).unwrap_or(usize::MAX));
            let Some(bytes) = bytes.get(..len).filter(|bytes| !bytes.is_empty()) else {
                if done == 0 || total - done >= cluster_bytes {
                    return Err(self.cut_short());
                }
                return sink.zero(extent.guest + done, total - done);
            };
            sink.write(extent.guest + done, bytes)?;
            chunks.consume(len);
            let len = u64::try_from(len).unwrap_or_default();
            done += len;
            self.position += len;
        }
        Ok(())
    }

    /// A compressed cluster, which may begin within the last sector of the one before it.
    fn packed(&mut self, chunks: &mut Chunks, extent: Extent, sink: &mut Sink<'_>) -> Result<(), ImageError> {
        let recent_from = self.position - u64::try_from(self.recent.len()).unwrap_or_default();
        if extent.host >= self.position {
            self.recent.clear();
            self.advance_to(chunks, extent.host)?;
        } else if extent.host < recent_from {
            return Err(ImageError::Broken(Qcow2Error::Overlap { offset: extent.host }));
        } else {
            let old = usize::try_from(extent.host - recent_from).unwrap_or(usize::MAX).min(self.recent.len());
            self.recent.drain(..old);
        }
        // What does not shrink is not stored compressed, so that more than a cluster and a bit is never needed.
        let longest = self.header.cluster_bytes() + self.header.cluster_bytes() / 8 + 512;
        let wanted = u64::from(extent.len).min(longest);
        let have = u64::try_from(self.recent.len()).unwrap_or_default();
        self.collect(chunks, wanted.saturating_sub(have))?;
        let packed = self.recent.get(..usize::try_from(wanted).unwrap_or(usize::MAX)).unwrap_or(&self.recent);
        if packed.is_empty() {
            return Err(self.cut_short());
        }
        let len = self.header.cluster_bytes().min(self.header.virtual_bytes.saturating_sub(extent.guest));
        sink.unpack(extent.guest, usize::try_from(len).unwrap_or_default(), packed)
    }

    /// Adds up to `count` bytes to the recent ones; fewer when the file ends.
    fn collect(&mut self, chunks: &mut Chunks, count: u64) -> Result<(), ImageError> {
        let mut left = usize::try_from(count).unwrap_or(usize::MAX);
        while left > 0 {
            let bytes = self.fill(chunks)?;
            let len = bytes.len().min(left);
            let Some(bytes) = bytes.get(..len).filter(|bytes| !bytes.is_empty()) else { break };
            self.recent.extend_from_slice(bytes);
            chunks.consume(len);
            self.position += u64::try_from(len).unwrap_or_default();
            left -= len;
        }
        Ok(())
    }

    fn cut_short(&self) -> ImageError {
        ImageError::Broken(Qcow2Error::CutShort { offset: self.position })
    }
}
