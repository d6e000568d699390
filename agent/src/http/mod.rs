//! HTTP/1.1 client for the conductor, for images and for everything else the agent fetches.
//!
//! One [`Client`] holds TLS settings, proxies and a small pool of idle connections. It follows redirects, limits every
//! wait by progress (and by total time where a request asks for that), and never shows credentials or queries of a URL in errors and logs.
//! A thin layer over hyper rather than a full client library, because resuming a download needs the header of each
//! answer before its body, and because the binary is downloaded at every boot.

mod activity;
pub mod auth;
mod connect;
pub mod download;
pub mod error;
mod pool;
pub mod proxy;
mod redirect;
mod response;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
pub mod url;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, HOST, PROXY_AUTHORIZATION, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use http_body_util::Full;
use rustls::ClientConfig;
use tokio::time::Instant;

pub use self::error::HttpError;
pub use self::proxy::Proxies;
pub use self::redirect::MAX_REDIRECTS;
pub use self::response::Response;
pub use self::url::{Origin, Scheme, Url, UrlError, redact};

use self::connect::{Connection, Route};
use self::pool::{Key, Pool};
use self::redirect::Hop;
use self::response::Lease;
use crate::config::Config;
use crate::tls::{self, TlsError, TlsOptions};

/// Body of a redirect answer that is read in order to keep the connection, in bytes.
const REDIRECT_BODY_BYTES: usize = 16 * 1024;

/// What a small exchange may take in all, unless single waits may take longer.
const SMALL_EXCHANGE: Duration = Duration::from_secs(60);

/// The client cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A certificate or key file cannot be used.
    #[error("setting up TLS towards servers")]
    Tls(#[source] TlsError),
}

/// What a [`Client`] needs to know.
#[derive(Debug, Clone)]
pub struct HttpOptions {
    /// Certificates, versions and cipher suites.
    pub tls: TlsOptions,
    /// Proxies of the environment.
    pub proxies: Proxies,
    /// Longest wait without progress: for a connection, for an answer, and for each piece of a body.
    pub timeout: Duration,
}

/// HTTP client; clones share the connections.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
    timeout: Duration,
}

#[derive(Debug)]
struct Inner {
    verified: Arc<ClientConfig>,
    unverified: Arc<ClientConfig>,
    proxies: Proxies,
    pool: Arc<Pool>,
}

/// A request to be sent with [`Client::send`].
#[derive(Debug, Clone)]
pub struct Request {
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Bytes,
    proxies: Option<Proxies>,
    verify: bool,
    one_origin: bool,
    total: Option<Duration>,
}

impl Request {
    /// A `GET` of a URL.
    pub fn get(url: Url) -> Self {
        Self {
            method: Method::GET,
            url,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            proxies: None,
            verify: true,
            one_origin: false,
            total: None,
        }
    }

    /// A `POST` of a body to a URL.
    pub fn post(url: Url, body: Bytes) -> Self {
        Self { method: Method::POST, body, ..Self::get(url) }
    }

    /// Adds a header field.
    ///
    /// # Errors
    /// The value holds characters that HTTP does not allow.
    pub fn header(mut self, name: HeaderName, value: &str) -> Result<Self, HttpError> {
        let mut parsed = HeaderValue::from_str(value).map_err(|source| HttpError::BadHeader {
            name: "request",
            url: self.url.clone(),
            source: source.into(),
        })?;
        parsed.set_sensitive(name == AUTHORIZATION);
        self.headers.insert(name, parsed);
        Ok(self)
    }

    /// Proxies of this request; gaps are filled from the environment.
    #[must_use]
    pub fn proxies(mut self, proxies: Proxies) -> Self {
        self.proxies = Some(proxies);
        self
    }

    /// Accepts any certificate: for asking whether a server can be reached, or where whoever asks has said so.
    #[must_use]
    pub fn unverified(mut self) -> Self {
        self.verify = false;
        self
    }

    /// Refuses redirects to other servers, for a body that holds a secret.
    #[must_use]
    pub fn to_one_origin(mut self) -> Self {
        self.one_origin = true;
        self
    }

