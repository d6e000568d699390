//! The bytes of a file in order: a task that receives and resumes, and the reader on the blocking side.

use std::io::{self, Read};

use bytes::{Buf as _, Bytes};
use crc32fast::Hasher;
use ferric_disk::image::source::SourceError;
use http::StatusCode;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::answer::{ContentRange, Version};
use super::rate::RateWatch;
use super::retry::{Attempts, Deadline, DownloadError, Failure};
use super::source::Target;
use crate::http::Response;

/// Pieces between the task and the reader. The client makes pieces of at most 256 KiB, so this bounds the memory of a
/// download to 2 MiB beside the socket's buffers.
const PIECES_IN_FLIGHT: usize = 8;

/// What the task hands over.
#[derive(Debug)]
enum Piece {
    Data(Bytes),
    End,
    Failed(SourceError),
}

/// The bytes as the blocking side reads them. Dropping it ends the transfer.
#[derive(Debug)]
pub(super) struct Reader {
    pieces: mpsc::Receiver<Piece>,
    current: Bytes,
    ended: bool,
    task: AbortHandle,
}

impl Read for Reader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            if self.ended || buf.is_empty() {
                return Ok(0);
            }
            match self.pieces.blocking_recv() {
                Some(Piece::Data(bytes)) => self.current = bytes,
                Some(Piece::End) => self.ended = true,
                Some(Piece::Failed(error)) => return Err(error.into_io()),
                None => return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the download has been stopped")),
            }
        }
        let taken = self.current.len().min(buf.len());
        let (target, _) = buf.split_at_mut(taken);
        self.current.copy_to_slice(target);
        Ok(taken)
    }
}

