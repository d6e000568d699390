//! Where an image comes from: what the pipeline asks of a download. The agent implements it over HTTP.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::io::{self, Read};
use std::time::{Duration, Instant};

use ferric_types::{ErrorClass, Progress, Secret};

/// An image file on a server, opened and known to be there.
pub trait ImageSource: Send {
    /// Size of the file in bytes, when the server says it.
    fn size_bytes(&self) -> Option<u64>;

    /// Whether any byte range can be asked for.
    fn has_ranges(&self) -> bool;

    /// The bytes from `offset` to the end, in order. Cut connections are resumed inside (Range + If-Range), so that an
    /// error is final: an `io::Error` of the reader holds a [`SourceError`], put there by [`SourceError::into_io`].
    /// `offset` other than 0 only when [`ImageSource::has_ranges`].
    ///
    /// # Errors
    /// Any [`SourceError`].
    fn stream(&mut self, offset: u64) -> Result<Box<dyn Read + Send + '_>, SourceError>;

    /// Exactly `buf.len()` bytes at `offset`: the metadata of an image. Only when [`ImageSource::has_ranges`].
    ///
    /// # Errors
    /// Any [`SourceError`].
    fn read_exact_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError>;
}

/// Opens downloads. Time limits, tries for each request and TLS settings are the implementation's.
pub trait Fetch: Send + Sync + fmt::Debug {
    /// Opens an image file.
    ///
    /// # Errors
    /// Any [`SourceError`].
    fn open(&self, request: &FetchRequest) -> Result<Box<dyn ImageSource>, SourceError>;

    /// A small file, such as a checksum list or a config drive, of at most `limit` bytes.
    ///
    /// # Errors
    /// Any [`SourceError`]; [`SourceError::TooLarge`] when the file is longer.
    fn get(&self, request: &FetchRequest, limit: u64) -> Result<Vec<u8>, SourceError>;
}

/// What to download and how to reach it. Printing it shows no secrets.
#[derive(Clone, Default)]
pub struct FetchRequest {
    /// `http` or `https` URL.
    pub url: String,
    /// Complete value of the `Authorization` header.
    pub authorization: Option<Secret<String>>,
    /// Proxy URL by scheme; empty means the environment's.
    pub proxies: BTreeMap<String, String>,
    /// Comma list of hosts to reach without a proxy.
    pub no_proxy: Option<String>,
    /// Take any certificate of the server, whatever the agent is set to.
    pub insecure: bool,
    /// When the work that this is a part of began: a limit for all of it counts from there, and else from this request.
    pub since: Option<Instant>,
    /// Whose phase is said to be held up while a try has failed and the next is to come.
    pub progress: Progress,
}

impl fmt::Debug for FetchRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let proxies: BTreeMap<&str, String> =
            self.proxies.iter().map(|(scheme, url)| (scheme.as_str(), redacted(url))).collect();
        f.debug_struct("FetchRequest")
            .field("url", &redacted(&self.url))
            .field("authorization", &self.authorization)
            .field("proxies", &proxies)
            .field("no_proxy", &self.no_proxy)
            .field("insecure", &self.insecure)
            .finish_non_exhaustive()
    }
}

/// Why a download failed. `url` never holds user information or a query ([`redacted`]).
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Trying again cannot help: a 4xx status other than 408 and 429, or content that is not what was asked for.
    #[error("downloading {url}")]
    Fatal {
        /// URL without secrets.
        url: String,
        /// Reason.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// Every try failed.
    #[error("downloading {url}, {tries} tries")]
    Failed {
        /// URL without secrets.
        url: String,
        /// How many tries were made.
        tries: u32,
        /// Reason of the last failure.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The download took longer than `image_download_max_duration` allows.
    #[error("Download exceeded max allowed time ({} seconds)", limit.as_secs())]
    TimedOut {
        /// URL without secrets.
        url: String,
        /// Limit.
        limit: Duration,
    },
    /// The server has another version of the file than the one that was begun.
    #[error("{url} changed on the server during the download")]
    Changed {
        /// URL without secrets.
        url: String,
    },
    /// A small file is longer than it may be.
    #[error("{url} is longer than {limit} bytes")]
    TooLarge {
        /// URL without secrets.
        url: String,
        /// Limit in bytes.
        limit: u64,
    },
}

impl SourceError {
    /// Class on the wire.
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::Fatal { .. } | Self::TooLarge { .. } => ErrorClass::ImageDownloadFatal,
            Self::Failed { .. } | Self::TimedOut { .. } | Self::Changed { .. } => ErrorClass::ImageDownload,
        }
    }

    /// How many tries were made.
    pub const fn tries(&self) -> u32 {
        match self {
            Self::Failed { tries, .. } => *tries,
            Self::Fatal { .. } | Self::TimedOut { .. } | Self::Changed { .. } | Self::TooLarge { .. } => 1,
        }
    }

    /// Wraps the error for a reader.
    pub fn into_io(self) -> io::Error {
        io::Error::other(self)
    }

    /// The error inside one that [`SourceError::into_io`] made; `Err` gives any other error back.
    ///
    /// # Errors
    /// The error itself when it holds no [`SourceError`].
    pub fn from_io(error: io::Error) -> Result<Self, io::Error> {
        error.downcast::<Self>()
    }
}

/// A URL as it may be shown: without user information and query, which may hold secrets.
pub fn redacted(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_once('/').map_or((rest, None), |(authority, path)| (authority, Some(path)));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    path.map_or_else(|| format!("{scheme}://{host}"), |path| format!("{scheme}://{host}/{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_urls_hold_no_secrets() {
        for (url, want) in [
            ("http://user:pw@host:8080/a/b.img?sig=secret#x", "http://host:8080/a/b.img"),
            ("https://host/a@b/c", "https://host/a@b/c"),
            ("https://host", "https://host"),
            ("http://a@b@host/x", "http://host/x"),
            ("no url?q=1", "no url"),
        ] {
            assert_eq!(redacted(url), want, "{url}");
        }
        let request = FetchRequest {
            url: "http://user:pw-1@host/a?sig=pw-2".to_owned(),
            authorization: Some(Secret::new("Bearer pw-3".to_owned())),
            proxies: BTreeMap::from([("http".to_owned(), "http://user:pw-4@proxy:3128".to_owned())]),
            ..FetchRequest::default()
        };
        let shown = format!("{request:?}");
        assert!(shown.contains("http://host/a") && shown.contains("http://proxy:3128"), "{shown}");
        assert!(!shown.contains("pw-"), "{shown}");
    }

    #[test]
    fn a_source_error_survives_the_way_through_a_reader() {
        let error = SourceError::Changed { url: "http://h/i".to_owned() }.into_io();
        assert!(matches!(SourceError::from_io(error), Ok(SourceError::Changed { .. })));
        let other = SourceError::from_io(io::Error::other("x"));
        assert_eq!(other.unwrap_err().to_string(), "x");
    }
}
