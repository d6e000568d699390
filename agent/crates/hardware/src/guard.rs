//! File systems and storage that several machines share, which must not be erased behind their backs (hardware section 5.6).
//!
//! Stricter than the reference agent on purpose: type GUIDs are compared whatever their case, partitions are looked at too,
//! what is on a disk counts as well as what its table says, and so do GFS2, OCFS2 and the disks of a Ceph cluster. Nothing
//! has to be activated for that: volumes of LVM and md arrays are looked into as they lie on the disk.

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
const CEPH: &str = "Ceph OSD partition";

/// Signatures by the names that [`wipe::signatures`] gives them.
const SIGNATURES: [(&str, &str); 6] = [
    ("gfs2", "GFS2 file system"),
    ("VMFS", VMFS),
    ("VMFS_volume_member", VMFS),
    ("ocfs", "OCFS file system"),
    ("ocfs2", "OCFS2 file system"),
    ("ceph_bluestore", "Ceph OSD (bluestore)"),
];

/// Type GUIDs of partitions as they are written. Those of Ceph are of its data, journals, blocks, block databases and write
/// ahead logs: plain, encrypted by dm-crypt and by LUKS, over multipath, and being made.
const TYPES: [(&str, &str); 20] = [
    ("37AFFC90-EF7D-4E96-91C3-2D7AE055B174", GPFS),
    ("AA31E02A-400F-11DB-9590-000C2911D1B8", VMFS),
    ("4FBD7E29-9D25-41B8-AFD0-062C0CEFF05D", CEPH),
    ("4FBD7E29-9D25-41B8-AFD0-5EC00CEFF05D", CEPH),
    ("4FBD7E29-9D25-41B8-AFD0-35865CEFF05D", CEPH),
    ("4FBD7E29-8AE0-4982-BF9D-5A8D867AF560", CEPH),
    ("45B0969E-9B03-4F30-B4C6-B4B80CEFF106", CEPH),
    ("45B0969E-9B03-4F30-B4C6-5EC00CEFF106", CEPH),
    ("45B0969E-9B03-4F30-B4C6-35865CEFF106", CEPH),
    ("45B0969E-8AE0-4982-BF9D-5A8D867AF560", CEPH),
    ("CAFECAFE-9B03-4F30-B4C6-B4B80CEFF106", CEPH),
    ("CAFECAFE-9B03-4F30-B4C6-5EC00CEFF106", CEPH),
    ("CAFECAFE-9B03-4F30-B4C6-35865CEFF106", CEPH),
    ("CAFECAFE-8AE0-4982-BF9D-5A8D867AF560", CEPH),
    ("30CD0809-C2B2-499C-8879-2D6B78529876", CEPH),
    ("93B0052D-02D9-4D8A-A43B-33A3EE4DFBC3", CEPH),
    ("5CE17FCE-4087-4169-B7FF-056CC58473F9", CEPH),
    ("306E8683-4FE2-4330-B7C0-00A917C16966", CEPH),
    ("89C57F98-2FE5-4DC0-89C1-F3AD0CEFF2BE", CEPH),
    ("89C57F98-2FE5-4DC0-89C1-5EC00CEFF2BE", CEPH),
];
const VMFS_MBR: u8 = 0xfb;

/// Refuses a disk that holds a protected file system, itself, in a partition, or in an array or volume on it.
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
        // A partition that cannot be opened, such as an extended one, holds nothing of its own. What holds the disk, as an
        // unlocked LUKS volume does, shows what lies on it.
        None => disk.partitions.iter().chain(&disk.holders).find_map(|device| {
            let what = protected(&machine.root.path(device)).ok().flatten()?;
            Some((device.as_str(), what))
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
    let own = wipe::signatures(&dev).map_err(|error| unreadable(&error))?;
    // What a former table tells of is not in use any more.
    let layers = wipe::layers(&dev).into_iter().filter(|layer| layer.is_current);
    let inner = layers.filter_map(|layer| {
        let part = dev.part(path, layer.start_bytes, layer.size_bytes).ok()?;
        wipe::signatures(&part).ok()
    });
    let by_signature =
        [own].into_iter().chain(inner).flatten().find_map(|signature| {
            SIGNATURES.iter().find_map(|(name, what)| (signature.name == *name).then_some(*what))
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
        PartitionType::Gpt(guid) => by_guid(guid),
        PartitionType::Mbr(VMFS_MBR) => Some(VMFS),
        PartitionType::Mbr(_) => None,
    }
}

fn by_guid(guid: Guid) -> Option<&'static str> {
    let text = guid.to_string();
    TYPES.iter().find_map(|(known, what)| known.eq_ignore_ascii_case(&text).then_some(*what))
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
    const CEPH_MAGIC: &[u8] = b"bluestore block device";

    /// A GPT for sectors of 4 KiB, with a partition at 1 MiB.
    fn former_gpt() -> Vec<u8> {
        let mut bytes = vec![0; 8192];
        bytes[..8].copy_from_slice(b"EFI PART");
        bytes[72..80].copy_from_slice(&2_u64.to_le_bytes());
        bytes[80..88].copy_from_slice(&[1, 0, 0, 0, 128, 0, 0, 0]);
        bytes[4096..4112].copy_from_slice(&[1; 16]);
        bytes[4128..4144].copy_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0]);
        bytes
    }

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
        let cases: [(&[Place<'_>], Option<&str>); 10] = [
            (&[], None),
            (&[("vda", 0, &mbr(0x83))], None),
            (&[("vda", 0x1_0000, GFS2_MAGIC)], Some("Protected GFS2 file system located on device /dev/vda.")),
            (&[("vda1", 0x1_0000, GFS2_MAGIC)], Some("Protected GFS2 file system located on device /dev/vda1.")),
            (&[("vda", 0, &mbr(0xfb))], Some("Protected VMware VMFS partition located on device /dev/vda.")),
            (&[("vda1", 8192, b"OCFSV2")], Some("Protected OCFS2 file system located on device /dev/vda1.")),
            (&[("vda", 8192, b"OracleCFS")], Some("Protected OCFS file system located on device /dev/vda.")),
            (&[("vda", 0, CEPH_MAGIC)], Some("Protected Ceph OSD (bluestore) located on device /dev/vda.")),
            // In a partition of which the kernel does not know (yet).
            (
                &[("vda", 0, &mbr(0x83)), ("vda", 1 << 20, CEPH_MAGIC)],
                Some("Protected Ceph OSD (bluestore) located on device /dev/vda."),
            ),
            // In one that was on the disk when it had other sectors: nobody uses it.
            (&[("vda", 4096, &former_gpt()), ("vda", 1 << 20, CEPH_MAGIC)], None),
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
        let ceph = Guid::from_parts(0x4fbd_7e29, 0x9d25, 0x41b8, [0xaf, 0xd0, 0x06, 0x2c, 0x0c, 0xef, 0xf0, 0x5d]);
        let gpfs = Guid::from_parts(0x37af_fc90, 0xef7d, 0x4e96, [0x91, 0xc3, 0x2d, 0x7a, 0xe0, 0x55, 0xb1, 0x74]);
        assert_eq!(by_type(PartitionType::Gpt(ceph)), Some(CEPH));
        assert_eq!(by_type(PartitionType::Gpt(gpfs)), Some(GPFS));
        for (text, _) in TYPES {
            assert!(text.len() == 36 && text.chars().all(|c| c == '-' || c.is_ascii_hexdigit()), "{text}");
        }
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
