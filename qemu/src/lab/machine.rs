//! The lab's machine: QEMU behind the power switch that the flows use.

use super::display::Display;
use super::drivers;
use super::options::{DiskSpec, FirmwareKind, MachineOptions};
use super::refusal::InspectionRefused;
use crate::artifacts::{self, Image};
use crate::conductor::Conductor;
use crate::conductor::flow::{BootTarget, Power};
use crate::disk_file::DiskFile;
use crate::machine::{Bmc, Boot};
use crate::net::{AGENT_PORT, Cable, GUEST_ADDRESS, Nic};
use crate::vm::{Vm, VmBuilder};
use anyhow::{Context as _, Result, bail, ensure};
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tempfile::TempDir;

/// Name of the machine and of its log folder; runs at the same time add a number.
const NAME: &str = "lab";
/// A machine that is played with may run this long.
const LIFE: Duration = Duration::from_secs(24 * 3600);
/// How often the console is looked at for showing it.
const CONSOLE_INTERVAL: Duration = Duration::from_millis(200);

/// A machine that is switched on and off.
#[derive(Debug)]
pub struct LabMachine {
    builder: VmBuilder,
    image: Image,
    direct: bool,
    uefi: bool,
    /// Kernel parameters of the next boot of the ramdisk.
    cmdline: String,
    /// Whether the ramdisk is booted to send inspection data.
    expects_inspection: bool,
    /// Requests that the conductor had seen when the machine was switched on.
    requests_before: u64,
    conductor: Arc<Conductor>,
    display: Display,
    show_console: bool,
    vm: Option<Vm>,
    follower: Option<Follower>,
    logs: PathBuf,
    /// Held while the run lasts, so that no other takes the same name.
    _name_lock: File,
    /// Where disks and firmware variables are, if they are thrown away.
    _scratch: Option<TempDir>,
}

impl LabMachine {
    /// The machine of these options, switched off.
    ///
    /// # Errors
    /// When the image is not built or the disks cannot be made.
    pub fn new(options: &MachineOptions, conductor: Arc<Conductor>, display: Display) -> Result<Self> {
        let scratch = if options.keep.is_none() { Some(artifacts::temp_dir(NAME)?) } else { None };
        let dir = match (&options.keep, &scratch) {
            (Some(dir), _) => dir.clone(),
            (None, Some(scratch)) => scratch.path().to_owned(),
            (None, None) => bail!("no folder for the disks"),
        };
        std::fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
        let (name, name_lock) = take_name()?;
        let logs = fresh_logs(&name)?;
        let mut builder = Vm::builder(&name).memory_mib(options.memory).cpus(options.cpus).life(LIFE).append_logs();
        for (index, spec) in disks(options).iter().enumerate() {
            let path = disk_file(&dir, spec, index)?;
            builder = builder.disk(spec.disk(&path, index));
        }
        let nics = nics(options);
        ensure!(
            nics.iter().any(|nic| nic.cable() == Cable::User),
            "no network card is plugged in: the agent could not be reached"
        );
        for nic in nics {
            builder = builder.nic(nic);
        }
        if options.bmc {
            builder = builder.bmc(Bmc::Simulated);
        }
        let uefi = options.firmware == FirmwareKind::Uefi;
        if uefi {
            builder = builder.uefi_with_vars(dir.join("efi-vars.fd"));
        }
        let image = find_image(&options.ramdisk)?;
        for trouble in drivers::missing(&image, &disks(options)) {
            display.line(&format!("warning: {trouble}; booting all the same"));
        }
        Ok(LabMachine {
            builder,
            image,
            direct: options.direct,
            uefi,
            cmdline: String::new(),
            expects_inspection: false,
            requests_before: 0,
            conductor,
            display,
            show_console: options.console,
            vm: None,
            follower: None,
            logs,
            _name_lock: name_lock,
            _scratch: scratch,
        })
    }

    /// MAC addresses of its cards.
    #[must_use]
    pub fn macs(options: &MachineOptions) -> Vec<String> {
        nics(options).iter().enumerate().map(|(index, nic)| nic.mac_at(index)).collect()
    }

    /// Sets the kernel parameters of the next boot of the ramdisk.
    pub fn set_cmdline(&mut self, cmdline: &str) {
        cmdline.clone_into(&mut self.cmdline);
    }

    /// Says whether the next boot of the ramdisk is for inspection: its data must not be refused then.
    pub fn expect_inspection(&mut self, expected: bool) {
        self.expects_inspection = expected;
    }

    /// The running machine.
    #[must_use]
    pub fn vm(&self) -> Option<&Vm> {
        self.vm.as_ref()
    }

    /// A time limit that is right under KVM, lengthened for the accelerator in use.
    #[must_use]
    pub fn limit(&self, under_kvm: Duration) -> Duration {
        crate::Accel::detect().scale(under_kvm)
    }

    /// Switches it off at once and gives the folder with its logs.
    pub fn stop(&mut self) -> &Path {
        self.cut();
        &self.logs
    }

    fn cut(&mut self) {
        if let Some(vm) = self.vm.take() {
            vm.quit();
        }
        self.follower = None;
    }

    fn ramdisk_boot(&self) -> Result<VmBuilder> {
        let builder = self.builder.clone();
        if self.direct {
            // QEMU has no BOOTIF to give, so the address of the first card that is on the network goes in by hand.
            let nics = &self.builder.clone().machine_mut().nics.clone();
            let place = nics.iter().position(|nic| nic.cable() == Cable::User).unwrap_or(0);
            let mac = nics.get(place).map(|nic| nic.mac_at(place)).unwrap_or_default();
            return Ok(builder.direct_boot(&self.image, &format!("{} BOOTIF={mac}", self.cmdline)));
        }
        builder.network_boot(&self.image, &self.cmdline)
    }
}

