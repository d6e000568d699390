//! From `image_info` to a written disk: credentials, checksum, URLs in turn, and trying again (deploy section 3).

use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferric_sys::block_dev::BlockDev;
use ferric_types::error::chain;
use ferric_types::{ErrorClass, ImageInfo, Progress, Secret};

use super::checksum;
use super::error::ImageError;
use super::format::Format;
use super::place::Place;
use super::source::{Fetch, FetchRequest, ImageSource, redacted};
use super::write::{ImageSpec, WriteReport, write_to};

/// How often a whole download is tried.
///
/// As in the reference agent this is the outer of two counts. Within each of these tries every connection is tried as
/// often as [`Fetch`] sees fit, and the agent sets both from the same options: 10 tries by default, so that a server that
/// does not answer is asked 100 times over a quarter of an hour (10 times 9 pauses and 9 pauses of 10 s). The log has the sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Tries in all; at least one is made.
    pub tries: u32,
    /// Pause between them.
    pub interval: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { tries: 10, interval: Duration::from_secs(10) }
    }
}

/// Log-in to the image server, for images whose `image_info` says nothing about it.
#[derive(Debug, Clone, Default)]
pub struct ServerAuth {
    /// `noauth` or `http_basic`.
    pub strategy: Option<String>,
    /// User for `http_basic`.
    pub user: Option<String>,
    /// Password for `http_basic`.
    pub password: Option<Secret<String>>,
}

/// What the agent's configuration says about images.
#[derive(Debug, Clone)]
pub struct ImageOptions {
    /// Formats that may be written.
    pub permitted_formats: Vec<Format>,
    /// Whether the content is judged beyond its signature.
    pub deep_inspection: bool,
    /// Whether MD5 digests in `checksum` are accepted.
    pub md5_enabled: bool,
    /// Log-in to the image server.
    pub auth: ServerAuth,
    /// How often a whole download is tried.
    pub retry: RetryPolicy,
    /// Memory that may be used to unpack a compressed file, in bytes.
    pub unpack_bytes: u64,
    /// Whether what was written is read back from the disk and compared.
    pub read_back: bool,
}

/// Downloads the image that `info` describes and writes it to a disk. A download that fails or has the wrong checksum is
/// begun again from the next URL, with its checksum file, as often as the options say.
///
/// # Errors
/// Any [`ImageError`], of the last try.
pub fn deploy_image(
    info: &ImageInfo,
    fetch: &dyn Fetch,
    device: &BlockDev,
    options: &ImageOptions,
    progress: &Progress,
) -> Result<WriteReport, ImageError> {
    deploy_to(info, fetch, device, Place::Disk, options, progress)
}

/// [`deploy_image`] into any place.
///
/// # Errors
/// As for [`deploy_image`]; [`ImageError::NestedTable`], [`ImageError::Place`].
pub fn deploy_to(
    info: &ImageInfo,
    fetch: &dyn Fetch,
    device: &BlockDev,
    place: Place<'_>,
    options: &ImageOptions,
    progress: &Progress,
) -> Result<WriteReport, ImageError> {
    let mut requests = requests(info, &options.auth)?;
    let (began, of) = (Instant::now(), options.retry.tries.max(1));
    for request in &mut requests {
        request.progress = progress.clone();
        request.since = Some(began);
    }
    let (mut tries, mut connections) = (1, 0_u32);
    // The first request is what reaches the server of checksums, too.
    let template = requests.first().cloned().unwrap_or_default();
    loop {
        progress.phase(opening(tries, of), None);
        let error = match attempt(info, (&template, &mut requests), fetch, (device, place), options, progress) {
            Err(error) if error.is_worth_another_try() => error,
            result => return result,
        };
        connections = connections.saturating_add(error.connection_tries());
        let (image, seconds, reason) = (info.id(), began.elapsed().as_secs(), chain(&error));
        if tries >= of {
            let text = "image was not written and all tries of the whole download are used up";
            tracing::error!(image, tries, of, connections, seconds, error = reason, "{text}");
            return Err(error);
        }
        let text = "image was not written, the whole download begins again, and with it the tries of each connection";
        tracing::warn!(image, tries, of, connections, seconds, error = reason, "{text}");
        progress.hold_up(format!("download {tries} of {of} failed: {reason}"));
        tries += 1;
        std::thread::sleep(options.retry.interval);
    }
}

/// The phase before the first byte of an image, for the `number`th download of it.
fn opening(number: u32, of: u32) -> String {
    if number == 1 {
        "opening the image".to_owned()
    } else {
        format!("opening the image for download {number} of {of}")
    }
}

