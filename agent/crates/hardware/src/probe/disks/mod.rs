//! Disks of the machine (hardware section 3): what `lsblk` lists, read from sysfs without udev.
//!
//! The tree of devices is the `blockdev` crate's, whose rules and order are those of `lsblk`. What identifies a disk
//! is in `identity` and `vpd`, its bus in `transport`, its names in [`links`](links()), its paths in `multipath`.

mod identity;
mod links;
mod multipath;
mod sysfs;
mod transport;
mod vpd;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use blockdev::DeviceType;
use ferric_sys::{Root, attr};
use ferric_types::inventory::BlockDevice;

pub use links::{content_links, links};
use multipath::PathState;
use sysfs::Chain;

use crate::error::HardwareError;

/// Pause between two looks for a disk that is being scanned.
const SETTLE_PAUSE: Duration = Duration::from_millis(20);

/// A disk with what is not for the inventory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Disk {
    /// What the inventory shows.
    pub info: BlockDevice,
    /// Kernel name, such as `sda` or `dm-0`.
    pub kname: String,
    /// What it is.
    pub kind: DiskKind,
    /// Whether the kernel refuses writes.
    pub read_only: bool,
    /// Serial numbers that a hint may mean: the one shown, udev's `ID_SERIAL_SHORT` and `ID_SERIAL`.
    pub serials: Vec<Option<String>>,
    /// World-wide names that a hint may mean: the one shown, and udev's `ID_WWN`.
    pub wwns: Vec<Option<String>>,
    /// Every link in `/dev/disk/by-path` that leads to it.
    pub by_paths: Vec<String>,
    /// Links in `/dev/disk/by-id` that lead to it, or would.
    pub by_ids: Vec<String>,
    /// Device paths of its partitions, in order.
    pub partitions: Vec<String>,
    /// Device paths of the arrays and volumes that it, or one of its partitions, is a part of.
    pub holders: Vec<String>,
}

/// Kinds of disks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DiskKind {
    /// A disk of its own.
    #[default]
    Physical,
    /// An md array.
    Raid,
    /// Several paths to one disk, put together by the device mapper.
    Multipath,
}

impl Disk {
    /// A disk of which no more is known than what the inventory shows: for managers that list disks themselves.
    pub fn plain(info: BlockDevice) -> Self {
        Self {
            kname: info.name.trim_start_matches("/dev/").replace('/', "!"),
            serials: vec![info.serial.clone()],
            wwns: vec![info.wwn.clone()],
            by_paths: info.by_path.clone().into_iter().collect(),
            info,
            ..Self::default()
        }
    }

    /// Every link in `/dev/disk` that is known to lead to it.
    pub fn links(&self) -> impl Iterator<Item = &str> {
        self.by_paths.iter().chain(&self.by_ids).map(String::as_str)
    }

    fn is_physical(&self) -> bool {
        self.kind == DiskKind::Physical
    }
}

/// Disks in the order of `lsblk`: those of their own and md arrays and multipath devices; without partitions, logical
/// volumes, CD drives, floppies, loop and RAM devices, and devices without a medium. One disk that is reached over
/// several paths is listed once.
///
/// # Errors
/// `/sys/block` or `/proc/self/mountinfo` cannot be read.
pub fn disks(root: &Root) -> Result<Vec<Disk>, HardwareError> {
    let tree = blockdev::get_devices_at(root.path("/"))?;
    let names = kernel_names(root);
    let mut seen = HashSet::new();
    let found = tree
        .iter_all()
        .filter_map(|device| {
            let kname = names.get(&device.maj_min.to_string())?;
            if !seen.insert(kname.clone()) {
                return None;
            }
            disk(root, kname, device, &names)
        })
        .collect();
    Ok(multipath::collapse(found))
}

/// Kernel name by device number.
fn kernel_names(root: &Root) -> BTreeMap<String, String> {
    let class = root.path("sys/class/block");
    attr::list(&class)
        .into_iter()
        .filter_map(|kname| Some((attr::read_optional(&class.join(&kname).join("dev"))?, kname)))
        .collect()
}

