//! Running machines: [`Vm::builder`] describes one, [`VmBuilder::start`] runs it, dropping it kills it.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use std::time::Duration;
//! use ferric_qemu::{Disk, DiskBus, Image, Nic, Vm};
//!
//! let vm = Vm::builder("smoke")
//!     .memory_mib(128)
//!     .nic(Nic::user())
//!     .disk(Disk::new(DiskBus::VirtioBlk, "disk.raw").serial("D1"))
//!     .network_boot(&Image::built("virt")?, "console=ttyS0")?
//!     .start()?;
//! vm.console().wait_for("ferric", vm.limit(Duration::from_secs(20)))?;
//! let agent = vm.agent_port()?; // 127.0.0.1:<agent> is port 9999 of the guest
//! # drop(agent); Ok(()) }
//! ```

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::accel::Accel;
use crate::artifacts::{self, Image, Ovmf};
use crate::console::Console;
use crate::disk::Disk;
use crate::machine::{Bmc, Boot, Firmware, Machine, Paths};
use crate::net::{AGENT_PORT, Cable, Nic, parse_forwards};
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
            qmp: sockets.path().join("qmp.sock"),
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
        let qmp = Qmp::connect(&paths.qmp, &process, accel.scale(START_LIMIT))?;
        let consoles = paths
            .consoles
            .into_iter()
            .zip(offsets)
            .map(|(path, offset)| Console::new(path, offset, Arc::clone(&process), self.markers.clone()))
            .collect();
        let forwards = ready(&machine, &qmp)?;
        Ok(Vm {
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
        })
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

fn firmware_files(firmware: &Firmware, work: &Path) -> Result<Option<Ovmf>> {
    let Firmware::Uefi { vars } = firmware else { return Ok(None) };
    let pristine = artifacts::ovmf()?;
    let own = vars.clone().unwrap_or_else(|| work.join("vars.fd"));
    if !own.exists() {
        std::fs::copy(&pristine.vars, &own)
            .with_context(|| format!("copying the variable store to {}", own.display()))?;
    }
    Ok(Some(Ovmf { code: pristine.code, vars: own }))
}

/// Why a machine ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shutdown {
    /// Whether the guest did it.
    pub by_guest: bool,
    /// QEMU's word for it: `guest-shutdown`, `guest-reset`, `guest-panic`, `host-qmp-quit`, ...
    pub reason: String,
}

/// A running machine.
#[derive(Debug)]
pub struct Vm {
    // Keeps the TFTP tree of its description alive too.
    machine: Machine,
    accel: Accel,
    logs: PathBuf,
    started: Instant,
    process: Arc<Process>,
    consoles: Vec<Console>,
    qmp: Qmp,
    forwards: Vec<(u16, u16)>,
    _watchdog: Watchdog,
    _work: TempDir,
    _sockets: TempDir,
}

impl Vm {
    /// Begins the description of a machine.
    pub fn builder(name: &str) -> VmBuilder {
        VmBuilder::new(name)
    }

    /// Its description.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The accelerator it runs under.
    pub fn accel(&self) -> &Accel {
        &self.accel
    }

    /// A time limit that is right under KVM, lengthened for this machine's accelerator.
    pub fn limit(&self, under_kvm: Duration) -> Duration {
        self.accel.scale(under_kvm)
    }

    /// Time since QEMU was started.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Its first serial console.
    ///
    /// # Panics
    /// When it was built with no serial port.
    pub fn console(&self) -> &Console {
        &self.consoles[0]
    }

    /// All its serial consoles.
    pub fn consoles(&self) -> &[Console] {
        &self.consoles
    }

    /// Its control connection.
    pub fn qmp(&self) -> &Qmp {
        &self.qmp
    }

    /// Its log folder: `console<N>.log`, `qemu.log`, `argv.txt`.
    pub fn log_dir(&self) -> &Path {
        &self.logs
    }

    /// Process id of QEMU.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The port of 127.0.0.1 that leads to `guest_port`.
    pub fn forwarded(&self, guest_port: u16) -> Option<u16> {
        self.forwards.iter().find(|(guest, _)| *guest == guest_port).map(|(_, host)| *host)
    }

    /// The port of 127.0.0.1 that leads to the agent.
    ///
    /// # Errors
    /// When no card of the machine forwards it.
    pub fn agent_port(&self) -> Result<u16> {
        self.forwarded(AGENT_PORT).context("the machine has no network card that forwards the agent's port")
    }

    /// Whether QEMU is there.
    pub fn is_running(&self) -> bool {
        self.process.ended().is_none()
    }

    /// Waits until the guest has powered off (or was reset, with [`VmBuilder::no_reboot`]).
    ///
    /// # Errors
    /// When `limit` passes or a console shows a sign of a hang; with the console's last lines.
    pub fn wait_shutdown(&self, limit: Duration) -> Result<Shutdown> {
        let deadline = Instant::now() + limit;
        while self.process.ended().is_none() {
            let problem = match self.consoles.iter().find_map(Console::hang) {
                Some((marker, _)) => format!("the guest hangs ({marker:?})"),
                None if Instant::now() >= deadline => format!("still running after {:.0} s", limit.as_secs_f64()),
                None => {
                    std::thread::sleep(Duration::from_millis(30));
                    continue;
                }
            };
            let excerpt = self.consoles.first().map(Console::excerpt).unwrap_or_default();
            bail!("waiting for machine {} to shut down: {problem}\n{excerpt}", self.machine.name);
        }
        match self.qmp.wait_event(&["SHUTDOWN"], Duration::from_secs(1)) {
            Ok(event) => Ok(Shutdown {
                by_guest: event.data.get("guest").and_then(Value::as_bool).unwrap_or(false),
                reason: event.data.get("reason").and_then(Value::as_str).unwrap_or_default().to_owned(),
            }),
            Err(_) => bail!("machine {}: {}", self.machine.name, self.process.epitaph().unwrap_or_default()),
        }
    }

    /// Waits until the guest is reset, and moves the consoles' marks there.
    ///
    /// # Errors
    /// When `limit` passes or QEMU ends first.
    pub fn wait_reset(&self, limit: Duration) -> Result<()> {
        self.qmp.wait_event(&["RESET"], limit)?;
        self.consoles.iter().for_each(Console::mark);
        Ok(())
    }

    /// Presses the reset button and moves the consoles' marks.
    ///
    /// # Errors
    /// When QEMU is gone.
    pub fn reset(&self) -> Result<()> {
        self.consoles.iter().for_each(Console::mark);
        self.qmp.execute("system_reset", Value::Null).map(drop)
    }

    /// Presses the power button (ACPI); the guest decides what follows.
    ///
    /// # Errors
    /// When QEMU is gone.
    pub fn press_power_button(&self) -> Result<()> {
        self.qmp.execute("system_powerdown", Value::Null).map(drop)
    }

    /// Pulls (`up` false) or plugs the cable of the card at place `index`.
    ///
    /// # Errors
    /// When there is no such card.
    pub fn set_link(&self, index: usize, up: bool) -> Result<()> {
        self.qmp.set_link(&Nic::id(index), up)
    }

    /// Cuts the power. Disks keep what the guest has flushed.
    pub fn kill(&self) {
        self.process.kill();
    }

    /// Ends QEMU in order, its files flushed; kills it if it does not end.
    pub fn quit(&self) {
        if self.qmp.execute("quit", json!({})).is_err() || self.process.wait(Duration::from_secs(10)).is_none() {
            self.process.kill();
        }
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        // Before its folders go.
        self.process.kill();
    }
}
