//! Config drives of any size, on disks of any kind: on a machine with 128 MiB they arrive whole or are refused in words; none is
//! the end of the agent.

use std::io::{Cursor, Read as _, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use ferric_qemu::conductor::AgentClient;
use ferric_qemu::disk_file::pattern;
use ferric_qemu::lab::configdrive::{ConfigDrive, encode};
use ferric_qemu::os_image::{DiskLabel, tiny_raw};
use ferric_qemu::{Content, Disk, DiskBus, DiskFile, VmBuilder, artifacts};
use ferric_tests::{Bench, Bundle, Plan};
use serde_json::{Value, json};

use crate::kit::{self, MIB};
use crate::{inject, secrets};

const DISK_BYTES: u64 = 128 * MIB;
/// More than an MBR can tell of.
const HUGE_BYTES: u64 = 3 << 40;

/// Bytes that do not compress.
fn volume(size_bytes: u64, seed: u64) -> Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(size_bytes)?];
    pattern(seed, 0, &mut bytes);
    Ok(bytes)
}

struct Rig {
    bench: Bench,
    agent: AgentClient,
    disk: DiskFile,
    info: Value,
}

#[test]
fn large_config_drives_arrive_whole_or_are_refused() {
    let dir = artifacts::temp_dir("config-drives").unwrap();
    let rig = rig("config_drives", "", dir.path(), Ok).unwrap();
    inside_the_request(&rig).unwrap();
    as_ironic_sends_it(&rig).unwrap();
    from_a_server(&rig).unwrap();
    assert_eq!(rig.bench.worker_ends(), 0, "the agent did not survive");
}

#[test]
fn config_drives_have_a_place_on_any_disk_and_no_secret_is_told() {
    let dir = artifacts::temp_dir("config-places").unwrap();
    let disk = |name: &str, size| DiskFile::create_raw(dir.path().join(name), size).unwrap();
    let (large_sectors, huge) = (disk("large-sectors", DISK_BYTES), disk("huge", HUGE_BYTES));
    let attached = |vm: VmBuilder| {
        Ok(vm
            .disk(Disk::new(DiskBus::Nvme, large_sectors.path()).serial("LARGE-SECTORS").block_size(4096, 4096))
            .disk(Disk::new(DiskBus::VirtioBlk, huge.path()).serial("HUGE")))
    };
    let rig = rig("config_places", "ipa-debug=1", dir.path(), attached).unwrap();
    as_large_as_it_may_be(&rig).unwrap();
    on_large_sectors(&rig, &large_sectors, dir.path()).unwrap();
    on_a_disk_too_large_for_its_table(&rig, &huge, dir.path()).unwrap();
    secrets::stay_secret(&rig.bench, &rig.agent, &rig.info).unwrap();
    assert_eq!(rig.bench.worker_ends(), 0, "the agent did not survive");
}

/// A machine with one disk, and more that `attached` adds.
fn rig(name: &str, cmdline: &str, dir: &Path, attached: impl FnOnce(VmBuilder) -> Result<VmBuilder>) -> Result<Rig> {
    let disk = DiskFile::create_raw(dir.join("disk"), DISK_BYTES)?;
    let mut plan = Plan::new(name);
    plan.cmdline = format!("{} {cmdline}", kit::SHORT);
    let bench = plan.boot(|vm| attached(vm.disk(Disk::new(DiskBus::VirtioBlk, disk.path()).serial("ROOT"))))?;
    let image = dir.join("image.raw");
    tiny_raw(&image, DiskLabel::Gpt, 20 * MIB)?;
    let info = kit::image_info(&bench, "/image.raw", "raw", &Content::File(image))?;
    let agent = bench.agent()?;
    Ok(Rig { bench, agent, disk, info })
}

