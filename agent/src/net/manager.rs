//! All interfaces: takes each up, starts its client, follows what the kernel says about links and IPv6 addresses.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

use ferric_sys::{Root, attr};
use ferric_types::MacAddress;
use ferric_types::error::chain;
use futures_util::{Stream, StreamExt, TryStreamExt};
use rtnetlink::packet_core::{NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope,
};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage};
use rtnetlink::sys::SocketAddr;
use rtnetlink::{Handle, MulticastGroup};
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
pub(super) async fn spawn(shared: Shared, boot_mac: Option<MacAddress>) -> Result<(), NetError> {
    let groups = [MulticastGroup::Link, MulticastGroup::Ipv6Ifaddr];
    let (connection, handle, messages) = rtnetlink::new_multicast_connection(&groups).map_err(NetError::Netlink)?;
    drop(tokio::spawn(connection));
    prepare(&Root::host());
    let mut manager = Manager { handle, shared, boot_mac, tasks: HashMap::new() };
    manager.look_at_all().await?;
    drop(tokio::spawn(manager.follow(messages)));
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
    handle: Handle,
    shared: Shared,
    boot_mac: Option<MacAddress>,
    tasks: HashMap<u32, Running>,
}

/// What matters in a message about a link.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Link {
    index: u32,
    name: String,
    mac: Option<MacAddress>,
    is_up: bool,
    carrier: bool,
    loopback: bool,
    ethernet: bool,
}

impl Link {
    fn of(message: &LinkMessage) -> Self {
        let mut link = Self {
            index: message.header.index,
            name: format!("interface {}", message.header.index),
            mac: None,
            is_up: message.header.flags.contains(LinkFlags::Up),
            carrier: message.header.flags.contains(LinkFlags::LowerUp),
            loopback: message.header.flags.contains(LinkFlags::Loopback),
            ethernet: message.header.link_layer_type == LinkLayerType::Ether,
        };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name.clone_from(name),
                LinkAttribute::Address(bytes) => link.mac = <[u8; 6]>::try_from(bytes.as_slice()).ok().map(MacAddress),
                _ => {}
            }
        }
        link
    }
}

impl Manager {
    /// Links that are there, with the addresses that a worker before this one, or the kernel, gave them.
    async fn look_at_all(&mut self) -> Result<(), NetError> {
        let addresses: Vec<AddressMessage> =
            self.handle.address().get().execute().try_collect().await.map_err(NetError::List)?;
        let links: Vec<LinkMessage> = self.handle.link().get().execute().try_collect().await.map_err(NetError::List)?;
        for message in &links {
            let link = Link::of(message);
            let mut own = addresses.iter().filter(|address| address.header.index == link.index);
            let remembered =
                own.find_map(|address| apply::ipv4(address).filter(|_| address.header.scope == AddressScope::Universe));
            self.link(link, remembered);
        }
        addresses.iter().for_each(|message| self.address(message, true));
        Ok(())
    }

