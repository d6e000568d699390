//! First stages of the pipeline: a thread that downloads into a few fixed chunks, and one that hashes them.
//!
//! The checksum is that of the bytes as downloaded, before any decompression or format. It takes the most time of all
//! where the disk is fast, about 0.6 s for a GiB with SHA-256 in hardware, and so has a thread of its own.

use std::io::{self, BufRead, Read};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use ferric_types::Progress;

use super::checksum::Hasher;
use super::error::ImageError;

/// Size of a chunk, and how many there are.
const CHUNK_BYTES: usize = 512 << 10;
const CHUNKS: usize = 6;

/// What has been downloaded so far.
#[derive(Debug)]
pub(super) struct Tally {
    /// Checksum of all bytes so far.
    pub(super) hasher: Hasher,
    /// How many there were.
    pub(super) bytes: u64,
}

/// A filled chunk, or why there are no more. The end is that the channel closes.
type Item = io::Result<Chunk>;

struct Chunk {
    memory: Box<[u8]>,
    len: usize,
}

/// Runs `body` over the bytes of `stream` while a thread downloads and hashes them.
///
/// `body` must read to the end, so that every byte is hashed. When it fails because the content is at fault, the rest is
/// hashed all the same, so that the caller can look at the checksum first.
pub(super) fn pump<T>(
    stream: Box<dyn Read + Send + '_>,
    tally: &mut Tally,
    progress: &Progress,
    body: impl FnOnce(&mut Chunks) -> Result<T, ImageError>,
) -> Result<T, ImageError> {
    std::thread::scope(|scope| {
        let (full, hashed) = sync_channel(CHUNKS);
        let (pass_on, filled) = sync_channel(CHUNKS);
        let (give_back, free) = channel();
        for _ in 0..CHUNKS {
            // The receiver is right here.
            let _sent = give_back.send(vec![0; CHUNK_BYTES].into_boxed_slice());
        }
        scope.spawn(move || download(stream, progress, &free, &full));
        scope.spawn(move || hash(tally, &hashed, &pass_on));
        let mut chunks = Chunks { filled, give_back, current: None, at: 0 };
        let result = body(&mut chunks);
        if result.as_ref().is_err_and(ImageError::is_content) {
            // A failure of the download is told by the length and the checksum of what came.
            let _drained = chunks.skip_to_end();
        }
        result
    })
}

