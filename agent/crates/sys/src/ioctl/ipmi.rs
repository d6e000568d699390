//! Talking to the BMC through `/dev/ipmi0` (`linux/ipmi.h`, the kernel's `ipmi_devintf`).
#![expect(unsafe_code, reason = "ioctls")]

use std::ffi::{c_int, c_long, c_short, c_uchar, c_uint, c_ushort};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::ioctl::{self, Opcode, Updater, opcode};

const SEND_COMMAND: Opcode = opcode::read::<Request>(b'i', 13);
const RECEIVE_MSG_TRUNC: Opcode = opcode::read_write::<Received>(b'i', 11);
const SYSTEM_INTERFACE_ADDR_TYPE: c_int = 0x0c;
const BMC_CHANNEL: c_short = 0x0f;
const RESPONSE_RECV_TYPE: c_int = 1;
/// Longest message a BMC may send (`IPMI_MAX_MSG_LENGTH`).
const MAX_MESSAGE: usize = 272;

/// `struct ipmi_msg`.
#[repr(C)]
struct Message {
    netfn: c_uchar,
    cmd: c_uchar,
    data_len: c_ushort,
    data: *mut c_uchar,
}

/// `struct ipmi_req`.
#[repr(C)]
struct Request {
    addr: *mut c_uchar,
    addr_len: c_uint,
    msgid: c_long,
    msg: Message,
}

/// `struct ipmi_recv`.
#[repr(C)]
struct Received {
    recv_type: c_int,
    addr: *mut c_uchar,
    addr_len: c_uint,
    msgid: c_long,
    msg: Message,
}

/// `struct ipmi_system_interface_addr`.
#[repr(C)]
struct SystemInterfaceAddress {
    addr_type: c_int,
    channel: c_short,
    lun: c_uchar,
}

/// `struct ipmi_addr`: room for any address.
#[repr(C)]
struct AnyAddress {
    addr_type: c_int,
    channel: c_short,
    data: [c_uchar; 32],
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<Message>() == 16);
    assert!(size_of::<Request>() == 40);
    assert!(size_of::<Received>() == 48);
    assert!(size_of::<SystemInterfaceAddress>() == 8);
    assert!(size_of::<AnyAddress>() == 40);
};

/// The BMC could not be spoken to.
#[derive(Debug, thiserror::Error)]
pub enum IpmiError {
    /// The device could not be opened.
    #[error("opening {}", path.display())]
    Open {
        /// Device.
        path: PathBuf,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// A request could not be sent, or its answer not received.
    #[error("asking the BMC through {} for network function {netfn:#x} command {cmd:#x}", path.display())]
    Io {
        /// Device.
        path: PathBuf,
        /// Network function of the request.
        netfn: u8,
        /// Command of the request.
        cmd: u8,
        /// Reason.
        #[source]
        source: io::Error,
    },
}

/// An open IPMI device.
#[derive(Debug)]
pub struct IpmiDevice {
    file: File,
    path: PathBuf,
    next_id: c_long,
    deadline: Instant,
}

impl IpmiDevice {
    /// Opens the device for a conversation of `limit` in all, however many requests that is: from then on every request
    /// fails, and one that is under way fails then. A BMC that answers slowly must not cost more than one that is dead.
    ///
    /// # Errors
    /// [`IpmiError::Open`].
    pub fn open(path: &Path, limit: Duration) -> Result<Self, IpmiError> {
        let deadline = Instant::now() + limit;
        let file = File::options().read(true).write(true).open(path);
        let file = file.map_err(|source| IpmiError::Open { path: path.to_owned(), source })?;
        Ok(Self { file, path: path.to_owned(), next_id: 1, deadline })
    }

    /// Sends a request to the BMC and waits for its answer: the completion code followed by the data.
    ///
    /// # Errors
    /// [`IpmiError::Io`], also when the BMC does not answer in time.
    pub fn request(&mut self, netfn: u8, cmd: u8, data: &[u8]) -> Result<Vec<u8>, IpmiError> {
        self.exchange(netfn, cmd, data).map_err(|source| IpmiError::Io { path: self.path.clone(), netfn, cmd, source })
    }

