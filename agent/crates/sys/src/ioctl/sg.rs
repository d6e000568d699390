//! SCSI commands to a disk, by the generic interface that every SCSI and SATA disk node has (`scsi/sg.h`).
#![expect(unsafe_code, reason = "ioctls")]

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::AsFd;
use std::ptr;
use std::time::Duration;

use rustix::ioctl::{self, Opcode, Updater, opcode};

const SG_IO: Opcode = opcode::none(0x22, 0x85);
const INTERFACE: c_int = 'S' as c_int;
const NO_DATA: c_int = -1;
const TO_DEVICE: c_int = -2;
const FROM_DEVICE: c_int = -3;
const SENSE_BYTES: usize = 64;

/// `struct sg_io_hdr`.
#[repr(C)]
struct SgIoHdr {
    interface_id: c_int,
    direction: c_int,
    command_len: u8,
    max_sense_len: u8,
    iovec_count: u16,
    data_len: u32,
    data: *mut c_void,
    command: *const u8,
    sense: *mut u8,
    timeout_ms: u32,
    flags: u32,
    pack_id: c_int,
    user: *mut c_void,
    status: u8,
    masked_status: u8,
    message_status: u8,
    sense_len: u8,
    host_status: u16,
    driver_status: u16,
    residual: c_int,
    duration_ms: u32,
    info: u32,
}

const _: () = assert!(size_of::<SgIoHdr>() == 48 + 5 * size_of::<usize>());

/// What a command transfers besides itself.
#[derive(Debug)]
pub enum Data<'a> {
    /// Nothing.
    None,
    /// From the disk.
    In(&'a mut [u8]),
    /// To the disk.
    Out(&'a [u8]),
}

/// How a command ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// Bytes that were transferred.
    pub transferred: usize,
    /// SCSI status: 0 is good, 2 is a check condition, whose reason is in `sense`.
    pub status: u8,
    /// What the adapter says; 0 when it reached the disk.
    pub host_status: u16,
    /// What the driver says; 8 only tells that there is sense data.
    pub driver_status: u16,
    /// Sense data (SPC-5 section 4.4).
    pub sense: Vec<u8>,
}

impl Answer {
    /// Whether the disk did what it was told.
    pub fn is_good(&self) -> bool {
        self.status == 0 && self.host_status == 0 && self.driver_status & !8 == 0
    }

    /// An error for a command that was refused.
    pub fn refused(&self) -> io::Error {
        let (status, host, driver) = (self.status, self.host_status, self.driver_status);
        io::Error::other(format!("refused (status {status:#x}, host {host:#x}, driver {driver:#x})"))
    }
}

/// Sends a command and waits for its end, `limit` at most; the kernel resets a disk that takes longer.
///
/// # Errors
/// It is no SCSI disk, or the kernel does not pass the command on. A command that the disk refuses is an [`Answer`].
pub fn execute(fd: impl AsFd, command: &[u8], data: Data<'_>, limit: Duration) -> io::Result<Answer> {
    let mut sense = [0; SENSE_BYTES];
    let (direction, length, pointer) = match data {
        Data::None => (NO_DATA, 0, ptr::null_mut()),
        Data::In(buffer) => (FROM_DEVICE, buffer.len(), buffer.as_mut_ptr().cast::<c_void>()),
        // The kernel only reads from memory that goes to the device.
        Data::Out(bytes) => (TO_DEVICE, bytes.len(), bytes.as_ptr().cast::<c_void>().cast_mut()),
    };
    let mut header = SgIoHdr {
        interface_id: INTERFACE,
        direction,
        command_len: u8::try_from(command.len()).map_err(io::Error::other)?,
        max_sense_len: u8::try_from(sense.len()).map_err(io::Error::other)?,
        iovec_count: 0,
        data_len: u32::try_from(length).map_err(io::Error::other)?,
        data: pointer,
        command: command.as_ptr(),
        sense: sense.as_mut_ptr(),
        timeout_ms: u32::try_from(limit.as_millis()).unwrap_or(u32::MAX),
        flags: 0,
        pack_id: 0,
        user: ptr::null_mut(),
        status: 0,
        masked_status: 0,
        message_status: 0,
        sense_len: 0,
        host_status: 0,
        driver_status: 0,
        residual: 0,
        duration_ms: 0,
        info: 0,
    };
    // SAFETY: SG_IO reads and writes one sg_io_hdr, which lives until the call returns, as do the memory of the command, the
    // data and the sense bytes that it points to, with the lengths given; data that is not ours to change is only read.
    unsafe { ioctl::ioctl(fd, Updater::<SG_IO, SgIoHdr>::new(&mut header)) }?;
    let missing = usize::try_from(header.residual).unwrap_or(0);
    Ok(Answer {
        transferred: length.saturating_sub(missing),
        status: header.status,
        host_status: header.host_status,
        driver_status: header.driver_status,
        sense: sense.get(..usize::from(header.sense_len)).unwrap_or_default().to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_scsi_disk_takes_no_commands() {
        let file = std::fs::File::open("/dev/null").unwrap();
        for data in [Data::None, Data::In(&mut [0; 8]), Data::Out(&[0; 8])] {
            assert!(execute(&file, &[0; 6], data, Duration::from_secs(1)).is_err());
        }
    }

    #[test]
    fn only_status_and_adapter_decide_whether_a_command_was_good() {
        let with =
            |status, host_status, driver_status| Answer { status, host_status, driver_status, ..Answer::default() };
        for (answer, good) in
            [(with(0, 0, 0), true), (with(0, 0, 8), true), (with(2, 0, 8), false), (with(0, 3, 0), false)]
        {
            assert_eq!(answer.is_good(), good, "{answer:?}");
        }
        assert_eq!(with(2, 3, 8).refused().to_string(), "refused (status 0x2, host 0x3, driver 0x8)");
    }
}
