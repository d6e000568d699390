//! Network interfaces without netlink: for PID 1, which has no event loop.

use std::io;
use std::os::fd::AsRawFd;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_interface_has_are_errors() {
        for name in ["", "ferric-no-if", "a-name-that-is-far-too-long", "a\0b"] {
            assert!(set_down(name).is_err(), "{name:?}");
        }
    }
}
