//! Describing a machine, and starting it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{Vm, VmParts};
use crate::accel::Accel;
use crate::artifacts::{self, Image, Ovmf};
use crate::console::Console;
use crate::disk::Disk;
use crate::machine::{Bmc, Boot, Firmware, Machine, Paths};
use crate::net::{Cable, Nic, parse_forwards};
use crate::process::Process;
use crate::pxe::PxeTree;
use crate::qmp::Qmp;
use crate::watchdog::{HangMarkers, Watchdog};

/// Time a machine may run in all, under KVM.
const DEFAULT_LIFE: Duration = Duration::from_secs(300);
/// Time for QEMU to offer its control socket, under KVM.
const START_LIMIT: Duration = Duration::from_secs(20);

/// A machine to be. It can be started more than once, changed in between: that is a power cycle.
#[derive(Debug, Clone)]
pub struct VmBuilder {
    machine: Machine,
    accel: Option<Accel>,
    markers: HangMarkers,
    life: Option<Duration>,
    append_logs: bool,
}

impl VmBuilder {
    /// A machine called `name`, which is also the name of its log folder: one CPU, 512 MiB, BIOS, nothing attached.
    pub fn new(name: &str) -> Self {
        Self {
            machine: Machine::new(name),
            accel: None,
            markers: HangMarkers::default(),
            life: None,
            append_logs: false,
        }
    }

    /// Firmware; BIOS unless said.
    #[must_use]
    pub fn firmware(mut self, firmware: Firmware) -> Self {
        self.machine.firmware = firmware;
        self
    }

    /// UEFI with the variable store in the file `vars`, made if it does not exist and kept.
    #[must_use]
    pub fn uefi_with_vars(self, vars: impl Into<PathBuf>) -> Self {
        self.firmware(Firmware::Uefi { vars: Some(vars.into()) })
    }

    /// Memory.
    #[must_use]
    pub fn memory_mib(mut self, mib: u32) -> Self {
        self.machine.memory_mib = mib;
        self
    }

    /// Virtual CPUs.
    #[must_use]
    pub fn cpus(mut self, cpus: u32) -> Self {
        self.machine.cpus = cpus;
        self
    }

    /// CPU model, as QEMU's `-cpu` takes it.
    #[must_use]
    pub fn cpu_model(mut self, model: &str) -> Self {
        self.machine.cpu_model = Some(model.to_owned());
        self
    }

    /// What it boots; see also [`direct_boot`](Self::direct_boot), [`network_boot`](Self::network_boot) and
    /// [`disk_boot`](Self::disk_boot).
    #[must_use]
    pub fn boot(mut self, boot: Boot) -> Self {
        self.machine.boot = boot;
        self
    }

    /// QEMU loads the image itself: the fastest way to the agent.
    #[must_use]
    pub fn direct_boot(self, image: &Image, cmdline: &str) -> Self {
        let image = image.clone();
        self.boot(Boot::Direct { kernel: image.kernel, initramfs: image.initramfs, cmdline: cmdline.to_owned() })
    }

    /// iPXE on the first card of the user-mode network loads the image over TFTP; the disks come next in the boot order.
    ///
    /// # Errors
    /// When the TFTP folder cannot be made.
    pub fn network_boot(self, image: &Image, cmdline: &str) -> Result<Self> {
        let tree = PxeTree::new(image, cmdline)?;
        Ok(self.boot(Boot::Network(Arc::new(tree))))
    }

    /// Boots from its disks only.
    #[must_use]
    pub fn disk_boot(self) -> Self {
        self.boot(Boot::Disk)
    }

    /// Attaches a disk; the order is the boot order.
    #[must_use]
    pub fn disk(mut self, disk: Disk) -> Self {
        self.machine.disks.push(disk);
        self
    }

    /// Attaches a network card.
    #[must_use]
    pub fn nic(mut self, nic: Nic) -> Self {
        self.machine.nics.push(nic);
        self
    }

