//! Images of one file system.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use ferric_disk::image::checksum::Algorithm;
use ferric_disk::partition::identity;
use ferric_disk::table::{self, TableKind};
use ferric_sys::block_dev::{Access, BlockDev};
use ferric_sys::testing::exec::ScriptedExec;
use ferric_types::error::{CommandError, ErrorClass};
use serde_json::{Value, json};

use super::{Lab, MIB, lab};
use crate::context::Services;
use crate::generic::deploy::{self, BootLoaderRequest};
use crate::machine::Machine;

const UUID: &str = "6f3a1c5e-0b2d-4e8f-9a71-c0ffee123456";
/// base64 of gzip of "config drive content".
const DRIVE: &str = "H4sIAAAAAAACA0vOz0vLTFdIKcosS1VIzs8rSc0rAQCkGuMnFAAAAA==";

/// A raw image that looks like an ext4 file system, as far as anyone here looks.
fn image() -> Vec<u8> {
    let mut bytes = vec![0x5a_u8; 4 << 20];
    bytes[..1024].fill(0);
    bytes[1080..1082].copy_from_slice(&[0x53, 0xef]);
    let hex: String = UUID.chars().filter(|c| *c != '-').collect();
    for index in 0..16 {
        bytes[1128 + index] = u8::from_str_radix(&hex[index * 2..index * 2 + 2], 16).unwrap();
    }
    bytes
}

fn info(bytes: &[u8], more: Value) -> Value {
    let mut hasher = Algorithm::Sha256.hasher();
    hasher.update(bytes);
    let mut info = json!({"id": "img", "urls": ["http://images/img"], "disk_format": "raw", "stream_raw_images": true,
        "os_hash_algo": "sha256", "os_hash_value": hasher.finish(), "image_type": "partition", "root_mb": 100,
        "root_gb": 1, "swap_mb": 64, "ephemeral_mb": 0, "ephemeral_format": null, "preserve_ephemeral": false,
        "deploy_boot_mode": "uefi", "boot_option": "local", "kernel": "k", "ramdisk": "r"});
    for (key, value) in more.as_object().unwrap() {
        info[key] = value.clone();
    }
    info
}

fn uefi() -> Value {
    json!({"uuid": "node-1", "properties": {"capabilities": "boot_mode:uefi"}})
}

fn deploy_lab(name: &str) -> Lab {
    let mut lab = lab();
    lab.disk(name, 5 << 30, false);
    lab.services.fetch.bytes = image();
    lab
}

fn deploy(lab: &Lab, node: &Value, info: &Value, drive: Option<&Value>) -> Result<String, CommandError> {
    lab.with(node, |context| deploy::prepare_image(context, info, drive))
}

fn dev(lab: &Lab, name: &str) -> BlockDev {
    BlockDev::open(lab.tree.path(format!("dev/{name}")), Access::Write).unwrap()
}

