//! Links, addresses and routes of the kernel, by rtnetlink (`rtnetlink(7)`, `linux/rtnetlink.h`).
//!
//! Own code: the library for it knows every kind of link, tunnel and traffic filter there is, and the binary would carry
//! the readers for all of them, an eighth of its size. What an agent needs are seven requests and four events.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, sendto, socket_with, sockopt,
};

mod codec;

use codec::{Message, Request};

/// The kernel writes at most this much at once (`netlink_recvmsg`).
const BUFFER_BYTES: usize = 32 << 10;
/// Socket buffer for events: a machine with many ports sends hundreds in one go.
const EVENT_BUFFER_BYTES: usize = 1 << 20;

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Address of the hardware; six bytes for Ethernet.
    pub address: Vec<u8>,
    /// Whether it was taken up.
    pub is_up: bool,
    /// Whether there is a link partner.
    pub carrier: bool,
    /// Whether it is the loopback interface.
    pub loopback: bool,
    /// Whether it speaks Ethernet.
    pub ethernet: bool,
}

/// An address of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Number of the interface.
    pub interface: u32,
    /// The address.
    pub address: IpAddr,
    /// Prefix length of its network.
    pub prefix: u8,
    /// Whether it is valid everywhere, not only on the link or the host.
    pub global: bool,
    /// Whether the kernel has not yet, or not with success, made sure that nobody else has it.
    pub tentative: bool,
}

/// An IPv4 route of the main table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Network.
    pub network: Ipv4Addr,
    /// Its prefix length.
    pub prefix: u8,
    /// Where packets for it go; `None` when the network is on the link.
    pub router: Option<Ipv4Addr>,
    /// Whether the router is on the link although no route says so.
    pub onlink: bool,
    /// Address that packets on it get as their source.
    pub source: Ipv4Addr,
    /// Number of the interface.
    pub interface: u32,
    /// The lower, the better; also what tells routes to one network apart.
    pub metric: u32,
}

/// A change of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkChange {
    /// Take it up.
    Up,
    /// Take it down.
    Down,
    /// Largest packet in bytes.
    Mtu(u32),
    /// Another address than the permanent one.
    Address([u8; 6]),
}

/// Something happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// An interface came or changed.
    Link(Link),
    /// An interface is gone.
    LinkGone(u32),
    /// An IPv6 address came or changed.
    Address(Address),
    /// An IPv6 address is gone.
    AddressGone(Address),
}

/// What came out of the socket for events.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// Events in their order.
    Events(Vec<Event>),
    /// So many that some were lost: what is there must be listed again.
    Overrun,
}

/// A socket for requests. Requests are answered by the kernel before they return; some wait for a slow driver.
#[derive(Debug)]
pub struct Netlink(OwnedFd);

impl Netlink {
    /// Opens the socket.
    ///
    /// # Errors
    /// The kernel has no netlink or no descriptors left.
    pub fn open() -> io::Result<Self> {
        socket(SocketFlags::CLOEXEC, 0).map(Self)
    }

