//! Questions to SCSI disks that sysfs does not answer (`scsi/sg.h`, SPC-5 section 6.7, SAT-3 section 12.2).
#![expect(unsafe_code, reason = "ioctls")]

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::AsFd;
use std::ptr;
use std::time::Duration;

use rustix::ioctl::{self, Opcode, Updater, opcode};

const SG_IO: Opcode = opcode::none(0x22, 0x85);
const INTERFACE: c_int = 'S' as c_int;
const FROM_DEVICE: c_int = -3;
const SENSE_BYTES: usize = 32;

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

/// A page of vital product data, by INQUIRY; as long as the disk made it, and at most 252 bytes.
///
/// # Errors
/// The disk refuses, has no such page, or does not answer within `limit`.
pub fn vital_product_data(fd: impl AsFd, page: u8, limit: Duration) -> io::Result<Vec<u8>> {
    let mut data = vec![0; 252];
    let length = ask(fd, &[0x12, 1, page, 0, 252, 0], &mut data, limit)?;
    data.truncate(length);
    if data.get(1) != Some(&page) {
        return Err(io::Error::other("it answered with another page"));
    }
    Ok(data)
}

/// IDENTIFY DEVICE data of an ATA disk behind a SCSI adapter, by ATA PASS-THROUGH (16): 512 bytes.
///
/// # Errors
/// As for [`vital_product_data`].
pub fn identify_ata(fd: impl AsFd, limit: Duration) -> io::Result<Vec<u8>> {
    let mut data = vec![0; 512];
    // Data in by programmed transfer, one block, its length in the count field.
    let command = [0x85, 4 << 1, 0x0e, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0xec, 0];
    if ask(fd, &command, &mut data, limit)? != data.len() {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
    }
    Ok(data)
}

/// Sends a command that reads; gives the number of bytes that came.
fn ask(fd: impl AsFd, command: &[u8], data: &mut [u8], limit: Duration) -> io::Result<usize> {
    let mut sense = [0; SENSE_BYTES];
    let mut header = SgIoHdr {
        interface_id: INTERFACE,
        direction: FROM_DEVICE,
        command_len: u8::try_from(command.len()).map_err(io::Error::other)?,
        max_sense_len: u8::try_from(sense.len()).map_err(io::Error::other)?,
        iovec_count: 0,
        data_len: u32::try_from(data.len()).map_err(io::Error::other)?,
        data: data.as_mut_ptr().cast(),
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
    // data and the sense bytes that it points to, with the lengths given.
    unsafe { ioctl::ioctl(fd, Updater::<SG_IO, SgIoHdr>::new(&mut header)) }?;
    if header.status != 0 || header.host_status != 0 || header.driver_status != 0 {
        let (status, host, driver) = (header.status, header.host_status, header.driver_status);
        return Err(io::Error::other(format!("refused (status {status:#x}, host {host:#x}, driver {driver:#x})")));
    }
    let missing = usize::try_from(header.residual).unwrap_or(0);
    Ok(data.len().saturating_sub(missing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_scsi_disk_is_an_error() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(vital_product_data(&file, 0x80, Duration::from_secs(1)).is_err());
        assert!(identify_ata(&file, Duration::from_secs(1)).is_err());
    }
}
