//! One disk reached over several paths must be seen, erased and written once.
//!
//! Where the multipath tools run, the device mapper's node stands for the paths; the kernel does the same for NVMe
//! itself. Where they do not, paths are known by their world-wide name, serial number and size all being the same, on a
//! bus that can have several, and the best live path stands for the disk.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ferric_sys::aligned::{ALIGNMENT, AlignedBuf};
use ferric_sys::block_dev::{Access, BlockDev, BlockDevError};
use ferric_sys::{Root, attr};
use ferric_types::inventory::BlockDevice;

use super::{Disk, OtherPath};

/// Time for a path to give its first sector; a disk that has to spin up takes longer, but then so do its other paths.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// Pause between two looks for the answer.
const ANSWER_PAUSE: Duration = Duration::from_millis(2);
/// Buses on which a disk has one path only. Cheap disks and enclosures there have the same names though they are not the
/// same disk.
const SINGLE: [&str; 5] = ["usb", "sata", "ata", "mmc", "virtio"];

/// How usable a path is, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PathState {
    /// Usable, and the controller prefers it or has no preference.
    Optimized,
    /// Usable.
    Usable,
    /// On stand-by: reading and writing fail.
    Standby,
    /// Offline.
    Offline,
}

impl PathState {
    /// State of a disk by its SCSI attributes: `state` of the device, `access_state` of an ALUA array. Other disks
    /// are always usable.
    pub(super) fn of(block_dir: &Path) -> Self {
        let attribute = |name: &str| attr::read_optional(&block_dir.join("device").join(name));
        if attribute("state").is_some_and(|state| !matches!(state.as_str(), "running" | "live")) {
            return Self::Offline;
        }
        match attribute("access_state").as_deref() {
            Some("standby" | "unavailable" | "offline" | "transitioning") => Self::Standby,
            Some("active/non-optimized") => Self::Usable,
            _ => Self::Optimized,
        }
    }
}

/// Machine and world-wide name of the disks with several paths, and the device node that was used last.
static USED: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

/// Keeps one path of each disk, at the place of the first: the best one that answers, of equal ones that which was used
/// before, so that a disk keeps its name. It gets the names of the others. `answers` is asked only where several paths look
/// equally good.
pub(super) fn collapse(root: &Root, found: Vec<(Disk, PathState)>, answers: impl Fn(&Disk) -> bool) -> Vec<Disk> {
    let mut groups: Vec<Vec<(Disk, PathState)>> = Vec::new();
    for (disk, state) in found {
        let is_path_of =
            |group: &&mut Vec<(Disk, PathState)>| group.first().is_some_and(|(first, _)| is_same(first, &disk));
        match groups.iter_mut().find(is_path_of) {
            Some(group) => group.push((disk, state)),
            None => groups.push(vec![(disk, state)]),
        }
    }
    groups.into_iter().filter_map(|paths| best(root, paths, &answers)).collect()
}

/// Whether two are paths to one disk.
fn is_same(one: &Disk, other: &Disk) -> bool {
    let can_be_path =
        |disk: &Disk| disk.is_physical() && !disk.info.tran.as_deref().is_some_and(|tran| SINGLE.contains(&tran));
    let (a, b) = (&one.info, &other.info);
    let name = |info: &BlockDevice| info.wwn_with_extension.clone().or_else(|| info.wwn.clone());
    (a.size, &a.serial) == (b.size, &b.serial)
        && can_be_path(one)
        && can_be_path(other)
        && name(a).is_some_and(|name_of_a| name(b) == Some(name_of_a))
}

fn best(root: &Root, mut paths: Vec<(Disk, PathState)>, answers: impl Fn(&Disk) -> bool) -> Option<Disk> {
    if paths.len() == 1 {
        return paths.pop().map(|(disk, _)| disk);
    }
    let used = || USED.lock().unwrap_or_else(PoisonError::into_inner);
    let name = paths.first().and_then(|(disk, _)| disk.info.wwn.clone()).unwrap_or_default();
    let key = root.path(&name).display().to_string();
    let before = used().iter().find(|(known, _)| *known == key).map(|(_, name)| name.clone());
    let state = paths.iter().map(|(_, state)| *state).min()?;
    let mut equals: Vec<usize> =
        (0..paths.len()).filter(|at| paths.get(*at).is_some_and(|path| path.1 == state)).collect();
    equals.sort_by_key(|at| paths.get(*at).is_none_or(|(disk, _)| Some(&disk.info.name) != before.as_ref()));
    let answering = |at: &&usize| paths.get(**at).is_some_and(|(disk, _)| answers(disk));
    let chosen = if equals.len() == 1 { equals.first() } else { equals.iter().find(answering).or(equals.first()) };
    let (mut disk, _) = paths.remove(*chosen?);
    for (other, _) in paths {
        add(&mut disk.by_paths, other.by_paths);
        add(&mut disk.by_ids, other.by_ids);
        add(&mut disk.holders, other.holders);
        disk.other_paths.push(OtherPath { name: other.info.name, hctl: other.info.hctl });
    }
    if before.as_ref() != Some(&disk.info.name) {
        let others = disk.other_paths.iter().map(|path| path.name.as_str()).collect::<Vec<_>>().join(", ");
        tracing::info!(disk = disk.info.name, wwn = name, others, "one disk over several paths");
        let mut used = used();
        used.retain(|(known, _)| *known != key);
        used.push((key, disk.info.name.clone()));
    }
    Some(disk)
}

