//! What is known about all interfaces, and who waits for it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use ferric_sys::Root;
use ferric_types::MacAddress;
use tokio::sync::watch;
use tracing::{debug, warn};

use super::dhcp4::Lease;
use super::guard::{Guard, Leading};
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
    /// Interfaces with a lease, the one that has had one for longest first. Locked while a lease is set, so that one
    /// that comes at the same moment neither gets lost nor writes the same files.
    order: Arc<Mutex<Vec<u32>>>,
    boot_mac: Option<MacAddress>,
    /// Addresses of the conductor's API as configured.
    api: Arc<[Ipv4Addr]>,
    /// Addresses that the names of the API have.
    resolved: Arc<watch::Sender<Vec<Ipv4Addr>>>,
    root: Root,
}

impl Shared {
    pub(super) fn new(root: Root, boot_mac: Option<MacAddress>, api: &[Ipv4Addr]) -> Self {
        Self {
            sender: Arc::new(watch::Sender::new(Snapshot::new())),
            order: Arc::default(),
            boot_mac,
            api: api.into(),
            resolved: Arc::new(watch::Sender::new(Vec::new())),
            root,
        }
    }

    /// What is known of the names of the API; tells of changes.
    pub(super) fn resolved(&self) -> watch::Receiver<Vec<Ipv4Addr>> {
        self.resolved.subscribe()
    }

    /// Sets the addresses that the names of the API have.
    pub(super) fn set_resolved(&self, addresses: Vec<Ipv4Addr>) {
        self.resolved.send_if_modified(|known| {
            let changed = *known != addresses;
            *known = addresses;
            changed
        });
    }

    /// What a lease of an interface is to be held against now.
    pub(super) fn guard(&self, index: u32) -> Guard {
        let first = self.order.lock().unwrap_or_else(PoisonError::into_inner).first().copied();
        let snapshot = self.sender.borrow();
        let booted = |state: &InterfaceState| Some(state.mac) == self.boot_mac;
        let has_lease = |at: &u32| snapshot.get(at).is_some_and(|state| state.lease.is_some());
        let boot = snapshot.iter().find(|(at, state)| booted(state) && (has_lease(at) || **at == index));
        let leading = boot.map(|(at, _)| *at).or(first).filter(|at| *at != index);
        let leading = leading.and_then(|at| snapshot.get(&at)).and_then(|state| {
            let (name, lease) = (state.name.clone(), state.lease.clone()?);
            Some(Leading { name, lease, metric: state.metric, certain: booted(state) })
        });
        let others = snapshot.iter().filter(|(at, _)| **at != index);
        let mut others: Vec<(String, Lease)> =
            others.filter_map(|(_, state)| Some((state.name.clone(), state.lease.clone()?))).collect();
        let servers = others.iter().map(|(_, lease)| lease.server).collect();
        if snapshot.get(&index).is_some_and(booted) {
            others.clear();
        }
        Guard { api: self.api.to_vec(), resolved: self.resolved.borrow().clone(), leading, others, servers }
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
        let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        // The files first: whoever waits for the lease resolves names at once.
        let mut after = self.sender.borrow().clone();
        let Some(state) = after.get_mut(&index) else { return };
        state.lease.clone_from(&lease);
        self.write_files(&after, hostname);
        if lease.is_none() {
            order.retain(|at| *at != index);
        } else if !order.contains(&index) {
            order.push(index);
        }
        // Only the lease: links and IPv6 addresses may have changed meanwhile.
        self.update(|snapshot| snapshot.get_mut(&index).map(|state| state.lease = lease).is_some());
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

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(third: u8) -> Lease {
        Lease {
            dns: vec![Ipv4Addr::new(10, 0, third, 53)],
            ..Lease::plain(Ipv4Addr::new(10, 0, third, 15), 24, Ipv4Addr::new(10, 0, third, 1))
        }
    }

    /// As many interfaces without a lease, from number 1 on; number 2 booted the machine.
    fn shared(root: Root, count: u8) -> Shared {
        let mac = |last| MacAddress([2, 0, 0, 0, 0, last]);
        let shared = Shared::new(root, Some(mac(2)), &[Ipv4Addr::new(203, 0, 113, 5)]);
        for number in 1..=count {
            let (name, mac, metric) = (format!("eth{number}"), mac(number), 200 + u32::from(number));
            let state = InterfaceState { name, mac, carrier: true, lease: None, ipv6: false, metric };
            shared.update(|snapshot| snapshot.insert(u32::from(number), state).is_none());
        }
        shared
    }

    fn root() -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("etc")).unwrap();
        let root = Root::at(dir.path());
        (dir, root)
    }

    #[test]
    fn leases_of_the_same_moment_are_all_kept() {
        let (_dir, root) = root();
        let shared = shared(root.clone(), 5);
        for round in 0..50 {
            let together = std::sync::Barrier::new(5);
            std::thread::scope(|scope| {
                for number in 1..=5 {
                    let (shared, together) = (shared.clone(), &together);
                    scope.spawn(move || {
                        together.wait();
                        shared.set_lease(u32::from(number), Some(lease(number)));
                    });
                }
            });
            let snapshot = shared.subscribe().borrow().clone();
            assert!(snapshot.values().all(|state| state.lease.is_some()), "round {round}: {snapshot:?}");
            let text = std::fs::read_to_string(root.path("etc/resolv.conf")).unwrap();
            assert_eq!(text.matches("nameserver").count(), 5, "round {round}: {text}");
            (1..=5).for_each(|number| shared.set_lease(number, None));
        }
    }

    #[test]
    fn the_interface_that_booted_leads_and_before_it_the_first_with_a_lease() {
        let (_dir, root) = root();
        let shared = shared(root, 4);
        let leading = |index| shared.guard(index).leading.map(|leading| (leading.name, leading.certain));
        assert_eq!(leading(1), None);
        shared.set_lease(3, Some(lease(3)));
        shared.set_lease(1, Some(lease(1)));
        // (interface, who leads it)
        let guess = Some(("eth3".to_owned(), false));
        for (index, want) in [(1, guess.clone()), (2, None), (3, None), (4, guess)] {
            assert_eq!(leading(index), want, "{index}");
        }
        let others = |index| shared.guard(index).others.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!((others(3), others(2).len()), (vec!["eth1".to_owned()], 0));
        shared.set_lease(2, Some(lease(2)));
        let certain = Some(("eth2".to_owned(), true));
        for (index, want) in [(1, certain.clone()), (2, None), (3, certain.clone()), (4, certain)] {
            assert_eq!(leading(index), want, "{index}");
        }
        assert_eq!(shared.guard(3).servers, [Ipv4Addr::new(10, 0, 1, 1), Ipv4Addr::new(10, 0, 2, 1)]);
        shared.set_lease(2, None);
        shared.set_lease(3, None);
        assert_eq!(leading(4), Some(("eth1".to_owned(), false)));
    }
}
