//! Disks of kinds that are not everywhere: SAS and RAID adapters, several paths to one disk, SD cards, floppies, disks that
//! come late or go; and a machine with sixty of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ferric_qemu::conductor::{AgentClient, CommandRecord, ProvisionState, Wait};
use ferric_qemu::os_image::{DiskLabel, tiny_raw};
use ferric_qemu::{Content, Disk, DiskBus, DiskFile, DiskFormat, Throttle, VmBuilder, artifacts};
use ferric_tests::{Bench, Plan, drivers, note};
use serde_json::{Value, json};

use crate::kit::{self, MIB};

const GIB: u64 = 1 << 30;
const SMALL: u64 = 16 * MIB;
const IMAGE_BYTES: u64 = 3 * MIB;

/// Disks with a controller of their kind, by serial number; an SD card and a floppy have none that could be set.
const DISKS: [(&str, DiskBus, u64); 7] = [
    ("SAS-20G", DiskBus::Sas, 20 * GIB),
    ("SAS-SMALL", DiskBus::Sas, SMALL),
    ("RAID-0", DiskBus::MegaRaid, SMALL),
    ("STICK", DiskBus::Usb, SMALL),
    ("SCSI", DiskBus::VirtioScsi, SMALL),
    ("card", DiskBus::SdCard, 8 * GIB),
    ("floppy", DiskBus::Floppy, 1_474_560),
];
/// One disk behind two adapters, of which the first gives errors only.
const TWO_PATHS: &str = "TWO-PATHS";
/// A namespace that two NVMe controllers share.
const SHARED: &str = "SHARED";
/// What tells nothing of itself but by commands that the kernel does not send on its own.
const OLD: &str = "OLD-SCSI-2";
/// All but the floppy.
const DISK_COUNT: usize = DISKS.len() - 1 + 3;
/// Pulled while it is erased.
const VANISHES: &str = "VANISHES";
const SAS_WWN: u64 = 0x5000_c500_15ea_7110;

fn file(dir: &Path, serial: &str) -> DiskFile {
    DiskFile::existing(dir.join(serial), DiskFormat::Raw)
}

/// A block node over a file that another node is over, too; with `dead`, every request fails.
fn shared_node(path: &Path, name: &str, dead: bool) -> Value {
    let mut node = json!({"driver": "file", "filename": path, "cache": {"no-flush": true}, "locking": "off"});
    if dead {
        let rule = |io: &str| json!({"event": "none", "iotype": io, "errno": 5, "once": false, "immediately": false});
        node =
            json!({"driver": "blkdebug", "image": node, "inject-error": [rule("read"), rule("write"), rule("flush")]});
    }
    json!({"driver": "raw", "node-name": name, "file": node, "cache": {"no-flush": true}})
}

fn attached(vm: VmBuilder, dir: &Path) -> VmBuilder {
    let mut vm = vm.memory_mib(160).hotplug_slots(1);
    for (serial, bus, _) in DISKS {
        let disk = Disk::new(bus, dir.join(serial)).serial(serial);
        vm = vm.disk(match serial {
            "STICK" => disk.removable(),
            // Without a name of its own a disk is not seen by the adapter's driver.
            "SAS-20G" => disk.wwn(SAS_WWN),
            "SAS-SMALL" => disk.wwn(SAS_WWN + 1),
            _ => disk,
        });
    }
    let two_paths = dir.join(TWO_PATHS);
    for (number, dead) in [(0x10, true), (0x11, false)] {
        let name = format!("path{number:x}");
        vm = vm
            .arg(&["-blockdev", &shared_node(&two_paths, &name, dead).to_string()])
            .arg(&["-device", &format!("virtio-scsi-pci,id=hba-{name},addr={number:#x}")])
            .arg(&[
                "-device",
                &format!("scsi-hd,bus=hba-{name}.0,drive={name},serial={TWO_PATHS},wwn=0x5000c50015ea7102,share-rw=on"),
            ]);
    }
    let old = shared_node(&dir.join(OLD), "old", false).to_string();
    let shared = shared_node(&dir.join(SHARED), "shared", false).to_string();
    vm.arg(&["-blockdev", &shared, "-device", "nvme-subsys,id=subsys0,nqn=ferric"])
        .arg(&["-device", &format!("nvme,id=nvme-a,serial={SHARED},subsys=subsys0,addr=0x12")])
        .arg(&["-device", &format!("nvme,id=nvme-b,serial={SHARED},subsys=subsys0,addr=0x13")])
        .arg(&["-device", "nvme-ns,bus=nvme-a,drive=shared,nsid=1,shared=on"])
        .arg(&["-blockdev", &old])
        .arg(&[
            "-device",
            &format!("scsi-hd,bus=vscsi0.0,drive=old,serial={OLD},wwn=0x5000c50015ea7103,scsi_version=2"),
        ])
        // A CD drive without a CD.
        .arg(&["-device", "ide-cd,bus=ide.5"])
}

