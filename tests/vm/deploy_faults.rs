//! Deploying when something goes wrong: whatever it is, a disk either holds the whole image or does not boot, a disk that was
//! not meant is not touched, and the error says what happened.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ferric_qemu::conductor::{AgentClient, CommandRecord, ProvisionState};
use ferric_qemu::lab::configdrive::{ConfigDrive, encode};
use ferric_qemu::os_image::{DiskLabel, Qcow2Kind, qcow2_from, tiny_raw};
use ferric_qemu::{Content, Disk, DiskBus, DiskFile, Fault, FaultyIo, IoFault, VmBuilder, artifacts};
use ferric_tests::{Bench, Plan};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::kit::{self, MIB};

const IMAGE_BYTES: u64 = 12 * MIB;
const TARGET_BYTES: u64 = 16 * MIB;
const SMALL_BYTES: u64 = 8 * MIB;
/// Pattern of what was on the disks before.
const OLD: u64 = 3;
/// A sector that cannot be written, on one of the disks.
const BAD_SECTOR: u64 = 6 * MIB / 512;

/// One machine for all of it: `TARGET` is written to, `SMALL` is too small, `BROKEN` has a bad sector, `FORGETS` cannot put
/// anything on its medium, `LIES` takes everything and keeps nothing, `OTHER` is never meant.
struct Rig {
    dir: TempDir,
    disks: [DiskFile; 6],
    /// Digests of the disks before anything was written.
    fresh: Vec<String>,
    bench: Bench,
    agent: AgentClient,
}

impl Rig {
    fn boot() -> Result<Self> {
        let dir = artifacts::temp_dir("deploy-faults")?;
        let disk = |name: &str, size| kit::used_disk(dir.path().join(name), OLD, size, size);
        let disks = [
            disk("TARGET", TARGET_BYTES)?,
            disk("SMALL", SMALL_BYTES)?,
            disk("BROKEN", TARGET_BYTES)?,
            disk("OTHER", TARGET_BYTES)?,
            disk("FORGETS", TARGET_BYTES)?,
            disk("LIES", TARGET_BYTES)?,
        ];
        tiny_raw(&dir.path().join("gpt.raw"), DiskLabel::Gpt, IMAGE_BYTES)?;
        let mut plan = Plan::new("deploy-faults");
        plan.state = ProvisionState::DeployWait;
        plan.cmdline = format!("{} ipa-image-read-back=1", kit::SHORT);
        let bench = plan.boot(|vm| Ok(attached(vm, &disks)))?;
        let agent = bench.agent()?;
        let fresh = disks.iter().map(kit::digest).collect::<Result<_>>()?;
        Ok(Self { dir, disks, fresh, bench, agent })
    }

    fn target(&self) -> &DiskFile {
        &self.disks[0]
    }

    fn raw_image(&self) -> std::path::PathBuf {
        self.dir.path().join("gpt.raw")
    }

    /// The image at a path of its own, so that faults and requests of one case do not mix with those of another.
    fn raw(&self, path: &str) -> Result<Value> {
        kit::image_info(&self.bench, path, "raw", &Content::File(self.raw_image()))
    }

    fn write(&self, info: &Value) -> Result<CommandRecord> {
        kit::write(&self.bench, &self.agent, info, None, &json!({"serial": "TARGET"}))
    }

    /// The image is there, and its table is in order.
    fn check_whole(&self, record: &CommandRecord) -> Result<()> {
        kit::device(record)?;
        kit::check_content(self.target(), &self.raw_image(), 512)?;
        kit::sound_gpt(self.target(), 512).map(drop)
    }

    /// Nothing that firmware or a kernel takes for a partition table or boot code is on the disk.
    fn check_dead(&self, disk: &DiskFile) -> Result<()> {
        disk.check_zero(0, MIB)?;
        disk.check_zero(disk.len_bytes()? - 64 * 1024, 64 * 1024)
    }

    /// Every disk holds what it held before anything was written.
    fn check_untouched(&self) -> Result<()> {
        (0..self.disks.len()).try_for_each(|index| self.check_fresh(index))
    }

    fn check_fresh(&self, index: usize) -> Result<()> {
        let disk = &self.disks[index];
        ensure!(kit::digest(disk)? == self.fresh[index], "{} has changed", disk.path().display());
        Ok(())
    }

