//! Deploying: images of every kind arrive whole on disks of every kind.

use std::fs::{self, File};
use std::io::{Cursor, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use ferric_qemu::conductor::{AgentClient, ProvisionState, Wait};
use ferric_qemu::lab::configdrive::{ConfigDrive, encode};
use ferric_qemu::os_image::{DiskLabel, Qcow2Kind, qcow2_from, tiny_raw};
use ferric_qemu::{Content, Disk, DiskBus, DiskFile, Fault, Throttle, artifacts};
use ferric_tests::{Bench, Bundle, Plan, note};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use crate::kit::{self, MIB};

const IMAGE_BYTES: u64 = 20 * MIB;
/// How much of a disk holds old data before an image comes.
const OLD_BYTES: u64 = 24 * MIB;
/// Serial, bus, sector size, and size in MiB: room for a config drive where one comes.
const DISKS: [(&str, DiskBus, u32, u64); 6] = [
    ("RAW", DiskBus::VirtioBlk, 512, 128),
    ("ZSTD", DiskBus::Nvme, 512, 64),
    ("ZLIB", DiskBus::Ahci, 512, 64),
    ("MBR", DiskBus::VirtioBlk, 512, 128),
    ("RAW-4K", DiskBus::VirtioScsi, 4096, 128),
    ("PLAIN-4K", DiskBus::Nvme, 4096, 64),
];

/// A disk that takes no more than a few requests a second, for an image of which little is there.
const LARGE_BYTES: u64 = 20 << 30;
const LARGE_DISK_BYTES: u64 = LARGE_BYTES + 32 * MIB;
const LARGE_IOPS: u64 = 150;
/// Distance and size of what is there, beginning behind the first MiB.
const LARGE_STEP_BYTES: u64 = 640 * MIB;
const LARGE_PART_BYTES: u64 = 256 << 10;

/// Raw images of three kinds, beside which qcow2 files are made, and a config drive.
struct Images {
    gpt: PathBuf,
    mbr: PathBuf,
    gpt_4k: PathBuf,
    large: PathBuf,
    drive: Vec<u8>,
}

impl Images {
    fn make(dir: &Path) -> Result<Self> {
        let [gpt, mbr, gpt_4k, large] = ["gpt.raw", "mbr.raw", "gpt4k.raw", "large.raw"].map(|name| dir.join(name));
        tiny_raw(&gpt, DiskLabel::Gpt, IMAGE_BYTES)?;
        tiny_raw(&mbr, DiskLabel::Mbr, IMAGE_BYTES)?;
        kit::gpt_image(&gpt_4k, 4096, IMAGE_BYTES, 77)?;
        let disk = DiskFile::create_raw(&large, LARGE_BYTES)?;
        kit::partition(&disk, 512, &[(MIB, LARGE_BYTES - MIB)], kit::TYPE_LINUX)?;
        // Every other page is zero, so that clusters shrink.
        for page in large_parts().flat_map(|start| (start..start + LARGE_PART_BYTES).step_by(8192)) {
            disk.fill(78, page, 4096)?;
        }
        Ok(Self { gpt, mbr, gpt_4k, large, drive: drive().iso()? })
    }
}

/// Where the large image has data.
fn large_parts() -> impl Iterator<Item = u64> {
    (MIB..LARGE_BYTES - MIB).step_by(usize::try_from(LARGE_STEP_BYTES).unwrap_or(usize::MAX))
}

fn by_serial(serial: &str) -> Value {
    json!({"serial": serial})
}

fn file(dir: &Path, serial: &str) -> DiskFile {
    DiskFile::existing(dir.join(serial), ferric_qemu::DiskFormat::Raw)
}

fn drive() -> ConfigDrive {
    let mut drive = ConfigDrive::new("1be26c0b-03f2-4d2e-ae87-c02d7f33c123", "node-7.example.org");
    drive.user_data = b"#cloud-config of the test\n".to_vec();
    drive
}

/// Writes an image, checks where it went and what the agent says of it afterwards.
fn deploy(bench: &Bench, agent: &AgentClient, serial: &str, info: &Value, drive: Option<&str>) -> Result<String> {
    let record = kit::write(bench, agent, info, drive, &by_serial(serial)).with_context(|| serial.to_owned())?;
    let device = kit::device(&record).with_context(|| serial.to_owned())?;
    ensure!(device == kit::names(agent)?[serial], "{serial}: written to {device}");
    let uuids = agent.command("standby.get_partition_uuids", &json!({}), Wait::ForResult)?.command_result;
    let uuid = uuids["root uuid"].as_str().with_context(|| format!("{serial}: no root uuid in {uuids}"))?.to_owned();
    let expected =
        format!("prepare_image: image ({}) written to device {device} root_uuid={uuid}", info["id"].as_str().unwrap());
    ensure!(record.command_result["deploy_result"]["result"] == expected, "{serial}: {}", record.command_result);
    Ok(uuid)
}

#[test]
fn images_of_every_kind_arrive_whole() {
    let dir = artifacts::temp_dir("deploy").unwrap();
    let dir = dir.path();
    let images = Images::make(dir).unwrap();
    let mut disks = Vec::new();
    for (serial, bus, sector, size) in DISKS {
        let file = kit::used_disk(dir.join(serial), 9, size * MIB, OLD_BYTES).unwrap();
        disks.push(Disk::new(bus, file.path()).serial(serial).block_size(sector, sector));
    }
    let file = kit::used_disk(dir.join("LARGE"), 9, LARGE_DISK_BYTES, OLD_BYTES).unwrap();
    for middle in [LARGE_BYTES / 2, LARGE_BYTES - 2 * MIB, LARGE_BYTES] {
        file.fill(9, middle, MIB).unwrap();
    }
    let slow = Throttle { iops: Some(LARGE_IOPS), ..Throttle::default() };
    disks.push(Disk::new(DiskBus::VirtioBlk, file.path()).serial("LARGE").throttle(slow));
    let mut plan = Plan::new("deploy-images");
    plan.state = ProvisionState::DeployWait;
    plan.cmdline = kit::SHORT.to_owned();
    let mut bench = plan.boot(|vm| Ok(disks.into_iter().fold(vm, |vm, disk| vm.disk(disk)))).unwrap();
    let agent = bench.agent().unwrap();
    undeclared_raw_with_sha512(&bench, &agent, &images).unwrap();
    zstd_with_login_and_checksum_list(&bench, &agent, &images).unwrap();
    zlib_without_ranges_with_md5(&bench, &agent, &images).unwrap();
    let uuid = mbr_with_drive_from_a_server(&bench, &agent, &images).unwrap();
    assert_eq!(uuid, "0x02fe411c", "the MBR's disk signature");
    large_sectors(&bench, &agent, &images).unwrap();
    large_and_sparse(&bench, &agent, &images).unwrap();
    let peak = Bundle::of(&agent).and_then(|logs| logs.worker_peak_kib()).unwrap();
    assert!(peak > 1024 && peak <= 32 * 1024, "the worker's memory peaked at {peak} KiB");
    note(&format!("worker's peak memory after images of every kind, one of them of 20 GiB: {peak} KiB"));
    // The power fails right after the last success.
    bench.vm().kill();
    bench.power_off();
    whole_on_disk(dir, &images).unwrap();
    large_on_disk(dir, &images).unwrap();
    drives_on_disk(dir, &images.drive).unwrap();
}

/// No `disk_format`, as Ironic sends it for a plain URL.
fn undeclared_raw_with_sha512(bench: &Bench, agent: &AgentClient, images: &Images) -> Result<()> {
    let content = Content::File(images.gpt.clone());
    let mut info = kit::image_info(bench, "/undeclared.img", "raw", &content)?;
    info["disk_format"] = Value::Null;
    info["os_hash_algo"] = json!("sha512");
    info["os_hash_value"] = json!(content.sha512()?);
    deploy(bench, agent, "RAW", &info, Some(&encode(&images.drive)?)).map(drop)
}

/// The image needs a log-in, its checksum is in a list on the server.
fn zstd_with_login_and_checksum_list(bench: &Bench, agent: &AgentClient, images: &Images) -> Result<()> {
    let content = Content::File(qcow2_from(&images.gpt, Qcow2Kind::Zstd)?);
    let mut info = kit::image_info(bench, "/os/zstd.qcow2", "qcow2", &content)?;
    info["id"] = json!("zstd.qcow2");
    bench.images.require_basic_auth("/os/zstd.qcow2", "reader", "s3cret-w0rd");
    let sums = [("0".repeat(64), "other.qcow2".to_owned()), (content.sha256()?, "zstd.qcow2".to_owned())];
    let sums: Vec<(&str, &str)> = sums.iter().map(|(sum, name)| (sum.as_str(), name.as_str())).collect();
    bench.images.add("/os/SHA256SUMS", Content::checksums_gnu(&sums));
    let fields = info.as_object_mut().context("image_info is an object")?;
    fields.remove("os_hash_algo");
    fields.remove("os_hash_value");
    info["checksum"] = json!(bench.images.guest_url("/os/SHA256SUMS"));
    info["image_server_auth_strategy"] = json!("http_basic");
    info["image_server_user"] = json!("reader");
    info["image_server_password"] = json!("s3cret-w0rd");
    deploy(bench, agent, "ZSTD", &info, None)?;
    let asked = bench.images.requests_for("/os/zstd.qcow2");
    ensure!(asked.iter().all(|request| request.status < 300), "an image request was refused: {asked:?}");
    Ok(())
}

/// A server without ranges: the qcow2 file is written as it comes.
fn zlib_without_ranges_with_md5(bench: &Bench, agent: &AgentClient, images: &Images) -> Result<()> {
    let path = qcow2_from(&images.gpt, Qcow2Kind::Zlib)?;
    let mut info = kit::image_info(bench, "/zlib.qcow2", "qcow2", &Content::File(path.clone()))?;
    bench.images.fault("/zlib.qcow2", Fault::NoRanges, None);
    let fields = info.as_object_mut().context("image_info is an object")?;
    fields.remove("os_hash_algo");
    fields.remove("os_hash_value");
    info["checksum"] = json!(kit::md5(&path)?);
    deploy(bench, agent, "ZLIB", &info, None)?;
    let asked = bench.images.requests_for("/zlib.qcow2");
    ensure!(asked.len() == 1, "more than one request to a server without ranges: {asked:?}");
    Ok(())
}

/// The config drive comes from a server, and the digest from a list in the form of BSD's tools.
fn mbr_with_drive_from_a_server(bench: &Bench, agent: &AgentClient, images: &Images) -> Result<String> {
    let content = Content::File(qcow2_from(&images.mbr, Qcow2Kind::Plain)?);
    let mut info = kit::image_info(bench, "/mbr.qcow2", "qcow2", &content)?;
    bench.images.add("/mbr.sum", Content::checksums_bsd("SHA256", &[(&content.sha256()?, "mbr.qcow2")]));
    info["os_hash_value"] = json!(bench.images.guest_url("/mbr.sum"));
    bench.images.add("/drive.gz.b64", Content::bytes(encode(&images.drive)?));
    // Object stores put their signatures into the query; what is in there is nobody's business.
    let signed = |path: &str| format!("{}?signature=t0p-s3cret-0123456789", bench.images.guest_url(path));
    info["urls"] = json!([signed("/mbr.qcow2")]);
    let uuid = deploy(bench, agent, "MBR", &info, Some(&signed("/drive.gz.b64")))?;
    for path in ["/mbr.qcow2", "/drive.gz.b64"] {
        let asked = bench.images.requests_for(path);
        let sent =
            asked.iter().any(|request| request.query.as_deref().is_some_and(|query| query.contains("t0p-s3cret")));
        ensure!(sent, "{path} was asked for without its signature: {asked:?}");
    }
    let logs = Bundle::of(agent)?;
    for (place, text) in [("console", bench.vm().console().text()), ("journal", logs.text("journal"))] {
        ensure!(!text.contains("t0p-s3cret") && !text.contains("s3cret-w0rd"), "a secret is on the {place}");
    }
    Ok(uuid)
}

/// The raw image is packed; its checksum is that of the file on the server.
fn large_sectors(bench: &Bench, agent: &AgentClient, images: &Images) -> Result<()> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(&fs::read(&images.gpt_4k)?)?;
    let raw = kit::image_info(bench, "/4k.raw.gz", "raw", &Content::bytes(packed.finish()?))?;
    deploy(bench, agent, "RAW-4K", &raw, Some(&encode(&images.drive)?))?;
    let qcow2 = Content::File(qcow2_from(&images.gpt_4k, Qcow2Kind::Plain)?);
    let info = kit::image_info(bench, "/4k.qcow2", "qcow2", &qcow2)?;
    // No length either: the answer's end is the file's.
    bench.images.fault("/4k.qcow2", Fault::Chunked, None);
    bench.images.fault("/4k.qcow2", Fault::NoRanges, None);
    deploy(bench, agent, "PLAIN-4K", &info, None).map(drop)
}

