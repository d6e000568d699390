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

/// Runs a program to its end and gives what it printed.
pub(crate) fn run(program: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("running {}", program.display()))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{} {} failed ({}): {}",
        program.display(),
        arguments.join(" "),
        output.status,
        errors.trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A file that lies beside these tests.
pub(crate) fn own_file(name: &str) -> Result<PathBuf> {
    let path = ferric_qemu::artifacts::workspace_root()?.join("tests/ironic").join(name);
    ensure!(path.is_file(), "{} is not there", path.display());
    Ok(path)
}
