//! Images of one file system: partitions are made around them, and a machine boots from what its image brings along.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Cursor, Read as _};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ferric_qemu::conductor::flow::{DeployReport, DeployRequest, Flow, ImageSource, Limits, Partitions};
use ferric_qemu::conductor::{AgentClient, CommandRecord, Conductor, ConductorConfig, Node, ProvisionState, Wait};
use ferric_qemu::lab::configdrive::{ConfigDrive, encode};
use ferric_qemu::os_image::{
    PARTITION_IMAGE_LABEL, PARTITION_IMAGE_LOADER, PARTITION_IMAGE_UUID, Qcow2Kind, partition_image, qcow2_from,
    static_busybox,
};
use ferric_qemu::{Accel, Content, Disk, DiskBus, DiskFile, Image, ImageServer, Nic, Vm, artifacts};
use ferric_tests::{Bench, MAC, Plan, TRIVIAL_INIT_SAYS};
use serde_json::{Map, Value, json};

use crate::deploy_boot::{NodePower, check_memory};
use crate::efi::Store;
use crate::kit::{self, MIB};
use crate::traps;

const ROOT_MIB: u64 = 300;
const SWAP_MIB: u64 = 64;
/// Size of the file system of the small image.
pub(crate) const SMALL_BYTES: u64 = 8 * MIB;
pub(crate) const SMALL_UUID: &str = "6f3a1c5e-0b2d-4e8f-9a71-c0ffee123456";

fn drive(uuid: &str, hostname: &str) -> ConfigDrive {
    let mut drive = ConfigDrive::new(uuid, hostname);
    drive.user_data = b"#cloud-config of the partition image\n".to_vec();
    drive
}