fn add(to: &mut Vec<String>, more: Vec<String>) {
    more.into_iter().for_each(|item| {
        if !to.contains(&item) {
            to.push(item);
        }
    });
}

/// Device nodes that have been asked for a sector and have not answered yet.
static ASKED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Whether a disk can be read through this path. A path that says nothing for long counts as dead, and is not asked again
/// until its answer is there: the thread that waits for it may do so for minutes.
pub(super) fn answers(root: &Root, disk: &Disk) -> bool {
    let path = root.path(&disk.info.name);
    let name = path.display().to_string();
    let asked = || ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    if asked().contains(&name) {
        return false;
    }
    asked().push(name.clone());
    let thread = std::thread::Builder::new().name("path check".to_owned()).stack_size(256 * 1024).spawn(move || {
        let answer = read_first(&path);
        let name = path.display().to_string();
        asked().retain(|known| *known != name);
        answer
    });
    let Ok(thread) = thread else {
        asked().retain(|known| *known != name);
        return false;
    };
    let deadline = Instant::now() + ANSWER_LIMIT;
    while !thread.is_finished() {
        if Instant::now() >= deadline {
            tracing::warn!(path = name, seconds = ANSWER_LIMIT.as_secs(), "a path of a disk does not answer");
            return false;
        }
        std::thread::sleep(ANSWER_PAUSE);
    }
    match thread.join() {
        Ok(Ok(())) => true,
        Ok(Err(error)) => {
            tracing::warn!(path = name, reason = ferric_types::error::chain(&error), "a path of a disk is not usable");
            false
        }
        Err(_) => false,
    }
}

