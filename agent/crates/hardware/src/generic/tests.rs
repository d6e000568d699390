//! The steps on a machine whose disks are files.

use std::io::{Cursor, Read, Write};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ferric_disk::image::RetryPolicy;
use ferric_disk::image::checksum::Algorithm;
use ferric_disk::image::source::{Fetch, FetchRequest, ImageSource, SourceError};
use ferric_sys::testing::exec::ScriptedExec;
use ferric_sys::testing::machine::MachineTree;
use ferric_types::error::{CommandError, ErrorClass};
use ferric_types::step::StepKind;
use ferric_types::{Node, Progress};
use serde_json::{Value, json};

use super::deploy::{self, BootLoaderRequest};
use crate::context::{Services, StepContext};
use crate::machine::Machine;
use crate::registry::Registry;
use crate::settings::Settings;

const MIB: u64 = 1 << 20;

/// Serves one file under every URL.
#[derive(Debug, Default)]
struct OneFile {
    bytes: Vec<u8>,
    asked: Mutex<Vec<String>>,
}

impl Fetch for OneFile {
    fn open(&self, request: &FetchRequest) -> Result<Box<dyn ImageSource>, SourceError> {
        self.asked.lock().unwrap().push(request.url.clone());
        Ok(Box::new(Bytes(self.bytes.clone())))
    }
    fn get(&self, request: &FetchRequest, _: u64) -> Result<Vec<u8>, SourceError> {
        self.asked.lock().unwrap().push(request.url.clone());
        Ok(self.bytes.clone())
    }
}

struct Bytes(Vec<u8>);

impl ImageSource for Bytes {
    fn size_bytes(&self) -> Option<u64> {
        u64::try_from(self.0.len()).ok()
    }
    fn has_ranges(&self) -> bool {
        false
    }
    fn stream(&mut self, _: u64) -> Result<Box<dyn Read + Send + '_>, SourceError> {
        Ok(Box::new(Cursor::new(&self.0)))
    }
    fn read_exact_at(&mut self, _: u64, _: &mut [u8]) -> Result<(), SourceError> {
        unreachable!("a raw image has no metadata")
    }
}

#[derive(Debug, Default)]
struct TestServices {
    fetch: OneFile,
    refreshed: Option<Node>,
    uuids: Mutex<Value>,
    written: Mutex<Vec<String>>,
}

impl Services for TestServices {
    fn fetch(&self) -> &dyn Fetch {
        &self.fetch
    }
    fn refresh_node(&self) -> Option<Node> {
        self.refreshed.clone()
    }
    fn remember_partition_uuids(&self, uuids: Value) {
        *self.uuids.lock().unwrap() = uuids;
    }
    fn partition_uuids(&self) -> Value {
        self.uuids.lock().unwrap().clone()
    }
    fn image_written(&self, id: &str) {
        self.written.lock().unwrap().push(id.to_owned());
    }
}

struct Lab {
    tree: MachineTree,
    machine: Machine,
    registry: Registry,
    settings: Settings,
    services: TestServices,
    progress: Progress,
    disks: usize,
}

fn lab() -> Lab {
    let tree = MachineTree::new().unwrap();
    let machine = Machine::at(tree.root(), Arc::new(ScriptedExec::new()));
    let registry = Registry::new(crate::MANAGERS, &machine).unwrap();
    let settings = Settings {
        disk_wait_attempts: 1,
        image_retry: RetryPolicy { tries: 1, interval: Duration::ZERO },
        ..Settings::default()
    };
    Lab { tree, machine, registry, settings, services: TestServices::default(), progress: Progress::new(), disks: 0 }
}

