//! Writing an image to a disk in one pass, without a copy of it anywhere else.
//!
//! ```text
//! source ── download ──────── write ───────────── sink ─────────── target
//! HTTP body  one thread reads  raw: as it is       threads unpack   head and tail of
//!            into a fixed      qcow2: by tables    and write        the disk held back
//!            pool of blocks,                       several at a     until all is well
//!            another hashes                        time
//! ```
//!
//! - [`deploy`] is the whole of it: credentials, checksum, URLs in turn, trying again.
//! - [`write`](mod@write) is one attempt: format check, copy, flush, verify, head.
//! - [`source`] is what the pipeline asks of a download; the agent implements it over HTTP.
//! - [`checksum`] and [`format`](mod@format) decide what an image must be; [`qcow2`], `vmdk` and `vhd` read those that are not
//!   raw, and [`compressed`] unpacks raw images that are compressed as a whole, between `download` and `write`.
//!
//! The happy path: the format is decided from the first bytes; size and tables are judged; both ends of the disk are
//! zeroed; what the image leaves empty is zeroed; data is written; the disk is flushed; length and checksum are
//! compared; tail and head are written and flushed. Any failure before the last step leaves a disk without a partition
//! table; any refusal before the third step leaves the disk as it was. When that is asked for, everything is read back from
//! the disk before the head is written, and then the head.
//!
//! Memory is limited: 6 MiB of downloaded blocks, 12 MiB for raw images, which are hashed and written where they are; up to
//! 3 MiB for what has to be gathered; 1 MiB of head; with qcow2, VMDK and VHD up to 3 MiB of extents, one table, half a MiB
//! of gaps and 4 MiB (6 MiB with clusters of 2 MiB) for the content of compressed clusters; with a compressed file its window.

pub mod checksum;
pub mod compressed;
pub mod deploy;
mod download;
pub mod error;
pub mod format;
pub mod place;
mod pool;
pub mod qcow2;
mod read_back;
mod sink;
pub mod source;
mod target;
#[cfg(test)]
mod testing;
mod unpack;
mod vhd;
mod vmdk;
pub mod write;

pub use compressed::{FileCompression, UnpackFileError};
pub use deploy::{ImageOptions, RetryPolicy, ServerAuth, deploy_image, deploy_to};
pub use error::ImageError;
pub use format::Format;
pub use place::Place;
pub use unpack::{Compression, UnpackError};
pub use write::{ImageSpec, WriteReport, write_image};
