//! Puts a lease into the kernel and takes it out again. Blocking.
//!
//! Every route has the metric of its interface, so a renewed lease replaces its own routes and never another
//! interface's; all of them go away with the address, which is the preferred source of each. The kernel's own route to
//! the network would have no metric, and two interfaces in one network would fight over it, so it is made here as well.

use std::io;
use std::net::Ipv4Addr;

use ferric_sys::netlink::{LinkChange, Netlink};
use tracing::{debug, warn};

use super::dhcp4::{Lease, Route};

/// Takes an interface up.
pub(super) fn link_up(index: u32) -> io::Result<()> {
    Netlink::open()?.change_link(index, LinkChange::Up)
}

/// Sets address, routes and MTU of a lease and removes other routes that may be there. A route that the kernel refuses
/// is logged and left out.
pub(super) fn set(index: u32, metric: u32, lease: &Lease, routes: &[Route], others: &[Route]) -> io::Result<()> {
    let netlink = Netlink::open()?;
    if let Some(mtu) = lease.mtu
        && let Err(error) = netlink.change_link(index, LinkChange::Mtu(mtu))
    {
        warn!("setting the MTU of interface {index} to {mtu}: {error}");
    }
    netlink.set_address(index, lease.address, lease.prefix)?;
    for route in routes {
        if let Err(error) = netlink.set_route(&kernel_route(index, metric, lease, *route)) {
            warn!("setting route {}/{} on interface {index}: {error}", route.network, route.prefix);
        }
    }
    for route in others {
        if !routes.contains(route) {
            let removed = netlink.remove_route(&kernel_route(index, metric, lease, *route));
            debug!("removing route {}/{} on interface {index}: {removed:?}", route.network, route.prefix);
        }
    }
    Ok(())
}

/// Removes the address of a lease, and with it its routes.
pub(super) fn remove(index: u32, lease: &Lease) {
    let removed = Netlink::open().and_then(|netlink| netlink.remove_address(index, lease.address, lease.prefix));
    if let Err(error) = removed {
        debug!("removing {} from interface {index}: {error}", lease.address);
    }
}

/// The network itself first: routers must be reachable before there are routes through them.
pub(super) fn all_routes(lease: &Lease) -> Vec<Route> {
    let own = Route { network: network(lease.address, lease.prefix), prefix: lease.prefix, router: None };
    let mut routes = vec![own];
    routes.extend(lease.routes.iter().filter(|route| **route != own));
    // Routes on the link before those through routers, whatever order the server chose.
    routes.sort_by_key(|route| route.router.is_some());
    routes
}

/// The network that an address is part of.
pub(super) fn network(address: Ipv4Addr, prefix: u8) -> Ipv4Addr {
    let bits = u32::from(prefix.min(32));
    Ipv4Addr::from(u32::from(address) & u32::MAX.checked_shl(32 - bits).unwrap_or(0))
}

fn kernel_route(interface: u32, metric: u32, lease: &Lease, route: Route) -> ferric_sys::netlink::Route {
    // Clouds lend /32 addresses with a router outside; it is on the link all the same.
    let outside = |router| network(router, lease.prefix) != network(lease.address, lease.prefix);
    ferric_sys::netlink::Route {
        network: route.network,
        prefix: route.prefix,
        router: route.router,
        onlink: route.router.is_some_and(outside),
        source: lease.address,
        interface,
        metric,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(prefix: u8, routes: Vec<Route>) -> Lease {
        Lease { routes, ..Lease::plain(Ipv4Addr::new(10, 0, 2, 15), prefix, Ipv4Addr::new(10, 0, 2, 2)) }
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
        assert!(!kernel_route(2, 100, &lease(24, vec![inside]), inside).onlink);
        assert!(kernel_route(2, 100, &lease(32, vec![inside]), inside).onlink);
    }
}
