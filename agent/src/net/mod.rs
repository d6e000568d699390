//! The network: bringing it up, and what is announced about it.
//!
//! In our own ramdisk every link is taken up at once and asks for an address by DHCPv4 as soon as it has a link partner,
//! all in parallel; IPv6 addresses come from the kernel, which hears router advertisements by itself. A port without
//! cable, a slow driver or a silent server holds up nobody else. The machine counts as connected with the first
//! address, where the interface that booted it gets a small head start.
//!
//! As a service of another ramdisk nothing is touched: whoever started the agent has set the network up.

pub mod advertise;
mod apply;
pub mod dhcp4;
mod dhcp_socket;
mod guard;
mod interface;
mod manager;
mod resolv;
mod state;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ferric_sys::Root;
use ferric_types::MacAddress;
use tokio::sync::watch;
use tokio::time::{Instant, interval_at, sleep, sleep_until};
use tracing::{info, warn};

use crate::config::Config;
use crate::http::Url;
use crate::http::url::Host;
use crate::init::inherit;
use state::Shared;
pub use state::{InterfaceState, Snapshot};

/// How long others wait for the interface that booted the machine.
const BOOT_HEAD_START: Duration = Duration::from_secs(3);
/// How long IPv6 waits for IPv4: most conductors are reached by IPv4.
const IPV4_HEAD_START: Duration = Duration::from_secs(5);
/// Pause before names without an address are looked up again.
const RESOLVE_PAUSE: Duration = Duration::from_secs(10);
/// How often a person is told what is waited for.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// Where an interface's configuration comes from. Static data from virtual media and DHCPv6 have their places here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A lease.
    Dhcp4,
    /// Router advertisements, handled by the kernel.
    RouterAdvertisement,
}

/// Why there is no network at all.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The kernel does not talk about its network.
    #[error("opening a netlink socket")]
    Netlink(#[source] std::io::Error),
    /// Links or addresses cannot be listed.
    #[error("listing links and addresses")]
    List(#[source] std::io::Error),
}

/// The network, once it is up.
#[derive(Debug, Clone)]
pub struct Net {
    /// `None` when somebody else looks after the network.
    interfaces: Option<watch::Receiver<Snapshot>>,
    boot_mac: Option<MacAddress>,
}

/// Brings the network up and returns when there is a first usable address; everything else goes on in background
/// tasks for as long as the runtime lives. It waits without limit, telling what for.
///
/// # Errors
/// The kernel's network cannot be talked to.
pub async fn bring_up(config: &Config) -> Result<Net, NetError> {
    let boot_mac = boot_mac(config);
    if !inherit::supervised() {
        return Ok(Net { interfaces: None, boot_mac });
    }
    let (api, names) = api_hosts(config);
    let shared = Shared::new(Root::host(), boot_mac, &api);
    if !names.is_empty() {
        drop(tokio::spawn(resolve(shared.clone(), names)));
    }
    let interfaces = shared.subscribe();
    manager::spawn(shared, boot_mac, &config.enable_vlan_interfaces)?;
    let net = Net { interfaces: Some(interfaces), boot_mac };
    net.wait_first().await;
    Ok(net)
}

/// The hosts that the conductor's API has: addresses, and names.
fn api_hosts(config: &Config) -> (Vec<Ipv4Addr>, Vec<String>) {
    let (mut addresses, mut names) = (Vec::new(), Vec::new());
    let urls = config.api_urls.iter().chain(&config.inspection_callback_urls);
    for url in urls.filter_map(|text| text.parse::<Url>().ok()) {
        match url.host() {
            Host::Ip(IpAddr::V4(address)) => addresses.push(*address),
            Host::Ip(IpAddr::V6(_)) => {}
            Host::Name(name) => names.push(name.clone()),
        }
    }
    (addresses, names)
}

/// Finds out the addresses that names have, again whenever there are other name servers.
async fn resolve(shared: Shared, names: Vec<String>) {
    let mut interfaces = shared.subscribe();
    let mut asked = Vec::new();
    loop {
        let leases =
            interfaces.borrow_and_update().values().filter_map(|state| state.lease.clone()).collect::<Vec<_>>();
        let servers: Vec<Ipv4Addr> = leases.into_iter().flat_map(|lease| lease.dns).collect();
        let mut missing = false;
        if servers != asked && !servers.is_empty() {
            let mut found = Vec::new();
            for name in &names {
                match tokio::net::lookup_host((name.as_str(), 0)).await {
                    Ok(addresses) => found.extend(addresses.filter_map(|address| match address.ip() {
                        IpAddr::V4(address) => Some(address),
                        IpAddr::V6(_) => None,
                    })),
                    Err(_whoever_needs_it_says_so) => missing = true,
                }
            }
            shared.set_resolved(found);
            asked = if missing { Vec::new() } else { servers };
        }
        tokio::select! {
            changed = interfaces.changed() => if changed.is_err() { return },
            () = sleep(RESOLVE_PAUSE), if missing => {}
        }
    }
}

fn boot_mac(config: &Config) -> Option<MacAddress> {
    let text = config.bootif.as_deref()?;
    let mac = MacAddress::from_bootif(text);
    mac.inspect_err(|error| warn!("kernel parameter BOOTIF: {error}")).ok()
}

/// The interface that booted the machine; of it and its VLANs, which have the same address, the one that got furthest.
fn booted(snapshot: &Snapshot, boot_mac: Option<MacAddress>) -> Option<&InterfaceState> {
    let of_boot = snapshot.values().filter(|state| Some(state.mac) == boot_mac);
    of_boot.max_by_key(|state| (state.lease.is_some(), state.ipv6, state.carrier))
}

/// How far a network is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ready {
    Now,
    /// Good enough once this time has passed since the first address.
    After(Duration),
    No,
}