fn download(
    mut stream: Box<dyn Read + Send + '_>,
    progress: &Progress,
    free: &Receiver<Box<[u8]>>,
    full: &SyncSender<Item>,
) {
    // A closed channel means that the other end has given up.
    while let Ok(mut memory) = free.recv() {
        let mut len = 0;
        let mut failure = None;
        while let Some(room) = memory.get_mut(len..).filter(|room| !room.is_empty()) {
            match stream.read(room) {
                Ok(0) => break,
                Ok(read) => {
                    len += read;
                    progress.add(u64::try_from(read).unwrap_or_default());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        let at_end = len < memory.len();
        if len > 0 && full.send(Ok(Chunk { memory, len })).is_err() {
            return;
        }
        if let Some(error) = failure {
            let _nobody_there = full.send(Err(error));
            return;
        }
        if at_end {
            return;
        }
    }
}

fn hash(tally: &mut Tally, downloaded: &Receiver<Item>, pass_on: &SyncSender<Item>) {
    for item in downloaded {
        if let Ok(Chunk { memory, len }) = &item {
            tally.hasher.update(memory.get(..*len).unwrap_or_default());
            tally.bytes += u64::try_from(*len).unwrap_or_default();
        }
        if pass_on.send(item).is_err() {
            return;
        }
    }
}

/// The downloaded bytes in order, by `BufRead`; chunks go back to the downloading thread when they are used up.
pub(super) struct Chunks {
    filled: Receiver<Item>,
    give_back: Sender<Box<[u8]>>,
    current: Option<Chunk>,
    at: usize,
}

impl Chunks {
    /// Passes over the rest.
    pub(super) fn skip_to_end(&mut self) -> io::Result<()> {
        loop {
            let len = self.fill_buf()?.len();
            if len == 0 {
                return Ok(());
            }
            self.consume(len);
        }
    }
}

impl BufRead for Chunks {
    /// The unread part of the current chunk: all that is left of it, empty only at the end.
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.current.as_ref().is_some_and(|chunk| self.at >= chunk.len)
            && let Some(chunk) = self.current.take()
        {
            // Nobody takes it back once the download has ended.
            let _ended = self.give_back.send(chunk.memory);
        }
        if self.current.is_none() {
            self.at = 0;
            self.current = match self.filled.recv() {
                Ok(item) => Some(item?),
                Err(_) => None,
            };
        }
        Ok(self.current.as_ref().and_then(|chunk| chunk.memory.get(self.at..chunk.len)).unwrap_or_default())
    }

    fn consume(&mut self, count: usize) {
        self.at += count;
    }
}

impl Read for Chunks {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let available = self.fill_buf()?;
        let len = available.len().min(buf.len());
        if let (Some(from), Some(to)) = (available.get(..len), buf.get_mut(..len)) {
            to.copy_from_slice(from);
        }
        self.consume(len);
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::checksum::Algorithm;
    use crate::image::qcow2::Qcow2Error;

    fn tally() -> Tally {
        Tally { hasher: Algorithm::Sha256.hasher(), bytes: 0 }
    }

    fn sha256(bytes: &[u8]) -> String {
        let mut hasher = Algorithm::Sha256.hasher();
        hasher.update(bytes);
        hasher.finish()
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|index| u8::try_from(index * 7 % 251).unwrap()).collect()
    }

    /// Gives a few bytes at a time, then fails or ends.
    struct Dribble<'a>(&'a [u8], usize, bool);

    impl Read for Dribble<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            let len = self.1.min(self.0.len()).min(buf.len());
            if len == 0 && self.2 {
                return Err(io::Error::other("cut"));
            }
            buf[..len].copy_from_slice(&self.0[..len]);
            self.0 = &self.0[len..];
            Ok(len)
        }
    }

    #[test]
    fn bytes_come_through_in_order_and_are_hashed() {
        for (len, step) in
            [(0, 1), (1, 1), (CHUNK_BYTES, 4096), (3 * CHUNK_BYTES + 5, 70_001), (9 * CHUNK_BYTES, 1 << 20)]
        {
            let data = bytes(len);
            let (mut tally, progress) = (tally(), Progress::new());
            progress.phase("write", None);
            let got = pump(Box::new(Dribble(&data, step, false)), &mut tally, &progress, |chunks| {
                let mut got = Vec::new();
                chunks.read_to_end(&mut got).unwrap();
                Ok(got)
            });
            assert!(got.unwrap() == data, "{len} in steps of {step}");
            assert_eq!(tally.bytes, u64::try_from(len).unwrap());
            assert_eq!(progress.report().unwrap().done_bytes, tally.bytes);
            assert_eq!(tally.hasher.finish(), sha256(&data));
        }
    }

    #[test]
    fn a_cut_is_seen_after_the_bytes_before_it() {
        let data = bytes(100_000);
        let mut tally = tally();
        let (got, error) = pump(Box::new(Dribble(&data, 999, true)), &mut tally, &Progress::new(), |chunks| {
            let mut got = Vec::new();
            let error = chunks.read_to_end(&mut got).unwrap_err();
            Ok((got, error))
        })
        .unwrap();
        assert!(got == data);
        assert_eq!(error.to_string(), "cut");
        assert_eq!(tally.bytes, 100_000);
    }

    #[test]
    fn giving_up_ends_the_download_and_bad_content_does_not() {
        let data = bytes(20 * CHUNK_BYTES);
        let run = |error: ImageError| {
            let mut tally = tally();
            let result: Result<(), _> =
                pump(Box::new(data.as_slice()), &mut tally, &Progress::new(), |_chunks| Err(error));
            assert!(result.is_err());
            (tally.bytes, tally.hasher.finish())
        };
        let device = std::path::PathBuf::from("/dev/x");
        assert!(run(ImageError::ReadOnly { device }).0 <= u64::try_from(CHUNKS * CHUNK_BYTES).unwrap());
        let (bytes, hex) = run(ImageError::Broken(Qcow2Error::Short));
        assert_eq!((bytes, hex), (u64::try_from(data.len()).unwrap(), sha256(&data)));
    }
}
