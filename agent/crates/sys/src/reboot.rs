//! The end of the machine's run.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use rustix::system::RebootCommand;

/// What shall happen to the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reboot {
    /// Power off.
    PowerOff,
    /// Start again from the firmware.
    Restart,
}

/// Ends the machine's run at once, without writing anything back. Returns only when that failed.
pub fn now(what: Reboot) -> io::Error {
    let command = match what {
        Reboot::PowerOff => RebootCommand::PowerOff,
        Reboot::Restart => RebootCommand::Restart,
    };
    match rustix::system::reboot(command) {
        Ok(()) => io::Error::other("the kernel went on running"),
        Err(error) => error.into(),
    }
}

/// The same through the magic SysRq key, which needs no driver's consent.
///
/// # Errors
/// The kernel has no SysRq.
pub fn sysrq(what: Reboot) -> io::Result<()> {
    let key = match what {
        Reboot::PowerOff => b"o",
        Reboot::Restart => b"b",
    };
    OpenOptions::new().write(true).open(Path::new("/proc/sysrq-trigger"))?.write_all(key)
}

/// Makes Ctrl-Alt-Del send SIGINT to PID 1 instead of restarting the machine on the spot.
///
/// # Errors
/// The caller may not do this.
pub fn catch_ctrl_alt_del() -> io::Result<()> {
    Ok(rustix::system::reboot(RebootCommand::CadOff)?)
}