impl Rig {
    /// Checks what is in the partition at the end of the disk.
    fn check(&self, volume: &[u8]) -> Result<()> {
        let partitions = kit::sound_gpt(&self.disk, 512)?;
        let (start, _) = *partitions.get(1).with_context(|| format!("no second partition: {partitions:?}"))?;
        self.disk.check(start, volume)
    }
}

/// 64 MiB, half of what the machine has, and only a few of them are ever in memory.
fn as_large_as_it_may_be(rig: &Rig) -> Result<()> {
    let volume = volume(16 << 10, 4)?.repeat(4 << 10);
    ensure!(u64::try_from(volume.len())? == 64 * MIB);
    let drive = encode(&volume)?;
    kit::device(&kit::write(&rig.bench, &rig.agent, &rig.info, Some(&drive), &json!({"serial": "ROOT"}))?)?;
    rig.check(&volume)?;
    let peak_kib = Bundle::of(&rig.agent)?.worker_peak_kib()?;
    ensure!(peak_kib <= 32 << 10, "the worker took {peak_kib} KiB");
    Ok(())
}

/// A FAT with sectors of 512 bytes, which no kernel mounts from a disk with larger ones (pitfall C20). The ramdisk's own kernel
/// then mounts what has become of it, to put a file there.
fn on_large_sectors(rig: &Rig, disk: &DiskFile, dir: &Path) -> Result<()> {
    const META: &str = "openstack/latest/meta_data.json";
    let mut fat = Cursor::new(vec![0; 8 << 20]);
    fatfs::format_volume(&mut fat, fatfs::FormatVolumeOptions::new().volume_label(*b"config-2   "))?;
    let fs = fatfs::FileSystem::new(&mut fat, fatfs::FsOptions::new())?;
    for directory in ["openstack", "openstack/latest"] {
        fs.root_dir().create_dir(directory)?;
    }
    fs.root_dir().create_file(META)?.write_all(b"{}")?;
    fs.unmount()?;
    let image = dir.join("4k.raw");
    kit::gpt_image(&image, 4096, 20 * MIB, 77)?;
    let info = kit::image_info(&rig.bench, "/4k.raw", "raw", &Content::File(image))?;
    let drive = encode(fat.get_ref())?;
    kit::device(&kit::write(&rig.bench, &rig.agent, &info, Some(&drive), &json!({"serial": "LARGE-SECTORS"}))?)?;
    let files = json!([{"path": "/openstack/latest/by-the-kernel", "partition": 2, "content": "eA=="}]);
    let record = inject::inject(&rig.bench, &rig.agent, "LARGE-SECTORS", &json!(null), &files)?;
    ensure!(record.command_status == "SUCCEEDED", "{record:?}");
    let partitions = kit::sound_gpt(disk, 4096)?;
    let (start, end) = *partitions.get(1).with_context(|| format!("no second partition: {partitions:?}"))?;
    let bytes = disk.read(start, usize::try_from(end - start)?)?;
    ensure!(bytes[11..13] == 4096_u16.to_le_bytes(), "sectors of another size: {:?}", &bytes[..64]);
    let fs = fatfs::FileSystem::new(Cursor::new(bytes), fatfs::FsOptions::new())?;
    ensure!(fs.read_volume_label_from_root_dir()?.as_deref() == Some("CONFIG-2"));
    for (path, want) in [(META, "{}"), ("openstack/latest/by-the-kernel", "x")] {
        let mut text = String::new();
        fs.root_dir().open_file(path)?.read_to_string(&mut text)?;
        ensure!(text == want, "{path}: {text}");
    }
    Ok(())
}

