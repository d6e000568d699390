//! Choosing the disk for the operating system (hardware section 4).

use std::time::{Duration, Instant};

use ferric_sys::attr;
use ferric_sys::uevent::UeventSocket;
use ferric_types::Node;
use ferric_types::error::{CommandError, ErrorClass};
use serde_json::{Map, Value};

use crate::generic::raid::root::Volumes;
use crate::hints::{RootDeviceHints, Shown};
use crate::machine::Machine;
use crate::probe::disks::{self, Disk};
use crate::registry::Registry;
use crate::settings::Settings;
use crate::skip_list;

/// Smallest disk that is chosen without hints, bytes.
pub const MIN_SIZE_BYTES: u64 = 4 << 30;
/// Longest pause between two looks for a disk that has not come up, where the kernel tells of disks: udev, where there is
/// one, adds to what is known of a disk only after the kernel has told of it.
const TOLD_PAUSE: Duration = Duration::from_secs(2);
/// The same where it does not.
const UNTOLD_PAUSE: Duration = Duration::from_millis(250);
/// Disks come in crowds; they are looked at together when no other has come for this long.
const QUIET: Duration = Duration::from_millis(30);

/// Disks that may be touched: all but those on the node's skip list.
///
/// # Errors
/// The disks cannot be listed, or the skip list makes no sense.
pub fn usable_disks(
    registry: &Registry,
    machine: &Machine,
    settings: &Settings,
    node: &Node,
) -> Result<Vec<Disk>, CommandError> {
    let disks = registry.disks(machine, settings)?;
    skip_list::without_skipped(&machine.root, node, disks)
}

/// The root device: the array that the node's RAID configuration marks as such; else the first disk that satisfies the
/// node's hints, or without hints the smallest of at least 4 GiB. Hints that match nothing are a failure, never a reason to
/// take another disk.
///
/// # Errors
/// `DeviceNotFound`; see also [`usable_disks`].
pub fn select(registry: &Registry, machine: &Machine, settings: &Settings, node: &Node) -> Result<Disk, CommandError> {
    node.check_shape().map_err(not_found)?;
    let mut disks = usable_disks(registry, machine, settings, node)?;
    let volumes = Volumes::of(&machine.root, node);
    if let Some(disk) = volumes.root(&disks) {
        if let Some(hints) = node.root_device_hints() {
            tracing::warn!(taken = disk.info.name, hints = %Shown(hints), "the hints give way to the RAID configuration");
        }
        tracing::info!(disk = disk.info.name, "root device found by the RAID configuration");
        return Ok(disk.clone());
    }
    disks.retain(|disk| !volumes.excludes(disk));
    let Some(hints) = node.root_device_hints() else {
        let found = smallest(machine, &disks).cloned();
        return found.ok_or_else(|| {
            not_found(format!(
                "No suitable device was found for deployment - root device hints were not provided and all found block \
                 devices are smaller than {MIN_SIZE_BYTES}B."
            ))
        });
    };
    by_hints(&disks, hints).map(|disk| {
        tracing::info!(disk = disk.info.name, hints = %Shown(hints), "root device found by its hints");
        disk.clone()
    })
}

/// The disk that would be chosen without hints, by size and then name; `None` when all are smaller than 4 GiB.
/// Virtual media and disks that refuse writes are passed over: they can hold no operating system. So are removable USB
/// media, such as a stick that was left in or the BMC's virtual disk (pitfall A8); hints may still choose them.
pub fn smallest<'a>(machine: &Machine, disks: &'a [Disk]) -> Option<&'a Disk> {
    let mut sorted: Vec<&Disk> = disks
        .iter()
        .filter(|disk| disk.info.size >= MIN_SIZE_BYTES && !disk.read_only)
        .filter(|disk| !disks::is_virtual_media(&machine.root, &disk.kname) && !is_removable_usb(machine, disk))
        .collect();
    sorted.sort_by(|a, b| (a.info.size, &a.info.name).cmp(&(b.info.size, &b.info.name)));
    sorted.first().copied()
}

/// Not on other buses: there the kernel calls disks in hot-plug bays removable, too.
fn is_removable_usb(machine: &Machine, disk: &Disk) -> bool {
    let flag = attr::read_optional(&machine.root.path("sys/block").join(&disk.kname).join("removable"));
    disk.info.tran.as_deref() == Some("usb") && flag.is_some_and(|flag| flag == "1")
}

