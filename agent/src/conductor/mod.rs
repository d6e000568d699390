//! Client of the conductor: version discovery, lookup, heartbeat and inspection data, as an unmodified Ironic expects
//! them (protocol sections 6 to 9).

mod backoff;
mod call;
mod error;
mod fault;
pub mod heartbeat;
pub mod inspection;
pub mod lookup;
#[cfg(test)]
mod tests;
pub mod token;
mod version;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use ferric_types::heartbeat::Heartbeat;
use ferric_types::lookup::LookupAnswer;
use ferric_types::{MacAddress, Secret};
use http::{HeaderName, Method, StatusCode};
use tokio::time::Instant;

pub use self::error::ConductorError;
pub use self::heartbeat::{Force, Heartbeater};
pub use self::version::{ApiVersion, ParseVersionError};

use self::call::Answer;
use self::version::Discovery;
use crate::config::Config;
use crate::http::{Client, HttpError, Request, Url};

/// What calls are called in messages.
const DISCOVERY: &str = "asking for the API version";
const LOOKUP: &str = "lookup";
const HEARTBEAT: &str = "heartbeat";

/// Name of the header that carries the version of the API a request is made for.
const VERSION_HEADER: HeaderName = HeaderName::from_static("x-openstack-ironic-api-version");

/// What a [`Conductor`] needs to know.
#[derive(Debug, Clone)]
pub struct ConductorOptions {
    /// Roots of the API, in order of preference.
    pub urls: Vec<Url>,
    /// Sent with every call.
    pub request_id: Option<String>,
    /// Version to assume instead of asking.
    pub api_version: Option<ApiVersion>,
    /// How long lookups are repeated.
    pub lookup_timeout: Duration,
    /// Shortest pause between two lookups.
    pub lookup_interval: Duration,
}

impl ConductorOptions {
    /// The agent's settings. URLs that cannot be used are left out with a warning.
    ///
    /// # Errors
    /// No URL is left.
    pub fn from_config(config: &Config) -> Result<Self, ConductorError> {
        let mut urls = Vec::new();
        let mut problem = ConductorError::NoUrl;
        for text in &config.api_urls {
            match text.parse::<Url>() {
                Ok(url) => urls.push(url),
                Err(error) => {
                    tracing::error!("a URL of the conductor is left out: {error}");
                    problem = error.into();
                }
            }
        }
        if urls.is_empty() {
            return Err(problem);
        }
        let api_version = config.ironic_api_version.as_deref().and_then(|text| {
            text.parse().inspect_err(|error: &ParseVersionError| tracing::warn!("{error}: asking the conductor")).ok()
        });
        Ok(Self {
            urls,
            request_id: config.global_request_id.clone(),
            api_version,
            lookup_timeout: config.lookup_timeout,
            lookup_interval: config.lookup_interval,
        })
    }
}

/// The clock of the conductor as its last answer showed it.
#[derive(Debug, Clone, Copy)]
pub struct ServerDate {
    /// `Date` of the answer, in whole seconds.
    pub date: SystemTime,
    /// When the answer came.
    pub received: Instant,
}

impl ServerDate {
    /// The conductor's clock by now.
    pub fn now(&self) -> SystemTime {
        self.date + self.received.elapsed()
    }
}

/// What every heartbeat announces; constant for one boot.
#[derive(Debug, Clone)]
pub struct Announcement {
    /// Node of this machine.
    pub node_uuid: String,
    /// Where the conductor reaches the agent.
    pub callback_url: String,
    /// Token from the lookup.
    pub agent_token: Option<Secret<String>>,
    /// Version of the agent.
    pub agent_version: String,
    /// The agent's own certificate, when it made one.
    pub agent_verify_ca: Option<String>,
}

impl Announcement {
    /// The body for an API version; Ironic refuses keys that a version does not know.
    pub fn body(&self, version: ApiVersion) -> Heartbeat {
        Heartbeat {
            callback_url: self.callback_url.clone(),
            agent_token: (version >= ApiVersion::TOKEN).then(|| self.agent_token.clone()),
            agent_version: (version >= ApiVersion::AGENT_VERSION).then(|| self.agent_version.clone()),
            agent_verify_ca: self.agent_verify_ca.clone().filter(|_| version >= ApiVersion::VERIFY_CA),
        }
    }
}

/// The conductor as seen from the agent.
#[derive(Debug)]
pub struct Conductor {
    client: Client,
    options: ConductorOptions,
    /// The URL that answered last comes first.
    urls: Mutex<Vec<Url>>,
    version: Mutex<Option<ApiVersion>>,
    date: Mutex<Option<ServerDate>>,
    /// What one call may take at one URL, in all.
    call_limit: Duration,
}

impl Conductor {
    /// The conductor of the agent's settings.
    ///
    /// # Errors
    /// No usable URL is configured.
    pub fn new(client: Client, config: &Config) -> Result<Self, ConductorError> {
        Ok(Self::with_options(client, ConductorOptions::from_config(config)?))
    }

    /// A conductor with the given settings.
    pub fn with_options(client: Client, options: ConductorOptions) -> Self {
        let urls = Mutex::new(options.urls.clone());
        let call_limit = client.small_exchange();
        Self { client, options, urls, version: Mutex::new(None), date: Mutex::new(None), call_limit }
    }

    /// Roots of the API as configured.
    pub fn urls(&self) -> &[Url] {
        &self.options.urls
    }

