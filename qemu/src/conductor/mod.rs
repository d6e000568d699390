//! A stand-in Ironic conductor: the API an agent sees, the client that drives the agent, and the flows of a real one.
//!
//! [`Conductor`] answers `GET /`, `GET /v1/lookup`, `POST /v1/heartbeat/<node>` and `POST /v1/continue_inspection` as
//! Ironic 39.0 does and refuses what Ironic refuses (spec/conductor.md section 13, spec/protocol.md sections 6 to 9,
//! spec/inspection.md section 4); it can be made to misbehave with [`Fault`]s, and it keeps everything it saw.
//! [`AgentClient`] speaks to the agent as Ironic's `agent_client` does. [`flow`] holds inspection, cleaning, deploying,
//! rescue and service, driven by heartbeats.
//!
//! ```no_run
//! use ferric_qemu::conductor::{Conductor, ConductorConfig, Endpoint, Fault, Node, ProvisionState};
//! use std::time::Duration;
//!
//! # fn main() -> anyhow::Result<()> {
//! let mut node = Node::new("node-1", &["52:54:00:12:34:56"]);
//! node.provision_state = ProvisionState::CleanWait;
//! let uuid = node.uuid.clone();
//! let conductor = Conductor::start(ConductorConfig { nodes: vec![node], ..ConductorConfig::default() })?;
//! conductor.script(Endpoint::Lookup, [Fault::Status(404), Fault::Status(409)]);
//! // start an agent with ipa-api-url = conductor.url() ...
//! let beat = conductor.wait_for_heartbeat(Duration::from_secs(60))?;
//! let agent = conductor.agent(&uuid)?;
//! println!("{} runs {:?}", beat.node, agent.commands()?);
//! # Ok(())
//! # }
//! ```

pub mod client;
mod fault;
pub mod flow;
mod heartbeat;
mod inspection;
mod lookup;
mod node;
mod record;
mod reply;
mod routes;
mod server;
mod state;
mod tls;
mod version;
pub mod wire;

pub use client::{AgentClient, AgentError, CommandRecord, RawRequest, Wait};
pub use fault::{Endpoint, Fault};
pub use node::{InspectionData, MASKED, Node, Port, StateError, mask_secrets};
pub use record::{Heartbeat, HeartbeatEffect, RecordedRequest};
pub use state::ProvisionState;
pub use version::{ApiVersion, VERSION_HEADER};
pub use wire::{Headers, RawResponse};

use anyhow::{Context as _, bail};
use fault::FaultScript;
use serde_json::Value;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The newest API version of the Ironic that is imitated.
const NEWEST_VERSION: ApiVersion = ApiVersion(115);

/// How the conductor behaves, apart from faults.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Newest API version spoken; lower it to imitate an older Ironic.
    pub max_version: ApiVersion,
    /// `[api]ramdisk_heartbeat_timeout`, given to agents by the lookup; they beat every 0.3 to 0.6 of it.
    pub heartbeat_timeout_secs: u64,
    /// `[agent]require_tls`.
    pub require_tls: bool,
    /// Merged into every lookup answer (RFC 7396), for settings an operator changed.
    pub lookup_patch: Value,
    /// How long the hooks work on inspection data, holding the node's lock.
    pub inspection_hooks: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            max_version: NEWEST_VERSION,
            heartbeat_timeout_secs: 300,
            require_tls: true,
            lookup_patch: Value::Object(serde_json::Map::new()),
            inspection_hooks: Duration::from_millis(300),
        }
    }
}

/// What to start.
#[derive(Debug, Clone)]
pub struct ConductorConfig {
    /// Address and port to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Serve HTTPS with a certificate of a self-made CA for these names and addresses; `None` serves HTTP.
    pub tls_names: Option<Vec<String>>,
    /// The nodes known from the start.
    pub nodes: Vec<Node>,
    /// Behaviour.
    pub settings: Settings,
}

impl Default for ConductorConfig {
    fn default() -> Self {
        ConductorConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            tls_names: None,
            nodes: Vec::new(),
            settings: Settings::default(),
        }
    }
}

pub(crate) struct State {
    pub(crate) settings: Settings,
    pub(crate) nodes: Vec<Node>,
    pub(crate) faults: FaultScript,
    pub(crate) delay: Option<Duration>,
    pub(crate) requests: Vec<RecordedRequest>,
    pub(crate) heartbeats: Vec<Heartbeat>,
    /// Where to connect instead of the address in an agent's URL, `host:port` of the URL first.
    address_map: Vec<(String, SocketAddr)>,
}