fn by_hints<'a>(disks: &'a [Disk], hints: &Map<String, Value>) -> Result<&'a Disk, CommandError> {
    let rules = RootDeviceHints::parse(hints).map_err(|error| {
        not_found(format!(
            "No devices could be found using the root device hints {} because they failed to validate. Error: {error}",
            Shown(hints)
        ))
    })?;
    let fitting: Vec<&Disk> = disks.iter().filter(|disk| rules.matches(disk)).collect();
    if let [first, _, ..] = fitting.as_slice() {
        let names: Vec<&str> = fitting.iter().map(|disk| disk.info.name.as_str()).collect();
        tracing::warn!(taken = first.info.name, hints = %Shown(hints), "several disks fit the hints: {}", names.join(", "));
    }
    fitting.first().copied().ok_or_else(|| {
        let shown = |disk: &Disk| format!("{} ({})", disk.info.name, rules.mismatches(disk));
        let candidates = disks.iter().map(shown).collect::<Vec<_>>().join("; ");
        not_found(format!(
            "No suitable device was found for deployment using these hints {}. Disks of this machine: {}",
            Shown(hints),
            if candidates.is_empty() { "none" } else { &candidates },
        ))
    })
}

fn not_found(details: String) -> CommandError {
    CommandError::new(ErrorClass::DeviceNotFound, details)
}

/// Waits until the root device is there, for as long as `disk_wait_attempts` looks `disk_wait_delay` apart would take,
/// counted from when the agent started looking at the hardware: a disk that has not come up by then will not do so for
/// the asking. All disks are looked at again whenever the kernel tells that one has come or changed, so that a disk is used
/// as soon as it is there. `node` brings the hints; without it any disk of 4 GiB will do.
///
/// # Errors
/// `DeviceNotFound` when the time is over; other errors of [`select`] at once. At start-up the caller only logs it.
pub fn wait(
    registry: &Registry,
    machine: &Machine,
    settings: &Settings,
    node: Option<&Node>,
) -> Result<Disk, CommandError> {
    let anyone = Node::default();
    let node = node.unwrap_or(&anyone);
    let limit = settings.disk_wait_delay.saturating_mul(settings.disk_wait_attempts.saturating_sub(1));
    // Hints that do not validate will not do so later either.
    let hopeless = node.check_shape().is_err()
        || node.root_device_hints().is_some_and(|hints| RootDeviceHints::parse(hints).is_err());
    let deadline = if hopeless { Instant::now() } else { registry.began() + limit };
    let mut said = false;
    // Before the first look, so that no disk falls between.
    let disks = Disks::of(machine);
    loop {
        match select(registry, machine, settings, node) {
            Err(error) if error.class == ErrorClass::DeviceNotFound && Instant::now() < deadline => {
                if !said {
                    tracing::warn!(seconds = limit.as_secs(), reason = error.details, "waiting for the root device");
                    said = true;
                }
                disks.wait_for_change(deadline.saturating_duration_since(Instant::now()));
            }
            result => return result,
        }
    }
}

/// As [`wait`], with the outcome only logged: at start-up a machine without a disk is still to be managed.
pub fn wait_for_disks(machine: &Machine, registry: &Registry, settings: &Settings, node: Option<&Node>) {
    match wait(registry, machine, settings, node) {
        Ok(disk) => tracing::info!(disk = disk.info.name, "root device present"),
        Err(error) => tracing::warn!(reason = error.details, "going on without a root device"),
    }
}

/// Tells when it is time to look again.
struct Disks(Option<UeventSocket>);

impl Disks {
    /// Of this machine; a tree that stands for one does not tell.
    fn of(machine: &Machine) -> Self {
        let socket = machine.root.is_host().then(UeventSocket::open);
        let socket = socket.transpose().inspect_err(|error| tracing::warn!(%error, "not told when disks come"));
        Self(socket.ok().flatten())
    }

    /// Until a disk has come, gone or changed, or for as long as it makes sense not to look.
    fn wait_for_change(&self, limit: Duration) {
        let told = self.0.as_ref().map(|socket| socket.block_change(limit.min(TOLD_PAUSE), QUIET));
        match told {
            Some(Ok(true)) => tracing::debug!("disks have changed, looking for the root device again"),
            Some(Ok(false)) => {}
            Some(Err(_)) | None => std::thread::sleep(limit.min(UNTOLD_PAUSE)),
        }
    }
}

#[cfg(test)]
mod tests;
