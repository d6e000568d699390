//! Disks of the machine (hardware section 3): what `lsblk` lists, read from sysfs without udev.
//!
//! Which devices there are, and which is on top of which, is in `tree`. What identifies a disk
//! is in `identity` and `vpd`, its bus in `transport`, its names in [`links`](links()), its paths in `multipath`.

mod identity;
mod links;
mod multipath;
mod pages;
mod settle;
mod sysfs;
mod transport;
mod tree;
mod vpd;

use std::path::{Path, PathBuf};

use ferric_sys::{Root, attr};
use ferric_types::inventory::BlockDevice;

use links::Made;
pub use links::{content_links, links};
use multipath::PathState;
pub use settle::settle;
use sysfs::Chain;

use crate::error::HardwareError;

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
    /// Links in `/dev/disk/by-id` that lead to it, or would, and all others that do.
    pub by_ids: Vec<String>,
    /// Other paths to the same disk, for which this one stands.
    pub other_paths: Vec<OtherPath>,
    /// Device paths of its partitions, in order.
    pub partitions: Vec<String>,
    /// Device paths of the arrays and volumes that it, or one of its partitions, is a part of.
    pub holders: Vec<String>,
}

/// A path to a disk that is not used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OtherPath {
    /// Device path.
    pub name: String,
    /// SCSI address.
    pub hctl: Option<String>,
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

    /// Every link that is known to lead to it.
    pub fn links(&self) -> impl Iterator<Item = &str> {
        self.by_paths.iter().chain(&self.by_ids).map(String::as_str)
    }

    fn is_physical(&self) -> bool {
        self.kind == DiskKind::Physical
    }
}

/// Disks in the order of a list of `lsblk`, that of their device numbers: those of their own and md arrays and multipath devices; without partitions, logical
/// volumes, CD drives, floppies, loop and RAM devices, and devices without a medium. One disk that is reached over
/// several paths is listed once.
///
/// # Errors
/// `/sys/block` cannot be read.
pub fn disks(root: &Root) -> Result<Vec<Disk>, HardwareError> {
    let look = Look { root, made: Made::read(root) };
    // A device may vanish at any time: it is left out then.
    let found = tree::nodes(root)?.into_iter().filter_map(|node| look.disk(node)).collect();
    Ok(multipath::collapse(root, found, |disk| multipath::answers(root, disk)))
}

/// What is read once for all disks.
struct Look<'a> {
    root: &'a Root,
    made: Made,
}

/// Labels of what a conductor puts into a BMC's virtual drives.
const VIRTUAL_MEDIA: [&str; 2] = ["ir-vfd-dev", "VMEDIA_BOOT_ISO"];

/// Whether a disk is a virtual medium of the BMC, through which it hands parameters to the agent or boots it: never a
/// target. Only USB has such media; anybody can write the label on a disk of the machine, to have it spared.
pub fn is_virtual_media(root: &Root, kname: &str) -> bool {
    let directory = root.path("dev/disk/by-label");
    let is_label = |name: &str| VIRTUAL_MEDIA.iter().any(|label| label.eq_ignore_ascii_case(name));
    let is_meant = |name: &String| attr::link_name(&directory.join(name)).as_deref() == Some(kname);
    attr::list(&directory).iter().any(|name| is_label(name) && is_meant(name))
        && Chain::of(root, kname).is_some_and(|chain| chain.numbered("usb").is_some())
}

/// Directory of what a disk hangs on, the same for disks that share it: an NVMe controller, or a subsystem of several; a SCSI
/// host; otherwise its own device. `None` when the disk does not exist (any more).
pub(crate) fn controller(root: &Root, kname: &str) -> Option<PathBuf> {
    let chain = Chain::of(root, kname)?;
    if kname.starts_with("nvme") {
        return chain.device().parent().map(Path::to_owned);
    }
    Some(chain.numbered("host").map_or(chain.device(), |(_, dir)| dir).to_owned())
}

/// Path of a device node by its kernel name.
pub(crate) fn device_path(kname: &str) -> String {
    format!("/dev/{}", kname.replace('!', "/"))
}

