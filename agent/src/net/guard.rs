//! What one interface's lease may not do to another's: cut the machine off from its conductor.
//!
//! A DHCP server on a second network, rogue or merely ill-configured, can lend the address of the conductor or of a
//! router, or give a route that is more specific than the one by which the conductor is reached; either holds for the
//! whole machine. So the leases of all interfaces but one, the *leading* one, are looked at before they are used, and
//! again whenever another lease changes. The interface that booted the machine leads as soon as it has a lease.
//!
//! Without it the first one with a lease leads, which is only a guess: that may be an office network, and the
//! provisioning network may be on another card. Then networks that another card is itself part of, and routes to what
//! the leading one reaches by its default route alone, are left as they are; and even the leading one may not take the
//! conductor away from a card in whose network it is. Default routes go by metric in all cases.

use std::net::Ipv4Addr;

use super::apply::{all_routes, network};
use super::dhcp4::{Lease, Route};

/// The interface whose lease wins.
#[derive(Debug, Clone)]
pub(super) struct Leading {
    pub(super) name: String,
    pub(super) lease: Lease,
    pub(super) metric: u32,
    /// It booted the machine; otherwise it is a guess.
    pub(super) certain: bool,
}

/// What the lease of one interface is held against.
#[derive(Debug, Clone, Default)]
pub(super) struct Guard {
    /// Addresses of the conductor's API as configured.
    pub(super) api: Vec<Ipv4Addr>,
    /// Addresses that the API's names have.
    pub(super) resolved: Vec<Ipv4Addr>,
    /// `None` when the interface itself leads, or nobody does.
    pub(super) leading: Option<Leading>,
    /// The leases of other interfaces, by their names; none when the interface booted the machine.
    pub(super) others: Vec<(String, Lease)>,
    /// DHCP servers of the other interfaces.
    pub(super) servers: Vec<Ipv4Addr>,
}

/// A route that is not set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) route: Route,
    pub(super) reason: String,
}

impl Guard {
    /// Whose address has been lent to us, when it can only be somebody else's.
    pub(super) fn owner(&self, lease: &Lease) -> Option<String> {
        let address = lease.address;
        // A name server may be wrong about the API, the configuration is not: only it is held against the leading one.
        if self.api.contains(&address) || (self.leading.is_some() && self.resolved.contains(&address)) {
            return Some("the conductor's API".to_owned());
        }
        let Leading { name, lease: theirs, .. } = self.leading.as_ref()?;
        if address == theirs.address {
            return Some(format!("this machine's {name}"));
        }
        if routers(theirs).any(|router| router == address) {
            return Some(format!("a router of {name}'s network"));
        }
        if theirs.dns.contains(&address) {
            return Some(format!("a name server of {name}'s network"));
        }
        self.servers.contains(&address).then(|| "the DHCP server of another interface".to_owned())
    }

    /// The routes of a lease in the order to set them, and those that must not be set.
    pub(super) fn routes(&self, lease: &Lease, metric: u32) -> (Vec<Route>, Vec<Refused>) {
        let (mut set, mut refused) = (Vec::new(), Vec::new());
        for route in all_routes(lease) {
            match self.objection(lease, metric, route) {
                None => set.push(route),
                Some(reason) => refused.push(Refused { route, reason }),
            }
        }
        (set, refused)
    }

    fn objection(&self, lease: &Lease, metric: u32, route: Route) -> Option<String> {
        let is_own_address = route.prefix >= 32 && route.network == lease.address;
        if route.prefix == 0 || is_own_address {
            return None;
        }
        let own = route.router.is_none() && route.network == network(lease.address, lease.prefix);
        let api = || self.api.iter().chain(&self.resolved).copied();
        let local = |(_, theirs): &&(String, Lease)| {
            let in_theirs = |address| network(address, theirs.prefix) == network(theirs.address, theirs.prefix);
            route.prefix > theirs.prefix && api().any(|address| covers(route, address) && in_theirs(address))
        };
        if let Some((name, _)) = self.others.iter().find(local).filter(|_| !own) {
            return Some(format!("it would take the conductor's API from {name}"));
        }
        let Leading { name, lease: theirs, metric: their_metric, certain } = self.leading.as_ref()?;
        let known = api().chain(theirs.dns.iter().copied());
        for address in known.chain(routers(theirs)).chain([theirs.server]) {
            let Some(by) = best(theirs, address).filter(|_| covers(route, address)) else { continue };
            let left_alone = match certain {
                true => own && by.prefix == 0,
                false => own || by.prefix == 0,
            };
            let wins = route.prefix > by.prefix || (route.prefix == by.prefix && metric < *their_metric);
            if wins && !left_alone {
                return Some(format!("it would take {address} from {name}"));
            }
        }
        let inside = route.prefix > theirs.prefix
            && network(route.network, theirs.prefix) == network(theirs.address, theirs.prefix);
        (*certain && inside && !own).then(|| format!("it lies in {name}'s network"))
    }
}

