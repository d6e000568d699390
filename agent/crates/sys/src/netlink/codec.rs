//! Bytes of rtnetlink messages: requests are written, answers and events are read. Pure.
//!
//! Numbers are in the machine's byte order, addresses in the network's; attributes and messages begin at multiples of
//! four bytes (`netlink(7)`). Names of constants are those of the kernel's headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Address, Event, Link, LinkChange, Route};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;

const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_VLAN_ID: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
const IFA_FLAGS: u16 = 8;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
/// Flags in the type of an attribute that say how it is to be read.
const NLA_TYPE_MASK: u16 = 0x3fff;

const IFF_UP: u32 = 0x1;
const IFF_LOOPBACK: u32 = 0x8;
const IFF_LOWER_UP: u32 = 0x1_0000;
const ARPHRD_ETHER: u16 = 1;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_TENTATIVE: u32 = 0x40;
const IFA_F_NOPREFIXROUTE: u32 = 0x200;

const AF_UNSPEC: u8 = 0;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_LINK: u8 = 253;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_DHCP: u8 = 16;
const RTN_UNICAST: u8 = 1;
const RTNH_F_ONLINK: u32 = 4;

/// `RTNLGRP_LINK` (1) and `RTNLGRP_IPV6_IFADDR` (9) as bits.
pub(super) const GROUPS: u32 = 1 | 1 << 8;

const HEADER: usize = 16;

/// A request, ready to be sent.
pub(super) struct Request(Vec<u8>);

impl Request {
    /// Length and sequence number are filled in when it is complete; there is one request at a time on a socket.
    fn new(kind: u16, flags: u16, body: &[u8]) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((NLM_F_REQUEST | flags).to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(body);
        Self(bytes).sealed()
    }

    fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        self.0.extend(attribute(kind, value));
        self.sealed()
    }

    fn sealed(mut self) -> Self {
        let length = u32::try_from(self.0.len()).unwrap_or(u32::MAX).to_ne_bytes();
        self.0.splice(..4, length);
        self
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn list_links() -> Self {
        Self::new(RTM_GETLINK, NLM_F_DUMP, &[0; 16])
    }

    pub(super) fn list_addresses() -> Self {
        Self::new(RTM_GETADDR, NLM_F_DUMP, &[0; 8])
    }

    pub(super) fn change_link(index: u32, change: LinkChange) -> Self {
        let (flags, mask) = match change {
            LinkChange::Up => (IFF_UP, IFF_UP),
            LinkChange::Down => (0, IFF_UP),
            LinkChange::Mtu(_) | LinkChange::Address(_) => (0, 0),
        };
        // struct ifinfomsg: family, padding, hardware type, index, flags, which flags to change.
        let mut body = vec![AF_UNSPEC, 0, 0, 0];
        body.extend(index.to_ne_bytes());
        body.extend(flags.to_ne_bytes());
        body.extend(mask.to_ne_bytes());
        let request = Self::new(RTM_NEWLINK, NLM_F_ACK, &body);
        match change {
            LinkChange::Mtu(mtu) => request.attribute(IFLA_MTU, &mtu.to_ne_bytes()),
            LinkChange::Address(address) => request.attribute(IFLA_ADDRESS, &address),
            LinkChange::Up | LinkChange::Down => request,
        }
    }

    pub(super) fn add_vlan(parent: u32, name: &str, id: u16) -> Self {
        let data = attribute(IFLA_INFO_DATA, &attribute(IFLA_VLAN_ID, &id.to_ne_bytes()));
        let info = [attribute(IFLA_INFO_KIND, b"vlan"), data].concat();
        Self::new(RTM_NEWLINK, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, &[0; 16])
            .attribute(IFLA_LINK, &parent.to_ne_bytes())
            .attribute(IFLA_IFNAME, name.as_bytes())
            .attribute(IFLA_LINKINFO, &info)
    }

    pub(super) fn address(set: bool, interface: u32, address: Ipv4Addr, prefix: u8) -> Self {
        let (kind, flags) = if set { (RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE) } else { (RTM_DELADDR, 0) };
        // struct ifaddrmsg: family, prefix length, flags, scope, interface.
        let mut body = vec![AF_INET, prefix, 0, RT_SCOPE_UNIVERSE];
        body.extend(interface.to_ne_bytes());
        let request = Self::new(kind, NLM_F_ACK | flags, &body)
            .attribute(IFA_LOCAL, &address.octets())
            .attribute(IFA_ADDRESS, &address.octets());
        if !set {
            return request;
        }
        let request = request.attribute(IFA_FLAGS, &IFA_F_NOPREFIXROUTE.to_ne_bytes());
        if prefix > 30 {
            return request;
        }
        let broadcast = u32::from(address) | u32::MAX >> prefix;
        request.attribute(IFA_BROADCAST, &broadcast.to_be_bytes())
    }

    pub(super) fn route(set: bool, route: &Route) -> Self {
        let (kind, flags) = if set { (RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE) } else { (RTM_DELROUTE, 0) };
        let scope = if route.router.is_some() { RT_SCOPE_UNIVERSE } else { RT_SCOPE_LINK };
        // struct rtmsg: family, lengths of destination and source, service, table, origin, scope, kind, flags.
        let mut body = vec![AF_INET, route.prefix, 0, 0, RT_TABLE_MAIN, RTPROT_DHCP, scope, RTN_UNICAST];
        body.extend(if route.onlink { RTNH_F_ONLINK } else { 0 }.to_ne_bytes());
        let request = Self::new(kind, NLM_F_ACK | flags, &body)
            .attribute(RTA_DST, &route.network.octets())
            .attribute(RTA_OIF, &route.interface.to_ne_bytes())
            .attribute(RTA_PREFSRC, &route.source.octets())
            .attribute(RTA_PRIORITY, &route.metric.to_ne_bytes());
        match route.router {
            Some(router) => request.attribute(RTA_GATEWAY, &router.octets()),
            None => request,
        }
    }
}