fn bytes(lab: &Lab, name: &str, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let file = std::fs::File::open(lab.tree.path(format!("dev/{name}"))).unwrap();
    file.read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

/// Programs of a machine, by command line.
fn programs(lab: &mut Lab, exec: ScriptedExec) -> Arc<ScriptedExec> {
    let exec = Arc::new(exec);
    lab.machine = Machine::at(lab.tree.root(), Arc::clone(&exec) as Arc<_>);
    exec
}

#[test]
fn partitions_are_made_around_the_image_and_their_uuids_remembered() {
    let lab = deploy_lab("nvme0n1");
    let text = deploy(&lab, &uefi(), &info(&image(), json!({})), Some(&json!(DRIVE))).unwrap();
    let dev = dev(&lab, "nvme0n1");
    let found = table::validate(&dev).unwrap();
    let places: Vec<_> = found.partitions.iter().map(|part| (part.start_bytes / MIB, part.size_bytes / MIB)).collect();
    assert_eq!((found.kind, places), (TableKind::Gpt, vec![(1, 550), (551, 64), (615, 1), (616, 100)]));
    let esp = identity::uuid_of(&dev, &found.partitions[0]);
    assert_eq!(esp.len(), 9, "{esp}");
    let want = format!("image (img) written to device /dev/nvme0n1 root_uuid={UUID} efi_system_partition_uuid={esp}");
    assert_eq!(text, want);
    let uuids = json!({"root uuid": UUID, "efi system partition uuid": esp, "PReP Boot partition uuid": null});
    assert_eq!(lab.services.partition_uuids(), uuids);
    assert_eq!(*lab.services.written.lock().unwrap(), ["img"]);
    assert!(bytes(&lab, "nvme0n1", 616 * MIB, 4 << 20) == image());
    assert_eq!(bytes(&lab, "nvme0n1", 615 * MIB, 21), b"config drive content\0");
    assert_eq!(bytes(&lab, "nvme0n1", 551 * MIB + 4086, 10), b"SWAPSPACE2");
}

#[test]
fn a_bios_machine_gets_an_mbr_and_no_efi_system_partition() {
    let lab = deploy_lab("vda");
    let text = deploy(&lab, &json!({}), &info(&image(), json!({"deploy_boot_mode": "bios"})), None).unwrap();
    assert_eq!(text, format!("image (img) written to device /dev/vda root_uuid={UUID}"));
    let found = table::validate(&dev(&lab, "vda")).unwrap();
    assert_eq!((found.kind, found.partitions.len()), (TableKind::Mbr, 2));
    assert_eq!(lab.services.partition_uuids()["efi system partition uuid"], Value::Null);
}

#[test]
fn what_can_be_refused_is_refused_before_the_disk_is_touched() {
    let nested = {
        let mut bytes = image();
        bytes[446..462].copy_from_slice(&[0x80, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0]);
        bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
        bytes
    };
    for (content, more, class, want) in [
        (image(), json!({"root_mb": null}), ErrorClass::InvalidCommandParams, "needs 'root_mb'"),
        (
            image(),
            json!({"root_mb": 3}),
            ErrorClass::InvalidCommandParams,
            "Root partition is too small for requested image. Image virtual size: 4 MB, Root size: 3 MB",
        ),
        (nested, json!({}), ErrorClass::InvalidImage, "has a partition table of its own"),
        (
            image(),
            json!({"root_mb": 5000}),
            ErrorClass::Deployment,
            "they end at 5615 MiB (EFI system partition 550, swap 64, root 5000)",
        ),
        (image(), json!({"ephemeral_mb": 10}), ErrorClass::FileSystemNotSupported, "mkfs.ext4 is not in this ramdisk"),
        (
            image(),
            json!({"ephemeral_mb": 10, "ephemeral_format": "zfs"}),
            ErrorClass::FileSystemNotSupported,
            "mkfs.zfs is not in this ramdisk",
        ),
        (image(), json!({"preserve_ephemeral": true}), ErrorClass::Deployment, "it has no partition table"),
        (image(), json!({"disk_format": "qcow2"}), ErrorClass::InvalidImage, "qcow2"),
    ] {
        let mut lab = deploy_lab("vda");
        let info = info(&content, more.clone());
        lab.services.fetch.bytes = content;
        let error = deploy(&lab, &uefi(), &info, None).unwrap_err();
        assert_eq!(error.class, class, "{more}: {error}");
        assert!(error.details.contains(want), "{more}: {error}");
        for offset in [0, 0x1fe, MIB, 600 * MIB] {
            let want = if offset < 16 * MIB { 0xa5 } else { 0 };
            assert_eq!(lab.byte("vda", offset), want, "{more} at {offset}");
        }
        assert!(lab.services.written.lock().unwrap().is_empty());
    }
}

#[test]
fn the_scratch_space_is_made_by_its_program() {
    let mut lab = deploy_lab("nvme0n1");
    let node = lab.tree.path("dev/nvme0n1p2");
    let line = format!("mkfs.xfs -f -L ephemeral0 {}", node.display());
    let exec = programs(&mut lab, ScriptedExec::new().with("mkfs.xfs -V", "mkfs.xfs version 6").with(&line, ""));
    let info = info(&image(), json!({"ephemeral_mb": 200, "ephemeral_format": "xfs"}));
    deploy(&lab, &uefi(), &info, None).unwrap();
    assert_eq!(exec.ran(), ["mkfs.xfs -V", &line]);
}

#[test]
fn a_scratch_space_that_cannot_be_made_leaves_no_disk_that_boots() {
    let mut lab = deploy_lab("vda");
    let line = format!("mkfs.ext4 -F -L ephemeral0 {}", lab.tree.path("dev/vda2").display());
    let exec = ScriptedExec::new().with("mkfs.ext4 -V", "").failing(&line, 1, "no space on device");
    programs(&mut lab, exec);
    let error = deploy(&lab, &uefi(), &info(&image(), json!({"ephemeral_mb": 200})), None).unwrap_err();
    assert_eq!(error.class, ErrorClass::Deployment);
    assert!(error.details.contains("no space on device"), "{error}");
    assert!(table::read(&dev(&lab, "vda")).unwrap().is_none());
    let end = (5 << 30) - 512;
    assert_ne!(bytes(&lab, "vda", end, 8), b"EFI PART", "the backup table is left");
}

#[test]
fn failures_after_the_partitions_were_made_leave_no_disk_that_boots() {
    let other = info(b"other bytes", json!({}));
    let mut lab = deploy_lab("vda");
    let error = deploy(&lab, &uefi(), &other, None).unwrap_err();
    assert_eq!(error.class, ErrorClass::ImageChecksum, "{error}");
    assert!(table::read(&dev(&lab, "vda")).unwrap().is_none());
    lab.services.panics = true;
    let info = info(&image(), json!({}));
    let deployed = || deploy(&lab, &uefi(), &info, None);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(deployed)).is_err());
    assert!(table::read(&dev(&lab, "vda")).unwrap().is_none());
}

