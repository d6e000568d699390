//! The EFI system partition of an image that is on an array: copied, file by file, to an array of partitions that firmware
//! can read each by itself (deploy section 9.4, pitfall D10).

use std::io::{self, Read, Seek, SeekFrom, Write};

use ferric_sys::block_dev::BlockDev;

use crate::filesystem::{self, Slice};
use crate::table::Guid;

/// Bounds for a hostile file system.
const MAX_FILES: usize = 4096;
const MAX_DEPTH: u32 = 8;
/// FAT32 has at least 65525 clusters, and its tables need some room, too.
const FAT32_CLUSTERS: u64 = 70_000;
/// Label of a partition that is made without an image's own.
pub const EMPTY_LABEL: &str = "efi-part";
/// Label where the image's own has none.
const DEFAULT_LABEL: &str = "esp";

/// Makes an empty FAT file system on all of `dev`.
///
/// # Errors
/// It cannot be written.
pub fn format(dev: &BlockDev, label: &str, volume_id: Option<u32>) -> io::Result<()> {
    let sector = u16::try_from(dev.logical_sector()).map_err(io::Error::other)?;
    let sectors = dev.size_bytes() / u64::from(sector);
    let [a, b, c, d, ..] = Guid::random()?.0;
    let mut name = [b' '; 11];
    for (place, byte) in name.iter_mut().zip(label.bytes()) {
        *place = byte;
    }
    let options = fatfs::FormatVolumeOptions::new()
        .bytes_per_sector(sector)
        .total_sectors(u32::try_from(sectors).map_err(io::Error::other)?)
        .volume_id(volume_id.unwrap_or_else(|| u32::from_le_bytes([a, b, c, d])))
        .volume_label(name);
    let options = if sectors > FAT32_CLUSTERS { options.fat_type(fatfs::FatType::Fat32) } else { options };
    fatfs::format_volume(Slice::writable(dev, 0, dev.size_bytes()), options)
}

/// Formats all of `to` and copies the files of a FAT file system on `from` there. Serial number and label stay, as an
/// image's table of file systems may name them. Returns the number of files.
///
/// # Errors
/// There is no FAT file system, it leads in circles, or it has more than fits.
pub fn copy(from: &BlockDev, start_bytes: u64, size_bytes: u64, to: &BlockDev) -> io::Result<usize> {
    // Its structure is looked at with what guards against hostile ones; more than that guard allows is read below.
    drop(filesystem::fat(from, start_bytes, size_bytes)?);
    let label = filesystem::label(from, start_bytes, size_bytes).unwrap_or_else(|| DEFAULT_LABEL.to_owned());
    let volume = BoundedVolume { slice: Slice::writable(from, start_bytes, size_bytes), left_bytes: size_bytes * 2 };
    let old = fatfs::FileSystem::new(volume, fatfs::FsOptions::new().update_accessed_date(false))?;
    format(to, &label, Some(old.volume_id()))?;
    let new = fatfs::FileSystem::new(Slice::writable(to, 0, to.size_bytes()), fatfs::FsOptions::new())?;
    let mut copied = 0;
    copy_directory(&old.root_dir(), &new.root_dir(), 0, &mut copied)?;
    new.unmount()?;
    Ok(copied)
}

fn copy_directory<A: fatfs::ReadWriteSeek, B: fatfs::ReadWriteSeek>(
    from: &fatfs::Dir<'_, A>,
    to: &fatfs::Dir<'_, B>,
    depth: u32,
    copied: &mut usize,
) -> io::Result<()> {
    if depth > MAX_DEPTH {
        return Err(io::Error::other("its directories are nested too deep"));
    }
    for entry in from.iter() {
        let entry = entry?;
        let name = entry.file_name();
        if name == "." || name == ".." {
            continue;
        }
        *copied += 1;
        if *copied > MAX_FILES {
            return Err(io::Error::other("it has too many files"));
        }
        if entry.is_dir() {
            copy_directory(&entry.to_dir(), &to.create_dir(&name)?, depth + 1, copied)?;
        } else {
            let mut file = to.create_file(&name)?;
            io::copy(&mut entry.to_file(), &mut file)?;
            file.flush()?;
        }
    }
    Ok(())
}

/// An image's file system: nothing is written to it, and what is read of it has an end.
struct BoundedVolume<'a> {
    slice: Slice<'a>,
    left_bytes: u64,
}

impl Read for BoundedVolume<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.slice.read(buf)?;
        let left = self.left_bytes.checked_sub(u64::try_from(read).unwrap_or(u64::MAX));
        self.left_bytes = left.ok_or_else(|| io::Error::other("the file system leads in circles"))?;
        Ok(read)
    }
}

impl Write for BoundedVolume<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.slice.seek(SeekFrom::Current(i64::try_from(buf.len()).map_err(io::Error::other)?))?;
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for BoundedVolume<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.slice.seek(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_sys::testing::disk::TestDisk;

    const MIB: u64 = 1 << 20;

    fn source(label: [u8; 11]) -> (TestDisk, BlockDev) {
        let disk = TestDisk::used(50 * MIB).unwrap();
        let dev = disk.open().unwrap();
        let options = fatfs::FormatVolumeOptions::new().volume_id(0x1234_abcd).volume_label(label);
        fatfs::format_volume(Slice::writable(&dev, MIB, 48 * MIB), options).unwrap();
        let fs = fatfs::FileSystem::new(Slice::writable(&dev, MIB, 48 * MIB), fatfs::FsOptions::new()).unwrap();
        let root = fs.root_dir();
        root.create_dir("EFI").unwrap().create_dir("debian").unwrap();
        for (path, len) in [("EFI/debian/grubx64.efi", 300_000), ("loader.conf", 10)] {
            root.create_file(path).unwrap().write_all(&vec![7; len]).unwrap();
        }
        drop(root);
        fs.unmount().unwrap();
        (disk, dev)
    }

    #[test]
    fn files_serial_number_and_label_arrive_and_the_source_stays() {
        for (label, want, size) in [(*b"ESP        ", "ESP", 60), (*b"NO NAME    ", "esp", 30)] {
            let (disk, dev) = source(label);
            let before = disk.bytes(0, 50 << 20).unwrap();
            let target = TestDisk::used(size * MIB).unwrap();
            let to = target.open().unwrap();
            assert_eq!(copy(&dev, MIB, 48 * MIB, &to).unwrap(), 4);
            let fs = filesystem::fat(&to, 0, size * MIB).unwrap();
            assert_eq!((fs.volume_id(), fs.volume_label().trim()), (0x1234_abcd, want));
            assert_eq!(fs.fat_type() == fatfs::FatType::Fat32, size == 60, "{size}");
            let mut bytes = Vec::new();
            fs.root_dir().open_file("EFI/debian/grubx64.efi").unwrap().read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes, vec![7; 300_000]);
            assert!(before == disk.bytes(0, 50 << 20).unwrap(), "the source was changed");
        }
    }

    #[test]
    fn what_does_not_fit_or_is_no_file_system_is_an_error() {
        let (_disk, dev) = source(*b"ESP        ");
        let small = TestDisk::used(MIB / 4).unwrap();
        assert!(copy(&dev, MIB, 48 * MIB, &small.open().unwrap()).is_err());
        let target = TestDisk::used(60 * MIB).unwrap();
        assert!(copy(&dev, 0, 48 * MIB, &target.open().unwrap()).is_err());
        let bytes = target.bytes(0, 512).unwrap();
        assert_eq!(bytes[0], 0xa5, "it was formatted for nothing");
    }
}
