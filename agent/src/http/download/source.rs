//! One file on a server: the requests for it, and the [`ImageSource`] over them.

use std::cell::OnceCell;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ferric_disk::image::source::{FetchRequest, ImageSource, SourceError, redacted};
use ferric_types::{Progress, Secret};
use http::StatusCode;
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, IF_RANGE, RANGE};
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::DownloadOptions;
use super::answer::{ContentRange, RangeSupport, Version, doubtful, range_support};
use super::body::{self, Reader, Transfer};
use super::rate::RateWatch;
use super::retry::{Attempts, Deadline, DownloadError, Failure};
use crate::http::{Client, HttpError, Proxies, Request, Response, Url};

/// Shortest value of a query that is taken for a secret.
const MIN_SECRET_BYTES: usize = 6;

/// What an answer's header may take in all, redirects included, in longest waits: for the connection, TLS, a proxy, the
/// server's thinking, and one for a header that trickles.
const HEADER_WAITS: u32 = 5;

/// A file and how to ask for it.
#[derive(Debug, Clone)]
pub(super) struct Target {
    client: Client,
    options: Arc<DownloadOptions>,
    url: Url,
    shown: String,
    authorization: Option<Secret<String>>,
    proxies: Proxies,
    insecure: bool,
    since: Option<std::time::Instant>,
    progress: Progress,
}

impl Target {
    pub(super) fn new(
        client: Client,
        options: Arc<DownloadOptions>,
        request: &FetchRequest,
    ) -> Result<Self, SourceError> {
        let shown = redacted(&request.url);
        let unusable = |error: crate::http::UrlError| SourceError::Fatal {
            url: shown.clone(),
            source: Box::new(HttpError::from(error)),
        };
        let url: Url = request.url.parse().map_err(unusable)?;
        let proxies = Proxies::from_map(&request.proxies, request.no_proxy.as_deref()).map_err(unusable)?;
        let (authorization, progress) = (request.authorization.clone(), request.progress.clone());
        let target = Self {
            client,
            options,
            url,
            shown,
            authorization,
            proxies,
            insecure: request.insecure,
            since: request.since,
            progress,
        };
        // Should anything ever write them into a log, they leave the machine as stars.
        let password = target.url.credentials().map(|(_, password)| password);
        [target.token(), password].iter().flatten().for_each(crate::logs::hide);
        Ok(target)
    }

    /// What is secret in the `Authorization` header: its last word.
    fn token(&self) -> Option<Secret<String>> {
        let last = self.authorization.as_ref()?.expose().split_whitespace().last()?;
        Some(Secret::new(last.to_owned()))
    }

    pub(super) fn options(&self) -> &DownloadOptions {
        &self.options
    }

