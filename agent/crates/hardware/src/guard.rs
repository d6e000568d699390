//! Cluster file systems that must not be erased behind the cluster's back (hardware section 5.6).
//!
//! Stricter than the reference agent on purpose: partitions are looked at too, type GUIDs are compared whatever their
//! case, and GFS2 and VMFS are found by what is on the disk.

use std::path::Path;

use ferric_disk::table::{self, Guid, PartitionType};
use ferric_disk::wipe;
use ferric_sys::block_dev::{Access, BlockDev};
use ferric_types::Node;
use ferric_types::error::{CommandError, ErrorClass, chain};

use crate::machine::Machine;
use crate::probe::disks::Disk;
use crate::settings::Settings;

/// What a type of partition or a signature means.
const GPFS: &str = "IBM GPFS partition";
const VMFS: &str = "VMware VMFS partition";
const GFS2: &str = "GFS2 file system";

const GPFS_GUID: Guid = Guid::from_parts(0x37af_fc90, 0xef7d, 0x4e96, [0x91, 0xc3, 0x2d, 0x7a, 0xe0, 0x55, 0xb1, 0x74]);
const VMFS_GUID: Guid = Guid::from_parts(0xaa31_e02a, 0x400f, 0x11db, [0x95, 0x90, 0x00, 0x0c, 0x29, 0x11, 0xd1, 0xb8]);
const VMFS_MBR: u8 = 0xfb;

/// Refuses a disk that holds a protected file system, itself or in a partition.
///
/// The check is off when the agent is configured so, or when the node says `wipe_special_filesystems: false` (the
/// name reads the wrong way round; that is how the reference agent takes it).
///
/// # Errors
/// `ProtectedDeviceError`, or `BlockDeviceError` when the disk cannot be read: what cannot be checked is not safe.
pub fn check(machine: &Machine, settings: &Settings, node: &Node, disk: &Disk) -> Result<(), CommandError> {
    if !settings.guard_special_filesystems || !node.internal_flag("wipe_special_filesystems", true) {
        return Ok(());
    }
    let found = match protected(&machine.root.path(&disk.info.name))? {
        Some(what) => Some((disk.info.name.as_str(), what)),
        None => disk.partitions.iter().find_map(|partition| {
            // A partition that cannot be opened, such as an extended one, holds nothing of its own.
            let what = protected(&machine.root.path(partition)).ok().flatten()?;
            Some((partition.as_str(), what))
        }),
    };
    match found {
        None => Ok(()),
        Some((device, what)) => Err(CommandError::new(
            ErrorClass::ProtectedDevice,
            format!(
                "Protected {what} located on device {device}. It may be shared with other machines. Detach it, put the \
                 disk on the node's skip list, or tell Ironic not to protect such file systems, then start again."
            ),
        )),
    }
}

fn protected(path: &Path) -> Result<Option<&'static str>, CommandError> {
    let unreadable = |error: &dyn std::error::Error| {
        let details = format!("looking for protected file systems on {}: {}", path.display(), chain(error));
        CommandError::new(ErrorClass::BlockDevice, details)
    };
    let dev = BlockDev::open(path, Access::Read).map_err(|error| unreadable(&error))?;
    let signatures = wipe::signatures(&dev).map_err(|error| unreadable(&error))?;
    let by_signature = signatures.iter().find_map(|signature| match signature.name {
        "gfs2" => Some(GFS2),
        "VMFS" | "VMFS_volume_member" => Some(VMFS),
        _ => None,
    });
    if by_signature.is_some() {
        return Ok(by_signature);
    }
    // A table that contradicts itself names no partition type that could be trusted; it is about to be erased.
    let table = table::read(&dev).ok().flatten();
    Ok(table.and_then(|table| table.partitions.iter().find_map(|partition| by_type(partition.kind))))
}

