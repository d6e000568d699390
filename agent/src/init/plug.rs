//! Drivers for the devices that are there and for those that come later.
//!
//! The uevent socket is opened first, then all of `/sys/devices` is walked; so no device falls between the two. Both
//! put aliases into one queue that a few threads load modules for.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ferric_sys::uevent::{Received, UeventSocket};
use ferric_sys::{Root, attr};
use rustix::event::{EventfdFlags, eventfd};
use tracing::{info, warn};

use super::modules::Modules;
use crate::logs;

/// Threads that load modules. Some drivers wait for their hardware while they load.
const LOADERS: usize = 4;
/// The machine counts as settled when nothing has happened for this long.
const QUIET: Duration = Duration::from_millis(150);
/// `/sys/devices` is not deeper than this on any machine; links are not followed.
const MAX_DEPTH: usize = 32;

/// Tells when the devices that were there at the start have their drivers.
#[derive(Debug)]
pub(super) struct Settled(OwnedFd);

impl Settled {
    /// Whether it has happened; can be asked again.
    pub(super) fn take(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }
}

impl AsFd for Settled {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[derive(Debug, Default)]
struct Activity {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    walked: bool,
    outstanding: usize,
    last: Instant,
    seen: BTreeSet<String>,
}

impl Default for State {
    fn default() -> Self {
        Self { walked: false, outstanding: 0, last: Instant::now(), seen: BTreeSet::new() }
    }
}

impl Activity {
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.last = Instant::now();
        let result = change(&mut state);
        self.changed.notify_all();
        result
    }

