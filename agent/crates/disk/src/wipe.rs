//! Signatures of file systems, volume managers and partition tables: finding them, and wiping them all.
//!
//! Offsets and magics are facts of the formats named in `MAGICS`; the table covers what `wipefs` knows and what
//! operators met on used disks (pitfalls B3, B4, B6).

use std::path::PathBuf;
use std::time::Duration;

use ferric_sys::block_dev::{Access, BlockDev, BlockDevError};
use ferric_types::ErrorClass;

/// Where a magic is counted from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    Start(u64),
    End(u64),
    /// md metadata 0.90: the last 64 KiB that are aligned to 64 KiB.
    Md090,
    /// md metadata 1.0: 8 KiB before the end, aligned to 4 KiB.
    Md10,
}

struct Magic {
    name: &'static str,
    at: From,
    bytes: &'static [u8],
}

const fn start(name: &'static str, offset: u64, bytes: &'static [u8]) -> Magic {
    Magic { name, at: From::Start(offset), bytes }
}

const MD: &[u8] = &0xa92b_4efc_u32.to_le_bytes();

/// Name, place and bytes of each signature.
const MAGICS: &[Magic] = &[
    start("gpt", 512, b"EFI PART"),
    start("gpt", 4096, b"EFI PART"),
    Magic { name: "gpt", at: From::End(512), bytes: b"EFI PART" },
    Magic { name: "gpt", at: From::End(4096), bytes: b"EFI PART" },
    start("dos", 510, &[0x55, 0xaa]),
    start("ext", 1080, &[0x53, 0xef]),
    start("xfs", 0, b"XFSB"),
    start("btrfs", 0x1_0040, b"_BHRfS_M"),
    start("btrfs", 0x400_0040, b"_BHRfS_M"),
    start("btrfs", 0x40_0000_0040, b"_BHRfS_M"),
    start("vfat", 54, b"FAT1"),
    start("vfat", 82, b"FAT32"),
    start("ntfs", 3, b"NTFS    "),
    start("exfat", 3, b"EXFAT   "),
    start("iso9660", 32769, b"CD001"),
    start("udf", 32769, b"BEA01"),
    start("swap", 4086, b"SWAPSPACE2"),
    start("swap", 4086, b"SWAP-SPACE"),
    start("LVM2_member", 24, b"LVM2 001"),
    start("LVM2_member", 536, b"LVM2 001"),
    start("LVM2_member", 1048, b"LVM2 001"),
    start("LVM2_member", 1560, b"LVM2 001"),
    start("linux_raid_member", 0, MD),
    start("linux_raid_member", 4096, MD),
    Magic { name: "linux_raid_member", at: From::Md090, bytes: MD },
    Magic { name: "linux_raid_member", at: From::Md10, bytes: MD },
    Magic { name: "isw_raid_member", at: From::End(1024), bytes: b"Intel Raid ISM" },
    Magic { name: "ddf_raid_member", at: From::End(512), bytes: &[0xde, 0x11, 0xde, 0x11] },
    start("crypto_LUKS", 0, b"LUKS\xba\xbe"),
    start("crypto_LUKS", 0x4000, b"SKUL\xba\xbe"),
    start("crypto_LUKS", 0x8000, b"SKUL\xba\xbe"),
    start("crypto_LUKS", 0x1_0000, b"SKUL\xba\xbe"),
    start("crypto_LUKS", 0x2_0000, b"SKUL\xba\xbe"),
    start("crypto_LUKS", 0x4_0000, b"SKUL\xba\xbe"),
    start("crypto_LUKS", 0x8_0000, b"SKUL\xba\xbe"),
    start("crypto_LUKS", 0x10_0000, b"SKUL\xba\xbe"),
    start("crypto_LUKS", 0x20_0000, b"SKUL\xba\xbe"),
    start("crypto_LUKS", 0x40_0000, b"SKUL\xba\xbe"),
    start("bcache", 4120, &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca]),
    start("gfs2", 0x1_0000, &[0x01, 0x16, 0x19, 0x70]),
    start("VMFS_volume_member", 0x10_0000, &[0x0d, 0xd0, 0x01, 0xc0]),
    start("VMFS", 0x20_0000, &[0x5e, 0xf1, 0xab, 0x2f]),
    start("zfs_member", 0x2_0000, &0x00ba_b10c_u64.to_le_bytes()),
    start("f2fs", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    start("squashfs", 0, b"hsqs"),
    start("erofs", 1024, &[0xe2, 0xe1, 0xf5, 0xe0]),
];

