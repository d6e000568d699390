//! The worker: from a machine with file systems and drivers to an agent that obeys the conductor (protocol section 1).
//!
//! The order is the reference agent's: network, hardware, inspection if asked for, lookup, API, heartbeat. An error
//! that ends it is returned; the supervisor says so on every console and starts the worker again.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use ferric_hardware::{HardwareManager, Machine, Registry};
use ferric_types::error::chain;
use ferric_types::lookup::LookupAnswer;
use ferric_types::{MacAddress, Node, Secret};
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tracing::{error, info, warn};

use crate::api;
use crate::app::{App, Parts, Refresh, Serving};
use crate::command::Extension;
use crate::command::entry::check_table;
use crate::conductor::heartbeat::{Force, Heartbeater};
use crate::conductor::token::{REFUSED_MESSAGE, Verdict, judge};
use crate::conductor::{Announcement, ApiVersion, Conductor, inspection};
use crate::config::{Config, Scheme};
use crate::error::WorkerError;
use crate::extensions::rescue;
use crate::handover::Handover;
use crate::http::Client;
use crate::http::download::Downloader;
use crate::init::link;
use crate::init::power::PowerAction;
use crate::inspect;
use crate::net::advertise::{self, AdvertiseOptions};
use crate::net::{self, Net};
use crate::tls;

/// How long to wait for a first network interface with an address.
const NIC_WAIT: Duration = Duration::from_secs(60);
/// How long to wait for the drivers of the devices that are there at the start.
const SETTLE_LIMIT: Duration = Duration::from_secs(20);
/// Time between two looks.
const NIC_PAUSE: Duration = Duration::from_secs(1);

/// What the worker works with.
#[derive(Debug)]
pub struct Setup {
    /// Extensions of this image.
    pub extensions: &'static [&'static Extension],
    /// Hardware managers of this image.
    pub managers: &'static [&'static dyn HardwareManager],
    /// Seams to the machine.
    pub machine: Machine,
    /// Settings.
    pub config: Config,
    /// Where state survives a crash of the worker.
    pub handover: Handover,
}

/// Runs the agent until it has nothing left to do; usually the machine is powered off before that.
///
/// # Errors
/// Whatever made it impossible to go on.
pub async fn run(setup: Setup) -> Result<(), WorkerError> {
    check_table(setup.extensions)?;
    let net = net::bring_up(&setup.config).await?;
    if !blocking(|| link::wait_settled(SETTLE_LIMIT)).await {
        warn!("not all devices have their drivers after {} s; going on", SETTLE_LIMIT.as_secs());
    }
    let client = Client::new(&setup.config)?;
    let app = Arc::new(build(setup, &client).await?);
    tokio::time::sleep(app.config().hardware_initialization_delay).await;
    let macs = wait_for_interface(&app).await;
    let inspected = inspect_if_asked(&app, &net, &client).await?;
    let node_uuid = inspected.or_else(|| app.state().node_uuid);
    if app.config().api_urls.is_empty() {
        if app.config().inspection_callback_urls.is_empty() {
            error!("neither ipa-api-url nor ipa-inspection-callback-url is set; there is nobody to report to");
        }
        return serve(&app, None).await;
    }
    let conductor = Arc::new(Conductor::new(client, &app.config())?);
    info!("looking this machine up at {}", app.config().api_urls.join(", "));
    let answer = conductor.lookup(&macs, node_uuid.as_deref()).await?;
    if !accept(&app, answer)? {
        return idle("the conductor refused to hand out an agent token").await;
    }
    serve(&app, Some(conductor)).await
}

/// Probing and initialising block, so they have a thread of their own.
async fn build(setup: Setup, client: &Client) -> Result<App, WorkerError> {
    let Setup { extensions, managers, machine, config, handover } = setup;
    let fetch = Downloader::new(&config, Handle::current())?;
    let refresh = refresh(client, &config);
    let registry = blocking({
        let machine = machine.clone();
        move || {
            let registry = Registry::new(managers, &machine)?;
            registry.initialize(&machine);
            Ok::<_, WorkerError>(registry)
        }
    })
    .await?;
    Ok(App::new(Parts {
        extensions,
        machine,
        registry,
        config,
        handover,
        force: Force::new(),
        fetch: Arc::new(fetch),
        refresh,
    }))
}

/// A second lookup, for a deployment whose node came without root device hints (protocol section 7).
fn refresh(client: &Client, config: &Config) -> Refresh {
    let conductor = Conductor::new(client.clone(), config).ok().map(Arc::new);
    let runtime = Handle::current();
    Refresh(Box::new(move |known: Option<Node>, macs: &[MacAddress]| {
        let conductor = conductor.clone()?;
        let uuid = known.as_ref().and_then(Node::uuid).map(str::to_owned);
        match runtime.block_on(conductor.lookup_once(macs, uuid.as_deref())) {
            Ok(answer) => Some(answer.node),
            Err(error) => {
                warn!("the node could not be looked up again: {}", chain(&error));
                None
            }
        }
    }))
}

