//! A machine as a tree of files: all that the probes read, without what tells one machine from another. Such a tree
//! stands in for the machine in [`crate::replay`], so a report of a wrong inventory becomes a test.

mod anonymise;
mod filter;
mod known;
mod new_file;
mod smbios;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use ferric_sys::ioctl::scsi;
use ferric_sys::{Root, attr};

use crate::machine::Machine;
use crate::probe::{bmc, cpu, lldp, nics, system};
use crate::replay::{self, NicRecord};
use anonymise::Identities;
pub use new_file::new_file;

/// Longest attribute that is taken, bytes: sysfs gives a page of text, and VPD pages are shorter.
const ATTRIBUTE_BYTES: usize = 4096;
/// Longest table of SMBIOS, and longest file of `/proc`, bytes.
const FILE_BYTES: usize = 1 << 20;
/// Files and links of one capture; a machine with 60 disks and 256 processors has some 20,000.
const MAX_ENTRIES: usize = 200_000;

/// Attributes of devices: what the probes read, and what explains it. Others are left alone, since reading some has
/// effects.
const ATTRIBUTES: &[&str] = &[
    "access_state",
    "acpi_index",
    "address",
    "array_state",
    "ata_port",
    "bDeviceClass",
    "bios_date",
    "bios_vendor",
    "bios_version",
    "block_size_bytes",
    "boost",
    "busnum",
    "cache_type",
    "carrier",
    "class",
    "cntlid",
    "control",
    "core_id",
    "cpuinfo_max_freq",
    "cpuinfo_min_freq",
    "cpulist",
    "cpumap",
    "dev",
    "dev_id",
    "dev_port",
    "device",
    "device_id",
    "devnum",
    "distance",
    "duplex",
    "eui",
    "firmware_rev",
    "hidden",
    "idProduct",
    "idVendor",
    "ieee1394_id",
    "ifindex",
    "index",
    "level",
    "logical_block_size",
    "manufacturer",
    "meminfo",
    "metadata_version",
    "mode",
    "model",
    "name",
    "nguid",
    "node_name",
    "nr_requests",
    "nsid",
    "num_phys",
    "numa_node",
    "offline",
    "online",
    "optimal_io_size",
    "partition",
    "persistent_address",
    "persistent_port",
    "phy_identifier",
    "phys_port_name",
    "physical_block_size",
    "physical_package_id",
    "port_name",
    "port_no",
    "possible",
    "present",
    "proc_name",
    "product",
    "product_name",
    "product_serial",
    "raid_disks",
    "removable",
    "rev",
    "revision",
    "ro",
    "rotational",
    "sas_address",
    "scaling_driver",
    "scaling_governor",
    "scheduler",
    "serial",
    "size",
    "speed",
    "start",
    "state",
    "subsystem_device",
    "subsystem_vendor",
    "suspended",
    "symbolic_name",
    "sys_vendor",
    "targetname",
    "thread_siblings_list",
    "tpm_version_major",
    "transport",
    "type",
    "uevent",
    "uuid",
    "vendor",
    "vpd_pg80",
    "vpd_pg83",
    "vpd_pg89",
    "wwid",
];
/// Folders of devices in which there is nothing to learn, and sometimes much to read.
const DULL: &[&str] =
    &["power", "statistics", "trace", "mq", "msi_irqs", "integrity", "events", "workqueue", "vc", "tty"];
/// Files elsewhere.
const FILES: &[&str] = &[
    "proc/cpuinfo",
    "proc/meminfo",
    "proc/cmdline",
    "proc/self/mountinfo",
    "proc/sys/kernel/osrelease",
    "proc/device-tree/model",
    "proc/device-tree/serial-number",
    "sys/firmware/dmi/tables/DMI",
    "sys/firmware/dmi/tables/smbios_entry_point",
    "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c",
    "sys/firmware/efi/fw_platform_size",
];
/// Tables of the firmware of which it only counts that they are there.
const TABLES: &[&str] = &["sys/firmware/acpi/tables/TPM2", "sys/firmware/acpi/tables/TCPA"];
/// What an agent that is PID 1, or udev, knows of disks.
const DISK_LINKS: &[&str] = &["dev/disk/by-path", "dev/disk/by-label"];
const UDEV: &str = "run/udev/data";
/// Labels that mean something to the agent; others are words of people.
const LABELS: &[&str] = &["config-2", "ir-vfd-dev", "vmedia_boot_iso"];
/// Folders of links to devices; those of `sys/class` come besides.
const LINKS: &[&str] = &["sys/block", "sys/bus/pci/devices", "sys/bus/pci/slots", "sys/bus/usb/devices"];

