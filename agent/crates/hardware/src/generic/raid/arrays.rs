//! Arrays of the machine: what the kernel has put together, and what the superblocks of all devices say.

use std::collections::BTreeMap;

use ferric_disk::raid::{Superblock, superblock};
use ferric_sys::block_dev::{Access, BlockDev};
use ferric_sys::{Root, attr};

/// Devices that are never part of an array.
const OTHERS: [&str; 6] = ["md", "loop", "ram", "zram", "sr", "fd"];

/// A disk or partition that may be part of an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Device {
    /// Kernel name.
    pub(super) kname: String,
    /// Kernel name of the disk that it is a partition of; its own for a disk.
    pub(super) disk: String,
    /// Number of the partition; `None` for a disk.
    pub(super) partition: Option<u32>,
    /// What its superblock says.
    pub(super) superblock: Option<Superblock>,
}

/// An array that the kernel has put together, running or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MdArray {
    /// Kernel name, such as `md127`.
    pub(crate) kname: String,
    /// `raid1` and so on; empty for one that is not running.
    pub(crate) level: String,
    /// Name in the superblocks of its members, without a host's.
    pub(crate) name: Option<String>,
    /// Kernel names of its members, also of those that it has lost.
    pub(crate) members: Vec<String>,
    /// Kernel names of the disks that these are on, each once, in the order of the members.
    pub(crate) disks: Vec<String>,
}

impl MdArray {
    /// Device path.
    pub(crate) fn device(&self) -> String {
        format!("/dev/{}", self.kname)
    }
}

/// Disks and partitions, each partition before its disk.
pub(super) fn devices(root: &Root) -> Vec<Device> {
    let class = root.path("sys/class/block");
    let mut found: Vec<Device> = attr::list(&class)
        .into_iter()
        .filter(|kname| !OTHERS.iter().any(|prefix| is_numbered(kname, prefix)))
        .filter_map(|kname| device(root, kname))
        .collect();
    found.sort_by(|a, b| (&b.disk, b.partition).cmp(&(&a.disk, a.partition)));
    found
}

fn is_numbered(kname: &str, prefix: &str) -> bool {
    kname.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

fn device(root: &Root, kname: String) -> Option<Device> {
    let dir = root.path("sys/class/block").join(&kname);
    if attr::read_u64(&dir.join("size")).ok()? == 0 {
        return None;
    }
    // What the device mapper uses is seen through its device.
    if attr::list(&dir.join("holders")).iter().any(|holder| holder.starts_with("dm-")) {
        return None;
    }
    let partition = attr::read_u64(&dir.join("partition")).ok().and_then(|number| u32::try_from(number).ok());
    let disk = match partition {
        None => kname.clone(),
        Some(_) => {
            let place = std::fs::canonicalize(&dir).ok()?;
            // Partitions of partitions of an array are the array's.
            let disk = place.parent()?.file_name()?.to_string_lossy().into_owned();
            if OTHERS.iter().any(|prefix| is_numbered(&disk, prefix)) {
                return None;
            }
            disk
        }
    };
    let superblock = look(root, &kname);
    Some(Device { kname, disk, partition, superblock })
}

/// The superblock of a device; one that cannot be read has none.
fn look(root: &Root, kname: &str) -> Option<Superblock> {
    let path = root.path(crate::probe::disks::device_path(kname));
    let dev = BlockDev::open(&path, Access::Read).ok()?;
    superblock::read(&dev).ok().flatten()
}

/// Arrays by kernel name, with the members among `devices`.
pub(super) fn list_among(root: &Root, devices: &[Device]) -> Vec<MdArray> {
    let block = root.path("sys/block");
    let names = attr::list(&block).into_iter().filter(|kname| is_numbered(kname, "md"));
    names.filter_map(|kname| array(root, kname, devices)).collect()
}

/// Arrays by kernel name.
pub(crate) fn list(root: &Root) -> Vec<MdArray> {
    list_among(root, &devices(root))
}

fn array(root: &Root, kname: String, devices: &[Device]) -> Option<MdArray> {
    let dir = root.path("sys/class/block").join(&kname);
    let slaves = attr::list(&dir.join("slaves"));
    let by_name: BTreeMap<&str, &Device> = devices.iter().map(|device| (device.kname.as_str(), device)).collect();
    let superblock = slaves.iter().find_map(|slave| by_name.get(slave.as_str())?.superblock.as_ref());
    let is_lost = |device: &&Device| {
        let uuid = device.superblock.as_ref().map(|superblock| superblock.uuid);
        !slaves.contains(&device.kname) && uuid.is_some() && uuid == superblock.map(|superblock| superblock.uuid)
    };
    let lost = devices.iter().filter(is_lost).map(|device| device.kname.clone());
    let members: Vec<String> = slaves.iter().cloned().chain(lost).collect();
    // A node that holds nothing is no array.
    if members.is_empty() {
        return None;
    }
    let mut disks = Vec::new();
    for member in &members {
        let disk = by_name.get(member.as_str()).map_or_else(|| member.clone(), |device| device.disk.clone());
        if !disks.contains(&disk) {
            disks.push(disk);
        }
    }
    let level = attr::read_optional(&dir.join("md/level")).unwrap_or_default();
    Some(MdArray { level, name: superblock.and_then(|superblock| superblock.name.clone()), members, disks, kname })
}

/// Name of the volume on an array that the kernel has put together; `None` where its members do not tell.
pub(crate) fn volume_name(root: &Root, kname: &str) -> Option<String> {
    let slaves = attr::list(&root.path("sys/class/block").join(kname).join("slaves"));
    slaves.iter().find_map(|slave| look(root, slave)?.name)
}
