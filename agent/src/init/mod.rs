//! PID 1: makes a bare kernel into a machine with file systems, drivers and a log, then keeps the worker running.
//!
//! It is small on purpose. Whatever may crash, hang or eat memory happens in the worker; PID 1 starts it again and
//! hands it back what it must not lose ([`crate::handover`]). PID 1 itself never ends before the machine does.

mod content;
mod devlinks;
mod end;
pub mod inherit;
pub mod link;
mod modalias;
mod modules;
mod mounts;
mod plug;
pub mod power;
pub mod supervisor;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use ferric_sys::process::SignalFd;
use ferric_sys::{Root, attr, memfd, reboot};
use rustix::process::Signal;
use tracing::{debug, error, info, warn};

pub use modules::modprobe;
use supervisor::{Program, Supervisor};

use crate::{config, logs};

/// Signals that PID 1 acts on: its children's, the ones that ask for the end, and Ctrl-Alt-Del as SIGINT.
const SIGNALS: &[Signal] = &[Signal::CHILD, Signal::TERM, Signal::INT, Signal::USR1, Signal::USR2];

/// The kernel prints errors and worse on the consoles; its other messages stay in its log.
const KERNEL_CONSOLE_LEVEL: &str = "4 4 1 7";

/// Runs as PID 1, for as long as the machine does.
pub fn run() -> ! {
    // Before any other thread exists: a thread that does not block them would be ended by them, and PID 1 with it.
    let signals = block_signals();
    mounts::mount_all();
    let root = Root::host();
    quiet_kernel(&root);
    let ring = start_logs(&root);
    hook_panics();
    let release = attr::read_trimmed(&root.path("proc/sys/kernel/osrelease")).unwrap_or_default();
    info!("ferric {} on Linux {release}", crate::VERSION);
    start_entropy();
    prepare(&root);
    let program = Program { path: "/proc/self/exe".into(), args: vec!["run".to_owned()] };
    let mut supervisor = Supervisor::new(program, signals, ring);
    supervisor.watch_devices(start_devices(&root));
    loop {
        // A panic here would be a bug; the hook has told about it, and the worker is still there to be watched.
        match catch_unwind(AssertUnwindSafe(|| supervisor.run())) {
            Ok(action) => end::end(&mut supervisor, action),
            Err(_panic) => std::thread::sleep(Duration::from_secs(1)),
        }
    }
}

/// There is no log yet to complain to; without signals PID 1 would not hear of its children.
fn block_signals() -> SignalFd {
    loop {
        match SignalFd::new(SIGNALS) {
            Ok(signals) => return signals,
            Err(_) => std::thread::sleep(Duration::from_secs(1)),
        }
    }
}

/// The log ring must exist before the first line; the worker inherits it.
fn start_logs(root: &Root) -> std::os::fd::OwnedFd {
    let size = u64::try_from(logs::RING_BYTES).unwrap_or(1 << 20);
    let ring = loop {
        match memfd::create("ferric-log", size) {
            Ok(file) => break std::os::fd::OwnedFd::from(file),
            // Nothing works without memory; the kernel may find some.
            Err(_) => std::thread::sleep(Duration::from_secs(1)),
        }
    };
    logs::use_ring(&ring);
    logs::init(logs::Output::Machine, config::load(root).0.debug);
    ring
}

/// Keeps the kernel's chatter off slow serial lines, unless the command line asks for it.
fn quiet_kernel(root: &Root) {
    let cmdline = attr::read_trimmed(&root.path("proc/cmdline")).unwrap_or_default();
    let wanted = |word: &str| word == "debug" || word == "ignore_loglevel" || word.starts_with("loglevel=");
    if !cmdline.split_whitespace().any(wanted) {
        // Without it there is more on the console, no harm else.
        let _louder = attr::write(&root.path("proc/sys/kernel/printk"), KERNEL_CONSOLE_LEVEL);
    }
    // The kernel drops most of a burst of lines from user space otherwise.
    let _limited = attr::write(&root.path("proc/sys/kernel/printk_devkmsg"), "on");
}

/// A panic says where on every console, whatever the state of the logging.
pub(crate) fn hook_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        logs::last_words(&format!("ferric: PANIC in thread {}: {panic}", thread.name().unwrap_or("?")));
    }));
}

/// Small settings of the kernel; each failure is a note and no more.
fn prepare(root: &Root) {
    let settings = [
        // PID 1 is the last process to be killed for memory.
        ("proc/self/oom_score_adj", "-1000"),
        // Modules that the kernel itself asks for (file systems, VLANs) are loaded by this program, see `modprobe`.
        ("proc/sys/kernel/modprobe", "/init"),
    ];
    for (path, value) in settings {
        if let Err(error) = attr::write(&root.path(path), value) {
            warn!("{}", ferric_types::error::chain(&error));
        }
    }
    if let Err(error) = reboot::catch_ctrl_alt_del() {
        debug!("Ctrl-Alt-Del restarts at once: {error}");
    }
    if let Err(error) = rustix::system::sethostname(b"ferric") {
        debug!("setting the host name: {error}");
    }
    if let Err(error) = fs::create_dir_all("/run/ironic-python-agent") {
        debug!("creating /run/ironic-python-agent: {error}");
    }
}

/// Makes the kernel gather randomness now, beside everything else. It begins only when somebody waits for it, and takes a
/// second on machines whose processor has none to give; the first to wait would be whoever makes the TLS key.
fn start_entropy() {
    let gather = || {
        // In the idle time of the processor only: drivers and network come first. The thread is its own "process" here.
        let _still_normal = rustix::process::setpriority_process(None, 19);
        let _gathered = rustix::rand::getrandom(&mut [0_u8; 1], rustix::rand::GetRandomFlags::empty());
    };
    let thread = std::thread::Builder::new().name("entropy".to_owned()).stack_size(64 * 1024);
    if let Err(error) = thread.spawn(gather) {
        debug!("not gathering randomness early: {error}");
    }
}

fn start_devices(root: &Root) -> Option<plug::Settled> {
    let modules = Arc::new(modules::Modules::of_running_kernel(root));
    let settled = plug::spawn(Arc::clone(&modules));
    if root.path("sys/firmware/efi/efivars").is_dir() {
        modules.load_named("efivarfs");
        mounts::mount_efivarfs();
    }
    modules.load_listed(root);
    settled.inspect_err(|error| error!("looking for devices: {error}; only built-in drivers work")).ok()
}

/// What a worker does first, wherever it runs: takes its place below PID 1 and tells of panics.
pub fn begin_worker() {
    if inherit::supervised() {
        hook_panics();
        // PID 1's own -1000 was inherited; the worker may be killed for memory, and is started again then.
        if let Err(error) = attr::write(&Root::host().path("proc/self/oom_score_adj"), "0") {
            debug!("{}", ferric_types::error::chain(&error));
        }
        // It was started as /proc/self/exe; lists of processes shall have a name for it.
        let _unnamed = rustix::thread::set_name(c"ferric-agent");
        devlinks::spawn(Root::host());
    }
    link::listen();
}
