//! qcow2 images, written while they are downloaded (qcow2 specification, QEMU `docs/interop/qcow2.txt`).
//!
//! With a server that gives ranges the tables are read first (`ranged`) and judged before anything is written; then
//! the whole file is read once from its beginning, so that it can be hashed, and each cluster is written to its place as
//! it goes by. Without ranges (`streamed`) the tables are read as they go by, which works for files that have each
//! table before the data it describes, as `qemu-img convert` writes them.
//!
//! VMDK and VHD files have tables of the same kind; their modules read the header, and the rest is done here.

use super::unpack::UnpackError;

mod copy;
mod effort;
mod header;
mod left;
mod ranged;
mod streamed;
mod table;
mod walk;

pub use header::{Family, Header};
pub(super) use ranged::{Ranged, write_ranged};
pub(super) use streamed::write_streamed;
pub(super) use table::{MARKER_BYTES, marked_len};

/// Most extents kept in memory at a time (24 bytes each).
pub(super) const MAX_EXTENTS: usize = 128 << 10;

/// What is wrong with a qcow2 file.
#[derive(Debug, thiserror::Error)]
pub enum Qcow2Error {
    /// The header is not all there.
    #[error("the qcow2 header is cut short")]
    Short,
    /// It does not begin with the signature.
    #[error("the image is not a qcow2 file")]
    NotQcow2,
    /// Version other than 2 and 3.
    #[error("qcow2 version {version} is not supported")]
    Version {
        /// Version.
        version: u32,
    },
    /// It needs another file.
    #[error("the image has a backing file")]
    BackingFile,
    /// It keeps its data in another file.
    #[error("the image has an external data file")]
    DataFile,
    /// It is encrypted.
    #[error("the image is encrypted (method {method})")]
    Encrypted {
        /// Encryption method.
        method: u32,
    },
    /// It was marked as corrupt by the program that wrote it.
    #[error("the image is marked as corrupt")]
    MarkedCorrupt,
    /// Its tables have entries of parts of clusters. The reference agent refuses these too.
    #[error("the image uses subclusters (extended L2 entries), which are not supported; convert it to one without")]
    Subclusters,
    /// It needs features that are not known here.
    #[error("the image needs unknown features (bits {bits:#x})")]
    Features {
        /// Unknown bits of the incompatible features.
        bits: u64,
    },
    /// A number in the header is out of its range.
    #[error("the qcow2 header says {what} {value}, which is out of range")]
    Header {
        /// Which number.
        what: &'static str,
        /// What it is.
        value: u64,
    },
    /// An offset that should be a multiple of the cluster size is not.
    #[error("{what} at {offset} does not begin at a cluster")]
    Misaligned {
        /// What lies there.
        what: &'static str,
        /// Offset in the file.
        offset: u64,
    },
    /// Something is not within the file.
    #[error("{what} at {offset} is not within the file of {file_bytes} bytes")]
    OutsideFile {
        /// What should lie there.
        what: &'static str,
        /// Offset in the file.
        offset: u64,
        /// Size of the file.
        file_bytes: u64,
    },
    /// A table describes something that its version cannot have.
    #[error("the table entry {entry:#018x} is not allowed in this version")]
    Entry {
        /// The entry.
        entry: u64,
    },
    /// Two things lie in the same place.
    #[error("two parts of the image use the same place at {offset} of the file; convert it to a new file")]
    Overlap {
        /// Offset in the file.
        offset: u64,
    },
    /// What stands before a compressed cluster is not what its table says.
    #[error("the compressed data at {offset} is not what the tables say")]
    Marker {
        /// Offset in the file.
        offset: u64,
    },
    /// The end of the file is not as it should be.
    #[error("the end of the file is wrong: {reason}")]
    Ending {
        /// What is wrong.
        reason: &'static str,
    },
    /// The tables take more room than the file has.
    #[error("the image has more tables than fit into it")]
    TooManyTables,
    /// The file ends before the data that its tables point to.
    #[error("the file ends before the data at {offset}")]
    CutShort {
        /// Offset in the file.
        offset: u64,
    },
    /// A compressed cluster is broken.
    #[error("the compressed cluster for byte {offset} of the disk is broken")]
    Cluster {
        /// Offset on the disk.
        offset: u64,
        /// Reason.
        #[source]
        source: UnpackError,
    },
}
