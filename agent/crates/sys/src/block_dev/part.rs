//! Parts of disks as disks.

use std::path::PathBuf;

use super::{BlockDev, BlockDevError};

impl BlockDev {
    /// A part of this disk as a device of its own, such as a partition that the kernel need not know of yet. It goes by
    /// the name `path`, and holds the disk as this one does.
    ///
    /// # Errors
    /// [`BlockDevError::OutOfRange`] when it is not on the disk, [`BlockDevError::Open`].
    pub fn part(&self, path: impl Into<PathBuf>, start_bytes: u64, size_bytes: u64) -> Result<Self, BlockDevError> {
        self.check_range(start_bytes, size_bytes)?;
        let file = self.file.try_clone().map_err(|source| BlockDevError::Open { path: self.path.clone(), source })?;
        let (path, node, start_bytes) = (path.into(), self.node.clone(), self.start_bytes + start_bytes);
        let Self { kind, access, logical_sector, physical_sector, device_number, .. } = *self;
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
}
