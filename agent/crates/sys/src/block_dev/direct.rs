//! Transfers that go around the page cache.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

use super::{Access, BlockDev, BlockDevError, u64_from};

/// Reads and writes that go around the page cache, by [`BlockDev::direct`].
///
/// Offset, length and memory must be multiples of the logical sector ([`crate::aligned::AlignedBuf`] is); what is
/// not goes through the page cache, as does everything on a file system without direct I/O.
#[derive(Debug)]
pub struct DirectIo<'a> {
    dev: &'a BlockDev,
    direct: Option<File>,
    usable: AtomicBool,
}

impl<'a> DirectIo<'a> {
    pub(super) fn open(dev: &'a BlockDev) -> Result<Self, BlockDevError> {
        let flags = i32::try_from(rustix::fs::OFlags::DIRECT.bits()).unwrap_or_default();
        let mut options = OpenOptions::new();
        options.read(true).write(dev.access != Access::Read).custom_flags(flags);
        let direct = match options.open(&dev.node) {
            Ok(file) => Some(file),
            // The file system has no direct I/O (older tmpfs).
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => None,
            Err(source) => return Err(BlockDevError::Open { path: dev.path.clone(), source }),
        };
        let usable = AtomicBool::new(direct.is_some());
        Ok(Self { dev, direct, usable })
    }

    /// Whether transfers really go around the page cache.
    pub fn is_direct(&self) -> bool {
        self.usable.load(Ordering::Relaxed)
    }

    /// Writes all of `bytes` at `offset`. May be called from several threads.
    ///
    /// # Errors
    /// As for [`BlockDev::write_at`].
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), BlockDevError> {
        let len_bytes = u64_from(bytes.len());
        self.dev.check_range(offset, len_bytes)?;
        let Some(direct) = self.handle(offset, bytes) else { return self.dev.write_at(offset, bytes) };
        match direct.write_all_at(bytes, self.dev.start_bytes + offset) {
            Ok(()) => Ok(()),
            Err(error) if self.refused(&error) => self.dev.write_at(offset, bytes),
            Err(error) => {
                let source = self.dev.explained(error);
                Err(BlockDevError::Write { path: self.dev.path.clone(), offset, len_bytes, source })
            }
        }
    }

    /// Fills `buf` from `offset`, from the device itself.
    ///
    /// # Errors
    /// As for [`BlockDev::read_at`].
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BlockDevError> {
        let len_bytes = u64_from(buf.len());
        self.dev.check_range(offset, len_bytes)?;
        let Some(direct) = self.handle(offset, buf) else { return self.dev.read_at(offset, buf) };
        match direct.read_exact_at(buf, self.dev.start_bytes + offset) {
            Ok(()) => Ok(()),
            Err(error) if self.refused(&error) => self.dev.read_at(offset, buf),
            Err(error) => {
                let source = self.dev.explained(error);
                Err(BlockDevError::Read { path: self.dev.path.clone(), offset, len_bytes, source })
            }
        }
    }

    fn handle(&self, offset: u64, memory: &[u8]) -> Option<&File> {
        let sector = u64::from(self.dev.logical_sector);
        let aligned = [self.dev.start_bytes, offset, u64_from(memory.len()), u64_from(memory.as_ptr().addr())];
        let usable = self.is_direct() && aligned.iter().all(|value| value.is_multiple_of(sector));
        self.direct.as_ref().filter(|_| usable)
    }

    /// Some file systems take the flag and refuse the transfer.
    fn refused(&self, error: &io::Error) -> bool {
        let refused = error.raw_os_error() == Some(Errno::INVAL.raw_os_error());
        if refused {
            self.usable.store(false, Ordering::Relaxed);
        }
        refused
    }
}
