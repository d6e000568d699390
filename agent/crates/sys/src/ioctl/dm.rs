//! The device mapper (kernel `include/uapi/linux/dm-ioctl.h`): what a mapping is made of, and taking it away.
#![expect(unsafe_code, reason = "ioctls")]

use std::fs::File;
use std::io;

use rustix::ioctl::{self, Opcode, Updater, opcode};

/// Misc device of the driver; it exists when the driver is there.
const CONTROL: &str = "/dev/mapper/control";
const DM_DEV_REMOVE: Opcode = opcode::read_write::<Header>(0xfd, 4);
const DM_TABLE_STATUS: Opcode = opcode::read_write::<Header>(0xfd, 12);
/// Ask for the table rather than its state.
const DM_STATUS_TABLE_FLAG: u32 = 1 << 4;
/// The answer did not fit.
const DM_BUFFER_FULL_FLAG: u32 = 1 << 8;
/// Interface version; the kernel takes any minor one of its major one.
const VERSION: [u32; 3] = [4, 0, 0];
const NAME_BYTES: usize = 128;

/// `struct dm_ioctl`.
#[repr(C)]
struct Header {
    version: [u32; 3],
    data_size: u32,
    data_start: u32,
    target_count: u32,
    open_count: i32,
    flags: u32,
    event_nr: u32,
    padding: u32,
    dev: u64,
    name: [u8; NAME_BYTES],
    uuid: [u8; 129],
    data: [u8; 7],
}

/// A header, and the room behind it.
#[repr(C)]
struct Request {
    header: Header,
    data: [u8; Request::DATA],
}

const HEADER_BYTES: usize = 312;
const _: () = assert!(size_of::<Header>() == HEADER_BYTES);
const _: () = assert!(size_of::<Request>() == 16 << 10);

impl Request {
    const DATA: usize = (16 << 10) - HEADER_BYTES;

    fn new(mapping: &str, flags: u32) -> io::Result<Box<Self>> {
        let mut name = [0; NAME_BYTES];
        match name.get_mut(..mapping.len()) {
            Some(place) if mapping.len() < NAME_BYTES => place.copy_from_slice(mapping.as_bytes()),
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        }
        let size = |bytes: usize| u32::try_from(bytes).map_err(io::Error::other);
        let header = Header {
            version: VERSION,
            data_size: size(size_of::<Self>())?,
            data_start: size(HEADER_BYTES)?,
            target_count: 0,
            open_count: 0,
            flags,
            event_nr: 0,
            padding: 0,
            dev: 0,
            name,
            uuid: [0; 129],
            data: [0; 7],
        };
        Ok(Box::new(Self { header, data: [0; Self::DATA] }))
    }

    fn send<const COMMAND: Opcode>(&mut self) -> io::Result<()> {
        let control = File::options().read(true).write(true).open(CONTROL)?;
        // SAFETY: all commands of the device mapper read and write a dm_ioctl (asserted layout) and behind it as much as
        // `data_size` says, which is the size of `self`.
        Ok(unsafe { ioctl::ioctl(control, Updater::<COMMAND, Self>::new(self)) }?)
    }
}

/// Takes a mapping away; fails with `EBUSY` while it is open or another one is on top of it.
///
/// # Errors
/// There is no device mapper, no such mapping, or it is in use.
pub fn remove(mapping: &str) -> io::Result<()> {
    Request::new(mapping, 0)?.send::<DM_DEV_REMOVE>()
}

/// Kinds of the targets that a mapping is made of, such as `linear`, in order.
///
/// # Errors
/// There is no device mapper, no such mapping, or its table is larger than 16 KiB.
pub fn target_types(mapping: &str) -> io::Result<Vec<String>> {
    let mut request = Request::new(mapping, DM_STATUS_TABLE_FLAG)?;
    request.send::<DM_TABLE_STATUS>()?;
    if request.header.flags & DM_BUFFER_FULL_FLAG != 0 {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(types(&request.data, request.header.target_count))
}

/// Makes a mapping of one `linear` target, as programs of the distribution would: `table` is the device and the first sector
/// there. For tests.
///
/// # Errors
/// There is no device mapper, or it does not take it.
pub fn create_linear(mapping: &str, uuid: &str, sectors: u64, table: &str) -> io::Result<()> {
    const DM_DEV_CREATE: Opcode = opcode::read_write::<Header>(0xfd, 3);
    const DM_DEV_RESUME: Opcode = opcode::read_write::<Header>(0xfd, 6);
    const DM_TABLE_LOAD: Opcode = opcode::read_write::<Header>(0xfd, 9);
    let mut request = Request::new(mapping, 0)?;
    let place = request.header.uuid.get_mut(..uuid.len()).ok_or(io::ErrorKind::InvalidInput)?;
    place.copy_from_slice(uuid.as_bytes());
    request.send::<DM_DEV_CREATE>()?;
    let mut request = Request::new(mapping, 0)?;
    request.header.target_count = 1;
    let spec = [&[0; 8][..], &sectors.to_le_bytes(), &[0; 8], b"linear\0\0\0\0\0\0\0\0\0\0", table.as_bytes()].concat();
    let place = request.data.get_mut(..spec.len()).ok_or(io::ErrorKind::InvalidInput)?;
    place.copy_from_slice(&spec);
    request.send::<DM_TABLE_LOAD>()?;
    Request::new(mapping, 0)?.send::<DM_DEV_RESUME>()
}

/// Kinds in a chain of `struct dm_target_spec`: start, length, status, where the next one is, kind.
fn types(data: &[u8], count: u32) -> Vec<String> {
    let (mut at, mut found) = (0_usize, Vec::new());
    for _target in 0..count {
        let Some(spec) = data.get(at..).and_then(|rest| rest.get(..40)) else { break };
        let kind = spec.get(24..).and_then(|kind| kind.split(|byte| *byte == 0).next()).unwrap_or_default();
        found.push(String::from_utf8_lossy(kind).into_owned());
        // Counted from the start of all of them.
        let next = spec.get(20..24).and_then(|next| next.try_into().ok()).map_or(0, u32::from_le_bytes);
        match usize::try_from(next) {
            Ok(next) if next > at => at = next,
            _ => break,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(next: u32, kind: &str) -> Vec<u8> {
        let mut bytes = vec![0; 20];
        bytes.extend(next.to_le_bytes());
        bytes.extend(kind.as_bytes());
        bytes.resize(40, 0);
        bytes.extend(b"254:0 2048\0\0\0\0\0\0");
        bytes
    }

    #[test]
    fn kinds_of_targets_are_read_from_their_chain_which_comes_to_an_end() {
        let two = [spec(56, "linear"), spec(112, "crypt")].concat();
        assert_eq!(types(&two, 2), ["linear", "crypt"]);
        assert_eq!(types(&two, 9), ["linear", "crypt"]);
        assert_eq!(types(&spec(0, "striped"), 3), ["striped"]);
        assert!(types(&[0; 39], 1).is_empty());
        assert!(types(&two, 0).is_empty());
    }

    #[test]
    fn a_mapping_that_is_not_there_is_an_error() {
        for name in ["ferric-no-such-mapping", &"x".repeat(128)] {
            assert!(remove(name).is_err(), "{name}");
            assert!(target_types(name).is_err(), "{name}");
        }
    }
}
