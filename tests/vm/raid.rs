//! Software RAID with the profile that has `mdadm`: arrays are made on new disks, a system is deployed to one of them and
//! boots, also without one of its disks; then all of it is deleted. And file systems for ephemeral partitions, made by the
//! same profile's programs.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ferric_qemu::conductor::flow::Partitions;
use ferric_qemu::conductor::{AgentClient, CommandRecord, ProvisionState, Wait};
use ferric_qemu::os_image::{DiskLabel, ImageFormat, Qcow2Kind, Recipe};
use ferric_qemu::{Content, Disk, DiskBus, DiskFile, Vm, VmBuilder, artifacts};
use ferric_tests::{Bench, Plan};
use serde_json::{Map, Value, json};

use crate::kit::{self, MIB};

/// Room for a boot loader, a volume up to 1 GiB, and another one behind it.
const DISK_BYTES: u64 = 1600 * MIB;
const IMAGE_BYTES: u64 = 256 * MIB;
const SERIALS: [&str; 4] = ["R0", "R1", "R2", "R3"];
/// Serial of the disk for ephemeral partitions: too small for a member that hints choose by size.
const SCRATCH: &str = "SCRATCH";

/// A mirror of two disks for the system, and stripes over mirrors of all four.
fn configuration() -> Value {
    let hints: Vec<Value> = SERIALS[..2].iter().map(|serial| json!({"serial": serial})).collect();
    let all: Vec<Value> = SERIALS.iter().map(|serial| json!({"serial": serial})).collect();
    json!({"logical_disks": [
        {"controller": "software", "raid_level": "1", "size_gb": 1, "volume_name": "root", "is_root_volume": true,
         "physical_disks": hints},
        {"controller": "software", "raid_level": "1+0", "size_gb": "MAX", "volume_name": "data", "physical_disks": all},
    ]})
}

struct Machine {
    bench: Bench,
    agent: AgentClient,
}

impl Machine {
    fn boot(name: &str, disks: impl Fn(VmBuilder) -> VmBuilder) -> Result<Self> {
        let mut plan = Plan::new(name);
        plan.image = "storage".to_owned();
        plan.state = ProvisionState::DeployWait;
        plan.cmdline = kit::SHORT.to_owned();
        let bench = plan.boot(|vm| Ok(disks(vm)))?;
        let agent = bench.agent()?;
        Ok(Self { bench, agent })
    }

    /// Runs a step with a node that has these members besides.
    fn step(&self, kind: &str, interface: &str, step: &str, args: Value, node: &Value) -> Result<CommandRecord> {
        let mut sent = self.bench.node()?.as_dict(false);
        for (key, value) in node.as_object().into_iter().flatten() {
            sent[key] = value.clone();
        }
        let params = json!({
            "step": {"interface": interface, "step": step, "args": args}, "node": sent, "ports": [],
            format!("{kind}_version"): {"generic_hardware_manager": "1.2"},
        });
        let started = self.agent.command(&format!("{kind}.execute_{kind}_step"), &params, Wait::No)?;
        kit::ended(&self.bench, &self.agent, &started)
    }

    fn raid(&self, step: &str, config: &Value) -> Result<Value> {
        let node = json!({"target_raid_config": config, "properties": {"capabilities": "boot_mode:uefi"}});
        let record = self.step("clean", "raid", step, json!({}), &node)?;
        ensure!(record.command_status == "SUCCEEDED", "{step}: {}", record.error_text());
        Ok(record.command_result["clean_result"].clone())
    }

    fn image(&self, path: &Path) -> Result<Value> {
        let name = format!("/{}", path.file_name().context("a name")?.to_string_lossy());
        kit::image_info(&self.bench, &name, "qcow2", &Content::File(path.to_owned()))
    }
}