/// An MBR tells of 2 TiB only, and the end of this disk is behind them (pitfall C21).
fn on_a_disk_too_large_for_its_table(rig: &Rig, disk: &DiskFile, dir: &Path) -> Result<()> {
    let image = dir.join("mbr.raw");
    tiny_raw(&image, DiskLabel::Mbr, 8 * MIB)?;
    let info = kit::image_info(&rig.bench, "/mbr.raw", "raw", &Content::File(image))?;
    let iso = ConfigDrive::new(&rig.bench.uuid, "huge.example.org").iso()?;
    kit::device(&kit::write(&rig.bench, &rig.agent, &info, Some(&encode(&iso)?), &json!({"serial": "HUGE"}))?)?;
    let sector = disk.read(0, 512)?;
    let word = |at: usize| u64::from(u32::from_le_bytes([sector[at], sector[at + 1], sector[at + 2], sector[at + 3]]));
    let (start, sectors) = (word(446 + 16 + 8), word(446 + 16 + 12));
    ensure!(sectors * 512 >= 64 * MIB && start + sectors <= 1 << 32, "{sectors} sectors from {start}");
    ensure!((start + sectors) * 512 > (2 << 40) - 2 * MIB, "not at the end of what the table can tell: {start}");
    disk.check(start * 512, &iso)
}

/// As much as a request holds, once.
fn inside_the_request(rig: &Rig) -> Result<()> {
    let volume = volume(11 * MIB, 1)?;
    let drive = encode(&volume)?;
    let record = kit::write(&rig.bench, &rig.agent, &rig.info, Some(&drive), &json!({"serial": "ROOT"}))?;
    kit::device(&record)?;
    let echo = &record.command_result["deploy_step"]["args"];
    ensure!(echo["configdrive"] == "******" && echo["image_info"] == rig.info, "not the step that was sent: {echo}");
    rig.check(&volume)?;
    let more = encode(&vec![0; 1024])? + &"A".repeat(16 << 20);
    let error = kit::write(&rig.bench, &rig.agent, &rig.info, Some(&more), &json!({"serial": "ROOT"})).unwrap_err();
    ensure!(format!("{error:#}").contains("413"), "{error:#}");
    Ok(())
}

/// Three times in one request: as an argument, inside `image_info`, and in the node.
fn as_ironic_sends_it(rig: &Rig) -> Result<()> {
    let volume = volume(7 * MIB / 2, 2)?;
    let drive = encode(&volume)?;
    let mut info = rig.info.clone();
    info["configdrive"] = json!(drive);
    rig.bench.conductor.update_node(&rig.bench.uuid, |node| {
        node.instance_info.insert("configdrive".to_owned(), json!(drive));
    })?;
    kit::device(&kit::write(&rig.bench, &rig.agent, &info, Some(&drive), &json!({"serial": "ROOT"}))?)?;
    rig.check(&volume)?;
    rig.bench.conductor.update_node(&rig.bench.uuid, |node| drop(node.instance_info.remove("configdrive")))
}

/// The image itself, base64 of gzip, and more than there is memory for.
fn from_a_server(rig: &Rig) -> Result<()> {
    let deploy = |path: &str| {
        let url = rig.bench.images.guest_url(path);
        kit::write(&rig.bench, &rig.agent, &rig.info, Some(&url), &json!({"serial": "ROOT"}))
    };
    for (path, size_bytes, is_packed) in [("/plain", 16 * MIB, false), ("/packed", 12 * MIB, true)] {
        let volume = volume(size_bytes, size_bytes)?;
        let content = if is_packed { encode(&volume)?.into_bytes() } else { volume.clone() };
        rig.bench.images.add(path, Content::bytes(content));
        kit::device(&deploy(path)?).context(path)?;
        rig.check(&volume).context(path)?;
    }
    let before = kit::digest(&rig.disk)?;
    for (path, size_bytes) in [("/memory", 63 * MIB), ("/most", 100 * MIB)] {
        rig.bench.images.add(path, Content::bytes(volume(size_bytes, 3)?));
        kit::check_failed(path, &deploy(path)?, "DeploymentError", &["does not fit into the", "memory"])?;
    }
    ensure!(kit::digest(&rig.disk)? == before, "a refused config drive changed the disk");
    Ok(())
}