    /// Limits the whole exchange, from connecting to the end of the answer's body: a server that sends a byte now and
    /// then makes progress and would hold the client for days.
    #[must_use]
    pub fn within(mut self, total: Duration) -> Self {
        self.total = Some(total);
        self
    }
}

impl HttpOptions {
    /// The settings of the agent; unusable proxy URLs are left out with a warning.
    pub fn from_config(config: &Config) -> Self {
        let variables = |name: &str| match name {
            "http_proxy" => config.http_proxy.as_ref().map(|url| url.expose().clone()),
            "https_proxy" => config.https_proxy.as_ref().map(|url| url.expose().clone()),
            "no_proxy" => config.no_proxy.clone(),
            _ => None,
        };
        let (proxies, bad) = Proxies::from_variables(variables);
        for error in bad {
            tracing::warn!("a proxy setting is left out: {error}");
        }
        Self { tls: TlsOptions::from_config(config), proxies, timeout: config.http_request_timeout }
    }
}

impl Client {
    /// A client with the agent's settings.
    pub fn new(config: &Config) -> Result<Self, ClientError> {
        Self::with_options(&HttpOptions::from_config(config))
    }

    /// A client with the given settings.
    pub fn with_options(options: &HttpOptions) -> Result<Self, ClientError> {
        let verified = tls::client_config(&options.tls).map_err(ClientError::Tls)?;
        let insecure = TlsOptions { insecure: true, ..options.tls.clone() };
        let unverified = tls::client_config(&insecure).map_err(ClientError::Tls)?;
        let inner = Inner { verified, unverified, proxies: options.proxies.clone(), pool: Arc::new(Pool::default()) };
        Ok(Self { inner: Arc::new(inner), timeout: options.timeout })
    }