/// Whether a device is never shown: floppies, memory, and the areas of an eMMC that hold its firmware, which the kernel
/// shows as disks of their own.
fn is_skipped(kname: &str) -> bool {
    let is_firmware = || {
        let rest = kname.strip_prefix("mmcblk").map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
        rest.is_some_and(|rest| sysfs::is_numbered(rest, "boot") || rest == "rpmb")
    };
    ["fd", "ram", "zram"].into_iter().any(|prefix| sysfs::is_numbered(kname, prefix)) || is_firmware()
}

impl Look<'_> {
    fn disk(&self, node: tree::Node) -> Option<(Disk, PathState)> {
        let tree::Node { kname, size_bytes, read_only, kind } = node;
        if is_skipped(&kname) {
            return None;
        }
        let (root, kname) = (self.root, kname.as_str());
        let chain = Chain::of(root, kname)?;
        let dir = chain.device();
        let hidden = attr::read_optional(&dir.join("hidden")).is_some_and(|hidden| hidden == "1");
        if hidden || is_path_of_multipath(root, dir) {
            return None;
        }
        // A device on top of others has no identity of its own: a multipath device has that of its paths.
        let member = attr::list(&dir.join("slaves")).into_iter().next().filter(|_| kind == DiskKind::Multipath);
        let member_chain = member.as_ref().and_then(|member| Chain::of(root, member));
        let identity = match (&member, &member_chain) {
            (Some(member), Some(path)) => identity::of_multipath(root, &chain, member, path),
            _ => identity::of(root, kname, &chain),
        };
        let (by_paths, other_links) = self.links(kname, &chain);
        let attribute = |name: &str| attr::read_u64(&dir.join("queue").join(name)).ok();
        let sector =
            |name: &str| attribute(name).and_then(|bytes| u32::try_from(bytes).ok()).filter(|bytes| *bytes > 0);
        let logical_sectors = sector("logical_block_size").unwrap_or(512);
        let wwn = identity.wwn.with_extension.clone().or_else(|| identity.wwn.wwn.clone());
        let info = BlockDevice {
            name: device_path(kname),
            model: identity.model,
            size: size_bytes,
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
        let mut by_ids: Vec<String> = identity.by_id.iter().map(|name| format!("/dev/disk/by-id/{name}")).collect();
        let others: Vec<String> = other_links.into_iter().filter(|link| !by_ids.contains(link)).collect();
        by_ids.extend(others);
        let disk = Disk {
            info,
            kname: kname.to_owned(),
            kind,
            read_only,
            serials: [identity.serial, identity.serial_short, identity.serial_full]
                .into_iter()
                .chain(identity.serial_other.map(Some))
                .collect(),
            wwns: vec![wwn, identity.wwn.wwn],
            by_paths,
            by_ids,
            other_paths: Vec::new(),
            partitions: tree::partitions(root, kname).iter().map(|name| device_path(name)).collect(),
            holders: tree::holders(root, kname).iter().map(|name| device_path(name)).collect(),
        };
        Some((disk, PathState::of(dir)))
    }

    /// Links in `by-path`, and all others that somebody has made. Where nobody has made any, those that would be.
    fn links(&self, kname: &str, chain: &Chain) -> (Vec<String>, Vec<String>) {
        let (made, others) = self.made.to(kname);
        let names: Vec<String> =
            links::by_path(self.root, chain).into_iter().map(|name| format!("/dev/disk/by-path/{name}")).collect();
        // The first of our own names goes first, so that the inventory does not depend on who made the links.
        let first = names.first().cloned().filter(|first| made.is_empty() || made.contains(first));
        let rest = if made.is_empty() { names } else { made };
        let rest: Vec<String> = rest.into_iter().filter(|name| Some(name) != first.as_ref()).collect();
        (first.into_iter().chain(rest).collect(), others)
    }
}

/// Whether the device mapper's multipath target holds this device: its node stands for the disk then.
fn is_path_of_multipath(root: &Root, dir: &Path) -> bool {
    attr::list(&dir.join("holders")).into_iter().any(|holder| {
        let uuid = root.path("sys/class/block").join(holder).join("dm/uuid");
        attr::read_optional(&uuid).is_some_and(|uuid| uuid.starts_with("mpath-"))
    })
}

#[cfg(test)]
mod tests;
