//! `Read`, `Write` and `Seek` over a disk.

use std::io::{self, Read, Seek, SeekFrom, Write};

use super::{BlockDev, BlockDevError, u64_from};

/// A position on a disk. Reads end at the end of the disk; writes past it fail with the kind `WriteZero`.
#[derive(Debug)]
pub struct Cursor<'a> {
    dev: &'a BlockDev,
    position: u64,
}

impl<'a> Cursor<'a> {
    pub(super) const fn new(dev: &'a BlockDev) -> Self {
        Self { dev, position: 0 }
    }

    /// The longest run from here that is on the disk.
    fn within(&self, len: usize) -> usize {
        let left = self.dev.size_bytes().saturating_sub(self.position);
        usize::try_from(left).unwrap_or(usize::MAX).min(len)
    }
}

/// The kind stays that of the operating system, the text names device and offset.
fn to_io(error: BlockDevError) -> io::Error {
    io::Error::new(error.io().map_or(io::ErrorKind::InvalidInput, io::Error::kind), error)
}

impl Read for Cursor<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = self.within(buf.len());
        let Some(buf) = buf.get_mut(..len).filter(|buf| !buf.is_empty()) else { return Ok(0) };
        self.dev.read_at(self.position, buf).map_err(to_io)?;
        self.position += u64_from(len);
        Ok(len)
    }
}

impl Write for Cursor<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let len = self.within(buf.len());
        let Some(buf) = buf.get(..len).filter(|buf| !buf.is_empty()) else { return Ok(0) };
        self.dev.write_at(self.position, buf).map_err(to_io)?;
        self.position += u64_from(len);
        Ok(len)
    }

    /// Nothing is held back here; [`BlockDev::flush`] is what puts data on the medium.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Cursor<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(delta) => self.dev.size_bytes().checked_add_signed(delta),
            SeekFrom::Current(delta) => self.position.checked_add_signed(delta),
        };
        let target = target.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "seek before the first byte"))?;
        self.position = target;
        Ok(target)
    }
}
