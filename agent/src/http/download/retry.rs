//! Which failures are worth another try, how many, and until when.

use std::error::Error;
use std::time::{Duration, SystemTime};

use ferric_disk::image::source::SourceError;
use ferric_types::error::chain;
use http::StatusCode;
use http::header::{CONTENT_RANGE, DATE, RETRY_AFTER};
use tokio::time::Instant;

use super::source::Target;
use crate::http::{HttpError, Response};

/// Bytes received after which earlier failures are forgotten.
const PROGRESS_BYTES: u64 = 1024 * 1024;

/// Longest pause a server can ask for with `Retry-After`.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(120);

/// Start of an error page that is shown, in characters.
const BODY_START_CHARS: usize = 300;

/// What went wrong with one try.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// The exchange failed.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The server does not give the file.
    #[error("Received status code {status} from {url}, expected {expected}. Response body: {body}")]
    Status {
        /// What was asked for.
        url: String,
        /// Status of the answer.
        status: StatusCode,
        /// Status a good answer has.
        expected: StatusCode,
        /// Start of the answer's body.
        body: String,
    },
    /// The transfer ended too early.
    #[error("the transfer ended at byte {at} of {size_bytes}")]
    Short {
        /// Bytes received.
        at: u64,
        /// Bytes expected.
        size_bytes: u64,
    },
    /// The server sends more than it announced.
    #[error("the server sends more than the {size_bytes} bytes it announced")]
    Long {
        /// Bytes expected.
        size_bytes: u64,
    },
    /// The transfer is too slow ever to end.
    #[error("only {bytes} bytes or less arrive in {} s", .window.as_secs_f64())]
    Trickle {
        /// Bytes that must arrive.
        bytes: u64,
        /// In this time.
        window: Duration,
    },
    /// A partial answer that is not the part asked for.
    #[error("asked for the bytes from {first}, the server answers with Content-Range {answered:?}")]
    WrongRange {
        /// First byte asked for.
        first: u64,
        /// The server's header.
        answered: String,
    },
    /// The server gives the whole file where a part was asked for.
    #[error("the server ignores Range requests")]
    NoRanges,
    /// The caller wants bytes behind the end.
    #[error("bytes {first} to {last} lie behind the end of the file")]
    BehindEnd {
        /// First byte wanted.
        first: u64,
        /// Last byte wanted.
        last: u64,
    },
}

impl DownloadError {
    pub(super) fn wrong_range(first: u64, response: &Response) -> Self {
        let answered = super::answer::text(&response.headers, CONTENT_RANGE).unwrap_or_default();
        Self::WrongRange { first, answered }
    }
}

/// A failed try.
#[derive(Debug)]
pub(super) enum Failure {
    /// The reader is gone: nobody wants the file any more.
    Unwanted,
    /// Not worth another try.
    Final(SourceError),
    /// Worth another try, after at least `pause`.
    Temporary { cause: DownloadError, pause: Duration },
}

impl From<SourceError> for Failure {
    fn from(error: SourceError) -> Self {
        Self::Final(error)
    }
}

impl Failure {
    pub(super) fn temporary(cause: DownloadError) -> Self {
        Self::Temporary { cause, pause: Duration::ZERO }
    }

    /// Judges a failed exchange.
    pub(super) fn of_exchange(target: &Target, error: HttpError) -> Self {
        match error {
            HttpError::Url(_)
            | HttpError::BadRedirect { .. }
            | HttpError::TooManyRedirects { .. }
            | HttpError::ForeignRedirect { .. }
            | HttpError::BadHeader { .. } => Self::Final(target.fatal(error.into())),
            // A refused certificate stays refused, and so does a tunnel that a proxy does not give us; another URL of the
            // image may still do.
            error if error.is_certificate() => Self::Final(target.failed(1, error.into())),
            HttpError::ProxyRefused { status, .. } if !super::answer::is_temporary(status) => {
                Self::Final(target.failed(1, error.into()))
            }
            error => Self::temporary(error.into()),
        }
    }

