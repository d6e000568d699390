//! One disk reached over several paths must be seen, erased and written once.
//!
//! Where the multipath tools run, the device mapper's node stands for the paths. Where they do not, paths are known
//! by their world-wide name, serial number and size all being the same, and the best live path stands for the disk.

use std::collections::HashMap;
use std::path::Path;

use ferric_sys::attr;

use super::Disk;

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

/// Keeps one path of each disk, at the place of the first.
pub(super) fn collapse(disks: Vec<(Disk, PathState)>) -> Vec<Disk> {
    let mut best: HashMap<(String, Option<String>, u64), usize> = HashMap::new();
    let mut kept: Vec<(Disk, PathState)> = Vec::new();
    for (disk, state) in disks {
        let name = disk.info.wwn_with_extension.clone().or_else(|| disk.info.wwn.clone());
        let Some(name) = name.filter(|_| disk.is_physical()) else {
            kept.push((disk, state));
            continue;
        };
        match best.get(&(name.clone(), disk.info.serial.clone(), disk.info.size)).copied() {
            Some(position) => {
                if let Some(slot) = kept.get_mut(position) {
                    let (better, other) = if state < slot.1 { (&disk, &slot.0) } else { (&slot.0, &disk) };
                    tracing::info!(
                        disk = better.info.name,
                        path = other.info.name,
                        wwn = name,
                        "another path of the same disk"
                    );
                    if state < slot.1 {
                        *slot = (disk, state);
                    }
                }
            }
            None => {
                best.insert((name, disk.info.serial.clone(), disk.info.size), kept.len());
                kept.push((disk, state));
            }
        }
    }
    kept.into_iter().map(|(disk, _)| disk).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_sys::testing::machine::MachineTree;
    use ferric_types::inventory::BlockDevice;

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

    fn names(disks: Vec<(Disk, PathState)>) -> Vec<String> {
        collapse(disks).into_iter().map(|disk| disk.info.name).collect()
    }

    #[test]
    fn paths_of_one_disk_become_the_best_one_at_the_first_place() {
        let w = Some("0x5000c50011223344");
        let found = names(vec![
            (disk("/dev/sda", w, "s", 10), PathState::Standby),
            (disk("/dev/sdb", None, "other", 10), PathState::Optimized),
            (disk("/dev/sdc", w, "s", 10), PathState::Usable),
            (disk("/dev/sdd", w, "s", 10), PathState::Optimized),
            (disk("/dev/sde", w, "s", 10), PathState::Optimized),
        ]);
        assert_eq!(found, ["/dev/sdd", "/dev/sdb"]);
    }

    #[test]
    fn disks_that_differ_in_anything_are_not_paths_of_each_other() {
        let w = Some("0x5000c50011223344");
        let found = names(vec![
            (disk("/dev/sda", w, "s1", 10), PathState::Optimized),
            (disk("/dev/sdb", w, "s2", 10), PathState::Optimized),
            (disk("/dev/sdc", w, "s1", 11), PathState::Optimized),
            // The same serial number without a world-wide name: cheap USB bridges all say the same.
            (disk("/dev/sdd", None, "0123456789", 5), PathState::Optimized),
            (disk("/dev/sde", None, "0123456789", 5), PathState::Optimized),
        ]);
        assert_eq!(found.len(), 5);
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
        ];
        for (number, (attributes, want)) in cases.into_iter().enumerate() {
            for (name, value) in &attributes {
                tree.file(&format!("d{number}/device/{name}"), value).unwrap();
            }
            assert_eq!(PathState::of(&tree.path(format!("d{number}"))), want, "{attributes:?}");
        }
    }
}
