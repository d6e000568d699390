//! Admin commands to an NVMe controller, through the node of one of its namespaces (`linux/nvme_ioctl.h`).
#![expect(unsafe_code, reason = "ioctls")]

use std::ffi::c_void;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::ioctl::{self, Ioctl, IoctlOutput, Opcode, opcode};

const ADMIN_COMMAND: Opcode = opcode::read_write::<Passthru>(b'N', 0x41);
const NAMESPACE_ID: Opcode = opcode::none(b'N', 0x40);

/// `struct nvme_passthru_cmd`.
#[repr(C)]
#[derive(Default)]
struct Passthru {
    opcode: u8,
    flags: u8,
    reserved: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    addr: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<Passthru>() == 72);

/// An admin command that reads data, or transfers none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AdminCommand {
    /// Opcode.
    pub opcode: u8,
    /// Namespace, `0xffff_ffff` for all, 0 for none.
    pub nsid: u32,
    /// Command dword 10.
    pub cdw10: u32,
    /// Command dword 11.
    pub cdw11: u32,
    /// Longest wait; the kernel resets a controller that takes longer.
    pub limit: Duration,
}

/// The ioctl as such: what it returns is the controller's status.
struct Submit<'a>(&'a mut Passthru);

// SAFETY: the opcode carries the structure's size (asserted), the pointer is to such a structure, and the call changes it.
unsafe impl Ioctl for Submit<'_> {
    type Output = u16;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        ADMIN_COMMAND
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut *self.0).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<u16> {
        // Phase bits and the like are above the 15 bits of the status.
        Ok(u16::try_from(out & 0x7fff).unwrap_or(0x7fff))
    }
}

/// The ioctl whose return value is the number of the namespace.
struct AskNamespace;

// SAFETY: the call takes no argument and touches no memory.
unsafe impl Ioctl for AskNamespace {
    type Output = u32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        NAMESPACE_ID
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<u32> {
        u32::try_from(out).or(Err(rustix::io::Errno::RANGE))
    }
}

/// Sends a command and waits for its end. `data` takes what the controller answers with. Gives the status, 0 for success.
///
/// # Errors
/// It is no NVMe namespace, or the kernel does not pass the command on.
pub fn admin(fd: impl AsFd, command: &AdminCommand, data: &mut [u8]) -> io::Result<u16> {
    let mut passthru = Passthru {
        opcode: command.opcode,
        nsid: command.nsid,
        addr: if data.is_empty() { 0 } else { u64::try_from(data.as_mut_ptr().expose_provenance()).unwrap_or(0) },
        data_len: u32::try_from(data.len()).map_err(io::Error::other)?,
        cdw10: command.cdw10,
        cdw11: command.cdw11,
        timeout_ms: u32::try_from(command.limit.as_millis()).unwrap_or(u32::MAX),
        ..Passthru::default()
    };
    // SAFETY: the kernel reads and writes one nvme_passthru_cmd, and writes at most `data_len` bytes to `addr`, which is
    // `data`, mutably borrowed until the call returns.
    Ok(unsafe { ioctl::ioctl(fd, Submit(&mut passthru)) }?)
}

/// Number of the namespace behind a node.
///
/// # Errors
/// It is no NVMe namespace.
pub fn namespace_id(fd: impl AsFd) -> io::Result<u32> {
    // SAFETY: the ioctl takes no argument.
    Ok(unsafe { ioctl::ioctl(fd, AskNamespace) }?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_nvme_disk_is_an_error() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let identify = AdminCommand { opcode: 6, cdw10: 1, limit: Duration::from_secs(1), ..AdminCommand::default() };
        assert!(admin(&file, &identify, &mut [0; 4096]).is_err());
        assert!(namespace_id(&file).is_err());
    }

    #[test]
    fn the_ioctl_numbers_are_those_of_the_kernel() {
        // _IOWR('N', 0x41, 72 bytes), _IO('N', 0x40).
        assert_eq!(ADMIN_COMMAND, 0xc048_4e41);
        assert_eq!(NAMESPACE_ID, 0x4e40);
    }
}