    /// The client the conductor is called with.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The conductor's clock, from the `Date` header of its last answer.
    pub fn last_server_date(&self) -> Option<ServerDate> {
        *lock(&self.date)
    }

    /// Version of the conductor's API: configured, or asked for once. When asking fails, 1.31 is assumed and the next
    /// call asks again.
    pub async fn version(&self) -> ApiVersion {
        let known = self.options.api_version.or(*lock(&self.version));
        if let Some(version) = known {
            return version;
        }
        match self.discover().await {
            Ok(version) => {
                tracing::info!("the conductor offers API version {version}");
                *lock(&self.version) = Some(version);
                version
            }
            Err(error) => {
                tracing::warn!("{}; assuming version {}", error.explain(), ApiVersion::FALLBACK);
                ApiVersion::FALLBACK
            }
        }
    }

    async fn discover(&self) -> Result<ApiVersion, ConductorError> {
        let answer = self.call(DISCOVERY, |root| self.request(Method::GET, root.with_path("/"), None, None)).await?;
        answer.expect_status(DISCOVERY, StatusCode::OK)?;
        serde_json::from_slice::<Discovery>(&answer.body)
            .ok()
            .and_then(|discovery| discovery.default_version.version.parse().ok())
            .ok_or_else(|| answer.bad(DISCOVERY, "holds no API version"))
    }

    /// One lookup by addresses and, once it is known, the node's UUID.
    ///
    /// # Errors
    /// The conductor cannot be reached, refuses (see [`ConductorError::status`]) or answers nonsense.
    pub async fn lookup_once(
        &self,
        addresses: &[MacAddress],
        node_uuid: Option<&str>,
    ) -> Result<LookupAnswer, ConductorError> {
        let version = self.version().await.min(ApiVersion::TOKEN);
        let addresses = addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let mut query = vec![("addresses", addresses.as_str())];
        query.extend(node_uuid.map(|uuid| ("node_uuid", uuid)));
        let build = |root: &Url| {
            let url = root.with_path("/v1/lookup").with_query(&query);
            self.request(Method::GET, url, Some(version), None)
        };
        let answer = self.call(LOOKUP, build).await?;
        answer.expect_status(LOOKUP, StatusCode::OK)?;
        lookup::read(&answer.body).map_err(|problem| answer.bad(LOOKUP, problem))
    }

    /// Looks the node up until it is found or `lookup_timeout` has passed.
    ///
    /// # Errors
    /// [`ConductorError::LookupTimedOut`] with the last error inside.
    pub async fn lookup(
        &self,
        addresses: &[MacAddress],
        node_uuid: Option<&str>,
    ) -> Result<LookupAnswer, ConductorError> {
        let limits = lookup::Limits { timeout: self.options.lookup_timeout, interval: self.options.lookup_interval };
        let attempt = || self.lookup_once(addresses, node_uuid);
        lookup::until_found(limits, fastrand::Rng::new(), attempt).await
    }

    /// Sends one heartbeat.
    ///
    /// # Errors
    /// The conductor cannot be reached or answers anything but 202.
    pub async fn heartbeat(&self, announcement: &Announcement) -> Result<(), ConductorError> {
        let version = self.version().await.min(ApiVersion::VERIFY_CA);
        let body = serde_json::to_vec(&announcement.body(version)).map(Bytes::from).unwrap_or_default();
        let path = format!("/v1/heartbeat/{}", announcement.node_uuid);
        let build = |root: &Url| self.request(Method::POST, root.with_path(&path), Some(version), Some(body.clone()));
        self.call(HEARTBEAT, build).await?.expect_status(HEARTBEAT, StatusCode::ACCEPTED)
    }

    fn request(
        &self,
        method: Method,
        url: Url,
        version: Option<ApiVersion>,
        body: Option<Bytes>,
    ) -> Result<Request, HttpError> {
        let request = match method {
            // A heartbeat, and the token in it is for the conductor alone.
            Method::POST => Request::post(url, body.unwrap_or_default()).to_one_origin(),
            _ => Request::get(url),
        };
        let request = request.within(self.call_limit);
        let request = call::json_headers(request, self.options.request_id.as_deref())?;
        match version {
            Some(version) => request.header(VERSION_HEADER, &version.to_string()),
            None => Ok(request),
        }
    }

    /// Sends a request to the first URL that answers at all, which then comes first next time.
    async fn call(
        &self,
        what: &'static str,
        build: impl Fn(&Url) -> Result<Request, HttpError>,
    ) -> Result<Answer, ConductorError> {
        let urls = lock(&self.urls).clone();
        let mut last = None;
        for root in &urls {
            if let Some(error) = last.take() {
                let error: HttpError = error;
                tracing::warn!("{what}: {}; trying {root}", error.explain());
            }
            let sent = async { Answer::read(root, self.client.send(build(root)?).await?).await };
            match sent.await {
                Ok(answer) => {
                    self.put_first(root);
                    if let Some(date) = answer.date {
                        *lock(&self.date) = Some(ServerDate { date, received: Instant::now() });
                    }
                    return Ok(answer);
                }
                Err(error) => last = Some(error),
            }
        }
        // The caller says what the last URL's problem is.
        Err(last.map_or(ConductorError::NoUrl, |source| ConductorError::Unreachable { what, source }))
    }

    fn put_first(&self, root: &Url) {
        let mut urls = lock(&self.urls);
        // Another call may have moved it meanwhile.
        let at = urls.iter().position(|url| url == root).unwrap_or(0);
        urls.rotate_left(at);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