/// A signature that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// Its name as `blkid` and `lsblk` give it.
    pub name: &'static str,
    /// Where it is, bytes from the start.
    pub offset: u64,
}

/// A device could not be wiped.
#[derive(Debug, thiserror::Error)]
pub enum WipeError {
    /// Someone holds it: a mounted file system, an md array, a device mapper.
    #[error("Destroying metadata failed on device {}: it is still in use after {} s", path.display(), waited.as_secs())]
    Busy {
        /// Device.
        path: PathBuf,
        /// How long it was tried.
        waited: Duration,
    },
    /// It could not be opened, read or written.
    #[error("wiping {}", path.display())]
    Device {
        /// Device.
        path: PathBuf,
        /// Reason.
        #[source]
        source: BlockDevError,
    },
    /// A signature is still there after it was written over.
    #[error("{} still shows a {name} signature at byte {offset} after it was wiped", path.display())]
    Remains {
        /// Device.
        path: PathBuf,
        /// Signature.
        name: &'static str,
        /// Its place.
        offset: u64,
    },
}

impl WipeError {
    /// Error class for the conductor.
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::Busy { .. } => ErrorClass::Deployment,
            Self::Device { .. } | Self::Remains { .. } => ErrorClass::BlockDeviceErase,
        }
    }
}

/// Bytes wiped at each end whatever is found: every signature but the far copies below lies in here.
const ENDS_BYTES: u64 = 4 << 20;
/// How long a device may stay in use by someone who is about to let go (udev-like probes, a stopping array).
const BUSY_TRIES: u32 = 20;

fn offset_of(at: From, size: u64) -> Option<u64> {
    match at {
        From::Start(offset) => Some(offset),
        From::End(back) => size.checked_sub(back),
        From::Md090 => (size / 65536 * 65536).checked_sub(65536),
        From::Md10 => size.checked_sub(8192).map(|offset| offset / 4096 * 4096),
    }
}

/// All signatures on a device.
///
/// # Errors
/// The device cannot be read.
pub fn signatures(dev: &BlockDev) -> Result<Vec<Signature>, BlockDevError> {
    let size = dev.size_bytes();
    let mut found = Vec::new();
    let mut buffer = [0_u8; 16];
    for magic in MAGICS {
        let Some(offset) = offset_of(magic.at, size) else { continue };
        let Some(buffer) = buffer.get_mut(..magic.bytes.len()) else { continue };
        if offset.saturating_add(16) > size {
            continue;
        }
        dev.read_at(offset, buffer)?;
        let known = found.iter().any(|known: &Signature| known.name == magic.name && known.offset == offset);
        if *buffer == *magic.bytes && !known {
            found.push(Signature { name: magic.name, offset });
        }
    }
    Ok(found)
}

/// Opens a device for oneself, waiting for those who are about to let go.
///
/// # Errors
/// [`WipeError::Busy`], [`WipeError::Device`].
pub fn open_exclusive(path: &std::path::Path, pause: Duration) -> Result<BlockDev, WipeError> {
    let mut tries = 0;
    loop {
        tries += 1;
        match BlockDev::open(path, Access::Exclusive) {
            Ok(dev) => return Ok(dev),
            Err(error) if error.is_busy() && tries < BUSY_TRIES => std::thread::sleep(pause),
            Err(error) if error.is_busy() => {
                return Err(WipeError::Busy { path: path.to_owned(), waited: pause * BUSY_TRIES });
            }
            Err(source) => return Err(WipeError::Device { path: path.to_owned(), source }),
        }
    }
}

