//! Running a program: the second seam to the machine. There is no shell.

use std::fmt;
use std::io::{self, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::cell::{self, Cell};

/// A program with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cmd {
    /// Program, looked up in PATH.
    pub program: String,
    /// Arguments.
    pub args: Vec<String>,
    /// What it reads from standard input.
    pub stdin: Vec<u8>,
    /// How long it may run before it is killed.
    pub timeout: Duration,
    /// The image that it is a program of; the machine's own programs have none.
    pub cell: Option<Cell>,
}

impl Cmd {
    /// A program that may run for one minute.
    pub fn new(program: impl Into<String>) -> Self {
        let (args, stdin) = (Vec::new(), Vec::new());
        Self { program: program.into(), args, stdin, timeout: Duration::from_secs(60), cell: None }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<I: IntoIterator<Item = S>, S: Into<String>>(mut self, args: I) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Makes it a program of an image, which is locked in there.
    #[must_use]
    pub fn within(mut self, cell: Cell) -> Self {
        self.cell = Some(cell);
        self
    }

    /// Sets the time limit.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

impl fmt::Display for Cmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.program)?;
        self.args.iter().try_for_each(|arg| write!(f, " {arg}"))
    }
}

/// What a program left behind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// Exit code; -1 when a signal ended it.
    pub code: i32,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
}

impl Output {
    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// A program could not be run, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// It is not installed.
    #[error("{program} is not in this image")]
    NotFound {
        /// Program.
        program: String,
    },
    /// It could not be started or spoken to.
    #[error("running {cmd}")]
    Io {
        /// Program and arguments.
        cmd: String,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// It ran too long and was killed.
    #[error("{cmd} did not end within {} s and was killed", timeout.as_secs())]
    Timeout {
        /// Program and arguments.
        cmd: String,
        /// Limit.
        timeout: Duration,
    },
    /// It ended with another code than 0.
    #[error("{cmd} ended with code {code}: {stderr}")]
    Failed {
        /// Program and arguments.
        cmd: String,
        /// Exit code.
        code: i32,
        /// End of its standard error.
        stderr: String,
    },
}

/// Runs programs.
pub trait Exec: Send + Sync + fmt::Debug {
    /// Runs a program to its end, whatever its exit code.
    ///
    /// # Errors
    /// All but [`ExecError::Failed`].
    fn run(&self, cmd: &Cmd) -> Result<Output, ExecError>;
}

/// Runs a program and takes any exit code but 0 as an error.
///
/// # Errors
/// Any [`ExecError`].
pub fn check(exec: &dyn Exec, cmd: &Cmd) -> Result<Output, ExecError> {
    let output = exec.run(cmd)?;
    if output.code == 0 {
        return Ok(output);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let tail: String = stderr.trim().chars().rev().take(2000).collect::<Vec<_>>().into_iter().rev().collect();
    Err(ExecError::Failed { cmd: cmd.to_string(), code: output.code, stderr: tail })
}

/// Where programs are when nobody says: the kernel starts the agent without a PATH, and what looks after disks is in `sbin`.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs programs of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemExec;

impl Exec for SystemExec {
    fn run(&self, cmd: &Cmd) -> Result<Output, ExecError> {
        let io_error = |source| ExecError::Io { cmd: cmd.to_string(), source };
        #[expect(clippy::disallowed_methods, reason = "the one place that starts programs")]
        let mut command = Command::new(&cmd.program);
        command.args(&cmd.args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if cmd.cell.is_some() {
            command.env_clear().env("HOME", "/").env("LC_ALL", "C");
        }
        if cmd.cell.is_some() || std::env::var_os("PATH").is_none() {
            command.env("PATH", PATH);
        }
        let spawned = match &cmd.cell {
            None => command.spawn(),
            Some(cell) => cell::spawn(cell, &mut command),
        };
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(ExecError::NotFound { program: cmd.program.clone() });
            }
            Err(error) => return Err(io_error(error)),
        };
        let stdin = child.stdin.take();
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        std::thread::scope(|scope| {
            scope.spawn(move || stdin.map(|mut pipe| pipe.write_all(&cmd.stdin)));
            let stdout = scope.spawn(move || drain(stdout));
            let stderr = scope.spawn(move || drain(stderr));
            let code = wait(&mut child, cmd)?;
            Ok(Output { code, stdout: stdout.join().unwrap_or_default(), stderr: stderr.join().unwrap_or_default() })
        })
    }
}

fn drain(pipe: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        // A broken pipe ends the output; what was read so far is what there is.
        let _end = pipe.read_to_end(&mut bytes);
    }
    bytes
}

fn wait(child: &mut Child, cmd: &Cmd) -> Result<i32, ExecError> {
    let deadline = Instant::now() + cmd.timeout;
    let mut pause = Duration::from_millis(1);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status.code().unwrap_or(-1)),
            Ok(None) if Instant::now() >= deadline => {
                let _killed = child.kill();
                let _reaped = child.wait();
                return Err(ExecError::Timeout { cmd: cmd.to_string(), timeout: cmd.timeout });
            }
            Ok(None) => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(50));
            }
            Err(source) => return Err(ExecError::Io { cmd: cmd.to_string(), source }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_code_come_back() {
        let mut cmd = Cmd::new("cat");
        cmd.stdin = vec![b'x'; 200_000];
        assert_eq!(SystemExec.run(&cmd).unwrap().stdout.len(), 200_000);
        assert_eq!(SystemExec.run(&Cmd::new("false")).unwrap().code, 1);
    }

    #[test]
    fn a_missing_program_and_a_slow_one_are_told_apart() {
        let missing = SystemExec.run(&Cmd::new("ferric-no-such-program")).unwrap_err();
        assert!(matches!(missing, ExecError::NotFound { .. }), "{missing}");
        let slow = Cmd::new("sleep").arg("20").timeout(Duration::from_millis(50));
        let slow = SystemExec.run(&slow).unwrap_err();
        assert!(matches!(slow, ExecError::Timeout { .. }), "{slow}");
    }

    #[test]
    fn check_shows_the_end_of_stderr() {
        let error = check(&SystemExec, &Cmd::new("ls").arg("/ferric-no-such-dir")).unwrap_err().to_string();
        assert!(error.contains("ferric-no-such-dir") && error.contains("code 2"), "{error}");
    }
}