/// The output of a tool of the host that looks at a file.
pub(crate) fn tool(program: &str, args: &[&str]) -> Result<String> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new(program).args(args).env("PATH", path).output().with_context(|| program.to_owned())?;
    ensure!(output.status.success(), "{program} {args:?}: {output:?}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A FAT file system on a disk.
pub(crate) fn fat(disk: &DiskFile, start: u64, len: u64) -> Result<fatfs::FileSystem<Cursor<Vec<u8>>>> {
    let volume = Cursor::new(disk.read(start, usize::try_from(len)?)?);
    Ok(fatfs::FileSystem::new(volume, fatfs::FsOptions::new())?)
}

/// What a deployment leaves on a disk: ESP, swap, config drive and root, with the loader copied and the line in fstab.
fn deployed(disk: &DiskFile, iso: &[u8]) -> Result<()> {
    let drive_end = 615 + u64::try_from(iso.len())?.div_ceil(MIB);
    let places = [(1, 551), (551, 615), (615, drive_end), (drive_end, drive_end + ROOT_MIB)];
    let found = kit::sound_gpt(disk, 512)?;
    ensure!(found == places.map(|(start, end)| (start * MIB, end * MIB)), "{found:?}");
    ensure!(disk.read(551 * MIB + 4086, 10)? == b"SWAPSPACE2", "no swap space");
    disk.check(615 * MIB, iso)?;
    let esp = fat(disk, MIB, 550 * MIB)?;
    ensure!(esp.fat_type() == fatfs::FatType::Fat32 && esp.volume_label() == "efi-part", "{}", esp.volume_label());
    let mut loader = Vec::new();
    let path = PARTITION_IMAGE_LOADER.trim_start_matches('\\').replace('\\', "/");
    esp.root_dir().open_file(&path)?.read_to_end(&mut loader)?;
    let place = format!("{}?offset={}", disk.path().display(), drive_end * MIB);
    let original = disk.path().with_extension("loader");
    tool("debugfs", &["-R", &format!("dump /boot/efi/{path} {}", original.display()), &place])?;
    ensure!(loader.len() > 1 << 20 && fs::read(&original)? == loader, "the loader on the ESP is not that of the image");
    let fstab = tool("debugfs", &["-R", "cat /etc/fstab", &place])?;
    let id = esp.volume_id();
    let line = format!("UUID={:04X}-{:04X}\t/boot/efi\tvfat\tumask=0077\t0\t1", id >> 16, id & 0xffff);
    ensure!(fstab.lines().last() == Some(&*line) && fstab.lines().count() == 2, "no {line:?} in {fstab:?}");
    // Taken away as it should be, without a journal to replay.
    tool("e2fsck", &["-f", "-n", &place]).map(drop)
}

/// Of all the entries with the label one is left, in front of an order without repeats; others stay.
fn one_entry(store: &Store) -> Result<()> {
    let (entries, others, order) = (store.entries(PARTITION_IMAGE_LABEL), store.entries("other"), store.order());
    ensure!(
        entries.len() == 1 && order.first() == entries.first() && others == [4],
        "{entries:?} {others:?} {order:?}"
    );
    let unique: BTreeSet<u16> = order.iter().copied().collect();
    ensure!(unique.len() == order.len() && unique.contains(&4), "the order repeats itself: {order:?}");
    Ok(())
}

fn acceptance(disk: &DiskFile, power: &mut NodePower<'_>, uuid: &str, encoded: String) -> Result<DeployReport> {
    let image = partition_image(&artifacts::build_dir()?.join("cache"))?;
    let file = Content::File(qcow2_from(&image.path, Qcow2Kind::Zstd)?);
    let hash = file.sha256()?;
    let images = ImageServer::start()?;
    images.add("/root.qcow2", file);
    let request = DeployRequest {
        image: ImageSource {
            url: images.guest_url("/root.qcow2"),
            disk_format: "qcow2".into(),
            hash: Some(("sha256".into(), hash)),
            image_info_patch: json!({}),
        },
        partitions: Some(Partitions { root_mb: ROOT_MIB, swap_mb: SWAP_MIB, ..Partitions::default() }),
        configdrive: Some(encoded),
        uefi: true,
        root_device: None,
        collect_logs: true,
        boot_instance: true,
    };
    let scale = |seconds| Accel::detect().scale(Duration::from_secs(seconds));
    let limits = Limits {
        boot: scale(30),
        step: scale(60),
        boot_loader_poll: Duration::from_millis(500),
        power_off: scale(10),
        ..Limits::default()
    };
    let report = Flow::new(power.conductor, uuid, power).limits(limits).deploy(&request)?;
    ensure!(report.powered_off_by_agent, "the agent did not switch the machine off");
    let vm = power.vm.as_ref().context("the machine is off")?;
    for line in [
        "FERRIC-DEMO-OS up: Debian GNU/Linux 12",
        "root /dev/nvme0n1p4",
        "FERRIC-DEMO-OS configdrive hostname=node-part.example.org",
        "FERRIC-DEMO-OS configdrive device=/dev/nvme0n1p3",
    ] {
        vm.console().wait_for(line, scale(60)).with_context(|| disk.path().display().to_string())?;
    }
    Ok(report)
}

#[test]
fn a_machine_boots_by_uefi_from_the_loader_in_its_partition_image() {
    let dir = artifacts::temp_dir("partition-uefi").unwrap();
    let disk = kit::used_disk(dir.path().join("disk.raw"), 3, 5 << 30, 24 * MIB).unwrap();
    let vars = dir.path().join("vars.fd");
    let name = "partition-uefi";
    let log_dir = artifacts::log_dir(name).unwrap();
    if log_dir.exists() {
        fs::remove_dir_all(log_dir).unwrap();
    }
    let builder = Vm::builder(name).memory_mib(256).disk(Disk::new(DiskBus::Nvme, disk.path()));
    let builder = builder.uefi_with_vars(&vars).nic(Nic::user().mac(MAC));
    // What earlier deployments of the same system have left.
    let mut store = Store::pristine().unwrap();
    for number in [1, 3, 5, 7, 10] {
        store.add_entry(number, PARTITION_IMAGE_LABEL).unwrap();
    }
    store.add_entry(4, "other").unwrap();
    let order: Vec<u8> = [1_u16, 4, 3, 1, 4, 5, 7, 10, 3].into_iter().flat_map(u16::to_le_bytes).collect();
    store.add("BootOrder", &order).unwrap();
    store.write(&vars).unwrap();
    let mut node = Node::new(name, &[MAC]);
    node.provision_state = ProvisionState::Available;
    let uuid = node.uuid.clone();
    let conductor = Conductor::start(ConductorConfig { nodes: vec![node], ..ConductorConfig::default() }).unwrap();
    let iso = drive(&uuid, "node-part.example.org").iso().unwrap();
    let mut power = NodePower {
        conductor: &conductor,
        builder,
        image: Image::built("virt").unwrap(),
        vm: None,
        disk_memory_mib: 512,
        deployed: Box::new(|| one_entry(&Store::read(&vars)?).and_then(|()| deployed(&disk, &iso))),
    };
    let report = acceptance(&disk, &mut power, &uuid, encode(&iso).unwrap()).unwrap();
    check_memory(&report).unwrap();
    let uuids = &report.partition_uuids;
    assert_eq!((&uuids["root uuid"], &uuids["PReP Boot partition uuid"]), (&json!(PARTITION_IMAGE_UUID), &Value::Null));
    assert_eq!(uuids["efi system partition uuid"].as_str().unwrap().len(), 9, "{uuids}");
    assert_eq!(report.boot_loader.unwrap().command_status, "SUCCEEDED");
    let store = fs::read(&vars).unwrap();
    for text in [PARTITION_IMAGE_LOADER, PARTITION_IMAGE_LABEL] {
        let bytes: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert!(store.windows(bytes.len()).any(|window| window == bytes), "no {text} in the firmware's variables");
    }
}

/// A machine and a small image on its server.
pub(crate) struct Small {
    pub(crate) bench: Bench,
    pub(crate) agent: AgentClient,
    pub(crate) info: Value,
}

impl Small {
    /// Orders the image onto the disk with that serial, with further members of `image_info`.
    pub(crate) fn write(
        &self,
        serial: &str,
        capabilities: &str,
        more: Value,
        drive: Option<&str>,
    ) -> Result<CommandRecord> {
        let mut node = self.bench.node()?;
        node.properties.insert("capabilities".into(), json!(capabilities));
        node.instance_info.insert("root_device".into(), json!({"serial": serial}));
        let mut info = self.info.clone();
        let members: Map<String, Value> =
            Partitions { root_mb: 20, swap_mb: 10, ..Partitions::default() }.members(false);
        for (key, value) in members.into_iter().chain(more.as_object().cloned().unwrap_or_default()) {
            info[key] = value;
        }
        let step = json!({
            "interface": "deploy", "step": "write_image", "args": {"image_info": info, "configdrive": drive},
        });
        let params = json!({
            "step": step, "node": node.as_dict(false), "ports": node.ports_list(),
            "deploy_version": {"generic_hardware_manager": "1.2"},
        });
        let started = self.agent.command("deploy.execute_deploy_step", &params, Wait::No)?;
        kit::ended(&self.bench, &self.agent, &started)
    }

    pub(crate) fn boot_loader(&self, mode: &str, ignore: Option<bool>) -> Result<CommandRecord> {
        self.install_boot_loader(json!(SMALL_UUID), mode, ignore)
    }

    pub(crate) fn install_boot_loader(
        &self,
        root_uuid: Value,
        mode: &str,
        ignore: Option<bool>,
    ) -> Result<CommandRecord> {
        let params = json!({
            "root_uuid": root_uuid, "efi_system_part_uuid": null, "prep_boot_part_uuid": null,
            "target_boot_mode": mode, "ignore_bootloader_failure": ignore,
        });
        let started = self.agent.command("image.install_bootloader", &params, Wait::No)?;
        kit::ended(&self.bench, &self.agent, &started)
    }
}

pub(crate) fn small_image(dir: &Path) -> Result<std::path::PathBuf> {
    let path = dir.join("small.raw");
    File::create(&path)?.set_len(SMALL_BYTES)?;
    tool("mke2fs", &["-q", "-F", "-t", "ext4", "-U", SMALL_UUID, &path.to_string_lossy()])?;
    Ok(path)
}

#[test]
fn partitions_on_a_bios_machine_and_what_is_refused() {
    let dir = artifacts::temp_dir("partition-bios").unwrap();
    let image = small_image(dir.path()).unwrap();
    let disk = |serial: &str, size| kit::used_disk(dir.path().join(serial), 5, size * MIB, 24 * MIB).unwrap();
    let (mbr, kept, large) = (disk("MBR", 128), disk("KEPT", 128), disk("LARGE-4K", 1024));
    let with_grub = traps::grub(dir.path()).unwrap();
    let mut plan = Plan::new("partition-bios");
    plan.state = ProvisionState::DeployWait;
    plan.cmdline = kit::SHORT.to_owned();
    // Its own program for ext2, as a profile for scratch space would have it.
    plan.files = |_| {
        let busybox = artifacts::build_dir().and_then(|build| static_busybox(&build.join("cache"))).unwrap();
        let script = b"#!/usr/sbin/busybox sh\nexec /usr/sbin/busybox mke2fs \"$@\"\n".to_vec();
        let config = b"[DEFAULT]\nenable_bios_bootloader_install = true\n".to_vec();
        vec![
            ("usr/sbin/busybox".to_owned(), busybox),
            ("usr/sbin/mkfs.ext2".to_owned(), script),
            ("etc/ironic-python-agent.d/grub.conf".to_owned(), config),
        ]
    };
    let bench = plan
        .boot(|vm| {
            let disk = |bus, file: &DiskFile, serial, sector| {
                Disk::new(bus, file.path()).serial(serial).block_size(sector, sector)
            };
            Ok(vm
                .disk(disk(DiskBus::VirtioBlk, &mbr, "MBR", 512))
                .disk(disk(DiskBus::Ahci, &kept, "KEPT", 512))
                .disk(disk(DiskBus::Nvme, &large, "LARGE-4K", 4096)))
        })
        .unwrap();
    let agent = bench.agent().unwrap();
    let info = kit::image_info(&bench, "/small.raw", "raw", &Content::File(image.clone())).unwrap();
    let mut small = Small { bench, agent, info };
    refused(&small, &mbr).unwrap();
    mbr_and_its_boot_loader(&small, &mbr, &image).unwrap();
    scratch_space_is_kept(&small, &kept, &image).unwrap();
    scratch_space_is_made(&small, &mbr).unwrap();
    large_sectors(&small, &large, &image).unwrap();
    programs_of_an_image_are_locked_into_it(&mut small, &kept, &traps::image(dir.path()).unwrap()).unwrap();
    grub_is_installed(&mut small, &mbr, &with_grub).unwrap();
    small.bench.vm().kill();
    let vm = Vm::builder("partition-grub").memory_mib(256).disk_boot().disk(Disk::new(DiskBus::VirtioBlk, mbr.path()));
    let vm = vm.start().unwrap();
    vm.console().wait_for(TRIVIAL_INIT_SAYS, vm.limit(Duration::from_secs(60))).unwrap();
}

/// Orders another image onto the disk with that serial and has its boot loader installed.
fn with_boot_loader(small: &mut Small, serial: &str, image: &Path, root_mb: u64) -> Result<CommandRecord> {
    let name = format!("/{}", image.file_name().context("a name")?.to_string_lossy());
    small.info = kit::image_info(&small.bench, &name, "raw", &Content::File(image.to_owned()))?;
    let sizes = json!({"root_mb": root_mb, "swap_mb": 0});
    kit::device(&small.write(serial, "boot_mode:bios", sizes, None)?)?;
    small.install_boot_loader(json!(traps::UUID), "bios", None)
}

/// Where the operator allows it they are run, and reach nothing but the disk that they are on.
fn programs_of_an_image_are_locked_into_it(small: &mut Small, disk: &DiskFile, image: &Path) -> Result<()> {
    let record = with_boot_loader(small, "KEPT", image, 20)?;
    ensure!(record.command_status == "SUCCEEDED", "{record:?}");
    let note = traps::note(disk.path(), MIB)?;
    let lines: Vec<&str> = note.lines().collect();
    ensure!(lines.first().is_some_and(|line| line.starts_with("run /usr/sbin/grub-install /dev/sd")), "{note}");
    ensure!(note.contains("run /usr/bin/env GRUB_DISABLE_OS_PROBER=true"), "{note}");
    for line in
        ["pid 1 of /proc/1", "interfaces 1", "dev disk fd full null random sda sda1 stderr stdin stdout urandom zero"]
    {
        ensure!(lines.iter().filter(|known| *known == &line).count() == 2, "no {line:?} in {note}");
    }
    ensure!(note.contains("uuid ../../sda1") && !note.contains("can "), "{note}");
    Ok(())
}

fn grub_is_installed(small: &mut Small, disk: &DiskFile, image: &Path) -> Result<()> {
    let record = with_boot_loader(small, "MBR", image, 60)?;
    ensure!(record.command_status == "SUCCEEDED", "{record:?}");
    let text = record.command_result["result"].as_str().unwrap_or_default();
    ensure!(text.contains("the image's own GRUB was installed on /dev/vd"), "{record:?}");
    ensure!(disk.read(0, 440)?.iter().any(|byte| *byte != 0), "no boot code");
    let place = format!("{}?offset={MIB}", disk.path().display());
    let config = tool("debugfs", &["-R", "cat /boot/grub/grub.cfg", &place])?;
    ensure!(config.contains(&format!("root=UUID={}", traps::UUID)), "{config}");
    tool("e2fsck", &["-f", "-n", &place]).map(drop)
}

/// Each before the disk is touched.
fn refused(small: &Small, disk: &DiskFile) -> Result<()> {
    let before = kit::digest(disk)?;
    for (case, more, class, words) in [
        (
            "image larger than its partition",
            json!({"root_mb": 7}),
            "InvalidCommandParamsError",
            "virtual size: 8 MB, Root size: 7 MB",
        ),
        ("disk too small", json!({"root_mb": 200}), "DeploymentError", "they end at 211 MiB (swap 10, root 200)"),
        (
            "no program for the scratch space",
            json!({"ephemeral_mb": 10}),
            "FileSystemNotSupported",
            "mkfs.ext4 is not in this ramdisk",
        ),
        ("nothing to keep", json!({"preserve_ephemeral": true}), "DeploymentError", "it has no partition table"),
    ] {
        let record = small.write("MBR", "", more, None)?;
        kit::check_failed(case, &record, class, &[words])?;
        ensure!(kit::digest(disk)? == before, "{case}: something was written");
    }
    Ok(())
}

/// The root partition of an MBR disk is the one to boot; but no BIOS boot loader is installed.
fn mbr_and_its_boot_loader(small: &Small, disk: &DiskFile, image: &Path) -> Result<()> {
    let record = small.write("MBR", "boot_mode:bios", json!({}), None)?;
    let device = kit::device(&record)?;
    let text = record.command_result["deploy_result"]["result"].as_str().unwrap_or_default().to_owned();
    ensure!(text.ends_with(&format!("written to device {device} root_uuid={SMALL_UUID}")), "{text}");
    let table = mbrman::MBR::read_from(&mut File::open(disk.path())?, 512)?;
    let entries: Vec<_> =
        (1..=4).map(|n| (table[n].sys, table[n].boot, table[n].starting_lba, table[n].sectors)).collect();
    let want = [(0x82, 0, 2048, 10 * 2048), (0x83, 0x80, 11 * 2048, 20 * 2048), (0, 0, 0, 0), (0, 0, 0, 0)];
    ensure!(entries == want, "{entries:?}");
    disk.check(11 * MIB, &fs::read(image)?)?;
    let record = small.boot_loader("bios", None)?;
    let words = ["the image on /dev/vd", "has no grub-install, so that no BIOS boot loader can be installed"];
    kit::check_failed("BIOS", &record, "InvalidImage", &words)?;
    let record = small.boot_loader("bios", Some(true))?;
    ensure!(record.command_status == "SUCCEEDED", "{record:?}");
    Ok(())
}

/// The disk of an earlier deployment, with data of its tenant.
fn scratch_space_is_kept(small: &Small, disk: &DiskFile, image: &Path) -> Result<()> {
    let mut file = File::options().read(true).write(true).open(disk.path())?;
    let mut mbr = mbrman::MBR::new_from(&mut file, 512, [1, 2, 3, 4])?;
    for (number, (sys, boot, start, size)) in (1..).zip([(0x83, 0, 1, 30), (0x82, 0, 31, 10), (0x83, 0x80, 41, 20)]) {
        mbr[number] = mbrman::MBRPartitionEntry {
            boot,
            first_chs: mbrman::CHS::empty(),
            sys,
            last_chs: mbrman::CHS::empty(),
            starting_lba: start * 2048,
            sectors: size * 2048,
        };
    }
    mbr.write_into(&mut file)?;
    disk.fill(77, MIB, 30 * MIB)?;
    let table = disk.read(0, 512)?;
    let keep = |swap: u64| json!({"ephemeral_mb": 30, "swap_mb": swap, "preserve_ephemeral": true});
    let record = small.write("KEPT", "boot_mode:bios", keep(11), None)?;
    let words = ["cannot be kept, as preserve_ephemeral asks for", "partition 2 has 10485760 bytes"];
    kit::check_failed("another swap space", &record, "DeploymentError", &words)?;
    let record = small.write("KEPT", "boot_mode:bios", keep(10), None)?;
    kit::device(&record)?;
    ensure!(disk.read(0, 512)? == table, "the table was written anew");
    disk.check_fill(77, MIB, 30 * MIB)?;
    ensure!(disk.read(31 * MIB + 4086, 10)? == b"SWAPSPACE2", "no swap space");
    disk.check(41 * MIB, &fs::read(image)?)
}

/// By the program in the ramdisk; and what it made is kept the next time.
fn scratch_space_is_made(small: &Small, disk: &DiskFile) -> Result<()> {
    let members = |preserve: bool| {
        json!({
            "ephemeral_mb": 40, "ephemeral_format": "ext2", "preserve_ephemeral": preserve,
        })
    };
    let label = || tool("debugfs", &["-R", "show_super_stats -h", &format!("{}?offset={MIB}", disk.path().display())]);
    kit::device(&small.write("MBR", "boot_mode:bios", members(false), None)?)?;
    let made = label()?;
    ensure!(made.lines().any(|line| line.ends_with("ephemeral0")), "{made}");
    kit::device(&small.write("MBR", "boot_mode:bios", members(true), None)?)?;
    ensure!(label()? == made, "the scratch space was made anew");
    Ok(())
}

/// UEFI is what the node says; the ISO becomes FAT.
fn large_sectors(small: &Small, disk: &DiskFile, image: &Path) -> Result<()> {
    let drive = encode(&drive("1be26c0b-03f2-4d2e-ae87-c02d7f33c123", "node-4k.example.org").iso()?)?;
    let more = json!({"deploy_boot_mode": "uefi"});
    let record = small.write("LARGE-4K", "boot_mode:uefi", more, Some(&drive))?;
    kit::device(&record)?;
    let text = record.command_result["deploy_result"]["result"].to_string();
    let found = kit::sound_gpt(disk, 4096)?;
    let want = [(1, 551), (551, 561), (561, 625), (625, 645)].map(|(start, end)| (start * MIB, end * MIB));
    ensure!(found == want, "{found:?}");
    let esp = fat(disk, MIB, 550 * MIB)?;
    let id = esp.volume_id();
    ensure!(text.contains(&format!("efi_system_partition_uuid={:04X}-{:04X}", id >> 16, id & 0xffff)), "{text}");
    let mut meta = String::new();
    let config = fat(disk, 561 * MIB, 64 * MIB)?;
    config.root_dir().open_file("openstack/latest/meta_data.json")?.read_to_string(&mut meta)?;
    ensure!(meta.contains("node-4k.example.org") && config.volume_label().eq_ignore_ascii_case("config-2"), "{meta}");
    disk.check(625 * MIB, &fs::read(image)?)
}
