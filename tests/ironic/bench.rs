//! A server and Ironic's node for it, and what an operator does with the two.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail, ensure};
use ferric_qemu::lab::configdrive::ConfigDrive;
use ferric_qemu::os_image::OsImage;
use ferric_qemu::{DiskFile, DiskFormat, artifacts};
use serde_json::{Value, json};

use crate::api::{Api, Node};
use crate::inside::Lab;
use crate::network::FILES;
use crate::server::{BMC_PASSWORD, BMC_USER, Server};
use crate::{programs, trace};

/// Time for one operation of Ironic: two emulated machines on two cores.
pub(crate) const LIMIT: Duration = Duration::from_secs(420);
pub(crate) const MIB: u64 = 1 << 20;

/// The two.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) server: Server,
    disks: Vec<(&'static str, DiskFile)>,
    api: Api,
    node: Mutex<Option<Node>>,
}

/// What to deploy, and how.
#[derive(Debug, Clone)]
pub(crate) struct Order<'a> {
    pub(crate) image: &'a OsImage,
    /// Path on the file server.
    pub(crate) path: &'a str,
    pub(crate) format: &'a str,
    /// Goes into the config drive.
    pub(crate) hostname: &'a str,
    /// Root device hints.
    pub(crate) hints: Value,
    /// Sizes of the partitions around an image of one file system.
    pub(crate) partitions: Value,
}

impl<'a> Order<'a> {
    /// The raw image.
    pub(crate) fn raw(lab: &'a Lab, hostname: &'a str) -> Self {
        Self {
            image: &lab.images.raw,
            path: "/system.raw",
            format: "raw",
            hostname,
            hints: Value::Null,
            partitions: Value::Null,
        }
    }

    /// The qcow2 image.
    pub(crate) fn qcow2(lab: &'a Lab, hostname: &'a str) -> Self {
        Self {
            image: &lab.images.qcow2,
            path: "/system.qcow2",
            format: "qcow2",
            hostname,
            hints: Value::Null,
            partitions: Value::Null,
        }
    }

    /// The image of the root file system alone.
    pub(crate) fn partition(lab: &'a Lab, hostname: &'a str) -> Self {
        let partitions = json!({"root_gb": 1, "swap_mb": 64});
        Self { image: &lab.images.root, path: "/root.raw", partitions, ..Self::raw(lab, hostname) }
    }

    /// As Ironic's `instance_info`.
    pub(crate) fn instance_info(&self) -> Value {
        let mut info = json!({
            "image_source": format!("http://{FILES}{}", self.path),
            "image_os_hash_algo": "sha256",
            "image_os_hash_value": self.image.sha256,
            "image_disk_format": self.format,
            "image_type": "whole-disk",
        });
        if let Some(sizes) = self.partitions.as_object() {
            info["image_type"] = json!("partition");
            for (key, value) in sizes {
                info[key] = value.clone();
            }
        }
        if !self.hints.is_null() {
            info["root_device"] = self.hints.clone();
        }
        info
    }

    fn config_drive(&self, uuid: &str) -> Result<String> {
        let mut drive = ConfigDrive::new(uuid, self.hostname);
        drive.user_data = format!("#cloud-config of {}\n", self.hostname).into_bytes();
        drive.encoded()
    }
}

/// Where the first partition of a used disk begins.
const FIRST_PARTITION: u64 = MIB;

/// What `blkid` finds at a place of a disk: a partition table or a file system.
fn found_at(disk: &DiskFile, place: u64) -> Result<Option<String>> {
    let mut command = Command::new(artifacts::program("blkid", "util-linux")?);
    command.args(["--probe", "--output", "export", "--offset", &place.to_string()]).arg(disk.path());
    let output = command.output().context("running blkid")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let kind = said.lines().find_map(|line| line.strip_prefix("PTTYPE=").or(line.strip_prefix("TYPE=")));
    match (kind, output.status.code()) {
        (Some(kind), Some(0)) => Ok(Some(kind.to_owned())),
        (None, Some(2)) => Ok(None),
        _ => bail!("blkid: {}: {said}{}", output.status, String::from_utf8_lossy(&output.stderr)),
    }
}

