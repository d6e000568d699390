//! Images of one file system that bring no loader, mean harm or cannot be booted by the machine's firmware; and firmware that
//! takes no boot entry.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ferric_qemu::conductor::ProvisionState;
use ferric_qemu::{Boot, Content, Disk, DiskBus, DiskFile, Image, Vm, artifacts};
use ferric_tests::{Plan, trivial_initramfs};
use serde_json::{Value, json};

use crate::efi::{self, Store};
use crate::kit::{self, MIB};
use crate::partition::{SMALL_BYTES, SMALL_UUID, Small, fat, small_image, tool};
use crate::traps;

/// An ext4 file system with what an image may have under `/boot/efi/EFI/BOOT` to get at the agent's own files: links out of
/// it, a device and a pipe; its table of file systems is a link, too. Its superblock wants the machine halted at any damage.
fn hostile_image(dir: &Path) -> Result<std::path::PathBuf> {
    let (tree, path) = (dir.join("tree"), dir.join("hostile.raw"));
    let place = tree.join("boot/efi/EFI/BOOT");
    fs::create_dir_all(&place)?;
    fs::create_dir_all(tree.join("etc"))?;
    let links = [("BOOTX64.EFI", "/proc/1/environ"), ("up.efi", "../../../../../../../../etc/passwd"), ("self", "..")];
    for (name, target) in links {
        symlink(target, place.join(name))?;
    }
    symlink("/etc/passwd", tree.join("etc/fstab"))?;
    traps::set(&tree, SMALL_UUID)?;
    File::create(&path)?.set_len(SMALL_BYTES)?;
    let name = path.to_string_lossy();
    tool("mke2fs", &["-q", "-F", "-t", "ext4", "-e", "panic", "-U", SMALL_UUID, "-d", &tree.to_string_lossy(), &name])?;
    let script = dir.join("script");
    fs::write(&script, "cd /boot/efi/EFI/BOOT\nmknod device.efi c 1 5\nmknod pipe.efi p\n")?;
    tool("debugfs", &["-w", "-f", &script.to_string_lossy(), &name])?;
    Ok(path)
}

/// A file that only begins like a file system.
fn pretended(dir: &Path, name: &str, parts: &[(usize, &[u8])]) -> Result<std::path::PathBuf> {
    let mut bytes = vec![0; 2 << 20];
    for (offset, part) in parts {
        bytes[*offset..*offset + part.len()].copy_from_slice(part);
    }
    let path = dir.join(name);
    fs::write(&path, bytes)?;
    Ok(path)
}

#[test]
fn images_that_bring_no_loader_or_mean_harm_are_refused_in_words() {
    let dir = artifacts::temp_dir("partition-hostile").unwrap();
    let dir = dir.path();
    let disk = kit::used_disk(dir.join("disk.raw"), 5, 1024 * MIB, 24 * MIB).unwrap();
    // So little room is left that the kernel keeps it for the firmware itself.
    let vars = dir.join("vars.fd");
    fill_store(&vars, dir).unwrap();
    let mut plan = Plan::new("partition-hostile");
    plan.state = ProvisionState::DeployWait;
    plan.cmdline = kit::SHORT.to_owned();
    let bench = plan
        .boot(|vm| {
            let disk = Disk::new(DiskBus::Nvme, disk.path()).serial("ROOT");
            Ok(vm.memory_mib(256).uefi_with_vars(&vars).disk(disk))
        })
        .unwrap();
    let agent = bench.agent().unwrap();
    let mut small = Small { bench, agent, info: Value::Null };
    let uuid = u128::from_str_radix(&SMALL_UUID.replace('-', ""), 16).unwrap().to_be_bytes();
    let xfs = pretended(dir, "xfs.raw", &[(0, b"XFSB"), (32, &uuid)]).unwrap();
    let broken = pretended(dir, "broken.raw", &[(1080, &[0x53, 0xef]), (1128, &uuid)]).unwrap();
    for (image, words) in [
        (
            xfs,
            "copying the image's boot loader to the EFI system partition: the kernel of this ramdisk has no driver for the \
             file system on /dev/nvme0n1p3 (xfs)",
        ),
        (broken, "mounting the ext4 file system on /dev/nvme0n1p3"),
        (small_image(dir).unwrap(), "the image on /dev/nvme0n1p3 has no directory /boot/efi/EFI"),
        (
            hostile_image(dir).unwrap(),
            "The EFI system partition of /dev/nvme0n1 holds no boot loader that could be started",
        ),
    ] {
        let name = format!("/{}", image.file_name().unwrap().to_string_lossy());
        small.info = kit::image_info(&small.bench, &name, "raw", &Content::File(image)).unwrap();
        // Each on the disk of the one before: nothing of it is mounted any more.
        kit::device(&small.write("ROOT", "boot_mode:uefi", json!({}), None).unwrap()).unwrap();
        let record = small.boot_loader("uefi", None).unwrap();
        kit::check_failed(&name, &record, "InvalidImage", &[words]).unwrap();
        let record = small.boot_loader("uefi", Some(true)).unwrap();
        assert_eq!(record.command_status, "SUCCEEDED", "{name}: {record:?}");
    }
    let esp = fat(&disk, MIB, 550 * MIB).unwrap();
    let boot = esp.root_dir().open_dir("EFI/BOOT").unwrap();
    let names: Vec<String> = boot.iter().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, [".", ".."], "something of the agent or the image's devices is on the ESP");
    assert_eq!(traps::note(disk.path(), 561 * MIB).unwrap(), "", "a program of the image was run");
    image_for_bios(&small, dir, &disk).unwrap();
    full_store(&mut small, dir).unwrap();
    small.bench.vm().kill();
    let left = Store::read(&vars).unwrap();
    assert!(left.entries("vendor").is_empty(), "an entry was made in a store with {} bytes left", left.free_bytes());
    let vm = Vm::builder("partition-fallback").memory_mib(256).uefi_with_vars(&vars).boot(Boot::Firmware);
    let vm = vm.disk(Disk::new(DiskBus::Nvme, disk.path())).start().unwrap();
    vm.console().wait_for(efi::MENU, vm.limit(Duration::from_secs(30))).unwrap();
}

