//! File systems on partitions, read and made by our own code: labels, and a window on one partition.

use std::io::{self, Read, Seek, SeekFrom, Write};

use ferric_sys::block_dev::{BlockDev, Cursor};

use crate::iso9660;

/// Bytes read from a part whose content is somebody else's: more than any label or list of boot loaders takes, so that a
/// file system that leads in circles comes to an end.
const MAX_READ_BYTES: u64 = 16 << 20;

/// A part of a disk as a stream of its own.
#[derive(Debug)]
pub struct Slice<'a> {
    cursor: Cursor<'a>,
    start: u64,
    size: u64,
    position: u64,
    writable: bool,
    /// How much may still be read.
    left_bytes: u64,
}

impl<'a> Slice<'a> {
    /// A part that can be read, up to 16 MiB in all. Writes are taken and dropped: a FAT library wants to note that the file system was in
    /// use, and an image must stay as it is.
    pub const fn read_only(dev: &'a BlockDev, start_bytes: u64, size_bytes: u64) -> Self {
        Self::new(dev, start_bytes, size_bytes, false, MAX_READ_BYTES)
    }

    /// A part that can be read and written.
    pub const fn writable(dev: &'a BlockDev, start_bytes: u64, size_bytes: u64) -> Self {
        Self::new(dev, start_bytes, size_bytes, true, u64::MAX)
    }

    const fn new(dev: &'a BlockDev, start: u64, size: u64, writable: bool, left_bytes: u64) -> Self {
        Self { cursor: dev.cursor(), start, size, position: 0, writable, left_bytes }
    }

    /// The longest run from here that lies within the part.
    fn within(&self, len: usize) -> usize {
        usize::try_from(self.size.saturating_sub(self.position)).unwrap_or(usize::MAX).min(len)
    }

    fn advance(&mut self, len: usize) -> usize {
        self.position += u64::try_from(len).unwrap_or(0);
        len
    }
}

impl Read for Slice<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = self.within(buf.len());
        self.cursor.seek(SeekFrom::Start(self.start + self.position))?;
        let read = self.cursor.read(buf.get_mut(..len).unwrap_or_default())?;
        let left_bytes = self.left_bytes.checked_sub(u64::try_from(read).unwrap_or(u64::MAX));
        self.left_bytes = left_bytes.ok_or_else(|| io::Error::other("the file system leads in circles"))?;
        Ok(self.advance(read))
    }
}

impl Write for Slice<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let len = self.within(buf.len());
        if !self.writable {
            return Ok(self.advance(len));
        }
        self.cursor.seek(SeekFrom::Start(self.start + self.position))?;
        let written = self.cursor.write(buf.get(..len).unwrap_or_default())?;
        Ok(self.advance(written))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Slice<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(delta) => self.size.checked_add_signed(delta),
            SeekFrom::Current(delta) => self.position.checked_add_signed(delta),
        };
        self.position = target.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.position)
    }
}

/// Label of an ISO 9660, FAT or ext file system; `None` for others and for those without one.
pub fn label(dev: &BlockDev, start_bytes: u64, size_bytes: u64) -> Option<String> {
    let mut slice = Slice::read_only(dev, start_bytes, size_bytes);
    if let Ok(Some(label)) = iso9660::label(&mut slice) {
        return Some(label);
    }
    if let Some(label) = ext_label(&mut slice) {
        return Some(label);
    }
    let fs = fat(dev, start_bytes, size_bytes).ok()?;
    let label = fs.read_volume_label_from_root_dir().ok().flatten().unwrap_or_else(|| fs.volume_label());
    Some(label.trim().to_owned()).filter(|label| !label.is_empty() && label != "NO NAME")
}

/// A FAT file system, for reading.
///
/// # Errors
/// It is none, or it cannot be read.
pub fn fat(dev: &BlockDev, start_bytes: u64, size_bytes: u64) -> io::Result<fatfs::FileSystem<Slice<'_>>> {
    fat_in(Slice::read_only(dev, start_bytes, size_bytes))
}

