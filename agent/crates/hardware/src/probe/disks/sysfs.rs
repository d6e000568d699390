//! Where a block device hangs in the device tree of sysfs.

use std::path::{Path, PathBuf};

use ferric_sys::{Root, attr};

/// Directories from a block device up to `/sys/devices`, nearest first.
#[derive(Debug, Clone)]
pub(super) struct Chain {
    dirs: Vec<PathBuf>,
}

impl Chain {
    /// The chain of a block device, whole disk or partition; `None` when it does not exist (any more).
    pub(super) fn of(root: &Root, kname: &str) -> Option<Self> {
        Self::at(root, &root.path("sys/class/block").join(kname))
    }

    /// The chain of a device of another kind, from a link to it.
    pub(super) fn at(root: &Root, link: &Path) -> Option<Self> {
        let top = std::fs::canonicalize(root.path("sys/devices")).ok()?;
        let device = std::fs::canonicalize(link).ok()?;
        let dirs: Vec<PathBuf> = device.ancestors().take_while(|dir| *dir != top).map(Path::to_owned).collect();
        dirs.last().is_some_and(|dir| dir.parent() == Some(&top)).then_some(Self { dirs })
    }

    /// Directory of the block device.
    pub(super) fn device(&self) -> &Path {
        self.dirs.first().map_or(Path::new(""), PathBuf::as_path)
    }

    /// Name and directory of each, nearest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Path)> {
        self.dirs.iter().filter_map(|dir| Some((dir.file_name()?.to_str()?, dir.as_path())))
    }

    /// The nearest whose name satisfies a condition.
    pub(super) fn find(&self, condition: impl Fn(&str) -> bool) -> Option<(&str, &Path)> {
        self.iter().find(|(name, _)| condition(name))
    }

    /// The nearest whose name is a prefix followed by digits, such as `host3`.
    pub(super) fn numbered(&self, prefix: &str) -> Option<(&str, &Path)> {
        self.find(|name| is_numbered(name, prefix))
    }

    /// Attribute of the nearest USB device above, such as `serial`.
    pub(super) fn usb(&self, attribute: &str) -> Option<String> {
        let (_, dir) = self.iter().find(|(_, dir)| dir.join("idVendor").exists())?;
        attr::read_optional(&dir.join(attribute))
    }

    /// Whether it is a disk on a virtio device of its own.
    pub(super) fn is_virtio_blk(&self) -> bool {
        self.numbered("virtio").is_some() && self.hctl().is_none()
    }

    /// Whether any device above is on the platform bus.
    pub(super) fn has_platform(&self) -> bool {
        self.dirs.iter().any(|dir| attr::link_name(&dir.join("subsystem")).as_deref() == Some("platform"))
    }

    /// SCSI address of the device, when it is one: `host:channel:target:lun`.
    pub(super) fn hctl(&self) -> Option<Hctl> {
        self.iter().find_map(|(name, _)| Hctl::parse(name))
    }
}

/// Whether a name is a prefix followed by digits only.
pub(super) fn is_numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

/// A SCSI address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hctl {
    pub(super) host: u32,
    pub(super) channel: u32,
    pub(super) target: u32,
    pub(super) lun: u64,
}

impl Hctl {
    pub(super) fn parse(name: &str) -> Option<Self> {
        let mut parts = name.split(':');
        let mut next = || parts.next().filter(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
        let address = Self {
            host: next()?.parse().ok()?,
            channel: next()?.parse().ok()?,
            target: next()?.parse().ok()?,
            lun: next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_sys::testing::machine::MachineTree;

    #[test]
    fn a_chain_runs_from_the_disk_to_its_bus() {
        let tree = MachineTree::new().unwrap();
        let scsi = "pci0000:00/0000:00:05.0/virtio1/host2/target2:0:1/2:0:1:0";
        tree.disk("sda", scsi, "8:0", &[("size", "8")]).unwrap();
        let chain = Chain::of(&tree.root(), "sda").unwrap();
        let names: Vec<_> = chain.iter().map(|(name, _)| name).collect();
        let want = ["sda", "block", "2:0:1:0", "target2:0:1", "host2", "virtio1", "0000:00:05.0", "pci0000:00"];
        assert_eq!(names, want);
        assert_eq!(chain.hctl(), Some(Hctl { host: 2, channel: 0, target: 1, lun: 0 }));
        assert_eq!(chain.numbered("host").unwrap().0, "host2");
        assert!(Chain::of(&tree.root(), "sdb").is_none());
    }

    #[test]
    fn pci_addresses_are_not_scsi_addresses() {
        for name in ["0000:00:05.0", "2:0:1", "2:0:1:0:0", "2:0:1:x", "sda", ""] {
            assert_eq!(Hctl::parse(name), None, "{name}");
        }
    }
}