/// Runs blocking work. A panic in it is passed on.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Addresses of this machine's interfaces, as soon as there is one.
async fn wait_for_interface(app: &Arc<App>) -> Vec<MacAddress> {
    let deadline = tokio::time::Instant::now() + NIC_WAIT;
    loop {
        let app = app.clone();
        let macs = blocking(move || app.macs()).await;
        if !macs.is_empty() {
            return macs;
        }
        if tokio::time::Instant::now() >= deadline {
            warn!("no network interface with an address after {} s; going on without", NIC_WAIT.as_secs());
            return macs;
        }
        tokio::time::sleep(NIC_PAUSE).await;
    }
}

/// Inspects when the configuration asks for it and returns the node's UUID if the conductor told it.
async fn inspect_if_asked(app: &Arc<App>, net: &Net, client: &Client) -> Result<Option<String>, WorkerError> {
    let config = app.config();
    let urls: Vec<String> = if config.inspection_callback_urls.is_empty() {
        if config.inspection_collectors.is_none() {
            return Ok(None);
        }
        config.api_urls.iter().map(|url| format!("{url}/v1/continue_inspection")).collect()
    } else {
        config.inspection_callback_urls.clone()
    };
    if urls.is_empty() {
        return Ok(None);
    }
    net.wait_for_addresses(&config).await;
    let names = config
        .inspection_collectors
        .clone()
        .unwrap_or_else(|| inspect::DEFAULT_COLLECTORS.iter().map(|name| (*name).to_owned()).collect());
    let document = blocking({
        let app = app.clone();
        move || inspect::collect(&app, &names)
    })
    .await;
    let body = serde_json::to_vec(&document.body).map(Bytes::from).unwrap_or_default();
    info!(bytes = body.len(), "posting inspection data to {}", urls.join(", "));
    match inspection::post(client, &urls, config.global_request_id.as_deref(), body).await {
        Ok(uuid) => {
            info!(node = uuid.as_deref(), "inspection data accepted");
            Ok(uuid.filter(|_| document.complete))
        }
        Err(error) if error.goes_on() => {
            error!("{}; going on to the lookup", chain(&error));
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Takes over what the conductor says of this node. False when it gives no token and there is none.
fn accept(app: &Arc<App>, answer: LookupAnswer) -> Result<bool, WorkerError> {
    let own = app.token();
    let received = answer.config.as_ref().and_then(|config| config.agent_token.as_ref());
    let token = match judge(received, own.as_ref()) {
        Verdict::Adopt(token) => Some(token),
        Verdict::Keep => own,
        Verdict::Refused => {
            error!("{REFUSED_MESSAGE}");
            return Ok(false);
        }
    };
    let mut config = Config::clone(&app.config());
    if let Some(settings) = &answer.config {
        for warning in config.apply_lookup(settings) {
            warn!("{warning}");
        }
    }
    config.heartbeat_timeout = crate::conductor::lookup::heartbeat_timeout(&answer).or(config.heartbeat_timeout);
    let fetch = Downloader::new(&config, Handle::current())?;
    app.set_config(config, Arc::new(fetch));
    let uuid = answer.node.uuid().map(str::to_owned);
    info!(node = uuid.as_deref(), "the conductor knows this machine");
    app.update_state(|state| {
        state.agent_token = token;
        state.node_uuid = uuid;
    });
    app.remember_node(answer.node);
    Ok(true)
}

/// Serves the API, with heartbeats when there is a conductor, until it is told to stop; then what the reason for
/// stopping asks for.
async fn serve(app: &Arc<App>, conductor: Option<Arc<Conductor>>) -> Result<(), WorkerError> {
    if app.machine.root.path(rescue::MARKER).exists() {
        return idle("this machine is in rescue").await;
    }
    let endpoint = match &conductor {
        Some(conductor) => Some(Endpoint::of(app, conductor).await?),
        None => None,
    };
    let listener = listen(&app.config())?;
    let tls = match &endpoint {
        Some(endpoint) => endpoint.acceptor(&app.config())?,
        None => None,
    };
    let mut serving = app.serving();
    let (stop, stopped) = watch::channel(false);
    let server = tokio::spawn(api::server::serve(app.clone(), listener, tls, stopped));
    let beats = conductor.zip(endpoint).map(|(conductor, endpoint)| {
        let config = app.config();
        info!("announcing {}", endpoint.callback_url);
        let announcement = Announcement {
            node_uuid: app.state().node_uuid.unwrap_or_default(),
            callback_url: endpoint.callback_url,
            agent_token: app.token(),
            agent_version: crate::VERSION.to_owned(),
            agent_verify_ca: endpoint.certificate,
        };
        let timeout = config.heartbeat_timeout.unwrap_or(DEFAULT_HEARTBEAT_TIMEOUT);
        Heartbeater::spawn(conductor, announcement, timeout, app.force())
    });
    // The sender lives in `app`, so this only ends with a reason.
    let reason = serving.wait_for(|serving| *serving != Serving::On).await.map(|reason| *reason);
    stop.send_replace(true);
    if let Err(error) = server.await {
        error!(%error, "the API server ended badly");
    }
    if let Some(beats) = beats {
        beats.stop().await;
    }
    match reason {
        Ok(Serving::LockedDown) => {
            app.power(PowerAction::Lockdown).map_err(WorkerError::Lockdown)?;
            idle("this machine is locked down").await
        }
        _ => idle("the API is off; the network stays up").await,
    }
}

/// Heartbeat timeout of a conductor that does not say, seconds.
const DEFAULT_HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(300);

/// Waits for ever: the conductor, or a person, decides what comes next.
async fn idle(why: &str) -> Result<(), WorkerError> {
    warn!("{why}; waiting to be powered off or rebooted");
    std::future::pending::<()>().await;
    Ok(())
}

/// Binds the API's port: dual stack where the kernel has IPv6, unless an address is configured.
fn listen(config: &Config) -> Result<TcpListener, WorkerError> {
    let bind = |host: IpAddr| {
        let address = SocketAddr::new(host, config.listen_port);
        let open = || {
            let socket = if address.is_ipv6() { TcpSocket::new_v6() } else { TcpSocket::new_v4() }?;
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            socket.listen(128)
        };
        open().map_err(|source| WorkerError::Listen { address, source })
    };
    match config.listen_host {
        Some(host) => bind(host),
        None => bind(Ipv6Addr::UNSPECIFIED.into()).or_else(|_no_ipv6| bind(Ipv4Addr::UNSPECIFIED.into())),
    }
}

/// Where the conductor reaches this agent, and what proves that it is this agent. Constant for one boot: a restarted
/// worker takes over the address and the certificate of the one before.
struct Endpoint {
    callback_url: String,
    certificate: Option<String>,
    key: Option<Secret<String>>,
}

impl Endpoint {
    async fn of(app: &Arc<App>, conductor: &Conductor) -> Result<Self, WorkerError> {
        let state = app.state();
        if let Some(callback_url) = state.callback_url {
            return Ok(Self { callback_url, certificate: state.tls_cert_pem, key: state.tls_key_pem });
        }
        let config = app.config();
        let options = AdvertiseOptions::from_config(&config);
        let address = advertise::choose(&options, conductor.client(), conductor.urls()).await?;
        let own_tls =
            config.enable_auto_tls && !config.listen_tls && conductor.version().await >= ApiVersion::VERIFY_CA;
        let made = if own_tls {
            let hostname = app.inventory().hostname;
            Some(tls::generate(&tls::CertificateRequest {
                hostname: &hostname,
                address,
                curve: config.tls_certificate_curve,
                now: SystemTime::now(),
                clock_skew: config.auto_tls_allowed_clock_skew,
            })?)
        } else {
            None
        };
        let https = made.is_some() || config.advertise_protocol == Scheme::Https;
        let scheme = if https { Scheme::Https } else { Scheme::Http };
        let callback_url = advertise::callback_url(scheme, address, config.advertise_port);
        let (certificate, key) = made.map(|made| (made.certificate_pem, made.key_pem)).unzip();
        app.update_state(|state| {
            state.callback_url = Some(callback_url.clone());
            state.tls_cert_pem.clone_from(&certificate);
            state.tls_key_pem.clone_from(&key);
        });
        Ok(Self { callback_url, certificate, key })
    }

    fn acceptor(&self, config: &Config) -> Result<Option<TlsAcceptor>, WorkerError> {
        let suites = config.tls_cipher_suites.as_deref();
        let server = match (&self.certificate, &self.key, &config.tls_cert_file, &config.tls_key_file) {
            (Some(certificate), Some(key), _, _) => {
                tls::server_config_from_pem(certificate, key.expose(), config.tls_min_version, suites)?
            }
            (_, _, Some(certificate), Some(key)) if config.listen_tls => {
                tls::server_config_from_files(certificate.as_ref(), key.as_ref(), config.tls_min_version, suites)?
            }
            _ if config.listen_tls => return Err(WorkerError::NoCertificate),
            _ => return Ok(None),
        };
        Ok(Some(TlsAcceptor::from(server)))
    }
}