    /// Gives it a management controller.
    #[must_use]
    pub fn bmc(mut self, bmc: Bmc) -> Self {
        self.machine.bmc = Some(bmc);
        self
    }

    /// Leaves out the virtio entropy source.
    #[must_use]
    pub fn no_rng(mut self) -> Self {
        self.machine.rng = false;
        self
    }

    /// System UUID.
    #[must_use]
    pub fn uuid(mut self, uuid: &str) -> Self {
        self.machine.uuid = Some(uuid.to_owned());
        self
    }

    /// An SMBIOS string: structure type (1 system, 2 board, 3 chassis) and QEMU's key (`manufacturer`, `product`,
    /// `version`, `serial`, `asset`, `sku`, `family`).
    #[must_use]
    pub fn smbios(mut self, kind: u8, key: &str, value: &str) -> Self {
        self.machine.smbios.entry(kind).or_default().push((key.to_owned(), value.to_owned()));
        self
    }

    /// Time of the real time clock at the start, `YYYY-MM-DDTHH:MM:SS` in UTC.
    #[must_use]
    pub fn rtc_base(mut self, base: &str) -> Self {
        self.machine.rtc_base = Some(base.to_owned());
        self
    }

    /// Number of serial ports, each with a log; one unless said.
    #[must_use]
    pub fn serial_ports(mut self, ports: usize) -> Self {
        self.machine.serial_ports = ports;
        self
    }

    /// Lets [`Console::send`] type on the serial ports.
    #[must_use]
    pub fn serial_input(mut self) -> Self {
        self.machine.serial_input = true;
        self
    }

    /// Empty PCI Express slots into which disks can be plugged while it runs; see [`Vm::plug_disk`].
    #[must_use]
    pub fn hotplug_slots(mut self, slots: usize) -> Self {
        self.machine.hotplug_slots = slots;
        self
    }

    /// A reset ends the machine instead of booting again.
    #[must_use]
    pub fn no_reboot(mut self) -> Self {
        self.machine.no_reboot = true;
        self
    }

    /// More arguments for QEMU.
    #[must_use]
    pub fn arg(mut self, args: &[&str]) -> Self {
        self.machine.extra.extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }

    /// A certain accelerator instead of the one found.
    #[must_use]
    pub fn accel(mut self, accel: Accel) -> Self {
        self.accel = Some(accel);
        self
    }

    /// Text that is otherwise a sign of a hang is expected here; see [`HangMarkers::tolerate`].
    #[must_use]
    pub fn tolerate(mut self, text: &str) -> Self {
        self.markers.tolerate(text);
        self
    }

    /// One more text on the console that ends every wait.
    #[must_use]
    pub fn hang_marker(mut self, text: &str) -> Self {
        self.markers.add(text);
        self
    }

    /// Time the machine may run in all before it is killed; five minutes, scaled for the accelerator, unless said.
    #[must_use]
    pub fn life(mut self, life: Duration) -> Self {
        self.life = Some(life);
        self
    }

    /// Adds to the logs of an earlier run instead of starting new ones.
    #[must_use]
    pub fn append_logs(mut self) -> Self {
        self.append_logs = true;
        self
    }

    /// The machine's description, to change what has no method here.
    pub fn machine_mut(&mut self) -> &mut Machine {
        &mut self.machine
    }

    /// Starts it.
    ///
    /// # Errors
    /// When something is not installed, and when QEMU refuses, with what it said.
    pub fn start(&self) -> Result<Vm> {
        let started = self.start_inner().with_context(|| format!("starting machine {}", self.machine.name));
        match started {
            Ok(vm) => Ok(vm),
            Err(error) => {
                let said = artifacts::log_dir(&self.machine.name)
                    .and_then(|dir| Ok(std::fs::read_to_string(dir.join("qemu.log"))?))
                    .unwrap_or_default();
                if said.trim().is_empty() {
                    Err(error)
                } else {
                    Err(error.context(format!("qemu said: {}", said.trim())))
                }
            }
        }
    }

