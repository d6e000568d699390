//! How much work an image may ask for beyond the download of its bytes.
//!
//! A file of a few hundred megabytes can be cut into pieces of 512 bytes in any order. Each is a write of its own, and
//! their tables have to be read over and over, since not all pieces fit into memory. Nobody makes such a file by a tool
//! on purpose, and whoever has one can lay it out anew in no time, so it is refused as soon as that is clear.

use super::Header;
use super::table::{Extent, Kind};
use crate::image::error::ImageError;

/// Pieces, and requests for tables, that any file may have.
const MIN_PIECES: u64 = 256 << 10;
const MIN_REQUESTS: u64 = 64 << 10;
/// A larger file may have one of each for so many bytes. Files with the usual clusters of 64 KiB never come near it.
const BYTES_EACH: u64 = 16 << 10;
/// Compressed clusters no further from each other than this are unpacked together and written in order.
const NEAR_BYTES: u64 = 1 << 20;

/// Counts what an image asks for.
#[derive(Debug, Default)]
pub(super) struct Effort {
    /// Writes of their own.
    pub(super) pieces: u64,
    /// Requests for tables.
    pub(super) requests: u64,
    /// Where the last piece ended in the file.
    end: u64,
}

impl Effort {
    /// Counts a piece of the disk, the one after the piece counted before it.
    pub(super) fn piece(&mut self, extent: &Extent, header: &Header) {
        let follows = extent.host.abs_diff(self.end) <= NEAR_BYTES;
        match extent.kind {
            Kind::Table => return,
            Kind::Packed if follows => {}
            Kind::Packed | Kind::Data => self.pieces += 1,
        }
        self.end = extent.end(header);
    }

    /// Refuses a file of this size when it asks for too much, if its tables have to be read that many times.
    pub(super) fn check(&self, file_bytes: u64, walks: u64) -> Result<(), ImageError> {
        for (what, count, min) in [
            ("pieces of data", self.pieces, MIN_PIECES),
            ("requests for its tables", self.requests.saturating_mul(walks), MIN_REQUESTS),
        ] {
            let limit = min.max(file_bytes / BYTES_EACH);
            if count > limit {
                return Err(ImageError::Scattered { what, limit });
            }
        }
        Ok(())
    }
}
