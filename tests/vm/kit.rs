//! What the tests of cleaning and deploying share: used disks, direct orders, and reading what the agent says.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ferric_qemu::conductor::{AgentClient, CommandRecord, Wait};
use ferric_qemu::{Content, DiskFile};
use ferric_tests::Bench;
use serde_json::{Value, json};

pub(crate) const MIB: u64 = 1 << 20;
/// Kernel parameters that keep tests short: no long waits for what will not come.
pub(crate) const SHORT: &str = "ipa-disk-wait-attempts=0 ipa-image-download-connection-retries=1 \
                                ipa-image-download-connection-retry-interval=1 ipa-image-download-connection-timeout=4";
/// Time for one image of a test, under KVM.
const IMAGE_LIMIT: u64 = 30;

/// A disk of `size` bytes; `used` of them at its beginning, and its last MiB, hold the pattern of `seed`.
pub(crate) fn used_disk(path: impl Into<PathBuf>, seed: u64, size: u64, used: u64) -> Result<DiskFile> {
    let disk = DiskFile::create_raw(path, size)?;
    refill(&disk, seed, used)?;
    Ok(disk)
}

/// Fills a disk again as [`used_disk`] does.
pub(crate) fn refill(disk: &DiskFile, seed: u64, used: u64) -> Result<()> {
    let size = disk.len_bytes()?;
    disk.fill(seed, 0, used.min(size))?;
    disk.fill(seed, size - MIB, MIB)
}

/// A digest of everything on a disk, to see later whether anything has changed.
pub(crate) fn digest(disk: &DiskFile) -> Result<String> {
    Content::File(disk.path().to_owned()).sha256()
}

/// A raw image of `size` bytes with a GPT for `sector` bytes a sector and one partition with the pattern `seed`, every
/// second of whose MiB is zero.
pub(crate) fn gpt_image(path: &Path, sector: u64, size: u64, seed: u64) -> Result<()> {
    let disk = DiskFile::create_raw(path, size)?;
    partition(&disk, sector, &[(MIB, size - MIB)], TYPE_LINUX)?;
    for start in (1..size / MIB - 1).step_by(2) {
        disk.fill(seed, start * MIB, MIB)?;
    }
    Ok(())
}

/// Linux file system data.
pub(crate) const TYPE_LINUX: &str = "0fc63daf-8483-4772-8e79-3d69d8477de4";
/// VMware VMFS.
pub(crate) const TYPE_VMFS: &str = "aa31e02a-400f-11db-9590-000c2911d1b8";

/// Writes a GPT with partitions from and up to these bytes; the last one has the type `last`.
pub(crate) fn partition(disk: &DiskFile, sector: u64, ranges: &[(u64, u64)], last: &str) -> Result<()> {
    let mut file = File::options().read(true).write(true).open(disk.path())?;
    let mut gpt = gptman::GPT::new_from(&mut file, sector, [7; 16])?;
    for (index, (start, end)) in ranges.iter().enumerate() {
        let number = u32::try_from(index)? + 1;
        let kind = if index + 1 == ranges.len() { last } else { TYPE_LINUX };
        gpt[number] = gptman::GPTPartitionEntry {
            partition_type_guid: guid(kind),
            unique_partition_guid: [u8::try_from(number)?; 16],
            starting_lba: start / sector,
            ending_lba: end / sector - 1,
            attribute_bits: 0,
            partition_name: "old".into(),
        };
    }
    gptman::GPT::write_protective_mbr_into(&mut file, sector)?;
    gpt.write_into(&mut file)?;
    Ok(())
}

/// A GUID as it stands in a GPT: the first three parts are little-endian.
fn guid(text: &str) -> [u8; 16] {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let byte = |at: usize| u8::from_str_radix(&digits[at * 2..at * 2 + 2], 16).unwrap();
    [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15].map(byte)
}

/// The partitions (first byte, last byte + 1) of a GPT whose primary and backup are both sound and where they belong.
pub(crate) fn sound_gpt(disk: &DiskFile, sector: u64) -> Result<Vec<(u64, u64)>> {
    let mut file = File::open(disk.path())?;
    let gpt = gptman::GPT::read_from(&mut file, sector).context("reading the GPT")?;
    let last = disk.len_bytes()? / sector - 1;
    ensure!(gpt.header.primary_lba == 1, "the primary header is damaged: {:?}", gpt.header);
    ensure!(gpt.header.backup_lba == last, "the backup is at {}, the end at {last}", gpt.header.backup_lba);
    file.seek(SeekFrom::Start(last * sector))?;
    let backup = gptman::GPTHeader::read_from(&mut file).context("reading the backup header")?;
    ensure!(backup.primary_lba == last && backup.backup_lba == 1, "the backup is not that of this place: {backup:?}");
    let entries = backup.read_partitions(&mut file, sector).context("reading the backup's entries")?;
    ensure!(entries == gpt.iter().map(|(_, entry)| entry.clone()).collect::<Vec<_>>(), "the backup differs");
    if sector == 512 {
        disk.check_gpt()?;
    }
    let used = gpt.iter().filter(|(_, entry)| entry.is_used());
    Ok(used.map(|(_, entry)| (entry.starting_lba * sector, (entry.ending_lba + 1) * sector)).collect())
}