    /// When the work began that this file is a part of.
    pub(super) fn began(&self) -> Instant {
        self.since.map_or_else(Instant::now, Instant::from_std)
    }

    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }

    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// A text of the server, which answered for `url`, with everything replaced that was secret in the request: error
    /// pages of object stores quote signatures, also those that came with a redirect.
    pub(super) fn scrub(&self, text: &str, url: &Url) -> String {
        let mut secrets = self.url.secrets();
        secrets.extend(url.secrets());
        secrets.extend(self.token().map(|token| token.expose().clone()));
        // Short values are words such as `1` or `GET` and no secrets.
        secrets.retain(|secret| secret.len() >= MIN_SECRET_BYTES);
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "***"))
    }

    pub(super) fn fatal(&self, cause: DownloadError) -> SourceError {
        SourceError::Fatal { url: self.shown.clone(), source: Box::new(cause) }
    }

    pub(super) fn failed(&self, tries: u32, cause: DownloadError) -> SourceError {
        SourceError::Failed { url: self.shown.clone(), tries, source: Box::new(cause) }
    }

    pub(super) fn changed(&self) -> SourceError {
        SourceError::Changed { url: self.shown.clone() }
    }

    /// Asks for the file, or for the part of it that `range` names, of the version `known`.
    pub(super) async fn ask(&self, range: Option<&str>, known: Option<&Version>) -> Result<Response, Failure> {
        let build = || -> Result<Request, HttpError> {
            let mut request = Request::get(self.url.clone()).header(ACCEPT_ENCODING, "identity")?;
            if let Some(authorization) = &self.authorization {
                request = request.header(AUTHORIZATION, authorization.expose())?;
            }
            if let Some(range) = range {
                request = request.header(RANGE, range)?;
                if let Some(validator) = known.and_then(Version::if_range) {
                    request = request.header(IF_RANGE, validator)?;
                }
            }
            let request = if self.insecure { request.unverified() } else { request };
            Ok(request.proxies(self.proxies.clone()))
        };
        let request = build().map_err(|error| Failure::of_exchange(self, error))?;
        let limit = self.header_limit();
        let answer = tokio::time::timeout(limit, self.client.send(request)).await;
        answer
            .unwrap_or_else(|_elapsed| Err(HttpError::TotalTimeout { url: self.url.clone(), limit }))
            .map_err(|error| Failure::of_exchange(self, error))
    }

    fn header_limit(&self) -> Duration {
        self.options.timeout.saturating_mul(HEADER_WAITS)
    }

    /// The next piece of an answer, which must not trickle.
    pub(super) async fn receive(&self, answer: &mut Response, rate: &mut RateWatch) -> Result<Option<Bytes>, Failure> {
        let asked = Instant::now();
        let piece = answer.chunk().await.map_err(|error| Failure::of_exchange(self, error))?;
        let bytes = piece.as_ref().map_or(0, |piece| u64::try_from(piece.len()).unwrap_or(u64::MAX));
        if piece.is_some() && !rate.is_fast_enough(asked.elapsed(), bytes) {
            let (bytes, window) = (self.options.min_bytes, self.options.rate_window);
            return Err(Failure::temporary(DownloadError::Trickle { bytes, window }));
        }
        Ok(piece)
    }

    /// The body of an answer, when it has at most `limit` bytes.
    async fn collect(&self, mut answer: Response, limit: u64) -> Result<Vec<u8>, Failure> {
        let too_large = || Failure::Final(SourceError::TooLarge { url: self.shown.clone(), limit });
        let announced = answer.content_length().unwrap_or_default();
        if announced > limit {
            return Err(too_large());
        }
        let mut rate = self.rate();
        // Room for what is announced, so that a large body is not moved while it grows.
        let mut whole = Vec::with_capacity(usize::try_from(announced).unwrap_or_default());
        while let Some(piece) = self.receive(&mut answer, &mut rate).await? {
            let length = u64::try_from(whole.len() + piece.len()).unwrap_or(u64::MAX);
            if length > limit {
                return Err(too_large());
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole)
    }

    /// A watch over a transfer that begins.
    pub(super) fn rate(&self) -> RateWatch {
        RateWatch::new(self.options.rate_window, self.options.min_bytes)
    }

    /// Asks for the whole file; the answer has status 200.
    pub(super) async fn ask_whole(&self) -> Result<Response, Failure> {
        let response = self.ask(None, None).await?;
        if response.status != StatusCode::OK {
            return Err(Failure::of_status(self, response, StatusCode::OK).await);
        }
        Ok(response)
    }

    /// One try at a small file.
    pub(super) async fn get_small(&self, limit: u64) -> Result<Vec<u8>, Failure> {
        let answer = self.ask_whole().await?;
        self.collect(answer, limit).await
    }

    /// One try at the bytes from `first` to `last`.
    pub(super) async fn get_range(&self, first: u64, last: u64, known: &Version) -> Result<Vec<u8>, Failure> {
        let response = self.ask(Some(&format!("bytes={first}-{last}")), Some(known)).await?;
        let version = |size| Version::read(&response.headers, size);
        match response.status {
            StatusCode::PARTIAL_CONTENT => {
                let answered = ContentRange::read(&response.headers);
                let Some(range) = answered.filter(|range| range.first == first && range.last <= last) else {
                    return Err(Failure::Final(self.fatal(DownloadError::wrong_range(first, &response))));
                };
                if known.differs(&version(range.size_bytes)) {
                    return Err(Failure::Final(self.changed()));
                }
                if range.last < last && range.size_bytes.is_some_and(|size| size <= last) {
                    return Err(Failure::Final(self.fatal(DownloadError::BehindEnd { first, last })));
                }
                let length = last - first + 1;
                let bytes = self.collect(response, length).await?;
                let got = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                if got == length {
                    Ok(bytes)
                } else {
                    Err(Failure::temporary(DownloadError::Short { at: got, size_bytes: length }))
                }
            }
            StatusCode::OK if known.differs(&version(response.content_length())) => Err(Failure::Final(self.changed())),
            StatusCode::OK => Err(Failure::Final(self.failed(1, DownloadError::NoRanges))),
            StatusCode::RANGE_NOT_SATISFIABLE => {
                Err(Failure::Final(self.fatal(DownloadError::BehindEnd { first, last })))
            }
            _ => Err(Failure::of_status(self, response, StatusCode::PARTIAL_CONTENT).await),
        }
    }
}