impl Lab {
    /// A disk full of old data, with the size that sysfs claims and one partition if asked for.
    fn disk(&mut self, name: &str, bytes: u64, partition: bool) -> &mut Self {
        let number = self.disks;
        self.disks += 1;
        let size = (bytes / 512).to_string();
        let device = format!("pci0000:00/0000:00:{:02x}.0/virtio{number}", number + 3);
        let serial = format!("serial-{name}");
        self.tree
            .disk(name, &device, &format!("254:{}", number * 16), &[("size", &size), ("serial", &serial)])
            .unwrap();
        self.medium(name, bytes);
        if partition {
            let dir = format!("sys/devices/{device}/block/{name}/{name}1");
            for (file, value) in [("partition", "1"), ("size", "4096"), ("dev", &*format!("254:{}", number * 16 + 1))] {
                self.tree.file(&format!("{dir}/{file}"), value).unwrap();
            }
            self.tree.link(&format!("sys/class/block/{name}1"), &dir).unwrap();
            self.medium(&format!("{name}1"), 2 * MIB);
        }
        self
    }

    fn medium(&self, name: &str, bytes: u64) {
        self.tree.file(&format!("dev/{name}"), "").unwrap();
        let mut file = std::fs::File::create(self.tree.path(format!("dev/{name}"))).unwrap();
        file.write_all(&vec![0xa5; usize::try_from(bytes).unwrap().min(16 << 20)]).unwrap();
        file.set_len(bytes).unwrap();
    }

    fn write(&self, name: &str, offset: u64, bytes: &[u8]) {
        let file = std::fs::File::options().write(true).open(self.tree.path(format!("dev/{name}"))).unwrap();
        file.write_all_at(bytes, offset).unwrap();
    }

    fn byte(&self, name: &str, offset: u64) -> u8 {
        let mut byte = [0];
        std::fs::File::open(self.tree.path(format!("dev/{name}"))).unwrap().read_exact_at(&mut byte, offset).unwrap();
        byte[0]
    }

