//! The operating system image that demonstration and deploy tests write, started without any deploying: what is broken
//! here is the image and not the agent.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use ferric_qemu::lab::configdrive::ConfigDrive;
use ferric_qemu::os_image::{DiskLabel, ImageFormat, Qcow2Kind, Recipe};
use ferric_qemu::{Disk, DiskBus, DiskFile, DiskFormat, Firmware, Vm, VmBuilder, artifacts};
use serde_json::json;

const UP: Duration = Duration::from_secs(40);
const MIB: u64 = 1 << 20;

fn image(recipe: &Recipe) -> Result<PathBuf> {
    Ok(recipe.make(&artifacts::build_dir()?.join("cache"))?.path)
}

fn copy(recipe: &Recipe, disk: &Path) -> Result<()> {
    DiskFile::existing(image(recipe)?, DiskFormat::Raw).to_raw(disk).map(drop)
}

fn drive(hostname: &str, poweroff: bool) -> Result<Vec<u8>> {
    let mut drive = ConfigDrive::new("1be26c0b-03f2-4d2e-ae87-c02d7f33c123", hostname);
    drive.meta_data["poweroff"] = json!(poweroff);
    drive.user_data = b"#cloud-config one\nsecond line\n".to_vec();
    drive.iso()
}

/// A disk of 1200 MiB with the image and, in a partition of its own at its end, the config drive.
fn deployed(dir: &Path, recipe: &Recipe, drive: &[u8]) -> Result<PathBuf> {
    let disk = dir.join("disk.raw");
    copy(recipe, &disk)?;
    File::options().write(true).open(&disk)?.set_len(1200 * MIB)?;
    let mut command = match recipe.label {
        DiskLabel::Gpt => {
            let mut command = Command::new("sgdisk");
            command.args(["-e", "-n", "0:1130M:1190M", "-c", "0:config-2"]);
            command
        }
        DiskLabel::Mbr => {
            let script = dir.join("script");
            fs::write(&script, format!("start={}, size={}, type=83\n", 1130 * MIB / 512, 60 * MIB / 512))?;
            let mut command = Command::new("sfdisk");
            command.args(["-q", "-a", "-N", "2"]).stdin(File::open(&script)?);
            command
        }
    };
    let output = command.arg(&disk).output()?;
    ensure!(output.status.success(), "adding the config drive's partition: {output:?}");
    DiskFile::existing(&disk, DiskFormat::Raw).write(1130 * MIB, drive)?;
    Ok(disk)
}

fn start(name: &str, disk: Disk) -> VmBuilder {
    Vm::builder(name).memory_mib(256).disk_boot().disk(disk)
}

fn expect(vm: &Vm, lines: &[&str]) -> Result<()> {
    lines.iter().try_for_each(|line| vm.console().wait_for(*line, vm.limit(UP)).map(drop))
}

#[test]
fn gpt_image_starts_by_bios_and_reads_its_config_drive() {
    let dir = artifacts::temp_dir("os-image").unwrap();
    let recipe = Recipe::new(DiskLabel::Gpt, ImageFormat::Raw);
    let disk = deployed(dir.path(), &recipe, &drive("node-1.example.org", false).unwrap()).unwrap();
    let vm = start("os-image-bios", Disk::new(DiskBus::VirtioBlk, disk)).start().unwrap();
    expect(
        &vm,
        &[
            "FERRIC-DEMO-OS up: Debian GNU/Linux 12",
            "FERRIC-DEMO-OS configdrive hostname=node-1.example.org",
            "FERRIC-DEMO-OS user_data: #cloud-config one",
        ],
    )
    .unwrap();
    vm.press_power_button().unwrap();
    assert!(vm.wait_shutdown(vm.limit(Duration::from_secs(20))).unwrap().by_guest);
}

#[test]
fn gpt_image_starts_by_uefi_from_nvme_and_powers_off_when_the_config_drive_says_so() {
    let dir = artifacts::temp_dir("os-image").unwrap();
    let recipe = Recipe::new(DiskLabel::Gpt, ImageFormat::Raw);
    let disk = deployed(dir.path(), &recipe, &drive("node-2.example.org", true).unwrap()).unwrap();
    let vm = start("os-image-uefi", Disk::new(DiskBus::Nvme, disk)).firmware(Firmware::uefi()).start().unwrap();
    expect(&vm, &["FERRIC-DEMO-OS configdrive hostname=node-2.example.org", "FERRIC-DEMO-OS power off as asked"])
        .unwrap();
    assert!(vm.wait_shutdown(vm.limit(Duration::from_secs(20))).unwrap().by_guest);
}

#[test]
fn mbr_image_starts_by_bios_from_sata_and_reads_its_config_drive() {
    let dir = artifacts::temp_dir("os-image").unwrap();
    let recipe = Recipe::new(DiskLabel::Mbr, ImageFormat::Raw);
    let disk = deployed(dir.path(), &recipe, &drive("node-3.example.org", true).unwrap()).unwrap();
    let vm = start("os-image-mbr", Disk::new(DiskBus::Ahci, disk)).start().unwrap();
    expect(&vm, &["FERRIC-DEMO-OS up: ", "FERRIC-DEMO-OS configdrive hostname=node-3.example.org"]).unwrap();
    assert!(vm.wait_shutdown(vm.limit(Duration::from_secs(20))).unwrap().by_guest);
}

#[test]
fn image_for_4kn_disks_starts_by_uefi_with_no_config_drive() {
    let dir = artifacts::temp_dir("os-image").unwrap();
    let recipe = Recipe { sector_bytes: 4096, ..Recipe::new(DiskLabel::Gpt, ImageFormat::Raw) };
    let disk = dir.path().join("disk.raw");
    copy(&recipe, &disk).unwrap();
    let disk = Disk::new(DiskBus::Nvme, disk).block_size(4096, 4096);
    let vm = start("os-image-4kn", disk).firmware(Firmware::uefi()).start().unwrap();
    expect(&vm, &["FERRIC-DEMO-OS up: ", "FERRIC-DEMO-OS configdrive none"]).unwrap();
}

#[test]
fn every_qcow2_kind_holds_the_same_disk() {
    let raw = image(&Recipe::new(DiskLabel::Gpt, ImageFormat::Raw)).unwrap();
    for kind in Qcow2Kind::ALL {
        let qcow2 = image(&Recipe::new(DiskLabel::Gpt, ImageFormat::Qcow2(kind))).unwrap();
        let compared = Command::new("qemu-img").arg("compare").arg(&raw).arg(&qcow2).output().unwrap();
        assert!(compared.status.success(), "{kind:?}: {compared:?}");
    }
}
