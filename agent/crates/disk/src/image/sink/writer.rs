//! The threads that unpack and write.

use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::sync::{Mutex, PoisonError};

use ferric_sys::aligned::AlignedBuf;

use super::{BATCH_BYTES, Batch, Bytes, Filling, Job, Shared};
use crate::image::error::ImageError;
use crate::image::qcow2::Qcow2Error;
use crate::image::unpack::{Compression, UnpackError, Unpacker};

/// One writing thread.
pub(super) struct Writer<'a> {
    shared: &'a Shared<'a>,
    unpacking: Unpacking,
}

impl<'a> Writer<'a> {
    pub(super) fn new(shared: &'a Shared<'a>) -> Self {
        Self { shared, unpacking: Unpacking::default() }
    }

    pub(super) fn run(mut self, queue: &Mutex<Receiver<Job>>) {
        loop {
            let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
            // Closed and empty: everything is done.
            let Ok(job) = job else { return };
            // After a failure jobs are only taken off, so that nobody waits for a block.
            if self.shared.failed.load(Ordering::Relaxed) {
                continue;
            }
            if let Err(error) = self.work(&job) {
                self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                self.shared.failed.store(true, Ordering::Relaxed);
            }
        }
    }

    fn work(&mut self, job: &Job) -> Result<(), ImageError> {
        let target = self.shared.target;
        match job {
            Job::Zero { offset, len_bytes } => target.zero(*offset, *len_bytes, |_| ()),
            Job::Zeroes(ranges) => {
                let goes_on = |_: &&(u64, u64)| !self.shared.failed.load(Ordering::Relaxed);
                ranges.iter().take_while(goes_on).try_for_each(|(offset, len)| target.zero(*offset, *len, |_| ()))
            }
            Job::Write { offset, piece } => target.write(*offset, piece),
            Job::Gathered(Filling { block, offset, len }) => {
                target.write(*offset, block.get(..*len).unwrap_or_default())
            }
            Job::Unpack(batch) => self.unpacking.run(self.shared, &batch.list()),
        }
    }
}

impl Batch {
    /// What [`Unpacking::run`] takes.
    fn list(&self) -> Vec<(u64, usize, &[u8])> {
        let copies = self.copies.as_deref().unwrap_or_default();
        let bytes = |bytes| match bytes {
            &Bytes::Copy { from, to } => copies.get(from..to).unwrap_or_default(),
            Bytes::Piece(piece) => piece,
        };
        self.clusters.iter().map(|cluster| (cluster.offset, cluster.len, bytes(&cluster.bytes))).collect()
    }
}

/// What a thread needs to unpack clusters; made when the first one comes.
#[derive(Default)]
pub(super) struct Unpacking {
    unpacker: Option<Unpacker>,
    content: Option<AlignedBuf>,
}

impl Unpacking {
    /// Unpacks clusters, each with its place on the disk and the length that goes there, and writes those that follow
    /// each other on the disk together.
    pub(super) fn run(&mut self, shared: &Shared<'_>, clusters: &[(u64, usize, &[u8])]) -> Result<(), ImageError> {
        let size = shared.cluster_bytes;
        let content = self.content.get_or_insert_with(|| AlignedBuf::zeroed(BATCH_BYTES.max(size)));
        let unpacker = match &mut self.unpacker {
            Some(unpacker) => unpacker,
            none => none.insert(Unpacker::new(shared.compression).map_err(|source| broken(0, source))?),
        };
        let (mut start, mut len) = (0, 0);
        for (offset, wanted, packed) in clusters {
            let follows = *offset == start + u64::try_from(len).unwrap_or_default();
            if len > 0 && (!follows || len + size > content.len()) {
                shared.target.write(start, content.get(..len).unwrap_or_default())?;
                len = 0;
            }
            if len == 0 {
                start = *offset;
            }
            let out = content.get_mut(len..len + size).unwrap_or_default();
            match unpacker.unpack(packed, out) {
                // The last grain of a VMDK file may be shorter than the others.
                Err(UnpackError::Short { got, .. }) if shared.compression == Compression::Zlib && got >= *wanted => {}
                result => result.map_err(|source| broken(*offset, source))?,
            }
            len += wanted;
        }
        shared.target.write(start, content.get(..len).unwrap_or_default())
    }
}

fn broken(offset: u64, source: UnpackError) -> ImageError {
    ImageError::Broken(Qcow2Error::Cluster { offset, source })
}
