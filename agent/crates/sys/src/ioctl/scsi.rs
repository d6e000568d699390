//! Questions to SCSI disks that sysfs does not answer (SPC-5 section 6.7, SAT-3 section 12.2).

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use super::sg::{self, Data};

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
    let answer = sg::execute(fd, command, Data::In(data), limit)?;
    if answer.is_good() { Ok(answer.transferred) } else { Err(answer.refused()) }
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