    /// The same client with another longest wait without progress.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { inner: Arc::clone(&self.inner), timeout }
    }

    /// Longest wait without progress.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// What a request with a small answer may take in all, for [`Request::within`]: a minute, or twice the longest wait
    /// without progress.
    pub fn small_exchange(&self) -> Duration {
        SMALL_EXCHANGE.max(self.timeout.saturating_mul(2))
    }

    /// The addresses of a URL's host.
    pub async fn addresses(&self, url: &Url) -> Result<Vec<IpAddr>, HttpError> {
        tokio::time::timeout(self.timeout, connect::addresses(url)).await.unwrap_or_else(|_elapsed| {
            Err(HttpError::ConnectTimeout { peer: url.origin().host_port(), url: url.clone(), limit: self.timeout })
        })
    }

    /// Sends a request, follows redirects, and returns the answer with its body still to be read.
    pub async fn send(&self, request: Request) -> Result<Response, HttpError> {
        let Some(limit) = request.total else { return self.follow(request).await };
        let (url, end) = (request.url.clone(), Instant::now() + limit);
        match tokio::time::timeout_at(end, self.follow(request)).await {
            Ok(answer) => answer.map(|answer| Response { total: Some((end, limit)), ..answer }),
            Err(_elapsed) => Err(HttpError::TotalTimeout { url, limit }),
        }
    }

    async fn follow(&self, request: Request) -> Result<Response, HttpError> {
        let proxies = request.proxies.map(|own| own.over(&self.inner.proxies));
        let proxies = proxies.as_ref().unwrap_or(&self.inner.proxies);
        let Request { method, url, headers, body, verify, one_origin, .. } = request;
        let first = url.clone();
        let mut hop = Hop { method, url, headers, body, one_origin };
        for _ in 0..=MAX_REDIRECTS {
            let answer = self.exchange(&hop, proxies, verify).await?;
            let Some(following) = redirect::next(&hop, answer.status, &answer.headers)? else { return Ok(answer) };
            if (hop.url.scheme(), following.url.scheme()) == (Scheme::Https, Scheme::Http) {
                tracing::warn!("{} redirects from TLS to plain HTTP: {}", hop.url, following.url);
            } else {
                tracing::debug!("{} redirects to {}", hop.url, following.url);
            }
            answer.finish(REDIRECT_BODY_BYTES).await;
            hop = following;
        }
        Err(HttpError::TooManyRedirects { url: first, limit: MAX_REDIRECTS })
    }

    /// One request and its answer.
    async fn exchange(&self, hop: &Hop, proxies: &Proxies, verify: bool) -> Result<Response, HttpError> {
        let proxy = proxies.select(&hop.url);
        let key = Key {
            origin: hop.url.origin().clone(),
            proxy: proxy.map(|proxy| proxy.origin().clone()),
            verified: verify,
        };
        if let Some(connection) = self.inner.pool.take(&key).await {
            match self.exchange_on(connection, &key, hop, proxy).await {
                // The server closed the connection while it was idle; nothing of an answer was seen.
                Err(HttpError::Exchange { source, .. }) if may_repeat(&hop.method, &source) => {}
                other => return other,
            }
        }
        let tls = if verify { &self.inner.verified } else { &self.inner.unverified };
        let connection = Route { url: &hop.url, proxy, tls, limit: self.timeout }.open().await?;
        self.exchange_on(connection, &key, hop, proxy).await
    }

    async fn exchange_on(
        &self,
        mut connection: Connection,
        key: &Key,
        hop: &Hop,
        proxy: Option<&Url>,
    ) -> Result<Response, HttpError> {
        let url = &hop.url;
        let request = wire_request(hop, proxy).map_err(|source| HttpError::BadHeader {
            name: "Host",
            url: url.clone(),
            source,
        })?;
        let answer = connection
            .activity
            .clone()
            .watch(self.timeout, connection.sender.send_request(request))
            .await
            .ok_or_else(|| HttpError::AnswerTimeout { url: url.clone(), limit: self.timeout })?
            .map_err(|source| HttpError::Exchange { url: url.clone(), source })?;
        let (parts, body) = answer.into_parts();
        Ok(Response {
            status: parts.status,
            headers: parts.headers,
            url: url.clone(),
            peer: connection.peer,
            body,
            limit: self.timeout,
            total: None,
            lease: Some(Lease { key: key.clone(), connection, pool: Arc::clone(&self.inner.pool) }),
        })
    }
}

/// Whether a request that failed on a used connection may be sent once more on a fresh one: always when it was not
/// sent, and for methods without effect when the connection ended before an answer.
fn may_repeat(method: &Method, error: &hyper::Error) -> bool {
    error.is_canceled() || (method.is_idempotent() && (error.is_incomplete_message() || error.is_closed()))
}

fn wire_request(hop: &Hop, proxy: Option<&Url>) -> Result<http::Request<Full<Bytes>>, http::Error> {
    let plain_proxy = proxy.filter(|_| hop.url.scheme() == Scheme::Http);
    let target = if plain_proxy.is_some() { hop.url.absolute_form() } else { hop.url.target().to_owned() };
    let mut request = http::Request::builder()
        .method(hop.method.clone())
        .uri(target)
        .header(HOST, hop.url.origin().host_header())
        .body(Full::new(hop.body.clone()))?;
    let headers = request.headers_mut();
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("ferric-agent/", env!("CARGO_PKG_VERSION"))));
    headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
    let credentials = |url: &Url| -> Result<Option<HeaderValue>, http::Error> {
        let Some((user, password)) = url.credentials() else { return Ok(None) };
        let mut value = HeaderValue::from_str(auth::basic(user.expose(), password.expose()).expose())?;
        value.set_sensitive(true);
        Ok(Some(value))
    };
    if let Some(value) = credentials(&hop.url)? {
        headers.insert(AUTHORIZATION, value);
    }
    if let Some(value) = plain_proxy.map(credentials).transpose()?.flatten() {
        headers.insert(PROXY_AUTHORIZATION, value);
    }
    // What the caller asked for wins, also over credentials in the URL.
    headers.extend(hop.headers.clone());
    Ok(request)
}