    async fn follow(
        mut self,
        mut messages: impl Stream<Item = (NetlinkMessage<RouteNetlinkMessage>, SocketAddr)> + Unpin,
    ) {
        while let Some((message, _)) = messages.next().await {
            match message.payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(message)) => {
                    self.link(Link::of(&message), None)
                }
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(message)) => self.gone(message.header.index),
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewAddress(message)) => self.address(&message, true),
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelAddress(message)) => self.address(&message, false),
                _ => {}
            }
        }
        warn!("the kernel does not tell about links any more");
    }

    fn link(&mut self, link: Link, remembered: Option<Ipv4Addr>) {
        if !link.is_up {
            self.take_up(&link);
        }
        let Some(mac) = link.mac.filter(|mac| link.ethernet && !link.loopback && !mac.is_zero()) else { return };
        let metric = self.metric(mac, link.index);
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
            let task = tokio::spawn(interface::run(interface, receiver, self.handle.clone(), self.shared.clone()));
            Running { carrier, task: task.abort_handle() }
        });
        running.carrier.send_if_modified(|known| std::mem::replace(known, link.carrier) != link.carrier);
    }

    /// In a task of its own: some drivers take seconds, and the others need not wait for them.
    fn take_up(&self, link: &Link) {
        let (handle, index, name) = (self.handle.clone(), link.index, link.name.clone());
        drop(tokio::spawn(async move {
            if let Err(error) = apply::link_up(&handle, index).await {
                warn!("{name}: {}; the interface is left out", chain(&error));
            }
        }));
    }

    fn metric(&self, mac: MacAddress, index: u32) -> u32 {
        if self.boot_mac == Some(mac) { BOOT_METRIC } else { METRIC.saturating_add(index) }
    }

    fn gone(&mut self, index: u32) {
        if let Some(running) = self.tasks.remove(&index) {
            running.task.abort();
            info!("interface {index} is gone");
            self.shared.set_lease(index, None);
            self.shared.update(|snapshot| snapshot.remove(&index).is_some());
        }
    }

    fn address(&self, message: &AddressMessage, is_there: bool) {
        if is_usable_ipv6(message) {
            self.shared.set_ipv6(message.header.index, is_there);
        }
    }
}

/// A global IPv6 address that has passed duplicate address detection.
fn is_usable_ipv6(message: &AddressMessage) -> bool {
    let is_ipv6 =
        message.attributes.iter().any(|attribute| matches!(attribute, AddressAttribute::Address(IpAddr::V6(_))));
    let flags = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Flags(flags) => Some(*flags),
        _ => None,
    });
    let tentative = message.header.flags.contains(AddressHeaderFlags::Tentative)
        || flags.is_some_and(|flags| flags.intersects(AddressFlags::Tentative | AddressFlags::Dadfailed));
    is_ipv6 && !tentative && message.header.scope == AddressScope::Universe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_read_from_messages() {
        let mut message = LinkMessage::default();
        message.header.index = 3;
        message.header.link_layer_type = LinkLayerType::Ether;
        message.header.flags = LinkFlags::Up | LinkFlags::LowerUp;
        message.attributes = vec![LinkAttribute::IfName("eth0".into()), LinkAttribute::Address(vec![2, 0, 0, 0, 0, 1])];
        let link = Link::of(&message);
        assert!(link.is_up && link.carrier && link.ethernet && !link.loopback);
        assert_eq!((link.name.as_str(), link.mac), ("eth0", Some(MacAddress([2, 0, 0, 0, 0, 1]))));
        message.attributes = vec![LinkAttribute::Address(vec![1; 20])];
        assert_eq!(Link::of(&message).mac, None, "an InfiniBand address is no Ethernet address");
    }

    #[test]
    fn only_global_ipv6_addresses_that_are_confirmed_count() {
        let mut message = AddressMessage::default();
        message.header.scope = AddressScope::Universe;
        message.attributes.push(AddressAttribute::Address("2001:db8::1".parse().unwrap()));
        assert!(is_usable_ipv6(&message));
        message.attributes.push(AddressAttribute::Flags(AddressFlags::Tentative));
        assert!(!is_usable_ipv6(&message));
        let mut local = AddressMessage::default();
        local.header.scope = AddressScope::Link;
        local.attributes.push(AddressAttribute::Address("fe80::1".parse().unwrap()));
        assert!(!is_usable_ipv6(&local));
        let mut v4 = AddressMessage::default();
        v4.header.scope = AddressScope::Universe;
        v4.attributes.push(AddressAttribute::Local("10.0.0.1".parse().unwrap()));
        assert!(!is_usable_ipv6(&v4));
    }

    #[tokio::test]
    async fn nothing_is_changed_by_looking() {
        // Reads the links of the machine that runs the test through the same code as the agent.
        let (connection, handle, _) = rtnetlink::new_connection().unwrap();
        let task = tokio::spawn(connection);
        let links: Vec<LinkMessage> = handle.link().get().execute().try_collect().await.unwrap();
        assert!(links.iter().map(Link::of).any(|link| link.loopback && link.name == "lo"));
        task.abort();
    }
}
