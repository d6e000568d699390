//! Downloads for blocking code: image files, checksum lists, config drives.
//!
//! The transfer runs as a task of the tokio runtime; the blocking side takes pieces from a bounded channel, so that a
//! slow disk slows the server down instead of filling memory. Rules:
//!
//! * **Retries.** Connection errors, cuts and the statuses 408, 429 and 5xx are tried again
//!   `image_download_connection_retries` times, `image_download_connection_retry_interval` apart (longer when the
//!   server says `Retry-After`, in seconds or as a date). Each mebibyte received starts the count afresh: a large image over a bad line may be
//!   cut more often than that. Other statuses, refused certificates and tunnels that a proxy refuses are final at once.
//! * **Resume.** A cut transfer goes on with `Range` and `If-Range`. The server's answer must be of the same file:
//!   same size, `ETag` and `Last-Modified`, as far as it gives them. When it answers with the whole file instead, the
//!   bytes already delivered are read again and thrown away, after their CRC has been compared: a file that differs is
//!   noticed even when the server gives no validator. The checksum of the image is the caller's and goes on as if
//!   nothing had happened.
//! * **Silence and trickle.** No byte for `image_download_connection_timeout` counts as a cut. So does a transfer that
//!   delivers less than [`MIN_BYTES`] in [`RATE_WINDOW`] of waiting for the network; time in which the disk is the
//!   slower side does not count. Small files, parts and error pages are under the same rules, and a header may take five
//!   times the limit on silence, redirects included.
//! * **Total.** `image_download_max_duration` is wall-clock time from the first try at the image, its checksum list and further
//!   tries included.
//! * Content is asked for and delivered as it is stored (`Accept-Encoding: identity`).

mod answer;
mod body;
mod rate;
mod retry;
mod source;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use ferric_disk::image::source::{Fetch, FetchRequest, ImageSource, SourceError};
use tokio::runtime::Handle;

pub use self::rate::{MIN_BYTES, RATE_WINDOW};
pub use self::retry::DownloadError;

use self::retry::{Attempts, Deadline};
use self::source::{HttpSource, Target};
use super::{Client, ClientError, HttpOptions};
use crate::config::Config;

/// Limits of downloads.
#[derive(Debug, Clone)]
pub struct DownloadOptions {
    /// Longest wait without progress.
    pub timeout: Duration,
    /// Further tries after a failed one.
    pub retries: u32,
    /// Pause between tries.
    pub retry_interval: Duration,
    /// Longest time for one file.
    pub max_duration: Option<Duration>,
    /// Waiting time over which the rate is judged.
    pub rate_window: Duration,
    /// Bytes that must arrive in that time.
    pub min_bytes: u64,
}

impl DownloadOptions {
    /// The settings of the agent.
    pub fn from_config(config: &Config) -> Self {
        Self {
            timeout: config.image_download_connection_timeout,
            retries: config.image_download_connection_retries,
            retry_interval: config.image_download_connection_retry_interval,
            max_duration: config.image_download_max_duration.filter(|limit| !limit.is_zero()),
            rate_window: RATE_WINDOW,
            min_bytes: MIN_BYTES,
        }
    }
}

/// Downloads over HTTP; its methods block and must be called from a thread that is not the runtime's own.
#[derive(Debug, Clone)]
pub struct Downloader {
    client: Client,
    options: Arc<DownloadOptions>,
    runtime: Handle,
}

impl Downloader {
    /// A downloader with the agent's settings, working on the given runtime.
    pub fn new(config: &Config, runtime: Handle) -> Result<Self, ClientError> {
        let client = Client::with_options(&HttpOptions::from_config(config))?;
        Ok(Self::with_options(client, DownloadOptions::from_config(config), runtime))
    }

    /// A downloader that uses a client and limits of the caller's.
    pub fn with_options(client: Client, options: DownloadOptions, runtime: Handle) -> Self {
        let client = client.with_timeout(options.timeout);
        Self { client, options: Arc::new(options), runtime }
    }

    fn target(&self, request: &FetchRequest) -> Result<Target, SourceError> {
        Target::new(self.client.clone(), Arc::clone(&self.options), request)
    }
}

impl Fetch for Downloader {
    fn open(&self, request: &FetchRequest) -> Result<Box<dyn ImageSource>, SourceError> {
        let target = self.target(request)?;
        let source = self.runtime.block_on(HttpSource::open(target, self.runtime.clone()))?;
        Ok(Box::new(source))
    }

    fn get(&self, request: &FetchRequest, limit: u64) -> Result<Vec<u8>, SourceError> {
        let target = self.target(request)?;
        self.runtime.block_on(async {
            let deadline = Deadline::new(&target);
            let mut attempts = Attempts::new(&target);
            loop {
                match deadline.within(&target, target.get_small(limit)).await? {
                    Ok(bytes) => return Ok(bytes),
                    Err(failure) => attempts.next(&target, failure, &deadline).await?,
                }
            }
        })
    }
}