/// What an image of 20 GiB has not is not written: at the speed of this disk that would take minutes.
fn large_and_sparse(bench: &Bench, agent: &AgentClient, images: &Images) -> Result<()> {
    let content = Content::File(qcow2_from(&images.large, Qcow2Kind::Zlib)?);
    let info = kit::image_info(bench, "/large.qcow2", "qcow2", &content)?;
    let began = Instant::now();
    deploy(bench, agent, "LARGE", &info, None)?;
    note(&format!(
        "an image of 20 GiB with {} MiB in it was written in {:.1} s",
        large_parts().count() / 4,
        began.elapsed().as_secs_f64()
    ));
    Ok(())
}

/// Data is there, zeroes are where old data was, and they take no room.
fn large_on_disk(dir: &Path, images: &Images) -> Result<()> {
    let (disk, image) = (file(dir, "LARGE"), DiskFile::existing(&images.large, ferric_qemu::DiskFormat::Raw));
    let mut end = MIB;
    for start in large_parts() {
        disk.check_zero(end, start - end)?;
        end = start + LARGE_PART_BYTES;
        disk.check(start, &image.read(start, usize::try_from(LARGE_PART_BYTES)?)?)?;
    }
    // The image's backup table is left at its old place.
    disk.check_zero(end, LARGE_BYTES - MIB - end)?;
    disk.check_fill(9, LARGE_BYTES, MIB).context("behind the image")?;
    let partitions = kit::sound_gpt(&disk, 512)?;
    ensure!(partitions.first() == Some(&(MIB, LARGE_BYTES - MIB)), "{partitions:?}");
    let taken = disk.allocated_bytes()?;
    ensure!(taken < 64 * MIB, "{taken} bytes of the disk are taken up");
    Ok(())
}

