//! Writing an image and what belongs to it.

use std::io::Cursor;
use std::os::unix::fs::FileExt;

use ferric_disk::image::checksum::Algorithm;
use ferric_types::error::ErrorClass;
use ferric_types::step::StepKind;
use serde_json::{Value, json};

use super::{Lab, MIB, lab};
use crate::context::Services;
use crate::generic::deploy::{self, BootLoaderRequest};

/// A raw image of a disk: an MBR with an identifier and one partition, then a pattern.
fn image() -> Vec<u8> {
    let mut bytes = vec![0x5a_u8; 4 << 20];
    bytes[..512].fill(0);
    bytes[440..444].copy_from_slice(&0x7c82_b1a4_u32.to_le_bytes());
    bytes[446 + 4] = 0x83;
    bytes[446 + 8..446 + 12].copy_from_slice(&2048_u32.to_le_bytes());
    bytes[446 + 12..446 + 16].copy_from_slice(&2048_u32.to_le_bytes());
    bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
    bytes
}

fn image_info(bytes: &[u8]) -> Value {
    let mut hasher = Algorithm::Sha256.hasher();
    hasher.update(bytes);
    json!({"id": "img", "urls": ["http://images/img"], "disk_format": "raw", "stream_raw_images": true,
        "os_hash_algo": "sha256", "os_hash_value": hasher.finish()})
}

const HINTED: &str = r#"{"uuid": "node-1", "properties": {"root_device": {"serial": "serial-vdb"}}}"#;

/// Two disks of 5 and 6 GiB, of which the second is hinted at and the first would be taken without hints.
fn deploy_lab() -> (Lab, Value) {
    let mut lab = lab();
    lab.disk("vda", 5 << 30, false).disk("vdb", 6 << 30, false);
    lab.services.fetch.bytes = image();
    (lab, serde_json::from_str(HINTED).unwrap())
}

#[test]
fn an_image_is_written_to_the_hinted_disk_and_its_identifier_remembered() {
    let (lab, node) = deploy_lab();
    let info = image_info(&lab.services.fetch.bytes);
    let args = json!({"image_info": info, "configdrive": null}).as_object().unwrap().clone();
    let result =
        lab.with(&node, |context| lab.registry.execute(StepKind::Deploy, "write_image", context, &args)).unwrap();
    let text = "prepare_image: image (img) written to device /dev/vdb root_uuid=0x7c82b1a4";
    assert_eq!(result, json!({"result": text}));
    assert_eq!(lab.services.partition_uuids(), json!({"root uuid": "0x7c82b1a4"}));
    assert_eq!(*lab.services.written.lock().unwrap(), ["img"]);
    assert_eq!((lab.byte("vdb", 0x1fe), lab.byte("vdb", 3 * MIB)), (0x55, 0x5a));
    assert_eq!(lab.byte("vda", 0), 0xa5);
}

/// base64 of gzip of "config drive content".
const DRIVE: &str = "H4sIAAAAAAACA0vOz0vLTFdIKcosS1VIzs8rSc0rAQCkGuMnFAAAAA==";

#[test]
fn the_config_drive_is_put_beside_the_image() {
    // As an argument; or in `image_info`, when the argument is nothing.
    for (argument, inside) in [
        (Some(json!(DRIVE)), Value::Null),
        (Some(json!(DRIVE)), json!("***")),
        (None, json!(DRIVE)),
        (Some(Value::Null), json!(DRIVE)),
        (Some(json!("")), json!(DRIVE)),
    ] {
        let (lab, node) = deploy_lab();
        let mut info = image_info(&lab.services.fetch.bytes);
        info["configdrive"] = inside;
        lab.with(&node, |context| deploy::prepare_image(context, &info, argument.as_ref())).unwrap();
        // A second primary partition now begins in the last 64 MiB, within which the content stands.
        let mut sector = [0_u8; 512];
        let file = std::fs::File::open(lab.tree.path("dev/vdb")).unwrap();
        file.read_exact_at(&mut sector, 0).unwrap();
        let start = u64::from(u32::from_le_bytes(sector[446 + 16 + 8..446 + 16 + 12].try_into().unwrap())) * 512;
        let mut content = [0_u8; 20];
        file.read_exact_at(&mut content, start).unwrap();
        assert_eq!(&content, b"config drive content", "{argument:?}");
        assert!(start >= (6 << 30) - 70 * MIB, "{start}");
    }
}

