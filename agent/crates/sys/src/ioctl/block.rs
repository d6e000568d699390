//! Ioctls of block devices (`linux/fs.h`, `linux/blkpg.h`).
#![expect(unsafe_code, reason = "ioctls")]

use std::ffi::{c_char, c_int, c_longlong, c_uint, c_void};
use std::io;
use std::os::fd::AsFd;

use rustix::ioctl::{self, Getter, NoArg, Opcode, Setter, opcode};

const BLKROGET: Opcode = opcode::none(0x12, 94);
const BLKRRPART: Opcode = opcode::none(0x12, 95);
const BLKFLSBUF: Opcode = opcode::none(0x12, 97);
const BLKSSZGET: Opcode = opcode::none(0x12, 104);
const BLKPG: Opcode = opcode::none(0x12, 105);
// The header says size_t; the kernel stores 64 bits.
const BLKGETSIZE64: Opcode = opcode::read::<usize>(0x12, 114);
const BLKDISCARD: Opcode = opcode::none(0x12, 119);
const BLKPBSZGET: Opcode = opcode::none(0x12, 123);
const BLKSECDISCARD: Opcode = opcode::none(0x12, 125);
const BLKZEROOUT: Opcode = opcode::none(0x12, 127);

const BLKPG_ADD_PARTITION: c_int = 1;
const BLKPG_DEL_PARTITION: c_int = 2;

/// `struct blkpg_partition`.
#[repr(C)]
struct BlkpgPartition {
    start: c_longlong,
    length: c_longlong,
    pno: c_int,
    devname: [c_char; 64],
    volname: [c_char; 64],
}

/// `struct blkpg_ioctl_arg`.
#[repr(C)]
struct BlkpgArg {
    op: c_int,
    flags: c_int,
    datalen: c_int,
    data: *const c_void,
}

const _: () = assert!(size_of::<BlkpgPartition>() == 152);
const _: () = assert!(size_of::<BlkpgArg>() == 16 + size_of::<usize>());

/// Size of the device in bytes.
pub fn size_bytes(fd: impl AsFd) -> io::Result<u64> {
    // SAFETY: BLKGETSIZE64 stores one u64 through the pointer, which Getter::<_, u64> provides.
    Ok(unsafe { ioctl::ioctl(fd, Getter::<BLKGETSIZE64, u64>::new()) }?)
}

/// Size of a logical sector in bytes: the smallest unit that can be read or written.
pub fn logical_sector(fd: impl AsFd) -> io::Result<u32> {
    // SAFETY: BLKSSZGET stores one int, which Getter::<_, c_int> provides.
    let bytes = unsafe { ioctl::ioctl(fd, Getter::<BLKSSZGET, c_int>::new()) }?;
    u32::try_from(bytes).map_err(io::Error::other)
}

/// Size of a physical sector in bytes: the unit that is written without reading first.
pub fn physical_sector(fd: impl AsFd) -> io::Result<u32> {
    // SAFETY: BLKPBSZGET stores one unsigned int, which Getter::<_, c_uint> provides.
    Ok(unsafe { ioctl::ioctl(fd, Getter::<BLKPBSZGET, c_uint>::new()) }?)
}

/// Whether the kernel refuses writes.
pub fn is_read_only(fd: impl AsFd) -> io::Result<bool> {
    // SAFETY: BLKROGET stores one int, which Getter::<_, c_int> provides.
    Ok(unsafe { ioctl::ioctl(fd, Getter::<BLKROGET, c_int>::new()) }? != 0)
}

/// Makes the kernel read the partition table again; fails with `EBUSY` while a partition is in use.
pub fn reread_table(fd: impl AsFd) -> io::Result<()> {
    // SAFETY: BLKRRPART takes no argument.
    Ok(unsafe { ioctl::ioctl(fd, NoArg::<BLKRRPART>::new()) }?)
}

/// Writes dirty pages of the device back and drops its page cache.
pub fn flush_buffers(fd: impl AsFd) -> io::Result<()> {
    // SAFETY: BLKFLSBUF takes no argument.
    Ok(unsafe { ioctl::ioctl(fd, NoArg::<BLKFLSBUF>::new()) }?)
}

/// Tells the device that a range is no longer needed. What it reads as afterwards is up to the device.
pub fn discard(fd: impl AsFd, offset: u64, len_bytes: u64) -> io::Result<()> {
    // SAFETY: BLKDISCARD reads two u64 through the pointer, which Setter passes.
    Ok(unsafe { ioctl::ioctl(fd, Setter::<BLKDISCARD, [u64; 2]>::new([offset, len_bytes])) }?)
}

/// Like [`discard`], and the device promises that copies it made itself are gone as well.
pub fn secure_discard(fd: impl AsFd, offset: u64, len_bytes: u64) -> io::Result<()> {
    // SAFETY: BLKSECDISCARD reads two u64 through the pointer, which Setter passes.
    Ok(unsafe { ioctl::ioctl(fd, Setter::<BLKSECDISCARD, [u64; 2]>::new([offset, len_bytes])) }?)
}

/// Zeroes a range: by the device's own command where it has one, by writing zeroes otherwise.
pub fn zero_out(fd: impl AsFd, offset: u64, len_bytes: u64) -> io::Result<()> {
    // SAFETY: BLKZEROOUT reads two u64 through the pointer, which Setter passes.
    Ok(unsafe { ioctl::ioctl(fd, Setter::<BLKZEROOUT, [u64; 2]>::new([offset, len_bytes])) }?)
}

/// Tells the kernel of a partition without reading the table.
pub fn add_partition(fd: impl AsFd, number: u32, start_bytes: u64, len_bytes: u64) -> io::Result<()> {
    partition(fd, BLKPG_ADD_PARTITION, number, start_bytes, len_bytes)
}

/// Makes the kernel forget a partition; fails with `EBUSY` while it is in use.
pub fn delete_partition(fd: impl AsFd, number: u32) -> io::Result<()> {
    partition(fd, BLKPG_DEL_PARTITION, number, 0, 0)
}

fn partition(fd: impl AsFd, op: c_int, number: u32, start_bytes: u64, len_bytes: u64) -> io::Result<()> {
    let data = BlkpgPartition {
        start: start_bytes.try_into().map_err(io::Error::other)?,
        length: len_bytes.try_into().map_err(io::Error::other)?,
        pno: number.try_into().map_err(io::Error::other)?,
        devname: [0; 64],
        volname: [0; 64],
    };
    let datalen = c_int::try_from(size_of::<BlkpgPartition>()).map_err(io::Error::other)?;
    let arg = BlkpgArg { op, flags: 0, datalen, data: (&raw const data).cast() };
    // SAFETY: BLKPG reads a blkpg_ioctl_arg (asserted layout) and, through its pointer, `datalen` bytes of `data`,
    // which lives until after the call.
    Ok(unsafe { ioctl::ioctl(fd, Setter::<BLKPG, BlkpgArg>::new(arg)) }?)
}