/// Checks that an image arrived: everything but the GPT's own sectors and the image's old backup of it is the same.
pub(crate) fn check_content(disk: &DiskFile, image: &Path, sector: u64) -> Result<()> {
    let size = image.metadata()?.len();
    // 128 entries of 128 bytes each, and a header.
    let table = 128 * 128 + sector;
    disk.check_image(image, &[(0, sector + table), (size - table, table)])
}

/// `image_info` as Ironic sends it for an image with its SHA-256.
pub(crate) fn image_info(bench: &Bench, path: &str, disk_format: &str, content: &Content) -> Result<Value> {
    let sha256 = content.sha256()?;
    bench.images.add(path, content.clone());
    Ok(json!({
        "id": path.trim_start_matches('/'), "urls": [bench.images.guest_url(path)], "disk_format": disk_format,
        "container_format": "bare", "stream_raw_images": true, "checksum": null, "os_hash_algo": "sha256",
        "os_hash_value": sha256, "node_uuid": bench.uuid,
    }))
}

/// MD5 of a file, in hex.
pub(crate) fn md5(path: &Path) -> Result<String> {
    let output = Command::new("md5sum").arg(path).output().context("running md5sum")?;
    Ok(String::from_utf8(output.stdout)?.split_whitespace().next().context("md5sum said nothing")?.to_owned())
}

/// Orders a disk to be written; the disk is the one with this serial number.
pub(crate) fn start_write(
    bench: &Bench,
    agent: &AgentClient,
    info: &Value,
    drive: Option<&str>,
    hints: &Value,
) -> Result<CommandRecord> {
    let mut node = bench.node()?;
    match hints {
        Value::Null => {}
        hints => drop(node.instance_info.insert("root_device".into(), hints.clone())),
    }
    let step = json!({
        "interface": "deploy", "step": "write_image", "args": {"image_info": info, "configdrive": drive},
    });
    let params = json!({
        "step": step, "node": node.as_dict(false), "ports": node.ports_list(),
        "deploy_version": {"generic_hardware_manager": "1.2"},
    });
    Ok(agent.command("deploy.execute_deploy_step", &params, Wait::No)?)
}

/// Writes an image to the disk that `hints` name and waits for the end.
pub(crate) fn write(
    bench: &Bench,
    agent: &AgentClient,
    info: &Value,
    drive: Option<&str>,
    hints: &Value,
) -> Result<CommandRecord> {
    let started = start_write(bench, agent, info, drive, hints)?;
    ended(bench, agent, &started)
}

/// Waits for the end of a command.
pub(crate) fn ended(bench: &Bench, agent: &AgentClient, started: &CommandRecord) -> Result<CommandRecord> {
    let end = Instant::now() + bench.limit(IMAGE_LIMIT);
    loop {
        let record = current(agent, started)?;
        if !record.is_running() {
            return Ok(record);
        }
        ensure!(Instant::now() < end, "still running: {record:?}\n{}", bench.vm().console().excerpt());
        std::thread::sleep(Duration::from_millis(150));
    }
}

/// The record of a command as it is now.
pub(crate) fn current(agent: &AgentClient, started: &CommandRecord) -> Result<CommandRecord> {
    agent.commands()?.into_iter().find(|record| record.id == started.id).context("the command is gone from the list")
}

/// The device an image went to, from the command's answer.
pub(crate) fn device(record: &CommandRecord) -> Result<String> {
    ensure!(record.command_status == "SUCCEEDED", "{}: {}", record.command_status, record.command_error);
    let text = record.command_result["deploy_result"]["result"].as_str().context("no result")?;
    let rest = text.split_once("written to device ").with_context(|| format!("unexpected result {text:?}"))?.1;
    Ok(rest.split(' ').next().unwrap_or_default().to_owned())
}

/// Checks that a command failed with this class of error and these words in its text.
pub(crate) fn check_failed(case: &str, record: &CommandRecord, class: &str, words: &[&str]) -> Result<()> {
    ensure!(record.command_status == "FAILED", "{case}: {} {}", record.command_status, record.command_result);
    let text = record.error_text();
    ensure!(record.command_error["type"] == class, "{case}: class {}: {text}", record.command_error["type"]);
    for word in words {
        ensure!(text.contains(word), "{case}: no {word:?} in {text:?}");
    }
    Ok(())
}

/// The disks as the agent lists them.
pub(crate) fn disks(agent: &AgentClient) -> Result<Vec<Value>> {
    let record = agent.command("poll.get_hardware_info", &json!({}), Wait::ForResult)?;
    let disks = record.command_result["disks"].as_array().cloned();
    disks.with_context(|| format!("no disks in {record:?}"))
}

/// Device names by serial number.
pub(crate) fn names(agent: &AgentClient) -> Result<BTreeMap<String, String>> {
    let text = |disk: &Value, key: &str| disk[key].as_str().unwrap_or_default().to_owned();
    Ok(disks(agent)?.iter().map(|disk| (text(disk, "serial"), text(disk, "name"))).collect())
}