/// Waits until every USB storage device that is plugged in has been scanned, but no longer than `limit`: the kernel gives
/// such devices a second to spin up, and they would be missing from an inventory made at once. Returns whether all were.
pub fn settle(root: &Root, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        let Some(device) = unscanned(root) else { return true };
        if Instant::now() >= deadline {
            tracing::warn!(device, seconds = limit.as_secs(), "USB storage is still not scanned, going on without it");
            return false;
        }
        std::thread::sleep(SETTLE_PAUSE);
    }
}

/// A USB interface with a SCSI host on which nothing has been found yet; even a card reader without a card has a target.
fn unscanned(root: &Root) -> Option<String> {
    let below = |dir: &Path, wanted: fn(&str) -> bool| -> Vec<PathBuf> {
        attr::list(dir).into_iter().filter(|name| wanted(name)).map(|name| dir.join(name)).collect()
    };
    let is_scanned = |interface: &Path| {
        let hosts = below(interface, |name| sysfs::is_numbered(name, "host"));
        let targets: Vec<PathBuf> =
            hosts.iter().flat_map(|host| below(host, |name| name.starts_with("target"))).collect();
        let units = targets.iter().flat_map(|target| below(target, |name| sysfs::Hctl::parse(name).is_some()));
        !targets.is_empty() && units.into_iter().all(|unit| has_node(&unit))
    };
    ["usb-storage", "uas"].into_iter().find_map(|driver| {
        let directory = root.path("sys/bus/usb/drivers").join(driver);
        let interfaces = attr::list(&directory).into_iter().filter(|name| name.contains(':'));
        interfaces.into_iter().find(|name| !is_scanned(&directory.join(name)))
    })
}

/// Whether a SCSI unit has its block device, or will never have one: only disks and CD drives do.
fn has_node(unit: &Path) -> bool {
    let is_block = attr::read_optional(&unit.join("type")).is_some_and(|kind| kind == "0" || kind == "5");
    !is_block || unit.join("block").exists()
}

/// Whether a disk is the virtual medium through which a BMC hands parameters to the agent: never a target.
pub fn is_virtual_media(root: &Root, kname: &str) -> bool {
    attr::link_name(&root.path("dev/disk/by-label/ir-vfd-dev")).as_deref() == Some(kname)
}

/// Path of a device node by its kernel name.
pub(crate) fn device_path(kname: &str) -> String {
    format!("/dev/{}", kname.replace('!', "/"))
}

fn kind(device: &blockdev::BlockDevice, dir: &Path) -> Option<DiskKind> {
    match device.device_type {
        DeviceType::Disk => Some(DiskKind::Physical),
        DeviceType::Raid0 | DeviceType::Raid1 | DeviceType::Raid5 | DeviceType::Raid6 | DeviceType::Raid10 => {
            Some(DiskKind::Raid)
        }
        DeviceType::Other => {
            let attribute = |name: &str| attr::read_optional(&dir.join(name)).unwrap_or_default();
            if attribute("dm/uuid").starts_with("mpath-") {
                Some(DiskKind::Multipath)
            } else {
                attribute("md/level").contains("raid").then_some(DiskKind::Raid)
            }
        }
        _ => None,
    }
}