struct Rig<'a> {
    dir: &'a Path,
    image: std::path::PathBuf,
    bench: Bench,
    agent: AgentClient,
}

impl<'a> Rig<'a> {
    fn boot(dir: &'a Path) -> Result<Self> {
        for (serial, _, size) in DISKS {
            DiskFile::create_raw(dir.join(serial), size)?;
        }
        for serial in [TWO_PATHS, SHARED, OLD] {
            DiskFile::create_raw(dir.join(serial), SMALL)?;
        }
        let image = dir.join("tiny.raw");
        tiny_raw(&image, DiskLabel::Gpt, IMAGE_BYTES)?;
        let mut plan = Plan::new("disks");
        plan.state = ProvisionState::DeployWait;
        plan.cmdline = kit::SHORT.to_owned();
        plan.files = |_| drivers(&["sdhci_pci", "mmc_block", "megaraid_sas", "floppy"]).unwrap();
        let bench = plan.boot(|vm| Ok(attached(vm, dir)))?;
        let agent = bench.agent()?;
        Ok(Self { dir, image, bench, agent })
    }

    /// Writes the image by these hints and checks that it is on the disk whose file is `serial`.
    fn written(&self, hints: &Value, serial: &str) -> Result<String> {
        let info = kit::image_info(&self.bench, "/tiny.raw", "raw", &Content::File(self.image.clone()))?;
        let record = kit::write(&self.bench, &self.agent, &info, None, hints)?;
        let device = kit::device(&record).with_context(|| hints.to_string())?;
        let file = file(self.dir, serial);
        kit::check_content(&file, &self.image, 512).with_context(|| format!("{hints} chose {device}, not {serial}"))?;
        kit::sound_gpt(&file, 512).with_context(|| hints.to_string())?;
        Ok(device)
    }

    fn step(&self, step: &str) -> Result<CommandRecord> {
        let node = self.bench.node()?;
        let params = json!({
            "step": {"interface": "deploy", "step": step, "priority": 10}, "node": node.as_dict(false),
            "ports": node.ports_list(), "clean_version": {"generic_hardware_manager": "1.2"},
        });
        Ok(self.agent.command("clean.execute_clean_step", &params, Wait::No)?)
    }

    /// Erases all disks but those that are large.
    fn erase(&self) -> Result<CommandRecord> {
        self.bench.conductor.update_node(&self.bench.uuid, |node| {
            drop(node.properties.insert("skip_block_devices".to_owned(), json!([{"size": ">= 4"}])));
            node.set_internal("disk_erasure_concurrency", json!(8));
            node.set_internal("agent_erase_devices_iterations", json!(1));
        })?;
        self.step("erase_devices")
    }
}

#[test]
fn disks_of_rare_kinds_are_described_chosen_and_cleaned_once() {
    let dir = artifacts::temp_dir("disks").unwrap();
    let rig = Rig::boot(dir.path()).unwrap();
    let listed = all_of_them(&rig).unwrap();
    every_kind_is_described(&listed).unwrap_or_else(|error| panic!("{error:#}: {listed:#?}"));
    nothing_is_written_by_hints_that_fit_nothing(&rig).unwrap();
    images_go_over_the_live_path(&rig, &listed).unwrap();
    cards_are_passed_over_when_told(&rig).unwrap();
    each_disk_is_cleaned_once(&rig, &listed).unwrap();
    a_disk_that_goes_fails_alone(&rig).unwrap();
}