    fn with<T>(&self, node: &Value, run: impl FnOnce(&StepContext<'_>) -> T) -> T {
        let node: Node = serde_json::from_value(node.clone()).unwrap();
        run(&StepContext {
            machine: &self.machine,
            registry: &self.registry,
            node: &node,
            ports: &[],
            progress: &self.progress,
            settings: &self.settings,
            services: &self.services,
        })
    }

    fn clean(&self, step: &str, node: &Value) -> Result<Value, CommandError> {
        self.with(node, |context| self.registry.execute(StepKind::Clean, step, context, &serde_json::Map::new()))
    }
}

/// md superblock magic of version 1.2, 4 KiB from the start.
const MD_MAGIC: [u8; 4] = 0xa92b_4efc_u32.to_le_bytes();

#[test]
fn erase_devices_erases_disks_and_tells_what_became_of_each() {
    let mut lab = lab();
    lab.disk("vda", 8 * MIB, false).disk("vdb", 8 * MIB, false).disk("vdc", 8 * MIB, true).disk("vdd", 8 * MIB, false);
    lab.tree.link("dev/disk/by-label/ir-vfd-dev", "dev/vdb").unwrap();
    lab.write("vdc1", 4096, &MD_MAGIC);
    lab.tree.file("sys/block/vdd/ro", "1").unwrap();
    let node = json!({"driver_internal_info": {
        "agent_erase_skip_read_only": true, "disk_erasure_concurrency": 4, "agent_erase_devices_iterations": "0",
    }});
    let result = lab.clean("erase_devices", &node).unwrap();
    assert_eq!(result["/dev/vda"]["zeroed"], true, "{result}");
    assert_eq!(result["/dev/vda"]["method"], "overwrite");
    assert_eq!(result["/dev/vdb"]["skipped"], "virtual media of the BMC");
    assert!(result["/dev/vdc"]["skipped"].as_str().unwrap().contains("software RAID"), "{result}");
    assert_eq!(result["/dev/vdd"]["skipped"], "read-only");
    for (disk, want) in [("vda", 0), ("vdb", 0xa5), ("vdc", 0xa5), ("vdd", 0xa5)] {
        assert_eq!(lab.byte(disk, 5 * MIB), want, "{disk}");
    }
    let report = lab.progress.report().unwrap();
    assert_eq!(
        (report.phase.as_str(), report.total_bytes),
        ("erase /dev/vda, /dev/vdb, /dev/vdc, /dev/vdd", Some(32 * MIB))
    );
    assert_eq!(report.done_bytes, 32 * MIB);
}

#[test]
fn a_read_only_disk_fails_the_erasure_by_name_and_the_others_are_erased() {
    let mut lab = lab();
    lab.disk("vda", 4 * MIB, false).disk("vdb", 4 * MIB, false);
    lab.tree.file("sys/block/vda/ro", "1").unwrap();
    let error = lab.clean("erase_devices", &json!({})).unwrap_err();
    assert_eq!(error.class, ErrorClass::BlockDeviceErase);
    assert!(error.details.contains("/dev/vda: it is read-only") && error.details.contains("Done: /dev/vdb"), "{error}");
    assert_eq!((lab.byte("vda", 0), lab.byte("vdb", 2 * MIB)), (0xa5, 0));
}

#[test]
fn a_machine_without_disks_or_with_all_of_them_skipped_has_nothing_to_erase() {
    let mut lab = lab();
    assert_eq!(lab.clean("erase_devices", &json!({})).unwrap(), json!({}));
    lab.disk("vda", 4 * MIB, false);
    let node = json!({"properties": {"skip_block_devices": [{"name": "/dev/vda"}]}});
    assert_eq!(lab.clean("erase_devices", &node).unwrap(), json!({}));
    assert_eq!(lab.clean("erase_devices_metadata", &node).unwrap(), Value::Null);
    assert_eq!(lab.byte("vda", 0), 0xa5);
}

#[test]
fn erasing_stops_before_the_first_disk_when_any_is_protected() {
    let mut lab = lab();
    lab.disk("vda", 4 * MIB, false).disk("vdb", 4 * MIB, false);
    lab.write("vdb", 0x1_0000, &[0x01, 0x16, 0x19, 0x70]);
    for step in ["erase_devices", "erase_devices_metadata"] {
        let error = lab.clean(step, &json!({})).unwrap_err();
        assert_eq!(error.class, ErrorClass::ProtectedDevice, "{step}");
        assert_eq!(lab.byte("vda", 0), 0xa5, "{step}");
    }
    let off = json!({"driver_internal_info": {"wipe_special_filesystems": false}});
    assert_eq!(lab.clean("erase_devices_metadata", &off).unwrap(), Value::Null);
    assert_eq!(lab.byte("vdb", 0x1_0000), 0);
}

#[test]
fn metadata_is_wiped_from_partitions_and_disks_at_both_ends_only() {
    let mut lab = lab();
    lab.disk("vda", 16 * MIB, true).disk("vdb", 16 * MIB, false).disk("vdc", 16 * MIB, true);
    lab.tree.file("sys/block/vdb/ro", "1").unwrap();
    lab.write("vdc1", 4096, &MD_MAGIC);
    assert_eq!(lab.clean("erase_devices_metadata", &json!({})).unwrap(), Value::Null);
    for (name, offset, want) in [
        ("vda", 0, 0),
        ("vda", 16 * MIB - 1, 0),
        ("vda", 8 * MIB, 0xa5),
        ("vda1", 1024, 0),
        ("vdb", 0, 0xa5),
        ("vdc", 0, 0xa5),
        ("vdc1", 0, 0xa5),
    ] {
        assert_eq!(lab.byte(name, offset), want, "{name} at {offset}");
    }
}

#[test]
fn a_disk_that_cannot_be_opened_fails_the_step_and_not_the_others() {
    let mut lab = lab();
    lab.disk("vda", 8 * MIB, true).disk("vdb", 8 * MIB, false);
    std::fs::remove_file(lab.tree.path("dev/vda1")).unwrap();
    let error = lab.clean("erase_devices_metadata", &json!({})).unwrap_err();
    assert_eq!(error.class, ErrorClass::BlockDeviceErase);
    assert!(error.details.contains("vda1") && error.details.contains("Done: /dev/vdb"), "{error}");
    assert_eq!((lab.byte("vda", 0), lab.byte("vdb", 0)), (0, 0));
}

#[test]
fn erase_pstore_deletes_every_entry_and_needs_none() {
    let lab = lab();
    assert_eq!(lab.clean("erase_pstore", &json!({})).unwrap(), Value::Null);
    lab.tree.file("proc/mounts", "pstore /sys/fs/pstore pstore rw 0 0").unwrap();
    for name in ["dmesg-efi-1", "console-ramoops-0"] {
        lab.tree.file(&format!("sys/fs/pstore/{name}"), "secret").unwrap();
    }
    assert_eq!(lab.clean("erase_pstore", &json!({})).unwrap(), Value::Null);
    assert_eq!(std::fs::read_dir(lab.tree.path("sys/fs/pstore")).unwrap().count(), 0);
    std::fs::create_dir(lab.tree.path("sys/fs/pstore/stuck")).unwrap();
    let error = lab.clean("erase_pstore", &json!({})).unwrap_err();
    assert!(error.class == ErrorClass::Cleaning && error.details.contains("stuck"), "{error}");
}

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

#[test]
fn the_config_drive_is_put_beside_the_image() {
    let (lab, node) = deploy_lab();
    let info = image_info(&lab.services.fetch.bytes);
    // base64 of gzip of "config drive content".
    let drive = json!("H4sIAAAAAAACA0vOz0vLTFdIKcosS1VIzs8rSc0rAQCkGuMnFAAAAA==");
    let written = lab.with(&node, |context| deploy::prepare_image(context, &info, Some(&drive)));
    written.unwrap();
    // A second primary partition now begins in the last 64 MiB, within which the content stands.
    let mut sector = [0_u8; 512];
    let file = std::fs::File::open(lab.tree.path("dev/vdb")).unwrap();
    file.read_exact_at(&mut sector, 0).unwrap();
    let start = u64::from(u32::from_le_bytes(sector[446 + 16 + 8..446 + 16 + 12].try_into().unwrap())) * 512;
    let mut content = [0_u8; 20];
    file.read_exact_at(&mut content, start).unwrap();
    assert_eq!(&content, b"config drive content");
    assert!(start >= (6 << 30) - 70 * MIB, "{start}");
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
        (with("image_type", json!("partition")), json!(null), &node, ErrorClass::Deployment, "image of one partition"),
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
    let drive = json!("H4sIAAAAAAACA0vOz0vLTFdIKcosS1VIzs8rSc0rAQCkGuMnFAAAAA==");
    let error = lab.with(&node, |context| deploy::prepare_image(context, &info, Some(&drive))).unwrap_err();
    assert!(error.details.contains("already has 4 primary partitions"), "{error}");
    assert_eq!((lab.byte("vdb", 0x1fe), lab.byte("vdb", 0)), (0, 0), "boot signature left");
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
fn a_bios_boot_loader_is_never_installed() {
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
        assert_eq!(install(&lab, &request(whole_disk, None)), Ok(()), "{whole_disk:?}");
    }
    let error = install(&lab, &request(Some("some-uuid"), None)).unwrap_err();
    assert_eq!(error.class, ErrorClass::InvalidImage);
    assert_eq!(
        error.details,
        "Install of legacy BIOS bootloaders disabled by CONF.enable_bios_bootloader_install as part of CVE-2026-43003 \
         mitigation."
    );
    assert_eq!(install(&lab, &request(Some("some-uuid"), Some(true))), Ok(()));
    lab.settings.ignore_bootloader_failure = true;
    assert_eq!(install(&lab, &request(Some("some-uuid"), None)), Ok(()));
    assert!(install(&lab, &request(Some("some-uuid"), Some(false))).is_err());
    lab.settings.enable_bios_bootloader_install = true;
    let error = install(&lab, &request(Some("some-uuid"), Some(false))).unwrap_err();
    assert!(error.details.contains("has no effect"), "{error}");
}
