//! What the parts of the agent share: built once, passed as `Arc<App>`.

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use ferric_disk::image::deploy::{RetryPolicy, ServerAuth};
use ferric_disk::image::source::{Fetch, FetchRequest, ImageSource, SourceError};
use ferric_hardware::{HardwareError, Machine, Registry, Services, Settings, StepContext, root_device};
use ferric_types::{CommandError, ErrorClass, Inventory, MacAddress, Node, Progress, Secret};
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::command::{CommandStore, Extension};
use crate::conductor::heartbeat::Force;
use crate::config::Config;
use crate::handover::{Handover, State, Unfinished};
use crate::init::power::{self, PowerAction};

/// Why the API stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serving {
    /// It does not stop.
    On,
    /// Rescue: the network stays.
    Stopped,
    /// Lockdown: the network goes down too.
    LockedDown,
}

/// The agent.
#[derive(Debug)]
pub struct App {
    /// Extensions of this image.
    pub extensions: &'static [&'static Extension],
    /// Seams to the machine.
    pub machine: Machine,
    /// Hardware managers of this machine.
    pub registry: Registry,
    /// All commands so far.
    pub store: CommandStore,
    /// Held while a command starts, and by synchronous commands until they end.
    pub command_lock: tokio::sync::Mutex<()>,
    /// Seconds since the epoch when the agent of this boot started.
    pub started_at: f64,
    config: RwLock<Arc<Config>>,
    node: RwLock<Option<Node>>,
    /// UUID of the node whose root disk was waited for.
    awaited: Mutex<Option<String>>,
    inventory: Mutex<Option<Inventory>>,
    handover: Handover,
    state: Mutex<State>,
    force: Force,
    serving: watch::Sender<Serving>,
    services: AgentServices,
}

/// What [`App::new`] needs.
#[derive(Debug)]
pub struct Parts {
    /// Extensions of this image.
    pub extensions: &'static [&'static Extension],
    /// Seams to the machine.
    pub machine: Machine,
    /// Hardware managers of this machine.
    pub registry: Registry,
    /// Settings before the lookup.
    pub config: Config,
    /// Where state survives a crash of the worker.
    pub handover: Handover,
    /// Asks for a heartbeat now.
    pub force: Force,
    /// Fetches images.
    pub fetch: Arc<dyn Fetch>,
    /// Looks the node up a second time; `None` when that fails.
    pub refresh: Refresh,
}

/// Looks the node up again, from a blocking thread.
pub struct Refresh(pub RefreshFn);

/// Given the node as it is known and this machine's addresses, the node as the conductor knows it now.
pub type RefreshFn = Box<dyn Fn(Option<Node>, &[MacAddress]) -> Option<Node> + Send + Sync>;

impl std::fmt::Debug for Refresh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Refresh")
    }
}

/// The way to fetch images; replaced when the lookup changes what connections must look like.
#[derive(Debug)]
struct CurrentFetch(RwLock<Arc<dyn Fetch>>);

impl CurrentFetch {
    fn get(&self) -> Arc<dyn Fetch> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Fetch for CurrentFetch {
    fn open(&self, request: &FetchRequest) -> Result<Box<dyn ImageSource>, SourceError> {
        self.get().open(request)
    }

    fn get(&self, request: &FetchRequest, limit: u64) -> Result<Vec<u8>, SourceError> {
        Self::get(self).get(request, limit)
    }
}

#[derive(Debug)]
struct AgentServices {
    fetch: CurrentFetch,
    refresh: Refresh,
    node: Mutex<Option<Node>>,
    macs: Mutex<Vec<MacAddress>>,
    partition_uuids: Mutex<Value>,
}

impl Services for AgentServices {
    fn fetch(&self) -> &dyn Fetch {
        &self.fetch
    }

    fn refresh_node(&self) -> Option<Node> {
        let known = self.node.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let macs = self.macs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (self.refresh.0)(known, &macs)
    }

    fn remember_partition_uuids(&self, uuids: Value) {
        *self.partition_uuids.lock().unwrap_or_else(PoisonError::into_inner) = uuids;
    }

