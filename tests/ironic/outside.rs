//! Before the tests: what has to be fetched is fetched, and the namespaces are made in which they run.
//!
//! `unshare` makes a network namespace (its bridge, addresses and ports are ours alone) and a process namespace (with the
//! test program everything it started ends, however it ends). For users other than root it also makes a user namespace,
//! in which that is allowed and in which "root" has the rights of that user. Root needs none, and keeps its own rights:
//! what runs inside then runs as root, on the host's files.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use ferric_qemu::{Image, artifacts};
use rustix::process::{Signal, geteuid, getppid, set_parent_process_death_signal};
use time::OffsetDateTime;

use crate::arguments::{Arguments, USAGE};
use crate::harness::{self, Case, print};
use crate::inside::{self, Images};
use crate::runs::{self, Extent};
use crate::venv::{Provided, Venv};
use crate::{checks, programs};

/// First argument of the program when it shall only hold its namespaces, for as many seconds as the second says.
pub(crate) const HOLD: &str = "--hold";

/// What is called, and the Debian package that has it.
const PROGRAMS: [(&str, &str); 16] = [
    ("bash", "bash"),
    ("setpriv", "util-linux"),
    ("unshare", "util-linux"),
    ("blkid", "util-linux"),
    ("ip", "iproute2"),
    ("dnsmasq", "dnsmasq-base"),
    ("ipmi_sim", "openipmi"),
    ("ipmitool", "ipmitool"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("qemu-img", "qemu-utils"),
    ("xorriso", "xorriso"),
    ("sgdisk", "gdisk"),
    ("mke2fs", "e2fsprogs"),
    ("debugfs", "e2fsprogs"),
    ("grub-mkimage", "grub-common"),
    ("python3", "python3-venv"),
];
/// Of QEMU's virtio card.
pub(crate) const BOOT_ROM: &str = "efi-virtio.rom";

/// Prepares everything and runs what `words`, the program's arguments, choose.
pub(crate) fn run(words: &[String]) -> Result<ExitCode> {
    end_with_parent()?;
    let arguments = Arguments::read(words)?;
    let cases = harness::cases(|name| arguments.choose(name));
    let checks = checks::chosen(|name| arguments.choose(name));
    if arguments.help {
        print(USAGE);
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.list {
        let names = checks.iter().map(|check| check.name).chain(cases.iter().map(|case| case.name));
        names.for_each(|name| print(&format!("{name}: test")));
        return Ok(ExitCode::SUCCESS);
    }
    if checks.is_empty() && cases.is_empty() {
        harness::skip(&[], "", Instant::now());
        return Ok(ExitCode::SUCCESS);
    }
    let lacking = lacking();
    let checked = harness::run_checks(&checks, lacking.as_deref());
    let outcome = if cases.is_empty() { Ok(ExitCode::SUCCESS) } else { with_ironic(&cases, lacking) };
    // Of two things that went wrong both are told.
    outcome.map(|code| if checked { code } else { ExitCode::FAILURE })
}

/// Runs cases in the lab.
fn with_ironic(cases: &[&Case], lacking: Option<String>) -> Result<ExitCode> {
    let began = Instant::now();
    let skip = |reason: &str| {
        let skipped: Vec<&str> = cases.iter().map(|case| case.name).collect();
        harness::skip(&skipped, reason, began);
        Ok(ExitCode::SUCCESS)
    };
    if let Some(reason) = lacking {
        return skip(&reason);
    }
    let build = artifacts::build_dir()?;
    let folder = build.join("ironic");
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let lock = File::create(folder.join("lock")).context("making the lock of the tests with Ironic")?;
    if lock.try_lock().is_err() {
        print("waiting for another run in this checkout to end");
        lock.lock().context("waiting for another run of the tests with Ironic")?;
    }
    Image::built("virt")?;
    Image::built("faulty").context("the image of `make faulty-image`")?;
    let requirements = programs::own_file("requirements.txt")?;
    let ironic = Venv { folder: &folder, requirements: &requirements, options: &[] };
    let provided = ironic.provide(|| print("installing Ironic into build/ironic/venv"));
    let venv = match provided.context("Ironic cannot be installed")? {
        Provided::Venv(venv) => venv,
        Provided::Unreachable(reason) => return skip(&format!("Ironic's package index cannot be reached: {reason}")),
    };
    // Their packages are fetched now: there is no network inside.
    Images::make(&build)?;
    let extent = if cases.len() == harness::cases(|_| true).len() { Extent::Whole } else { Extent::Part };
    let run = runs::new_folder(&folder, extent, OffsetDateTime::now_utc())?;
    print(&format!(
        "running {} tests with Ironic: power by IPMI, one by Redfish; boot by iPXE; namespaces of {}; logs in {}",
        cases.len(),
        if geteuid().is_root() { "root, with root's rights" } else { "a user, with no rights on the host" },
        run.display()
    ));
    let status = namespaces(&std::env::current_exe().context("finding this program")?)
        .args([inside::MARK.as_ref(), build.as_os_str(), venv.as_os_str()])
        .args(cases.iter().map(|case| case.name))
        .env("FERRIC_BUILD", &run)
        .status()
        .context("starting the tests in their namespaces")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Has the kernel kill this program when the one that started it dies: whoever kills `cargo` wants no lab left behind.
fn end_with_parent() -> Result<()> {
    let parent = getppid();
    set_parent_process_death_signal(Some(Signal::KILL)).context("tying this program to its parent")?;
    ensure!(getppid() == parent, "the program that started this one has ended");
    Ok(())
}

/// `program` in namespaces of its own, which end with this program however that ends: `unshare` passes its own death on,
/// but no signal.
fn namespaces(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", "unshare"]);
    if !geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]).arg(program);
    command
}

/// As [`run`] up to the tests, instead of which something sleeps.
pub(crate) fn hold(seconds: &str) -> Result<ExitCode> {
    end_with_parent()?;
    let status = namespaces(Path::new("sleep")).arg(seconds).status().context("starting something that sleeps")?;
    bail!("it slept to its end ({status})")
}

/// Why the tests cannot run here, if they cannot: all that is not there, or that namespaces may not be made.
fn lacking() -> Option<String> {
    let programs = PROGRAMS.iter().map(|(program, package)| artifacts::program(program, package).map(drop));
    let files = [artifacts::ovmf().map(drop), artifacts::ipxe_rom(BOOT_ROM).map(drop)];
    let missing: Vec<String> =
        programs.chain(files).filter_map(|found| found.err().map(|error| error.to_string())).collect();
    if !missing.is_empty() {
        return Some(missing.join("; "));
    }
    // Debian has the module apart from the language.
    let python = artifacts::program("python3", "python3-venv").ok()?;
    if programs::run(&python, &["-c", "import ensurepip, venv"]).is_err() {
        return Some("python3 makes no environments (`make setup`, or Debian package python3-venv)".to_owned());
    }
    let mut tap = namespaces(&artifacts::program("ip", "iproute2").ok()?);
    let output = tap.args(["tuntap", "add", "tap0", "mode", "tap"]).output();
    match output {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Some(format!("no network namespace with a tap device: {}", said.trim().replace('\n', "; ")))
        }
        Err(error) => Some(format!("unshare cannot be run: {error}")),
    }
}