    /// Waits until the walk is over, the queue is empty and it is quiet.
    fn wait_until_quiet(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let busy = !state.walked || state.outstanding > 0;
            let quiet_for = state.last.elapsed();
            if !busy && quiet_for >= QUIET {
                return;
            }
            let pause = if busy { Duration::from_secs(1) } else { QUIET - quiet_for };
            state = self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Starts looking after devices.
///
/// # Errors
/// No uevent socket, no threads.
pub(super) fn spawn(modules: Arc<Modules>) -> io::Result<Settled> {
    let socket = UeventSocket::open()?;
    let settled = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let signal = settled.try_clone()?;
    let activity = Arc::<Activity>::default();
    let (queue, aliases) = channel::<String>();
    let aliases = Arc::new(Mutex::new(aliases));
    for number in 0..LOADERS {
        let (aliases, activity, modules) = (Arc::clone(&aliases), Arc::clone(&activity), Arc::clone(&modules));
        thread(&format!("modules {number}"), move || load_queued(&aliases, &activity, &modules))?;
    }
    let (walk_queue, walk_activity) = (queue.clone(), Arc::clone(&activity));
    thread("coldplug", move || {
        coldplug(&walk_queue, &walk_activity);
        walk_activity.wait_until_quiet();
        report_missing(&Root::host());
        // A full counter means that it was told before.
        let _told = rustix::io::write(&signal, &1_u64.to_ne_bytes());
    })?;
    thread("uevents", move || listen(&socket, &queue, &activity))?;
    Ok(Settled(settled))
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let builder = std::thread::Builder::new().name(name.to_owned()).stack_size(256 * 1024);
    builder.spawn(work).map(|_detached| ())
}

fn enqueue(alias: String, queue: &Sender<String>, activity: &Activity) {
    let alias = alias.trim().to_owned();
    let new = activity.change(|state| {
        let new = !alias.is_empty() && state.seen.insert(alias.clone());
        state.outstanding += usize::from(new);
        new
    });
    if new {
        // The loaders live as long as PID 1.
        let _sent = queue.send(alias);
    }
}

fn load_queued(aliases: &Mutex<Receiver<String>>, activity: &Activity, modules: &Modules) {
    loop {
        let next = aliases.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(alias) = next else { return };
        let load = std::panic::AssertUnwindSafe(|| modules.load_for(&alias));
        // A panic has been logged by the hook; the other devices still want their drivers.
        let _loaded = std::panic::catch_unwind(load);
        activity.change(|state| state.outstanding -= 1);
    }
}

fn coldplug(queue: &Sender<String>, activity: &Activity) {
    let mut aliases = Vec::new();
    walk(Path::new("/sys/devices"), MAX_DEPTH, &mut |alias| aliases.push(alias));
    aliases.sort_by_key(|alias| urgency(alias));
    aliases.into_iter().for_each(|alias| enqueue(alias, queue, activity));
    activity.change(|state| state.walked = true);
}

/// Network first: an address takes longest to come. Then disks, then the rest. `bc02` and `bc01` are the base classes
/// in the alias of a PCI device.
fn urgency(alias: &str) -> u8 {
    match alias {
        _ if alias.contains("bc02sc") => 0,
        _ if alias.contains("bc01sc") => 1,
        _ => 2,
    }
}

/// Calls `found` with each `modalias` file's text.
fn walk(directory: &Path, depth: usize, found: &mut dyn FnMut(String)) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.filter_map(Result::ok) {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() && depth > 0 {
            walk(&entry.path(), depth - 1, found);
        } else if kind.is_file() && entry.file_name() == "modalias" {
            fs::read_to_string(entry.path()).into_iter().for_each(&mut *found);
        }
    }
}

fn listen(socket: &UeventSocket, queue: &Sender<String>, activity: &Activity) {
    loop {
        match socket.receive() {
            Ok(Received::Event(event)) => match event.get("MODALIAS").filter(|_| event.action == "add") {
                Some(alias) => enqueue(alias.to_owned(), queue, activity),
                None => activity.change(|_| ()),
            },
            Ok(Received::Other) => {}
            Ok(Received::Overrun) => {
                info!("device events were lost, looking at all devices again");
                coldplug(queue, activity);
            }
            Err(error) => {
                warn!("listening for new devices: {error}");
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    }
}

/// Says which network and storage devices nobody drives, and which firmware was not there: the usual reasons for a
/// node that never calls home.
fn report_missing(root: &Root) {
    for (address, what, id) in undriven(root) {
        warn!("no driver in this image for the {what} {address} (PCI id {id})");
    }
    let kernel_log = logs::kernel_log(&root.path("dev/kmsg"));
    for line in missing_firmware(&String::from_utf8_lossy(&kernel_log)) {
        warn!("firmware is not in this image: {line}");
    }
}

/// Lines such as `e100 0000:00:05.0: Direct firmware load for e100/d101m_ucode.bin failed with error -2`.
fn missing_firmware(kernel_log: &str) -> Vec<&str> {
    let lines = kernel_log.lines().filter(|line| line.contains("irmware load for ") && line.contains(" failed"));
    lines.map(|line| line.split_once("] ").map_or(line, |(_, text)| text)).collect()
}

fn undriven(root: &Root) -> Vec<(String, &'static str, String)> {
    let directory = root.path("sys/bus/pci/devices");
    let of_device = |address: String| {
        let device = directory.join(&address);
        let get = |name: &str| attr::read_optional(&device.join(name));
        let class = get("class")?;
        let what = match class.get(..4)? {
            "0x01" => "storage controller",
            "0x02" => "network controller",
            _ => return None,
        };
        let short = |text: String| text.trim_start_matches("0x").to_owned();
        let id = format!("{}:{}", short(get("vendor")?), short(get("device")?));
        (!device.join("driver").exists()).then_some((address, what, id))
    };
    attr::list(&directory).into_iter().filter_map(of_device).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_without_driver_are_named_when_they_matter() {
        let dir = std::env::temp_dir().join(format!("ferric-plug-{}", std::process::id()));
        for (address, class, driver) in [
            ("0000:00:01.0", "0x020000", false),
            ("0000:00:02.0", "0x030000", false),
            ("0000:00:03.0", "0x010802", true),
        ] {
            let device = dir.join("sys/bus/pci/devices").join(address);
            fs::create_dir_all(&device).unwrap();
            fs::write(device.join("class"), format!("{class}\n")).unwrap();
            fs::write(device.join("vendor"), "0x8086\n").unwrap();
            fs::write(device.join("device"), "0x10d3\n").unwrap();
            if driver {
                fs::create_dir(device.join("driver")).unwrap();
            }
        }
        let found = undriven(&Root::at(&dir));
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(found, [("0000:00:01.0".to_owned(), "network controller", "8086:10d3".to_owned())]);
    }

    #[test]
    fn missing_firmware_is_found_in_the_kernels_log() {
        let log = "[    1.5] e100 0000:00:05.0: Direct firmware load for e100/d101m_ucode.bin failed with error -2\n[    2.0] firmware: nothing wrong\n";
        assert_eq!(
            missing_firmware(log),
            ["e100 0000:00:05.0: Direct firmware load for e100/d101m_ucode.bin failed with error -2"]
        );
    }

    #[test]
    fn network_devices_get_their_drivers_first() {
        let mut aliases =
            ["acpi:PNP0C0C:", "pci:v00008086d00007010sv0sd0bc01sc01i80", "pci:v00001AF4d00001000sv0sd0bc02sc00i00"];
        aliases.sort_by_key(|alias| urgency(alias));
        assert!(aliases[0].contains("bc02") && aliases[1].contains("bc01"), "{aliases:?}");
    }

    #[test]
    fn aliases_are_loaded_once_and_then_it_is_quiet() {
        let (queue, aliases) = channel();
        let activity = Activity::default();
        for alias in ["pci:a\n", "pci:a", "", "usb:b"] {
            enqueue(alias.to_owned(), &queue, &activity);
        }
        assert_eq!(aliases.try_iter().collect::<Vec<_>>(), ["pci:a", "usb:b"]);
        assert_eq!(activity.state.lock().unwrap().outstanding, 2);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                activity.wait_until_quiet();
                Instant::now()
            });
            activity.change(|state| state.walked = true);
            std::thread::sleep(Duration::from_millis(20));
            let end = Instant::now();
            activity.change(|state| state.outstanding = 0);
            assert!(waiter.join().unwrap() >= end + QUIET);
        });
    }

    #[test]
    fn the_walk_finds_every_alias_file() {
        let dir = std::env::temp_dir().join(format!("ferric-walk-{}", std::process::id()));
        fs::create_dir_all(dir.join("a/b/c")).unwrap();
        fs::write(dir.join("a/modalias"), "x\n").unwrap();
        fs::write(dir.join("a/b/c/modalias"), "y\n").unwrap();
        std::os::unix::fs::symlink(&dir, dir.join("a/loop")).unwrap();
        let mut found = Vec::new();
        walk(&dir, MAX_DEPTH, &mut |alias| found.push(alias));
        fs::remove_dir_all(&dir).unwrap();
        found.sort();
        assert_eq!(found, ["x\n", "y\n"]);
    }
}