fn by_type(kind: PartitionType) -> Option<&'static str> {
    match kind {
        PartitionType::Gpt(GPFS_GUID) => Some(GPFS),
        PartitionType::Gpt(VMFS_GUID) | PartitionType::Mbr(VMFS_MBR) => Some(VMFS),
        PartitionType::Gpt(_) | PartitionType::Mbr(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_sys::testing::exec::ScriptedExec;
    use ferric_sys::testing::machine::MachineTree;
    use ferric_types::inventory::BlockDevice;
    use serde_json::json;
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;

    /// Device, offset and bytes there.
    type Place<'a> = (&'a str, u64, &'a [u8]);

    /// A disk of 8 MiB with bytes at places, and one partition of which the kernel knows.
    fn verdict(settings: &Settings, node: serde_json::Value, places: &[Place<'_>]) -> Result<(), CommandError> {
        let tree = MachineTree::new().unwrap();
        for name in ["vda", "vda1"] {
            tree.file(&format!("dev/{name}"), "").unwrap();
            std::fs::File::options()
                .write(true)
                .open(tree.path(format!("dev/{name}")))
                .unwrap()
                .set_len(8 << 20)
                .unwrap();
        }
        for (name, offset, bytes) in places {
            let file = std::fs::File::options().write(true).open(tree.path(format!("dev/{name}"))).unwrap();
            file.write_all_at(bytes, *offset).unwrap();
        }
        let info = BlockDevice { name: "/dev/vda".to_owned(), ..BlockDevice::default() };
        let disk = Disk { partitions: vec!["/dev/vda1".to_owned()], ..Disk::plain(info) };
        let machine = Machine::at(tree.root(), Arc::new(ScriptedExec::new()));
        check(&machine, settings, &serde_json::from_value(node).unwrap(), &disk)
    }

    const GFS2_MAGIC: &[u8] = &[0x01, 0x16, 0x19, 0x70];

    /// An MBR with one partition of a type.
    fn mbr(kind: u8) -> Vec<u8> {
        let mut sector = vec![0_u8; 512];
        sector[446 + 4] = kind;
        sector[446 + 8..446 + 12].copy_from_slice(&2048_u32.to_le_bytes());
        sector[446 + 12..446 + 16].copy_from_slice(&2048_u32.to_le_bytes());
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        sector
    }

    #[test]
    fn protected_file_systems_are_found_on_disks_and_in_partitions() {
        let settings = Settings::default();
        let cases: [(&[Place<'_>], Option<&str>); 5] = [
            (&[], None),
            (&[("vda", 0, &mbr(0x83))], None),
            (&[("vda", 0x1_0000, GFS2_MAGIC)], Some("Protected GFS2 file system located on device /dev/vda.")),
            (&[("vda1", 0x1_0000, GFS2_MAGIC)], Some("Protected GFS2 file system located on device /dev/vda1.")),
            (&[("vda", 0, &mbr(0xfb))], Some("Protected VMware VMFS partition located on device /dev/vda.")),
        ];
        for (places, want) in cases {
            match (verdict(&settings, json!({}), places), want) {
                (Ok(()), None) => {}
                (Err(error), Some(want)) => {
                    assert_eq!(error.class, ErrorClass::ProtectedDevice, "{error}");
                    assert!(error.details.starts_with(want), "{error}");
                }
                (got, want) => panic!("{got:?} instead of {want:?}"),
            }
        }
    }

    #[test]
    fn partition_types_are_known_by_guid_and_id() {
        let shown = |guid: Guid| guid.to_string().to_lowercase();
        assert_eq!(shown(GPFS_GUID), "37affc90-ef7d-4e96-91c3-2d7ae055b174");
        assert_eq!(shown(VMFS_GUID), "aa31e02a-400f-11db-9590-000c2911d1b8");
        assert_eq!(by_type(PartitionType::Gpt(GPFS_GUID)), Some(GPFS));
        assert_eq!(by_type(PartitionType::Gpt(Guid::EFI_SYSTEM)), None);
    }

    #[test]
    fn the_check_can_be_turned_off_in_two_places() {
        let places: &[Place<'_>] = &[("vda", 0x1_0000, GFS2_MAGIC)];
        let off = Settings { guard_special_filesystems: false, ..Settings::default() };
        assert!(verdict(&off, json!({}), places).is_ok());
        let node = |flag: bool| json!({"driver_internal_info": {"wipe_special_filesystems": flag}});
        assert!(verdict(&Settings::default(), node(false), places).is_ok());
        assert!(verdict(&Settings::default(), node(true), places).is_err());
    }
}
