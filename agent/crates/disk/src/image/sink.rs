//! Last stage of the pipeline: a fixed pool of buffers and a few threads that unpack and write them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};

use ferric_sys::aligned::AlignedBuf;

use super::error::ImageError;
use super::qcow2::Qcow2Error;
use super::target::Target;
use super::unpack::{Compression, UnpackError, Unpacker};

/// Size of a buffer, and how many there are: what is in flight, being filled or waiting.
const BUFFER_BYTES: usize = 1 << 20;
const BUFFERS: usize = 6;
/// Threads that unpack and write.
const WRITERS: usize = 4;

/// Work for a writer.
enum Job {
    /// Bytes of the image.
    Write { buffer: AlignedBuf, offset: u64, len: usize },
    /// A part of the image that is zero.
    Zero { offset: u64, len_bytes: u64 },
    /// Compressed clusters, one after another in the buffer.
    Unpack { buffer: AlignedBuf, clusters: Vec<Packed> },
}

/// A compressed cluster in a buffer.
#[derive(Debug, Clone, Copy)]
struct Packed {
    /// Where its content goes on the disk.
    offset: u64,
    /// How much of its content goes there: less than a cluster at the end of the image.
    len: usize,
    /// Where it lies in the buffer.
    from: usize,
    to: usize,
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
    free: Receiver<AlignedBuf>,
    filling: Option<Filling>,
    packing: Option<(AlignedBuf, Vec<Packed>)>,
    large: Unpacking,
    begun: bool,
}

