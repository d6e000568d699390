//! What is known about all interfaces, and who waits for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferric_sys::Root;
use ferric_types::MacAddress;
use tokio::sync::watch;
use tracing::{debug, warn};

use super::dhcp4::Lease;
use super::resolv;

/// One interface, as everybody may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceState {
    /// Name.
    pub name: String,
    /// Address of the hardware.
    pub mac: MacAddress,
    /// Whether there is a link partner.
    pub carrier: bool,
    /// Its DHCPv4 lease.
    pub lease: Option<Lease>,
    /// Whether the kernel has given it a global IPv6 address.
    pub ipv6: bool,
    /// Metric of its routes: the lower, the better.
    pub metric: u32,
}

impl InterfaceState {
    /// Whether it has an address that a conductor could reach.
    pub const fn has_address(&self) -> bool {
        self.lease.is_some() || self.ipv6
    }
}

/// All interfaces by their index.
pub type Snapshot = BTreeMap<u32, InterfaceState>;

/// The interfaces, for those that change them.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    sender: Arc<watch::Sender<Snapshot>>,
    root: Root,
}

impl Shared {
    pub(super) fn new(root: Root) -> Self {
        Self { sender: Arc::new(watch::Sender::new(Snapshot::new())), root }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Snapshot> {
        self.sender.subscribe()
    }

    pub(super) fn lease(&self, index: u32) -> Option<Lease> {
        self.sender.borrow().get(&index)?.lease.clone()
    }

    /// Adds an interface or changes one; nobody is woken when nothing changes.
    pub(super) fn update(&self, change: impl FnOnce(&mut Snapshot) -> bool) {
        self.sender.send_if_modified(change);
    }

    pub(super) fn set_ipv6(&self, index: u32, ipv6: bool) {
        self.update(|snapshot| {
            let state = snapshot.get_mut(&index).filter(|state| state.ipv6 != ipv6);
            state.map(|state| state.ipv6 = ipv6).is_some()
        });
    }

    /// Sets the lease of an interface, then what depends on all leases: name servers and the host's name.
    pub(super) fn set_lease(&self, index: u32, lease: Option<Lease>) {
        let hostname = lease.as_ref().and_then(|lease| lease.hostname.clone());
        // The files first: whoever waits for the lease resolves names at once.
        let mut after = self.sender.borrow().clone();
        let Some(state) = after.get_mut(&index) else { return };
        state.lease = lease;
        self.write_files(&after, hostname);
        self.sender.send_replace(after);
    }

    fn write_files(&self, snapshot: &Snapshot, hostname: Option<String>) {
        let mut states: Vec<&InterfaceState> = snapshot.values().collect();
        states.sort_by_key(|state| state.metric);
        let text = resolv::text(states.iter().filter_map(|state| state.lease.as_ref()));
        let path = self.root.path("etc/resolv.conf");
        if let Err(error) = resolv::write(&path, &text) {
            warn!("writing {}: {error}", path.display());
        }
        let name = hostname.filter(|_| self.root.is_host());
        if let Some(Err(error)) = name.map(|name| rustix::system::sethostname(name.as_bytes())) {
            debug!("setting the host name: {error}");
        }
    }
}
