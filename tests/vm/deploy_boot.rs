//! Deploying as an operator does: a machine is taken through a flow and comes up from its own disk.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use ferric_qemu::conductor::flow::{BootTarget, DeployReport, DeployRequest, Flow, ImageSource, Limits, Power};
use ferric_qemu::conductor::{Conductor, ConductorConfig, Node, ProvisionState};
use ferric_qemu::lab::configdrive::ConfigDrive;
use ferric_qemu::machine::Boot;
use ferric_qemu::os_image::{DiskLabel, ImageFormat, Qcow2Kind, Recipe};
use ferric_qemu::{Accel, Content, Disk, DiskBus, DiskFile, Image, ImageServer, Nic, Vm, VmBuilder, artifacts};
use ferric_tests::{AGENT_ADDRESS, HOST, MAC, note, unpack};
use serde_json::json;

use crate::kit::{self, MIB};

/// A machine with one disk and firmware variables of its own, behind the power switch that a flow uses.
pub(crate) struct NodePower<'a> {
    pub(crate) conductor: &'a Conductor,
    pub(crate) builder: VmBuilder,
    pub(crate) image: Image,
    pub(crate) vm: Option<Vm>,
    /// Memory of the machine when it boots from its disk.
    pub(crate) disk_memory_mib: u32,
    /// Checked when the agent has switched the machine off, before it boots from its disk.
    pub(crate) deployed: Box<dyn Fn() -> Result<()> + 'a>,
}

impl Power for NodePower<'_> {
    fn is_on(&mut self) -> Result<bool> {
        Ok(self.vm.as_ref().is_some_and(Vm::is_running))
    }

    fn off(&mut self) -> Result<()> {
        self.vm = None;
        Ok(())
    }

    fn on(&mut self, target: BootTarget) -> Result<()> {
        self.vm = None;
        let builder = self.builder.clone().append_logs();
        let builder = match target {
            BootTarget::Ramdisk => {
                let url = self.conductor.url_at(HOST);
                let cmdline = format!("console=ttyS0 selinux=0 ipa-debug=1 panic=-1 ipa-api-url={url} BOOTIF={MAC}");
                builder.direct_boot(&self.image, &cmdline)
            }
            BootTarget::Disk => {
                (self.deployed)()?;
                // The firmware's own boot order decides under UEFI.
                builder.memory_mib(self.disk_memory_mib).boot(if self.uefi() { Boot::Firmware } else { Boot::Disk })
            }
        };
        let vm = builder.start()?;
        if target == BootTarget::Ramdisk {
            let port = SocketAddr::from(([127, 0, 0, 1], vm.agent_port()?));
            self.conductor.map_agent_address(AGENT_ADDRESS, port);
        }
        self.vm = Some(vm);
        Ok(())
    }

    fn check(&mut self) -> Result<()> {
        let vm = self.vm.as_ref().context("the machine is off")?;
        ensure!(vm.is_running() && vm.console().hang().is_none(), "the machine is gone\n{}", vm.console().excerpt());
        Ok(())
    }
}

impl NodePower<'_> {
    fn uefi(&self) -> bool {
        self.builder.clone().machine_mut().firmware.is_uefi()
    }
}