/// Longest wait for a disk to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// What stands before IDENTIFY DEVICE in page 0x89 (SAT-3 section 12.4.2): code and length, nothing of the translation.
const ATA_HEAD: [u8; 60] = {
    let mut head = [0; 60];
    (head[1], head[2], head[3]) = (0x89, 0x02, 0x38);
    head
};

/// One file or link of a capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A file with this content.
    File(Vec<u8>),
    /// A symbolic link to this target.
    Link(PathBuf),
}

/// Files and links by their path below `/`.
pub type Tree = BTreeMap<PathBuf, Entry>;

/// Reads the machine. Serial numbers, asset tags, world-wide names, UUIDs, the last half of hardware addresses, IP addresses,
/// the names of volumes, that of the host and those that people give to interfaces are replaced by invented ones of the
/// same form, the same one everywhere; those of fewer than four characters only in their own place. Who made a part is
/// still seen, and what USB devices call themselves is kept, since the inventory shows it. With `lldp_wait`, what the switches say of themselves is listened for so long; it is
/// taken as it is, since it is of no use otherwise.
///
/// # Errors
/// `/sys/devices` cannot be read, or there is no randomness to invent from.
pub fn capture(machine: &Machine, lldp_wait: Option<Duration>) -> io::Result<Tree> {
    let root = &machine.root;
    let mut tree = files(root)?;
    let mut identities = Identities::new()?;
    for (path, entry) in &tree {
        identities.learn_path(path, entry);
        if let Entry::File(content) = entry {
            identities.learn(path, content);
        }
    }
    identities.learn_hostname(&system::hostname(root));
    let interfaces = nics::names(root);
    let facts = interfaces.iter().map(|name| {
        let facts = machine.net.facts(name);
        if let Some(address) = &facts.permanent_address {
            identities.learn_address(address);
        }
        (name.clone(), NicRecord::of(&facts).without_ip())
    });
    let facts: BTreeMap<String, NicRecord> = facts.collect();
    let mut insert = |path: &str, content: Vec<u8>| tree.insert(PathBuf::from(path), Entry::File(content));
    insert("proc/sys/kernel/hostname", b"host\n".to_vec());
    insert(replay::ARCHITECTURE, format!("{}\n", cpu::architecture(root)).into_bytes());
    insert(replay::NICS, serde_json::to_vec_pretty(&facts)?);
    if let Some(answers) = bmc::record(root) {
        answers.iter().filter_map(bmc::Exchange::mac_address).for_each(|address| identities.learn_address(&address));
        insert(replay::IPMI, serde_json::to_vec_pretty(&answers)?);
    }
    if let Some(wait) = lldp_wait {
        insert(replay::LLDP, serde_json::to_vec_pretty(&lldp::collect(root, &interfaces, wait))?);
    }
    Ok(tree.into_iter().map(|(path, entry)| identities.hide(path, entry)).collect())
}

/// All files and links that the probes read.
fn files(root: &Root) -> io::Result<Tree> {
    let mut tree = Tree::new();
    devices(root, Path::new("sys/devices"), &mut tree)?;
    let classes = names(&root.path("sys/class")).into_iter().map(|name| format!("sys/class/{name}"));
    let drivers =
        names(&root.path("sys/bus/usb/drivers")).into_iter().map(|name| format!("sys/bus/usb/drivers/{name}"));
    for folder in LINKS.iter().map(|folder| (*folder).to_owned()).chain(classes).chain(drivers) {
        for name in names(&root.path(&folder)) {
            let path = Path::new(&folder).join(name);
            let is_link = fs::symlink_metadata(root.path(&path)).is_ok_and(|found| found.is_symlink());
            if is_link {
                link(root, path, &mut tree);
            } else if devices(root, &path, &mut tree).is_err() {
                // A file, such as the power switch of the bus.
                tracing::debug!(path = %path.display(), "not captured");
            }
        }
    }
    for path in FILES {
        file(root, Path::new(path), FILE_BYTES, &mut tree);
    }
    for path in TABLES.iter().filter(|path| root.path(path).exists()) {
        tree.insert(PathBuf::from(path), Entry::File(Vec::new()));
    }
    for folder in DISK_LINKS {
        let is_label = folder.ends_with("label");
        for name in names(&root.path(folder)) {
            if !is_label || LABELS.iter().any(|label| label.eq_ignore_ascii_case(&name)) {
                link(root, Path::new(folder).join(name), &mut tree);
            }
        }
    }
    if root.is_host() {
        for kname in names(&root.path("sys/block")) {
            let found = pages(root, &kname, &tree);
            tree.extend(found.into_iter().flatten());
        }
    }
    for name in names(&root.path(UDEV)).into_iter().filter(|name| name.starts_with('b')) {
        file(root, &Path::new(UDEV).join(name), FILE_BYTES, &mut tree);
    }
    Ok(tree)
}

