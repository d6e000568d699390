//! Sockets of the DHCP client.
//!
//! Without an address the client speaks through a packet socket and makes its own IP and UDP headers. With one it uses
//! an ordinary UDP socket and the packet socket is closed, so that an image download at full speed does not pass by
//! a packet filter.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;

use ferric_sys::packet::PacketSocket;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use tokio::io::unix::AsyncFd;
use tokio::net::UdpSocket;

const CLIENT_PORT: u16 = 68;
const SERVER_PORT: u16 = 67;
const HEADERS: usize = 28;
/// An Ethernet frame's worth.
const PACKET_BYTES: usize = 1500;

/// The socket that fits the state of the interface.
#[derive(Debug)]
pub(super) enum DhcpSocket {
    /// No address yet.
    Packet(AsyncFd<PacketSocket>),
    /// The interface has an address.
    Udp(UdpSocket),
}

impl DhcpSocket {
    pub(super) fn packet(index: u32) -> io::Result<Self> {
        let socket = PacketSocket::open(index, CLIENT_PORT)?;
        #[expect(deprecated, reason = "its successor is unsafe; a PacketSocket keeps one descriptor for all its life")]
        let socket = AsyncFd::new(socket)?;
        Ok(Self::Packet(socket))
    }

    pub(super) fn udp(name: &str) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket: OwnedFd = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        sockopt::set_socket_broadcast(&socket, true)?;
        let udp = std::net::UdpSocket::from(socket);
        // Before it gets its port, so that each interface can have the port for itself.
        ferric_sys::netdev::bind_to_device(&udp, name)?;
        bind(&udp, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, CLIENT_PORT))?;
        Ok(Self::Udp(UdpSocket::from_std(udp)?))
    }

    /// Whether this socket is the right one with or without an address.
    pub(super) const fn fits(&self, has_address: bool) -> bool {
        matches!((self, has_address), (Self::Packet(_), false) | (Self::Udp(_), true))
    }

    /// Sends a message to one server, or to all.
    pub(super) async fn send(&self, payload: &[u8], server: Option<Ipv4Addr>) -> io::Result<()> {
        match self {
            Self::Packet(socket) => socket.get_ref().broadcast(&wrap(payload)),
            Self::Udp(socket) => {
                let to = SocketAddrV4::new(server.unwrap_or(Ipv4Addr::BROADCAST), SERVER_PORT);
                socket.send_to(payload, to).await.map(|_sent| ())
            }
        }
    }

    /// Waits for the next message of a server.
    pub(super) async fn receive(&self) -> io::Result<Vec<u8>> {
        let mut packet = vec![0; PACKET_BYTES];
        match self {
            Self::Packet(socket) => loop {
                let mut ready = socket.readable().await?;
                match ready.try_io(|socket| socket.get_ref().receive(&mut packet)) {
                    Ok(length) => {
                        if let Some(payload) = unwrap(packet.get(..length?).unwrap_or_default()) {
                            return Ok(payload.to_vec());
                        }
                    }
                    Err(_not_ready) => {}
                }
            },
            Self::Udp(socket) => loop {
                let (length, from) = socket.recv_from(&mut packet).await?;
                if from.port() == SERVER_PORT {
                    packet.truncate(length);
                    return Ok(packet);
                }
            },
        }
    }
}

/// The packet with IP and UDP headers, from nobody to everybody (RFC 791, RFC 768). The UDP checksum is left out,
/// which IPv4 allows; the IP header has one.
fn wrap(payload: &[u8]) -> Vec<u8> {
    let length = |bytes: usize| u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes();
    let [total_high, total_low] = length(HEADERS + payload.len());
    let mut packet = vec![0x45, 0x10, total_high, total_low, 0, 0, 0, 0, 64, 17, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255];
    let sum = checksum(&packet).to_be_bytes();
    packet.splice(10..12, sum);
    for field in [CLIENT_PORT.to_be_bytes(), SERVER_PORT.to_be_bytes(), length(8 + payload.len()), [0, 0]] {
        packet.extend_from_slice(&field);
    }
    packet.extend_from_slice(payload);
    packet
}

/// The UDP payload of a packet from a server; `None` when it is none or damaged.
///
/// The UDP checksum is not looked at: servers on the same host as a virtual machine leave it to hardware that is not
/// there, and the client checks transaction and address of what it gets.
fn unwrap(packet: &[u8]) -> Option<&[u8]> {
    let first = *packet.first()?;
    let header = usize::from(first & 0xf) * 4;
    let word = |at: usize| Some(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?]));
    let is_udp = first >> 4 == 4 && header >= 20 && *packet.get(9)? == 17 && word(6)? & 0x3fff == 0;
    if !is_udp || checksum(packet.get(..header)?) != 0 {
        return None;
    }
    // Short packets are padded to the frame's minimum, so the lengths in the headers count.
    let total = usize::from(word(2)?);
    let packet = packet.get(..total)?;
    let (source, target, length) = (word(header)?, word(header + 2)?, usize::from(word(header + 4)?));
    let fits = source == SERVER_PORT && target == CLIENT_PORT && length >= 8;
    packet.get(header + 8..header + length).filter(|_| fits)
}

/// Ones' complement sum of 16-bit words (RFC 1071); over a header with its own checksum it is 0.
fn checksum(bytes: &[u8]) -> u16 {
    let byte = |pair: &[u8], at: usize| pair.get(at).copied().map_or(0, u32::from);
    let words = bytes.chunks(2).map(|pair| byte(pair, 0) << 8 | byte(pair, 1));
    let sum = words.fold(0_u32, |sum, word| ((sum + word) & 0xffff) + ((sum + word) >> 16));
    u16::try_from(!sum & 0xffff).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A packet as a server sends it.
    fn from_server(payload: &[u8]) -> Vec<u8> {
        let mut packet = wrap(payload);
        packet.splice(20..24, [0, 67, 0, 68]);
        packet
    }

    #[test]
    fn headers_are_made_and_read() {
        let packet = wrap(b"payload");
        assert_eq!(packet.len(), 35);
        assert_eq!(checksum(&packet[..20]), 0);
        assert_eq!(&packet[16..28], [255, 255, 255, 255, 0, 68, 0, 67, 0, 15, 0, 0]);
        assert_eq!(unwrap(&packet), None, "our own packet is no answer");
        assert_eq!(unwrap(&from_server(b"answer")), Some(&b"answer"[..]));
    }

    #[test]
    fn padding_is_cut_and_damage_is_seen() {
        let mut padded = from_server(b"x");
        padded.resize(46, 0xee);
        assert_eq!(unwrap(&padded), Some(&b"x"[..]));
        let mut damaged = from_server(b"x");
        damaged[12] ^= 1;
        assert_eq!(unwrap(&damaged), None);
        let mut short = from_server(b"payload");
        short.truncate(30);
        assert_eq!(unwrap(&short), None);
    }

    #[test]
    fn the_sum_is_that_of_the_rfc() {
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
        assert_eq!(checksum(&[]), 0xffff);
    }

    proptest! {
        #[test]
        fn any_packet_is_read_or_refused(packet in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _payload = unwrap(&packet);
        }
    }
}