    /// Judges an answer with the wrong status.
    pub(super) async fn of_status(target: &Target, response: Response, expected: StatusCode) -> Self {
        let status = response.status;
        let pause = pause_asked_for(&response).min(MAX_RETRY_AFTER);
        // A success that was not asked for holds the file; anything else may say what is wrong.
        let body = if status.is_success() {
            String::new()
        } else {
            // More is read than shown, so that a secret cut in two at the end is recognised all the same.
            let (url, start) = (response.url.clone(), response.text_start(4 * BODY_START_CHARS));
            // A page that trickles is not worth the wait.
            let start = tokio::time::timeout(target.options().timeout, start).await.unwrap_or_default();
            let body = target.scrub(&start, &url);
            let words = body.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
            words.collect::<Vec<_>>().join(" ").chars().take(BODY_START_CHARS).collect()
        };
        let cause = DownloadError::Status { url: target.shown().to_owned(), status, expected, body };
        if super::answer::is_temporary(status) {
            Self::Temporary { cause, pause }
        } else {
            Self::Final(target.fatal(cause))
        }
    }
}

/// What `Retry-After` says: seconds or a date (RFC 9110 section 10.2.3), by the server's own clock where it tells it.
fn pause_asked_for(response: &Response) -> Duration {
    let Some(value) = response.header(RETRY_AFTER) else { return Duration::ZERO };
    if let Ok(seconds) = value.parse() {
        return Duration::from_secs(seconds);
    }
    let date = |text| httpdate::parse_http_date(text).ok();
    let now = response.header(DATE).and_then(date).unwrap_or_else(SystemTime::now);
    date(value).and_then(|until| until.duration_since(now).ok()).unwrap_or_default()
}

/// The cause at the bottom, for a line of progress: the log has the address and the URL too.
fn innermost(error: &dyn Error) -> &dyn Error {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost
}

/// Counts tries.
#[derive(Debug)]
pub(super) struct Attempts {
    allowed: u32,
    made: u32,
    interval: Duration,
    arrived: u64,
}

impl Attempts {
    pub(super) fn new(target: &Target) -> Self {
        let options = target.options();
        let allowed = options.retries.saturating_add(1);
        Self { allowed, made: 1, interval: options.retry_interval, arrived: 0 }
    }

    /// Counts bytes of the file that arrived for the first time.
    pub(super) fn progress(&mut self, bytes: u64) {
        self.arrived += bytes;
    }

    /// Waits before the next try.
    ///
    /// # Errors
    /// There is no next try: the failure is final, the tries are used up, or the time is over.
    pub(super) async fn next(
        &mut self,
        target: &Target,
        failure: Failure,
        deadline: &Deadline,
    ) -> Result<(), SourceError> {
        let (cause, pause) = match failure {
            Failure::Final(error) => return Err(error),
            Failure::Unwanted => return Err(target.failed(self.made, DownloadError::NoRanges)),
            Failure::Temporary { cause, pause } => (cause, pause),
        };
        if self.arrived >= PROGRESS_BYTES {
            self.made = 1;
        }
        self.arrived = 0;
        if self.made >= self.allowed {
            return Err(target.failed(self.made, cause));
        }
        let pause = pause.max(self.interval);
        let (made, allowed, why) = (self.made, self.allowed, chain(&cause));
        target.progress().hold_up(format!("try {made} of {allowed}: {}", innermost(&cause)));
        tracing::warn!(
            "download of {}, try {made} of {allowed}: {why}; next try in {} s",
            target.shown(),
            pause.as_secs_f64()
        );
        self.made += 1;
        deadline.within(target, tokio::time::sleep(pause)).await
    }
}

/// End of the time for one file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline(Option<(Instant, Duration)>);

impl Deadline {
    /// The time begins with the work that the file is a part of.
    pub(super) fn new(target: &Target) -> Self {
        Self(target.options().max_duration.map(|limit| (target.began() + limit, limit)))
    }

    /// The result of some work, if it is there in time.
    pub(super) async fn within<T>(&self, target: &Target, work: impl Future<Output = T>) -> Result<T, SourceError> {
        match self.0 {
            None => Ok(work.await),
            Some((end, limit)) => tokio::time::timeout_at(end, work)
                .await
                .map_err(|_elapsed| SourceError::TimedOut { url: target.shown().to_owned(), limit }),
        }
    }
}