    fn partition_uuids(&self) -> Value {
        self.partition_uuids.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn image_written(&self, id: &str) {
        info!(image = id, "image written");
    }
}

impl App {
    /// Puts the agent together. Commands that ran when an earlier worker of this boot died are put back as failed.
    pub fn new(parts: Parts) -> Self {
        let mut state = parts.handover.load().unwrap_or_default();
        let store = CommandStore::default();
        for Unfinished { id, command_name } in state.unfinished.drain(..) {
            let cause = state.last_exit.as_deref().unwrap_or("the cause is not known");
            let reason = format!("the agent was restarted while {command_name} ran: {cause}");
            error!(command = command_name, "{reason}");
            store.add_interrupted(&id, &command_name, &reason);
        }
        if state.started_at == 0.0 {
            state.started_at = now();
        }
        if let Some(token) = parts.config.agent_token.clone() {
            state.agent_token.get_or_insert(token);
        }
        parts.handover.save(&state);
        Self {
            extensions: parts.extensions,
            machine: parts.machine,
            registry: parts.registry,
            store,
            command_lock: tokio::sync::Mutex::new(()),
            started_at: state.started_at,
            config: RwLock::new(Arc::new(parts.config)),
            node: RwLock::new(None),
            awaited: Mutex::new(None),
            inventory: Mutex::new(None),
            handover: parts.handover,
            state: Mutex::new(state),
            force: parts.force,
            serving: watch::Sender::new(Serving::On),
            services: AgentServices {
                fetch: CurrentFetch(RwLock::new(parts.fetch)),
                refresh: parts.refresh,
                node: Mutex::new(None),
                macs: Mutex::new(Vec::new()),
                partition_uuids: Mutex::new(json!({})),
            },
        }
    }

    /// The configuration now.
    pub fn config(&self) -> Arc<Config> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the configuration, after the lookup, and the way to fetch images, which depends on it (TLS versions).
    pub fn set_config(&self, config: Config, fetch: Arc<dyn Fetch>) {
        *self.services.fetch.0.write().unwrap_or_else(PoisonError::into_inner) = fetch;
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    }

    /// The part of the configuration that probes and steps use.
    pub fn settings(&self) -> Settings {
        settings_of(&self.config())
    }

    /// What steps may use of the agent.
    pub fn services(&self) -> &dyn Services {
        &self.services
    }

    /// The node, once it is known.
    pub fn node(&self) -> Option<Node> {
        self.node.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes over the node as the conductor knows it now: hints and settings may have changed since the last time.
    ///
    /// Its config drive is not kept: it also comes as an argument, and is large.
    pub fn remember_node(&self, mut node: Node) {
        node.forget_configdrive();
        *self.services.node.lock().unwrap_or_else(PoisonError::into_inner) = Some(node.clone());
        *self.node.write().unwrap_or_else(PoisonError::into_inner) = Some(node);
    }

    /// Takes over the node of a command and, the first time for a UUID, waits for its root disk, so that no slow
    /// controller's disks are missed by a step (protocol section 7). The first heartbeat does not wait for that.
    pub fn adopt_node(&self, mut node: Node) {
        node.forget_configdrive();
        let is_new = {
            let mut awaited = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
            let uuid = node.uuid().map(str::to_owned);
            let is_new = *awaited != uuid;
            *awaited = uuid;
            is_new
        };
        self.remember_node(node.clone());
        if is_new && let Err(error) = root_device::wait(&self.registry, &self.machine, &self.settings(), Some(&node)) {
            warn!(%error, "there is no root device yet");
        }
    }

    /// Runs something that needs a step's context but is no step.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn with_step_context<T>(
        &self,
        progress: &Progress,
        work: impl FnOnce(&StepContext<'_>) -> Result<T, CommandError>,
    ) -> Result<T, CommandError> {
        let (node, settings) = (self.node().unwrap_or_default(), self.settings());
        work(&StepContext {
            machine: &self.machine,
            registry: &self.registry,
            node: &node,
            ports: &[],
            progress,
            settings: &settings,
            services: &self.services,
        })
    }

    /// Looks at the hardware and remembers the result.
    pub fn probe(&self) -> Inventory {
        self.look().0
    }

    /// As [`Self::probe`], with the reasons why lists are missing in it.
    pub fn look(&self) -> (Inventory, Vec<HardwareError>) {
        let (inventory, unlisted) = self.registry.look(&self.machine, &self.settings());
        let macs = inventory.interfaces.iter().filter_map(|interface| interface.mac_address.parse().ok()).collect();
        *self.services.macs.lock().unwrap_or_else(PoisonError::into_inner) = macs;
        *self.inventory.lock().unwrap_or_else(PoisonError::into_inner) = Some(inventory.clone());
        (inventory, unlisted)
    }

    /// The inventory of the last look, or of one taken now.
    pub fn inventory(&self) -> Inventory {
        let known = self.inventory.lock().unwrap_or_else(PoisonError::into_inner).clone();
        known.unwrap_or_else(|| self.probe())
    }

    /// Addresses of this machine's interfaces as the last look found them; looks again while there are none.
    pub fn macs(&self) -> Vec<MacAddress> {
        let known = self.services.macs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if !known.is_empty() {
            return known;
        }
        // Only the interfaces: a slow BMC must not delay the lookup, whose answer may say not to ask it at all.
        let interfaces = self.registry.interfaces(&self.machine, &self.settings()).unwrap_or_else(|error| {
            warn!("listing the network interfaces: {}", ferric_types::error::chain(&error));
            Vec::new()
        });
        let macs: Vec<MacAddress> =
            interfaces.iter().filter_map(|interface| interface.mac_address.parse().ok()).collect();
        self.services.macs.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&macs);
        macs
    }

