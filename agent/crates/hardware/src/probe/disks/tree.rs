//! Block devices of sysfs with what is on top of them, by the rules of `lsblk`: which are disks and arrays, and which
//! partitions, volumes and the like. Mounts and udev do not matter here, and every device is looked at once, however
//! many ways lead to it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use ferric_sys::Root;
use ferric_sys::attr::{self, AttrError};

use super::DiskKind;

/// Major number of RAM disks.
const RAM: u32 = 1;
/// Unit of `size`, whatever the sector of the disk is.
const SECTOR_BYTES: u64 = 512;

/// A block device that is listed in `/sys/block`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) kname: String,
    pub(super) size_bytes: u64,
    pub(super) read_only: bool,
    pub(super) kind: DiskKind,
}

/// Major and minor number.
type Number = (u32, u32);

/// Disks, arrays and multipath devices by device number; those of no size, as of a drive without a medium, are left out.
///
/// # Errors
/// `/sys/block` cannot be read.
pub(super) fn nodes(root: &Root) -> Result<Vec<Node>, AttrError> {
    let directory = root.path("sys/block");
    // Told apart from a machine without disks.
    std::fs::read_dir(&directory).map_err(|source| AttrError::Read { path: directory.clone(), source })?;
    let mut found: Vec<(Number, Node)> = attr::list(&directory)
        .into_iter()
        .filter_map(|kname| {
            let dir = class(root, &kname);
            let number = number(&dir).filter(|(major, _)| *major != RAM)?;
            let kind = kind(&kname, &dir)?;
            let size_bytes = size_bytes(&kname, &dir).filter(|bytes| *bytes > 0)?;
            let read_only = attr::read_optional(&dir.join("ro")).is_some_and(|flag| flag == "1");
            Some((number, Node { kname, size_bytes, read_only, kind }))
        })
        .collect();
    found.sort_by(|(one, a), (other, b)| (one, &a.kname).cmp(&(other, &b.kname)));
    Ok(found.into_iter().map(|(_, node)| node).collect())
}

/// Kernel names of a disk's partitions, also of those that the device mapper makes, by device number.
pub(super) fn partitions(root: &Root, kname: &str) -> Vec<String> {
    let mapped = holders_of(root, &class(root, kname)).into_iter().filter(|holder| is_mapped_partition(root, holder));
    let found: BTreeMap<Number, String> = own_partitions(root, kname)
        .into_iter()
        .map(|(name, dir)| (number(&dir), name))
        .chain(mapped.map(|name| (number(&class(root, &name)), name)))
        .filter_map(|(number, name)| Some((number?, name)))
        .collect();
    found.into_values().collect()
}

/// Kernel names of all that is on top of a disk or one of its partitions, at any height, by name; no partitions.
pub(super) fn holders(root: &Root, kname: &str) -> Vec<String> {
    let mut seen = BTreeSet::from([kname.to_owned()]);
    let mut waiting = VecDeque::from([kname.to_owned()]);
    while let Some(below) = waiting.pop_front() {
        let own = own_partitions(root, &below);
        for dir in own.iter().map(|(_, dir)| dir).chain([&class(root, &below)]) {
            for holder in holders_of(root, dir) {
                if seen.insert(holder.clone()) {
                    waiting.push_back(holder);
                }
            }
        }
    }
    seen.into_iter().filter(|name| name != kname && !is_mapped_partition(root, name)).collect()
}

fn class(root: &Root, kname: &str) -> PathBuf {
    root.path("sys/class/block").join(kname)
}