/// A file that has been opened: the server has answered with its header.
#[derive(Debug)]
pub(super) struct HttpSource {
    target: Target,
    runtime: Handle,
    version: Version,
    announced: RangeSupport,
    ranges: OnceCell<bool>,
    /// The answer to the opening request, used by the first stream from byte 0.
    pending: Option<Response>,
    deadline: Deadline,
}

impl HttpSource {
    pub(super) async fn open(target: Target, runtime: Handle) -> Result<Self, SourceError> {
        let deadline = Deadline::new(&target);
        let mut attempts = Attempts::new(&target);
        let response = loop {
            match deadline.within(&target, target.ask_whole()).await? {
                Ok(response) => break response,
                Err(failure) => attempts.next(&target, failure, &deadline).await?,
            }
        };
        let version = Version::read(&response.headers, response.content_length());
        if let Some(doubt) = doubtful(&response.headers, version.size_bytes) {
            tracing::warn!("{} {doubt}", target.shown);
        }
        tracing::debug!("{}: {version:?}", target.shown);
        let announced = range_support(&response.headers);
        Ok(Self { target, runtime, version, announced, ranges: OnceCell::new(), pending: Some(response), deadline })
    }

    /// The bytes from `offset` on.
    fn transfer(&mut self, offset: u64) -> Reader {
        let pending = self.pending.take().filter(|_| offset == 0);
        let transfer = Transfer::new(self.target.clone(), self.version.clone(), self.deadline, offset);
        body::spawn(&self.runtime, transfer, pending)
    }

    /// Reads the file to its end without blocking.
    #[cfg(test)]
    pub(super) async fn drain(mut self) -> Result<u64, SourceError> {
        self.transfer(0).drain().await
    }

    /// Tries a range of one byte: what a server says about ranges is not always true, in either direction.
    fn probe_ranges(&self) -> bool {
        if self.announced == RangeSupport::No || self.version.size_bytes == Some(0) {
            return false;
        }
        let probe = self.deadline.within(&self.target, self.target.get_range(0, 0, &self.version));
        match self.runtime.block_on(probe) {
            Ok(Ok(_byte)) => true,
            Ok(Err(failure)) => {
                tracing::debug!("{}: no ranges: {failure:?}", self.target.shown);
                false
            }
            Err(_no_time_left) => false,
        }
    }
}

impl ImageSource for HttpSource {
    fn size_bytes(&self) -> Option<u64> {
        self.version.size_bytes
    }

    fn has_ranges(&self) -> bool {
        *self.ranges.get_or_init(|| self.probe_ranges())
    }

    fn stream(&mut self, offset: u64) -> Result<Box<dyn Read + Send + '_>, SourceError> {
        Ok(Box::new(self.transfer(offset)))
    }

    fn read_exact_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        let Some(length) = u64::try_from(buf.len()).ok().filter(|length| *length > 0) else { return Ok(()) };
        let last = offset.saturating_add(length - 1);
        let Self { target, version, deadline, .. } = self;
        let bytes = self.runtime.block_on(async {
            let mut attempts = Attempts::new(target);
            loop {
                match deadline.within(target, target.get_range(offset, last, version)).await? {
                    Ok(bytes) => return Ok(bytes),
                    Err(failure) => attempts.next(target, failure, deadline).await?,
                }
            }
        })?;
        buf.copy_from_slice(&bytes);
        Ok(())
    }
}