#[test]
fn scratch_space_is_kept_where_everything_else_is_the_same() {
    let mut lab = deploy_lab("vda");
    let line = format!("mkfs.ext4 -F -L ephemeral0 {}", lab.tree.path("dev/vda2").display());
    programs(&mut lab, ScriptedExec::new().with("mkfs.ext4 -V", "").with(&line, ""));
    let sizes = |more: Value| {
        let mut all = json!({"ephemeral_mb": 200});
        for (key, value) in more.as_object().unwrap() {
            all[key] = value.clone();
        }
        info(&image(), all)
    };
    deploy(&lab, &uefi(), &sizes(json!({})), None).unwrap();
    lab.write("vda", 551 * MIB, b"kept data");
    let table_of = |lab: &Lab| table::validate(&dev(lab, "vda")).unwrap();
    let before = table_of(&lab);
    // No program is wanted for what is kept.
    programs(&mut lab, ScriptedExec::new());
    let kept = sizes(json!({"preserve_ephemeral": true}));
    deploy(&lab, &uefi(), &kept, None).unwrap();
    assert_eq!(bytes(&lab, "vda", 551 * MIB, 9), b"kept data");
    assert_eq!(table_of(&lab), before);
    // Another swap space, or a config drive where there was none, moves what follows.
    for (more, drive) in [(json!({"swap_mb": 65}), None), (json!({}), Some(json!(DRIVE)))] {
        let mut info = kept.clone();
        for (key, value) in more.as_object().unwrap() {
            info[key] = value.clone();
        }
        let error = deploy(&lab, &uefi(), &info, drive.as_ref()).unwrap_err();
        assert_eq!(error.class, ErrorClass::Deployment);
        assert!(error.details.contains("cannot be kept, as preserve_ephemeral asks for"), "{error}");
        assert!(bytes(&lab, "vda", 815 * MIB, 4 << 20) == image(), "{error}");
    }
    // A failure takes the system away, and leaves what is to be kept.
    let mut bad = kept.clone();
    bad["os_hash_value"] = json!("0".repeat(64));
    assert_eq!(deploy(&lab, &uefi(), &bad, None).unwrap_err().class, ErrorClass::ImageChecksum);
    assert_eq!(bytes(&lab, "vda", 551 * MIB, 9), b"kept data");
    assert_eq!(table_of(&lab), before);
    for at in [MIB, 815 * MIB] {
        assert!(bytes(&lab, "vda", at, 1 << 20).iter().all(|byte| *byte == 0), "left at {at}");
    }
}

#[test]
fn a_boot_loader_is_only_looked_for_where_the_machine_boots_by_uefi() {
    let lab = deploy_lab("vda");
    deploy(&lab, &uefi(), &info(&image(), json!({})), None).unwrap();
    let request = |ignore_failure| BootLoaderRequest {
        root_uuid: Some(UUID.to_owned()),
        target_boot_mode: "uefi".to_owned(),
        ignore_failure,
        ..BootLoaderRequest::default()
    };
    let install = |ignore| lab.with(&uefi(), |context| deploy::install_bootloader(context, &request(ignore)));
    let error = install(None).unwrap_err();
    assert_eq!(error.class, ErrorClass::InvalidImage);
    assert!(error.details.starts_with("Install of legacy BIOS bootloaders disabled"), "{error}");
    assert!(install(Some(true)).unwrap().is_some_and(|text| text.contains("to be ignored")));
    // This machine has UEFI; its image cannot be mounted, as it is no file system at all and its disk a file.
    std::fs::create_dir_all(lab.tree.path("sys/firmware/efi/efivars")).unwrap();
    let error = install(None).unwrap_err();
    assert_eq!(error.class, ErrorClass::InvalidImage);
    assert!(error.details.contains("mounting the ext4 file system on"), "{error}");
    assert!(install(Some(true)).unwrap().is_some_and(|text| text.contains("to be ignored")));
}
