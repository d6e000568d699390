//! File systems on partitions, read and made by our own code: labels, and a window on one partition.

use std::io::{self, Read, Seek, SeekFrom, Write};

use ferric_sys::block_dev::{BlockDev, Cursor};

use crate::iso9660;

/// A part of a disk as a stream of its own.
#[derive(Debug)]
pub struct Slice<'a> {
    cursor: Cursor<'a>,
    start: u64,
    size: u64,
    position: u64,
    writable: bool,
}

impl<'a> Slice<'a> {
    /// A part that can be read. Writes are taken and dropped: a FAT library wants to note that the file system was in
    /// use, and an image must stay as it is.
    pub const fn read_only(dev: &'a BlockDev, start_bytes: u64, size_bytes: u64) -> Self {
        Self { cursor: dev.cursor(), start: start_bytes, size: size_bytes, position: 0, writable: false }
    }

    /// A part that can be read and written.
    pub const fn writable(dev: &'a BlockDev, start_bytes: u64, size_bytes: u64) -> Self {
        Self { cursor: dev.cursor(), start: start_bytes, size: size_bytes, position: 0, writable: true }
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
    slice.rewind().ok()?;
    let fs = fatfs::FileSystem::new(slice, fatfs::FsOptions::new().update_accessed_date(false)).ok()?;
    let label = fs.read_volume_label_from_root_dir().ok().flatten().unwrap_or_else(|| fs.volume_label());
    Some(label.trim().to_owned()).filter(|label| !label.is_empty() && label != "NO NAME")
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