/// What an operator does: a node is deployed with an image of 2 GiB in a machine of little memory, and comes up from its own
/// disk with its config drive. Gives what the flow says and the peak of the worker's memory.
fn acceptance(
    name: &str,
    kind: Qcow2Kind,
    disk: &DiskFile,
    builder: VmBuilder,
    hostname: &str,
) -> Result<DeployReport> {
    let uefi = builder.clone().machine_mut().firmware.is_uefi();
    let recipe = Recipe { virtual_size_bytes: 2048 * MIB, ..Recipe::new(DiskLabel::Gpt, ImageFormat::Qcow2(kind)) };
    let image = recipe.make(&artifacts::build_dir()?.join("cache"))?;
    let images = ImageServer::start()?;
    images.add("/demo.qcow2", Content::File(image.path));
    let mut node = Node::new(name, &[MAC]);
    node.provision_state = ProvisionState::Available;
    let uuid = node.uuid.clone();
    let conductor = Conductor::start(ConductorConfig { nodes: vec![node], ..ConductorConfig::default() })?;
    let mut drive = ConfigDrive::new(&uuid, hostname);
    drive.user_data = b"#cloud-config of acceptance\n".to_vec();
    let scale = |seconds| Accel::detect().scale(Duration::from_secs(seconds));
    let mut power = NodePower {
        conductor: &conductor,
        builder: builder.nic(Nic::user().mac(MAC)),
        image: Image::built("virt")?,
        vm: None,
        disk_memory_mib: 256,
        deployed: Box::new(|| kit::sound_gpt(disk, 512).map(drop)),
    };
    let request = DeployRequest {
        image: ImageSource {
            url: images.guest_url("/demo.qcow2"),
            disk_format: "qcow2".into(),
            hash: Some(("sha256".into(), image.sha256)),
            image_info_patch: json!({}),
        },
        partitions: None,
        configdrive: Some(drive.encoded()?),
        uefi,
        root_device: None,
        collect_logs: true,
        boot_instance: true,
    };
    let limits = Limits {
        boot: scale(30),
        step: scale(60),
        boot_loader_poll: Duration::from_millis(500),
        power_off: scale(10),
        ..Limits::default()
    };
    fs::remove_dir_all(artifacts::log_dir(name)?).or_else(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })?;
    let report = Flow::new(&conductor, &uuid, &mut power).limits(limits).deploy(&request)?;
    ensure!(report.powered_off_by_agent, "the agent did not switch the machine off");
    let vm = power.vm.as_ref().context("the machine is off")?;
    for line in [
        "FERRIC-DEMO-OS up: Debian GNU/Linux 12".to_owned(),
        format!("FERRIC-DEMO-OS configdrive hostname={hostname}"),
        "FERRIC-DEMO-OS user_data: #cloud-config of acceptance".to_owned(),
    ] {
        vm.console().wait_for(line.as_str(), scale(40))?;
    }
    Ok(report)
}

/// The worker stays within its budget of 32 MiB.
pub(crate) fn check_memory(report: &DeployReport) -> Result<()> {
    let logs = report.logs.as_ref().context("no logs")?;
    let peak = unpack(&base64::engine::general_purpose::STANDARD.encode(logs))?.worker_peak_kib()?;
    ensure!(peak > 1024 && peak <= 32 * 1024, "the worker's memory peaked at {peak} KiB");
    note(&format!("worker's peak memory while it writes a qcow2 image: {peak} KiB"));
    Ok(())
}

#[test]
fn deployed_machine_boots_by_bios() {
    let dir = artifacts::temp_dir("deploy-bios").unwrap();
    let disk = DiskFile::create_raw(dir.path().join("disk.raw"), 5 << 30).unwrap();
    let builder = Vm::builder("deploy-bios").memory_mib(128).disk(Disk::new(DiskBus::VirtioBlk, disk.path()));
    let report = acceptance("deploy-bios", Qcow2Kind::Zlib, &disk, builder, "node-bios.example.org").unwrap();
    check_memory(&report).unwrap();
    assert!(report.boot_loader.is_none());
    assert!(report.partition_uuids["root uuid"].as_str().unwrap().starts_with("0x"), "{}", report.partition_uuids);
}

#[test]
fn deployed_machine_boots_by_uefi_from_the_entry_that_was_made() {
    let dir = artifacts::temp_dir("deploy-uefi").unwrap();
    let disk = DiskFile::create_raw(dir.path().join("disk.raw"), 5 << 30).unwrap();
    let vars = dir.path().join("vars.fd");
    // The firmware alone cannot load a kernel in less.
    let builder = Vm::builder("deploy-uefi").memory_mib(256);
    let builder = builder.disk(Disk::new(DiskBus::Nvme, disk.path())).uefi_with_vars(&vars);
    let report = acceptance("deploy-uefi", Qcow2Kind::Zstd, &disk, builder, "node-uefi.example.org").unwrap();
    check_memory(&report).unwrap();
    let record = report.boot_loader.unwrap();
    assert_eq!(record.command_status, "SUCCEEDED", "{record:?}");
    // The firmware makes no entry for this loader by itself; the image names it in its BOOTX64.CSV.
    let loader: Vec<u8> = r"\EFI\debian\systemd-bootx64.efi".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let store = fs::read(&vars).unwrap();
    assert!(store.windows(loader.len()).any(|bytes| bytes == loader), "no boot entry in the firmware's variables");
}