/// Images are there byte for byte, zeroes of the image over old data included; tables reach to the disks' ends, and no
/// old data is left where a table or RAID superblock could be.
fn whole_on_disk(dir: &Path, images: &Images) -> Result<()> {
    for (serial, _, sector, size) in DISKS {
        let (disk, sector) = (file(dir, serial), u64::from(sector));
        let image = match serial {
            "MBR" => &images.mbr,
            _ if sector == 4096 => &images.gpt_4k,
            _ => &images.gpt,
        };
        if serial == "MBR" {
            // The table has one more entry, from byte 462 on.
            disk.check_image(image, &[(462, 16)])?;
        } else {
            kit::check_content(&disk, image, sector).with_context(|| serial.to_owned())?;
            let partitions = kit::sound_gpt(&disk, sector).with_context(|| serial.to_owned())?;
            ensure!(partitions.first() == Some(&(MIB, IMAGE_BYTES - MIB)), "{serial}: {partitions:?}");
        }
        if ["ZSTD", "ZLIB", "PLAIN-4K"].contains(&serial) {
            let table = 128 * 128 + sector;
            disk.check_zero(size * MIB - MIB, MIB - table).with_context(|| format!("{serial}: old data at the end"))?;
            disk.check_fill(9, IMAGE_BYTES, OLD_BYTES - IMAGE_BYTES)
                .with_context(|| format!("{serial}: behind the image"))?;
        }
    }
    Ok(())
}