/// Wipes both ends of a device and every far signature, flushes, and makes sure that none is left.
///
/// # Errors
/// [`WipeError::Device`], [`WipeError::Remains`].
pub fn destroy_metadata(dev: &BlockDev) -> Result<(), WipeError> {
    let failed = |source| WipeError::Device { path: dev.path().to_owned(), source };
    let size = dev.size_bytes();
    for Signature { name, offset } in signatures(dev).map_err(failed)? {
        tracing::info!(device = %dev.path().display(), signature = name, offset, "wiping");
        let sector = u64::from(dev.logical_sector());
        let from = offset / sector * sector;
        dev.zero_range(from, sector.min(size - from)).map_err(failed)?;
    }
    let head = ENDS_BYTES.min(size);
    write_zeroes(dev, 0, head).map_err(failed)?;
    let tail = size.saturating_sub(ENDS_BYTES).max(head);
    write_zeroes(dev, tail, size - tail).map_err(failed)?;
    dev.flush().map_err(failed)?;
    match signatures(dev).map_err(failed)?.into_iter().next() {
        None => Ok(()),
        Some(Signature { name, offset }) => Err(WipeError::Remains { path: dev.path().to_owned(), name, offset }),
    }
}

/// Zeroes by plain writes: a device that only pretends to zero ranges must not keep a signature.
fn write_zeroes(dev: &BlockDev, offset: u64, len: u64) -> Result<(), BlockDevError> {
    let zeroes = vec![0_u8; 1 << 20];
    let mut done = 0;
    while done < len {
        let step = usize::try_from(len - done).unwrap_or(usize::MAX).min(zeroes.len());
        dev.write_at(offset + done, zeroes.get(..step).unwrap_or(&zeroes))?;
        done += u64::try_from(step).unwrap_or(u64::MAX);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_sys::testing::disk::TestDisk;

    const GIB: u64 = 1 << 30;

    #[test]
    fn every_known_signature_is_found_and_wiped() {
        for magic in MAGICS {
            // Large enough for the far btrfs copy; sparse.
            let size = (GIB << 8) + GIB + 4096;
            let disk = TestDisk::zeroed(size).unwrap();
            let dev = BlockDev::open(disk.path(), Access::Exclusive).unwrap();
            let offset = offset_of(magic.at, size).unwrap();
            dev.write_at(offset, magic.bytes).unwrap();
            let found = signatures(&dev).unwrap();
            assert!(found.contains(&Signature { name: magic.name, offset }), "{} at {offset}: {found:?}", magic.name);
            destroy_metadata(&dev).unwrap();
            assert_eq!(signatures(&dev).unwrap(), [], "{} at {offset}", magic.name);
        }
    }

    #[test]
    fn both_ends_are_zero_afterwards_whatever_the_sector_and_the_middle_stays() {
        for sector in [512, 4096] {
            let disk = TestDisk::used(12 << 20).unwrap().sector(sector);
            let dev = BlockDev::open_file_as(disk.path(), Access::Exclusive, sector).unwrap();
            destroy_metadata(&dev).unwrap();
            let bytes = std::fs::read(disk.path()).unwrap();
            assert!(bytes[..4 << 20].iter().all(|byte| *byte == 0), "head with {sector}");
            assert!(bytes[8 << 20..].iter().all(|byte| *byte == 0), "tail with {sector}");
            assert!(bytes[4 << 20..8 << 20].iter().all(|byte| *byte == 0xa5), "middle with {sector}");
        }
    }

    #[test]
    fn a_tiny_device_is_wiped_whole() {
        for size in [512, 4096, 33 * 512, 5 << 20] {
            let disk = TestDisk::used(size).unwrap();
            let dev = BlockDev::open(disk.path(), Access::Exclusive).unwrap();
            destroy_metadata(&dev).unwrap();
            assert!(std::fs::read(disk.path()).unwrap().iter().all(|byte| *byte == 0), "{size}");
        }
    }
}
