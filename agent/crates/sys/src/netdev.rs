//! Sockets tied to a network interface.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

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
}