impl Power for LabMachine {
    fn is_on(&mut self) -> Result<bool> {
        Ok(self.vm.as_ref().is_some_and(Vm::is_running))
    }

    fn off(&mut self) -> Result<()> {
        self.cut();
        Ok(())
    }

    fn on(&mut self, target: BootTarget) -> Result<()> {
        self.cut();
        let builder = match target {
            BootTarget::Ramdisk => self.ramdisk_boot()?,
            // With UEFI the firmware's own boot order decides, which the agent has set: no help from QEMU.
            BootTarget::Disk if self.uefi => self.builder.clone().boot(Boot::Firmware),
            BootTarget::Disk => self.builder.clone().disk_boot(),
        };
        self.requests_before = self.conductor.requests().last().map_or(0, |last| last.sequence);
        let vm = builder.start()?;
        if let Some(port) = vm.forwarded(AGENT_PORT) {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            self.conductor.map_agent_address(&format!("{GUEST_ADDRESS}:{AGENT_PORT}"), address);
        }
        if self.show_console {
            self.follower = Some(Follower::start(&vm, self.display.clone()));
        }
        self.vm = Some(vm);
        Ok(())
    }

    fn check(&mut self) -> Result<()> {
        if self.expects_inspection {
            let before = self.requests_before;
            let refused = self.conductor.requests_matching(|r| r.sequence > before && InspectionRefused::is(r));
            if let Some(request) = refused.first() {
                return Err(InspectionRefused::of(request).into());
            }
        }
        let Some(vm) = &self.vm else { return Ok(()) };
        if let Some((marker, _)) = vm.console().hang() {
            bail!("the machine hangs ({marker})\n{}", vm.console().excerpt());
        }
        if !vm.is_running() {
            bail!("the machine has switched itself off\n{}", vm.console().excerpt());
        }
        Ok(())
    }
}

/// Shows a console while the machine runs.
#[derive(Debug)]
struct Follower {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    fn start(vm: &Vm, display: Display) -> Follower {
        let stop = Arc::new(AtomicBool::new(false));
        let (console, stopping) = (vm.console().clone(), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            let mut shown = 0;
            loop {
                let last_look = stopping.load(Ordering::SeqCst);
                let lines = console.lines();
                // The last line may still grow.
                let complete = if last_look { lines.len() } else { lines.len().saturating_sub(1) };
                for line in lines.get(shown..complete).unwrap_or_default() {
                    display.plain(&format!("  | {line}"));
                }
                shown = shown.max(complete);
                if last_look {
                    return;
                }
                thread::sleep(CONSOLE_INTERVAL);
            }
        });
        Follower { stop, thread: Some(thread) }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            drop(thread.join()); // only printing is lost
        }
    }
}

fn disks(options: &MachineOptions) -> Vec<DiskSpec> {
    if !options.disks.is_empty() {
        return options.disks.clone();
    }
    let bus = crate::disk::DiskBus::VirtioBlk;
    vec![DiskSpec { bus, size_bytes: 5 << 30, sector_bytes: 512 }]
}

fn nics(options: &MachineOptions) -> Vec<Nic> {
    if options.nics.is_empty() { vec![Nic::user()] } else { options.nics.iter().map(|spec| spec.0.clone()).collect() }
}

/// The disk's file: a sparse one, or the one that is there from an earlier run.
fn disk_file(dir: &Path, spec: &DiskSpec, index: usize) -> Result<PathBuf> {
    let path = dir.join(format!("disk{index}.raw"));
    match path.metadata() {
        Ok(known) => {
            let (is, wanted) = (known.len(), spec.size_bytes);
            ensure!(
                is == wanted,
                "{} has {is} bytes, but {wanted} are asked for: remove it or ask for its size",
                path.display()
            );
        }
        Err(_) => drop(DiskFile::create_raw(&path, spec.size_bytes)?),
    }
    Ok(path)
}

/// The image of a profile or in a folder. A plain name is a folder's only when it has an image's files.
fn find_image(name: &str) -> Result<Image> {
    let dir = Path::new(name);
    let is_path = name.contains('/') || matches!(name, "" | "." | "..");
    if is_path || dir.join("vmlinuz").is_file() { Image::in_dir(dir) } else { Image::built(name) }
}

/// The first of `lab`, `lab-2`, `lab-3`, ... that no other run has.
fn take_name() -> Result<(String, File)> {
    let dir = artifacts::build_dir()?.join("tmp");
    std::fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
    for number in 1..100 {
        let name = if number == 1 { NAME.to_owned() } else { format!("{NAME}-{number}") };
        let path = dir.join(format!("{name}.lock"));
        let file = File::create(&path).with_context(|| format!("making {}", path.display()))?;
        if file.try_lock().is_ok() {
            return Ok((name, file));
        }
    }
    bail!("a hundred labs run at once")
}

/// The log folder, emptied: all boots of one run share it, earlier runs' logs go.
fn fresh_logs(name: &str) -> Result<PathBuf> {
    let dir = artifacts::log_dir(name)?;
    if dir.exists() {
        std::fs::remove_dir_all(&dir).with_context(|| format!("removing old logs in {}", dir.display()))?;
    }
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ramdisk_is_a_profile_or_a_folder_and_advice_is_for_what_was_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_str().unwrap();
        let text = |name: &str| find_image(name).unwrap_err().to_string();
        let error = text(path);
        assert!(error.contains(&format!("{path}/vmlinuz and {path}/initramfs.img")), "{error}");
        assert!(!error.contains("PROFILE"), "{error}");
        assert!(text("./nosuch").contains("two files") && text("").contains("two files"));
        assert!(text("nosuch").contains("no profile \"nosuch\""), "{}", text("nosuch"));
    }
}