/// Length, kind and value, padded.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// A message of the kernel.
pub(super) struct Message<'a> {
    kind: u16,
    body: &'a [u8],
}

/// The messages in what one read gave; a damaged one ends them.
pub(super) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = usize::try_from(u32_at(bytes, 0)?).ok()?;
        let message = Message { kind: u16_at(bytes, 4)?, body: bytes.get(HEADER..length)? };
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

impl Message<'_> {
    /// Whether this ends the answer to a request, and with what error number.
    pub(super) fn end(&self) -> Option<Result<(), i32>> {
        match self.kind {
            // The number is negative; zero says that all went well. `NLMSG_DONE` has one too when a dump failed.
            NLMSG_ERROR | NLMSG_DONE => {
                let number = self.body.first_chunk::<4>().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
                Some(if number < 0 { Err(number.saturating_neg()) } else { Ok(()) })
            }
            _ => None,
        }
    }

    /// What it says about a link or an address.
    pub(super) fn event(&self) -> Option<Event> {
        match self.kind {
            RTM_NEWLINK => self.link().map(Event::Link),
            RTM_DELLINK => u32_at(self.body, 4).map(Event::LinkGone),
            RTM_NEWADDR => self.address().map(Event::Address),
            RTM_DELADDR => self.address().map(Event::AddressGone),
            _ => None,
        }
    }

    fn link(&self) -> Option<Link> {
        let (hardware, index, flags) = (u16_at(self.body, 2)?, u32_at(self.body, 4)?, u32_at(self.body, 8)?);
        let mut link = Link {
            index,
            name: format!("interface {index}"),
            address: Vec::new(),
            is_up: flags & IFF_UP != 0,
            carrier: flags & IFF_LOWER_UP != 0,
            loopback: flags & IFF_LOOPBACK != 0,
            ethernet: hardware == ARPHRD_ETHER,
        };
        for (kind, value) in attributes(self.body.get(16..)?) {
            match kind {
                IFLA_IFNAME => link.name = String::from_utf8_lossy(value).trim_end_matches('\0').to_owned(),
                IFLA_ADDRESS => link.address = value.to_vec(),
                _ => {}
            }
        }
        Some(link)
    }

    fn address(&self) -> Option<Address> {
        let [family, prefix, flags, scope] = *self.body.first_chunk::<4>()?;
        let (interface, mut flags) = (u32_at(self.body, 4)?, u32::from(flags));
        let (mut local, mut peer) = (None, None);
        for (kind, value) in attributes(self.body.get(8..)?) {
            match kind {
                // On a link with a peer IFA_ADDRESS is the peer's.
                IFA_LOCAL => local = ip(family, value),
                IFA_ADDRESS => peer = ip(family, value),
                // All of the flags; the field in the header has room for the lowest eight.
                IFA_FLAGS => flags = u32_at(value, 0)?,
                _ => {}
            }
        }
        Some(Address {
            interface,
            address: local.or(peer)?,
            prefix,
            global: scope == RT_SCOPE_UNIVERSE,
            tentative: flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED) != 0,
        })
    }
}

