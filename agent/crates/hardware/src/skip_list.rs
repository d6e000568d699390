//! Disks that cleaning and deploying must leave alone: `properties.skip_block_devices` (hardware section 4).

use ferric_sys::{Root, attr};
use ferric_types::Node;
use ferric_types::error::{CommandError, ErrorClass};
use serde_json::{Map, Value};

use crate::generic::raid::arrays;
use crate::hints::{RootDeviceHints, Shown};
use crate::probe::disks::{Disk, DiskKind};

/// Disks of a list that the node lets the agent touch.
///
/// An entry with a `volume_name` protects the md array of that name, as its members' superblocks or a link in `/dev/md` give
/// it. Where the names of arrays are not known, it protects every array.
///
/// # Errors
/// An entry that does not make sense: ignoring it could destroy what it was to protect.
pub fn without_skipped(root: &Root, node: &Node, disks: Vec<Disk>) -> Result<Vec<Disk>, CommandError> {
    let Some(list) = node.lookup("properties", "skip_block_devices") else { return Ok(disks) };
    let entries = list.as_array().ok_or_else(|| invalid(&format!("{list} is not a list")))?;
    let mut rules = Vec::new();
    for entry in entries {
        let hints = entry.as_object().ok_or_else(|| invalid(&format!("{entry} is not an object of hints")))?;
        rules.push(rule(hints)?);
    }
    let is_skipped = |disk: &Disk| {
        let skipped = rules.iter().any(|rule| match rule {
            SkipRule::Disk(hints) => hints.matches(disk),
            SkipRule::Volume(name) => is_volume(root, disk, name),
        });
        if skipped {
            tracing::info!(disk = disk.info.name, "left alone: on the node's skip list");
        }
        skipped
    };
    Ok(disks.into_iter().filter(|disk| !is_skipped(disk)).collect())
}

enum SkipRule {
    Disk(RootDeviceHints),
    Volume(String),
}

fn rule(hints: &Map<String, Value>) -> Result<SkipRule, CommandError> {
    match hints.get("volume_name") {
        Some(Value::String(name)) if !name.is_empty() => Ok(SkipRule::Volume(name.clone())),
        Some(other) => Err(invalid(&format!("volume_name {other} is not a name"))),
        None if hints.is_empty() => Err(invalid("an entry without hints would match every disk")),
        None => RootDeviceHints::parse(hints)
            .map(SkipRule::Disk)
            .map_err(|error| invalid(&format!("{}: {error}", Shown(hints)))),
    }
}

fn is_volume(root: &Root, disk: &Disk, name: &str) -> bool {
    if disk.kind != DiskKind::Raid {
        return false;
    }
    if let Some(found) = arrays::volume_name(root, &disk.kname) {
        return found == name;
    }
    // udev, or mdadm itself, names arrays in /dev/md; `host:name` there means an array of another host.
    let directory = root.path("dev/md");
    let named: Vec<(String, Option<String>)> = attr::list(&directory)
        .into_iter()
        .map(|link| (attr::link_name(&directory.join(&link)).unwrap_or_default(), Some(link)))
        .collect();
    match named.iter().find(|(kname, _)| *kname == disk.kname) {
        Some((_, Some(link))) => link.rsplit_once(':').map_or(link.as_str(), |(_, name)| name) == name,
        _ => true,
    }
}

fn invalid(reason: &str) -> CommandError {
    CommandError::new(ErrorClass::DeviceNotFound, format!("The node's skip_block_devices cannot be used: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_sys::testing::machine::MachineTree;
    use ferric_types::inventory::BlockDevice;
    use serde_json::json;

    fn disk(kname: &str, kind: DiskKind) -> Disk {
        let info = BlockDevice {
            name: format!("/dev/{kname}"),
            serial: Some(format!("serial-{kname}")),
            ..BlockDevice::default()
        };
        Disk { kind, ..Disk::plain(info) }
    }

    fn left(tree: &MachineTree, list: Value) -> Result<Vec<String>, CommandError> {
        let node: Node = serde_json::from_value(json!({"properties": {"skip_block_devices": list}})).unwrap();
        let disks = vec![
            disk("sda", DiskKind::Physical),
            disk("sdb", DiskKind::Physical),
            disk("md126", DiskKind::Raid),
            disk("md127", DiskKind::Raid),
        ];
        Ok(without_skipped(&tree.root(), &node, disks)?.into_iter().map(|disk| disk.kname).collect())
    }

    #[test]
    fn every_disk_that_any_entry_matches_is_left_out() {
        let tree = MachineTree::new().unwrap();
        assert_eq!(left(&tree, json!(null)).unwrap().len(), 4);
        assert_eq!(left(&tree, json!([])).unwrap().len(), 4);
        let list = json!([{"serial": "serial-sda"}, {"name": "/dev/md127"}]);
        assert_eq!(left(&tree, list).unwrap(), ["sdb", "md126"]);
    }

    #[test]
    fn a_volume_is_protected_by_its_name_and_without_names_all_are() {
        let tree = MachineTree::new().unwrap();
        let list = json!([{"volume_name": "data"}]);
        assert_eq!(left(&tree, list.clone()).unwrap(), ["sda", "sdb"]);
        tree.link("dev/md/host:data", "dev/md126").unwrap();
        assert_eq!(left(&tree, list.clone()).unwrap(), ["sda", "sdb"]);
        tree.link("dev/md/root", "dev/md127").unwrap();
        assert_eq!(left(&tree, list).unwrap(), ["sda", "sdb", "md127"]);
    }

    #[test]
    fn entries_that_make_no_sense_stop_everything() {
        let tree = MachineTree::new().unwrap();
        for list in [json!("sda"), json!(["sda"]), json!([{}]), json!([{"colour": "red"}]), json!([{"volume_name": 5}])]
        {
            let error = left(&tree, list.clone()).unwrap_err();
            assert!(error.details.contains("skip_block_devices"), "{list}: {error}");
        }
    }
}
