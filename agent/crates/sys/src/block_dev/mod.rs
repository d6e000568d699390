//! A disk or partition: opening it for one's own, its sizes, reading and writing, zeroing, the kernel's view of it.
//!
//! A regular file does as well, so that tests need no block device: its size is the file's length and its sectors
//! have 512 bytes unless [`BlockDev::open_file_as`] says otherwise.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::ioctl::block;
use crate::{Root, attr};

mod cursor;
mod direct;
mod error;
mod part;

pub use cursor::Cursor;
pub use direct::DirectIo;
pub use error::BlockDevError;

/// What a device is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading only.
    Read,
    /// Reading and writing.
    Write,
    /// Reading and writing, refused with `EBUSY` while the kernel or another program holds the device (a mounted
    /// file system, an md member, another exclusive opener). Means the same as `Write` for a regular file.
    Exclusive,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Block,
    File,
}

/// How often the partition table is asked to be read again while a partition is still held by someone.
const REREAD_TRIES: u32 = 10;
const REREAD_PAUSE: Duration = Duration::from_millis(300);

/// How often a disk that fails is looked for.
const GONE_LOOKS: u32 = 4;
const GONE_PAUSE: Duration = Duration::from_millis(100);

/// Zeroes are written from here where nothing better works.
static ZEROES: [u8; 64 * 1024] = [0; 64 * 1024];

/// An open disk or partition.
#[derive(Debug)]
pub struct BlockDev {
    path: PathBuf,
    file: File,
    kind: Kind,
    access: Access,
    size_bytes: u64,
    logical_sector: u32,
    physical_sector: u32,
    device_number: (u32, u32),
    /// The node that is open; the disk's for a part of one.
    node: PathBuf,
    /// Where the part of the disk begins; 0 for all of it.
    start_bytes: u64,
}

impl BlockDev {
    /// Opens a block device, or a regular file with sectors of 512 bytes.
    ///
    /// # Errors
    /// [`BlockDevError::Open`] (see [`BlockDevError::is_busy`]), [`BlockDevError::NotADisk`], [`BlockDevError::Query`].
    pub fn open(path: impl AsRef<Path>, access: Access) -> Result<Self, BlockDevError> {
        Self::open_file_as(path, access, 512)
    }

    /// Like [`BlockDev::open`]; a regular file gets sectors of `sector` bytes.
    ///
    /// # Errors
    /// As for [`BlockDev::open`].
    pub fn open_file_as(path: impl AsRef<Path>, access: Access, sector: u32) -> Result<Self, BlockDevError> {
        let path = path.as_ref().to_owned();
        let (file, metadata, kind) = open_checked(&path, access)?;
        let query = |what| {
            let path = path.clone();
            move |source| BlockDevError::Query { path, what, source }
        };
        let (size_bytes, logical_sector, physical_sector) = match kind {
            Kind::File => (metadata.len(), sector, sector),
            Kind::Block => (
                block::size_bytes(&file).map_err(query("size"))?,
                block::logical_sector(&file).map_err(query("logical sector size"))?,
                block::physical_sector(&file).map_err(query("physical sector size"))?,
            ),
        };
        let rdev = metadata.rdev();
        let device_number = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
        let node = path.clone();
        let start_bytes = 0;
        Ok(Self {
            path,
            file,
            kind,
            access,
            size_bytes,
            logical_sector,
            physical_sector,
            device_number,
            node,
            start_bytes,
        })
    }

    /// Path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size in bytes.
    pub const fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Logical sector in bytes: the unit of reads, writes and partition tables.
    pub const fn logical_sector(&self) -> u32 {
        self.logical_sector
    }

    /// Physical sector in bytes.
    pub const fn physical_sector(&self) -> u32 {
        self.physical_sector
    }

    /// Whether this is a block device rather than a file standing for one.
    pub fn is_block(&self) -> bool {
        self.kind == Kind::Block
    }

    /// Whether the kernel refuses writes to the device (write-protect switch, `blockdev --setro`).
    ///
    /// # Errors
    /// [`BlockDevError::Query`].
    pub fn is_read_only(&self) -> Result<bool, BlockDevError> {
        match self.kind {
            Kind::Block => block::is_read_only(&self.file).map_err(|source| BlockDevError::Query {
                path: self.path.clone(),
                what: "read-only flag",
                source,
            }),
            Kind::File => Ok(self.access == Access::Read),
        }
    }

    /// Whether zeroing a range costs the device less than being sent the zeroes (sysfs `write_zeroes_max_bytes`).
    pub fn zeroes_efficiently(&self) -> bool {
        match self.kind {
            Kind::File => true,
            Kind::Block => self.queue_limit("write_zeroes_max_bytes").is_some_and(|bytes| bytes > 0),
        }
    }