fn readiness(snapshot: &Snapshot, boot_mac: Option<MacAddress>) -> Ready {
    let boot = booted(snapshot, boot_mac).filter(|state| state.carrier);
    let any_ipv4 = snapshot.values().any(|state| state.lease.is_some());
    let any = snapshot.values().any(InterfaceState::has_address);
    match boot {
        _ if !any => Ready::No,
        Some(boot) if boot.lease.is_some() => Ready::Now,
        Some(boot) if boot.ipv6 && !any_ipv4 => Ready::After(IPV4_HEAD_START),
        Some(_) if any_ipv4 => Ready::After(BOOT_HEAD_START),
        None if any_ipv4 => Ready::Now,
        _ => Ready::After(IPV4_HEAD_START),
    }
}

/// Waits until `done` says so, at most until the deadline; tells every ten seconds what `waiting` describes.
async fn wait_until(
    interfaces: &watch::Receiver<Snapshot>,
    limit: Option<Duration>,
    waiting: &str,
    mut done: impl FnMut(&Snapshot) -> Ready,
) -> bool {
    let mut interfaces = interfaces.clone();
    let started = Instant::now();
    let mut first: Option<Instant> = None;
    let mut reports = interval_at(started + REPORT_EVERY, REPORT_EVERY);
    loop {
        let ready = done(&interfaces.borrow_and_update());
        let grace = match ready {
            Ready::Now => return true,
            Ready::After(grace) => Some(*first.get_or_insert_with(Instant::now) + grace),
            Ready::No => None,
        };
        tokio::select! {
            changed = interfaces.changed() => if changed.is_err() {
                // Nobody will ever change it again.
                sleep(REPORT_EVERY).await;
            },
            () = sleep_until(grace.unwrap_or(started)), if grace.is_some() => return true,
            () = sleep_until(started + limit.unwrap_or_default()), if limit.is_some() => return false,
            _ = reports.tick() => {
                let states = describe(&interfaces.borrow());
                info!("waiting for {waiting} for {} s: {states}", started.elapsed().as_secs());
            }
        }
    }
}

