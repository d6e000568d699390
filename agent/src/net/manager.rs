//! All interfaces: takes each up, starts its client, follows what the kernel says about links and IPv6 addresses.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr};

use ferric_hardware::probe::nics;
use ferric_hardware::probe::vlan::{self, Vlan};
use ferric_sys::netlink::{Address, Event, Events, Link, Netlink, Received};
use ferric_sys::{Root, attr};
use ferric_types::MacAddress;
use ferric_types::error::chain;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tracing::{debug, info, warn};

use super::interface::{self, Interface};
use super::state::{InterfaceState, Shared};
use super::{NetError, apply};

/// Metric of the interface that booted the machine.
const BOOT_METRIC: u32 = 100;
/// Metric of interface number 0; the others follow by number.
const METRIC: u32 = 200;

/// Follows the kernel's messages in a background task from now on.
pub(super) fn spawn(shared: Shared, boot_mac: Option<MacAddress>, vlans: &[String]) -> Result<(), NetError> {
    // Before the first look, so that no change falls between.
    let events = Events::open().map_err(NetError::Netlink)?;
    #[expect(deprecated, reason = "its successor is unsafe; an Events keeps one descriptor for all its life")]
    let events = AsyncFd::new(events).map_err(NetError::Netlink)?;
    prepare(&Root::host());
    for entry in vlan::invalid(vlans) {
        warn!("ipa-enable-vlan-interfaces: {entry} is left out: the number of a VLAN is 1 to 4094");
    }
    let mut manager =
        Manager { shared, boot_mac, vlans: vlans.to_vec(), with_vlans: HashSet::new(), tasks: HashMap::new() };
    manager.look_at_all().map_err(NetError::List)?;
    drop(tokio::spawn(manager.follow(events)));
    Ok(())
}

/// Kernel settings; without them things work, only less well.
fn prepare(root: &Root) {
    for scope in ["all", "default"] {
        // A default route through an unplugged interface must not hide the others.
        let path = root.path(format!("proc/sys/net/ipv4/conf/{scope}/ignore_routes_with_linkdown"));
        if let Err(error) = attr::write(&path, "1") {
            debug!("{}", chain(&error));
        }
    }
}

#[derive(Debug)]
struct Running {
    carrier: watch::Sender<bool>,
    task: AbortHandle,
}

struct Manager {
    shared: Shared,
    boot_mac: Option<MacAddress>,
    /// The operator's wishes for VLANs.
    vlans: Vec<String>,
    /// Interfaces whose VLANs have been made.
    with_vlans: HashSet<u32>,
    tasks: HashMap<u32, Running>,
}

impl Manager {
    /// Links that are there, with the addresses that a worker before this one, or the kernel, gave them.
    fn look_at_all(&mut self) -> io::Result<()> {
        let netlink = Netlink::open()?;
        let addresses = netlink.addresses()?;
        for link in netlink.links()? {
            let own = addresses.iter().filter(|address| address.interface == link.index && address.global);
            let mut ipv4 = own.filter_map(|address| match address.address {
                IpAddr::V4(address) => Some(address),
                IpAddr::V6(_) => None,
            });
            let remembered = ipv4.next();
            self.link(link, remembered);
        }
        addresses.iter().for_each(|address| self.address(address, true));
        Ok(())
    }

    async fn follow(mut self, events: AsyncFd<Events>) {
        loop {
            let Ok(mut ready) = events.readable().await else { return };
            match ready.try_io(|events| events.get_ref().receive()) {
                Ok(Ok(Received::Events(events))) => events.into_iter().for_each(|event| self.event(event)),
                Ok(Ok(Received::Overrun)) => {
                    info!("messages about links were lost, looking at all of them again");
                    if let Err(error) = self.look_at_all() {
                        warn!("listing links: {error}");
                    }
                }
                Ok(Err(error)) => {
                    warn!("the kernel does not tell about links any more: {error}");
                    return;
                }
                Err(_not_ready) => {}
            }
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Link(link) => self.link(link, None),
            Event::LinkGone(index) => self.gone(index),
            Event::Address(address) => self.address(&address, true),
            Event::AddressGone(address) => self.address(&address, false),
        }
    }

    fn link(&mut self, link: Link, remembered: Option<Ipv4Addr>) {
        if !link.is_up {
            self.take_up(&link);
        }
        let Some(mac) = usable_mac(&link) else { return };
        if link.is_up && !nics::is_vlan(&link.name) && self.with_vlans.insert(link.index) {
            self.make_vlans(&link.name, mac);
        }
        let metric = self.metric(mac, &link);
        let state =
            InterfaceState { name: link.name.clone(), mac, carrier: link.carrier, lease: None, ipv6: false, metric };
        let carrier = link.carrier;
        self.shared.update(|snapshot| match snapshot.get_mut(&link.index) {
            Some(known) => {
                let changed = known.carrier != carrier || known.name != state.name;
                known.carrier = carrier;
                known.name.clone_from(&state.name);
                changed
            }
            None => snapshot.insert(link.index, state).is_none(),
        });
        let running = self.tasks.entry(link.index).or_insert_with(|| {
            let (carrier, receiver) = watch::channel(false);
            let interface = Interface { index: link.index, name: link.name, mac, metric, remembered };
            let task = tokio::spawn(interface::run(interface, receiver, self.shared.clone()));
            Running { carrier, task: task.abort_handle() }
        });
        running.carrier.send_if_modified(|known| std::mem::replace(known, link.carrier) != link.carrier);
    }

