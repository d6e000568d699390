//! A stream that remembers when bytes last moved, so that a limit can mean "no progress for so long" rather than
//! "not finished by then": a large upload over a slow link is no silent server.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// When bytes last moved on a connection; clones share the time.
#[derive(Debug, Clone)]
pub(super) struct Activity(Arc<Mutex<Instant>>);

impl Activity {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    /// Counts this moment as progress.
    pub(super) fn touch(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn last(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The result of `future`, none when no byte moved for `limit`. The time begins with this call.
    pub(super) async fn watch<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        self.touch();
        tokio::pin!(future);
        loop {
            let deadline = self.last() + limit;
            tokio::select! {
                biased;
                output = &mut future => return Some(output),
                () = tokio::time::sleep_until(deadline) => {
                    if self.last() + limit <= Instant::now() {
                        return None;
                    }
                }
            }
        }
    }
}

/// A stream whose reads and writes touch an [`Activity`].
#[derive(Debug)]
pub(super) struct Watched<S> {
    pub(super) inner: S,
    pub(super) activity: Activity,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.activity.touch();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(cx, buf);
        if matches!(polled, Poll::Ready(Ok(written)) if written > 0) {
            self.activity.touch();
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[tokio::test(start_paused = true)]
    async fn a_slow_but_moving_stream_is_not_cut_and_a_silent_one_is() {
        let (near, mut far) = tokio::io::duplex(64);
        let activity = Activity::new();
        let mut near = Watched { inner: near, activity: activity.clone() };
        let writer = tokio::spawn(async move {
            for _ in 0..5 {
                tokio::time::sleep(Duration::from_secs(9)).await;
                far.write_all(b"x").await.unwrap();
            }
            far
        });
        let begun = Instant::now();
        let mut buf = [0; 5];
        assert!(activity.watch(Duration::from_secs(10), near.read_exact(&mut buf)).await.is_some());
        assert_eq!(begun.elapsed().as_secs(), 45);
        let _far = writer.await.unwrap();
        assert!(activity.watch(Duration::from_secs(10), near.read_exact(&mut buf)).await.is_none());
        assert_eq!(begun.elapsed().as_secs(), 55);
    }
}
