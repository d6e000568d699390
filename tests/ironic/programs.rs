//! Running programs beside the tests.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use ferric_qemu::process::Process;
use rustix::process::{Pid, Signal, kill_process};

/// A program that runs until it is dropped, its output in a file.
#[derive(Debug)]
pub(crate) struct Program {
    process: Process,
}

impl Program {
    /// Starts `program`; `prepare` adds arguments and the like.
    pub(crate) fn start(program: PathBuf, log: &Path, prepare: impl FnOnce(&mut Command)) -> Result<Self> {
        let output = File::options().create(true).append(true).open(log);
        let output = output.with_context(|| format!("opening {}", log.display()))?;
        let errors = output.try_clone()?;
        let process = Process::start(&program, |command| {
            command.stdin(Stdio::null()).stdout(output).stderr(errors);
            prepare(command);
        })?;
        Ok(Self { process })
    }

    pub(crate) fn is_running(&self) -> bool {
        self.process.ended().is_none()
    }

    /// Ends it in order, as a service manager does; kills it if it does not end within `limit`.
    pub(crate) fn terminate(self, limit: Duration) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.process.pid())?).context("a process without a number")?;
        if self.is_running() {
            kill_process(pid, Signal::TERM).context("ending a program")?;
        }
        if self.process.wait(limit).is_none() {
            self.process.kill();
            bail!("process {} did not end within {} s and was killed", self.process.pid(), limit.as_secs());
        }
        Ok(())
    }
}

/// How much of what a failed program said is shown.
const SHOWN_LINES: usize = 60;

/// Runs a program to its end and gives what it printed. When it fails, the error tells all that it said, as some
/// programs complain on their standard output.
pub(crate) fn run(program: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("running {}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(said);
    }
    let said = [said, String::from_utf8_lossy(&output.stderr).into_owned()].join("\n");
    let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines.get(lines.len().saturating_sub(SHOWN_LINES)..).unwrap_or_default();
    let said = if last.is_empty() { "it said nothing".to_owned() } else { last.join("\n") };
    bail!("{} {} failed ({}): {said}", program.display(), arguments.join(" "), output.status)
}

/// A file that lies beside these tests.
pub(crate) fn own_file(name: &str) -> Result<PathBuf> {
    let path = ferric_qemu::artifacts::workspace_root()?.join("tests/ironic").join(name);
    ensure!(path.is_file(), "{} is not there", path.display());
    Ok(path)
}