    fn start_inner(&self) -> Result<Vm> {
        let machine = self.machine.clone();
        let accel = self.accel.clone().unwrap_or_else(Accel::detect);
        if let Some(rom) = machine.boot_rom() {
            artifacts::ipxe_rom(rom)?;
        }
        let program = artifacts::qemu()?;
        let logs = prepare_logs(&machine.name, self.append_logs)?;
        let work = artifacts::temp_dir("vm")?;
        let sockets = artifacts::socket_dir()?;
        let paths = Paths {
            firmware: firmware_files(&machine.firmware, work.path())?,
            consoles: (0..machine.serial_ports).map(|index| logs.join(format!("console{index}.log"))).collect(),
            sockets: sockets.path().to_owned(),
        };
        let offsets: Vec<u64> =
            paths.consoles.iter().map(|path| path.metadata().map_or(0, |data| data.len())).collect();
        let argv = machine.argv(&accel, &paths);
        std::fs::write(logs.join("argv.txt"), format!("{}\n{}\n", program.display(), argv.join("\n")))?;

        let output = File::create(logs.join("qemu.log")).context("creating qemu.log")?;
        let errors = output.try_clone()?;
        let started = Instant::now();
        let process = Arc::new(Process::start(&program, |command| {
            command.args(&argv).stdin(Stdio::null()).stdout(output).stderr(errors);
        })?);
        let watchdog = Watchdog::start(Arc::clone(&process), self.life.unwrap_or_else(|| accel.scale(DEFAULT_LIFE)));
        let qmp = Qmp::connect(&paths.qmp_socket(), &process, accel.scale(START_LIMIT))?;
        let consoles = offsets.into_iter().enumerate().zip(&paths.consoles).map(|((index, offset), log)| {
            let input = machine.serial_input.then(|| paths.serial_socket(index));
            Console::new(log.clone(), offset, Arc::clone(&process), self.markers.clone()).with_input(input)
        });
        let consoles = consoles.collect();
        let forwards = ready(&machine, &qmp)?;
        Ok(Vm::new(VmParts {
            machine,
            accel,
            logs,
            started,
            process,
            consoles,
            qmp,
            forwards,
            _watchdog: watchdog,
            _work: work,
            _sockets: sockets,
        }))
    }
}

/// Cuts the links that shall be cut, lets a paused machine run, and learns the forwarded ports.
fn ready(machine: &Machine, qmp: &Qmp) -> Result<Vec<(u16, u16)>> {
    for (index, nic) in machine.nics.iter().enumerate() {
        if nic.cable() == Cable::Unplugged {
            qmp.set_link(&Nic::id(index), false)?;
        }
    }
    if machine.has_unplugged_nic() {
        qmp.execute("cont", Value::Null)?;
    }
    Ok(parse_forwards(&qmp.monitor("info usernet")?))
}

fn prepare_logs(name: &str, append: bool) -> Result<PathBuf> {
    let dir = artifacts::log_dir(name)?;
    if !append && dir.exists() {
        std::fs::remove_dir_all(&dir).with_context(|| format!("removing old logs in {}", dir.display()))?;
    }
    std::fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    Ok(dir)
}

pub(super) fn firmware_files(firmware: &Firmware, work: &Path) -> Result<Option<Ovmf>> {
    let Firmware::Uefi { vars } = firmware else { return Ok(None) };
    let mut pristine = artifacts::ovmf()?;
    let own = vars.clone().unwrap_or_else(|| work.join("vars.fd"));
    if let Ok(found) = own.metadata() {
        // A store goes with the build that it is for.
        let fits = |build: &Ovmf| build.vars.metadata().is_ok_and(|known| known.len() == found.len());
        pristine = artifacts::ovmf_builds().into_iter().find(fits).unwrap_or(pristine);
    } else {
        std::fs::copy(&pristine.vars, &own)
            .with_context(|| format!("copying the variable store to {}", own.display()))?;
    }
    Ok(Some(Ovmf { code: pristine.code, vars: own }))
}