fn describe(snapshot: &Snapshot) -> String {
    if snapshot.is_empty() {
        return "there is no network interface".to_owned();
    }
    let of_interface = |state: &InterfaceState| {
        let what = match state {
            InterfaceState { lease: Some(lease), .. } => format!("has {}", lease.address),
            InterfaceState { ipv6: true, .. } => "has an IPv6 address".to_owned(),
            InterfaceState { carrier: true, .. } => "asks for an address".to_owned(),
            _ => "no cable or link partner".to_owned(),
        };
        format!("{} ({}) {what}", state.name, state.mac)
    };
    snapshot.values().map(of_interface).collect::<Vec<_>>().join(", ")
}

impl Net {
    async fn wait_first(&self) {
        if let Some(interfaces) = &self.interfaces {
            wait_until(interfaces, None, "a network address", |snapshot| readiness(snapshot, self.boot_mac)).await;
        }
    }

    /// Waits for the addresses that an inspection is to report: on every interface with a link partner, or only on the
    /// one that booted the machine (any one when it is not known). At most `inspection_dhcp_wait_timeout`; false when
    /// that passed first.
    pub async fn wait_for_addresses(&self, config: &Config) -> bool {
        let Some(interfaces) = &self.interfaces else { return true };
        let limit = config.inspection_dhcp_wait_timeout;
        let (all, boot_mac) = (config.inspection_dhcp_all_interfaces, self.boot_mac);
        let complete =
            move |snapshot: &Snapshot| if inspectable(snapshot, all, boot_mac) { Ready::Now } else { Ready::No };
        let there = wait_until(interfaces, Some(limit), "addresses to inspect", complete).await;
        if !there && !limit.is_zero() {
            warn!("inspecting without all addresses after {} s: {}", limit.as_secs(), describe(&interfaces.borrow()));
        }
        there
    }

    /// Address of the interface that booted the machine, when it is known and has a driver.
    pub fn boot_interface(&self) -> Option<MacAddress> {
        let boot_mac = self.boot_mac?;
        let interfaces = self.interfaces.as_ref()?.borrow();
        interfaces.values().any(|state| state.mac == boot_mac).then_some(boot_mac)
    }

    /// The interfaces now; empty when somebody else looks after the network.
    pub fn interfaces(&self) -> Snapshot {
        self.interfaces.as_ref().map(|interfaces| interfaces.borrow().clone()).unwrap_or_default()
    }

    /// Time servers that DHCP servers named, of the best interface first.
    pub fn time_servers(&self) -> Vec<Ipv4Addr> {
        let mut states: Vec<InterfaceState> = self.interfaces().into_values().collect();
        states.sort_by_key(|state| state.metric);
        states.into_iter().filter_map(|state| state.lease).flat_map(|lease| lease.ntp).collect()
    }

    /// The source address of the route to a destination; `None` without a usable one.
    pub fn source_for(&self, destination: IpAddr) -> Option<IpAddr> {
        advertise::source_for(destination)
    }
}

fn inspectable(snapshot: &Snapshot, all: bool, boot_mac: Option<MacAddress>) -> bool {
    let connected = || snapshot.values().filter(|state| state.carrier);
    // A port that has a network only in a VLAN never gets an address of its own.
    let of = |state: &InterfaceState, vlan: &InterfaceState| {
        vlan.name.strip_prefix(&state.name).is_some_and(|number| number.starts_with('.'))
    };
    let served = |state: &InterfaceState| {
        state.has_address() || snapshot.values().any(|other| other.has_address() && of(state, other))
    };
    let boot = booted(snapshot, boot_mac);
    match boot {
        _ if all => connected().next().is_some() && connected().all(served),
        Some(boot) => boot.has_address(),
        None => snapshot.values().any(InterfaceState::has_address),
    }
}

#[cfg(test)]
mod tests;