#[test]
fn what_can_be_refused_is_refused_before_the_disk_is_touched() {
    let (lab, node) = deploy_lab();
    let good = image_info(&lab.services.fetch.bytes);
    let with = |key: &str, value: Value| {
        let mut info = good.clone();
        info[key] = value;
        info
    };
    let absent = json!({"properties": {"root_device": {"serial": "absent"}}});
    let cases = [
        (
            with("image_type", json!("partition")),
            json!(null),
            &node,
            ErrorClass::InvalidCommandParams,
            "needs 'root_mb'",
        ),
        (with("id", json!(null)), json!(null), &node, ErrorClass::InvalidCommandParams, "missing 'id'"),
        (good.clone(), json!("***"), &node, ErrorClass::Deployment, "not base64 encoded"),
        (good.clone(), json!({}), &node, ErrorClass::InvalidCommandParams, "configdrive must be"),
        (good.clone(), json!(null), &absent, ErrorClass::DeviceNotFound, "No suitable device"),
        (with("disk_format", json!("qcow2")), json!(null), &node, ErrorClass::InvalidImage, "qcow2"),
    ];
    for (info, drive, node, class, text) in cases {
        let error = lab.with(node, |context| deploy::prepare_image(context, &info, Some(&drive))).unwrap_err();
        assert_eq!(error.class, class, "{error}");
        assert!(error.details.contains(text), "{error}");
        assert_eq!((lab.byte("vda", 0), lab.byte("vdb", 0)), (0xa5, 0xa5), "{error}");
    }
    assert!(lab.services.written.lock().unwrap().is_empty());
}

#[test]
fn a_wrong_checksum_leaves_no_partition_table() {
    let (lab, node) = deploy_lab();
    let mut info = image_info(b"other bytes");
    info["id"] = json!("bad");
    let error = lab.with(&node, |context| deploy::prepare_image(context, &info, None)).unwrap_err();
    assert_eq!(error.class, ErrorClass::ImageChecksum, "{error}");
    assert_eq!(lab.byte("vdb", 0x1fe), 0);
}

#[test]
fn a_failure_after_the_image_leaves_no_disk_that_boots() {
    let (mut lab, node) = deploy_lab();
    let bytes = &mut lab.services.fetch.bytes;
    // Four primary partitions: no place for the config drive.
    for entry in [462, 478, 494] {
        let copy: [u8; 16] = bytes[446..462].try_into().unwrap();
        bytes[entry..entry + 16].copy_from_slice(&copy);
    }
    let info = image_info(&lab.services.fetch.bytes);
    let drive = json!(DRIVE);
    let error = lab.with(&node, |context| deploy::prepare_image(context, &info, Some(&drive))).unwrap_err();
    assert!(error.details.contains("already has 4 primary partitions"), "{error}");
    assert_eq!((lab.byte("vdb", 0x1fe), lab.byte("vdb", 0)), (0, 0), "boot signature left");
}

#[test]
fn a_panic_after_the_image_leaves_no_disk_that_boots() {
    let (mut lab, node) = deploy_lab();
    lab.services.panics = true;
    let info = image_info(&lab.services.fetch.bytes);
    let deployed = || lab.with(&node, |context| deploy::prepare_image(context, &info, None));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(deployed)).is_err();
    assert!(panicked);
    assert_eq!((lab.byte("vdb", 0x1fe), lab.byte("vdb", 0), lab.byte("vdb", 3 * MIB)), (0, 0, 0x5a));
}

#[test]
fn a_partition_over_the_table_leaves_no_disk_that_boots() {
    let (mut lab, node) = deploy_lab();
    let mut disk = Cursor::new(image());
    let mut gpt = gptman::GPT::new_from(&mut disk, 512, [7; 16]).unwrap();
    gpt[1] = gptman::GPTPartitionEntry {
        partition_type_guid: [1; 16],
        unique_partition_guid: [2; 16],
        starting_lba: 1,
        ending_lba: 4095,
        attribute_bits: 0,
        partition_name: "".into(),
    };
    let entries: Vec<_> = gpt.iter().map(|(_, entry)| entry.clone()).collect();
    gpt.header.write_into(&mut disk, 512, &entries).unwrap();
    gptman::GPT::write_protective_mbr_into(&mut disk, 512).unwrap();
    lab.services.fetch.bytes = disk.into_inner();
    let info = image_info(&lab.services.fetch.bytes);
    let error = lab.with(&node, |context| deploy::prepare_image(context, &info, None)).unwrap_err();
    assert_eq!(error.class, ErrorClass::Deployment, "{error}");
    let want = "partition 1 covers sectors 1 to 4095, but sectors 0 to 1 hold the protective MBR and the header; the \
                usable sectors are 34 to";
    assert!(error.details.contains(want), "{error}");
    // Neither boot signature nor GPT is left, and the rest of the image is there.
    assert_eq!((lab.byte("vdb", 0x1fe), lab.byte("vdb", 512), lab.byte("vdb", 3 * MIB)), (0, 0, 0x5a));
}

