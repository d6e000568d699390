//! A sparse file that stands for a disk, with old data all over it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use tempfile::NamedTempFile;

use crate::block_dev::{Access, BlockDev, BlockDevError};

/// What a disk holds before anything is written to it, unless a test says otherwise.
pub const OLD_DATA: u8 = 0xa5;

/// A disk in a temporary file, removed when dropped.
#[derive(Debug)]
pub struct TestDisk {
    file: NamedTempFile,
    sector: u32,
}

impl TestDisk {
    /// A disk of zeroes with sectors of 512 bytes; takes no space until written to.
    ///
    /// # Errors
    /// When the temporary file cannot be made.
    pub fn zeroed(size_bytes: u64) -> io::Result<Self> {
        let file = NamedTempFile::with_prefix("ferric-disk-")?;
        file.as_file().set_len(size_bytes)?;
        Ok(Self { file, sector: 512 })
    }

    /// A disk full of [`OLD_DATA`], so that a byte that was not written shows.
    ///
    /// # Errors
    /// When the temporary file cannot be made.
    pub fn used(size_bytes: u64) -> io::Result<Self> {
        let disk = Self::zeroed(size_bytes)?;
        let chunk = vec![OLD_DATA; 1 << 20];
        let mut offset = 0;
        while offset < size_bytes {
            let len = usize::try_from(size_bytes - offset).unwrap_or(usize::MAX).min(chunk.len());
            disk.file.as_file().write_all_at(chunk.get(..len).unwrap_or(&chunk), offset)?;
            offset += u64::try_from(len).unwrap_or(u64::MAX);
        }
        Ok(disk)
    }

    /// The same disk with another sector size.
    #[must_use]
    pub const fn sector(mut self, sector: u32) -> Self {
        self.sector = sector;
        self
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Opens the disk for writing.
    ///
    /// # Errors
    /// As for [`BlockDev::open`].
    pub fn open(&self) -> Result<BlockDev, BlockDevError> {
        BlockDev::open_file_as(self.path(), Access::Exclusive, self.sector)
    }

    /// Bytes of the disk, read past [`BlockDev`].
    ///
    /// # Errors
    /// When the range is not within the file.
    pub fn bytes(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        File::open(self.path())?.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }
}