fn deploy(machine: &Machine, image: &Path) -> Result<()> {
    let info = machine.image(image)?;
    // The hints give way to the configuration.
    let hints = json!({"root_device": {"serial": "R3"}});
    let node = json!({
        "raid_config": configuration(), "properties": {"capabilities": "boot_mode:uefi"}, "instance_info": hints,
    });
    let record = machine.step("deploy", "deploy", "write_image", json!({"image_info": info}), &node)?;
    let device = kit::device(&record)?;
    ensure!(device.starts_with("/dev/md"), "written to {device}");
    let params = json!({
        "root_uuid": "0x00000000", "efi_system_part_uuid": null, "prep_boot_part_uuid": null, "target_boot_mode": "uefi",
    });
    let started = machine.agent.command("image.install_bootloader", &params, Wait::No)?;
    let record = kit::ended(&machine.bench, &machine.agent, &started)?;
    ensure!(record.command_status == "SUCCEEDED", "{}", record.error_text());
    machine.agent.command("standby.sync", &json!({}), Wait::ForResult)?;
    Ok(())
}

/// The system comes up from an array; says after how long.
fn boots(vm: &Vm) -> Result<()> {
    let limit = vm.limit(Duration::from_secs(60));
    let line = vm.console().wait_for("FERRIC-DEMO-OS up: Debian GNU/Linux 12", limit)?;
    ensure!(line.contains("root /dev/md"), "{line}");
    Ok(())
}

#[test]
fn a_system_on_mirrors_boots_without_one_of_its_disks() {
    let dir = artifacts::temp_dir("raid").unwrap();
    let recipe = Recipe {
        virtual_size_bytes: IMAGE_BYTES,
        software_raid: true,
        ..Recipe::new(DiskLabel::Gpt, ImageFormat::Qcow2(Qcow2Kind::Zstd))
    };
    let image = recipe.make(&artifacts::build_dir().unwrap().join("cache")).unwrap();
    let files: Vec<DiskFile> =
        SERIALS.iter().map(|serial| DiskFile::create_raw(dir.path().join(serial), DISK_BYTES).unwrap()).collect();
    let vars = dir.path().join("vars.fd");
    let disk = |index: usize| Disk::new(DiskBus::Nvme, files[index].path()).serial(SERIALS[index]);
    let machine = Machine::boot("raid", |vm| {
        (0..4).fold(vm.memory_mib(256).uefi_with_vars(&vars), |vm, index| vm.disk(disk(index)))
    })
    .unwrap();
    assert_eq!(machine.raid("create_configuration", &configuration()).unwrap(), configuration());
    arrays_are_as_planned(&machine, &files).unwrap();
    deploy(&machine, &image.path).unwrap();
    machine.bench.vm().kill();
    // Room for GRUB or systemd-boot, and then for the kernel.
    let system = |name: &str| Vm::builder(name).memory_mib(384).uefi_with_vars(&vars);
    let vm = (0..4).fold(system("raid-whole"), |vm, index| vm.disk(disk(index))).start().unwrap();
    boots(&vm).unwrap();
    vm.kill();
    // The disk whose entry the firmware tries first, and the first member of both arrays.
    let vm = (1..4).fold(system("raid-degraded"), |vm, index| vm.disk(disk(index))).start().unwrap();
    boots(&vm).unwrap();
    vm.kill();
    drop(machine);
    let machine = Machine::boot("raid-delete", |vm| (0..4).fold(vm, |vm, index| vm.disk(disk(index)))).unwrap();
    assert_eq!(machine.raid("delete_configuration", &Value::Null).unwrap(), Value::Null);
    let disks = kit::disks(&machine.agent).unwrap();
    assert!(disks.iter().all(|disk| !disk["name"].as_str().unwrap().starts_with("/dev/md")), "{disks:?}");
    for file in &files {
        file.check_zero(0, 4 * MIB).unwrap();
        file.check_zero(551 * MIB, MIB).unwrap();
        file.check_zero(DISK_BYTES - MIB, MIB).unwrap();
    }
}