/// Reads the first page of the disk itself, rather than what is remembered of it.
fn read_first(path: &Path) -> Result<(), BlockDevError> {
    let dev = BlockDev::open(path, Access::Read)?;
    dev.direct()?.read_at(0, &mut AlignedBuf::zeroed(ALIGNMENT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_sys::testing::machine::MachineTree;

    fn disk(name: &str, wwn: Option<&str>, serial: &str, size: u64) -> Disk {
        let info = BlockDevice {
            name: name.to_owned(),
            wwn: wwn.map(str::to_owned),
            serial: Some(serial.to_owned()),
            size,
            ..BlockDevice::default()
        };
        Disk::plain(info)
    }

    fn names(disks: Vec<(Disk, PathState)>, dead: &[&str]) -> Vec<String> {
        let alive = |disk: &Disk| !dead.contains(&disk.info.name.as_str());
        // A machine of its own for each test, as they remember what was used.
        let root = Root::at(format!("/{:?}", std::thread::current().id()));
        collapse(&root, disks, alive).into_iter().map(|disk| disk.info.name).collect()
    }

    const W: Option<&str> = Some("0x5000c50011223344");

    #[test]
    fn paths_of_one_disk_become_the_best_one_at_the_first_place() {
        let paths = || {
            vec![
                (disk("/dev/sda", W, "s", 10), PathState::Standby),
                (disk("/dev/sdb", None, "other", 10), PathState::Optimized),
                (disk("/dev/sdc", W, "s", 10), PathState::Usable),
                (disk("/dev/sdd", W, "s", 10), PathState::Optimized),
                (disk("/dev/sde", W, "s", 10), PathState::Optimized),
            ]
        };
        assert_eq!(names(paths(), &[]), ["/dev/sdd", "/dev/sdb"]);
        assert_eq!(names(paths(), &["/dev/sdd"]), ["/dev/sde", "/dev/sdb"]);
        // It stays with a path that works.
        assert_eq!(names(paths(), &[]), ["/dev/sde", "/dev/sdb"]);
        assert_eq!(names(paths(), &["/dev/sde"]), ["/dev/sdd", "/dev/sdb"]);
        // What does not answer at all may be a disk that is broken: it is shown, and named by whatever fails on it.
        assert_eq!(names(paths(), &["/dev/sdd", "/dev/sde"]), ["/dev/sdd", "/dev/sdb"]);
    }

    #[test]
    fn only_what_has_equals_is_asked() {
        let all = vec![
            (disk("/dev/sda", W, "s", 10), PathState::Standby),
            (disk("/dev/sdb", None, "other", 10), PathState::Optimized),
            (disk("/dev/sdc", W, "s", 10), PathState::Usable),
        ];
        let found = collapse(&Root::at("/asked"), all, |disk| panic!("{} was asked", disk.info.name));
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn the_path_that_is_kept_has_the_names_of_all() {
        let path = |name: &str, hctl: &str, by_path: &str| {
            let mut disk = disk(name, W, "s", 10);
            disk.info.hctl = Some(hctl.to_owned());
            disk.by_paths = vec![by_path.to_owned()];
            disk.by_ids = vec!["/dev/disk/by-id/wwn-1".to_owned()];
            (disk, PathState::Optimized)
        };
        let found = collapse(
            &Root::at("/all"),
            vec![path("/dev/sda", "0:0:0:0", "a"), path("/dev/sdb", "1:0:0:0", "b")],
            |_| true,
        );
        assert_eq!((found.len(), &found[0].by_paths[..]), (1, &["a".to_owned(), "b".to_owned()][..]));
        assert_eq!(found[0].by_ids.len(), 1);
        let other = OtherPath { name: "/dev/sdb".to_owned(), hctl: Some("1:0:0:0".to_owned()) };
        assert_eq!(found[0].other_paths, [other]);
    }

    #[test]
    fn disks_that_differ_in_anything_are_not_paths_of_each_other() {
        let on = |name: &str, tran: &str| {
            let mut disk = disk(name, W, "cheap", 10);
            disk.info.tran = Some(tran.to_owned());
            (disk, PathState::Optimized)
        };
        let found = vec![
            (disk("/dev/sda", W, "s1", 10), PathState::Optimized),
            (disk("/dev/sdb", W, "s2", 10), PathState::Optimized),
            (disk("/dev/sdc", W, "s1", 11), PathState::Optimized),
            // The same serial number without a world-wide name.
            (disk("/dev/sdd", None, "0123456789", 5), PathState::Optimized),
            (disk("/dev/sde", None, "0123456789", 5), PathState::Optimized),
            // Two of the same make, of which the maker has numbered none.
            on("/dev/sdf", "usb"),
            on("/dev/sdg", "usb"),
            on("/dev/sdh", "sata"),
            on("/dev/sdi", "sata"),
            on("/dev/sdj", "sas"),
            on("/dev/sdk", "sas"),
        ];
        assert_eq!(names(found, &[]).len(), 10);
    }

    #[test]
    fn a_path_is_alive_when_its_first_sector_can_be_read() {
        let tree = MachineTree::new().unwrap();
        tree.bytes("dev/sda", &[0; 8192]).unwrap();
        tree.bytes("dev/sdb", &[0; 100]).unwrap();
        for (name, want) in [("/dev/sda", true), ("/dev/sdb", false), ("/dev/sdc", false), ("/dev/sda", true)] {
            assert_eq!(answers(&tree.root(), &disk(name, W, "s", 10)), want, "{name}");
        }
        // One that was asked before and has not answered.
        let name = tree.path("dev/sda").display().to_string();
        ASKED.lock().unwrap().push(name.clone());
        assert!(!answers(&tree.root(), &disk("/dev/sda", W, "s", 10)));
        ASKED.lock().unwrap().retain(|known| *known != name);
    }

    #[test]
    fn the_state_of_a_path_is_the_worst_that_is_said_of_it() {
        let tree = MachineTree::new().unwrap();
        let cases = [
            (vec![], PathState::Optimized),
            (vec![("state", "running")], PathState::Optimized),
            (vec![("state", "offline"), ("access_state", "active/optimized")], PathState::Offline),
            (vec![("state", "running"), ("access_state", "active/non-optimized")], PathState::Usable),
            (vec![("state", "running"), ("access_state", "standby")], PathState::Standby),
            (vec![("state", "running"), ("access_state", "unavailable")], PathState::Standby),
            (vec![("state", "running"), ("access_state", "offline")], PathState::Standby),
            (vec![("state", "running"), ("access_state", "transitioning")], PathState::Standby),
        ];
        for (number, (attributes, want)) in cases.into_iter().enumerate() {
            for (name, value) in &attributes {
                tree.file(&format!("d{number}/device/{name}"), value).unwrap();
            }
            assert_eq!(PathState::of(&tree.path(format!("d{number}"))), want, "{attributes:?}");
        }
    }
}
