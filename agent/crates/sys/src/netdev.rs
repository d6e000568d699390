//! Network interfaces without netlink.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Takes an interface down.
///
/// # Errors
/// There is no such interface, or the caller may not change it.
#[expect(unsafe_code, reason = "SIOCGIFFLAGS and SIOCSIFFLAGS have no safe wrapper")]
pub fn set_down(name: &str) -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: ifreq is plain data for which zero bytes are a valid value.
    let mut request = unsafe { std::mem::zeroed::<libc::ifreq>() };
    if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains('\0') {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no interface has such a name"));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    // SAFETY: both requests read the name, which ends with a zero byte, and read or write `ifru_flags` within the
    // ifreq that lives on this stack; the flags were filled in by the first call before they are read here.
    unsafe {
        if libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS as _, &raw mut request) != 0 {
            return Err(io::Error::last_os_error());
        }
        request.ifr_ifru.ifru_flags &= !i16::try_from(libc::IFF_UP).unwrap_or(1);
        if libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw mut request) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Ties a socket to an interface: it sends and hears there only (`SO_BINDTODEVICE`).
///
/// # Errors
/// There is no such interface, or the caller may not.
#[expect(unsafe_code, reason = "setsockopt")]
pub fn bind_to_device(socket: impl AsFd, name: &str) -> io::Result<()> {
    let length = libc::socklen_t::try_from(name.len()).unwrap_or(0);
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel copies `length` bytes of the name, which lives across the call.
    let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, name.as_ptr().cast(), length) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_tied_to_loopback_and_to_nothing_that_is_not_there() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(bind_to_device(&socket, "ferric-no-if").is_err());
        // Refused to processes without the privilege; then there is nothing more to see.
        let _tied = bind_to_device(&socket, "lo");
    }

    #[test]
    fn names_that_no_interface_has_are_errors() {
        for name in ["", "ferric-no-if", "a-name-that-is-far-too-long", "a\0b"] {
            assert!(set_down(name).is_err(), "{name:?}");
        }
    }
}
