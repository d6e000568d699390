//! Which disk an image goes to: hints of every kind, the choice without hints, and disks whose names or presence change.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ferric_qemu::conductor::{AgentClient, ProvisionState};
use ferric_qemu::os_image::{DiskLabel, tiny_raw};
use ferric_qemu::{Content, Disk, DiskBus, DiskFile, VmBuilder, artifacts};
use ferric_tests::{Bench, Plan, note};
use serde_json::{Value, json};

use crate::kit::{self, MIB};

const GIB: u64 = 1 << 30;
const IMAGE_BYTES: u64 = 3 * MIB;
/// Serial, bus and size of the disks. Without hints it is the smallest of at least 4 GiB that is no removable medium, of
/// equal ones the first by name: `nvme0n1` before `vda`.
const DISKS: [(&str, DiskBus, u64); 6] = [
    ("SATA-3G", DiskBus::Ahci, 3 * GIB),
    ("VIRTIO-5G", DiskBus::VirtioBlk, 5 * GIB),
    ("NVME-5G", DiskBus::Nvme, 5 * GIB),
    ("STICK-4G", DiskBus::Usb, 4 * GIB + MIB),
    ("TWIN-A", DiskBus::VirtioScsi, 6 * GIB),
    ("TWIN-B", DiskBus::VirtioScsi, 6 * GIB),
];
const CD: &str = "CD";
const LATE: &str = "LATE";
const WWN_A: u64 = 0x5000_c500_15ea_71ac;
const WWN_B: u64 = 0x5000_c500_15ea_71ad;

struct Rig<'a> {
    dir: &'a Path,
    image: std::path::PathBuf,
    bench: Bench,
    agent: AgentClient,
}

fn disk_file(dir: &Path, serial: &str) -> DiskFile {
    DiskFile::existing(dir.join(serial), ferric_qemu::DiskFormat::Raw)
}

/// The machine. The two SCSI disks have a host adapter each; `swapped` changes the adapters' places, and with them the
/// disks' names.
fn attached(vm: VmBuilder, dir: &Path, swapped: bool) -> VmBuilder {
    let mut vm = vm;
    for (serial, bus, _) in DISKS.into_iter().filter(|(_, bus, _)| *bus != DiskBus::VirtioScsi) {
        let disk = Disk::new(bus, dir.join(serial)).serial(serial).model("FERRIC SATA");
        vm = vm.disk(if bus == DiskBus::Usb { disk.removable() } else { disk });
    }
    vm = vm.disk(Disk::new(DiskBus::Cdrom, dir.join(CD)));
    let places = if swapped { ["0x11", "0x10"] } else { ["0x10", "0x11"] };
    for ((serial, wwn), place) in [("TWIN-A", WWN_A), ("TWIN-B", WWN_B)].into_iter().zip(places) {
        let file =
            json!({"driver": "file", "filename": dir.join(serial), "discard": "unmap", "cache": {"no-flush": true}});
        let node = json!({"driver": "raw", "node-name": serial, "file": file, "discard": "unmap", "cache": {"no-flush": true}});
        vm = vm.arg(&["-blockdev", &node.to_string()]);
        vm = vm.arg(&["-device", &format!("virtio-scsi-pci,id=hba-{serial},addr={place}")]);
        let disk = format!("scsi-hd,bus=hba-{serial}.0,drive={serial},serial={serial},wwn={wwn:#x},product=TWIN");
        vm = vm.arg(&["-device", &disk]);
    }
    vm.hotplug_slots(1)
}

impl<'a> Rig<'a> {
    fn boot(dir: &'a Path) -> Result<Self> {
        for (serial, _, size) in DISKS {
            DiskFile::create_raw(dir.join(serial), size)?;
        }
        DiskFile::create_raw(dir.join(CD), 5 * GIB)?;
        DiskFile::create_raw(dir.join(LATE), GIB)?;
        let image = dir.join("tiny.raw");
        tiny_raw(&image, DiskLabel::Gpt, IMAGE_BYTES)?;
        let mut plan = Plan::new("hints");
        plan.state = ProvisionState::DeployWait;
        // The node as it is at the first lookup; what it says later counts.
        plan.node = |node| drop(node.properties.insert("root_device".into(), json!({"serial": "SATA-3G"})));
        plan.cmdline =
            kit::SHORT.replace("ipa-disk-wait-attempts=0", "ipa-disk-wait-attempts=31 ipa-disk-wait-delay=4");
        let bench = plan.boot(|vm| Ok(attached(vm, dir, false)))?;
        let agent = bench.agent()?;
        Ok(Self { dir, image, bench, agent })
    }

