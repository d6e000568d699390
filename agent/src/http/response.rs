//! An answer whose body is read piece by piece.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use tokio::time::{Instant, timeout_at};

use super::connect::Connection;
use super::error::HttpError;
use super::pool::{Key, Pool};
use super::url::Url;

/// An answer: status, header, and a body still to be read. Dropping it before the end closes the connection.
#[derive(Debug)]
pub struct Response {
    /// Status code.
    pub status: StatusCode,
    /// Header fields.
    pub headers: HeaderMap,
    /// Where the answer came from, after redirects.
    pub url: Url,
    /// Address of the server, or of the proxy.
    pub peer: SocketAddr,
    pub(super) body: Incoming,
    pub(super) limit: Duration,
    /// When the whole exchange must be over, and how long that is from its beginning.
    pub(super) total: Option<(Instant, Duration)>,
    pub(super) lease: Option<Lease>,
}

/// The connection of an answer, given back when the body has been read.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) key: Key,
    pub(super) connection: Connection,
    pub(super) pool: Arc<Pool>,
}

impl Response {
    /// A header field as text, none when absent or not plain text.
    pub fn header(&self, name: impl Into<HeaderName>) -> Option<&str> {
        self.headers.get(name.into())?.to_str().ok().map(str::trim)
    }

    /// Length of the body when the server says it.
    pub fn content_length(&self) -> Option<u64> {
        self.body.size_hint().exact()
    }

    /// The next piece of the body, none at its end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, HttpError> {
        loop {
            let Some(lease) = &self.lease else { return Ok(None) };
            let next = lease.connection.activity.watch(self.limit, self.body.frame());
            let frame = match self.total {
                None => next.await,
                Some((end, limit)) => match timeout_at(end, next).await {
                    Ok(frame) => frame,
                    Err(_elapsed) => {
                        self.lease = None;
                        return Err(HttpError::TotalTimeout { url: self.url.clone(), limit });
                    }
                },
            };
            let Some(frame) = frame else {
                self.lease = None;
                return Err(HttpError::BodyTimeout { url: self.url.clone(), limit: self.limit });
            };
            match frame {
                None => {
                    if let Some(lease) = self.lease.take() {
                        lease.pool.put(lease.key, lease.connection);
                    }
                    return Ok(None);
                }
                Some(Err(source)) => {
                    self.lease = None;
                    return Err(HttpError::Body { url: self.url.clone(), source });
                }
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data()
                        && !data.is_empty()
                    {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// The whole body, refused when it is longer than `limit_bytes`.
    pub async fn bytes(mut self, limit_bytes: u64) -> Result<Bytes, HttpError> {
        let too_large = |url: &Url| HttpError::TooLarge { url: url.clone(), limit_bytes };
        if self.content_length().is_some_and(|length| length > limit_bytes) {
            return Err(too_large(&self.url));
        }
        // Room for what is announced, so that a large body is not moved while it grows.
        let announced = self.content_length().and_then(|length| usize::try_from(length).ok()).unwrap_or_default();
        let mut whole = BytesMut::with_capacity(announced);
        while let Some(piece) = self.chunk().await? {
            let length = u64::try_from(whole.len() + piece.len()).unwrap_or(u64::MAX);
            if length > limit_bytes {
                return Err(too_large(&self.url));
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole.freeze())
    }

    /// The first `limit_bytes` of the body as text for a message; the rest is thrown away.
    pub async fn text_start(mut self, limit_bytes: usize) -> String {
        let mut start = Vec::new();
        while start.len() < limit_bytes {
            match self.chunk().await {
                Ok(Some(piece)) => start.extend_from_slice(&piece),
                Ok(None) | Err(_) => break,
            }
        }
        start.truncate(limit_bytes);
        String::from_utf8_lossy(&start).into_owned()
    }

    /// Reads a small rest of the body so that the connection can be used again.
    pub(super) async fn finish(mut self, limit_bytes: usize) {
        let mut seen = 0;
        while let Ok(Some(piece)) = self.chunk().await {
            seen += piece.len();
            if seen > limit_bytes {
                return;
            }
        }
    }
}
