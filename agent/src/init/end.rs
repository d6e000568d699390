//! The last acts of PID 1: power off, reboot, lockdown.

use std::sync::mpsc::channel;
use std::time::Duration;

use ferric_sys::netlink::{LinkChange, Netlink};
use ferric_sys::process::signal_all;
use ferric_sys::reboot::{self, Reboot};
use rustix::process::Signal;
use tracing::{error, info, warn};

use super::mounts;
use super::power::PowerAction;
use super::supervisor::Supervisor;
use crate::logs;

/// The worker finishes the answer it is giving.
const WORKER_LIMIT: Duration = Duration::from_secs(5);
/// A dying disk may never finish writing; the machine ends all the same, and says so.
const SYNC_LIMIT: Duration = Duration::from_secs(120);

/// Does what was asked for. Comes back only after a lockdown that was ended by a signal, or when neither the kernel
/// nor the magic SysRq key would end the machine; then the caller goes on supervising.
pub(super) fn end(supervisor: &mut Supervisor, action: PowerAction) {
    info!("{}: ending the agent", action.word());
    supervisor.end_worker(WORKER_LIMIT);
    match action {
        PowerAction::Lockdown => lock_down(supervisor),
        PowerAction::PowerOff => end_machine(Reboot::PowerOff, "power off"),
        PowerAction::Reboot => end_machine(Reboot::Restart, "reboot"),
    }
}

fn lock_down(supervisor: &mut Supervisor) {
    if let Err(error) = links_down() {
        error!("taking the network down: {error}");
    }
    info!("locked down: the network is off and the agent ended, as the conductor asked for; waiting for power off");
    let action = supervisor.wait_for_signal();
    end(supervisor, action);
}

fn links_down() -> std::io::Result<()> {
    let netlink = Netlink::open()?;
    for link in netlink.links()?.iter().filter(|link| link.is_up) {
        if let Err(error) = netlink.change_link(link.index, LinkChange::Down) {
            warn!("taking {} down: {error}", link.name);
        }
    }
    Ok(())
}

fn end_machine(what: Reboot, word: &str) {
    // Tools that the worker started; there may be none.
    let _none = signal_all(Signal::TERM);
    std::thread::sleep(Duration::from_millis(50));
    let _none = signal_all(Signal::KILL);
    if !sync_within(SYNC_LIMIT) {
        error!("a disk did not finish writing within {} s; {word} all the same", SYNC_LIMIT.as_secs());
    }
    mounts::unmount_disks();
    let _late = sync_within(Duration::from_secs(10));
    info!("{word}");
    logs::flush(Duration::from_millis(500));
    let failed = reboot::now(what);
    error!("{word}: {failed}; trying the magic SysRq key");
    if let Err(error) = reboot::sysrq(what) {
        error!("{word} by SysRq: {error}");
    }
    std::thread::sleep(Duration::from_secs(10));
    error!("{word} did not happen; the agent goes on");
}

fn sync_within(limit: Duration) -> bool {
    let (done, finished) = channel();
    let thread = std::thread::Builder::new().name("sync".to_owned());
    let started = thread.spawn(move || {
        rustix::fs::sync();
        // Nobody waits any more when it took too long.
        let _late = done.send(());
    });
    started.is_ok() && finished.recv_timeout(limit).is_ok()
}
