//! Loading kernel modules.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::path::Path;

use rustix::io::Errno;

/// `MODULE_INIT_COMPRESSED_FILE`: the kernel unpacks the file itself (since 5.17, when built so).
const COMPRESSED: i32 = 4;

/// What became of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loaded {
    /// It is in the kernel now.
    New,
    /// It was there already.
    Already,
    /// It found no device to drive and went away again.
    NoDevice,
}

/// Loads the module in a file, compressed or not.
///
/// # Errors
/// The file cannot be read or the kernel refuses the module.
pub fn load(path: &Path, parameters: &str) -> io::Result<Loaded> {
    let file = File::open(path)?;
    let parameters = CString::new(parameters)?;
    let compressed = path.extension().is_some_and(|extension| extension != "ko");
    let flags = if compressed { COMPRESSED } else { 0 };
    match rustix::system::finit_module(&file, &parameters, flags) {
        Ok(()) => Ok(Loaded::New),
        Err(Errno::EXIST) => Ok(Loaded::Already),
        Err(Errno::NODEV) => Ok(Loaded::NoDevice),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_module_is_an_error() {
        assert!(load(Path::new("/ferric-no-such-file.ko"), "").is_err());
        assert!(load(Path::new("/proc/self/cmdline"), "").is_err());
    }
}
