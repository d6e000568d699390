//! What a written image boots by on a UEFI machine.

use std::sync::Arc;

use ferric_disk::boot::load_option;
use ferric_disk::image::checksum::Algorithm;
use ferric_disk::table::{self, Guid, Partition, PartitionType, TableKind};
use ferric_sys::block_dev::{Access, BlockDev};
use ferric_sys::testing::disk::TestDisk;
use ferric_sys::testing::exec::ScriptedExec;
use ferric_types::error::{CommandError, ErrorClass};
use serde_json::{Value, json};

use super::{Lab, MIB, lab};
use crate::generic::deploy::{self, BootLoaderRequest};
use crate::machine::Machine;

pub(super) const EFIVARS: &str = "sys/firmware/efi/efivars";
pub(super) const SUFFIX: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";

/// An image of a whole disk with partitions of the types, each of 2 MiB; the first one has a FAT file system with a loader
/// where firmware looks.
pub(super) fn image(kind: TableKind, types: &[PartitionType]) -> Vec<u8> {
    use std::io::Write as _;
    let disk = TestDisk::zeroed(8 * MIB).unwrap();
    let dev = disk.open().unwrap();
    let partition = |(number, kind): (u32, &PartitionType)| Partition {
        number,
        start_bytes: (u64::from(number) * 2 - 1) * MIB,
        size_bytes: 2 * MIB,
        kind: *kind,
        guid: None,
        name: String::new(),
    };
    let partitions: Vec<_> = (1..).zip(types).map(partition).collect();
    table::create(&dev, kind, &partitions, None).unwrap();
    let mut fat = std::io::Cursor::new(vec![0; 2 << 20]);
    fatfs::format_volume(&mut fat, fatfs::FormatVolumeOptions::new()).unwrap();
    {
        let fs = fatfs::FileSystem::new(&mut fat, fatfs::FsOptions::new()).unwrap();
        let boot = fs.root_dir().create_dir("EFI").unwrap().create_dir("BOOT").unwrap();
        boot.create_file("BOOTX64.EFI").unwrap().write_all(b"MZ").unwrap();
    }
    dev.write_at(MIB, fat.get_ref()).unwrap();
    disk.bytes(0, 8 << 20).unwrap()
}

pub(super) const ESP: PartitionType = PartitionType::Gpt(Guid::EFI_SYSTEM);
const BIOS: PartitionType = PartitionType::Gpt(Guid::BIOS_BOOT);
const DATA: PartitionType = PartitionType::Gpt(Guid::LINUX_DATA);

fn info(bytes: &[u8]) -> Value {
    let mut hasher = Algorithm::Sha256.hasher();
    hasher.update(bytes);
    json!({"id": "img", "urls": ["http://images/img"], "disk_format": "raw", "stream_raw_images": true,
        "os_hash_algo": "sha256", "os_hash_value": hasher.finish()})
}

/// A machine with UEFI firmware, whose image is on its server.
fn uefi(image: Vec<u8>) -> (Lab, Arc<ScriptedExec>) {
    let mut lab = lab();
    lab.disk("vda", 5 << 30, false);
    lab.services.fetch.bytes = image;
    lab.tree.file("sys/firmware/efi/fw_platform_size", "64").unwrap();
    let exec = Arc::new(ScriptedExec::new());
    lab.machine = Machine::at(lab.tree.root(), Arc::clone(&exec) as Arc<_>);
    (lab, exec)
}

fn deploy(lab: &Lab, node: &Value) -> Result<String, CommandError> {
    let info = info(&lab.services.fetch.bytes);
    lab.with(node, |context| deploy::prepare_image(context, &info, None))
}

fn boot_loader(lab: &Lab, ignore_failure: Option<bool>) -> Result<Option<String>, CommandError> {
    let request = BootLoaderRequest {
        root_uuid: Some("0x12345678".to_owned()),
        target_boot_mode: "uefi".to_owned(),
        ignore_failure,
        ..BootLoaderRequest::default()
    };
    lab.with(&json!({}), |context| deploy::install_bootloader(context, &request))
}