#[cfg(test)]
impl Reader {
    /// Waits for the end without blocking; gives the number of bytes.
    pub(super) async fn drain(mut self) -> Result<u64, SourceError> {
        let mut count = 0;
        loop {
            match self.pieces.recv().await.unwrap() {
                Piece::Data(bytes) => count += length(&bytes),
                Piece::End => return Ok(count),
                Piece::Failed(error) => return Err(error),
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Starts a transfer, with the answer to its first request when there is one already.
pub(super) fn spawn(runtime: &Handle, transfer: Transfer, first: Option<Response>) -> Reader {
    let (sender, pieces) = mpsc::channel(PIECES_IN_FLIGHT);
    let task = runtime.spawn(transfer.run(first, sender)).abort_handle();
    Reader { pieces, current: Bytes::new(), ended: false, task }
}

/// A file on its way, or the rest of it from some byte on.
#[derive(Debug)]
pub(super) struct Transfer {
    target: Target,
    version: Version,
    deadline: Deadline,
    attempts: Attempts,
    start: u64,
    /// The next byte the reader wants.
    position: u64,
    /// Over the bytes from `start` to `position`.
    crc: Hasher,
    /// The server once sent another part than the one asked for: only the whole file is asked for from then on.
    whole_only: bool,
}

impl Transfer {
    pub(super) fn new(target: Target, version: Version, deadline: Deadline, start: u64) -> Self {
        let attempts = Attempts::new(&target);
        Self { target, version, deadline, attempts, start, position: start, crc: Hasher::new(), whole_only: false }
    }

    async fn run(mut self, mut answer: Option<Response>, pieces: mpsc::Sender<Piece>) {
        let last = loop {
            match self.attempt(answer.take(), &pieces).await {
                Ok(()) => break Piece::End,
                Err(Failure::Unwanted) => return,
                Err(failure) => {
                    if let Err(error) = self.attempts.next(&self.target, failure, &self.deadline).await {
                        break Piece::Failed(error);
                    }
                }
            }
        };
        // A reader that is gone does not need to know how it ended.
        drop(pieces.send(last).await);
    }

    /// Receives until the end or the next failure.
    async fn attempt(&mut self, answer: Option<Response>, pieces: &mpsc::Sender<Piece>) -> Result<(), Failure> {
        if self.version.size_bytes == Some(self.position) {
            return Ok(());
        }
        let (mut answer, skip) = match answer {
            Some(answer) => (answer, 0),
            None => self.resume().await?,
        };
        let mut rate = self.target.rate();
        if skip > 0 {
            let rest = self.skip(&mut answer, &mut rate, skip).await?;
            self.deliver(rest, pieces).await?;
        }
        while let Some(bytes) = self.receive(&mut answer, &mut rate).await? {
            self.deliver(bytes, pieces).await?;
        }
        match self.version.size_bytes {
            Some(size_bytes) if self.position < size_bytes => {
                Err(Failure::temporary(DownloadError::Short { at: self.position, size_bytes }))
            }
            _ => Ok(()),
        }
    }

    /// Asks for the bytes from `position` on. The second value is how many bytes of the answer come before that.
    async fn resume(&mut self) -> Result<(Response, u64), Failure> {
        let first = self.position;
        let range = (first > 0 && !self.whole_only).then(|| format!("bytes={first}-"));
        let ask = self.target.ask(range.as_deref(), Some(&self.version));
        let answer = self.deadline.within(&self.target, ask).await??;
        match answer.status {
            StatusCode::PARTIAL_CONTENT if range.is_some() => {
                let Some(range) = ContentRange::read(&answer.headers).filter(|range| range.first == first) else {
                    self.whole_only = true;
                    return Err(Failure::temporary(DownloadError::wrong_range(first, &answer)));
                };
                self.check(&Version::read(&answer.headers, range.size_bytes))?;
                Ok((answer, 0))
            }
            StatusCode::OK => {
                self.check(&Version::read(&answer.headers, answer.content_length()))?;
                if first > 0 {
                    tracing::info!("{} comes again from its start: skipping {first} bytes", self.target.shown());
                }
                Ok((answer, first))
            }
            StatusCode::RANGE_NOT_SATISFIABLE => Err(Failure::Final(self.target.changed())),
            _ if range.is_some() => Err(Failure::of_status(&self.target, answer, StatusCode::PARTIAL_CONTENT).await),
            _ => Err(Failure::of_status(&self.target, answer, StatusCode::OK).await),
        }
    }

    fn check(&self, answered: &Version) -> Result<(), Failure> {
        if self.version.differs(answered) { Err(Failure::Final(self.target.changed())) } else { Ok(()) }
    }

    /// Throws the first `skip` bytes away, comparing those that were delivered before. Gives what came behind them.
    async fn skip(&self, answer: &mut Response, rate: &mut RateWatch, skip: u64) -> Result<Bytes, Failure> {
        let mut at = 0_u64;
        let mut crc = Hasher::new();
        while at < skip {
            let Some(mut bytes) = self.receive(answer, rate).await? else {
                return Err(Failure::temporary(DownloadError::Short { at, size_bytes: skip }));
            };
            let wanted = usize::try_from(skip - at).unwrap_or(usize::MAX).min(bytes.len());
            let old = bytes.split_to(wanted);
            let before_start = usize::try_from(self.start.saturating_sub(at)).unwrap_or(usize::MAX).min(old.len());
            crc.update(&old[before_start..]);
            at += length(&old);
            if at == skip {
                let same = crc.finalize() == self.crc.clone().finalize();
                return if same { Ok(bytes) } else { Err(Failure::Final(self.target.changed())) };
            }
        }
        Ok(Bytes::new())
    }

    /// The next piece of an answer.
    async fn receive(&self, answer: &mut Response, rate: &mut RateWatch) -> Result<Option<Bytes>, Failure> {
        self.deadline.within(&self.target, self.target.receive(answer, rate)).await?
    }

    async fn deliver(&mut self, bytes: Bytes, pieces: &mpsc::Sender<Piece>) -> Result<(), Failure> {
        if bytes.is_empty() {
            return Ok(());
        }
        let count = length(&bytes);
        if let Some(size_bytes) = self.version.size_bytes.filter(|size| self.position + count > *size) {
            return Err(Failure::Final(self.target.fatal(DownloadError::Long { size_bytes })));
        }
        self.crc.update(&bytes);
        self.position += count;
        self.attempts.progress(count);
        let sent = self.deadline.within(&self.target, pieces.send(Piece::Data(bytes))).await?;
        sent.map_err(|_reader_is_gone| Failure::Unwanted)
    }
}

fn length(bytes: &Bytes) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}
