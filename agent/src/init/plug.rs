//! Drivers for the devices that are there and for those that come later.
//!
//! The uevent socket is opened first, then all of `/sys/devices` is walked; so no device falls between the two. Both
//! put aliases into one queue, out of which a few threads load modules, those for the network first.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::num::NonZero;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ferric_sys::uevent::{Received, UeventSocket};
use ferric_sys::{Root, attr};
use rustix::event::{EventfdFlags, eventfd};
use tracing::{info, warn};

use super::modules::Modules;
use crate::logs;

/// Threads that load modules, besides one for each processor: some drivers wait for their hardware while they load.
const MORE_LOADERS: usize = 1;
/// More than these only wait for each other in the kernel.
const MAX_LOADERS: usize = 4;
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

/// Aliases to load modules for, and whether there is anything going on.
#[derive(Debug, Default)]
struct Activity {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    walked: bool,
    /// By urgency, then in the order of their arrival.
    waiting: BTreeMap<(u8, usize), String>,
    loading: usize,
    last: Instant,
    /// All that ever waited: each alias is looked at once.
    seen: BTreeSet<String>,
}

impl Default for State {
    fn default() -> Self {
        Self { walked: false, waiting: BTreeMap::new(), loading: 0, last: Instant::now(), seen: BTreeSet::new() }
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

    fn add(&self, alias: &str) {
        let alias = alias.trim();
        self.change(|state| {
            if !alias.is_empty() && state.seen.insert(alias.to_owned()) {
                state.waiting.insert((urgency(alias), state.seen.len()), alias.to_owned());
            }
        });
    }

    /// The most urgent alias, waiting for one; the caller says when it is done with it.
    fn next(&self) -> String {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some((_, alias)) = state.waiting.pop_first() {
                state.loading += 1;
                return alias;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn done(&self) {
        self.change(|state| state.loading = state.loading.saturating_sub(1));
    }

    /// Waits until the walk is over, the queue is empty and it is quiet.
    fn wait_until_quiet(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let busy = !state.walked || !state.waiting.is_empty() || state.loading > 0;
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
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    for number in 0..(processors + MORE_LOADERS).min(MAX_LOADERS) {
        let (activity, modules) = (Arc::clone(&activity), Arc::clone(&modules));
        thread(&format!("modules {number}"), move || load_queued(&activity, &modules))?;
    }
    let walking = Arc::clone(&activity);
    thread("coldplug", move || {
        coldplug(&walking);
        walking.wait_until_quiet();
        let (start, mut told) = (Instant::now(), BTreeSet::new());
        for time in LOOKS {
            std::thread::sleep(time.saturating_sub(start.elapsed()));
            report_missing(&Root::host(), &mut told);
            // A full counter means that it was told before.
            let _told = rustix::io::write(&signal, &1_u64.to_ne_bytes());
        }
    })?;
    thread("uevents", move || listen(&socket, &activity))?;
    Ok(Settled(settled))
}

fn thread<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> io::Result<()> {
    let builder = std::thread::Builder::new().name(name.to_owned()).stack_size(256 * 1024);
    builder.spawn(work).map(|_detached| ())
}

fn load_queued(activity: &Activity, modules: &Modules) -> ! {
    loop {
        let alias = activity.next();
        let load = std::panic::AssertUnwindSafe(|| modules.load_for(&alias));
        // A panic has been logged by the hook; the other devices still want their drivers.
        let _loaded = std::panic::catch_unwind(load);
        activity.done();
    }
}

fn coldplug(activity: &Activity) {
    let mut aliases = Vec::new();
    walk(Path::new("/sys/devices"), MAX_DEPTH, &mut |alias| aliases.push(alias));
    aliases.sort_by_key(|alias| urgency(alias));
    aliases.iter().for_each(|alias| activity.add(alias));
    activity.change(|state| state.walked = true);
}

/// Bus of a network card that `virtio_pci` found.
const VIRTIO_NET: &str = "virtio:d00000001v";

/// Network first: an address takes longest to come. Then disks, then the rest. `bc02` and `bc01` are the base classes
/// in the alias of a PCI device.
fn urgency(alias: &str) -> u8 {
    match alias {
        _ if alias.contains("bc02sc") || alias.starts_with(VIRTIO_NET) => 0,
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

fn listen(socket: &UeventSocket, activity: &Activity) -> ! {
    loop {
        match socket.receive() {
            Ok(Received::Event(event)) => match event.get("MODALIAS").filter(|_| event.action == "add") {
                Some(alias) => activity.add(alias),
                None => activity.change(|_| ()),
            },
            Ok(Received::Other) => {}
            Ok(Received::Overrun) => {
                info!("device events were lost, looking at all devices again");
                coldplug(activity);
            }
            Err(error) => {
                warn!("listening for new devices: {error}");
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    }
}

/// When the kernel's log is read for firmware that was missing, counted from when the machine had settled: some drivers
/// load it when their interface is taken up.
const LOOKS: [Duration; 3] = [Duration::ZERO, Duration::from_secs(10), Duration::from_secs(60)];

/// Says which network and storage devices nobody drives, and which firmware was not there, each once: the usual reasons
/// for a node that never calls home.
fn report_missing(root: &Root, told: &mut BTreeSet<String>) {
    let undriven = undriven(root).into_iter().map(|device| format!("no driver in this image for the {device}"));
    let kernel_log = logs::kernel_log(&root.path("dev/kmsg"));
    let firmware = missing_firmware(root, &String::from_utf8_lossy(&kernel_log));
    for line in undriven.chain(firmware) {
        if told.insert(line.clone()) {
            warn!("{line}");
        }
    }
}

/// Reads lines such as `e100 0000:00:05.0: Direct firmware load for e100/d101m_ucode.bin failed with error -2`, or as
/// Debian's kernel has it, `e100 0000:00:05.0: firmware: failed to load e100/d101m_ucode.bin (-2)`.
fn missing_firmware(root: &Root, kernel_log: &str) -> Vec<String> {
    let forms = [(": Direct firmware load for ", " failed"), (": firmware: failed to load ", " (")];
    let of_line = |line: &str| {
        let (before, file) = forms.iter().find_map(|(middle, end)| {
            let (before, rest) = line.split_once(middle)?;
            Some((before, rest.split(end).next()?.trim()))
        })?;
        let (_, before) = before.split_once("] ").unwrap_or(("", before));
        let address = before.split(' ').next_back()?;
        let device = device(root, address).map_or_else(|| before.to_owned(), |(_, text)| text);
        Some(format!("firmware {file} is not in this image; missed by the {device}"))
    };
    kernel_log.lines().filter_map(of_line).collect()
}

/// Network and storage controllers without a driver.
fn undriven(root: &Root) -> Vec<String> {
    let directory = root.path("sys/bus/pci/devices");
    let of_device = |address: String| {
        let (class, text) = device(root, &address)?;
        let matters = class.starts_with("0x01") || class.starts_with("0x02");
        (matters && !directory.join(address).join("driver").exists()).then_some(text)
    };
    attr::list(&directory).into_iter().filter_map(of_device).collect()
}

/// Class of a PCI device, and what a person needs to find its driver.
fn device(root: &Root, address: &str) -> Option<(String, String)> {
    let folder = root.path("sys/bus/pci/devices").join(address);
    let get = |name: &str| attr::read_optional(&folder.join(name));
    let class = get("class")?;
    let what = match class.get(..4)? {
        "0x01" => "storage controller",
        "0x02" => "network controller",
        _ => "device",
    };
    let id = |name: &str| Some(get(name)?.trim_start_matches("0x").to_owned());
    let (vendor, product, alias) = (id("vendor")?, id("device")?, get("modalias").unwrap_or_default());
    Some((class, format!("{what} {address} (PCI id {vendor}:{product}, {alias})")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PCI devices: address, class and whether they have a driver.
    fn machine(name: &str, devices: &[(&str, &str, bool)]) -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("ferric-plug-{name}-{}", std::process::id()));
        for (address, class, driver) in devices {
            let device = dir.join("sys/bus/pci/devices").join(address);
            fs::create_dir_all(&device).unwrap();
            for (name, text) in [
                ("class", *class),
                ("vendor", "0x8086"),
                ("device", "0x10d3"),
                ("modalias", "pci:v00008086d000010D3bc02"),
            ] {
                fs::write(device.join(name), format!("{text}\n")).unwrap();
            }
            if *driver {
                fs::create_dir(device.join("driver")).unwrap();
            }
        }
        dir
    }

    #[test]
    fn devices_without_driver_are_named_when_they_matter() {
        let devices = [
            ("0000:00:01.0", "0x020000", false),
            ("0000:00:02.0", "0x030000", false),
            ("0000:00:03.0", "0x010802", true),
        ];
        let dir = machine("undriven", &devices);
        let found = undriven(&Root::at(&dir));
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(found, ["network controller 0000:00:01.0 (PCI id 8086:10d3, pci:v00008086d000010D3bc02)"]);
    }

    #[test]
    fn missing_firmware_is_told_with_its_file_and_the_device_that_misses_it() {
        let dir = machine("firmware", &[("0000:00:05.0", "0x020000", true)]);
        let log = "[    1.5] e100 0000:00:05.0: Direct firmware load for e100/d101m_ucode.bin failed with error -2\n\
            [    1.6] e100 0000:00:05.0: firmware: failed to load e100/d101m_ucode.bin (-2)\n\
            [    1.7] firmware_class: See https://wiki.debian.org/Firmware for information about missing firmware\n\
            [    1.8] platform regulatory.0: Direct firmware load for regulatory.db failed with error -2\n\
            [    2.0] firmware: nothing wrong\n[    2.1] : Direct firmware load for \n";
        let found = missing_firmware(&Root::at(&dir), log);
        fs::remove_dir_all(&dir).unwrap();
        let nic = "firmware e100/d101m_ucode.bin is not in this image; missed by the network controller 0000:00:05.0 (PCI id \
                   8086:10d3, pci:v00008086d000010D3bc02)";
        let other = "firmware regulatory.db is not in this image; missed by the platform regulatory.0";
        assert_eq!(found.get(..3), Some(&[nic, nic, other].map(str::to_owned)[..]), "{found:?}");
    }

    #[test]
    fn what_is_missing_is_told_once() {
        let dir = machine("once", &[("0000:00:01.0", "0x020000", false)]);
        let mut told = BTreeSet::new();
        (0..3).for_each(|_| report_missing(&Root::at(&dir), &mut told));
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(told.len(), 1, "{told:?}");
    }

    #[test]
    fn network_devices_get_their_drivers_first() {
        let mut aliases =
            ["acpi:PNP0C0C:", "pci:v00008086d00007010sv0sd0bc01sc01i80", "pci:v00001AF4d00001000sv0sd0bc02sc00i00"];
        aliases.sort_by_key(|alias| urgency(alias));
        assert!(aliases[0].contains("bc02") && aliases[1].contains("bc01"), "{aliases:?}");
    }

    #[test]
    fn aliases_are_loaded_once_the_urgent_ones_first_and_then_it_is_quiet() {
        let activity = Activity::default();
        for alias in ["acpi:x\n", "pci:v1bc01sc01", "acpi:x", "", "virtio:d00000001v1", "acpi:a"] {
            activity.add(alias);
        }
        let taken: Vec<String> = (0..4).map(|_| activity.next()).collect();
        assert_eq!(taken, ["virtio:d00000001v1", "pci:v1bc01sc01", "acpi:x", "acpi:a"]);
        activity.change(|state| state.walked = true);
        (0..3).for_each(|_| activity.done());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                activity.wait_until_quiet();
                Instant::now()
            });
            std::thread::sleep(Duration::from_millis(20));
            let end = Instant::now();
            activity.done();
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