/// The same in any stream, which must bear that the library writes to it.
///
/// # Errors
/// As for [`fat`].
pub(crate) fn fat_in<S: Read + Write + Seek>(mut stream: S) -> io::Result<fatfs::FileSystem<S>> {
    let mut head = [0_u8; 48];
    stream.read_exact(&mut head)?;
    // The library counts the bits of a table in 32 bits, and takes the root directory's first cluster as it is.
    let word = |at: usize| {
        let bytes = head.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; 4]);
        u64::from(u32::from_le_bytes(bytes))
    };
    let (sector_bytes, cluster_sectors, sectors) = (word(11) & 0xffff, word(13) & 0xff, word(32));
    let (is_fat32, table_sectors, root) = (word(22) & 0xffff == 0, word(36), word(44));
    let is_outside = root < 2 || (root - 2) * cluster_sectors >= sectors;
    if is_fat32 && (table_sectors * sector_bytes * 8 > u64::from(u32::MAX) || is_outside) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "malformed FAT32 file system"));
    }
    stream.rewind()?;
    fatfs::FileSystem::new(stream, fatfs::FsOptions::new().update_accessed_date(false))
}

fn ext_label(slice: &mut Slice<'_>) -> Option<String> {
    let mut superblock = [0_u8; 136];
    slice.seek(SeekFrom::Start(1024)).ok()?;
    slice.read_exact(&mut superblock).ok()?;
    if superblock.get(56..58)? != [0x53, 0xef] {
        return None;
    }
    let label = superblock.get(120..136)?.split(|byte| *byte == 0).next()?;
    Some(String::from_utf8_lossy(label).into_owned()).filter(|label| !label.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_sys::testing::disk::TestDisk;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    /// A FAT file system and its disk.
    fn volume(fat32: bool) -> (TestDisk, BlockDev, u64) {
        let size = if fat32 { 40 * MIB } else { 8 * MIB };
        let disk = TestDisk::zeroed(size).unwrap();
        let dev = disk.open().unwrap();
        let kind = if fat32 { fatfs::FatType::Fat32 } else { fatfs::FatType::Fat16 };
        let options = fatfs::FormatVolumeOptions::new().fat_type(kind).bytes_per_cluster(512);
        let mut volume = Slice::writable(&dev, 0, size);
        fatfs::format_volume(&mut volume, options.volume_label(*b"CONFIG-2   ")).unwrap();
        assert_eq!(label(&dev, 0, size).as_deref(), Some("CONFIG-2"));
        (disk, dev, size)
    }

    #[test]
    fn a_directory_that_leads_in_circles_ends() {
        let (_disk, dev, size) = volume(true);
        let mut head = [0_u8; 512];
        dev.read_at(0, &mut head).unwrap();
        let word = |at: usize| u64::from(u16::from_le_bytes([head[at], head[at + 1]]));
        let (reserved, tables) = (word(14), u64::from(head[16]) * word(36));
        // The root directory's first cluster follows itself, and all its entries are deleted ones.
        for table in 0..u64::from(head[16]) {
            dev.write_at((reserved + table * word(36)) * 512 + 8, &2_u32.to_le_bytes()).unwrap();
        }
        dev.write_at((reserved + tables) * 512, &[0xe5; 512]).unwrap();
        assert_eq!(label(&dev, 0, size).as_deref(), Some("CONFIG-2"));
        let fs = fat(&dev, 0, size).unwrap();
        let error = fs.root_dir().iter().find_map(Result::err).unwrap();
        assert!(error.to_string().contains("in circles"), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]
        #[test]
        fn labels_of_damaged_file_systems_never_panic(
            fat32 in any::<bool>(), changes in proptest::collection::vec((0_u64..1536, any::<u8>()), 1..6),
            from in 0_u64..90, field in proptest::collection::vec(prop_oneof![Just(0), Just(0xff), any::<u8>()], 1..8),
        ) {
            let (_disk, dev, size) = volume(fat32);
            dev.write_at(from, &field).unwrap();
            for (offset, byte) in changes {
                dev.write_at(offset, &[byte]).unwrap();
            }
            let _label = label(&dev, 0, size);
            let _loaders = crate::boot::esp::loaders(&dev, 0, size, None);
        }
    }
}
