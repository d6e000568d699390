//! What the program does by the way it is started.

use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use std::time::Duration;

use ferric_hardware::{HardwareManager, Machine};
use ferric_types::error::chain;
use tracing::{error, info, warn};

use self::args::Command;
use crate::command::Extension;
use crate::error::WorkerError;
use crate::handover::Handover;
use crate::report::{self, ReportError, shown};
use crate::worker::{self, Setup};
use crate::{config, init, logs, selftest};

mod args;

const HELP: &str = "ferric-agent: provisioning agent for OpenStack Ironic

  ferric-agent run [--OPTION VALUE]...   run the agent (below its own PID 1, or as a service of another ramdisk)
  ferric-agent inventory [--root DIR] [--json]
                                         show this machine, or the one captured in DIR
  ferric-agent capture [--lldp] -o FILE.tar.gz
                                         write what the inventory is made of to an archive, without serial numbers,
                                         addresses and names: for a report of a fault; unpacked, it is a DIR for --root.
                                         FILE.tar.zst and FILE.tar are made too, and are larger. --lldp waits for what
                                         the switches say, which is kept as it is
  ferric-agent options                   print the reference of options, as docs/options.md has it
  ferric-agent self-test panic           show that a panic in a command cannot end the agent
  ferric-agent --version | --help

The kernel starts it as /init, without arguments that count.
";

/// Threads of the asynchronous runtime: one may be busy with TLS while the other answers the conductor.
const RUNTIME_THREADS: usize = 2;
/// Stack of a runtime or blocking thread.
const STACK_BYTES: usize = 512 * 1024;
/// Longest message, in characters.
const MESSAGE_CHARS: usize = 2000;
/// How long log lines may take to reach slow consoles before the worker ends.
const FLUSH_TIME: Duration = Duration::from_secs(2);

/// Runs the program: PID 1 when the kernel starts it, the worker when PID 1 or a service manager does.
pub fn run(extensions: &'static [&'static Extension], managers: &'static [&'static dyn HardwareManager]) -> ExitCode {
    let mut args = std::env::args_os();
    let program = args.next().unwrap_or_default();
    let args: Vec<OsString> = args.collect();
    // Before anything is made of the arguments: the kernel passes on whatever stands in its command line.
    if is_init(std::process::id(), &program, &args) {
        init::run()
    }
    let words = match args.iter().map(|arg| arg.to_str().ok_or(arg)).collect::<Result<Vec<&str>, &OsString>>() {
        Ok(words) => words,
        Err(arg) => {
            tell(&format!("the argument {} is not UTF-8", arg.display()));
            return ExitCode::from(2);
        }
    };
    let command = match args::parse(&words) {
        Ok(command) => command,
        Err(error) => {
            tell(&format!("{error}; ferric-agent --help shows what there is"));
            return ExitCode::from(2);
        }
    };
    match command {
        Command::Run => success(work(extensions, managers).is_ok()),
        Command::Inventory { root, json } => {
            if root.is_none() {
                tell_of_rights();
            }
            show(report::inventory(managers, root, json))
        }
        Command::Capture { file, lldp } => {
            tell_of_rights();
            captured(file, lldp)
        }
        Command::Options => print(&config::document()),
        Command::Panic => success(selftest::panics()),
        Command::Version => print(&format!("ferric-agent {}\n", crate::VERSION)),
        Command::Help => print(HELP),
        Command::Modprobe(name) => success(init::modprobe(name)),
    }
}

/// A line to the standard error output; names of files in it may be those of a stranger.
fn tell(text: &str) {
    // There is nobody else to tell.
    let _unread = writeln!(std::io::stderr(), "ferric-agent: {}", shown(text, MESSAGE_CHARS));
}

/// Tells a user who does not see all of a machine.
fn tell_of_rights() {
    if !rustix::process::geteuid().is_root() {
        tell("without the rights of root, serial numbers, memory modules, the BMC and more are missing");
    }
}

/// Whether the kernel has started this process, and not a container or a service manager in a PID namespace: words of its
/// command line that mean nothing to it become arguments, so that the first of them does not tell.
fn is_init(pid: u32, program: &OsStr, args: &[OsString]) -> bool {
    pid == 1 && (program == "/init" || args.first().is_none_or(|word| word != "run"))
}

fn print(text: &str) -> ExitCode {
    let mut output = std::io::stdout();
    let written = output.write_all(text.as_bytes()).and_then(|()| output.flush());
    if let Err(error) = &written
        && error.kind() != ErrorKind::BrokenPipe
    {
        tell(&format!("writing to the standard output: {error}"));
    }
    success(written.is_ok())
}

fn show(report: Result<String, ReportError>) -> ExitCode {
    match report {
        Ok(text) => print(&text),
        Err(error) => {
            tell(&chain(&error));
            ExitCode::FAILURE
        }
    }
}

fn captured(file: &str, lldp: bool) -> ExitCode {
    show(report::capture(file, lldp).map(|entries| format!("{file}: {entries} entries\n")))
}

fn success(good: bool) -> ExitCode {
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The worker, to its end.
fn work(
    extensions: &'static [&'static Extension],
    managers: &'static [&'static dyn HardwareManager],
) -> Result<(), WorkerError> {
    init::begin_worker();
    let machine = Machine::host();
    let (config, warnings) = config::load(&machine.root);
    logs::init_worker(config.debug);
    info!(version = crate::VERSION, "agent starts");
    for warning in warnings {
        warn!("{warning}");
    }
    let handover = Handover::from_env();
    let result = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(RUNTIME_THREADS)
        .thread_stack_size(STACK_BYTES)
        .enable_all()
        .build()
        .map_err(WorkerError::Runtime)
        .and_then(|runtime| {
            runtime.spawn(init::link::keep_alive());
            runtime.block_on(worker::run(Setup { extensions, managers, machine, config, handover }))
        });
    if let Err(error) = &result {
        error!("the agent cannot go on: {}", chain(error));
    }
    logs::flush(FLUSH_TIME);
    result
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn the_kernel_starts_the_init_whatever_its_command_line_holds() {
        let args = |words: &[&[u8]]| words.iter().map(|word| OsStr::from_bytes(word).to_owned()).collect::<Vec<_>>();
        for (pid, program, words, want) in [
            (1, "/init", args(&[]), true),
            (1, "/init", args(&[b"caf\xe9"]), true),
            (1, "/init", args(&[b"run"]), true),
            (1, "/usr/bin/ferric-agent", args(&[]), true),
            (1, "/usr/bin/ferric-agent", args(&[b"run"]), false),
            (2, "/init", args(&[]), false),
            (300, "ferric-agent", args(&[b"inventory"]), false),
        ] {
            assert_eq!(is_init(pid, OsStr::new(program), &words), want, "{pid} {program} {words:?}");
        }
    }
}