/// A buffer with bytes that go to `offset` on the disk.
struct Filling {
    buffer: AlignedBuf,
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
        let (jobs, queue) = sync_channel(BUFFERS);
        let queue = std::sync::Arc::new(Mutex::new(queue));
        let (give_back, free) = channel();
        for _ in 0..BUFFERS {
            // The receiver is right here.
            let _sent = give_back.send(AlignedBuf::zeroed(BUFFER_BYTES));
        }
        for _ in 0..WRITERS {
            let (shared, queue, give_back) = (&shared, std::sync::Arc::clone(&queue), give_back.clone());
            scope.spawn(move || Writer { shared, give_back, unpacking: Unpacking::default() }.run(&queue));
        }
        // Only writers hold these, so that their end is noticed.
        drop((queue, give_back));
        let mut sink = Sink {
            shared: &shared,
            jobs,
            free,
            filling: None,
            packing: None,
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

    /// Writes bytes at `offset`. Bytes that follow each other are written together.
    pub(super) fn write(&mut self, offset: u64, mut bytes: &[u8]) -> Result<(), ImageError> {
        self.begin()?;
        let mut offset = offset;
        while !bytes.is_empty() {
            let mut filling = match self.filling.take() {
                Some(filling) if filling.end() == offset && filling.room() > 0 => filling,
                other => {
                    self.submit_write(other)?;
                    Filling { buffer: self.buffer()?, offset, len: 0 }
                }
            };
            let step = filling.room().min(bytes.len());
            let (now, rest) = bytes.split_at_checked(step).unwrap_or((bytes, &[]));
            filling.push(now);
            self.filling = Some(filling);
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

    /// Unpacks a compressed cluster and writes the first `len` bytes of it at `offset`.
    pub(super) fn unpack(&mut self, offset: u64, len: usize, packed: &[u8]) -> Result<(), ImageError> {
        self.begin()?;
        let whole = self.shared.cluster_bytes;
        if packed.len() > BUFFER_BYTES {
            // Only with clusters of 1 or 2 MiB that hardly shrank: not worth larger buffers for everyone.
            return self.large.run(self.shared, packed, &[Packed { offset, len, from: 0, to: packed.len() }]);
        }
        let (mut buffer, mut clusters) = match self.packing.take() {
            Some((buffer, clusters)) if fits(&clusters, whole, packed.len(), buffer.len()) => (buffer, clusters),
            Some((buffer, clusters)) => {
                self.submit_unpack(buffer, clusters)?;
                (self.buffer()?, Vec::new())
            }
            None => (self.buffer()?, Vec::new()),
        };
        let from = clusters.last().map_or(0, |last: &Packed| last.to);
        let to = from + packed.len();
        if let Some(place) = buffer.get_mut(from..to) {
            place.copy_from_slice(packed);
        }
        clusters.push(Packed { offset, len, from, to });
        self.packing = Some((buffer, clusters));
        Ok(())
    }

    /// Hands over what is not full yet.
    fn submit_all(&mut self) -> Result<(), ImageError> {
        let filling = self.filling.take();
        self.submit_write(filling)?;
        if let Some((buffer, clusters)) = self.packing.take() {
            self.submit_unpack(buffer, clusters)?;
        }
        Ok(())
    }

    /// Clusters are unpacked in the order of the disk, so that as many as possible are written together: programs that
    /// compress with several threads put them into the file in the order in which they are ready.
    fn submit_unpack(&self, buffer: AlignedBuf, mut clusters: Vec<Packed>) -> Result<(), ImageError> {
        clusters.sort_unstable_by_key(|cluster| cluster.offset);
        self.send(Job::Unpack { buffer, clusters })
    }

    fn submit_write(&self, filling: Option<Filling>) -> Result<(), ImageError> {
        match filling {
            Some(Filling { buffer, offset, len }) => self.send(Job::Write { buffer, offset, len }),
            None => Ok(()),
        }
    }

    fn buffer(&self) -> Result<AlignedBuf, ImageError> {
        self.check()?;
        self.free.recv().map_err(|_closed| self.stopped())
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

/// A batch of clusters is full when its packed bytes fill the buffer or its content one large write.
fn fits(clusters: &[Packed], cluster_bytes: usize, packed_len: usize, room: usize) -> bool {
    let used = clusters.last().map_or(0, |last| last.to);
    used + packed_len <= room && (clusters.len() + 1) * cluster_bytes <= BUFFER_BYTES
}

impl Filling {
    fn end(&self) -> u64 {
        self.offset + u64::try_from(self.len).unwrap_or_default()
    }

    /// Bytes that still fit: writes end at multiples of the buffer's size on the disk.
    fn room(&self) -> usize {
        let size = u64::try_from(self.buffer.len()).unwrap_or(u64::MAX);
        let to_border = size - self.offset % size;
        usize::try_from(to_border).unwrap_or(usize::MAX).saturating_sub(self.len)
    }

    fn push(&mut self, bytes: &[u8]) {
        if let Some(place) = self.buffer.get_mut(self.len..self.len + bytes.len()) {
            place.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }
}

/// One writing thread.
struct Writer<'a> {
    shared: &'a Shared<'a>,
    give_back: Sender<AlignedBuf>,
    unpacking: Unpacking,
}

impl Writer<'_> {
    fn run(mut self, queue: &Mutex<Receiver<Job>>) {
        loop {
            let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
            // Closed and empty: everything is done.
            let Ok(job) = job else { return };
            // After a failure jobs are only taken off, so that nobody waits for a buffer.
            let result = if self.shared.failed.load(Ordering::Relaxed) { Ok(()) } else { self.work(&job) };
            if let Err(error) = result {
                self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                self.shared.failed.store(true, Ordering::Relaxed);
            }
            if let Job::Write { buffer, .. } | Job::Unpack { buffer, .. } = job {
                // The sink is gone once it has handed over its last job.
                let _finished = self.give_back.send(buffer);
            }
        }
    }

    fn work(&mut self, job: &Job) -> Result<(), ImageError> {
        match job {
            Job::Zero { offset, len_bytes } => self.shared.target.zero(*offset, *len_bytes, |_| ()),
            Job::Write { buffer, offset, len } => {
                self.shared.target.write(*offset, buffer.get(..*len).unwrap_or_default())
            }
            Job::Unpack { buffer, clusters } => self.unpacking.run(self.shared, buffer, clusters),
        }
    }
}

/// What a thread needs to unpack clusters; made when the first one comes.
#[derive(Default)]
struct Unpacking {
    unpacker: Option<Unpacker>,
    content: Option<AlignedBuf>,
}

impl Unpacking {
    /// Unpacks clusters from `packed` and writes those that follow each other on the disk together.
    fn run(&mut self, shared: &Shared<'_>, packed: &[u8], clusters: &[Packed]) -> Result<(), ImageError> {
        let size = shared.cluster_bytes;
        let content = self.content.get_or_insert_with(|| AlignedBuf::zeroed(BUFFER_BYTES.max(size)));
        let unpacker = match &mut self.unpacker {
            Some(unpacker) => unpacker,
            none => none.insert(Unpacker::new(shared.compression).map_err(|source| broken(0, source))?),
        };
        let (mut start, mut len) = (0, 0);
        for cluster in clusters {
            let follows = cluster.offset == start + u64::try_from(len).unwrap_or_default();
            if len > 0 && (!follows || len + size > content.len()) {
                shared.target.write(start, content.get(..len).unwrap_or_default())?;
                len = 0;
            }
            if len == 0 {
                start = cluster.offset;
            }
            let input = packed.get(cluster.from..cluster.to).unwrap_or_default();
            let out = content.get_mut(len..len + size).unwrap_or_default();
            match unpacker.unpack(input, out) {
                // The last grain of a VMDK file may be shorter than the others.
                Err(UnpackError::Short { got, .. })
                    if shared.compression == Compression::Zlib && got >= cluster.len => {}
                result => result.map_err(|source| broken(cluster.offset, source))?,
            }
            len += cluster.len;
        }
        shared.target.write(start, content.get(..len).unwrap_or_default())
    }
}

fn broken(offset: u64, source: UnpackError) -> ImageError {
    ImageError::Broken(Qcow2Error::Cluster { offset, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::place::Place;
    use ferric_sys::testing::disk::TestDisk;

    const RAW: Clusters = Clusters { compression: Compression::Deflate, bytes: 65536 };

    fn at(index: usize) -> u64 {
        u64::try_from(index).unwrap()
    }

    #[test]
    fn bytes_in_any_order_and_of_any_length_arrive() {
        let disk = TestDisk::used(16 << 20).unwrap();
        let dev = disk.open().unwrap();
        let target = Target::new(&dev, Place::Disk).unwrap();
        let mut want = vec![0xa5; 16 << 20];
        run(&target, RAW, |sink| {
            for (index, (offset, len)) in
                [(9 << 20, 3 << 20), (1 << 20, 512), ((1 << 20) + 512, 4096), (5 << 20, 7), ((5 << 20) + 7, 1 << 20)]
                    .into_iter()
                    .enumerate()
            {
                let bytes = vec![u8::try_from(index).unwrap() + 1; len];
                sink.write(at(offset), &bytes)?;
                want[offset..offset + len].copy_from_slice(&bytes);
            }
            sink.zero(3 << 20, 1 << 20)?;
            want[3 << 20..4 << 20].fill(0);
            Ok(())
        })
        .unwrap();
        target.finish().unwrap();
        want[..1 << 20].fill(0);
        want[15 << 20..].fill(0);
        assert!(disk.bytes(0, 16 << 20).unwrap() == want);
    }

    #[test]
    fn writing_ends_at_borders_of_a_buffer_on_the_disk() {
        let filling = Filling { buffer: AlignedBuf::zeroed(BUFFER_BYTES), offset: (3 << 20) - 4096, len: 0 };
        assert_eq!(filling.room(), 4096);
        let filling = Filling { buffer: AlignedBuf::zeroed(BUFFER_BYTES), offset: 3 << 20, len: 4096 };
        assert_eq!(filling.room(), BUFFER_BYTES - 4096);
    }

    #[test]
    fn a_disk_that_fails_stops_the_work_and_is_named() {
        let disk = TestDisk::used(8 << 20).unwrap();
        let dev = disk.open().unwrap();
        let target = Target::new(&dev, Place::Disk).unwrap();
        let mut steps = 0;
        let error = run(&target, RAW, |sink| {
            for step in 0..1000 {
                // From 8 MiB on the disk refuses.
                sink.write(step << 20, &[1; 4096])?;
                steps += 1;
            }
            Ok(())
        })
        .unwrap_err();
        assert!(matches!(error, ImageError::Device { .. }), "{error}");
        assert!(steps < 100, "{steps}");
    }

    #[test]
    fn a_broken_cluster_is_reported_with_its_place() {
        let disk = TestDisk::used(8 << 20).unwrap();
        let dev = disk.open().unwrap();
        let target = Target::new(&dev, Place::Disk).unwrap();
        let error = run(&target, RAW, |sink| sink.unpack(2 << 20, 65536, &[0xff; 512])).unwrap_err();
        let text = ferric_types::error::chain(&error);
        assert!(error.is_content() && text.contains("2097152"), "{text}");
    }

    #[test]
    fn nothing_is_touched_before_the_first_byte() {
        let disk = TestDisk::used(4 << 20).unwrap();
        let dev = disk.open().unwrap();
        let target = Target::new(&dev, Place::Disk).unwrap();
        run(&target, RAW, |_| Ok(())).unwrap();
        assert!(disk.bytes(0, 4 << 20).unwrap().iter().all(|byte| *byte == 0xa5));
    }
}
