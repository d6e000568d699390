//! What arrives at an interface without an address: packets for a DHCP client, frames for a link discovery protocol.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// `ETH_P_IP` in network byte order.
const IPV4: u16 = 0x0800_u16.to_be();

/// Receives the UDP packets of one interface that are for one port, with their IP header; sends IP packets to every
/// station of the link (`packet(7)`, `SOCK_DGRAM`).
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    index: libc::c_int,
}

impl PacketSocket {
    /// Opens the socket of an interface. It does not block: reading without a packet is an error of the kind
    /// [`io::ErrorKind::WouldBlock`].
    ///
    /// # Errors
    /// The caller may not, or there is no such interface.
    pub fn open(interface_index: u32, udp_port: u16) -> io::Result<Self> {
        let index = signed(interface_index)?;
        let fd = unbound(libc::SOCK_DGRAM)?;
        filter(&fd, udp_port)?;
        bind(&fd, &address(index, IPV4))?;
        Ok(Self { fd, index })
    }

    fn everybody(&self) -> libc::sockaddr_ll {
        let mut address = address(self.index, IPV4);
        address.sll_halen = 6;
        address.sll_addr = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0];
        address
    }

    /// Sends an IP packet to every station.
    ///
    /// # Errors
    /// The interface is down, or its queue is full.
    #[expect(unsafe_code, reason = "packet sockets have no safe wrapper")]
    pub fn broadcast(&self, packet: &[u8]) -> io::Result<()> {
        let address = self.everybody();
        // SAFETY: packet and address live across the call and their sizes are given.
        let sent = unsafe {
            libc::sendto(
                self.fd.as_raw_fd(),
                packet.as_ptr().cast(),
                packet.len(),
                libc::MSG_NOSIGNAL,
                (&raw const address).cast(),
                size_of_address(),
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Reads one IP packet; a longer one is cut off.
    ///
    /// # Errors
    /// There is none, or the interface is down.
    pub fn receive(&self, packet: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.fd, packet)?)
    }
}

/// Receives the frames of one interface that have one EtherType, whole, whoever they are for: frames of link discovery
/// go to addresses that the hardware would filter out, so the interface is promiscuous as long as the socket lives
/// (`packet(7)`, `PACKET_MR_PROMISC`).
#[derive(Debug)]
pub struct FrameSocket(OwnedFd);