fn arrays_are_as_planned(machine: &Machine, files: &[DiskFile]) -> Result<()> {
    let last = DISK_BYTES / MIB - 1;
    for (index, file) in files.iter().enumerate() {
        let places: &[(u64, u64)] = if index < 2 { &[(551, 1024), (1024, last)] } else { &[(551, last)] };
        let want: Vec<(u64, u64)> = places.iter().map(|(start, end)| (start * MIB, end * MIB)).collect();
        let found = kit::sound_gpt(file, 512)?;
        ensure!(found == want, "{}: {found:?}", SERIALS[index]);
    }
    let disks = kit::disks(&machine.agent)?;
    let arrays: Vec<(&str, u64)> = disks
        .iter()
        .filter_map(|disk| Some((disk["name"].as_str()?, disk["size"].as_u64()? / MIB)))
        .filter(|(name, _)| name.starts_with("/dev/md"))
        .collect();
    // Two of the four members hold the same, and each a little less than its partition.
    let [("/dev/md0", mirror), ("/dev/md1", stripes)] = arrays[..] else {
        anyhow::bail!("unexpected arrays {arrays:?}");
    };
    ensure!((460..=473).contains(&mirror) && (1100..=1150).contains(&stripes), "{arrays:?}");
    let error = machine.raid("create_configuration", &configuration()).map(drop);
    let error = format!("{:#}", error.err().context("arrays were made where there were some")?);
    ensure!(error.contains("Existing Software RAID device detected that should not"), "{error}");
    Ok(())
}

/// The output of a tool of the host that looks at a file.
fn tool(program: &str, args: &[&str]) -> Result<String> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new(program).args(args).env("PATH", path).output().with_context(|| program.to_owned())?;
    ensure!(output.status.success(), "{program} {args:?}: {output:?}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn ephemeral_partitions_get_their_file_system_and_keep_it() {
    let dir = artifacts::temp_dir("ephemeral").unwrap();
    let image = dir.path().join("root.raw");
    fs::File::create(&image).unwrap().set_len(8 * MIB).unwrap();
    tool("mke2fs", &["-q", "-F", "-t", "ext4", &image.to_string_lossy()]).unwrap();
    let file = kit::used_disk(dir.path().join(SCRATCH), 5, 512 * MIB, 24 * MIB).unwrap();
    let machine =
        Machine::boot("ephemeral", |vm| vm.disk(Disk::new(DiskBus::VirtioBlk, file.path()).serial(SCRATCH))).unwrap();
    let info = kit::image_info(&machine.bench, "/root.raw", "raw", &Content::File(image)).unwrap();
    let write = |more: Value| {
        let mut info = info.clone();
        let members: Map<String, Value> =
            Partitions { root_mb: 20, swap_mb: 0, ..Partitions::default() }.members(false);
        for (key, value) in members.into_iter().chain(more.as_object().cloned().unwrap_or_default()) {
            info[key] = value;
        }
        let node = json!({
            "instance_info": {"root_device": {"serial": SCRATCH}}, "properties": {"capabilities": "boot_mode:bios"},
        });
        let record = machine.step("deploy", "deploy", "write_image", json!({"image_info": info}), &node)?;
        kit::device(&record)
    };
    let place = format!("{}?offset={MIB}", file.path().display());
    for (format, signature_at, signature, label_at) in
        [("xfs", 0, &b"XFSB"[..], 108), ("vfat", 54, b"FAT1", 43), ("ext4", 1080, &[0x53, 0xef], 1144)]
    {
        write(json!({"ephemeral_mb": 400, "ephemeral_format": format}))
            .unwrap_or_else(|error| panic!("{format}: {error:#}"));
        assert_eq!(file.read(MIB + signature_at, signature.len()).unwrap(), signature, "{format}");
        assert_eq!(file.read(MIB + label_at, 10).unwrap(), b"ephemeral0", "{format}");
    }
    // Something of the tenant's, then the next image.
    tool("e2fsck", &["-f", "-n", &place]).unwrap();
    let uuid = file.read(MIB + 1128, 16).unwrap();
    file.fill(9, 390 * MIB, MIB).unwrap();
    write(json!({"ephemeral_mb": 400, "preserve_ephemeral": true})).unwrap();
    assert_eq!(file.read(MIB + 1128, 16).unwrap(), uuid);
    file.check_fill(9, 390 * MIB, MIB).unwrap();
}
