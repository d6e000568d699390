//! A tree of files that stands for a machine.

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::root::Root;

/// A machine built file by file in a temporary directory, for tests that need one oddity rather than a whole
/// captured machine. Removed when dropped.
#[derive(Debug)]
pub struct MachineTree {
    dir: TempDir,
}

impl MachineTree {
    /// An empty machine: no devices, no mounts.
    ///
    /// # Errors
    /// When the temporary directory cannot be made.
    pub fn new() -> io::Result<Self> {
        let tree = Self { dir: TempDir::with_prefix("ferric-machine-")? };
        for directory in ["sys/block", "sys/class/block", "sys/class/net", "dev"] {
            std::fs::create_dir_all(tree.dir.path().join(directory))?;
        }
        tree.file("proc/self/mountinfo", "")?;
        Ok(tree)
    }

    /// The machine as the code under test sees it.
    pub fn root(&self) -> Root {
        Root::at(self.dir.path())
    }

    /// Full path of a file of the machine.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root().path(path)
    }

    /// Writes a file, with the directories above it; text gets a line end as in sysfs.
    ///
    /// # Errors
    /// As for writing any file.
    pub fn file(&self, path: &str, text: &str) -> io::Result<()> {
        self.bytes(path, format!("{text}\n").as_bytes())
    }

    /// Writes a binary file, with the directories above it.
    ///
    /// # Errors
    /// As for writing any file.
    pub fn bytes(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let path = self.path(path);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(path, bytes)
    }

    /// Makes a relative symbolic link from one path of the machine to another, as sysfs does.
    ///
    /// # Errors
    /// As for making any link.
    pub fn link(&self, path: &str, target: &str) -> io::Result<()> {
        let from = self.path(path);
        if let Some(parent) = from.parent() {
            std::fs::create_dir_all(parent)?;
        }
        let up = Path::new(path).components().count().saturating_sub(1);
        symlink(Path::new(&"../".repeat(up)).join(target), from)
    }

    /// Adds a block device: a directory below `sys/devices` with the links of `/sys/block` and `/sys/class/block`.
    /// `device` is its parent below `sys/devices`, and the attributes are files inside the block device's directory
    /// (`size`, `queue/rotational`, `device/model`, ...); `device` itself is linked to the parent.
    ///
    /// # Errors
    /// As for writing any file.
    pub fn disk(&self, name: &str, device: &str, devno: &str, attributes: &[(&str, &str)]) -> io::Result<()> {
        let class = if device.contains("/nvme/") { String::new() } else { "block/".to_owned() };
        let dir = format!("sys/devices/{device}/{class}{name}");
        self.file(&format!("{dir}/dev"), devno)?;
        std::fs::create_dir_all(self.path(&dir).join("holders"))?;
        std::fs::create_dir_all(self.path(&dir).join("slaves"))?;
        self.link(&format!("{dir}/device"), &format!("sys/devices/{device}"))?;
        self.link(&format!("sys/block/{name}"), &dir)?;
        self.link(&format!("sys/class/block/{name}"), &dir)?;
        for (attribute, value) in attributes {
            self.file(&format!("{dir}/{attribute}"), value)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_reached_through_both_links() {
        let tree = MachineTree::new().unwrap();
        let scsi = "pci0000:00/0000:00:05.0/host0/target0:0:0/0:0:0:0";
        tree.disk("sda", scsi, "8:0", &[("size", "2048"), ("device/model", "X")]).unwrap();
        assert_eq!(crate::attr::read_u64(&tree.path("sys/block/sda/size")).unwrap(), 2048);
        assert_eq!(crate::attr::read_trimmed(&tree.path("sys/class/block/sda/device/model")).unwrap(), "X");
    }
}
