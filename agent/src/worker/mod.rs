//! The worker: from a machine with file systems and drivers to an agent that obeys the conductor (protocol section 1).
//!
//! The order is the reference agent's: network, hardware, inspection if asked for, lookup, API, heartbeat. An error
//! that ends it is returned; the supervisor says so on every console and starts the worker again.

mod endpoint;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ferric_hardware::{HardwareManager, Machine, Registry};
use ferric_types::error::chain;
use ferric_types::lookup::LookupAnswer;
use ferric_types::{MacAddress, Node};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::{debug, error, info, warn};

use crate::api;
use crate::app::{App, Parts, Refresh, Serving};
use crate::command::Extension;
use crate::command::entry::check_table;
use crate::conductor::heartbeat::{Force, Heartbeater};
use crate::conductor::token::{REFUSED_MESSAGE, Verdict, judge};
use crate::conductor::{Announcement, Conductor, inspection};
use crate::config::Config;
use crate::error::WorkerError;
use crate::extensions::rescue;
use crate::handover::Handover;
use crate::http::Client;
use crate::http::download::Downloader;
use crate::init::link;
use crate::init::power::PowerAction;
use crate::inspect;
use crate::net::{self, Net};

use endpoint::{Endpoint, listen};

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
    let client = Client::new(&setup.config)?;
    let conductor = match setup.config.api_urls.is_empty() {
        true => None,
        false => Some(Arc::new(Conductor::new(client.clone(), &setup.config)?)),
    };
    let early = early_lookup(&setup, &net, conductor.as_ref());
    let app = Arc::new(build(setup, conductor.clone()).await?);
    tokio::time::sleep(app.config().hardware_initialization_delay).await;
    let inspected = inspect_if_asked(&app, &net, &client).await?;
    let Some(conductor) = conductor else {
        if app.config().inspection_callback_urls.is_empty() {
            error!("neither ipa-api-url nor ipa-inspection-callback-url is set; there is nobody to report to");
        }
        return serve(&app, None).await;
    };
    let answer = match early.await {
        Some(answer) => {
            // Later lookups name every interface; nobody waits for the list now.
            let app = app.clone();
            drop(tokio::task::spawn_blocking(move || app.macs()));
            answer
        }
        None => {
            let macs = wait_for_interface(&app).await;
            info!("looking this machine up at {}", app.config().api_urls.join(", "));
            let node_uuid = inspected.or_else(|| app.state().node_uuid);
            conductor.lookup(&macs, node_uuid.as_deref()).await?
        }
    };
    if !accept(&app, answer)? {
        return idle("the conductor refused to hand out an agent token").await;
    }
    serve(&app, Some(conductor)).await
}

/// A first lookup while drivers still load: the interface that booted the machine is there, and usually that is the
/// one the conductor knows. When it does not answer with a node, the full lookup follows, with every interface.
fn early_lookup(
    setup: &Setup,
    net: &Net,
    conductor: Option<&Arc<Conductor>>,
) -> impl Future<Output = Option<LookupAnswer>> + use<> {
    let config = &setup.config;
    let wanted = !inspects(config) && config.hardware_initialization_delay.is_zero();
    let macs = net.boot_interface().into_iter().filter(|mac| !mac.to_string().starts_with("fa:")).collect::<Vec<_>>();
    let node_uuid = setup.handover.load().and_then(|state| state.node_uuid);
    let task = conductor
        .filter(|_| wanted && !macs.is_empty())
        .cloned()
        .map(|conductor| tokio::spawn(async move { conductor.lookup_once(&macs, node_uuid.as_deref()).await }));
    async {
        match task?.await {
            Ok(Ok(answer)) => Some(answer),
            Ok(Err(error)) => {
                debug!("first lookup, by the boot interface alone: {}", chain(&error));
                None
            }
            Err(error) => {
                error!(%error, "the first lookup ended badly");
                None
            }
        }
    }
}

/// Waits for drivers, then sets up the hardware managers. Both block, so they have a thread of their own.
async fn build(setup: Setup, conductor: Option<Arc<Conductor>>) -> Result<App, WorkerError> {
    let Setup { extensions, managers, machine, config, handover } = setup;
    let fetch = Downloader::new(&config, Handle::current())?;
    let refresh = refresh(conductor);
    let registry = blocking({
        let machine = machine.clone();
        move || {
            if !link::wait_settled(SETTLE_LIMIT) {
                warn!("not all devices have their drivers after {} s; going on", SETTLE_LIMIT.as_secs());
            }
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

/// A second lookup, for a deployment whose node came without root device hints (protocol section 7). By the conductor of
/// the first one, which knows the version of the API.
fn refresh(conductor: Option<Arc<Conductor>>) -> Refresh {
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

/// Whether the configuration asks for an inspection (inspection section 1).
fn inspects(config: &Config) -> bool {
    !config.inspection_callback_urls.is_empty()
        || (config.inspection_collectors.is_some() && !config.api_urls.is_empty())
}

/// Inspects when the configuration asks for it and returns the node's UUID if the conductor told it.
async fn inspect_if_asked(app: &Arc<App>, net: &Net, client: &Client) -> Result<Option<String>, WorkerError> {
    let config = app.config();
    if !inspects(&config) {
        return Ok(None);
    }
    let urls: Vec<String> = if config.inspection_callback_urls.is_empty() {
        config.api_urls.iter().map(|url| format!("{url}/v1/continue_inspection")).collect()
    } else {
        config.inspection_callback_urls.clone()
    };
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
        Verdict::None(problem) => {
            error!("{problem}");
            None
        }
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

#[cfg(test)]
mod tests {
    use ferric_qemu::conductor as stand_in;

    use super::*;
    use crate::conductor::ConductorOptions;
    use crate::http::testing::client;
    use crate::tls::TlsOptions;

    #[tokio::test(flavor = "multi_thread")]
    async fn second_lookup_names_the_node_and_does_not_ask_for_the_version_again() {
        let mac = MacAddress([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
        let mut node = stand_in::Node::new("node-1", &[&mac.to_string()]);
        node.provision_state = stand_in::ProvisionState::DeployWait;
        let config = stand_in::ConductorConfig { nodes: vec![node], ..Default::default() };
        let ironic = stand_in::Conductor::start(config).unwrap();
        let options = ConductorOptions {
            urls: vec![ironic.url().parse().unwrap()],
            request_id: None,
            api_version: None,
            lookup_timeout: Duration::from_secs(20),
            lookup_interval: Duration::ZERO,
        };
        let conductor = Arc::new(Conductor::with_options(client(TlsOptions::default()), options));
        let answer = conductor.lookup(&[mac], None).await.unwrap();
        let refresh = refresh(Some(conductor));
        let again = blocking(move || (refresh.0)(Some(answer.node), &[mac])).await;
        assert!(again.is_some());
        let paths: Vec<String> = ironic.requests().into_iter().map(|request| request.path).collect();
        assert_eq!(paths, ["/", "/v1/lookup", "/v1/lookup"]);
        assert!(ironic.requests().pop().unwrap().query_value("node_uuid").is_some());
    }
}