#[test]
fn an_image_that_uefi_cannot_boot_is_refused_before_the_disk_is_touched() {
    for (image, words) in [
        (
            image(TableKind::Mbr, &[PartitionType::Mbr(0x83)]),
            "it has an MBR with 1 partition(s), so it is made for BIOS",
        ),
        (image(TableKind::Gpt, &[BIOS, DATA]), "it has a GPT with 2 partition(s), so it is made to be booted by BIOS"),
    ] {
        let (mut lab, _) = uefi(image);
        let error = deploy(&lab, &json!({})).unwrap_err();
        assert_eq!(error.class, ErrorClass::InvalidImage, "{error}");
        assert!(error.details.contains(words) && error.details.contains("this machine boots by UEFI"), "{error}");
        assert_eq!((lab.byte("vda", 0), lab.byte("vda", 3 * MIB)), (0xa5, 0xa5), "{words}");
        // Where nobody will ask for boot entries, or their failure does not matter, it is written.
        deploy(&lab, &json!({"properties": {"capabilities": "boot_mode:bios"}})).unwrap();
        lab.settings.ignore_bootloader_failure = true;
        deploy(&lab, &json!({})).unwrap();
    }
    for image in [image(TableKind::Gpt, &[ESP, DATA]), image(TableKind::Mbr, &[PartitionType::Mbr(0xef)])] {
        deploy(&uefi(image).0, &json!({})).unwrap();
    }
    let (lab, _) = uefi(image(TableKind::Mbr, &[PartitionType::Mbr(0x83)]));
    std::fs::remove_dir_all(lab.tree.path("sys/firmware/efi")).unwrap();
    deploy(&lab, &json!({})).unwrap();
}

#[test]
fn a_boot_entry_is_made_and_no_program_run() {
    let (lab, exec) = uefi(image(TableKind::Gpt, &[ESP, DATA]));
    lab.tree.file(&format!("{EFIVARS}/BootOrder-{SUFFIX}"), "\u{7}\0\0\0\u{3}\0\u{3}\0").unwrap();
    deploy(&lab, &json!({})).unwrap();
    assert_eq!(boot_loader(&lab, None), Ok(None));
    let entry = std::fs::read(lab.tree.path(format!("{EFIVARS}/Boot0000-{SUFFIX}"))).unwrap();
    assert_eq!(load_option::label(&entry[4..]).as_deref(), Some("ironic1"));
    let order = std::fs::read(lab.tree.path(format!("{EFIVARS}/BootOrder-{SUFFIX}"))).unwrap();
    assert_eq!(order[..8], [7, 0, 0, 0, 0, 0, 3, 0]);
    assert!(exec.ran().is_empty(), "{:?}", exec.ran());
}

#[test]
fn firmware_that_takes_no_entry_is_told_of_in_the_result() {
    let (lab, exec) = uefi(image(TableKind::Gpt, &[ESP, DATA]));
    deploy(&lab, &json!({})).unwrap();
    let text = boot_loader(&lab, None).unwrap().unwrap();
    let want = "no boot entry was made, because the firmware's variables cannot be reached; /dev/vda boots by the image's \
                loader in \\EFI\\BOOT\\BOOTX64.EFI";
    assert_eq!(text, want);
    assert!(exec.ran().is_empty(), "{:?}", exec.ran());
}

#[test]
fn failures_are_ignored_where_the_call_says_so_and_else_where_the_configuration_does() {
    let (mut lab, exec) = uefi(image(TableKind::Gpt, &[ESP, DATA]));
    deploy(&lab, &json!({})).unwrap();
    // The file system on the EFI system partition is gone.
    BlockDev::open(lab.tree.path("dev/vda"), Access::Write).unwrap().zero_range(MIB, MIB).unwrap();
    for (configured, call, ignored) in [
        (false, None, false),
        (false, Some(true), true),
        (false, Some(false), false),
        (true, None, true),
        (true, Some(false), false),
    ] {
        lab.settings.ignore_bootloader_failure = configured;
        match boot_loader(&lab, call) {
            Ok(text) => {
                assert!(ignored && text.unwrap().contains("to be ignored: reading the EFI"), "{configured} {call:?}")
            }
            Err(error) => {
                assert!(!ignored && error.class == ErrorClass::InvalidImage, "{configured} {call:?}: {error}")
            }
        }
    }
    assert!(exec.ran().is_empty(), "{:?}", exec.ran());
}