/// Bytes that are left in the firmware's store: enough for what OVMF writes at each start, and less than what Linux keeps
/// free for the firmware (5 KiB).
const STORE_LEFT: usize = 4000;

/// Has the firmware write what it wants at its first start, up to the kernel's, and fills up the rest. The build with the
/// smallest store takes the least time to clear up one that is nearly full, which it does at each start.
fn fill_store(vars: &Path, dir: &Path) -> Result<()> {
    fs::copy(artifacts::ovmf_builds().last().context("no OVMF firmware")?.vars.as_path(), vars)?;
    let image = Image { initramfs: trivial_initramfs(dir)?, ..Image::built("virt")? };
    let vm = Vm::builder("partition-store").memory_mib(256).uefi_with_vars(vars).direct_boot(&image, "console=ttyS0");
    let vm = vm.start()?;
    vm.console().wait_for("EFI stub", vm.limit(Duration::from_secs(20)))?;
    vm.kill();
    let mut store = Store::read(vars)?;
    store.fill(STORE_LEFT)?;
    store.write(vars)
}

/// An image of a whole disk that UEFI cannot boot is refused before anything is written.
fn image_for_bios(small: &Small, dir: &Path, disk: &DiskFile) -> Result<()> {
    let path = dir.join("bios.raw");
    let mut image = File::options().read(true).write(true).create_new(true).open(&path)?;
    image.set_len(8 * MIB)?;
    let mut mbr = mbrman::MBR::new_from(&mut image, 512, [1, 2, 3, 4])?;
    mbr[1] = mbrman::MBRPartitionEntry {
        boot: mbrman::BOOT_ACTIVE,
        first_chs: mbrman::CHS::empty(),
        sys: 0x83,
        last_chs: mbrman::CHS::empty(),
        starting_lba: 2048,
        sectors: 4096,
    };
    mbr.write_into(&mut image)?;
    let before = disk.read(0, 2 << 20)?;
    let info = kit::image_info(&small.bench, "/bios.raw", "raw", &Content::File(path))?;
    let record = kit::write(&small.bench, &small.agent, &info, None, &json!({"serial": "ROOT"}))?;
    let words = ["this machine boots by UEFI", "an MBR with 1 partition(s), so it is made for BIOS"];
    kit::check_failed("BIOS", &record, "InvalidImage", &words)?;
    ensure!(disk.read(0, 2 << 20)? == before, "something was written");
    Ok(())
}

/// The firmware has no room for an entry: what boots is a copy of the loader, and the operator is told.
fn full_store(small: &mut Small, dir: &Path) -> Result<()> {
    let info = kit::image_info(&small.bench, "/whole.raw", "raw", &Content::File(efi::whole_disk(dir)?))?;
    kit::device(&kit::write(&small.bench, &small.agent, &info, None, &json!({"serial": "ROOT"}))?)?;
    let record = small.install_boot_loader(json!("0x00000000"), "uefi", None)?;
    ensure!(record.command_status == "SUCCEEDED", "{record:?}");
    let text = record.command_result["result"].as_str().unwrap_or_default();
    let words = [
        "no boot entry was made, because the firmware",
        "boots by a copy of the image's own loader in \\EFI\\BOOT\\BOOTX64.EFI",
    ];
    ensure!(words.iter().all(|word| text.contains(word)), "{text:?}");
    // A kernel that knows how much room there is, or one that only finds out.
    ensure!(text.contains("bytes left, of which") || text.contains("No space left on device"), "{text:?}");
    Ok(())
}
