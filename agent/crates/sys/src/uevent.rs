//! Events of devices, as the kernel sends them over netlink.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recvfrom, socket_with, sockopt};

/// Buffer of the socket: a machine with hundreds of disks sends hundreds of events in one go.
const BUFFER_BYTES: usize = 8 << 20;
/// The kernel's own limit is 2 KiB of variables (`UEVENT_BUFFER_SIZE`) and the path before them.
const MESSAGE_BYTES: usize = 16 << 10;

/// One event: `add@/devices/...` and its variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uevent {
    /// `add`, `remove`, `change`, `bind` and so on.
    pub action: String,
    /// Path below `/sys`, beginning with `/devices`.
    pub device: String,
    /// The other variables, in order.
    pub variables: Vec<(String, String)>,
}

impl Uevent {
    /// Reads a message of the kernel: texts ended by zero bytes, the first being `action@path`
    /// (`lib/kobject_uevent.c`). Messages of udev, which begin with `libudev`, and damaged ones give `None`.
    pub fn parse(message: &[u8]) -> Option<Self> {
        let mut texts = message.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        let first = texts.next()?;
        let (action, device) = first.split_once('@')?;
        if action.is_empty() || !device.starts_with('/') {
            return None;
        }
        let variables = texts
            .filter_map(|text| text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())))
            .collect();
        Some(Self { action: action.to_owned(), device: device.to_owned(), variables })
    }

    /// Value of a variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// A socket that hears the kernel's events.
#[derive(Debug)]
pub struct UeventSocket(OwnedFd);

/// What came out of the socket.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// An event.
    Event(Uevent),
    /// Something that is no event of the kernel.
    Other,
    /// So many events came that some were lost; what is there must be looked up again.
    Overrun,
}

impl UeventSocket {
    /// Hears events from now on.
    ///
    /// # Errors
    /// The kernel has no netlink sockets or no descriptors left.
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(KOBJECT_UEVENT))?;
        // Group 1 has the kernel's events, group 2 those of udev.
        bind(&socket, &SocketAddrNetlink::new(0, 1))?;
        // More than the limit needs a privilege; without it the default buffer has to do.
        let _bigger = sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER_BYTES);
        Ok(Self(socket))
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// The socket is broken.
    pub fn receive(&self) -> io::Result<Received> {
        let mut buffer = vec![0_u8; MESSAGE_BYTES];
        loop {
            match recvfrom(&self.0, buffer.as_mut_slice(), RecvFlags::empty()) {
                Ok((length, _, from)) => {
                    // Only the kernel (port 0) is believed; any process may send to a netlink group.
                    let from = from.and_then(|address| SocketAddrNetlink::try_from(address).ok());
                    let kernel = from.is_some_and(|address| address.pid() == 0);
                    let event = buffer.get(..length).filter(|_| kernel).and_then(Uevent::parse);
                    return Ok(event.map_or(Received::Other, Received::Event));
                }
                Err(Errno::NOBUFS) => return Ok(Received::Overrun),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for UeventSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_the_kernel_is_read() {
        let message = b"add@/devices/pci0000:00/0000:00:03.0/virtio0\0ACTION=add\0DEVPATH=/devices/x\0SUBSYSTEM=virtio\0MODALIAS=virtio:d00000001v00001AF4\0SEQNUM=1234\0";
        let event = Uevent::parse(message).unwrap();
        assert_eq!((event.action.as_str(), event.get("SUBSYSTEM")), ("add", Some("virtio")));
        assert_eq!(event.get("MODALIAS"), Some("virtio:d00000001v00001AF4"));
        assert_eq!(event.get("NAME"), None);
    }

    #[test]
    fn anything_else_is_not() {
        for message in [&b""[..], b"libudev\0\xfe\xed\xca\xfe", b"add@", b"@/devices/x", b"add@devices", b"\0\0\0"] {
            assert_eq!(Uevent::parse(message), None, "{message:?}");
        }
    }

    #[test]
    fn the_socket_opens_without_privileges() {
        assert!(UeventSocket::open().is_ok());
    }
}