impl FrameSocket {
    /// Opens the socket of an interface. It does not block.
    ///
    /// # Errors
    /// The caller may not, or there is no such interface.
    #[expect(unsafe_code, reason = "packet sockets have no safe wrapper")]
    pub fn open(interface_index: u32, ether_type: u16) -> io::Result<Self> {
        let index = signed(interface_index)?;
        let fd = unbound(libc::SOCK_RAW)?;
        bind(&fd, &address(index, ether_type.to_be()))?;
        let kind = u16::try_from(libc::PACKET_MR_PROMISC).unwrap_or(1);
        let request = libc::packet_mreq { mr_ifindex: index, mr_type: kind, mr_alen: 0, mr_address: [0; 8] };
        let size = libc::socklen_t::try_from(size_of::<libc::packet_mreq>()).unwrap_or(16);
        let pointer = (&raw const request).cast();
        // SAFETY: the request lives across the call and its size is given.
        let set =
            unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, pointer, size) };
        if set == 0 { Ok(Self(fd)) } else { Err(io::Error::last_os_error()) }
    }

    /// Reads one frame with its Ethernet header; a longer one is cut off.
    ///
    /// # Errors
    /// There is none ([`io::ErrorKind::WouldBlock`]), or the interface is down.
    pub fn receive(&self, frame: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.0, frame)?)
    }

    /// Waits until there is something to read on one of these sockets, for so long at most.
    ///
    /// # Errors
    /// The kernel is out of memory.
    pub fn wait_for_any<'a>(sockets: impl Iterator<Item = &'a Self>, time: Duration) -> io::Result<()> {
        let mut polled: Vec<PollFd<'_>> = sockets.map(|socket| PollFd::new(&socket.0, PollFlags::IN)).collect();
        let time = Timespec::try_from(time).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        match poll(&mut polled, Some(&time)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn signed(interface_index: u32) -> io::Result<libc::c_int> {
    libc::c_int::try_from(interface_index).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

/// A socket that receives nothing until it is bound, by when any filter is in place.
#[expect(unsafe_code, reason = "packet sockets have no safe wrapper")]
fn unbound(kind: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: socket takes numbers only; the descriptor is new and owned by nobody.
    unsafe {
        let fd = libc::socket(libc::AF_PACKET, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

#[expect(unsafe_code, reason = "packet sockets have no safe wrapper")]
fn bind(fd: &OwnedFd, address: &libc::sockaddr_ll) -> io::Result<()> {
    // SAFETY: the address lives across the call and its size is given.
    let bound = unsafe { libc::bind(fd.as_raw_fd(), (&raw const *address).cast(), size_of_address()) };
    if bound == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The address of an interface; the protocol is in network byte order.
#[expect(unsafe_code, reason = "sockaddr_ll is plain data")]
fn address(index: libc::c_int, protocol: u16) -> libc::sockaddr_ll {
    // SAFETY: zero bytes are a valid sockaddr_ll.
    let mut address = unsafe { std::mem::zeroed::<libc::sockaddr_ll>() };
    address.sll_family = u16::try_from(libc::AF_PACKET).unwrap_or(17);
    address.sll_protocol = protocol;
    address.sll_ifindex = index;
    address
}

fn size_of_address() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>()).unwrap_or(20)
}

/// Lets only unfragmented UDP packets for `port` through (classic BPF; the data begins with the IP header).
#[expect(unsafe_code, reason = "setsockopt")]
fn filter(fd: &OwnedFd, port: u16) -> io::Result<()> {
    let op = |code: u16, jt: u8, jf: u8, k: u32| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        op(0x30, 0, 0, 9),               // load the protocol
        op(0x15, 0, 6, 17),              // UDP or drop
        op(0x28, 0, 0, 6),               // load flags and fragment offset
        op(0x45, 4, 0, 0x1fff),          // a later fragment: drop
        op(0xb1, 0, 0, 0),               // X = length of the IP header
        op(0x48, 0, 0, 2),               // load the destination port
        op(0x15, 0, 1, u32::from(port)), // ours or drop
        op(0x06, 0, 0, 0xffff),          // all of the packet
        op(0x06, 0, 0, 0),               // nothing of it
    ];
    let count = u16::try_from(program.len()).unwrap_or(0);
    let program = libc::sock_fprog { len: count, filter: program.as_mut_ptr() };
    let size = libc::socklen_t::try_from(size_of::<libc::sock_fprog>()).unwrap_or(16);
    // SAFETY: the kernel copies the program, which lives across the call and has the length given.
    let set = unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, (&raw const program).cast(), size)
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for PacketSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_does_not_exist_is_an_error() {
        assert!(PacketSocket::open(u32::MAX, 68).is_err());
        assert!(PacketSocket::open(0x7fff_fff0, 68).is_err());
        assert!(FrameSocket::open(0x7fff_fff0, 0x88cc).is_err());
    }

    #[test]
    fn an_interface_is_promiscuous_as_long_as_its_socket_lives() {
        // IFF_PROMISC of the loopback interface; without the right to open packet sockets there is nothing to see here.
        let promiscuous = || {
            let flags = std::fs::read_to_string("/sys/class/net/lo/flags").unwrap();
            u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16).unwrap() & 0x100 != 0
        };
        let Ok(socket) = FrameSocket::open(1, 0x88cc) else { return };
        assert!(promiscuous());
        drop(socket);
        assert!(!promiscuous());
    }

    #[test]
    fn only_packets_for_the_port_come_through() {
        // The loopback interface is number 1; without the right to open packet sockets there is nothing to see here.
        let Ok(socket) = PacketSocket::open(1, 54_321) else { return };
        let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.send_to(b"for somebody else", "127.0.0.1:54322").unwrap();
        sender.send_to(b"for us", "127.0.0.1:54321").unwrap();
        let mut packet = [0; 1500];
        let length = socket.receive(&mut packet).unwrap();
        assert_eq!(&packet[..length][28..], b"for us");
        // Loopback shows each packet once more as outgoing or not at all; none of them is the other one.
        while let Ok(length) = socket.receive(&mut packet) {
            assert_eq!(&packet[..length][28..], b"for us");
        }
    }
}