    /// The agent token, once there is one.
    pub fn token(&self) -> Option<Secret<String>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).agent_token.clone()
    }

    /// Changes what survives a crash of the worker.
    pub fn update_state(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        self.handover.save(&state);
    }

    /// What survives a crash of the worker.
    pub fn state(&self) -> State {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Saves which commands run, so that a restarted worker can report them as failed.
    pub fn save_handover(&self) {
        let unfinished =
            self.store.running().into_iter().map(|(id, command_name)| Unfinished { id, command_name }).collect();
        self.update_state(|state| state.unfinished = unfinished);
    }

    /// The request counter of heartbeats.
    pub const fn force(&self) -> &Force {
        &self.force
    }

    /// Asks for a heartbeat as soon as the schedule allows one.
    pub fn force_heartbeat(&self) {
        self.force.force();
    }

    /// Stops the API; answers under way are finished. The network stays.
    pub fn stop_serving(&self) {
        self.serving.send_replace(Serving::Stopped);
    }

    /// Stops the API and takes the network down.
    pub fn lock_down(&self) {
        self.serving.send_replace(Serving::LockedDown);
    }

    /// Tells when the API is to stop, and how.
    pub fn serving(&self) -> watch::Receiver<Serving> {
        self.serving.subscribe()
    }

    /// Powers the machine off or reboots it.
    ///
    /// # Errors
    /// `SystemRebootError` when nothing worked.
    pub fn power(&self, action: PowerAction) -> Result<(), CommandError> {
        power::request(action).map_err(|error| CommandError::from_chain(ErrorClass::SystemReboot, &error))
    }

    /// Everything that tells what happened, as a gzip-compressed tar archive.
    pub fn collect_logs(&self) -> Vec<u8> {
        crate::logs::bundle::collect(&self.machine.root)
    }
}

/// The part of the configuration that probes and steps use.
fn settings_of(config: &Config) -> Settings {
    Settings {
        md5_enabled: config.md5_enabled,
        permitted_image_formats: config.permitted_image_formats.clone(),
        disable_deep_image_inspection: config.disable_deep_image_inspection,
        guard_special_filesystems: config.guard_special_filesystems,
        config_drive_rebuild: config.config_drive_rebuild,
        efi_system_partition_mib: config.efi_system_partition_size,
        bios_boot_partition_mib: config.bios_boot_partition_size,
        disk_wait_attempts: config.disk_wait_attempts,
        disk_wait_delay: config.disk_wait_delay,
        collect_lldp: config.collect_lldp,
        lldp_timeout: config.lldp_timeout,
        enable_vlan_interfaces: config.enable_vlan_interfaces.clone(),
        skip_bmc_detect: config.skip_bmc_detect,
        ignore_bootloader_failure: config.ignore_bootloader_failure,
        inject_files_priority: config.inject_files_priority,
        enable_bios_bootloader_install: config.enable_bios_bootloader_install,
        image_read_back: config.image_read_back,
        disable_bootc_deploy: config.disable_bootc_deploy,
        pxe_interface: config.bootif.clone(),
        image_server_auth: ServerAuth {
            strategy: config.image_server_auth_strategy.clone(),
            user: config.image_server_user.clone(),
            password: config.image_server_password.clone(),
        },
        image_retry: RetryPolicy {
            tries: config.image_download_connection_retries.saturating_add(1),
            interval: config.image_download_connection_retry_interval,
        },
    }
}

/// Seconds since the epoch.
fn now() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |elapsed| elapsed.as_secs_f64())
}