    /// All interfaces.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn links(&self) -> io::Result<Vec<Link>> {
        let of_message = |message: &Message<'_>| match message.event() {
            Some(Event::Link(link)) => Some(link),
            _ => None,
        };
        self.list(&Request::list_links(), of_message)
    }

    /// All addresses of both families.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn addresses(&self) -> io::Result<Vec<Address>> {
        let of_message = |message: &Message<'_>| match message.event() {
            Some(Event::Address(address)) => Some(address),
            _ => None,
        };
        self.list(&Request::list_addresses(), of_message)
    }

    /// Changes an interface.
    ///
    /// # Errors
    /// The driver or the kernel refused.
    pub fn change_link(&self, index: u32, change: LinkChange) -> io::Result<()> {
        self.carry_out(&Request::change_link(index, change))
    }

    /// Adds an interface for a VLAN (IEEE 802.1Q) of another one.
    ///
    /// # Errors
    /// There is one of that name ([`io::ErrorKind::AlreadyExists`]), or the kernel refused.
    pub fn add_vlan(&self, parent: u32, name: &str, id: u16) -> io::Result<()> {
        self.carry_out(&Request::add_vlan(parent, name, id))
    }

    /// Gives an interface an address, or changes the one it has, without a route to its network.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn set_address(&self, interface: u32, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
        self.carry_out(&Request::address(true, interface, address, prefix))
    }

    /// Takes an address away; routes with it as their source go as well.
    ///
    /// # Errors
    /// It is not there.
    pub fn remove_address(&self, interface: u32, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
        self.carry_out(&Request::address(false, interface, address, prefix))
    }

    /// Adds a route, or replaces the one with the same network and metric.
    ///
    /// # Errors
    /// The router is not on the link, or the kernel refused.
    pub fn set_route(&self, route: &Route) -> io::Result<()> {
        self.carry_out(&Request::route(true, route))
    }

    /// Removes a route.
    ///
    /// # Errors
    /// It is not there.
    pub fn remove_route(&self, route: &Route) -> io::Result<()> {
        self.carry_out(&Request::route(false, route))
    }

    fn carry_out(&self, request: &Request) -> io::Result<()> {
        self.list(request, |_| None::<()>).map(|_none| ())
    }

    /// Sends a request and reads until its end is told.
    fn list<T>(&self, request: &Request, mut pick: impl FnMut(&Message<'_>) -> Option<T>) -> io::Result<Vec<T>> {
        sendto(&self.0, request.bytes(), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut found = Vec::new();
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let length = match recv(&self.0, buffer.as_mut_slice(), RecvFlags::empty()) {
                Ok((length, _)) => length,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for message in codec::messages(buffer.get(..length).unwrap_or_default()) {
                match message.end() {
                    Some(Ok(())) => return Ok(found),
                    Some(Err(number)) => return Err(io::Error::from_raw_os_error(number)),
                    None => found.extend(pick(&message)),
                }
            }
        }
    }
}

/// A socket that hears of changes of interfaces and IPv6 addresses.
#[derive(Debug)]
pub struct Events(OwnedFd);

impl Events {
    /// Hears of everything from now on. Reading does not block.
    ///
    /// # Errors
    /// The kernel has no netlink or no descriptors left.
    pub fn open() -> io::Result<Self> {
        let socket = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, codec::GROUPS)?;
        // More than the limit needs a privilege; without it the default buffer has to do.
        let _bigger = sockopt::set_socket_recv_buffer_size_force(&socket, EVENT_BUFFER_BYTES);
        Ok(Self(socket))
    }

    /// The next events.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there are none; anything else when the socket is broken.
    pub fn receive(&self) -> io::Result<Received> {
        let mut buffer = vec![0; BUFFER_BYTES];
        match recv(&self.0, buffer.as_mut_slice(), RecvFlags::empty()) {
            Ok((length, _)) => {
                let messages = codec::messages(buffer.get(..length).unwrap_or_default());
                Ok(Received::Events(messages.filter_map(|message| message.event()).collect()))
            }
            Err(Errno::NOBUFS) => Ok(Received::Overrun),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Events {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

fn socket(flags: SocketFlags, groups: u32) -> io::Result<OwnedFd> {
    // The protocol NETLINK_ROUTE is number 0, the default one.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_there_with_its_address() {
        let netlink = Netlink::open().unwrap();
        let links = netlink.links().unwrap();
        let loopback = links.iter().find(|link| link.loopback).unwrap();
        assert_eq!((loopback.name.as_str(), loopback.ethernet), ("lo", false));
        let addresses = netlink.addresses().unwrap();
        let own = addresses.iter().find(|address| address.address == IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
        assert_eq!((own.interface, own.prefix, own.global), (loopback.index, 8, false));
    }

    #[test]
    fn refusals_of_the_kernel_are_errors() {
        let netlink = Netlink::open().unwrap();
        assert!(netlink.change_link(0x7fff_fff0, LinkChange::Up).is_err());
        assert!(netlink.add_vlan(0x7fff_fff0, "ferric.5", 5).is_err());
        assert!(netlink.remove_address(0x7fff_fff0, Ipv4Addr::new(192, 0, 2, 1), 24).is_err());
        // The socket is still good.
        assert!(!netlink.links().unwrap().is_empty());
    }

    #[test]
    fn without_events_reading_does_not_block() {
        let events = Events::open().unwrap();
        let first = events.receive();
        assert!(first.is_ok() || first.unwrap_err().kind() == io::ErrorKind::WouldBlock);
    }
}
