//! `/dev/disk` without udev: every name of every block device as a link, made to match the machine whenever asked.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use ferric_disk::filesystem;
use ferric_disk::table::{self, Table, TableKind};
use ferric_sys::block_dev::{Access, BlockDev};
use ferric_sys::{Root, attr};

use super::links::{content_links, links};
use super::{device_path, sysfs};

/// Link below `/dev/disk`, and the kernel name it leads to.
type Links = BTreeMap<String, String>;

/// Makes `/dev/disk/by-{id,path,label,partlabel,partuuid}` show the block devices as they are now: adds what is missing,
/// removes what is wrong. Where two devices claim a name, the first in the kernel's order has it.
///
/// # Errors
/// A link could not be made or removed; the others are still made.
pub fn update_links(root: &Root) -> io::Result<()> {
    let wanted = wanted(root);
    let directory = root.path("dev/disk");
    let mut result = Ok(());
    let mut note = |outcome: io::Result<()>| {
        if let Err(error) = outcome
            && result.is_ok()
        {
            result = Err(error);
        }
    };
    for (link, _) in existing(&directory).into_iter().filter(|(link, kname)| wanted.get(link) != Some(kname)) {
        note(std::fs::remove_file(directory.join(link)));
    }
    let existing = existing(&directory);
    for (link, kname) in wanted.iter().filter(|(link, _)| !existing.contains_key(*link)) {
        note(make(&directory.join(link), kname));
    }
    result
}

fn make(link: &Path, kname: &str) -> io::Result<()> {
    if let Some(parent) = link.parent() {
        std::fs::create_dir_all(parent)?;
    }
    // From /dev/disk/by-x back to /dev.
    symlink(format!("../..{}", device_path(kname).trim_start_matches("/dev")), link)
}

fn existing(directory: &Path) -> Links {
    attr::list(directory)
        .into_iter()
        .flat_map(|kind| attr::list(&directory.join(&kind)).into_iter().map(move |name| format!("{kind}/{name}")))
        .filter_map(|link| {
            let target = attr::link_name(&directory.join(&link))?;
            Some((link, target))
        })
        .collect()
}

fn wanted(root: &Root) -> Links {
    let class = root.path("sys/class/block");
    let mut devices: Vec<(Vec<u32>, String)> = attr::list(&class)
        .into_iter()
        .filter(|kname| !["loop", "ram", "zram", "fd"].into_iter().any(|prefix| sysfs::is_numbered(kname, prefix)))
        .filter_map(|kname| {
            let devno = attr::read_optional(&class.join(&kname).join("dev"))?;
            Some((devno.split(':').filter_map(|part| part.parse().ok()).collect(), kname))
        })
        .collect();
    devices.sort();
    let mut wanted = Links::new();
    for (_, kname) in devices {
        for link in links(root, &kname).into_iter().chain(contents(root, &class.join(&kname), &kname)) {
            wanted.entry(link).or_insert_with(|| kname.clone());
        }
    }
    wanted
}

/// Links by what is on a device: its file system's label, and its entry in the partition table of its disk.
fn contents(root: &Root, dir: &Path, kname: &str) -> Vec<String> {
    if attr::read_u64(&dir.join("size")).unwrap_or(0) == 0 {
        return Vec::new();
    }
    let open = |kname: &str| BlockDev::open(root.path(device_path(kname)), Access::Read).ok();
    let label = open(kname).and_then(|dev| filesystem::label(&dev, 0, dev.size_bytes()));
    let Ok(number) = attr::read_u64(&dir.join("partition")) else {
        return content_links(label.as_deref(), None, None, None);
    };
    let dir = std::fs::canonicalize(dir).unwrap_or_default();
    let disk = dir.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    let (name, uuid) = disk.and_then(open).and_then(|dev| entry(&dev, number)).unwrap_or_default();
    content_links(label.as_deref(), None, Some(&name), Some(&uuid))
}

/// Name and identifier of a partition; those of an MBR are the disk's identifier and the number.
fn entry(dev: &BlockDev, number: u64) -> Option<(String, String)> {
    let Table { kind, partitions } = table::read(dev).ok().flatten()?;
    let partition = partitions.into_iter().find(|partition| u64::from(partition.number) == number)?;
    let uuid = match kind {
        TableKind::Gpt => partition.guid.map(|guid| guid.to_string().to_lowercase()).unwrap_or_default(),
        TableKind::Mbr => {
            let id = table::disk_id(dev).ok()?;
            format!("{}-{number:02x}", id.trim_start_matches("0x"))
        }
    };
    Some((partition.name, uuid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_sys::testing::machine::MachineTree;

    /// A disk of 1 MiB with an MBR, and the partition in it that the kernel knows.
    fn machine() -> MachineTree {
        let tree = MachineTree::new().unwrap();
        let device = "pci0000:00/0000:00:03.0/virtio0";
        let attributes =
            [("size", "2048"), ("serial", "s1"), ("vda1/partition", "1"), ("vda1/size", "1024"), ("vda1/dev", "254:1")];
        tree.disk("vda", device, "254:0", &attributes).unwrap();
        tree.link("sys/class/block/vda1", &format!("sys/devices/{device}/block/vda/vda1")).unwrap();
        let mut bytes = vec![0_u8; 1 << 20];
        bytes[440..444].copy_from_slice(&0x7c82_b1a4_u32.to_le_bytes());
        bytes[446 + 4] = 0x83;
        bytes[446 + 8..446 + 12].copy_from_slice(&64_u32.to_le_bytes());
        bytes[446 + 12..446 + 16].copy_from_slice(&1024_u32.to_le_bytes());
        bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
        tree.bytes("dev/vda", &bytes).unwrap();
        let mut ext = vec![0_u8; 1 << 19];
        ext[1024 + 56..1024 + 58].copy_from_slice(&[0x53, 0xef]);
        ext[1024 + 120..1024 + 127].copy_from_slice(b"my root");
        tree.bytes("dev/vda1", &ext).unwrap();
        tree
    }

    fn made(tree: &MachineTree) -> Vec<(String, String)> {
        existing(&tree.path("dev/disk")).into_iter().collect()
    }

    #[test]
    fn disks_and_partitions_are_found_by_place_identity_and_content() {
        let tree = machine();
        update_links(&tree.root()).unwrap();
        let want = [
            ("by-id/virtio-s1", "vda"),
            ("by-id/virtio-s1-part1", "vda1"),
            ("by-label/my\\x20root", "vda1"),
            ("by-partuuid/7c82b1a4-01", "vda1"),
            ("by-path/pci-0000:00:03.0", "vda"),
            ("by-path/pci-0000:00:03.0-part1", "vda1"),
        ];
        assert_eq!(made(&tree), want.map(|(link, kname)| (link.to_owned(), kname.to_owned())));
        let target = std::fs::read_link(tree.path("dev/disk/by-id/virtio-s1")).unwrap();
        assert_eq!(target, Path::new("../../vda"));
    }

    #[test]
    fn links_follow_the_machine() {
        let tree = machine();
        update_links(&tree.root()).unwrap();
        tree.file("sys/block/vda/serial", "s2").unwrap();
        std::fs::remove_file(tree.path("sys/class/block/vda1")).unwrap();
        tree.link("dev/disk/by-label/old", "dev/vdz").unwrap();
        update_links(&tree.root()).unwrap();
        let want = [("by-id/virtio-s2", "vda"), ("by-path/pci-0000:00:03.0", "vda")];
        assert_eq!(made(&tree), want.map(|(link, kname)| (link.to_owned(), kname.to_owned())));
    }
}
