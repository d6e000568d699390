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

mod builder;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

pub use builder::VmBuilder;

use crate::accel::Accel;
use crate::console::Console;
use crate::disk::Disk;
use crate::machine::Machine;
use crate::net::{AGENT_PORT, Nic};
use crate::process::Process;
use crate::qmp::Qmp;
use crate::watchdog::Watchdog;

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
    parts: VmParts,
    /// Hot-plug slots in use.
    slots_used: AtomicUsize,
}

/// What starting a machine yields.
#[derive(Debug)]
struct VmParts {
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
    fn new(parts: VmParts) -> Self {
        Self { parts, slots_used: AtomicUsize::new(0) }
    }

    /// Begins the description of a machine.
    pub fn builder(name: &str) -> VmBuilder {
        VmBuilder::new(name)
    }

    /// Its description.
    pub fn machine(&self) -> &Machine {
        &self.parts.machine
    }

    /// The accelerator it runs under.
    pub fn accel(&self) -> &Accel {
        &self.parts.accel
    }

    /// A time limit that is right under KVM, lengthened for this machine's accelerator.
    pub fn limit(&self, under_kvm: Duration) -> Duration {
        self.parts.accel.scale(under_kvm)
    }

    /// Time since QEMU was started.
    pub fn elapsed(&self) -> Duration {
        self.parts.started.elapsed()
    }

    /// Its first serial console.
    ///
    /// # Panics
    /// When it was built with no serial port.
    pub fn console(&self) -> &Console {
        &self.parts.consoles[0]
    }

    /// All its serial consoles.
    pub fn consoles(&self) -> &[Console] {
        &self.parts.consoles
    }

    /// Its control connection.
    pub fn qmp(&self) -> &Qmp {
        &self.parts.qmp
    }

    /// Its log folder: `console<N>.log`, `qemu.log`, `argv.txt`.
    pub fn log_dir(&self) -> &Path {
        &self.parts.logs
    }

    /// Process id of QEMU.
    pub fn pid(&self) -> u32 {
        self.parts.process.pid()
    }

    /// The port of 127.0.0.1 that leads to `guest_port`.
    pub fn forwarded(&self, guest_port: u16) -> Option<u16> {
        self.parts.forwards.iter().find(|(guest, _)| *guest == guest_port).map(|(_, host)| *host)
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
        self.parts.process.ended().is_none()
    }

    /// Waits until the guest has powered off (or was reset, with [`VmBuilder::no_reboot`]).
    ///
    /// # Errors
    /// When `limit` passes or a console shows a sign of a hang; with the console's last lines.
    pub fn wait_shutdown(&self, limit: Duration) -> Result<Shutdown> {
        let deadline = Instant::now() + limit;
        while self.parts.process.ended().is_none() {
            let problem = match self.parts.consoles.iter().find_map(Console::hang) {
                Some((marker, _)) => format!("the guest hangs ({marker:?})"),
                None if Instant::now() >= deadline => format!("still running after {:.0} s", limit.as_secs_f64()),
                None => {
                    std::thread::sleep(Duration::from_millis(30));
                    continue;
                }
            };
            let excerpt = self.parts.consoles.first().map(Console::excerpt).unwrap_or_default();
            bail!("waiting for machine {} to shut down: {problem}\n{excerpt}", self.parts.machine.name);
        }
        match self.parts.qmp.wait_event(&["SHUTDOWN"], Duration::from_secs(1)) {
            Ok(event) => Ok(Shutdown {
                by_guest: event.data.get("guest").and_then(Value::as_bool).unwrap_or(false),
                reason: event.data.get("reason").and_then(Value::as_str).unwrap_or_default().to_owned(),
            }),
            Err(_) => {
                bail!("machine {}: {}", self.parts.machine.name, self.parts.process.epitaph().unwrap_or_default())
            }
        }
    }

    /// Waits until the guest is reset, and moves the consoles' marks there.
    ///
    /// # Errors
    /// When `limit` passes or QEMU ends first.
    pub fn wait_reset(&self, limit: Duration) -> Result<()> {
        self.parts.qmp.wait_event(&["RESET"], limit)?;
        self.parts.consoles.iter().for_each(Console::mark);
        Ok(())
    }

    /// Presses the reset button and moves the consoles' marks.
    ///
    /// # Errors
    /// When QEMU is gone.
    pub fn reset(&self) -> Result<()> {
        self.parts.consoles.iter().for_each(Console::mark);
        self.parts.qmp.execute("system_reset", Value::Null).map(drop)
    }

    /// Presses the power button (ACPI); the guest decides what follows.
    ///
    /// # Errors
    /// When QEMU is gone.
    pub fn press_power_button(&self) -> Result<()> {
        self.parts.qmp.execute("system_powerdown", Value::Null).map(drop)
    }

    /// Pulls (`up` false) or plugs the cable of the card at place `index`.
    ///
    /// # Errors
    /// When there is no such card.
    pub fn set_link(&self, index: usize, up: bool) -> Result<()> {
        self.parts.qmp.set_link(&Nic::id(index), up)
    }

    /// Plugs in a disk while the machine runs. `index` is its number among the machine's disks, not used so far. virtio-blk and NVMe
    /// disks take one of the [`VmBuilder::hotplug_slots`]; SCSI and USB disks need a disk of the same bus from the start.
    ///
    /// # Errors
    /// When QEMU refuses or there is no slot left.
    pub fn plug_disk(&self, disk: &Disk, index: usize) -> Result<()> {
        let slot = if disk.bus().is_pci() {
            let used = self.slots_used.fetch_add(1, Ordering::SeqCst);
            ensure!(used < self.parts.machine.hotplug_slots, "no free hotplug slot for disk {index}");
            Some(used)
        } else {
            None
        };
        if let Some(group) = disk.throttle_group(index) {
            self.parts.qmp.execute("object-add", group)?;
        }
        self.parts.qmp.execute("blockdev-add", disk.blockdev(index))?;
        for device in disk.devices(index, 0, None, slot) {
            // The monitor's command takes the same syntax as the command line; it says nothing when all is well.
            let said = self.parts.qmp.monitor(&format!("device_add {device}"))?;
            ensure!(said.trim().is_empty(), "plugging in disk {index}: {}", said.trim());
        }
        Ok(())
    }

    /// Pulls a disk out of the running machine, by its number. On PCI the guest is asked first, as with an attention button.
    ///
    /// # Errors
    /// When the guest does not let go within `limit`.
    pub fn unplug_disk(&self, index: usize, limit: Duration) -> Result<()> {
        self.parts.qmp.unplug(&Disk::device_id(index), limit)?;
        self.parts.qmp.execute("blockdev-del", json!({"node-name": Disk::node_name(index)})).map(drop)
    }

    /// Cuts the power. Disks keep what the guest has flushed.
    pub fn kill(&self) {
        self.parts.process.kill();
    }

    /// Ends QEMU in order, its files flushed; kills it if it does not end.
    pub fn quit(&self) {
        if self.parts.qmp.execute("quit", json!({})).is_err()
            || self.parts.process.wait(Duration::from_secs(10)).is_none()
        {
            self.parts.process.kill();
        }
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        // Before its folders go.
        self.parts.process.kill();
    }
}

#[cfg(test)]
mod tests;