fn routers(lease: &Lease) -> impl Iterator<Item = Ipv4Addr> {
    lease.routes.iter().filter_map(|route| route.router)
}

fn covers(route: Route, address: Ipv4Addr) -> bool {
    network(address, route.prefix) == network(route.network, route.prefix)
}

/// The route of a lease by which an address is reached.
fn best(lease: &Lease, address: Ipv4Addr) -> Option<Route> {
    all_routes(lease).into_iter().filter(|route| covers(*route, address)).max_by_key(|route| route.prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> Ipv4Addr {
        text.parse().unwrap()
    }

    /// `net/prefix` or `net/prefix router`.
    fn route(text: &str) -> Route {
        let (net, router) = text.split_once(' ').map_or((text, None), |(net, router)| (net, Some(ip(router))));
        let (net, prefix) = net.split_once('/').unwrap();
        Route { network: ip(net), prefix: prefix.parse().unwrap(), router }
    }

    fn lease(address: &str, server: &str, routes: &[&str]) -> Lease {
        let (address, prefix) = address.split_once('/').unwrap();
        Lease {
            routes: routes.iter().map(|text| route(text)).collect(),
            dns: vec![ip("10.0.2.3")],
            ..Lease::plain(ip(address), prefix.parse().unwrap(), ip(server))
        }
    }

    /// A machine whose leading interface is in 10.0.2.0/24 with a default route.
    fn guard(api: &[&str], certain: bool) -> Guard {
        let leading = Leading {
            name: "eth0".into(),
            lease: lease("10.0.2.15/24", "10.0.2.4", &["0.0.0.0/0 10.0.2.1"]),
            metric: 100,
            certain,
        };
        Guard {
            api: api.iter().map(|text| ip(text)).collect(),
            resolved: vec![ip("203.0.113.9")],
            leading: Some(leading),
            others: Vec::new(),
            servers: vec![ip("10.0.2.4"), ip("172.16.0.1")],
        }
    }

    #[test]
    fn addresses_that_the_network_needs_are_not_taken() {
        let cases = [
            ("10.0.2.2/24", Some("conductor's API")),
            ("203.0.113.9/24", Some("conductor's API")),
            ("10.0.2.1/24", Some("router of eth0")),
            ("10.0.2.3/32", Some("name server of eth0")),
            ("10.0.2.4/24", Some("DHCP server")),
            ("172.16.0.1/16", Some("DHCP server")),
            ("10.0.2.15/24", Some("this machine's eth0")),
            ("10.0.2.50/24", None),
            ("192.0.2.77/24", None),
        ];
        for certain in [true, false] {
            for (address, want) in cases {
                let owner = guard(&["10.0.2.2"], certain).owner(&lease(address, "192.0.2.1", &[]));
                assert_eq!(owner.is_some(), want.is_some(), "{address} {owner:?}");
                assert!(owner.unwrap_or_default().contains(want.unwrap_or_default()), "{address}");
            }
        }
        // The leading interface itself: what others say does not cost it its address.
        let own = Guard { leading: None, ..guard(&["10.0.2.2"], true) };
        for (address, taken) in [("10.0.2.2/24", true), ("203.0.113.9/24", false), ("10.0.2.4/24", false)] {
            assert_eq!(own.owner(&lease(address, "192.0.2.1", &[])).is_some(), taken, "{address}");
        }
    }

    /// The API's address, the other interface's lease, which of its routes are left out when the leading interface
    /// booted the machine, and when it is a guess.
    type Case =
        (&'static str, (&'static str, &'static [&'static str]), &'static [&'static str], &'static [&'static str]);

    #[test]
    fn routes_that_would_take_the_conductor_away_are_left_out() {
        let cases: [Case; 13] = [
            // Host routes and networks over the API, the router, a name server.
            ("10.0.2.2", ("192.0.2.77/24", &["10.0.2.2/32 192.0.2.1"]), &["10.0.2.2/32"], &["10.0.2.2/32"]),
            ("10.0.2.2", ("192.0.2.77/24", &["10.0.2.2/32"]), &["10.0.2.2/32"], &["10.0.2.2/32"]),
            ("10.0.2.2", ("192.0.2.77/24", &["10.0.2.0/30 192.0.2.1"]), &["10.0.2.0/30"], &["10.0.2.0/30"]),
            ("10.0.2.2", ("192.0.2.77/24", &["10.0.2.1/32 192.0.2.1"]), &["10.0.2.1/32"], &["10.0.2.1/32"]),
            ("10.0.2.2", ("192.0.2.77/24", &["10.0.2.3/32 192.0.2.1"]), &["10.0.2.3/32"], &["10.0.2.3/32"]),
            // Less specific ones, and a default route, do no harm.
            ("10.0.2.2", ("192.0.2.77/24", &["0.0.0.0/0 192.0.2.1", "10.0.0.0/8 192.0.2.1"]), &[], &[]),
            // Anything else in the network of the interface that booted the machine, such as an image server.
            ("10.0.2.2", ("192.0.2.77/24", &["10.0.2.128/25 192.0.2.1"]), &["10.0.2.128/25"], &[]),
            // A network that the other interface is part of, within the leading one's: with the API, and elsewhere.
            ("10.0.2.2", ("10.0.2.9/28", &[]), &["10.0.2.0/28"], &[]),
            ("10.0.2.2", ("10.0.2.129/28", &[]), &[], &[]),
            // Two cards in one network.
            ("10.0.2.2", ("10.0.2.9/24", &["0.0.0.0/0 10.0.2.1"]), &[], &[]),
            // An API behind the default route.
            ("203.0.113.5", ("192.0.2.77/24", &["203.0.113.5/32 192.0.2.1"]), &["203.0.113.5/32"], &[]),
            ("203.0.113.5", ("192.0.2.77/24", &["128.0.0.0/1 192.0.2.1"]), &["128.0.0.0/1"], &[]),
            // A provisioning network with the API in it, on another card than the one with the default route.
            ("203.0.113.5", ("203.0.113.77/24", &["0.0.0.0/0 203.0.113.1"]), &[], &[]),
        ];
        for (api, (address, routes), certain, guess) in cases {
            for (is_certain, want) in [(true, certain), (false, guess)] {
                let lease = lease(address, "192.0.2.1", routes);
                let (set, refused) = guard(&[api], is_certain).routes(&lease, 203);
                let left_out: Vec<String> = refused
                    .iter()
                    .map(|refused| format!("{}/{}", refused.route.network, refused.route.prefix))
                    .collect();
                assert_eq!(left_out, want, "{api} {address} {routes:?} {is_certain}: {refused:?}");
                assert_eq!(set.len() + refused.len(), all_routes(&lease).len());
            }
        }
        let lease = lease("192.0.2.77/24", "192.0.2.1", &["10.0.2.2/32 192.0.2.1"]);
        let alone = Guard { leading: None, ..guard(&["10.0.2.2"], true) };
        assert!(alone.routes(&lease, 100).1.is_empty(), "the leading interface is not restricted");
    }

    #[test]
    fn an_interface_that_leads_by_chance_does_not_take_the_conductor_from_its_network() {
        let others = vec![("eth0".to_owned(), lease("10.0.2.15/24", "10.0.2.4", &["0.0.0.0/0 10.0.2.1"]))];
        // The API, the leading interface's own address, its route, whether that is set.
        let cases = [
            ("10.0.2.2", "192.0.2.77/24", "10.0.2.2/32 192.0.2.1", false),
            ("10.0.2.2", "192.0.2.77/24", "10.0.2.0/25 192.0.2.1", false),
            ("10.0.2.2", "192.0.2.77/24", "10.0.2.0/24 192.0.2.1", true),
            ("10.0.2.2", "192.0.2.77/24", "10.0.2.128/25 192.0.2.1", true),
            ("203.0.113.5", "192.0.2.77/24", "203.0.113.5/32 192.0.2.1", true),
            ("10.0.2.2", "10.0.2.9/28", "0.0.0.0/0 10.0.2.1", true),
        ];
        for (api, address, route, set) in cases {
            let guard = Guard { leading: None, others: others.clone(), ..guard(&[api], false) };
            let (_, refused) = guard.routes(&lease(address, "192.0.2.1", &[route]), 203);
            assert_eq!(refused.is_empty(), set, "{api} {address} {route}: {refused:?}");
        }
    }

    #[test]
    fn a_route_of_the_same_length_loses_by_its_metric_or_is_left_out() {
        let lease = lease("192.0.2.77/24", "192.0.2.1", &["10.0.2.0/24 192.0.2.1"]);
        let guard = guard(&["10.0.2.2"], false);
        assert!(guard.routes(&lease, 203).1.is_empty());
        assert_eq!(guard.routes(&lease, 99).1.len(), 1);
    }
}