    /// Writes the image by these hints, makes sure that it is on the disk that is named in the answer and on no other, and
    /// gives that disk's serial number. Then the disk is as before.
    fn written_to(&self, hints: &Value) -> Result<String> {
        let info = kit::image_info(&self.bench, "/tiny.raw", "raw", &Content::File(self.image.clone()))?;
        let record = kit::write(&self.bench, &self.agent, &info, None, hints)?;
        let device = kit::device(&record).with_context(|| hints.to_string())?;
        let names = kit::names(&self.agent)?;
        let (serial, _) = names.iter().find(|(_, name)| **name == device).context("written to an unknown device")?;
        for name in names.keys() {
            let file = disk_file(self.dir, name);
            if name == serial {
                kit::check_content(&file, &self.image, 512).with_context(|| hints.to_string())?;
                kit::sound_gpt(&file, 512).with_context(|| hints.to_string())?;
                file.write(0, &vec![0; usize::try_from(IMAGE_BYTES)?])?;
                file.write(file.len_bytes()? - MIB, &vec![0; usize::try_from(MIB)?])?;
            } else {
                file.check_zero(0, file.len_bytes()?)
                    .with_context(|| format!("{hints}: not the disk that was meant"))?;
            }
        }
        Ok(serial.clone())
    }

    /// Hints of the node itself, as an operator sets them.
    fn set_properties(&self, hints: Option<Value>) -> Result<()> {
        self.bench.conductor.update_node(&self.bench.uuid, |node| match hints {
            Some(hints) => drop(node.properties.insert("root_device".to_owned(), hints)),
            None => drop(node.properties.remove("root_device")),
        })
    }
}

#[test]
fn images_go_where_hints_say_whatever_disks_are_called() {
    let dir = artifacts::temp_dir("hints").unwrap();
    let mut rig = Rig::boot(dir.path()).unwrap();
    every_kind_of_hint(&rig).unwrap();
    choice_without_hints(&rig).unwrap();
    late_changes(&rig).unwrap();
    let before = kit::names(&rig.agent).unwrap();
    swapped_adapters_and_a_late_disk(&mut rig, &before).unwrap();
}

fn every_kind_of_hint(rig: &Rig<'_>) -> Result<()> {
    let listed = kit::disks(&rig.agent)?;
    let of = |serial: &str, key: &str| {
        let disk = listed.iter().find(|disk| disk["serial"] == serial);
        disk.and_then(|disk| disk[key].as_str()).with_context(|| format!("{serial} has no {key}: {listed:?}"))
    };
    ensure!(of("NVME-5G", "by_path")?.starts_with("/dev/disk/by-path/pci-"), "{listed:?}");
    ensure!(of("TWIN-B", "hctl")?.ends_with(":0:0:0"), "{listed:?}");
    let (by_path, hctl, name) = (of("NVME-5G", "by_path")?, of("TWIN-B", "hctl")?, of("VIRTIO-5G", "name")?);
    let first_large = listed.iter().find(|disk| disk["size"].as_u64() >= Some(5 * GIB));
    let first_large = first_large.and_then(|disk| disk["serial"].as_str()).context("no large disk")?;
    for (hints, wanted) in [
        (json!({"serial": "twin-a"}), "TWIN-A"),
        (json!({"wwn": format!("s== {WWN_B:#x}")}), "TWIN-B"),
        (json!({"size": 3}), "SATA-3G"),
        (json!({"size": ">= 6", "serial": "<in> -B"}), "TWIN-B"),
        (json!({"size": "< 4"}), "SATA-3G"),
        // Several match: the first in the order in which the agent lists them.
        (json!({"size": ">= 5"}), first_large),
        (json!({"name": name}), "VIRTIO-5G"),
        (json!({"name": by_path}), "NVME-5G"),
        (json!({"by_path": by_path}), "NVME-5G"),
        (json!({"model": "<in> ferric"}), "SATA-3G"),
        (json!({"rotational": false}), "NVME-5G"),
        (json!({"hctl": hctl}), "TWIN-B"),
        (json!({"serial": "<or> NOTHING <or> VIRTIO-5G"}), "VIRTIO-5G"),
        // What is removable is taken when it is meant.
        (json!({"serial": "STICK-4G"}), "STICK-4G"),
    ] {
        let serial = rig.written_to(&hints)?;
        ensure!(serial == wanted, "{hints} chose {serial}, not {wanted}");
    }
    let lines = rig.bench.vm().console().lines();
    let told = lines.iter().any(|line| line.contains("several disks fit the hints: /dev/") && line.contains(">= 5"));
    ensure!(told, "nobody was told that several disks fit");
    Ok(())
}