fn attempt(
    info: &ImageInfo,
    (template, requests): (&FetchRequest, &mut [FetchRequest]),
    fetch: &dyn Fetch,
    (device, place): (&BlockDev, Place<'_>),
    options: &ImageOptions,
    progress: &Progress,
) -> Result<WriteReport, ImageError> {
    let checksum = checksum::resolve(info, fetch, template, options.md5_enabled)?;
    let spec = ImageSpec {
        id: info.id().to_owned(),
        disk_format: info.disk_format.clone(),
        checksum,
        permitted_formats: options.permitted_formats.clone(),
        deep_inspection: options.deep_inspection,
        unpack_bytes: options.unpack_bytes,
        read_back: options.read_back,
    };
    let (mut source, opened) = open_first(info.id(), requests, fetch)?;
    // Should this one break, or give other bytes, the next try begins with the one behind it.
    requests.rotate_left(opened + 1);
    write_to(source.as_mut(), &spec, device, place, progress)
}

/// The first URL that answers, and its place; one that refuses for good ends the search.
fn open_first(
    id: &str,
    requests: &[FetchRequest],
    fetch: &dyn Fetch,
) -> Result<(Box<dyn ImageSource>, usize), ImageError> {
    let (mut failures, mut tries) = (Vec::new(), 0_u32);
    for (place, request) in requests.iter().enumerate() {
        let began = Instant::now();
        match fetch.open(request) {
            Ok(source) => return Ok((source, place)),
            Err(source) if requests.len() == 1 || source.class() == ErrorClass::ImageDownloadFatal => {
                return Err(ImageError::Download { id: id.to_owned(), source });
            }
            Err(error) => {
                tries = tries.saturating_add(error.tries());
                failures.push(format!(
                    "URL: {}; time: {:.1} seconds. Error: {}",
                    redacted(&request.url),
                    began.elapsed().as_secs_f64(),
                    chain(&error)
                ));
            }
        }
    }
    Err(ImageError::AllUrls { id: id.to_owned(), failures, tries })
}

/// One request for each URL of an image, with the right credentials.
///
/// # Errors
/// [`ImageError::Credentials`].
pub fn requests(info: &ImageInfo, auth: &ServerAuth) -> Result<Vec<FetchRequest>, ImageError> {
    let authorization =
        authorization(info, auth).map_err(|reason| ImageError::Credentials { id: info.id().to_owned(), reason })?;
    let request = |url: &String| FetchRequest {
        url: url.clone(),
        authorization: authorization.clone(),
        proxies: info.proxies.clone().unwrap_or_default(),
        no_proxy: info.no_proxy.clone(),
        insecure: false,
        since: None,
        progress: Progress::new(),
    };
    Ok(info.urls.iter().flatten().map(request).collect())
}

/// The `Authorization` header: a complete one first, then the image's own log-in, then the configured one.
fn authorization(info: &ImageInfo, auth: &ServerAuth) -> Result<Option<Secret<String>>, String> {
    if let Some(encoded) = &info.image_request_authorization {
        let header = STANDARD.decode(encoded.expose().trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let header = header.ok_or("image_request_authorization is not base64 of a header")?;
        // `echo` ends a line, which a header must not.
        return Ok(Some(Secret::new(header.trim().to_owned())));
    }
    let own = ServerAuth {
        strategy: info.image_server_auth_strategy.clone(),
        user: info.image_server_user.clone(),
        password: info.image_server_password.clone(),
    };
    let chosen = if own.strategy.as_deref().is_some_and(|strategy| !strategy.is_empty()) { &own } else { auth };
    if !chosen.strategy.as_deref().is_some_and(|strategy| strategy.eq_ignore_ascii_case("http_basic")) {
        return Ok(None);
    }
    let user = chosen.user.as_deref().filter(|user| !user.is_empty());
    let password = chosen.password.as_ref().filter(|password| !password.expose().is_empty());
    if let (Some(user), Some(password)) = (user, password) {
        let value = STANDARD.encode(format!("{user}:{}", password.expose()));
        return Ok(Some(Secret::new(format!("Basic {value}"))));
    }
    let missing = [(user.is_none(), "'user'"), (password.is_none(), "'password'")];
    let missing: Vec<&str> = missing.iter().filter(|(missing, _)| *missing).map(|(_, name)| *name).collect();
    Err(format!("Missing [{}] fields from HTTP(S) basic auth config", missing.join(", ")))
}

#[cfg(test)]
mod tests;