impl Bench {
    pub(crate) fn new(server: Server, disks: Vec<(&'static str, DiskFile)>, api: Api) -> Self {
        Self { server, disks, api, node: Mutex::new(None) }
    }

    /// The disk with that serial number.
    pub(crate) fn disk(&self, serial: &str) -> Result<&DiskFile> {
        let found = self.disks.iter().find(|(name, _)| *name == serial);
        Ok(&found.with_context(|| format!("no disk {serial}"))?.1)
    }

    /// The node, enrolled when first asked for.
    pub(crate) fn node(&self) -> Result<Node> {
        let mut known = self.node.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = &*known {
            return Ok(node.clone());
        }
        let place = self.server.place;
        let info = self.ipmi_info();
        let node = Node::create(
            &self.api,
            &json!({
                "name": place.name, "driver": "ipmi",
                "inspect_interface": "agent", "rescue_interface": "agent", "raid_interface": "agent",
                "driver_info": info,
                "properties": {"capabilities": format!("boot_mode:{}", place.name)},
            }),
        )?;
        node.add_port(place.mac)?;
        Ok(known.insert(node).clone())
    }

    /// How Ironic reaches the server's BMC by IPMI.
    pub(crate) fn ipmi_info(&self) -> Value {
        json!({
            "ipmi_address": self.server.place.bmc.to_string(), "ipmi_port": 623, "ipmi_username": BMC_USER,
            "ipmi_password": BMC_PASSWORD, "ipmi_protocol_version": "2.0", "ipmi_cipher_suite": "3",
        })
    }

    /// Gives the node a ramdisk of its own. Ironic wants the kernel to be named with it.
    pub(crate) fn boots(&self, ramdisk: &str) -> Result<()> {
        let url = |name: &str| json!(format!("http://{FILES}/{name}"));
        self.node()?
            .set(&[("/driver_info/deploy_kernel", url("vmlinuz")), ("/driver_info/deploy_ramdisk", url(ramdisk))])
    }

    /// Whether the node is cleaned on its way to `available`.
    pub(crate) fn is_cleaned(&self, cleaned: bool) -> Result<()> {
        self.node()?.set(&[("/automated_clean", json!(cleaned))])
    }

    /// Brings the node to `manageable`, from wherever it is, without cleaning.
    pub(crate) fn manageable(&self) -> Result<Node> {
        let node = self.node()?;
        node.settle(LIMIT)?;
        self.is_cleaned(false)?;
        for _ in 0..4 {
            match node.state()?.as_str() {
                "manageable" => return Ok(node),
                "enroll" | "available" | "clean failed" | "inspect failed" => {
                    node.order("manage", &json!({}))?;
                    node.wait("manageable", LIMIT)?;
                }
                _ => drop(self.available()?),
            }
        }
        bail!("node {} is in state {:?} and not to be had", self.server.place.name, node.state()?)
    }

    /// Brings the node to `available`, from wherever it is, without cleaning.
    pub(crate) fn available(&self) -> Result<Node> {
        let node = self.node()?;
        node.settle(LIMIT)?;
        self.is_cleaned(false)?;
        for _ in 0..4 {
            let (order, passing) = match node.state()?.as_str() {
                "available" => return Ok(node),
                "manageable" => ("provide", None),
                "enroll" | "clean failed" | "inspect failed" => ("manage", Some("manageable")),
                _ => ("deleted", None),
            };
            node.order(order, &json!({}))?;
            node.wait(passing.unwrap_or("available"), LIMIT)?;
        }
        bail!("node {} is in state {:?} and not to be had", self.server.place.name, node.state()?)
    }

    /// Brings the node to `active` with whatever is deployed, or with this.
    pub(crate) fn active(&self, order: &Order<'_>) -> Result<Node> {
        let node = self.node()?;
        node.settle(LIMIT)?;
        if node.state()? != "active" {
            self.available()?;
            self.deploy("active", order)?;
            node.wait("active", LIMIT)?;
        }
        Ok(node)
    }

    /// Orders a deployment (`active`) or another one (`rebuild`), without waiting for its end.
    pub(crate) fn deploy(&self, target: &str, order: &Order<'_>) -> Result<()> {
        let node = self.node()?;
        node.set(&[("/instance_info", order.instance_info())])?;
        node.order(target, &json!({"configdrive": order.config_drive(&node.uuid)?}))
    }

    /// Checks that the system runs that was deployed with this host name.
    pub(crate) fn runs(&self, hostname: &str) -> Result<()> {
        ensure!(self.server.is_on(), "the server is off");
        self.server.says(&format!("FERRIC-DEMO-OS configdrive hostname={hostname}")).map(drop)
    }

    /// Checks that the image is on the disk: a sound partition table to both ends, and boot loader and ESP as they were.
    /// That the root file system arrived shows when it starts, which changes it.
    pub(crate) fn holds(&self, serial: &str, image: &OsImage) -> Result<()> {
        let disk = self.disk(serial)?;
        disk.check_gpt()?;
        let image = DiskFile::existing(&image.path, DiskFormat::Raw);
        (1..50).try_for_each(|place| disk.check(place * MIB, &image.read(place * MIB, usize::try_from(MIB)?)?))
    }

    /// Checks that nobody finds anything on a disk: no partition table at its beginning or end, and no file system where
    /// [`use_disk`](Self::use_disk) has one.
    pub(crate) fn is_blank(&self, serial: &str) -> Result<()> {
        let disk = self.disk(serial)?;
        let size = disk.len_bytes()?;
        let table = 34 * 512;
        disk.check_zero(0, table)?;
        disk.check_zero(size - table, table)?;
        for place in [0, FIRST_PARTITION] {
            let found = found_at(disk, place)?;
            ensure!(found.is_none(), "at {place} of {serial} there is still {}", found.unwrap_or_default());
        }
        Ok(())
    }

    /// Makes it a used disk: a partition table at both ends, a file system in the first partition, data in the second. All
    /// of it by the tools of others.
    pub(crate) fn use_disk(&self, serial: &str) -> Result<()> {
        let disk = self.disk(serial)?;
        let (path, size) = (disk.path().display().to_string(), disk.len_bytes()?);
        // What may be left there, sgdisk would complain about.
        for start in [0, size - MIB] {
            disk.write(start, &vec![0; usize::try_from(MIB)?])?;
        }
        let table = ["--new=1:1M:+256M", "--new=2:0:0", path.as_str()];
        programs::run(&artifacts::program("sgdisk", "gdisk")?, &table)?;
        let offset = format!("offset={FIRST_PARTITION}");
        let file_system = ["-q", "-F", "-t", "ext4", "-E", offset.as_str(), path.as_str(), "256m"];
        programs::run(&artifacts::program("mke2fs", "e2fsprogs")?, &file_system)?;
        disk.fill(7, 1024 * MIB, MIB)?;
        disk.check_gpt()?;
        for (place, kind) in [(0, "gpt"), (FIRST_PARTITION, "ext4")] {
            let found = found_at(disk, place)?;
            ensure!(found.as_deref() == Some(kind), "at {place} of {serial} there is {found:?} instead of {kind}");
        }
        Ok(())
    }

    /// The calls of agent and conductor since that time, compared with `expected`; see [`trace::check`].
    pub(crate) fn called(&self, lab: &Lab, since: SystemTime, expected: &str) -> Result<()> {
        let log = fs::read_to_string(lab.ironic.logs().join("ironic.log")).context("reading Ironic's log")?;
        let calls = lab.gate.calls(self.server.place.address.into(), since);
        let words = trace::words(&calls, &log, &self.node()?.uuid, since)?;
        let file = fs::File::options().create(true).append(true).open(lab.ironic.logs().join("calls.log"))?;
        writeln!(&file, "{}: {}", self.server.place.name, words.join(" ")).context("noting calls")?;
        trace::check(&words, expected)
    }

    /// The newest archive of an agent's logs that Ironic has stored for this node: what its journal says.
    pub(crate) fn ramdisk_journal(&self, lab: &Lab, since: SystemTime) -> Result<String> {
        let mut found: Vec<(SystemTime, PathBuf)> = Vec::new();
        for entry in fs::read_dir(lab.ironic.logs().join("ramdisk"))?.flatten() {
            let changed = entry.metadata()?.modified()?;
            if changed >= since && entry.file_name().to_string_lossy().contains(&self.node()?.uuid) {
                found.push((changed, entry.path()));
            }
        }
        let (_, newest) = found.into_iter().max().context("Ironic has stored no logs of the ramdisk")?;
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(fs::File::open(&newest)?));
        for entry in archive.entries()? {
            let mut entry = entry?;
            if entry.path()?.ends_with("journal") {
                let mut text = Vec::new();
                std::io::Read::read_to_end(&mut entry, &mut text)?;
                return Ok(String::from_utf8_lossy(&text).into_owned());
            }
        }
        bail!("{} holds no journal", newest.display())
    }
}