fn choice_without_hints(rig: &Rig<'_>) -> Result<()> {
    rig.set_properties(None)?;
    let serial = rig.written_to(&Value::Null)?;
    ensure!(serial == "NVME-5G", "without hints {serial} was chosen");
    Ok(())
}

/// The node's hints are those it has when the image is to be written, not those of the agent's first lookup.
fn late_changes(rig: &Rig<'_>) -> Result<()> {
    rig.set_properties(Some(json!({"serial": "TWIN-B"})))?;
    ensure!(rig.written_to(&Value::Null)? == "TWIN-B", "the hints of the first lookup were used");
    // The instance's hints come before the node's.
    ensure!(rig.written_to(&json!({"serial": "TWIN-A"}))? == "TWIN-A", "the node's hints won");
    Ok(())
}

/// The host adapters are found in another order, so that disks swap names; and a disk that is hinted at comes up late.
fn swapped_adapters_and_a_late_disk(rig: &mut Rig<'_>, before: &BTreeMap<String, String>) -> Result<()> {
    rig.set_properties(None)?;
    let dir = rig.dir;
    rig.bench.power_on(|vm| Ok(attached(vm.append_logs(), dir, true)))?;
    let sequence = rig.bench.conductor.last_heartbeat_sequence();
    rig.bench.heartbeat_after(sequence, 20)?;
    rig.agent = rig.bench.conductor.agent(&rig.bench.uuid)?;

    let info = kit::image_info(&rig.bench, "/late.raw", "raw", &Content::File(rig.image.clone()))?;
    let started = kit::start_write(&rig.bench, &rig.agent, &info, None, &json!({"serial": LATE}))?;
    rig.bench.says("waiting for the root device", 10)?;
    std::thread::sleep(Duration::from_secs(5));
    ensure!(kit::current(&rig.agent, &started)?.is_running(), "the disk was not waited for");
    let late = Disk::new(DiskBus::Nvme, dir.join(LATE)).serial(LATE);
    rig.bench.vm().plug_disk(&late, DISKS.len() + 1)?;
    let record = kit::ended(&rig.bench, &rig.agent, &started)?;
    let names = kit::names(&rig.agent)?;
    ensure!(kit::device(&record)? == names[LATE], "{}", record.command_result);
    kit::check_content(&disk_file(dir, LATE), &rig.image, 512)?;
    disk_file(dir, LATE).write(0, &vec![0; usize::try_from(IMAGE_BYTES)?])?;
    let end = disk_file(dir, LATE).len_bytes()? - MIB;
    disk_file(dir, LATE).write(end, &vec![0; usize::try_from(MIB)?])?;

    if (names["TWIN-A"] < names["TWIN-B"]) == (before["TWIN-A"] < before["TWIN-B"]) {
        // The kernel looks at adapters in the order of their places, but at disks as they answer.
        note("the disks of swapped adapters kept the order of their names this time");
    }
    for serial in ["TWIN-A", "TWIN-B"] {
        let chosen = rig.written_to(&json!({"serial": serial}))?;
        ensure!(chosen == serial, "{serial}: {chosen} was written");
    }
    Ok(())
}
