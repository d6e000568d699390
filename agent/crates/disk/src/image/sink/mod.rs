//! Last stage of the pipeline: a few threads that unpack and write what they are handed, several writes at a time.
//!
//! Bytes that lie right for the disk are written from where they were downloaded to; others are gathered first.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

use super::error::ImageError;
use super::pool::{BLOCK_BYTES, Block, Piece, Pool};
use super::target::Target;
use super::unpack::Compression;
use writer::{Unpacking, Writer};

mod writer;

/// Blocks for what has to be gathered.
const BLOCKS: usize = 3;
/// Threads that unpack and write: most, and least.
const WRITERS: usize = 8;
const LEAST_WRITERS: usize = 3;
/// Content of compressed clusters that is written together.
const BATCH_BYTES: usize = 512 << 10;
/// Jobs that wait for a thread.
const WAITING: usize = 6;
/// Pieces from this length on are written as they are.
const LONG_BYTES: usize = 64 << 10;

/// Work for a writer.
enum Job {
    /// Bytes of the image.
    Write { offset: u64, piece: Piece },
    /// The same, gathered.
    Gathered(Filling),
    /// A part of the image that is zero.
    Zero { offset: u64, len_bytes: u64 },
    /// Many such parts: places and lengths.
    Zeroes(Vec<(u64, u64)>),
    /// Compressed clusters.
    Unpack(Batch),
}

/// Compressed clusters that are unpacked one after another.
#[derive(Default)]
struct Batch {
    clusters: Vec<Packed>,
    /// Those that are not in one piece lie here one after another, up to `copied`.
    copies: Option<Block>,
    copied: usize,
}

/// A compressed cluster.
struct Packed {
    /// Where its content goes on the disk.
    offset: u64,
    /// How much of its content goes there: less than a cluster at the end of the image.
    len: usize,
    bytes: Bytes,
}

/// Where a compressed cluster lies.
enum Bytes {
    Piece(Piece),
    /// In the copies of its batch.
    Copy {
        from: usize,
        to: usize,
    },
}

/// What the writers have in common.
struct Shared<'a> {
    target: &'a Target<'a>,
    compression: Compression,
    cluster_bytes: usize,
    failed: AtomicBool,
    failure: Mutex<Option<ImageError>>,
}

/// Takes the bytes of an image in any order and has them written.
pub(super) struct Sink<'a> {
    shared: &'a Shared<'a>,
    jobs: SyncSender<Job>,
    pool: Pool,
    filling: Option<Filling>,
    packing: Batch,
    large: Unpacking,
    begun: bool,
}

/// A block with bytes that go to `offset` on the disk.
struct Filling {
    block: Block,
    offset: u64,
    len: usize,
}

/// What compressed clusters look like; not used for raw images.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clusters {
    pub(super) compression: Compression,
    pub(super) bytes: usize,
}

/// Runs `body` with a sink, then waits until everything is written. A writer's error comes before `body`'s own.
pub(super) fn run<T>(
    target: &Target<'_>,
    clusters: Clusters,
    body: impl FnOnce(&mut Sink<'_>) -> Result<T, ImageError>,
) -> Result<T, ImageError> {
    let shared = Shared {
        target,
        compression: clusters.compression,
        cluster_bytes: clusters.bytes,
        failed: AtomicBool::new(false),
        failure: Mutex::new(None),
    };
    let result = std::thread::scope(|scope| {
        let (jobs, queue) = sync_channel(WAITING);
        let queue = std::sync::Arc::new(Mutex::new(queue));
        // Each has room for a batch, and for a cluster where these are larger.
        let writers = WRITERS * BATCH_BYTES / clusters.bytes.max(BATCH_BYTES);
        for _ in 0..writers.max(LEAST_WRITERS) {
            let (shared, queue) = (&shared, std::sync::Arc::clone(&queue));
            scope.spawn(move || Writer::new(shared).run(&queue));
        }
        // Only writers hold it, so that their end is noticed.
        drop(queue);
        let mut sink = Sink {
            shared: &shared,
            jobs,
            pool: Pool::new(BLOCKS),
            filling: None,
            packing: Batch::default(),
            large: Unpacking::default(),
            begun: false,
        };
        body(&mut sink).and_then(|value| sink.submit_all().map(|()| value))
    });
    match shared.failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => result,
    }
}

