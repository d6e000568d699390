//! Before the tests: what has to be fetched is fetched, and the namespaces are made in which they run.
//!
//! `unshare` makes a network namespace (its bridge, addresses and ports are ours alone), a process namespace (with the
//! test program everything it started ends, however it ends) and, unless root runs the tests, a user namespace in which
//! that is allowed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use ferric_qemu::{Image, artifacts};
use rustix::process::geteuid;
use time::OffsetDateTime;
use time::macros::format_description;

use crate::harness::{self, print};
use crate::inside::{self, Images};
use crate::programs;

/// What is called, and the Debian package that has it.
const PROGRAMS: [(&str, &str); 8] = [
    ("setpriv", "util-linux"),
    ("unshare", "util-linux"),
    ("ip", "iproute2"),
    ("dnsmasq", "dnsmasq-base"),
    ("ipmi_sim", "openipmi"),
    ("ipmitool", "ipmitool"),
    ("qemu-img", "qemu-utils"),
    ("python3", "python3-venv"),
];
const RUNS_KEPT: usize = 5;

/// Prepares everything and runs the cases that `arguments` name in the namespaces.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode> {
    let filters: Vec<String> = arguments.iter().filter(|word| !word.starts_with('-')).cloned().collect();
    let cases = harness::cases(&filters);
    if arguments.iter().any(|word| word == "--list") {
        cases.iter().for_each(|case| print(&format!("{}: test", case.name)));
        return Ok(ExitCode::SUCCESS);
    }
    let began = Instant::now();
    if cases.is_empty() {
        harness::summary(0, 0, 0, began);
        return Ok(ExitCode::SUCCESS);
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
    let venv = match lacking().map_or_else(|| ironic_venv(&folder), |reason| Ok(Err(reason)))? {
        Ok(venv) => venv,
        Err(reason) => {
            cases.iter().for_each(|case| print(&format!("SKIPPED: {}: {reason}", case.name)));
            harness::summary(0, 0, cases.len(), began);
            return Ok(ExitCode::SUCCESS);
        }
    };
    // Their packages are fetched now: there is no network inside.
    Images::make(&build)?;
    let run = new_run(&folder)?;
    print(&format!("running {} tests with Ironic, logs in {}", cases.len(), run.display()));
    let status = namespaces(&std::env::current_exe().context("finding this program")?)
        .args([inside::MARK.as_ref(), build.as_os_str(), venv.as_os_str()])
        .args(&filters)
        .env("FERRIC_BUILD", &run)
        .status()
        .context("starting the tests in their namespaces")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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

/// Why the tests cannot run here, if they cannot.
fn lacking() -> Option<String> {
    let missing = PROGRAMS.iter().find_map(|(program, package)| artifacts::program(program, package).err());
    if let Some(error) = missing {
        return Some(error.to_string());
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

/// The environment with Ironic, made if it is not as `requirements.txt` says; the reason when it cannot be made.
fn ironic_venv(folder: &Path) -> Result<Result<PathBuf, String>> {
    let requirements = programs::own_file("requirements.txt")?;
    let wanted = fs::read(&requirements)?;
    let venv = folder.join("venv");
    let mark = venv.join("installed.txt");
    if fs::read(&mark).is_ok_and(|installed| installed == wanted) {
        return Ok(Ok(venv));
    }
    print("installing Ironic into build/ironic/venv");
    if venv.exists() {
        fs::remove_dir_all(&venv).with_context(|| format!("removing {}", venv.display()))?;
    }
    let path = venv.display().to_string();
    programs::run(&artifacts::program("python3", "python3-venv")?, &["-m", "venv", &path])?;
    let options = ["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--requirement"];
    let file = requirements.display().to_string();
    let arguments: Vec<&str> = options.iter().copied().chain([file.as_str()]).collect();
    if let Err(error) = programs::run(&venv.join("bin/pip"), &arguments) {
        let text = format!("{error:#}");
        let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        return Ok(Err(format!("Ironic cannot be installed from PyPI: {}", last.trim())));
    }
    fs::write(&mark, wanted)?;
    Ok(Ok(venv))
}

/// A folder for a run; of older ones, the last few keep their logs and none its disks.
fn new_run(folder: &Path) -> Result<PathBuf> {
    let mut old: Vec<PathBuf> = fs::read_dir(folder)?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("run-")))
        .collect();
    old.sort();
    for (age, run) in old.iter().rev().enumerate() {
        let doomed = if age + 1 < RUNS_KEPT { run.join("tmp") } else { run.clone() };
        // Left by a run that was killed; there may be none.
        drop(fs::remove_dir_all(doomed));
    }
    let format = format_description!("run-[year][month][day]-[hour][minute][second]");
    let run = folder.join(OffsetDateTime::now_utc().format(format)?);
    fs::create_dir_all(run.join("logs/ramdisk")).with_context(|| format!("making {}", run.display()))?;
    ensure!(run.is_absolute(), "{} is not an absolute path", run.display());
    Ok(run)
}