pub(crate) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    stopping: AtomicBool,
    started: Instant,
    connections: Mutex<Vec<TcpStream>>,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A connection thread that panicked leaves consistent data: every change is made in one go.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn track(&self, stream: TcpStream) {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
    }
}

/// A running conductor; it stops when dropped.
pub struct Conductor {
    shared: Arc<Shared>,
    address: SocketAddr,
    ca_pem: Option<String>,
    acceptor: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Conductor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conductor").field("url", &self.url()).finish_non_exhaustive()
    }
}

impl Conductor {
    /// Starts listening.
    pub fn start(config: ConductorConfig) -> anyhow::Result<Self> {
        let listener =
            TcpListener::bind(config.listen).with_context(|| format!("listening on {} for agents", config.listen))?;
        let address = listener.local_addr().context("asking for the conductor's own address")?;
        let identity = config.tls_names.as_deref().map(tls::server_identity).transpose()?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                settings: config.settings,
                nodes: config.nodes,
                faults: FaultScript::default(),
                delay: None,
                requests: Vec::new(),
                heartbeats: Vec::new(),
                address_map: Vec::new(),
            }),
            changed: Condvar::new(),
            stopping: AtomicBool::new(false),
            started: Instant::now(),
            connections: Mutex::new(Vec::new()),
        });
        let (ca_pem, tls) = identity.map(|i| (i.ca_pem, i.config)).unzip();
        let acceptor = thread::spawn({
            let shared = Arc::clone(&shared);
            move || server::accept_loop(&shared, &listener, tls.as_ref())
        });
        Ok(Conductor { shared, address, ca_pem, acceptor: Some(acceptor) })
    }

    /// The API's root as seen from this machine.
    #[must_use]
    pub fn url(&self) -> String {
        let ip = self.address.ip();
        self.url_at(&if ip.is_unspecified() { "127.0.0.1".to_owned() } else { ip.to_string() })
    }

    /// The API's root when this machine is called `host`, for instance 10.0.2.2 from a guest on QEMU's user network.
    #[must_use]
    pub fn url_at(&self, host: &str) -> String {
        let scheme = if self.ca_pem.is_some() { "https" } else { "http" };
        format!("{scheme}://{host}:{}", self.address.port())
    }

    /// The port it listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The CA to trust, as PEM, when it serves HTTPS.
    #[must_use]
    pub fn ca_pem(&self) -> Option<&str> {
        self.ca_pem.as_deref()
    }

    /// Changes the behaviour from now on.
    pub fn configure(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.shared.lock().settings);
    }

    /// Adds faults for the next requests to an endpoint, one for each request.
    pub fn script(&self, endpoint: Endpoint, faults: impl IntoIterator<Item = Fault>) {
        let mut state = self.shared.lock();
        faults.into_iter().for_each(|fault| state.faults.add(endpoint, fault));
    }

    /// Drops all faults that have not been used.
    pub fn clear_faults(&self) {
        self.shared.lock().faults.clear();
    }

    /// How many faults still wait for a request to an endpoint.
    #[must_use]
    pub fn faults_left(&self, endpoint: Endpoint) -> usize {
        self.shared.lock().faults.remaining(endpoint)
    }

    /// Makes every answer this much later; `None` answers at once again.
    pub fn set_delay(&self, delay: Option<Duration>) {
        self.shared.lock().delay = delay;
    }

    /// Adds a node.
    pub fn add_node(&self, node: Node) {
        self.shared.lock().nodes.push(node);
    }

    /// A copy of a node's record.
    pub fn node(&self, uuid: &str) -> anyhow::Result<Node> {
        let state = self.shared.lock();
        state.nodes.iter().find(|n| n.uuid == uuid).cloned().with_context(|| format!("looking for node {uuid}"))
    }

    /// Changes a node's record.
    pub fn update_node<T>(&self, uuid: &str, change: impl FnOnce(&mut Node) -> T) -> anyhow::Result<T> {
        let mut state = self.shared.lock();
        let node = state.nodes.iter_mut().find(|n| n.uuid == uuid);
        let result = change(node.with_context(|| format!("looking for node {uuid}"))?);
        drop(state);
        self.shared.changed.notify_all();
        Ok(result)
    }

    /// Waits until a node's record satisfies a condition.
    pub fn wait_for_node(&self, uuid: &str, limit: Duration, done: impl Fn(&Node) -> bool) -> anyhow::Result<Node> {
        self.wait(limit, |state| state.nodes.iter().find(|n| n.uuid == uuid).filter(|n| done(n)).cloned())
            .with_context(|| format!("waiting {limit:?} for node {uuid}"))
    }

    /// Connects to `address` when an agent's URL names `host_and_port`, as `10.0.2.15:9999`; its certificate is still
    /// checked against the host of the URL.
    pub fn map_agent_address(&self, host_and_port: &str, address: SocketAddr) {
        let mut state = self.shared.lock();
        state.address_map.retain(|(known, _)| known != host_and_port);
        state.address_map.push((host_and_port.to_owned(), address));
    }

    /// A client for a node's agent, from what its last accepted heartbeat said.
    pub fn agent(&self, uuid: &str) -> Result<AgentClient, AgentError> {
        let state = self.shared.lock();
        let node = state.nodes.iter().find(|n| n.uuid == uuid);
        let url = node.and_then(Node::agent_url).ok_or(AgentError::NoUrl)?;
        let certificate = node.and_then(|n| n.agent_certificate.as_deref());
        let mut client = AgentClient::new(url, certificate, node.and_then(Node::agent_token))?;
        if let Some((_, address)) = state.address_map.iter().find(|(known, _)| *known == client.host_and_port()) {
            client = client.connecting_to(*address);
        }
        Ok(client)
    }

    /// Everything that came in, oldest first.
    #[must_use]
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.shared.lock().requests.clone()
    }

    /// The requests that satisfy a condition, oldest first.
    #[must_use]
    pub fn requests_matching(&self, matches: impl Fn(&RecordedRequest) -> bool) -> Vec<RecordedRequest> {
        self.shared.lock().requests.iter().filter(|r| matches(r)).cloned().collect()
    }

    /// Waits for an answered request, past or coming, that satisfies a condition.
    pub fn wait_for_request(
        &self,
        limit: Duration,
        matches: impl Fn(&RecordedRequest) -> bool,
    ) -> anyhow::Result<RecordedRequest> {
        self.wait(limit, |state| state.requests.iter().find(|r| r.status.is_some() && matches(r)).cloned())
            .with_context(|| format!("waiting {limit:?} for a request"))
    }

    /// All heartbeats, oldest first.
    #[must_use]
    pub fn heartbeats(&self) -> Vec<Heartbeat> {
        self.shared.lock().heartbeats.clone()
    }

    /// The number of the newest heartbeat's request; 0 when there was none.
    #[must_use]
    pub fn last_heartbeat_sequence(&self) -> u64 {
        self.shared.lock().heartbeats.last().map_or(0, |beat| beat.sequence)
    }

    /// Waits for an accepted heartbeat: the first there is, past or coming.
    pub fn wait_for_heartbeat(&self, limit: Duration) -> anyhow::Result<Heartbeat> {
        self.wait_for_heartbeat_after(0, limit, Heartbeat::accepted)
    }

    /// Waits for a heartbeat with a higher request number that satisfies a condition.
    pub fn wait_for_heartbeat_after(
        &self,
        sequence: u64,
        limit: Duration,
        matches: impl Fn(&Heartbeat) -> bool,
    ) -> anyhow::Result<Heartbeat> {
        self.wait(limit, |state| state.heartbeats.iter().find(|b| b.sequence > sequence && matches(b)).cloned())
            .with_context(|| format!("waiting {limit:?} for a heartbeat after request {sequence}"))
    }

    fn wait<T>(&self, limit: Duration, find: impl Fn(&State) -> Option<T>) -> anyhow::Result<T> {
        let end = Instant::now() + limit;
        let mut state = self.shared.lock();
        loop {
            if let Some(found) = find(&state) {
                return Ok(found);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("nothing of the kind after {} requests", state.requests.len());
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Conductor {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        // Wakes the acceptor, which then sees the flag. If this fails the acceptor has ended already.
        drop(TcpStream::connect_timeout(&self.address, Duration::from_secs(1)));
        if let Some(acceptor) = self.acceptor.take() {
            drop(acceptor.join()); // its panic was reported when it happened
        }
        for connection in self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            drop(connection.shutdown(Shutdown::Both)); // most are closed already
        }
    }
}

pub(crate) fn to_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
