//! First stages of the pipeline: a thread that downloads into a few fixed blocks, and one that hashes them.
//!
//! The checksum is that of the bytes as downloaded, before any decompression or format. It takes the most time of all
//! where the disk is fast, about 0.6 s for a GiB with SHA-256 in hardware, and so has a thread of its own. Blocks go to that
//! thread and on to be written at the same time; what is written counts for nothing until the checksum holds.

use std::io::{self, BufRead, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use ferric_types::Progress;

use super::checksum::Hasher;
use super::error::ImageError;
use super::pool::{BLOCK_BYTES, Piece, Pool};

/// Blocks that are being filled, hashed, waiting or being written.
const BLOCKS: usize = 6;
/// The same for raw images, which need no memory for anything else: disks that are far away want several writes in flight.
const RAW_BLOCKS: usize = 12;

/// What has been downloaded so far.
#[derive(Debug)]
pub(super) struct Tally {
    /// Checksum of all bytes so far.
    pub(super) hasher: Hasher,
    /// How many there were.
    pub(super) bytes: u64,
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
        let (to_hash, hashed) = sync_channel(RAW_BLOCKS);
        let (to_body, filled) = sync_channel(RAW_BLOCKS);
        // Bytes lie in memory as they do in the file, so that clusters can be written without being copied.
        let from = tally.bytes % u64::try_from(BLOCK_BYTES).unwrap_or(1);
        let from = usize::try_from(from).unwrap_or_default();
        let pool = Pool::new(BLOCKS);
        let mut chunks = Chunks { filled, current: None, blocks: pool.limit() };
        scope.spawn(move || download(stream, (from, pool), progress, &to_hash, &to_body));
        scope.spawn(move || hash(tally, &hashed));
        let result = body(&mut chunks);
        if result.as_ref().is_err_and(ImageError::is_content) {
            // A failure of the download is told by the length and the checksum of what came.
            let _drained = chunks.skip_to_end();
        }
        result
    })
}

/// Fills blocks, the first one of them from the place `from` on.
fn download(
    mut stream: Box<dyn Read + Send + '_>,
    (mut from, mut pool): (usize, Pool),
    progress: &Progress,
    to_hash: &SyncSender<Piece>,
    to_body: &SyncSender<io::Result<Piece>>,
) {
    loop {
        let mut block = pool.take();
        let (mut to, mut failure) = (from, None);
        while let Some(room) = block.get_mut(to..).filter(|room| !room.is_empty()) {
            match stream.read(room) {
                Ok(0) => break,
                Ok(read) => {
                    to += read;
                    progress.add(u64::try_from(read).unwrap_or_default());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        let at_end = to < block.len();
        if to > from {
            let piece = Piece::new(block, from, to);
            // A closed channel means that the other end has given up.
            if to_hash.send(piece.clone()).is_err() || to_body.send(Ok(piece)).is_err() {
                return;
            }
        }
        if let Some(error) = failure {
            let _nobody_there = to_body.send(Err(error));
            return;
        }
        if at_end {
            return;
        }
        from = 0;
    }
}

fn hash(tally: &mut Tally, downloaded: &Receiver<Piece>) {
    for piece in downloaded {
        tally.hasher.update(&piece);
        tally.bytes += u64::try_from(piece.len()).unwrap_or_default();
    }
}

/// The downloaded bytes in order, by `BufRead` or in pieces that can be kept.
pub(super) struct Chunks {
    /// Closed at the end.
    filled: Receiver<io::Result<Piece>>,
    /// What has not been read yet of the block at hand; never empty.
    current: Option<Piece>,
    /// How many blocks there may be.
    blocks: Arc<AtomicUsize>,
}

impl Chunks {
    /// Allows for as many blocks as a raw image needs.
    pub(super) fn widen(&self) {
        self.blocks.store(RAW_BLOCKS, Ordering::Relaxed);
    }

    /// Passes over the rest.
    pub(super) fn skip_to_end(&mut self) -> io::Result<()> {
        while self.next(usize::MAX)?.is_some() {}
        Ok(())
    }

    /// The next bytes, at most `most` and all in one block; `None` at the end.
    pub(super) fn next(&mut self, most: usize) -> io::Result<Option<Piece>> {
        self.fill()?;
        let piece = self.current.as_ref().map(|current| current.part(0, most));
        self.consume(piece.as_ref().map_or(0, |piece| piece.len()));
        Ok(piece)
    }

    /// The next `len` bytes, which stay to be read, when one block has them all.
    pub(super) fn peek(&mut self, len: usize) -> io::Result<Option<Piece>> {
        self.fill()?;
        Ok(self.current.as_ref().filter(|current| current.len() >= len).map(|current| current.part(0, len)))
    }

    fn fill(&mut self) -> io::Result<()> {
        if self.current.is_none() {
            self.current = self.filled.recv().ok().transpose()?;
        }
        Ok(())
    }
}

impl BufRead for Chunks {
    /// The unread part of the current block: all that is left of it, empty only at the end.
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.fill()?;
        Ok(self.current.as_deref().unwrap_or_default())
    }

    fn consume(&mut self, count: usize) {
        let rest = self.current.take().map(|current| current.part(count, usize::MAX));
        self.current = rest.filter(|rest| !rest.is_empty());
    }
}

impl Read for Chunks {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let Some(piece) = self.next(buf.len())? else { return Ok(0) };
        if let Some(place) = buf.get_mut(..piece.len()) {
            place.copy_from_slice(&piece);
        }
        Ok(piece.len())
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
            [(0, 1), (1, 1), (BLOCK_BYTES, 4096), (3 * BLOCK_BYTES + 5, 70_001), (9 * BLOCK_BYTES, 1 << 20)]
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
        let data = bytes(20 * BLOCK_BYTES);
        let run = |error: ImageError| {
            let mut tally = tally();
            let result: Result<(), _> =
                pump(Box::new(data.as_slice()), &mut tally, &Progress::new(), |_chunks| Err(error));
            assert!(result.is_err());
            (tally.bytes, tally.hasher.finish())
        };
        let device = std::path::PathBuf::from("/dev/x");
        assert!(run(ImageError::ReadOnly { device }).0 <= u64::try_from((BLOCKS + 1) * BLOCK_BYTES).unwrap());
        let (bytes, hex) = run(ImageError::Broken(Qcow2Error::Short));
        assert_eq!((bytes, hex), (u64::try_from(data.len()).unwrap(), sha256(&data)));
    }
}
