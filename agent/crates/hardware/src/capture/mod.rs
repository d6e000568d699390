//! A machine as a tree of files: all that the probes read, without what tells one machine from another. Such a tree
//! stands in for the machine in [`crate::replay`], so a report of a wrong inventory becomes a test.

mod anonymise;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use ferric_sys::Root;

use crate::machine::Machine;
use crate::probe::{bmc, cpu, nics};
use crate::replay::{self, NicRecord};
use anonymise::Identities;

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
    "ata_port",
    "bDeviceClass",
    "bios_date",
    "bios_vendor",
    "bios_version",
    "busnum",
    "carrier",
    "class",
    "core_id",
    "cpuinfo_max_freq",
    "dev",
    "dev_port",
    "device",
    "devnum",
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
    "mode",
    "model",
    "name",
    "nsid",
    "num_phys",
    "numa_node",
    "online",
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
    "removable",
    "rev",
    "revision",
    "ro",
    "rotational",
    "sas_address",
    "serial",
    "size",
    "speed",
    "start",
    "state",
    "symbolic_name",
    "sys_vendor",
    "targetname",
    "tpm_version_major",
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
    &["power", "statistics", "trace", "mq", "msi_irqs", "integrity", "events", "memory", "workqueue", "vc", "tty"];
/// Files elsewhere.
const FILES: &[&str] = &[
    "proc/cpuinfo",
    "proc/meminfo",
    "proc/mounts",
    "proc/self/mountinfo",
    "proc/device-tree/model",
    "proc/device-tree/serial-number",
    "sys/firmware/dmi/tables/DMI",
    "sys/firmware/dmi/tables/smbios_entry_point",
    "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c",
    "sys/firmware/efi/fw_platform_size",
];
/// Folders of links to devices; those of `sys/class` come besides.
const LINKS: &[&str] = &["sys/block", "sys/bus/pci/devices", "sys/bus/pci/slots", "sys/bus/usb/devices"];

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

/// Reads the machine. Serial numbers, world-wide names, UUIDs, the last half of hardware addresses, IP addresses and the
/// host name are replaced by invented ones of the same form, the same one everywhere; who made a part is still seen.
///
/// # Errors
/// `/sys/devices` cannot be read, or there is no randomness to invent from.
pub fn capture(machine: &Machine) -> io::Result<Tree> {
    let root = &machine.root;
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
    let hostname = Entry::File(b"host\n".to_vec());
    tree.insert(PathBuf::from("proc/sys/kernel/hostname"), hostname);
    tree.insert(
        PathBuf::from(replay::ARCHITECTURE),
        Entry::File(format!("{}\n", cpu::architecture(root)).into_bytes()),
    );

    let mut identities = Identities::new()?;
    for (path, entry) in &tree {
        if let Entry::File(content) = entry {
            identities.learn(path, content);
        }
    }
    let facts = nics::names(root).into_iter().map(|name| {
        let facts = machine.net.facts(&name);
        if let Some(address) = &facts.permanent_address {
            identities.learn_address(address);
        }
        (name, NicRecord::of(&facts).without_ip())
    });
    let facts: BTreeMap<String, NicRecord> = facts.collect();
    tree.insert(PathBuf::from(replay::NICS), Entry::File(serde_json::to_vec_pretty(&facts)?));
    if let Some(answers) = bmc::record(root) {
        tree.insert(PathBuf::from(replay::IPMI), Entry::File(serde_json::to_vec_pretty(&answers)?));
    }
    Ok(tree.into_iter().map(|(path, entry)| identities.hide(path, entry)).collect())
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
        tree.insert(path.to_owned(), Entry::File(content));
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