#[test]
fn hints_that_are_no_object_touch_no_disk() {
    let (lab, _) = deploy_lab();
    let info = image_info(&lab.services.fetch.bytes);
    for node in [
        json!({"properties": {"root_device": "serial=ZZZ"}}),
        json!({"properties": {"root_device": ["serial", "ZZZ"]}}),
        json!({"properties": {"root_device": true}}),
        json!({"instance_info": {"root_device": 5}, "properties": {"root_device": {"serial": "serial-vdb"}}}),
        json!({"properties": "root_device"}),
    ] {
        let error = lab.with(&node, |context| deploy::prepare_image(context, &info, None)).unwrap_err();
        assert_eq!(error.class, ErrorClass::DeviceNotFound, "{node}: {error}");
        assert!(error.details.contains("where an object was expected"), "{error}");
        assert_eq!((lab.byte("vda", 0), lab.byte("vdb", 0)), (0xa5, 0xa5), "{node}");
    }
}

#[test]
fn hints_set_after_the_command_was_sent_are_looked_up() {
    let (mut lab, node) = deploy_lab();
    lab.services.refreshed = Some(serde_json::from_value(node).unwrap());
    let info = image_info(&lab.services.fetch.bytes);
    let written = lab.with(&json!({}), |context| deploy::prepare_image(context, &info, None)).unwrap();
    assert!(written.contains("/dev/vdb"), "{written}");
}

#[test]
fn a_bios_boot_loader_is_not_installed_unasked() {
    let (mut lab, node) = deploy_lab();
    let request = |root_uuid: Option<&str>, ignore_failure| BootLoaderRequest {
        root_uuid: root_uuid.map(str::to_owned),
        target_boot_mode: "bios".to_owned(),
        ignore_failure,
        ..BootLoaderRequest::default()
    };
    let install = |lab: &Lab, request: &BootLoaderRequest| {
        lab.with(&node, |context| deploy::install_bootloader(context, request))
    };
    for whole_disk in [None, Some("0x00000000")] {
        assert_eq!(install(&lab, &request(whole_disk, None)), Ok(None), "{whole_disk:?}");
    }
    let error = install(&lab, &request(Some("some-uuid"), None)).unwrap_err();
    assert_eq!(error.class, ErrorClass::InvalidImage);
    assert_eq!(
        error.details,
        "Install of legacy BIOS bootloaders disabled by CONF.enable_bios_bootloader_install as part of CVE-2026-43003 \
         mitigation."
    );
    let ignored = install(&lab, &request(Some("some-uuid"), Some(true))).unwrap().unwrap();
    assert!(ignored.starts_with("the boot loader was not installed, which was to be ignored: Install of"), "{ignored}");
    lab.settings.ignore_bootloader_failure = true;
    assert_eq!(install(&lab, &request(Some("some-uuid"), None)).unwrap().unwrap(), ignored);
    assert!(install(&lab, &request(Some("some-uuid"), Some(false))).is_err());
    // A PReP partition is none of ours either way.
    for enabled in [false, true] {
        lab.settings.enable_bios_bootloader_install = enabled;
        let prep = BootLoaderRequest { prep_boot_part_uuid: Some("p".to_owned()), ..request(Some("u"), Some(false)) };
        let error = install(&lab, &prep).unwrap_err();
        assert_eq!(error.class, ErrorClass::InvalidImage);
        assert!(error.details.contains("no boot loader into a PReP partition"), "{error}");
    }
}

#[test]
fn where_it_is_allowed_grub_is_looked_for_in_the_image() {
    let (mut lab, node) = deploy_lab();
    lab.settings.enable_bios_bootloader_install = true;
    let info = image_info(&lab.services.fetch.bytes);
    lab.with(&node, |context| deploy::prepare_image(context, &info, None)).unwrap();
    let request = |uuid: &str| BootLoaderRequest { root_uuid: Some(uuid.to_owned()), ..BootLoaderRequest::default() };
    let install = |uuid| lab.with(&node, |context| deploy::install_bootloader(context, &request(uuid))).unwrap_err();
    let error = install("some-uuid");
    assert_eq!(error.class, ErrorClass::DeviceNotFound);
    assert!(error.details.starts_with("No partition with UUID some-uuid found on device"), "{error}");
    // The partition by its own identifier: no file system is on it.
    let error = install("7c82b1a4-01");
    assert_eq!(error.class, ErrorClass::InvalidImage);
    assert!(error.details.contains("holds no file system that is known"), "{error}");
}