    /// Waits until a running command has done more than `bytes`.
    fn wait_for_bytes(&self, started: &CommandRecord, bytes: u64) -> Result<()> {
        let end = Instant::now() + self.bench.limit(20);
        loop {
            let record = kit::current(&self.agent, started)?;
            ensure!(record.is_running() && Instant::now() < end, "{record:?}");
            let done = record.extra.get("progress").and_then(|progress| progress["done_bytes"].as_u64());
            if done.is_some_and(|done| done > bytes) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Brings back the old content of the target.
    fn refill(&self) -> Result<()> {
        kit::refill(self.target(), OLD, TARGET_BYTES)
    }
}

fn attached(vm: VmBuilder, disks: &[DiskFile; 6]) -> VmBuilder {
    let [target, small, broken, other, forgets, lies] = disks;
    let fault = IoFault { io: FaultyIo::Write, sector: Some(BAD_SECTOR), errno: 5, once: false };
    let no_flush = IoFault { io: FaultyIo::Flush, sector: None, errno: 5, once: false };
    vm.hotplug_slots(PULLED.len())
        .disk(Disk::new(DiskBus::VirtioBlk, target.path()).serial("TARGET"))
        .disk(Disk::new(DiskBus::Nvme, small.path()).serial("SMALL"))
        .disk(Disk::new(DiskBus::VirtioBlk, broken.path()).serial("BROKEN").fault(fault))
        .disk(Disk::new(DiskBus::Ahci, other.path()).serial("OTHER"))
        .disk(Disk::new(DiskBus::VirtioBlk, forgets.path()).serial("FORGETS").durable().fault(no_flush))
        .disk(Disk::new(DiskBus::VirtioBlk, lies.path()).serial("LIES").loses_writes())
}

#[test]
fn no_fault_leaves_half_an_image_that_boots() {
    let mut rig = Rig::boot().unwrap();
    refused_before_anything_is_written(&rig).unwrap();
    servers_that_refuse(&rig).unwrap();
    hostile_files(&rig).unwrap();
    formats_that_are_not_as_declared(&rig).unwrap();
    wrong_checksum(&rig).unwrap();
    cut_download_goes_on(&rig).unwrap();
    changed_image_is_begun_again(&rig).unwrap();
    busy_server_is_asked_again(&rig).unwrap();
    silent_server(&rig).unwrap();
    pulled_cable(&rig).unwrap();
    broken_disk(&rig).unwrap();
    pulled_disks(&rig).unwrap();
    power_cut(&mut rig).unwrap();
}

/// Wrong hints, images that do not fit, config drives that are none.
fn refused_before_anything_is_written(rig: &Rig) -> Result<()> {
    let (bench, agent) = (&rig.bench, &rig.agent);
    let target = json!({"serial": "TARGET"});
    let info = rig.raw("/fits.raw")?;
    let record = kit::write(bench, agent, &info, None, &json!({"serial": "NOT-HERE"}))?;
    kit::check_failed("wrong hint", &record, "DeviceNotFound", &["NOT-HERE"])?;
    let record = kit::write(bench, agent, &info, None, &json!({"colour": "red"}))?;
    kit::check_failed("unknown hint", &record, "DeviceNotFound", &["colour"])?;
    let record = kit::write(bench, agent, &info, None, &Value::Null)?;
    kit::check_failed("no disk of 4 GiB", &record, "DeviceNotFound", &["4294967296"])?;

    let qcow2 = Content::File(qcow2_from(&rig.raw_image(), Qcow2Kind::Zlib)?);
    for (case, info) in [("raw", &info), ("qcow2", &kit::image_info(bench, "/fits.qcow2", "qcow2", &qcow2)?)] {
        let record = kit::write(bench, agent, info, None, &json!({"serial": "SMALL"}))?;
        let (need, have) = (IMAGE_BYTES.to_string(), SMALL_BYTES.to_string());
        kit::check_failed(case, &record, "ImageWriteError", &[need.as_str(), have.as_str(), "/dev/nvme0n1"])?;
    }

    let for_4k = rig.dir.path().join("4k.raw");
    kit::gpt_image(&for_4k, 4096, IMAGE_BYTES, 77)?;
    let for_4k = kit::image_info(bench, "/4k.raw", "raw", &Content::File(for_4k))?;
    let record = kit::write(bench, agent, &for_4k, None, &target)?;
    kit::check_failed("sectors", &record, "ImageWriteError", &["sectors of 4096 bytes", "has sectors of 512 bytes"])?;

    let large = encode(&vec![0; usize::try_from(64 * MIB + 1)?])?;
    bench.images.add("/large-drive", Content::bytes(large));
    let (too_large, missing) = (bench.images.guest_url("/large-drive"), bench.images.guest_url("/no-drive"));
    for (case, drive, words) in [
        ("too large", too_large.as_str(), ["64MiB", bench.uuid.as_str()]),
        ("not base64", "no base64!", ["not base64", bench.uuid.as_str()]),
        ("not gzip", "bm8gZ3ppcA==", ["decompressing", bench.uuid.as_str()]),
        ("missing", missing.as_str(), ["404", "/no-drive"]),
    ] {
        let record = kit::write(bench, agent, &info, Some(drive), &target)?;
        kit::check_failed(&format!("config drive {case}"), &record, "DeploymentError", &words)?;
    }
    rig.check_untouched()
}

/// 4xx is final: one request, no pause, nothing written.
fn servers_that_refuse(rig: &Rig) -> Result<()> {
    let images = &rig.bench.images;
    let missing = rig.raw("/missing.raw")?;
    images.remove("/missing.raw");
    let secret = rig.raw("/secret.raw")?;
    images.require_basic_auth("/secret.raw", "reader", "s3cret-w0rd");
    let forbidden = rig.raw("/forbidden.raw")?;
    images.fault("/forbidden.raw", Fault::Status(403), None);
    for (path, info, status) in
        [("/missing.raw", missing, "404"), ("/secret.raw", secret, "401"), ("/forbidden.raw", forbidden, "403")]
    {
        let began = Instant::now();
        let record = rig.write(&info)?;
        kit::check_failed(path, &record, "ImageDownloadFatalError", &[status, path])?;
        ensure!(began.elapsed() < Duration::from_secs(10), "{path}: took {:?}", began.elapsed());
        let asked = images.requests_for(path);
        ensure!(asked.len() == 1, "{path}: {asked:?}");
    }
    rig.check_untouched()
}

/// Files that would have the agent read other files, use endless memory or write outside of the disk.
fn hostile_files(rig: &Rig) -> Result<()> {
    for (case, bytes, words) in hostile(rig.dir.path(), &rig.raw_image())? {
        let path = format!("/{case}.qcow2");
        let info = kit::image_info(&rig.bench, &path, "qcow2", &Content::bytes(bytes))?;
        let record = rig.write(&info)?;
        kit::check_failed(case, &record, "InvalidImage", words)?;
        rig.check_fresh(0).with_context(|| format!("after {case}"))?;
    }
    Ok(())
}

type Hostile = (&'static str, Vec<u8>, &'static [&'static str]);

fn hostile(dir: &Path, raw: &Path) -> Result<Vec<Hostile>> {
    let made = |name: &str, arguments: &[&str]| -> Result<Vec<u8>> {
        let path = dir.join(name);
        let mut command = Command::new(artifacts::program("qemu-img", "qemu-utils")?);
        let output = command.args(arguments).arg(&path).arg("8M").current_dir(dir).output()?;
        ensure!(output.status.success(), "{name}: {output:?}");
        Ok(std::fs::read(path)?)
    };
    let plain = std::fs::read(qcow2_from(raw, Qcow2Kind::Plain)?)?;
    // Fields of the header, big-endian (docs/interop/qcow2.txt of QEMU).
    let patched = |offset: usize, value: &[u8]| {
        let mut bytes = plain.clone();
        bytes[offset..offset + value.len()].copy_from_slice(value);
        bytes
    };
    let failed: &[&str] = &["Security: Image failed safety check"];
    Ok(vec![
        (
            "backing-file",
            made("b.qcow2", &["create", "-q", "-f", "qcow2", "-b", "gpt.raw", "-F", "raw"])?,
            &["backing file"],
        ),
        (
            "data-file",
            made("d.qcow2", &["create", "-q", "-f", "qcow2", "-o", "data_file=d.data,data_file_raw=on"])?,
            &["data file"],
        ),
        ("encrypted", patched(32, &2_u32.to_be_bytes()), &["encrypt"]),
        ("version", patched(4, &4_u32.to_be_bytes()), &["version"]),
        ("huge-cluster", patched(20, &22_u32.to_be_bytes()), failed),
        ("tiny-cluster", patched(20, &8_u32.to_be_bytes()), failed),
        ("huge-l1", patched(36, &u32::MAX.to_be_bytes()), failed),
        ("l1-outside", patched(40, &(1_u64 << 40).to_be_bytes()), &[]),
        ("unknown-feature", patched(72, &(1_u64 << 40).to_be_bytes()), failed),
        ("cut-header", plain[..60].to_vec(), failed),
    ])
}

/// Bytes at the start of a disk that a failed deployment zeroes.
const HEAD: usize = 1 << 20;

fn formats_that_are_not_as_declared(rig: &Rig) -> Result<()> {
    let as_qcow2 = kit::image_info(&rig.bench, "/raw-as-qcow2", "qcow2", &Content::File(rig.raw_image()))?;
    kit::check_failed("raw as qcow2", &rig.write(&as_qcow2)?, "InvalidImage", &["Expected format was qcow2"])?;
    let as_vmdk = kit::image_info(&rig.bench, "/raw-as-vmdk", "vmdk", &Content::File(rig.raw_image()))?;
    kit::check_failed("raw as vmdk", &rig.write(&as_vmdk)?, "InvalidImage", &["vmdk"])?;
    rig.check_untouched()?;
    // What is declared raw is written as it is and never looked into; it is no disk then, and that is said.
    let path = qcow2_from(&rig.raw_image(), Qcow2Kind::Plain)?;
    let as_raw = kit::image_info(&rig.bench, "/qcow2-as-raw", "raw", &Content::File(path.clone()))?;
    kit::check_failed("qcow2 as raw", &rig.write(&as_raw)?, "DeploymentError", &["partition table"])?;
    let file = std::fs::read(&path)?;
    let body = file.get(HEAD..HEAD + 4096).context("the image is too small for this test")?;
    ensure!(rig.target().read(1 << 20, 4096)? == body, "the bytes were not written as they are");
    // A deployment that failed takes the head away again.
    rig.target().check_zero(0, 1 << 20)?;
    rig.refill()
}

fn wrong_checksum(rig: &Rig) -> Result<()> {
    let mut info = rig.raw("/wrong-sum.raw")?;
    info["os_hash_value"] = json!("5".repeat(64));
    let record = rig.write(&info)?;
    let digest = Content::File(rig.raw_image()).sha256()?;
    kit::check_failed(
        "wrong checksum",
        &record,
        "ImageChecksumError",
        &["5".repeat(64).as_str(), digest.as_str(), "wrong-sum.raw"],
    )?;
    rig.check_dead(rig.target())?;
    // One byte that the network or the server got wrong is the same.
    rig.refill()?;
    let info = rig.raw("/bad-byte.raw")?;
    rig.bench.images.fault("/bad-byte.raw", Fault::Corrupt(IMAGE_BYTES / 2), None);
    kit::check_failed("bad byte", &rig.write(&info)?, "ImageChecksumError", &[digest.as_str()])?;
    rig.check_dead(rig.target())
}

fn cut_download_goes_on(rig: &Rig) -> Result<()> {
    for (case, ranges) in [("/cut.raw", true), ("/cut-without-ranges.raw", false)] {
        rig.refill()?;
        let info = rig.raw(case)?;
        rig.bench.images.fault(case, Fault::CutAfter(7 * MIB), Some(1));
        if !ranges {
            rig.bench.images.fault(case, Fault::NoRanges, None);
        }
        rig.check_whole(&rig.write(&info)?).context(case)?;
        let asked = rig.bench.images.requests_for(case);
        // Open-ended, unlike the looks at the header.
        let resumed = asked.iter().filter(|request| request.header("if-range").is_some());
        let from =
            resumed.filter_map(|request| request.header("range")?.strip_prefix("bytes=")?.strip_suffix('-')).next();
        let from: u64 = from.with_context(|| format!("{case}: no Range with If-Range: {asked:?}"))?.parse()?;
        if ranges {
            ensure!((MIB..=7 * MIB).contains(&from), "{case}: resumed at {from}");
            let sent: u64 = asked.iter().map(|request| request.sent_bytes).sum();
            ensure!(sent < IMAGE_BYTES + 4 * MIB, "{case}: {sent} bytes were sent for {IMAGE_BYTES}");
        }
    }
    Ok(())
}

/// Another file comes to the same place while the first one is on its way: never a mix of both.
fn changed_image_is_begun_again(rig: &Rig) -> Result<()> {
    rig.refill()?;
    let path = "/changed.raw";
    let info = rig.raw(path)?;
    let images = &rig.bench.images;
    images.add(path, Content::Pattern { seed: 8, len_bytes: IMAGE_BYTES });
    images.fault(path, Fault::CutAfter(5 * MIB), Some(1));
    let started = kit::start_write(&rig.bench, &rig.agent, &info, None, &json!({"serial": "TARGET"}))?;
    let end = Instant::now() + rig.bench.limit(20);
    // Cut at 5 MiB; the agent pauses for a second before it asks again.
    while !images.requests_for(path).iter().any(|request| request.sent_bytes >= 4 * MIB && !request.complete) {
        ensure!(Instant::now() < end, "the download does not begin: {:?}", images.requests_for(path));
        std::thread::sleep(Duration::from_millis(20));
    }
    images.add(path, Content::File(rig.raw_image()));
    rig.check_whole(&kit::ended(&rig.bench, &rig.agent, &started)?)
}

fn busy_server_is_asked_again(rig: &Rig) -> Result<()> {
    rig.refill()?;
    let info = rig.raw("/busy.raw")?;
    rig.bench.images.fault("/busy.raw", Fault::Status(503), Some(2));
    rig.check_whole(&rig.write(&info)?)?;
    let statuses: Vec<u16> = rig.bench.images.requests_for("/busy.raw").iter().map(|request| request.status).collect();
    ensure!(statuses.starts_with(&[503, 503, 200]), "{statuses:?}");
    Ok(())
}

fn silent_server(rig: &Rig) -> Result<()> {
    rig.refill()?;
    let info = rig.raw("/silent.raw")?;
    rig.bench.images.fault("/silent.raw", Fault::StallAfter(100_000), None);
    let began = Instant::now();
    let record = rig.write(&info)?;
    kit::check_failed("silent server", &record, "ImageDownloadError", &["silent.raw"])?;
    // Four seconds for each of two tries in two rounds, and pauses; ten times that would be no time limit at all.
    ensure!(began.elapsed() < rig.bench.limit(30), "it took {:?}", began.elapsed());
    rig.check_dead(rig.target())
}

/// The network is gone for longer than the limit of a read, then comes back.
fn pulled_cable(rig: &Rig) -> Result<()> {
    rig.refill()?;
    let path = "/cable.raw";
    let info = rig.raw(path)?;
    rig.bench.images.fault(path, Fault::Throttle(2 * MIB), None);
    let started = kit::start_write(&rig.bench, &rig.agent, &info, None, &json!({"serial": "TARGET"}))?;
    rig.wait_for_bytes(&started, 3 * MIB)?;
    rig.bench.vm().set_link(0, false)?;
    std::thread::sleep(Duration::from_secs(6));
    rig.bench.vm().set_link(0, true)?;
    rig.check_whole(&kit::ended(&rig.bench, &rig.agent, &started)?)
}

fn broken_disk(rig: &Rig) -> Result<()> {
    let info = rig.raw("/broken-disk.raw")?;
    let record = kit::write(&rig.bench, &rig.agent, &info, None, &json!({"serial": "BROKEN"}))?;
    let name = kit::names(&rig.agent)?["BROKEN"].clone();
    let place = format!("at {} of {name}", BAD_SECTOR * 512);
    kit::check_failed("broken disk", &record, "ImageWriteError", &[place.as_str(), "I/O error"])?;
    rig.check_dead(&rig.disks[2])?;
    // Success means that everything is on the medium, so an error of the flush is an error of the step.
    let record = kit::write(&rig.bench, &rig.agent, &info, None, &json!({"serial": "FORGETS"}))?;
    let name = kit::names(&rig.agent)?["FORGETS"].clone();
    let flushing = format!("flushing {name}");
    kit::check_failed("flush fails", &record, "ImageWriteError", &[flushing.as_str(), "I/O error"])?;
    rig.check_dead(&rig.disks[4])?;
    // So is a disk that does not give back what it took.
    let record = kit::write(&rig.bench, &rig.agent, &info, None, &json!({"serial": "LIES"}))?;
    let lost = format!("{} does not give back what was written to it", kit::names(&rig.agent)?["LIES"]);
    kit::check_failed(
        "writes are lost",
        &record,
        "ImageWriteError",
        &[lost.as_str(), "between its bytes 1048576 and"],
    )?;
    rig.check_fresh(1).context("the disk that was too small")?;
    rig.check_fresh(3).context("the disk that was never meant")
}

/// Disks that come later and are pulled in the middle of an image: the kernel calls them full, the agent must not.
const PULLED: [(&str, DiskBus); 2] = [("PULLED-VIRTIO", DiskBus::VirtioBlk), ("PULLED-NVME", DiskBus::Nvme)];

fn pulled_disks(rig: &Rig) -> Result<()> {
    for (index, (serial, bus)) in (rig.disks.len()..).zip(PULLED) {
        let file = kit::used_disk(rig.dir.path().join(serial), OLD, TARGET_BYTES, TARGET_BYTES)?;
        rig.bench.vm().plug_disk(&Disk::new(bus, file.path()).serial(serial), index)?;
        let end = Instant::now() + rig.bench.limit(10);
        while !kit::names(&rig.agent)?.contains_key(serial) {
            ensure!(Instant::now() < end, "{serial} does not come up");
        }
        let path = format!("/{serial}.raw");
        let info = rig.raw(&path)?;
        rig.bench.images.fault(&path, Fault::Throttle(2 * MIB), None);
        let started = kit::start_write(&rig.bench, &rig.agent, &info, None, &json!({"serial": serial}))?;
        rig.wait_for_bytes(&started, 3 * MIB)?;
        rig.bench.vm().unplug_disk(index, rig.bench.limit(10))?;
        let record = kit::ended(&rig.bench, &rig.agent, &started)?;
        kit::check_failed(serial, &record, "ImageWriteError", &["the disk is gone", "unplugged"])?;
        file.check_zero(0, MIB)?;
    }
    Ok(())
}

/// The power fails in the middle of an image; the disk does not boot then, and the next deploy works.
fn power_cut(rig: &mut Rig) -> Result<()> {
    rig.refill()?;
    let info = rig.raw("/power-cut.raw")?;
    rig.bench.images.fault("/power-cut.raw", Fault::Throttle(MIB), None);
    let started = kit::start_write(&rig.bench, &rig.agent, &info, None, &json!({"serial": "TARGET"}))?;
    // Well before the end, and with enough written that something must be seen on the disk.
    rig.wait_for_bytes(&started, 4 * MIB)?;
    rig.bench.vm().kill();
    rig.check_dead(rig.target())?;
    ensure!(rig.target().check_fill(OLD, MIB, MIB).is_err(), "nothing had been written when the power failed");

    let disks = rig.disks.clone();
    rig.bench.power_on(|vm| Ok(attached(vm.append_logs(), &disks)))?;
    let sequence = rig.bench.conductor.last_heartbeat_sequence();
    let limit = rig.bench.limit(20);
    rig.bench.conductor.wait_for_heartbeat_after(sequence, limit, |beat| beat.accepted())?;
    rig.agent = rig.bench.conductor.agent(&rig.bench.uuid)?;
    rig.bench.images.clear_faults("/power-cut.raw");
    let mut drive = ConfigDrive::new(&rig.bench.uuid, "after-the-cut.example.org");
    drive.user_data = b"x".to_vec();
    // The disk has no room for a partition of 64 MiB: said as such, with the image in place.
    let record = kit::write(&rig.bench, &rig.agent, &info, Some(&drive.encoded()?), &json!({"serial": "TARGET"}))?;
    kit::check_failed("no room", &record, "DeploymentError", &["config drive", "/dev/vda"])?;
    let record = rig.write(&info)?;
    rig.check_whole(&record)
}
