//! `inject_files` on a disk with file systems that the kernel of the ramdisk mounts.

use std::fs::{self, File};
use std::io::{Cursor, Read as _};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use ferric_qemu::conductor::{AgentClient, CommandRecord, ProvisionState, Wait};
use ferric_qemu::{Content, Disk, DiskBus, DiskFile, artifacts};
use ferric_tests::{Bench, Plan};
use serde_json::{Value, json};

use crate::kit::{self, MIB};

/// FAT, nothing, and the system: in MiB.
const PLACES: [(u64, u64); 3] = [(1, 17), (17, 25), (25, 41)];
/// base64 of "text of the file".
const TEXT: &str = "dGV4dCBvZiB0aGUgZmlsZQ==";
/// Larger than one piece of a copy.
const SERVED_BYTES: usize = 300_000;

fn tool(program: &str, args: &[&str]) -> Result<String> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new(program).args(args).env("PATH", path).output().with_context(|| program.to_owned())?;
    ensure!(output.status.success(), "{program} {args:?}: {output:?}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// An ext4 file system with links to what is the agent's.
fn system(dir: &Path) -> Result<Vec<u8>> {
    let (tree, path) = (dir.join("tree"), dir.join("system.raw"));
    fs::create_dir_all(tree.join("etc"))?;
    fs::create_dir_all(tree.join("usr/lib"))?;
    fs::write(tree.join("etc/old"), "old")?;
    for (link, target) in [
        ("etc/out", "/run/ferric"),
        ("etc/magic", "/proc/self/root"),
        ("etc/up", "../../../../../../run"),
        ("lib", "/usr/lib"),
    ] {
        symlink(target, tree.join(link))?;
    }
    File::create(&path)?.set_len((PLACES[2].1 - PLACES[2].0) * MIB)?;
    tool("mke2fs", &["-q", "-F", "-t", "ext4", "-d", &tree.to_string_lossy(), &path.to_string_lossy()])?;
    Ok(fs::read(path)?)
}

fn fill(disk: &DiskFile, dir: &Path) -> Result<()> {
    kit::partition(disk, 512, &PLACES.map(|(start, end)| (start * MIB, end * MIB)), kit::TYPE_LINUX)?;
    let mut fat = Cursor::new(vec![0; usize::try_from((PLACES[0].1 - PLACES[0].0) * MIB)?]);
    fatfs::format_volume(&mut fat, fatfs::FormatVolumeOptions::new())?;
    disk.write(PLACES[0].0 * MIB, fat.get_ref())?;
    disk.write(PLACES[2].0 * MIB, &system(dir)?)
}

/// Orders files to be put on the disk with this serial number, and waits for the end.
pub(crate) fn inject(
    bench: &Bench,
    agent: &AgentClient,
    serial: &str,
    of_node: &Value,
    files: &Value,
) -> Result<CommandRecord> {
    let mut node = bench.node()?;
    node.instance_info.insert("root_device".into(), json!({"serial": serial}));
    node.properties.insert("inject_files".into(), of_node.clone());
    let params = json!({
        "step": {"interface": "deploy", "step": "inject_files", "args": {"files": files}},
        "node": node.as_dict(false), "ports": node.ports_list(),
        "deploy_version": {"generic_hardware_manager": "1.2"},
    });
    let started = agent.command("deploy.execute_deploy_step", &params, Wait::No)?;
    kit::ended(bench, agent, &started)
}

/// What the injection is to leave on the disk.
fn check(disk: &DiskFile, served: &[u8]) -> Result<()> {
    let place = format!("{}?offset={}", disk.path().display(), PLACES[2].0 * MIB);
    // Taken away as it should be, without a journal to replay.
    tool("e2fsck", &["-f", "-n", &place])?;
    let show = |request: &str| tool("debugfs", &["-R", request, &place]);
    let motd = show("stat /etc/motd")?;
    let words: Vec<&str> = motd.split_whitespace().collect();
    for pair in [["Mode:", "0640"], ["User:", "1000"], ["Group:", "100"]] {
        ensure!(words.windows(2).any(|window| window == pair), "no {pair:?} in {motd}");
    }
    ensure!(show("cat /etc/motd")? == "text of the file" && show("cat /usr/lib/a/b")? == "text of the file");
    ensure!(show("stat /etc/conf.d/net")?.contains("Mode:  0750"), "the new directory has other rights");
    ensure!(!show("stat /etc/old")?.contains("Inode:"), "the file was not deleted");
    let copy = disk.path().with_extension("served");
    show(&format!("dump /etc/conf.d/net/eth0 {}", copy.display()))?;
    ensure!(fs::read(copy)? == served, "the file of the server is another");
    let fat = disk.read(PLACES[0].0 * MIB, usize::try_from((PLACES[0].1 - PLACES[0].0) * MIB)?)?;
    let fat = fatfs::FileSystem::new(Cursor::new(fat), fatfs::FsOptions::new())?;
    let mut text = String::new();
    fat.root_dir().open_file("loader/entry.conf")?.read_to_string(&mut text)?;
    ensure!(text == "text of the file", "{text}");
    Ok(())
}

#[test]
fn files_are_put_into_the_systems_on_a_disk_and_nowhere_else() {
    let dir = artifacts::temp_dir("inject").unwrap();
    let disk = kit::used_disk(dir.path().join("disk.raw"), 5, 64 * MIB, 64 * MIB).unwrap();
    fill(&disk, dir.path()).unwrap();
    let mut plan = Plan::new("inject");
    plan.state = ProvisionState::DeployWait;
    plan.cmdline = kit::SHORT.to_owned();
    let bench = plan.boot(|vm| Ok(vm.disk(Disk::new(DiskBus::VirtioBlk, disk.path()).serial("ROOT")))).unwrap();
    let agent = bench.agent().unwrap();
    let served: Vec<u8> = (0..SERVED_BYTES).map(|index| u8::try_from(index % 251).unwrap()).collect();
    bench.images.add(&format!("/eth0-{}", bench.uuid), Content::Bytes(served.clone().into()));
    let url = bench.images.guest_url("/eth0-{node[uuid]}");
    let of_node = json!([{"path": "/etc/motd", "content": TEXT, "mode": 0o640, "owner": 1000, "group": 100}]);
    let files = json!([
        {"path": "/etc/conf.d/net/eth0", "content": url, "dirmode": 0o750},
        {"path": "/lib/a/b", "content": TEXT},
        {"path": "/etc/old", "deleted": true},
        // FAT has no owners, which is no failure.
        {"path": "/loader/entry.conf", "partition": 1, "content": TEXT, "mode": 0o600, "owner": 1000},
    ]);
    let record = inject(&bench, &agent, "ROOT", &of_node, &files).unwrap();
    assert_eq!(record.command_status, "SUCCEEDED", "{record:?}");
    assert_eq!(record.command_result["deploy_result"], Value::Null, "{record:?}");
    check(&disk, &served).unwrap();
    let missing = bench.images.guest_url("/nothing");
    for (path, partition, content, class, words) in [
        ("/etc/out/x", json!(null), TEXT, "CommandExecutionError", "making the directory /etc/out"),
        ("/etc/magic/etc/x", json!(3), TEXT, "CommandExecutionError", "making the directory /etc/magic/etc"),
        ("/etc/up/ferric/x", json!("/dev/vda3"), TEXT, "CommandExecutionError", "making the directory /etc/up/ferric"),
        ("/etc/x", json!(null), &*missing, "CommandExecutionError", "Failed to process file /etc/x: downloading"),
        ("/etc/x", json!(3), "file:///dev/zero", "CommandExecutionError", "does not begin with http:// or https://"),
        ("/etc/x", json!(2), TEXT, "CommandExecutionError", "/dev/vda2 holds no file system that is known"),
        ("/etc/x", json!(9), TEXT, "DeviceNotFound", "/dev/vda has no partition 9"),
        ("/srv/x", json!(null), TEXT, "DeviceNotFound", "path srv, scanned: [/dev/vda1, /dev/vda2, /dev/vda3]"),
    ] {
        let files = json!([{"path": path, "partition": partition, "content": content}]);
        let record = inject(&bench, &agent, "ROOT", &json!(null), &files).unwrap();
        kit::check_failed(path, &record, class, &[words]).unwrap();
        // Nothing stays mounted, so that the file system is clean.
        check(&disk, &served).unwrap();
    }
}