/// Pages that sysfs does not show of a SCSI disk, and that the probes ask it for.
fn pages(root: &Root, kname: &str, tree: &Tree) -> Option<Vec<(PathBuf, Entry)>> {
    let device = fs::canonicalize(root.path("sys/block").join(kname).join("device")).ok()?;
    let folder = device.strip_prefix("/").ok()?.to_owned();
    let attribute = |name: &str| attr::read_optional(&device.join(name)).unwrap_or_default();
    let on_usb = folder.iter().any(|part| part.to_string_lossy().starts_with("usb"));
    if !device.join("scsi_device").is_dir() || attribute("state") != "running" || on_usb {
        return None;
    }
    let missing = |name: &str| !tree.contains_key(&folder.join(name));
    let wants_pages = missing("vpd_pg80") && missing("vpd_pg83");
    let wants_identify = attribute("vendor") == "ATA" && missing("vpd_pg89");
    if !wants_pages && !wants_identify {
        return None;
    }
    let disk = fs::File::open(root.path("dev").join(kname)).ok()?;
    let page = |number| scsi::vital_product_data(&disk, number, ANSWER_LIMIT).ok().filter(|_| wants_pages);
    // Page 0x89 begins with 60 bytes about the translation.
    let identify = || scsi::identify_ata(&disk, ANSWER_LIMIT).ok().map(|words| [&ATA_HEAD[..], &words].concat());
    let found =
        [("vpd_pg80", page(0x80)), ("vpd_pg83", page(0x83)), ("vpd_pg89", wants_identify.then(identify).flatten())];
    let entry = |(name, content): (&str, Option<Vec<u8>>)| Some((folder.join(name), Entry::File(content?)));
    Some(found.into_iter().filter_map(entry).collect())
}

/// Everything below a folder of devices.
fn devices(root: &Root, folder: &Path, tree: &mut Tree) -> io::Result<()> {
    for entry in fs::read_dir(root.path(folder))? {
        if tree.len() >= MAX_ENTRIES {
            return Err(io::Error::other(format!("there are more than {MAX_ENTRIES} attributes")));
        }
        let Ok(entry) = entry else { continue };
        let (name, path) = (entry.file_name(), folder.join(entry.file_name()));
        let Ok(kind) = entry.file_type() else { continue };
        let known = |list: &[&str]| list.iter().any(|known| name == *known);
        if kind.is_symlink() {
            link(root, path, tree);
        } else if kind.is_dir() {
            // Devices come and go.
            if !known(DULL) && devices(root, &path, tree).is_err() {
                tracing::debug!(path = %path.display(), "not captured");
            }
        } else if known(ATTRIBUTES) {
            file(root, &path, ATTRIBUTE_BYTES, tree);
        }
    }
    Ok(())
}

/// Takes a file; one that cannot be read is left out.
fn file(root: &Root, path: &Path, limit: usize, tree: &mut Tree) {
    if let Ok(mut content) = fs::read(root.path(path)) {
        content.truncate(limit);
        if path.ends_with("tables/DMI") {
            content = smbios::scrubbed(content);
        }
        tree.insert(path.to_owned(), Entry::File(filter::filtered(path, content)));
    }
}

/// Takes a link, unless it leads out of the tree.
fn link(root: &Root, path: PathBuf, tree: &mut Tree) {
    if let Ok(target) = fs::read_link(root.path(&path))
        && stays_inside(&path, &target)
    {
        tree.insert(path, Entry::Link(target));
    }
}

/// Whether a relative link leads to somewhere below the root.
pub(crate) fn stays_inside(path: &Path, target: &Path) -> bool {
    let mut depth = path.components().count().saturating_sub(1);
    target.components().all(|part| match part {
        Component::Normal(_) => {
            depth += 1;
            true
        }
        Component::ParentDir => depth.checked_sub(1).is_some_and(|up| {
            depth = up;
            true
        }),
        Component::CurDir => true,
        Component::RootDir | Component::Prefix(_) => false,
    })
}

fn names(folder: &Path) -> Vec<String> {
    ferric_sys::attr::list(folder)
}

#[cfg(test)]
mod tests;