fn ip(family: u8, value: &[u8]) -> Option<IpAddr> {
    match family {
        AF_INET => <[u8; 4]>::try_from(value).ok().map(|octets| IpAddr::V4(Ipv4Addr::from(octets))),
        AF_INET6 => <[u8; 16]>::try_from(value).ok().map(|octets| IpAddr::V6(Ipv6Addr::from(octets))),
        _ => None,
    }
}

/// Kinds and values; a damaged attribute ends them.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let attribute = (u16_at(bytes, 2)? & NLA_TYPE_MASK, bytes.get(4..length)?);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(attribute)
    })
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Little-endian machines only, as are all that the tests run on.
    const LINK: &[u8] = &[
        60, 0, 0, 0, 16, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, // header
        0, 0, 1, 0, 2, 0, 0, 0, 0x43, 0x10, 1, 0, 0, 0, 0, 0, // Ethernet, number 2, up with carrier
        9, 0, 3, 0, b'e', b't', b'h', b'0', 0, 0, 0, 0, // name, padded
        10, 0, 1, 0, 0x52, 0x54, 0, 0x12, 0x34, 0x56, 0, 0, // address
        4, 0, 99, 0, // something unknown and empty
    ];

    fn address_message(kind: u16, body: &[u8]) -> Vec<u8> {
        Request::new(kind, 0, body).0
    }

    #[test]
    fn a_link_is_read() {
        let events: Vec<_> = messages(LINK).map(|message| message.event()).collect();
        let want = Link {
            index: 2,
            name: "eth0".into(),
            address: vec![0x52, 0x54, 0, 0x12, 0x34, 0x56],
            is_up: true,
            carrier: true,
            loopback: false,
            ethernet: true,
        };
        assert_eq!(events, [Some(Event::Link(want))]);
    }

    #[test]
    fn addresses_are_read_with_their_flags() {
        let mut body = vec![AF_INET6, 64, 0x40, 0, 3, 0, 0, 0, 20, 0, 1, 0];
        let ip: Ipv6Addr = "2001:db8::1".parse().unwrap();
        body.extend(ip.octets());
        let read = |body: &[u8]| match messages(&address_message(RTM_NEWADDR, body)).next().unwrap().event() {
            Some(Event::Address(address)) => address,
            other => panic!("{other:?}"),
        };
        let address = read(&body);
        assert_eq!((address.interface, address.address, address.prefix), (3, IpAddr::V6(ip), 64));
        assert!(address.global && address.tentative);
        // The attribute overrides the header.
        body.extend([8, 0, 8, 0, 0x80, 0, 0, 0]);
        assert!(!read(&body).tentative);
    }

    #[test]
    fn the_end_of_an_answer_is_told_with_its_error() {
        let end = |kind: u16, body: &[u8]| messages(&address_message(kind, body)).next().unwrap().end();
        assert_eq!(end(NLMSG_ERROR, &[0, 0, 0, 0]), Some(Ok(())));
        assert_eq!(end(NLMSG_ERROR, &(-19_i32).to_ne_bytes()), Some(Err(19)));
        assert_eq!(end(NLMSG_DONE, &[]), Some(Ok(())));
        assert_eq!(end(RTM_NEWLINK, &[0; 16]), None);
    }

    #[test]
    fn requests_have_the_kernels_layout() {
        let route = Route {
            network: Ipv4Addr::UNSPECIFIED,
            prefix: 0,
            router: Some(Ipv4Addr::new(10, 0, 2, 2)),
            onlink: true,
            source: Ipv4Addr::new(10, 0, 2, 15),
            interface: 2,
            metric: 100,
        };
        let bytes = Request::route(true, &route).0;
        let want = [
            68, 0, 0, 0, 24, 0, 0x05, 0x05, 0, 0, 0, 0, 0, 0, 0, 0, // header
            2, 0, 0, 0, 254, 16, 0, 1, 4, 0, 0, 0, // IPv4, main table, DHCP, everywhere, unicast, on the link
            8, 0, 1, 0, 0, 0, 0, 0, 8, 0, 4, 0, 2, 0, 0, 0, // destination, interface
            8, 0, 7, 0, 10, 0, 2, 15, 8, 0, 6, 0, 100, 0, 0, 0, // source, metric
            8, 0, 5, 0, 10, 0, 2, 2, // router
        ];
        assert_eq!(bytes, want);
        let address = Request::address(true, 2, Ipv4Addr::new(10, 0, 2, 15), 24).0;
        assert!(address.ends_with(&[8, 0, 4, 0, 10, 0, 2, 255]), "{address:?}");
        assert_eq!(Request::change_link(2, LinkChange::Up).0.get(24..32), Some(&[1, 0, 0, 0, 1, 0, 0, 0][..]));
        let vlan = Request::add_vlan(2, "eth0.100", 100).0;
        let want = [
            76, 0, 0, 0, 16, 0, 0x05, 0x06, 0, 0, 0, 0, 0, 0, 0, 0, // header: create, not replace
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // no index, no flags
            8, 0, 5, 0, 2, 0, 0, 0, // on interface 2
            12, 0, 3, 0, b'e', b't', b'h', b'0', b'.', b'1', b'0', b'0', // name
            24, 0, 18, 0, 8, 0, 1, 0, b'v', b'l', b'a', b'n', // kind
            12, 0, 2, 0, 6, 0, 1, 0, 100, 0, 0, 0, // number
        ];
        assert_eq!(vlan, want);
        let address = Request::change_link(2, LinkChange::Address([2, 0, 0, 0, 0, 9])).0;
        assert!(address.ends_with(&[10, 0, 1, 0, 2, 0, 0, 0, 0, 9, 0, 0]), "{address:?}");
        assert!(Request::change_link(2, LinkChange::Mtu(9000)).0.ends_with(&[8, 0, 4, 0, 0x28, 0x23, 0, 0]));
    }

    #[test]
    fn damaged_messages_end_the_reading() {
        for cut in 0..LINK.len() {
            assert_eq!(messages(&LINK[..cut]).count(), 0, "{cut}");
        }
        let mut zero = LINK.to_vec();
        zero[..4].fill(0);
        assert_eq!(messages(&zero).count(), 0, "a length of nothing would never end");
        // Attributes of no length, and of more than there is.
        for length in [0, 3, 200] {
            let mut odd = LINK.to_vec();
            odd[32] = length;
            let event = messages(&odd).next().unwrap().event();
            assert!(matches!(event, Some(Event::Link(link)) if link.name == "interface 2"), "{length}");
        }
    }
}
