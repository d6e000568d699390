//! The names of disks below `/dev/disk`, kept right while disks come and go.
//!
//! A thread of the worker, not of PID 1: it reads what is on disks, and a dying disk may hang it. On a ramdisk with udev
//! it is not started. What the names are is decided in [`ferric_hardware::probe::disks`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ferric_disk::table;
use ferric_hardware::probe::disks;
use ferric_sys::block_dev::{Access, BlockDev};
use ferric_sys::uevent::{Received, Uevent, UeventSocket};
use ferric_sys::{Root, attr};
use tracing::{debug, warn};

use super::content;

/// Looks after `/dev/disk` in a thread, from now on.
pub(super) fn spawn(root: Root) {
    let thread = std::thread::Builder::new().name("disk names".to_owned()).stack_size(512 * 1024);
    if let Err(error) = thread.spawn(move || run(&root)) {
        warn!("/dev/disk is not kept: {error}");
    }
}

fn run(root: &Root) {
    let mut names = Names { root: root.clone(), known: BTreeMap::new() };
    // Before the first look, so that no device falls between.
    let socket = UeventSocket::open();
    names.look_at_all();
    let Ok(socket) = socket.inspect_err(|error| warn!("/dev/disk is not kept current: {error}")) else { return };
    loop {
        match socket.receive() {
            Ok(Received::Event(event)) => names.event(&event),
            Ok(Received::Other) => {}
            Ok(Received::Overrun) => names.look_at_all(),
            Err(error) => {
                warn!("listening for disks: {error}");
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    }
}

#[derive(Debug)]
struct Names {
    root: Root,
    /// Links made for each block device.
    known: BTreeMap<String, BTreeSet<String>>,
}

impl Names {
    fn look_at_all(&mut self) {
        let present = attr::list(&self.root.path("sys/class/block"));
        let gone: Vec<String> = self.known.keys().filter(|kname| !present.contains(kname)).cloned().collect();
        gone.iter().for_each(|kname| self.set(kname, &BTreeSet::new()));
        present.iter().for_each(|kname| self.update(kname));
    }

    fn event(&mut self, event: &Uevent) {
        let Some(kname) = event.device.rsplit('/').next().filter(|_| event.get("SUBSYSTEM") == Some("block")) else {
            return;
        };
        match event.action.as_str() {
            "remove" => self.set(kname, &BTreeSet::new()),
            "add" | "change" | "move" => self.update(kname),
            _ => {}
        }
    }

    fn update(&mut self, kname: &str) {
        if ["loop", "ram", "zram", "fd"].iter().any(|prefix| kname.starts_with(prefix)) {
            return;
        }
        let mut links: BTreeSet<String> = disks::links(&self.root, kname).into_iter().collect();
        links.extend(self.content_links(kname));
        self.set(kname, &links);
    }

    /// Names by what is on the device. It is read through the whole disk: an open partition would keep the kernel from
    /// reading a new partition table.
    fn content_links(&self, kname: &str) -> Vec<String> {
        let directory = self.root.path("sys/class/block").join(kname);
        let number = |attribute: &str| attr::read_u64(&directory.join(attribute)).unwrap_or(0);
        // Sizes and places in sysfs are in units of 512 bytes, whatever the sectors of the disk.
        let (start, size, partition) = (number("start") * 512, number("size") * 512, number("partition"));
        if size == 0 {
            return Vec::new();
        }
        let disk = if partition == 0 { Some(kname.to_owned()) } else { parent(&directory) };
        let Some(node) = disk.map(|disk| self.node(&disk)) else { return Vec::new() };
        let head = read_head(&node, start, size);
        let (label, uuid) = head.as_deref().map(content::identify).unwrap_or_default();
        let entry = if partition == 0 { None } else { entry(&node, partition) };
        let (part_label, part_uuid) = entry.unwrap_or_default();
        disks::content_links(label.as_deref(), uuid.as_deref(), part_label.as_deref(), part_uuid.as_deref())
    }

    fn node(&self, kname: &str) -> PathBuf {
        self.root.path("dev").join(kname.replace('!', "/"))
    }

    /// Makes the links of a device these and no others.
    fn set(&mut self, kname: &str, links: &BTreeSet<String>) {
        let before = self.known.remove(kname).unwrap_or_default();
        let base = self.root.path("dev/disk");
        let node = kname.replace('!', "/");
        let mut made = BTreeSet::new();
        for link in links {
            match make(&base.join(link), &node) {
                Ok(true) => {
                    made.insert(link.clone());
                }
                // Another path to the same disk has the name; it is not wrong there.
                Ok(false) => {}
                Err(error) => debug!("naming {kname} {link}: {error}"),
            }
        }
        for link in before.difference(&made) {
            if points_to(&base.join(link), &node) {
                let _gone = fs::remove_file(base.join(link));
            }
        }
        if !made.is_empty() {
            self.known.insert(kname.to_owned(), made);
        }
    }
}

fn parent(directory: &Path) -> Option<String> {
    let real = fs::canonicalize(directory).ok()?;
    real.parent()?.file_name()?.to_str().map(str::to_owned)
}

fn read_head(node: &Path, start: u64, size: u64) -> Option<Vec<u8>> {
    let length = usize::try_from(size).unwrap_or(usize::MAX).min(content::HEAD_BYTES);
    let mut head = vec![0; length];
    let read = fs::File::open(node).and_then(|disk| disk.read_exact_at(&mut head, start));
    read.inspect_err(|error| debug!("reading {}: {error}", node.display())).ok()?;
    Some(head)
}

/// Name and identifier of a partition, from the table; on an MBR the identifier is the disk's with the number.
fn entry(disk: &Path, number: u64) -> Option<(Option<String>, Option<String>)> {
    let disk = BlockDev::open(disk, Access::Read).ok()?;
    let table = table::read(&disk).ok()??;
    let partition = table.partitions.into_iter().find(|partition| u64::from(partition.number) == number)?;
    let uuid = match partition.guid {
        Some(guid) => guid.to_string(),
        None => format!("{}-{number:02x}", table::disk_id(&disk).ok()?.trim_start_matches("0x")),
    };
    Some((Some(partition.name), Some(uuid)))
}

/// Makes a link, unless a link of another device that still exists is there.
fn make(link: &Path, node: &str) -> std::io::Result<bool> {
    if points_to(link, node) {
        return Ok(true);
    }
    if link.exists() {
        return Ok(false);
    }
    if let Some(directory) = link.parent() {
        fs::create_dir_all(directory)?;
    }
    // A link that leads nowhere, from a device that is gone.
    let _none = fs::remove_file(link);
    symlink(Path::new("../..").join(node), link)?;
    Ok(true)
}

fn points_to(link: &Path, node: &str) -> bool {
    fs::read_link(link).is_ok_and(|target| target == Path::new("../..").join(node))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("ferric-devlinks-{name}-{}", std::process::id()));
            fs::create_dir_all(dir.join("dev")).unwrap();
            Self(dir)
        }

        fn names(&self) -> Names {
            Names { root: Root::at(&self.0), known: BTreeMap::new() }
        }

        fn target(&self, link: &str) -> Option<String> {
            fs::read_link(self.0.join("dev/disk").join(link)).ok().map(|target| target.display().to_string())
        }

        fn disk(&self, kname: &str) {
            fs::write(self.0.join("dev").join(kname), "").unwrap();
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _left = fs::remove_dir_all(&self.0);
        }
    }

    fn set(links: &[&str]) -> BTreeSet<String> {
        links.iter().map(|link| (*link).to_owned()).collect()
    }

    #[test]
    fn links_follow_the_device() {
        let tree = Tree::new("follow");
        let mut names = tree.names();
        tree.disk("sda");
        names.set("sda", &set(&["by-id/wwn-1", "by-label/old"]));
        assert_eq!(tree.target("by-label/old").as_deref(), Some("../../sda"));
        names.set("sda", &set(&["by-id/wwn-1", "by-label/new"]));
        assert_eq!((tree.target("by-label/old"), tree.target("by-label/new").as_deref()), (None, Some("../../sda")));
        names.set("sda", &set(&[]));
        assert_eq!((tree.target("by-id/wwn-1"), names.known.len()), (None, 0));
    }

    #[test]
    fn the_second_path_to_a_disk_does_not_take_its_name() {
        let tree = Tree::new("second");
        let mut names = tree.names();
        tree.disk("sda");
        tree.disk("sdb");
        names.set("sda", &set(&["by-id/wwn-1"]));
        names.set("sdb", &set(&["by-id/wwn-1"]));
        assert_eq!(tree.target("by-id/wwn-1").as_deref(), Some("../../sda"));
        names.set("sdb", &set(&[]));
        assert_eq!(tree.target("by-id/wwn-1").as_deref(), Some("../../sda"));
        // The first one goes without a word; the name is free for the second.
        fs::remove_file(tree.0.join("dev/sda")).unwrap();
        names.set("sdb", &set(&["by-id/wwn-1"]));
        assert_eq!(tree.target("by-id/wwn-1").as_deref(), Some("../../sdb"));
    }

    #[test]
    fn devices_in_folders_and_events_of_others() {
        let tree = Tree::new("folders");
        let mut names = tree.names();
        fs::create_dir_all(tree.0.join("dev/cciss")).unwrap();
        tree.disk("cciss/c0d0");
        names.set("cciss!c0d0", &set(&["by-id/x"]));
        assert_eq!(tree.target("by-id/x").as_deref(), Some("../../cciss/c0d0"));
        let event = |message: &[u8]| Uevent::parse(message).unwrap();
        names.event(&event(b"remove@/devices/net/eth0\0SUBSYSTEM=net\0"));
        assert!(tree.target("by-id/x").is_some());
        names.event(&event(b"remove@/devices/x/block/cciss!c0d0\0SUBSYSTEM=block\0"));
        assert_eq!(tree.target("by-id/x"), None);
    }
}