impl Sink<'_> {
    /// Has the target's ends zeroed before the first byte is written.
    fn begin(&mut self) -> Result<(), ImageError> {
        if !self.begun {
            self.shared.target.begin()?;
            self.begun = true;
        }
        Ok(())
    }

    /// Writes a piece at `offset`: from where it lies when it is long and the device can take it like that.
    pub(super) fn write_piece(&mut self, offset: u64, piece: Piece) -> Result<(), ImageError> {
        if piece.len() < LONG_BYTES || !self.shared.target.takes_directly(offset, &piece) {
            return self.write(offset, &piece);
        }
        self.begin()?;
        self.submit_filling()?;
        self.send(Job::Write { offset, piece })
    }

    /// Writes bytes at `offset`. Bytes that follow each other are written together.
    pub(super) fn write(&mut self, mut offset: u64, mut bytes: &[u8]) -> Result<(), ImageError> {
        self.begin()?;
        while !bytes.is_empty() {
            if !self.filling.as_ref().is_some_and(|filling| filling.end() == offset && filling.room() > 0) {
                self.submit_filling()?;
                self.check()?;
                self.filling = Some(Filling { block: self.pool.take(), offset, len: 0 });
            }
            let Some(filling) = &mut self.filling else { return Ok(()) };
            let step = filling.room().min(bytes.len());
            let (now, rest) = bytes.split_at_checked(step).unwrap_or((bytes, &[]));
            filling.push(now);
            offset += u64::try_from(step).unwrap_or_default();
            bytes = rest;
        }
        Ok(())
    }

    /// Makes a range zero at once, in this thread; `done` is told of each step.
    pub(super) fn zero_now(&mut self, offset: u64, len_bytes: u64, done: impl FnMut(u64)) -> Result<(), ImageError> {
        self.begin()?;
        self.shared.target.zero(offset, len_bytes, done)
    }

    /// Makes a range zero, in its turn.
    pub(super) fn zero(&mut self, offset: u64, len_bytes: u64) -> Result<(), ImageError> {
        self.begin()?;
        self.send(Job::Zero { offset, len_bytes })
    }

    /// Makes many ranges zero, places and lengths, while other threads write; for devices that zero by themselves.
    pub(super) fn zero_aside(&mut self, ranges: Vec<(u64, u64)>) -> Result<(), ImageError> {
        self.begin()?;
        self.send(Job::Zeroes(ranges))
    }

    /// Whether the device zeroes by itself.
    pub(super) const fn zeroes_efficiently(&self) -> bool {
        self.shared.target.zeroes_efficiently()
    }

    /// [`Sink::unpack`] of a cluster that is in one piece.
    pub(super) fn unpack_piece(&mut self, offset: u64, len: usize, piece: Piece) -> Result<(), ImageError> {
        self.begin()?;
        // Blocks are few: a batch does not hold more than one of those that were downloaded.
        let is_elsewhere = self.packing.piece().is_some_and(|last| !last.is_beside(&piece));
        if is_elsewhere || self.packing.is_full(self.shared.cluster_bytes) {
            self.submit_packing()?;
        }
        self.packing.clusters.push(Packed { offset, len, bytes: Bytes::Piece(piece) });
        Ok(())
    }

    /// Unpacks a compressed cluster and writes the first `len` bytes of it at `offset`.
    pub(super) fn unpack(&mut self, offset: u64, len: usize, packed: &[u8]) -> Result<(), ImageError> {
        self.begin()?;
        if packed.len() > BLOCK_BYTES {
            // Only with clusters of 1 or 2 MiB that hardly shrank: not worth larger blocks for everyone.
            return self.large.run(self.shared, &[(offset, len, packed)]);
        }
        let is_cramped = self.packing.copied + packed.len() > BLOCK_BYTES;
        if is_cramped || self.packing.is_full(self.shared.cluster_bytes) {
            self.submit_packing()?;
        }
        let Batch { clusters, copies, copied } = &mut self.packing;
        let copies = copies.get_or_insert_with(|| self.pool.take());
        let (from, to) = (*copied, *copied + packed.len());
        if let Some(place) = copies.get_mut(from..to) {
            place.copy_from_slice(packed);
        }
        *copied = to;
        clusters.push(Packed { offset, len, bytes: Bytes::Copy { from, to } });
        Ok(())
    }

    /// Hands over what is not full yet.
    fn submit_all(&mut self) -> Result<(), ImageError> {
        self.submit_filling()?;
        self.submit_packing()
    }

    /// Clusters are unpacked in the order of the disk, so that as many as possible are written together: programs that
    /// compress with several threads put them into the file in the order in which they are ready.
    fn submit_packing(&mut self) -> Result<(), ImageError> {
        let mut batch = std::mem::take(&mut self.packing);
        if batch.clusters.is_empty() {
            return Ok(());
        }
        batch.clusters.sort_unstable_by_key(|cluster| cluster.offset);
        self.send(Job::Unpack(batch))
    }

    fn submit_filling(&mut self) -> Result<(), ImageError> {
        self.filling.take().map_or(Ok(()), |filling| self.send(Job::Gathered(filling)))
    }

    fn send(&self, job: Job) -> Result<(), ImageError> {
        self.check()?;
        self.jobs.send(job).map_err(|_closed| self.stopped())
    }

    /// Ends the work early when a writer has failed; its error is the one reported.
    fn check(&self) -> Result<(), ImageError> {
        if self.shared.failed.load(Ordering::Relaxed) { Err(self.stopped()) } else { Ok(()) }
    }

    fn stopped(&self) -> ImageError {
        // A broken cluster is content at fault: the rest of the file is still hashed for the checksum.
        let failure = self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        failure.unwrap_or_else(|| ImageError::Stopped {
            device: self.shared.target.dev().path().to_owned(),
            what: "the writing threads ended",
        })
    }
}

impl Batch {
    /// The last of its clusters that is in one piece.
    fn piece(&self) -> Option<&Piece> {
        self.clusters.iter().rev().find_map(|cluster| match &cluster.bytes {
            Bytes::Piece(piece) => Some(piece),
            Bytes::Copy { .. } => None,
        })
    }

    /// Whether its content fills one large write.
    fn is_full(&self, cluster_bytes: usize) -> bool {
        !self.clusters.is_empty() && (self.clusters.len() + 1) * cluster_bytes > BATCH_BYTES
    }
}

impl Filling {
    fn end(&self) -> u64 {
        self.offset + u64::try_from(self.len).unwrap_or_default()
    }

    /// Bytes that still fit: writes end at multiples of the block's size on the disk.
    fn room(&self) -> usize {
        let size = u64::try_from(self.block.len()).unwrap_or(u64::MAX);
        let to_border = size - self.offset % size;
        usize::try_from(to_border).unwrap_or(usize::MAX).saturating_sub(self.len)
    }

    fn push(&mut self, bytes: &[u8]) {
        if let Some(place) = self.block.get_mut(self.len..self.len + bytes.len()) {
            place.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }
}

#[cfg(test)]
mod tests;