    /// Whether the device takes discards (sysfs `discard_max_bytes`).
    pub fn can_discard(&self) -> bool {
        match self.kind {
            Kind::File => true,
            Kind::Block => self.queue_limit("discard_max_bytes").is_some_and(|bytes| bytes > 0),
        }
    }

    /// A number from the device's queue directory; a partition uses its disk's.
    fn queue_limit(&self, name: &str) -> Option<u64> {
        let (major, minor) = self.device_number;
        let device = Root::host().path(format!("sys/dev/block/{major}:{minor}"));
        ["queue", "../queue"].iter().find_map(|queue| attr::read_u64(&device.join(queue).join(name)).ok())
    }

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// [`BlockDevError::OutOfRange`], [`BlockDevError::Read`].
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BlockDevError> {
        let len_bytes = u64_from(buf.len());
        self.check_range(offset, len_bytes)?;
        self.file.read_exact_at(buf, self.start_bytes + offset).map_err(|source| BlockDevError::Read {
            path: self.path.clone(),
            offset,
            len_bytes,
            source: self.explained(source),
        })
    }

    /// Writes all of `bytes` at `offset` through the page cache; any alignment will do.
    ///
    /// # Errors
    /// [`BlockDevError::OutOfRange`], [`BlockDevError::Write`].
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), BlockDevError> {
        let len_bytes = u64_from(bytes.len());
        self.check_range(offset, len_bytes)?;
        self.file.write_all_at(bytes, self.start_bytes + offset).map_err(|source| BlockDevError::Write {
            path: self.path.clone(),
            offset,
            len_bytes,
            source: self.explained(source),
        })
    }

    /// A second handle that goes around the page cache, for long transfers from aligned buffers.
    ///
    /// # Errors
    /// [`BlockDevError::Open`].
    pub fn direct(&self) -> Result<DirectIo<'_>, BlockDevError> {
        DirectIo::open(self)
    }

    /// Makes a range read as zeroes: by unmapping or the device's own command where that is certain to read back as
    /// zero, by writing zeroes otherwise. Zeroing terabytes may take hours; callers that report progress go in steps.
    ///
    /// # Errors
    /// [`BlockDevError::OutOfRange`], [`BlockDevError::Write`].
    pub fn zero_range(&self, offset: u64, len_bytes: u64) -> Result<(), BlockDevError> {
        self.check_range(offset, len_bytes)?;
        let sector = u64::from(self.logical_sector.max(512));
        let end = offset + len_bytes;
        let (from, to) = (offset.next_multiple_of(sector), end - end % sector);
        if from >= to {
            return self.write_zeroes(offset, end);
        }
        self.write_zeroes(offset, from)?;
        self.zero_sectors(from, to)?;
        self.write_zeroes(to, end)
    }

    /// Whole sectors. A block device answers PUNCH_HOLE with WRITE ZEROES that may unmap and never falls back to
    /// sending zeroes (`block/fops.c`), so that an error there costs nothing and BLKZEROOUT comes next.
    fn zero_sectors(&self, from: u64, to: u64) -> Result<(), BlockDevError> {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let place = self.start_bytes + from;
        if rustix::fs::fallocate(&self.file, hole, place, to - from).is_ok() {
            return Ok(());
        }
        if self.kind == Kind::Block && block::zero_out(&self.file, place, to - from).is_ok() {
            return Ok(());
        }
        self.write_zeroes(from, to)
    }

    fn write_zeroes(&self, from: u64, to: u64) -> Result<(), BlockDevError> {
        let mut offset = from;
        while offset < to {
            let step = usize::try_from(to - offset).unwrap_or(usize::MAX).min(ZEROES.len());
            self.write_at(offset, ZEROES.get(..step).unwrap_or(&ZEROES))?;
            offset += u64_from(step);
        }
        Ok(())
    }

    /// Tells the device that a range is no longer needed. It may read as anything afterwards.
    ///
    /// # Errors
    /// [`BlockDevError::OutOfRange`], [`BlockDevError::Discard`].
    pub fn discard_range(&self, offset: u64, len_bytes: u64) -> Result<(), BlockDevError> {
        self.check_range(offset, len_bytes)?;
        let place = self.start_bytes + offset;
        let result = match self.kind {
            Kind::Block => block::discard(&self.file, place, len_bytes),
            Kind::File => {
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&self.file, hole, place, len_bytes).map_err(io::Error::from)
            }
        };
        result.map_err(|source| BlockDevError::Discard { path: self.path.clone(), offset, len_bytes, source })
    }

    /// Puts everything written so far on the medium and drops the page cache, so that reads come from the device.
    ///
    /// # Errors
    /// [`BlockDevError::Flush`].
    pub fn flush(&self) -> Result<(), BlockDevError> {
        let result = self.file.sync_all().and_then(|()| match self.kind {
            // Needs CAP_SYS_ADMIN, which a developer may lack; the data is safe already.
            Kind::Block => match block::flush_buffers(&self.file) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
                result => result,
            },
            Kind::File => Ok(()),
        });
        result.map_err(|source| BlockDevError::Flush { path: self.path.clone(), source: self.explained(source) })
    }

    /// Makes the kernel read the partition table again. Tries for a few seconds while a partition is in use, since
    /// programs that look at new partitions hold them for a moment. Nothing to do for a regular file.
    ///
    /// # Errors
    /// [`BlockDevError::Reread`].
    pub fn reread_table(&self) -> Result<(), BlockDevError> {
        if self.kind == Kind::File {
            return Ok(());
        }
        let mut tries = 0;
        loop {
            tries += 1;
            match block::reread_table(&self.file) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy && tries < REREAD_TRIES => {
                    std::thread::sleep(REREAD_PAUSE);
                }
                Err(source) => return Err(BlockDevError::Reread { path: self.path.clone(), source }),
            }
        }
    }

    /// Tells the kernel of one partition (BLKPG), for when another partition in use keeps the table from being read.
    ///
    /// # Errors
    /// [`BlockDevError::Partition`].
    pub fn add_partition(&self, number: u32, start_bytes: u64, len_bytes: u64) -> Result<(), BlockDevError> {
        block::add_partition(&self.file, number, start_bytes, len_bytes).map_err(|source| BlockDevError::Partition {
            path: self.path.clone(),
            number,
            source,
        })
    }

    /// Makes the kernel forget one partition (BLKPG).
    ///
    /// # Errors
    /// [`BlockDevError::Partition`].
    pub fn delete_partition(&self, number: u32) -> Result<(), BlockDevError> {
        block::delete_partition(&self.file, number).map_err(|source| BlockDevError::Partition {
            path: self.path.clone(),
            number,
            source,
        })
    }

    /// The reason of a failure, in words when it is that the disk is no longer there: the kernel then says whatever it
    /// came across first, such as "No space left on device" for a disk that has no size any more.
    fn explained(&self, error: io::Error) -> io::Error {
        let of_gone_disks = [Errno::IO, Errno::NXIO, Errno::NODEV, Errno::NOSPC];
        let may_be_gone = of_gone_disks.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()));
        if self.kind == Kind::Block && may_be_gone && self.is_gone() {
            return io::Error::new(error.kind(), format!("the disk is gone: unplugged, or its bus is down ({error})"));
        }
        error
    }

    /// Whether the kernel has given up the disk. It fails requests before it does so, hence several looks.
    fn is_gone(&self) -> bool {
        let (major, minor) = self.device_number;
        let devices = Root::host().path("sys/dev/block");
        (0..GONE_LOOKS).any(|look| {
            if look > 0 {
                std::thread::sleep(GONE_PAUSE);
            }
            !block::size_bytes(&self.file).is_ok_and(|size| size > 0)
                || devices.exists() && !devices.join(format!("{major}:{minor}")).exists()
        })
    }

    /// A view with a position, for code that wants `Read`, `Write` and `Seek`.
    pub const fn cursor(&self) -> Cursor<'_> {
        Cursor::new(self)
    }

    fn check_range(&self, offset: u64, len_bytes: u64) -> Result<(), BlockDevError> {
        match offset.checked_add(len_bytes) {
            Some(end) if end <= self.size_bytes => Ok(()),
            _ => Err(BlockDevError::OutOfRange {
                path: self.path.clone(),
                offset,
                len_bytes,
                size_bytes: self.size_bytes,
            }),
        }
    }
}

/// For commands to the device itself.
impl AsFd for BlockDev {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn open_checked(path: &Path, access: Access) -> Result<(File, Metadata, Kind), BlockDevError> {
    let open_error = |source| BlockDevError::Open { path: path.to_owned(), source };
    let is_block = std::fs::metadata(path).map_err(open_error)?.file_type().is_block_device();
    let mut options = OpenOptions::new();
    options.read(true).write(access != Access::Read);
    // Without O_CREAT, O_EXCL has a meaning for block devices only (open(2)).
    if access == Access::Exclusive && is_block {
        options.custom_flags(i32::try_from(rustix::fs::OFlags::EXCL.bits()).unwrap_or_default());
    }
    let file = options.open(path).map_err(open_error)?;
    let metadata = file.metadata().map_err(open_error)?;
    let kind = match metadata.file_type() {
        kind if kind.is_block_device() => Kind::Block,
        kind if kind.is_file() => Kind::File,
        _ => return Err(BlockDevError::NotADisk { path: path.to_owned() }),
    };
    Ok((file, metadata, kind))
}

fn u64_from(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod loop_tests;
#[cfg(test)]
mod tests;