fn number(dir: &Path) -> Option<Number> {
    let text = attr::read_optional(&dir.join("dev"))?;
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn size_bytes(kname: &str, dir: &Path) -> Option<u64> {
    let text = attr::read_optional(&dir.join("size"))?;
    let bytes = text.parse::<u64>().ok().and_then(|sectors| sectors.checked_mul(SECTOR_BYTES));
    if bytes.is_none() {
        tracing::warn!(disk = kname, size = text, "left out, as this is no size of a disk");
    }
    bytes
}

/// Partitions that the kernel has made: directories below that of the disk.
fn own_partitions(root: &Root, kname: &str) -> Vec<(String, PathBuf)> {
    let dir = class(root, kname);
    let is_own = |name: &String| {
        let rest = name.strip_prefix(kname).map(|rest| rest.strip_prefix('p').unwrap_or(rest));
        rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let names = attr::list(&dir).into_iter().filter(is_own);
    names
        .map(|name| (dir.join(&name), name))
        .filter(|(dir, _)| number(dir).is_some())
        .map(|(dir, name)| (name, dir))
        .collect()
}

/// Devices that are on top of one; such as have just gone are no more.
fn holders_of(root: &Root, dir: &Path) -> Vec<String> {
    attr::list(&dir.join("holders")).into_iter().filter(|name| number(&class(root, name)).is_some()).collect()
}

fn is_mapped_partition(root: &Root, kname: &str) -> bool {
    let dir = class(root, kname);
    dir.join("start").exists()
        || owner(&dir)
            .split('-')
            .next()
            .and_then(|owner| owner.get(..4))
            .is_some_and(|start| start.eq_ignore_ascii_case("part"))
}

/// Who has made a device of the device mapper, and its name for it.
fn owner(dir: &Path) -> String {
    attr::read_optional(&dir.join("dm/uuid")).unwrap_or_default()
}

fn kind(kname: &str, dir: &Path) -> Option<DiskKind> {
    if kname.starts_with("loop") {
        return None;
    }
    if kname.starts_with("dm-") {
        let owner = owner(dir);
        return match owner {
            _ if owner.starts_with("mpath-") => Some(DiskKind::Multipath),
            // What `dmraid` makes of the RAID of a machine's firmware.
            _ if owner.starts_with("DMRAID-") => Some(DiskKind::Raid),
            _ => None,
        };
    }
    if kname.starts_with("md") {
        // `raid1`, `raid10`, ...; one that is only put together one after the other is none, nor is a container.
        let level = attr::read_optional(&dir.join("md/level")).unwrap_or_default();
        return level.contains("raid").then_some(DiskKind::Raid);
    }
    // Type of the SCSI device: 0 is a disk.
    let kind = attr::read_optional(&dir.join("device/type")).and_then(|kind| kind.parse::<i32>().ok());
    (kind.unwrap_or(0) == 0).then_some(DiskKind::Physical)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use ferric_sys::testing::machine::MachineTree;

    /// A disk on a virtio device of its own.
    fn add(tree: &MachineTree, name: &str, minor: usize, attributes: &[(&str, &str)]) {
        tree.disk(name, &format!("pci0000:00/virtio{minor}"), &format!("254:{minor}"), attributes).unwrap();
    }

    fn put(tree: &MachineTree, above: &str, below: &str) {
        tree.file(&format!("sys/class/block/{below}/holders/{above}"), "").unwrap();
    }

    #[test]
    fn arrays_are_told_by_their_level() {
        let tree = MachineTree::new().unwrap();
        let levels = ["raid0", "raid1", "raid4", "raid5", "raid6", "raid10", "linear", "container", "multipath", ""];
        for (number, level) in levels.iter().enumerate() {
            add(&tree, &format!("md{number}"), number, &[("size", "8"), ("md/level", level)]);
        }
        let found = nodes(&tree.root()).unwrap();
        let names: Vec<&str> = found.iter().map(|node| node.kname.as_str()).collect();
        assert_eq!(names, ["md0", "md1", "md2", "md3", "md4", "md5"]);
        assert!(found.iter().all(|node| node.kind == DiskKind::Raid), "{found:?}");
    }

    #[test]
    fn what_is_no_size_of_a_disk_leaves_it_out() {
        let tree = MachineTree::new().unwrap();
        let sizes = [
            "8",
            "0",
            "",
            "x",
            "-8",
            "36028797018963968",
            "36028797018963967",
            "18446744073709551615",
            "18446744073709551616",
        ];
        for (number, size) in sizes.iter().enumerate() {
            add(&tree, &format!("vd{number}"), number, &[("size", size)]);
        }
        let sizes: Vec<u64> = nodes(&tree.root()).unwrap().iter().map(|node| node.size_bytes).collect();
        assert_eq!(sizes, [4096, u64::MAX - 511]);
    }

    #[test]
    fn devices_on_top_of_each_other_and_many_of_them_are_each_looked_at_once() {
        let tree = MachineTree::new().unwrap();
        add(&tree, "sda", 100, &[("size", "8")]);
        add(&tree, "sdb", 101, &[("size", "8")]);
        put(&tree, "sda", "sdb");
        put(&tree, "sdb", "sda");
        let begun = Instant::now();
        assert_eq!(
            (holders(&tree.root(), "sda"), holders(&tree.root(), "sdb")),
            (vec!["sdb".into()], vec!["sda".into()])
        );
        // Fourteen floors of four, each on all of the floor below.
        let name = |floor: usize, place: usize| format!("dm-{}", floor * 4 + place);
        for (floor, place) in (0..14).flat_map(|floor| (0..4).map(move |place| (floor, place))) {
            add(&tree, &name(floor, place), floor * 4 + place, &[("size", "8"), ("dm/uuid", "LVM-x")]);
        }
        (0..4).for_each(|place| put(&tree, &name(0, place), "sda"));
        for (floor, above, below) in (1..14).flat_map(|floor| (0..16).map(move |pair| (floor, pair / 4, pair % 4))) {
            put(&tree, &name(floor, above), &name(floor - 1, below));
        }
        assert_eq!(holders(&tree.root(), "sda").len(), 1 + 14 * 4);
        assert_eq!(nodes(&tree.root()).unwrap().len(), 2);
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }

    #[test]
    fn partitions_are_those_of_the_kernel_and_of_the_device_mapper() {
        let tree = MachineTree::new().unwrap();
        add(&tree, "dm-0", 0, &[("size", "80"), ("dm/uuid", "mpath-1")]);
        for (number, uuid) in ["LVM-x", "part10-mpath-1", "part2-mpath-1", "CRYPT-y"].iter().enumerate() {
            add(&tree, &format!("dm-{}", number + 1), number + 1, &[("size", "8"), ("dm/uuid", uuid)]);
        }
        for (above, below) in [("dm-1", "dm-0"), ("dm-2", "dm-0"), ("dm-3", "dm-0"), ("dm-4", "dm-2")] {
            put(&tree, above, below);
        }
        assert_eq!(partitions(&tree.root(), "dm-0"), ["dm-2", "dm-3"]);
        assert_eq!(holders(&tree.root(), "dm-0"), ["dm-1", "dm-4"]);
        let part = |name: &str| format!("nvme0n1/{name}/dev");
        let (one, ten, other) = (part("nvme0n1p1"), part("nvme0n1p10"), part("nvme0n1x1"));
        let own = [("size", "8"), (&one[8..], "259:1"), (&ten[8..], "259:10"), (&other[8..], "259:11")];
        tree.disk("nvme0n1", "pci0000:00/nvme/nvme0", "259:0", &own).unwrap();
        assert_eq!(partitions(&tree.root(), "nvme0n1"), ["nvme0n1p1", "nvme0n1p10"]);
    }
}