    fn exchange(&mut self, netfn: u8, cmd: u8, data: &[u8]) -> io::Result<Vec<u8>> {
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        if Instant::now() >= self.deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.send(id, netfn, cmd, data)?;
        loop {
            self.wait_readable(self.deadline)?;
            // An answer to an earlier request that came too late, or an event, is not ours.
            if let Some(answer) = self.receive(id)? {
                return Ok(answer);
            }
        }
    }

    fn send(&self, msgid: c_long, netfn: u8, cmd: u8, data: &[u8]) -> io::Result<()> {
        let mut address =
            SystemInterfaceAddress { addr_type: SYSTEM_INTERFACE_ADDR_TYPE, channel: BMC_CHANNEL, lun: 0 };
        let mut payload = data.to_vec();
        let data_len = c_ushort::try_from(payload.len()).map_err(io::Error::other)?;
        let mut request = Request {
            addr: (&raw mut address).cast(),
            addr_len: c_uint::try_from(size_of::<SystemInterfaceAddress>()).map_err(io::Error::other)?,
            msgid,
            msg: Message { netfn, cmd, data_len, data: payload.as_mut_ptr() },
        };
        // SAFETY: `request` has the layout of struct ipmi_req; its pointers lead to `address` and `payload`, which
        // live until the ioctl returns, with their true lengths; the kernel only reads them.
        unsafe { ioctl::ioctl(&self.file, Updater::<SEND_COMMAND, Request>::new(&mut request)) }?;
        Ok(())
    }

    fn wait_readable(&self, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut fds = [PollFd::from_borrowed_fd(self.file.as_fd(), PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn receive(&self, wanted: c_long) -> io::Result<Option<Vec<u8>>> {
        let mut address = AnyAddress { addr_type: 0, channel: 0, data: [0; 32] };
        let mut buffer = [0_u8; MAX_MESSAGE];
        let mut received = Received {
            recv_type: 0,
            addr: (&raw mut address).cast(),
            addr_len: c_uint::try_from(size_of::<AnyAddress>()).map_err(io::Error::other)?,
            msgid: 0,
            msg: Message {
                netfn: 0,
                cmd: 0,
                data_len: c_ushort::try_from(MAX_MESSAGE).map_err(io::Error::other)?,
                data: buffer.as_mut_ptr(),
            },
        };
        // SAFETY: `received` has the layout of struct ipmi_recv; its pointers lead to `address` and `buffer`, which
        // live until the ioctl returns, and the lengths given are theirs, so the kernel stores nothing beyond them.
        let result = unsafe { ioctl::ioctl(&self.file, Updater::<RECEIVE_MSG_TRUNC, Received>::new(&mut received)) };
        match result {
            Ok(()) => {}
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        if received.recv_type != RESPONSE_RECV_TYPE || received.msgid != wanted {
            return Ok(None);
        }
        let length = usize::from(received.msg.data_len).min(MAX_MESSAGE);
        Ok(Some(buffer.get(..length).unwrap_or_default().to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_device_and_a_file_that_is_none_are_errors() {
        let missing = IpmiDevice::open(Path::new("/ferric-no-such-ipmi"), Duration::from_secs(1)).unwrap_err();
        assert!(missing.to_string().contains("ferric-no-such-ipmi"), "{missing}");
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut device = IpmiDevice::open(file.path(), Duration::from_millis(50)).unwrap();
        let error = device.request(0x0c, 0x02, &[1, 3, 0, 0]).unwrap_err().to_string();
        assert!(error.contains("network function 0xc command 0x2"), "{error}");
    }

    #[test]
    fn opcodes_match_the_header() {
        // _IOR('i', 13, struct ipmi_req) and _IOWR('i', 11, struct ipmi_recv) on 64-bit machines.
        #[cfg(target_pointer_width = "64")]
        assert_eq!((u64::from(SEND_COMMAND), u64::from(RECEIVE_MSG_TRUNC)), (0x8028_690d, 0xc030_690b));
    }
}