/// The config drive's image is in a partition of its own at the end; on large sectors it is a FAT file system.
fn drives_on_disk(dir: &Path, iso: &[u8]) -> Result<()> {
    let gpt = file(dir, "RAW");
    let partitions = kit::sound_gpt(&gpt, 512)?;
    let (start, end) = *partitions.get(1).with_context(|| format!("no second partition: {partitions:?}"))?;
    ensure!(partitions.len() == 2 && end - start >= 64 * MIB && end > 126 * MIB, "{partitions:?}");
    gpt.check(start, iso)?;

    let mbr = file(dir, "MBR");
    let table = mbrman::MBR::read_from(&mut File::open(mbr.path())?, 512)?;
    let (start, sectors) = (u64::from(table[2].starting_lba) * 512, table[2].sectors);
    ensure!(start >= 60 * MIB && sectors >= 64 * 2048, "the config drive is at {start}, {sectors} sectors");
    mbr.check(start, iso)?;

    let large = file(dir, "RAW-4K");
    let partitions = kit::sound_gpt(&large, 4096)?;
    let (start, end) = *partitions.get(1).with_context(|| format!("no second partition: {partitions:?}"))?;
    let volume = Cursor::new(large.read(start, usize::try_from(end - start)?)?);
    let fat = fatfs::FileSystem::new(volume, fatfs::FsOptions::new())?;
    ensure!(fat.volume_label().eq_ignore_ascii_case("config-2"), "label {:?}", fat.volume_label());
    let mut text = String::new();
    fat.root_dir().open_file("openstack/latest/meta_data.json")?.read_to_string(&mut text)?;
    ensure!(serde_json::from_str::<Value>(&text)? == drive().meta_data, "{text}");
    let mut text = String::new();
    fat.root_dir().open_file("openstack/latest/user_data")?.read_to_string(&mut text)?;
    ensure!(text.as_bytes() == drive().user_data, "{text}");
    Ok(())
}