    /// In a thread of its own: some drivers take seconds, and the others need not wait for them.
    fn take_up(&self, link: &Link) {
        let (index, name) = (link.index, link.name.clone());
        drop(tokio::task::spawn_blocking(move || {
            if let Err(error) = apply::link_up(index) {
                warn!("taking {name} up: {error}; the interface is left out");
            }
        }));
    }

    /// The VLANs that are named by number are interfaces from the start: a port may have no network but these. The kernel
    /// tells of each as of any other interface.
    fn make_vlans(&self, parent: &str, mac: MacAddress) {
        for id in vlan::numbered(&self.vlans, parent, &mac.to_string()) {
            let vlan = Vlan { parent: parent.to_owned(), id };
            drop(tokio::task::spawn_blocking(move || match vlan.make() {
                Ok(()) => info!("{}: VLAN interface made", vlan.name()),
                Err(error) => warn!("making VLAN interface {}: {error}", vlan.name()),
            }));
        }
    }

    /// A VLAN has the address of the interface below it, and still needs routes of its own.
    fn metric(&self, mac: MacAddress, link: &Link) -> u32 {
        match (self.boot_mac == Some(mac), nics::is_vlan(&link.name)) {
            (true, false) => BOOT_METRIC,
            (true, true) => BOOT_METRIC.saturating_add(link.index).min(METRIC - 1),
            (false, _) => METRIC.saturating_add(link.index),
        }
    }

    fn gone(&mut self, index: u32) {
        self.with_vlans.remove(&index);
        if let Some(running) = self.tasks.remove(&index) {
            running.task.abort();
            info!("interface {index} is gone");
            self.shared.set_lease(index, None);
            self.shared.update(|snapshot| snapshot.remove(&index).is_some());
        }
    }

    fn address(&self, address: &Address, is_there: bool) {
        if is_usable_ipv6(address) {
            self.shared.set_ipv6(address.interface, is_there);
        }
    }
}

/// The address of an Ethernet card; none for loopback, InfiniBand and cards whose driver knows no address.
fn usable_mac(link: &Link) -> Option<MacAddress> {
    let mac = MacAddress(link.address.as_slice().try_into().ok()?);
    (link.ethernet && !link.loopback && !mac.is_zero()).then_some(mac)
}

/// A global IPv6 address that has passed duplicate address detection.
const fn is_usable_ipv6(address: &Address) -> bool {
    address.address.is_ipv6() && address.global && !address.tentative
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card() -> Link {
        Link {
            index: 2,
            name: "eth0".into(),
            address: vec![2, 0, 0, 0, 0, 1],
            is_up: true,
            carrier: true,
            loopback: false,
            ethernet: true,
        }
    }

    #[test]
    fn the_interface_that_booted_comes_first_then_its_vlans_then_the_others() {
        let mac = MacAddress([2, 0, 0, 0, 0, 1]);
        let manager = Manager {
            shared: Shared::new(Root::at("/nonexistent"), Some(mac), &[]),
            boot_mac: Some(mac),
            vlans: Vec::new(),
            with_vlans: HashSet::new(),
            tasks: HashMap::new(),
        };
        let other = MacAddress([2, 0, 0, 0, 0, 2]);
        for (name, index, mac, want) in [
            ("eth0", 2, mac, 100),
            ("eth0.5", 7, mac, 107),
            ("eth0.6", 500, mac, 199),
            ("eth1", 3, other, 203),
            ("eth1.5", 8, other, 208),
        ] {
            let link = Link { name: name.into(), index, ..card() };
            assert_eq!(manager.metric(mac, &link), want, "{name}");
        }
    }

    #[test]
    fn only_ethernet_cards_with_an_address_are_used() {
        let card = card();
        assert_eq!(usable_mac(&card), Some(MacAddress([2, 0, 0, 0, 0, 1])));
        let others = [
            Link { address: vec![0; 6], ..card.clone() },
            Link { address: vec![1; 20], ..card.clone() },
            Link { loopback: true, ..card.clone() },
            Link { ethernet: false, ..card },
        ];
        for link in others {
            assert_eq!(usable_mac(&link), None, "{link:?}");
        }
    }

    #[test]
    fn only_global_ipv6_addresses_that_are_confirmed_count() {
        let address = |text: &str, global, tentative| {
            let address = text.parse().unwrap();
            is_usable_ipv6(&Address { interface: 2, address, prefix: 64, global, tentative })
        };
        assert!(address("2001:db8::1", true, false));
        assert!(!address("2001:db8::1", true, true));
        assert!(!address("fe80::1", false, false));
        assert!(!address("10.0.0.1", true, false));
    }
}