/// The disks, once the SAS adapter and the USB stick have been scanned.
fn all_of_them(rig: &Rig<'_>) -> Result<Vec<Value>> {
    let end = Instant::now() + rig.bench.limit(10);
    loop {
        let listed = kit::disks(&rig.agent)?;
        if listed.len() >= DISK_COUNT || Instant::now() >= end {
            return Ok(listed);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn by_serial<'a>(listed: &'a [Value], serial: &str) -> Result<&'a Value> {
    let mut found = listed.iter().filter(|disk| disk["serial"] == serial);
    let disk = found.next().with_context(|| format!("no {serial}"))?;
    ensure!(found.next().is_none(), "{serial} is listed more than once");
    Ok(disk)
}

/// Every disk is there once, with what its kind has; what is no disk is not there.
fn every_kind_is_described(listed: &[Value]) -> Result<()> {
    let names: Vec<&str> = listed.iter().filter_map(|disk| disk["name"].as_str()).collect();
    ensure!(names.len() == DISK_COUNT, "{names:?}");
    ensure!(!names.iter().any(|name| name.starts_with("/dev/fd") || name.starts_with("/dev/sr")), "{names:?}");
    ensure!(!names.iter().any(|name| name.starts_with("/dev/nvme") && name.contains('c')), "a hidden path: {names:?}");
    // Serial number, bus, end of the path, vendor, model and size.
    for (serial, tran, path, vendor, size) in [
        ("SAS-20G", json!("sas"), "-sas-phy0-lun-0", json!("QEMU"), 20 * GIB),
        ("SAS-SMALL", json!("sas"), "-sas-phy1-lun-0", json!("QEMU"), SMALL),
        ("STICK", json!("usb"), "-usb-0:1:1.0-scsi-0:0:0:0", json!("QEMU"), SMALL),
        ("SCSI", json!(null), "-scsi-0:0:0:0", json!("QEMU"), SMALL),
        ("RAID-0", json!(null), "-scsi-0:2:0:0", json!("QEMU"), SMALL),
        (TWO_PATHS, json!(null), "pci-0000:00:11.0-scsi-0:0:0:0", json!("QEMU"), SMALL),
        (OLD, json!(null), "-scsi-0:0:1:0", json!("QEMU"), SMALL),
        (SHARED, json!("nvme"), ".0-nvme-1", json!(null), SMALL),
    ] {
        let disk = by_serial(listed, serial)?;
        ensure!(disk["tran"] == tran && disk["vendor"] == vendor && disk["size"] == size, "{serial}");
        ensure!(disk["by_path"].as_str().unwrap_or_default().ends_with(path), "{serial} is not at {path}");
        ensure!(disk["hctl"].is_string() == (serial != SHARED), "{serial}: {}", disk["hctl"]);
        ensure!(disk["model"].is_string() && disk["logical_sectors"] == 512, "{serial}");
    }
    ensure!(by_serial(listed, "SAS-20G")?["wwn"] == format!("{SAS_WWN:#x}"), "the WWN of the SAS disk");
    ensure!(by_serial(listed, OLD)?["wwn"] == "0x5000c50015ea7103", "the WWN of the old disk");
    ensure!(by_serial(listed, SHARED)?["wwn"].as_str().is_some_and(|wwn| wwn.starts_with("nvme.1b36-")), "of the NVMe");
    let card = listed.iter().find(|disk| disk["tran"] == "mmc").context("no SD card")?;
    ensure!(card["name"] == "/dev/mmcblk0" && card["size"] == 8 * GIB && card["model"] == "QEMU!", "{card}");
    ensure!(card["serial"] == "0xdeadbeef" && card["vendor"].is_null() && card["by_path"].is_null(), "{card}");
    Ok(())
}

/// A mistake in the hints is told with what each disk has, and no disk is taken in its place (pitfall A4).
fn nothing_is_written_by_hints_that_fit_nothing(rig: &Rig<'_>) -> Result<()> {
    let info = kit::image_info(&rig.bench, "/tiny.raw", "raw", &Content::File(rig.image.clone()))?;
    for (hints, words) in [
        (json!({"serial": "absent"}), ["using these hints", "/dev/mmcblk0 (serial is 0xdeadbeef)"]),
        (json!({"serial": TWO_PATHS, "tran": "sas"}), ["using these hints", "(tran is none)"]),
        (json!({"size": 4}), ["using these hints", "/dev/mmcblk0 (size is 8.00 GiB)"]),
        (json!({"colour": "red"}), ["failed to validate", "Valid hints are"]),
    ] {
        let record = kit::write(&rig.bench, &rig.agent, &info, None, &hints)?;
        kit::check_failed(&hints.to_string(), &record, "DeviceNotFound", &words)?;
    }
    for serial in DISKS.map(|(serial, ..)| serial).into_iter().chain([TWO_PATHS, SHARED, OLD]) {
        let file = file(rig.dir, serial);
        file.check_zero(0, file.len_bytes()?).with_context(|| format!("{serial} was written to"))?;
    }
    Ok(())
}

/// Hints of either path lead to the disk, and what is written to is the path that works.
fn images_go_over_the_live_path(rig: &Rig<'_>, listed: &[Value]) -> Result<()> {
    let live = by_serial(listed, TWO_PATHS)?;
    for hints in [
        json!({"serial": TWO_PATHS}),
        json!({"by_path": "/dev/disk/by-path/pci-0000:00:10.0-scsi-0:0:0:0"}),
        json!({"name": "/dev/disk/by-path/pci-0000:00:11.0-scsi-0:0:0:0"}),
    ] {
        let device = rig.written(&hints, TWO_PATHS)?;
        ensure!(live["name"] == device, "{hints}: written to {device}");
        file(rig.dir, TWO_PATHS).write(0, &vec![0; usize::try_from(IMAGE_BYTES)?])?;
    }
    for controller in ["12", "13"] {
        let hints = json!({"by_path": format!("/dev/disk/by-path/pci-0000:00:{controller}.0-nvme-1")});
        rig.written(&hints, SHARED)?;
        file(rig.dir, SHARED).write(0, &vec![0; usize::try_from(IMAGE_BYTES)?])?;
    }
    rig.written(&json!({"wwn": format!("{SAS_WWN:#x}"), "tran": "sas"}), "SAS-20G").map(drop)
}

/// Without hints the smallest disk of 4 GiB is taken, and that is the card; hints of its kind keep it out (pitfall A9).
fn cards_are_passed_over_when_told(rig: &Rig<'_>) -> Result<()> {
    ensure!(rig.written(&Value::Null, "card")? == "/dev/mmcblk0", "not the smallest");
    for hints in [
        json!({"tran": "s!= mmc", "size": ">= 4"}),
        json!({"model": "s!= QEMU!", "size": ">= 4"}),
        json!({"vendor": "s!= none", "size": ">= 4"}),
    ] {
        file(rig.dir, "SAS-20G").write(0, &vec![0; usize::try_from(IMAGE_BYTES)?])?;
        rig.written(&hints, "SAS-20G")?;
    }
    Ok(())
}

/// Data on every disk is gone afterwards, each disk was worked on once, and the path that gives errors by nobody.
fn each_disk_is_cleaned_once(rig: &Rig<'_>, listed: &[Value]) -> Result<()> {
    let small = ["SAS-SMALL", "RAID-0", "STICK", "SCSI", TWO_PATHS, SHARED, OLD];
    for step in ["erase_devices_metadata", "erase_devices"] {
        for serial in small {
            kit::refill(&file(rig.dir, serial), 3, SMALL)?;
        }
        let record =
            kit::ended(&rig.bench, &rig.agent, &if step == "erase_devices" { rig.erase()? } else { rig.step(step)? })?;
        ensure!(record.command_status == "SUCCEEDED", "{step}: {}", record.error_text());
        for serial in small {
            let file = file(rig.dir, serial);
            let end = if step == "erase_devices" { SMALL } else { 34 * 512 };
            file.check_zero(0, end).with_context(|| format!("{step}: {serial}"))?;
        }
        if step == "erase_devices" {
            let result = &record.command_result["clean_result"];
            let names: Vec<&str> = result.as_object().context("no verdicts")?.keys().map(String::as_str).collect();
            let mut wanted: Vec<&str> = small
                .into_iter()
                .map(|serial| Ok(by_serial(listed, serial)?["name"].as_str().unwrap_or_default()))
                .collect::<Result<_>>()?;
            wanted.sort_unstable();
            ensure!(names == wanted, "{names:?}, not {wanted:?}");
            let formatted = by_serial(listed, SHARED)?["name"].as_str().context("no name")?;
            ensure!(wanted.iter().all(|name| (result[name]["zeroed"] == true) != (*name == formatted)), "{result}");
            ensure!(result[formatted]["method"] == "nvme-format-user-data", "{result}");
        }
    }
    Ok(())
}

/// A disk that is pulled while it is erased is named with the reason; all others are erased.
fn a_disk_that_goes_fails_alone(rig: &Rig<'_>) -> Result<()> {
    let index = DISKS.len() + 1;
    kit::used_disk(rig.dir.join(VANISHES), 9, SMALL, SMALL)?;
    let slow = Throttle { write_bytes: Some(MIB), ..Throttle::default() };
    let disk = Disk::new(DiskBus::VirtioScsi, rig.dir.join(VANISHES)).serial(VANISHES).throttle(slow);
    rig.bench.vm().plug_disk(&disk, index)?;
    let name = appears(rig, VANISHES)?;
    kit::refill(&file(rig.dir, "SCSI"), 3, SMALL)?;
    let started = rig.erase()?;
    rig.bench.says(&format!("overwriting with random bytes device={name}"), 20)?;
    rig.bench.vm().unplug_disk(index, rig.bench.limit(10))?;
    let record = kit::ended(&rig.bench, &rig.agent, &started)?;
    kit::check_failed(
        "pulled",
        &record,
        "BlockDeviceEraseError",
        &["failed on 1 of 8 disks", &format!("erasing {name}")],
    )?;
    // It went in the middle of a write, or between that and the next time it was opened.
    let text = record.error_text();
    let gone = ["the disk is gone", "No such file", "No such device"];
    ensure!(gone.iter().any(|reason| text.contains(reason)), "{text}");
    file(rig.dir, "SCSI").check_zero(0, SMALL)?;
    ensure!(!kit::names(&rig.agent)?.contains_key(VANISHES), "it is still listed");
    // Without it the same step works.
    let record = kit::ended(&rig.bench, &rig.agent, &rig.erase()?)?;
    ensure!(record.command_status == "SUCCEEDED", "{}", record.error_text());
    Ok(())
}

/// Waits until a disk is listed, and gives its name.
fn appears(rig: &Rig<'_>, serial: &str) -> Result<String> {
    let end = Instant::now() + rig.bench.limit(10);
    loop {
        if let Some(name) = kit::names(&rig.agent)?.remove(serial) {
            return Ok(name);
        }
        ensure!(Instant::now() < end, "{serial} does not come up");
    }
}

const MANY: usize = 60;
const LATE: &str = "LATE";
/// How long after its start, at least, the machine gets the disk that the hints are for.
const LATE_AFTER: Duration = Duration::from_secs(15);

#[test]
fn sixty_disks_are_listed_in_a_second_and_a_late_one_is_waited_for() {
    let dir = artifacts::temp_dir("many-disks").unwrap();
    // Serial numbers as makers have them, and worse; QEMU takes 36 characters.
    let serial = |number: usize| match number {
        0 => "two  blanks".to_owned(),
        1 => "0123456789abcdefghijklmnopqrstuvwxyz".to_owned(),
        2 => "größe".to_owned(),
        3 => "..;$(x)&%s".to_owned(),
        _ => format!("MANY-{number}"),
    };
    for number in 0..MANY {
        DiskFile::create_raw(dir.path().join(serial(number)), SMALL).unwrap();
    }
    DiskFile::create_raw(dir.path().join(LATE), GIB).unwrap();
    let image = dir.path().join("tiny.raw");
    tiny_raw(&image, DiskLabel::Gpt, IMAGE_BYTES).unwrap();
    let mut plan = Plan::new("many-disks");
    plan.state = ProvisionState::DeployWait;
    plan.cmdline = kit::SHORT.replace("ipa-disk-wait-attempts=0", "ipa-disk-wait-attempts=31 ipa-disk-wait-delay=4");
    let disk = |number: usize| {
        let wwn = 0x5000_c500_15ea_8000 + u64::try_from(number).unwrap();
        Disk::new(DiskBus::VirtioScsi, dir.path().join(serial(number))).serial(&serial(number)).wwn(wwn)
    };
    let bench = plan
        .boot(|vm| Ok((0..MANY).fold(vm.memory_mib(256).hotplug_slots(1), |vm, number| vm.disk(disk(number)))))
        .unwrap();
    let agent = bench.agent().unwrap();
    let info = kit::image_info(&bench, "/tiny.raw", "raw", &Content::File(image.clone())).unwrap();
    let started = kit::start_write(&bench, &agent, &info, None, &json!({"serial": LATE})).unwrap();
    bench.says("waiting for the root device", 20).unwrap();
    std::thread::sleep(LATE_AFTER.saturating_sub(bench.vm().elapsed()));
    assert!(kit::current(&agent, &started).unwrap().is_running(), "the disk was not waited for");
    bench.vm().plug_disk(&Disk::new(DiskBus::Nvme, dir.path().join(LATE)).serial(LATE), MANY).unwrap();
    let record = kit::ended(&bench, &agent, &started).unwrap();
    assert_eq!(kit::device(&record).unwrap(), "/dev/nvme0n1");
    kit::check_content(&file(dir.path(), LATE), &image, 512).unwrap();
    came_at_once(&bench).unwrap();
    // Best of some: what else this host does is not the agent's time.
    let mut took = Vec::new();
    let mut listed = Vec::new();
    while took.len() < 6 && took.iter().all(|time| *time >= Duration::from_secs(1)) {
        let begun = Instant::now();
        listed = kit::disks(&agent).unwrap();
        took.push(begun.elapsed());
    }
    let best = took.iter().min().unwrap();
    note(&format!("the inventory with {} disks takes {best:?} under {}", listed.len(), bench.vm().accel().option()));
    assert_eq!(listed.len(), MANY + 1);
    let by_path: BTreeMap<&str, &str> = listed
        .iter()
        .map(|disk| (disk["by_path"].as_str().unwrap_or_else(|| panic!("{disk}")), disk["name"].as_str().unwrap()))
        .collect();
    assert_eq!(by_path.len(), MANY + 1, "{by_path:?}");
    for number in 0..MANY {
        // What does not print is left out.
        let serial = if number == 2 { "gre".to_owned() } else { serial(number) };
        let disk = by_serial(&listed, &serial).unwrap();
        assert_eq!(disk["wwn"], format!("{:#x}", 0x5000_c500_15ea_8000_u64 + u64::try_from(number).unwrap()));
    }
    // A second on a machine; an emulated one gets as much more as for everything else.
    assert!(*best < bench.limit(1), "{took:?}");
}

/// The agent saw the disk as soon as the kernel told of it, not when it looked the next time.
fn came_at_once(bench: &Bench) -> Result<()> {
    let lines = bench.vm().console().lines();
    let of = |text: &str| {
        let line = lines.iter().rfind(|line| line.contains(text)).with_context(|| format!("{text:?} is not said"))?;
        ferric_tests::uptime(line).with_context(|| format!("no time in {line:?}"))
    };
    let (woken, found) = (of("disks have changed, looking for")?, of("root device found by its hints")?);
    ensure!(woken <= found && found - woken < bench.limit(1), "woken at {woken:?}, found at {found:?}");
    Ok(())
}
