//! Events of devices, as the kernel sends them over netlink.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
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

    /// Whether it is about a disk, a partition or another block device.
    pub fn is_block(&self) -> bool {
        self.get("SUBSYSTEM") == Some("block")
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

impl UeventSocket {
    /// Waits for the next message, but no longer than `limit`; `None` when there was none.
    ///
    /// # Errors
    /// The socket is broken.
    pub fn receive_within(&self, limit: Duration) -> io::Result<Option<Received>> {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // A time too long for the kernel is as good as none.
            let timeout = Timespec::try_from(left).ok();
            match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], timeout.as_ref()) {
                Ok(0) => return Ok(None),
                Ok(_) => return self.receive().map(Some),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits until block devices have come, gone or changed, and then until nothing more has happened to any for `quiet`
    /// (or, as they may never rest, for ten times as long). False when nothing happened within `limit`.
    ///
    /// # Errors
    /// The socket is broken.
    pub fn block_change(&self, limit: Duration, quiet: Duration) -> io::Result<bool> {
        let means_change = |received: &Received| match received {
            Received::Event(event) => event.is_block(),
            Received::Overrun => true,
            Received::Other => false,
        };
        let deadline = Instant::now() + limit;
        loop {
            match self.receive_within(deadline.saturating_duration_since(Instant::now()))? {
                None => return Ok(false),
                Some(received) if means_change(&received) => break,
                Some(_) => {}
            }
        }
        let end = Instant::now() + quiet * 10;
        let mut rest = Instant::now() + quiet;
        while let Some(received) = self.receive_within(rest.min(end).saturating_duration_since(Instant::now()))? {
            if means_change(&received) {
                rest = Instant::now() + quiet;
            }
        }
        Ok(true)
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
    fn disks_and_partitions_are_told_from_other_devices() {
        for (message, want) in [
            (&b"add@/devices/x/block/sda\0SUBSYSTEM=block\0DEVTYPE=disk\0"[..], true),
            (b"add@/devices/x/block/sda/sda1\0SUBSYSTEM=block\0DEVTYPE=partition\0", true),
            (b"add@/devices/x/net/eth0\0SUBSYSTEM=net\0", false),
            (b"add@/devices/x/block/sda\0", false),
        ] {
            assert_eq!(Uevent::parse(message).unwrap().is_block(), want, "{}", String::from_utf8_lossy(message));
        }
    }

    #[test]
    fn the_socket_opens_without_privileges_and_waiting_ends() {
        let socket = UeventSocket::open().unwrap();
        let (limit, begun) = (Duration::from_millis(60), Instant::now());
        // Whatever happens on this machine meanwhile.
        while socket.block_change(limit, Duration::from_millis(1)).unwrap() {
            assert!(begun.elapsed() < Duration::from_secs(60), "this machine's disks come and go all the time");
        }
        assert!(begun.elapsed() >= limit, "{:?}", begun.elapsed());
    }

    proptest::proptest! {
        #[test]
        fn any_message_is_survived(message in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
            Uevent::parse(&message);
            Uevent::parse(&[b"add@/devices/x\0", &message[..]].concat());
        }
    }
}