fn disk(
    root: &Root,
    kname: &str,
    device: &blockdev::BlockDevice,
    names: &BTreeMap<String, String>,
) -> Option<(Disk, PathState)> {
    let chain = Chain::of(root, kname)?;
    let dir = chain.device();
    let kind = kind(device, dir)?;
    let skipped = ["fd", "ram", "zram"].into_iter().any(|prefix| sysfs::is_numbered(kname, prefix));
    let hidden = attr::read_optional(&dir.join("hidden")).is_some_and(|hidden| hidden == "1");
    if skipped || hidden || device.size == 0 || is_path_of_multipath(root, dir) {
        return None;
    }
    // A device on top of others has no identity of its own: a multipath device has that of its paths.
    let member = attr::list(&dir.join("slaves")).into_iter().next().filter(|_| kind == DiskKind::Multipath);
    let member_chain = member.as_ref().and_then(|member| Chain::of(root, member));
    let identity = match (&member, &member_chain) {
        (Some(member), Some(chain)) => identity::of(root, member, chain),
        _ => identity::of(root, kname, &chain),
    };
    let by_paths = by_paths(root, kname, &chain);
    let attribute = |name: &str| attr::read_u64(&dir.join("queue").join(name)).ok();
    let sector = |name: &str| attribute(name).and_then(|bytes| u32::try_from(bytes).ok());
    let logical_sectors = sector("logical_block_size").unwrap_or(512);
    let wwn = identity.wwn.with_extension.clone().or_else(|| identity.wwn.wwn.clone());
    let info = BlockDevice {
        name: device_path(kname),
        model: identity.model,
        size: device.size,
        rotational: attribute("rotational").is_some_and(|flag| flag == 1),
        wwn: wwn.clone(),
        serial: identity.serial.clone(),
        vendor: identity.vendor,
        wwn_with_extension: identity.wwn.with_extension,
        wwn_vendor_extension: identity.wwn.vendor_extension,
        hctl: attr::list(&dir.join("device/scsi_device")).into_iter().next(),
        by_path: by_paths.first().cloned(),
        logical_sectors,
        physical_sectors: sector("physical_block_size").unwrap_or(logical_sectors),
        tran: transport::transport(root, kname, &chain),
    };
    let disk = Disk {
        info,
        kname: kname.to_owned(),
        kind,
        read_only: device.ro,
        serials: vec![identity.serial, identity.serial_short, identity.serial_full],
        wwns: vec![wwn, identity.wwn.wwn],
        by_paths,
        by_ids: identity.by_id.iter().map(|name| format!("/dev/disk/by-id/{name}")).collect(),
        partitions: partitions(device, names),
        holders: holders(device, names),
    };
    Some((disk, PathState::of(dir)))
}

/// Links that exist where udev or our own init made them; else those that would be made.
fn by_paths(root: &Root, kname: &str, chain: &Chain) -> Vec<String> {
    let directory = root.path("dev/disk/by-path");
    let made: Vec<String> = attr::list(&directory)
        .into_iter()
        .filter(|link| attr::link_name(&directory.join(link)).as_deref() == Some(kname))
        .collect();
    let names = links::by_path(root, chain);
    // The first of our own names goes first, so that the inventory does not depend on who made the links.
    let first = names.first().cloned().filter(|first| made.is_empty() || made.contains(first));
    let rest = if made.is_empty() { names } else { made };
    let rest: Vec<String> = rest.into_iter().filter(|name| Some(name) != first.as_ref()).collect();
    first.into_iter().chain(rest).map(|name| format!("/dev/disk/by-path/{name}")).collect()
}

/// Whether the device mapper's multipath target holds this device: its node stands for the disk then.
fn is_path_of_multipath(root: &Root, dir: &Path) -> bool {
    attr::list(&dir.join("holders")).into_iter().any(|holder| {
        let uuid = root.path("sys/class/block").join(holder).join("dm/uuid");
        attr::read_optional(&uuid).is_some_and(|uuid| uuid.starts_with("mpath-"))
    })
}

fn partitions(device: &blockdev::BlockDevice, names: &BTreeMap<String, String>) -> Vec<String> {
    let partitions = device.children.iter().filter(|child| child.is_partition());
    partitions.filter_map(|child| names.get(&child.maj_min.to_string())).map(|kname| device_path(kname)).collect()
}

fn holders(device: &blockdev::BlockDevice, names: &BTreeMap<String, String>) -> Vec<String> {
    let mut found: Vec<String> = device
        .descendants()
        .filter(|child| !child.is_partition() && child.maj_min != device.maj_min)
        .filter_map(|child| names.get(&child.maj_min.to_string()))
        .map(|kname| device_path(kname))
        .collect();
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests;
