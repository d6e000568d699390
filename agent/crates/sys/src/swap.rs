//! Swap space.
#![expect(unsafe_code, reason = "swapoff has no other binding")]

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Stops swapping to a device or file; what is on it comes back into memory.
///
/// # Errors
/// It is not in use as swap space, or the memory does not suffice.
pub fn swap_off(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: swapoff reads a string that ends in a zero byte, which lives until after the call.
    if unsafe { libc::swapoff(path.as_ptr()) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_swap_space_is_an_error() {
        assert!(swap_off(Path::new("/dev/null")).is_err());
        assert!(swap_off(Path::new("/ferric\0")).is_err());
    }
}
