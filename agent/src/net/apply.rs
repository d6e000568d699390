//! Puts a lease into the kernel and takes it out again.
//!
//! Every route has the metric of its interface, so a renewed lease replaces its own routes and never another
//! interface's; all of them go away with the address, which is the preferred source of each.

use std::net::{IpAddr, Ipv4Addr};

use futures_util::TryStreamExt;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use rtnetlink::packet_route::route::{RouteFlags, RouteMessage, RouteProtocol, RouteScope};
use rtnetlink::{Handle, LinkUnspec, RouteMessageBuilder};
use tracing::{debug, warn};

use super::dhcp4::{Lease, Route};

/// What could not be changed in the kernel.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApplyError {
    /// The address.
    #[error("setting address {address}/{prefix}")]
    Address {
        /// Address.
        address: Ipv4Addr,
        /// Prefix length.
        prefix: u8,
        /// Reason.
        #[source]
        source: rtnetlink::Error,
    },
    /// A link.
    #[error("changing interface {index}")]
    Link {
        /// Index of the interface.
        index: u32,
        /// Reason.
        #[source]
        source: rtnetlink::Error,
    },
}

/// Takes an interface up.
pub(super) async fn link_up(handle: &Handle, index: u32) -> Result<(), ApplyError> {
    let message = LinkUnspec::new_with_index(index).up().build();
    handle.link().set(message).execute().await.map_err(|source| ApplyError::Link { index, source })
}

/// Sets address, routes and MTU of a lease. A route that the kernel refuses is logged and left out.
pub(super) async fn set(
    handle: &Handle,
    index: u32,
    metric: u32,
    lease: &Lease,
    old: Option<&Lease>,
) -> Result<(), ApplyError> {
    let (address, prefix) = (lease.address, lease.prefix);
    if let Some(mtu) = lease.mtu {
        let message = LinkUnspec::new_with_index(index).mtu(mtu).build();
        if let Err(error) = handle.link().set(message).execute().await {
            warn!("setting the MTU of interface {index} to {mtu}: {error}");
        }
    }
    let mut request = handle.address().add(index, IpAddr::V4(address), prefix).replace();
    // The kernel's own route to the network would have no metric; two interfaces in one network would fight.
    request.message_mut().attributes.push(AddressAttribute::Flags(AddressFlags::Noprefixroute));
    request.execute().await.map_err(|source| ApplyError::Address { address, prefix, source })?;
    for route in all_routes(lease) {
        if let Err(error) = handle.route().add(message(index, metric, lease, route)).replace().execute().await {
            warn!("setting route {}/{} on interface {index}: {error}", route.network, route.prefix);
        }
    }
    for route in old.map(all_routes).unwrap_or_default() {
        if !all_routes(lease).contains(&route) {
            let removed = handle.route().del(message(index, metric, lease, route)).execute().await;
            debug!("removing route {}/{} on interface {index}: {removed:?}", route.network, route.prefix);
        }
    }
    Ok(())
}

/// Removes the address of a lease, and with it its routes.
pub(super) async fn remove(handle: &Handle, index: u32, address: Ipv4Addr) {
    let mut addresses = handle.address().get().set_link_index_filter(index).execute();
    while let Ok(Some(message)) = addresses.try_next().await {
        if ipv4(&message) == Some(address)
            && let Err(error) = handle.address().del(message).execute().await
        {
            debug!("removing {address} from interface {index}: {error}");
        }
    }
}

/// The IPv4 address in a message, if that is what it is about.
pub(super) fn ipv4(message: &AddressMessage) -> Option<Ipv4Addr> {
    message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(IpAddr::V4(address)) => Some(*address),
        _ => None,
    })
}

/// The network itself first: routers must be reachable before there are routes through them.
fn all_routes(lease: &Lease) -> Vec<Route> {
    let own = Route { network: network(lease.address, lease.prefix), prefix: lease.prefix, router: None };
    let mut routes = vec![own];
    routes.extend(lease.routes.iter().filter(|route| **route != own));
    // Routes on the link before those through routers, whatever order the server chose.
    routes.sort_by_key(|route| route.router.is_some());
    routes
}

fn network(address: Ipv4Addr, prefix: u8) -> Ipv4Addr {
    let bits = u32::from(prefix.min(32));
    Ipv4Addr::from(u32::from(address) & u32::MAX.checked_shl(32 - bits).unwrap_or(0))
}

fn message(index: u32, metric: u32, lease: &Lease, route: Route) -> RouteMessage {
    let builder = RouteMessageBuilder::<Ipv4Addr>::new()
        .destination_prefix(route.network, route.prefix)
        .output_interface(index)
        .pref_source(lease.address)
        .priority(metric)
        .protocol(RouteProtocol::Dhcp);
    let Some(router) = route.router else { return builder.scope(RouteScope::Link).build() };
    let mut message = builder.gateway(router).build();
    if network(router, lease.prefix) != network(lease.address, lease.prefix) {
        // Clouds lend /32 addresses with a router outside; it is on the link all the same.
        message.header.flags |= RouteFlags::Onlink;
    }
    message
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn lease(prefix: u8, routes: Vec<Route>) -> Lease {
        Lease {
            address: Ipv4Addr::new(10, 0, 2, 15),
            prefix,
            server: Ipv4Addr::new(10, 0, 2, 2),
            routes,
            dns: Vec::new(),
            search: Vec::new(),
            hostname: None,
            ntp: Vec::new(),
            mtu: None,
            lifetime: Duration::from_secs(60),
            renew_after: Duration::from_secs(30),
            rebind_after: Duration::from_secs(50),
        }
    }

    #[test]
    fn networks_are_masked() {
        let address = Ipv4Addr::new(10, 1, 2, 3);
        for (prefix, want) in
            [(0, [0, 0, 0, 0]), (8, [10, 0, 0, 0]), (23, [10, 1, 2, 0]), (32, [10, 1, 2, 3]), (99, [10, 1, 2, 3])]
        {
            assert_eq!(network(address, prefix), Ipv4Addr::from(want), "{prefix}");
        }
    }

    #[test]
    fn the_link_comes_before_the_router() {
        let default = Route { network: Ipv4Addr::UNSPECIFIED, prefix: 0, router: Some(Ipv4Addr::new(10, 0, 2, 2)) };
        let own = Route { network: Ipv4Addr::new(10, 0, 2, 0), prefix: 24, router: None };
        assert_eq!(all_routes(&lease(24, vec![default, own])), [own, default]);
    }

    #[test]
    fn a_router_outside_the_network_is_on_the_link() {
        let route = |router| Route { network: Ipv4Addr::UNSPECIFIED, prefix: 0, router: Some(router) };
        let inside = route(Ipv4Addr::new(10, 0, 2, 2));
        assert!(!message(2, 100, &lease(24, vec![inside]), inside).header.flags.contains(RouteFlags::Onlink));
        assert!(message(2, 100, &lease(32, vec![inside]), inside).header.flags.contains(RouteFlags::Onlink));
    }
}
