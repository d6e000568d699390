//! Config drives of any size: on a machine with 128 MiB they arrive whole or are refused in words; none is the end of
//! the agent.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use ferric_qemu::conductor::AgentClient;
use ferric_qemu::disk_file::pattern;
use ferric_qemu::lab::configdrive::encode;
use ferric_qemu::os_image::{DiskLabel, tiny_raw};
use ferric_qemu::{Content, Disk, DiskBus, DiskFile, artifacts};
use ferric_tests::{Bench, Plan};
use serde_json::{Value, json};

use crate::kit::{self, MIB};

const DISK_BYTES: u64 = 128 * MIB;

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
    let disk = DiskFile::create_raw(dir.path().join("disk"), DISK_BYTES).unwrap();
    let mut plan = Plan::new("config_drives");
    plan.cmdline = kit::SHORT.to_owned();
    let bench = plan.boot(|vm| Ok(vm.disk(Disk::new(DiskBus::VirtioBlk, disk.path()).serial("ROOT")))).unwrap();
    let rig = rig(bench, disk, dir.path()).unwrap();
    inside_the_request(&rig).unwrap();
    as_ironic_sends_it(&rig).unwrap();
    from_a_server(&rig).unwrap();
    assert_eq!(rig.bench.worker_ends(), 0, "the agent did not survive");
}

fn rig(bench: Bench, disk: DiskFile, dir: &Path) -> Result<Rig> {
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
