//! In the namespaces: the lab is set up, then the cases run.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use ferric_qemu::os_image::{DiskLabel, ImageFormat, OsImage, Qcow2Kind, Recipe, partition_image};
use ferric_qemu::{Bmc, Content, Disk, DiskBus, DiskFile, Image, ImageServer, Nic, Vm, VmBuilder, artifacts};
use tempfile::TempDir;

use crate::bench::Bench;
use crate::gate::Gate;
use crate::harness;
use crate::ironic::Ironic;
use crate::network::{self, API, FILES, PLACES, Place, UPSTREAM};
use crate::programs::Program;
use crate::redfish::Redfish;
use crate::server::Server;

/// First argument of the program when it runs in the namespaces.
pub(crate) const MARK: &str = "--inside";
const MIB: u64 = 1 << 20;
/// Large enough for every agent's idea of a root disk (4 GiB).
const DISK_BYTES: u64 = 5 * 1024 * MIB;
/// The system to deploy; small, because under emulation every byte takes its time.
const SYSTEM_BYTES: u64 = 288 * MIB;

/// What is deployed.
#[derive(Debug)]
pub(crate) struct Images {
    pub(crate) raw: OsImage,
    pub(crate) qcow2: OsImage,
    /// The root file system alone, with a boot loader for the ESP.
    pub(crate) root: OsImage,
}

impl Images {
    /// The images, made if they are not in the cache of the build folder.
    pub(crate) fn make(build: &Path) -> Result<Self> {
        let image = |format| {
            let recipe = Recipe { virtual_size_bytes: SYSTEM_BYTES, ..Recipe::new(DiskLabel::Gpt, format) };
            recipe.make(&build.join("cache")).context("making the operating system image")
        };
        let root = partition_image(&build.join("cache")).context("making the partition image")?;
        Ok(Self { raw: image(ImageFormat::Raw)?, qcow2: image(ImageFormat::Qcow2(Qcow2Kind::Zlib))?, root })
    }
}

/// Everything the cases work with.
#[derive(Debug)]
pub(crate) struct Lab {
    pub(crate) ironic: Ironic,
    pub(crate) gate: Gate,
    pub(crate) files: ImageServer,
    pub(crate) images: Images,
    benches: [Bench; 2],
    _dhcp: Program,
    _switch: Program,
    _redfish: Redfish,
    _work: TempDir,
}

impl Lab {
    fn set_up(build: &Path, venv: &Path) -> Result<Self> {
        network::make().context("making the network")?;
        let logs = artifacts::build_dir()?.join("logs");
        let work = artifacts::temp_dir("ironic")?;
        let dir = work.path();
        let (www, state) = (dir.join("www"), dir.join("state"));
        std::fs::create_dir_all(&www)?;
        let image = Image { kernel: build.join("virt/vmlinuz"), initramfs: build.join("virt/initramfs.img") };
        let images = Images::make(build)?;
        let files = ImageServer::start_at(FILES)?;
        files.serve_folder(&www);
        for (name, file) in [
            ("/vmlinuz", &image.kernel),
            ("/initramfs.img", &image.initramfs),
            ("/faulty.img", &build.join("faulty/initramfs.img")),
            ("/system.raw", &images.raw.path),
            ("/system.qcow2", &images.qcow2.path),
            ("/root.raw", &images.root.path),
        ] {
            files.add(name, Content::File(file.clone()));
        }
        let dhcp = network::serve_dhcp(dir, &logs)?;
        let switch = network::announce_switch(venv, &logs)?;
        let gate = Gate::start(API, UPSTREAM)?;
        let ironic = Ironic::start(venv, &state, &www, &logs).context("starting Ironic")?;
        let [bios, uefi] = PLACES;
        let disks = |names: &[&'static str]| -> Result<Vec<(&'static str, DiskFile)>> {
            names.iter().map(|name| Ok((*name, DiskFile::create_raw(dir.join(name), DISK_BYTES)?))).collect()
        };
        let bios_disks = disks(&["SYSTEM-1"])?;
        let uefi_disks = disks(&["DATA-1", "ROOT-2"])?;
        let bios = bench(bios, DiskBus::VirtioBlk, bios_disks, |vm| vm.memory_mib(256), dir, &logs, &ironic)?;
        let vars = dir.join("vars.fd");
        let uefi_vm = |vm: VmBuilder| vm.memory_mib(384).uefi_with_vars(vars);
        let uefi = bench(uefi, DiskBus::Nvme, uefi_disks, uefi_vm, dir, &logs, &ironic)?;
        let controls = [bios.server.controls(), uefi.server.controls()];
        let redfish = Redfish::start(venv, controls, dir, &logs).context("starting the Redfish service")?;
        Ok(Self {
            ironic,
            gate,
            files,
            images,
            benches: [bios, uefi],
            _dhcp: dhcp,
            _switch: switch,
            _redfish: redfish,
            _work: work,
        })
    }

    /// The machine with BIOS and a virtio disk.
    pub(crate) fn bios(&self) -> &Bench {
        &self.benches[0]
    }

    /// The machine with UEFI and two NVMe disks.
    pub(crate) fn uefi(&self) -> &Bench {
        &self.benches[1]
    }

    pub(crate) fn benches(&self) -> &[Bench; 2] {
        &self.benches
    }
}

/// One server with its management controller, not yet known to Ironic.
fn bench(
    place: Place,
    bus: DiskBus,
    disks: Vec<(&'static str, DiskFile)>,
    machine: impl FnOnce(VmBuilder) -> VmBuilder,
    dir: &Path,
    logs: &Path,
    ironic: &Ironic,
) -> Result<Bench> {
    let mut vm = Vm::builder(place.name)
        .uuid(place.uuid)
        .smbios(1, "manufacturer", "Ferric")
        .smbios(1, "product", "Test server")
        .smbios(1, "serial", place.name)
        .bmc(Bmc::External { port: place.kcs_port })
        .nic(Nic::tap(place.tap).mac(place.mac))
        .nic(Nic::silent().mac(place.second_mac));
    for (serial, file) in &disks {
        vm = vm.disk(Disk::new(bus, file.path()).serial(serial));
    }
    let server = Server::start(place, machine(vm), dir, logs)?;
    Ok(Bench::new(server, disks, ironic.api.clone()))
}

/// Sets up the lab and runs the cases; `arguments` are the build folder, Ironic's environment, and the cases' names.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode> {
    let [build, venv, names @ ..] = arguments else { anyhow::bail!("{MARK} is for the program itself") };
    let (build, venv) = (PathBuf::from(build), PathBuf::from(venv));
    let lab = Lab::set_up(&build, &venv)?;
    Ok(harness::run(&lab, &harness::cases(|name| names.iter().any(|chosen| chosen == name))))
}
