//! What a person asks of the machine: its inventory as a table, and a capture of it for a report of a fault.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;

use ferric_hardware::capture;
use ferric_hardware::probe::smbios::{Smbios, dmi};
use ferric_hardware::probe::{numa, pci, usb};
use ferric_hardware::replay::{self, ReplayError};
use ferric_hardware::{HardwareError, HardwareManager, Machine, Registry, Settings};
use ferric_sys::Root;
use ferric_types::Inventory;
use ferric_types::error::chain;
use ferric_types::inventory::Tpm;

pub(crate) use self::text::shown;
use self::text::{columns, gib, option, or_dash, table_of};
use crate::archive::{self, Form};

/// Longest line of those above the tables, in characters.
const LINE_CHARS: usize = 240;

mod text;

/// The report could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The folder given does not stand for a machine.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The hardware managers do not fit together.
    #[error(transparent)]
    Hardware(#[from] HardwareError),
    /// JSON could not be written.
    #[error("encoding the inventory")]
    Encode(#[from] serde_json::Error),
    /// The machine could not be read.
    #[error("reading the machine")]
    Capture(#[source] io::Error),
    /// The name of an archive does not say what to make.
    #[error("{path} does not end with {}", Form::NAMES)]
    Form {
        /// Archive.
        path: String,
    },
    /// The archive could not be written.
    #[error("writing {path}")]
    Write {
        /// Archive.
        path: String,
        /// Reason.
        #[source]
        source: io::Error,
    },
}

/// The inventory of this machine, or of the one that a captured tree stands for, as a table or as the conductor gets it.
///
/// # Errors
/// `root` is no captured tree.
pub fn inventory(
    managers: &[&'static dyn HardwareManager],
    root: Option<&str>,
    as_json: bool,
) -> Result<String, ReportError> {
    let machine = match root {
        // The machine itself is no captured tree.
        Some(root) if Path::new(root) != Path::new("/") => replay::machine(Path::new(root))?,
        _ => Machine::host(),
    };
    let registry = Registry::new(managers, &machine)?;
    let (inventory, unlisted) = registry.look(&machine, &replay::settings(&machine.root));
    for error in &unlisted {
        // Beside the inventory, which a program may read; there is nobody else to tell.
        let _unread = writeln!(io::stderr(), "ferric-agent: the inventory is incomplete: {}", chain(error));
    }
    if as_json {
        return Ok(serde_json::to_string_pretty(&inventory)? + "\n");
    }
    let mut text = table(&inventory);
    parts(&mut text, &machine.root);
    Ok(text)
}

/// Writes a capture of this machine ([`capture::capture`]) as an archive whose name says its [`Form`], and returns its number
/// of entries; with `lldp`, what the switches say is waited for and part of it.
///
/// # Errors
/// The name is not that of an archive, the machine cannot be read, or the archive not be written.
pub fn capture(path: &str, lldp: bool) -> Result<usize, ReportError> {
    let form = Form::of(path).ok_or_else(|| ReportError::Form { path: path.to_owned() })?;
    let wait = lldp.then(|| Settings::default().lldp_timeout);
    let tree = capture::capture(&Machine::host(), wait).map_err(ReportError::Capture)?;
    archive::write(Path::new(path), form, &tree)
        .map_err(|source| ReportError::Write { path: path.to_owned(), source })?;
    Ok(tree.len())
}

fn table(inventory: &Inventory) -> String {
    let (vendor, cpu) = (&inventory.system_vendor, &inventory.cpu);
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a String cannot fail.
        let _infallible = writeln!(text, "{name:<10} {}", shown(value.trim(), LINE_CHARS));
    };
    line(
        "machine",
        format!(
            "{}, serial number {}",
            or_dash(format!("{} {}", vendor.manufacturer, vendor.product_name).trim()),
            or_dash(&vendor.serial_number)
        ),
    );
    line("host name", or_dash(&inventory.hostname));
    let firmware = &vendor.firmware;
    line(
        "firmware",
        format!(
            "{}, booted by {}{}",
            or_dash(format!("{} {} {}", firmware.vendor, firmware.version, firmware.build_date).trim()),
            inventory.boot.current_boot_mode,
            match inventory.boot.secure_boot {
                Some(true) => " with Secure Boot",
                Some(false) => " without Secure Boot",
                None => "",
            }
        ),
    );
    let tpm = |tpm: &Tpm| tpm.version.clone().unwrap_or_else(|| "of unknown version".to_owned());
    line("TPM", inventory.tpm.as_ref().map_or("-".to_owned(), tpm));
    let sockets = if cpu.socket_count == 1 { "socket" } else { "sockets" };
    line(
        "processor",
        format!("{} x {} ({} {sockets}, {})", cpu.count, or_dash(&cpu.model_name), cpu.socket_count, cpu.architecture),
    );
    let mib = |bytes: Option<u64>| bytes.map_or("?".to_owned(), |bytes| (bytes >> 20).to_string());
    let installed = inventory.memory.physical_mb.map_or("?".to_owned(), |mib| mib.to_string());
    line("memory", format!("{installed} MiB, {} MiB of it for the kernel", mib(inventory.memory.total)));
    let bmc =
        [&inventory.bmc_address, &inventory.bmc_v6address, &inventory.bmc_mac].map(|value| option(value.as_ref()));
    line("BMC", bmc.join(" "));
    for interface in &inventory.host_interfaces {
        let by = interface.device_type.as_deref().unwrap_or("unknown device").to_uppercase();
        let address = option(interface.service_address.as_ref().or(interface.service_hostname.as_ref()));
        let host = option(interface.host_address.as_ref().or(interface.host_ip_assignment.as_ref()));
        line("redfish", format!("{address} port {} by {by}, from {host}", interface.service_port));
    }
    line("boot NIC", boot_nic(inventory));
    text.push('\n');
    let disks = inventory.disks.iter().map(|disk| {
        [
            disk.name.clone(),
            gib(disk.size),
            disk.tran.clone().unwrap_or_else(|| "-".to_owned()),
            if disk.rotational { "yes" } else { "no" }.to_owned(),
            option(disk.model.as_ref()),
            option(disk.serial.as_ref()),
            option(disk.wwn.as_ref()),
        ]
    });
    columns(&mut text, ["DISK", "GIB", "BUS", "TURNS", "MODEL", "SERIAL", "WWN"], disks.collect());
    text.push('\n');
    let nics = inventory.interfaces.iter().map(|nic| {
        [
            nic.name.clone(),
            nic.mac_address.clone(),
            if nic.has_carrier { "yes" } else { "no" }.to_owned(),
            nic.speed_mbps.map_or("-".to_owned(), |speed| speed.to_string()),
            option(nic.ipv4_address.as_ref().or(nic.ipv6_address.as_ref())),
            option(nic.driver.as_ref()),
            option(nic.pci_address.as_ref()),
        ]
    });
    columns(&mut text, ["NIC", "MAC", "LINK", "MBIT/S", "ADDRESS", "DRIVER", "BUS"], nics.collect());
    text
}

/// The interface that the machine was booted over: its name, and what the loader said of it, which is a hardware address, with
/// hyphens and after its type (`01-`) as PXELINUX writes it.
fn boot_nic(inventory: &Inventory) -> String {
    let Some(said) = inventory.boot.pxe_interface.as_deref() else { return or_dash("") };
    let address = said.strip_prefix("01-").unwrap_or(said).replace('-', ":").to_lowercase();
    let nic = inventory.interfaces.iter().find(|nic| nic.mac_address == address);
    nic.map_or_else(|| said.to_owned(), |nic| format!("{} {address}", nic.name))
}

/// What collectors tell besides the inventory: memory modules, NUMA nodes, USB devices, accelerators.
fn parts(text: &mut String, root: &Root) {
    let told = Smbios::read(root).map(|smbios| dmi::decode(&smbios)).unwrap_or_default();
    let modules = told["memory"]["devices"].as_array().map(Vec::as_slice).unwrap_or_default();
    let modules = modules.iter().filter(|module| module.get("Speed").is_some()).map(|module| {
        ["Locator", "Size", "Type", "Speed", "Manufacturer", "Part Number"]
            .map(|label| or_dash(module[label].as_str().unwrap_or_default()))
    });
    table_of(text, ["MODULE", "SIZE", "KIND", "SPEED", "MAKER", "PART"], modules.collect());
    let nodes = numa::topology(root).unwrap_or_default();
    let rows = nodes.ram.iter().filter(|_| nodes.ram.len() > 1).map(|node| {
        let number = node.numa_node;
        let cores = nodes.cpus.iter().filter(|core| core.numa_node == number).count();
        let nics = nodes.nics.iter().filter(|nic| u32::try_from(nic.numa_node) == Ok(number));
        let nics: Vec<&str> = nics.map(|nic| nic.name.as_str()).collect();
        [number.to_string(), (node.size_kb >> 10).to_string(), cores.to_string(), or_dash(&nics.join(" "))]
    });
    table_of(text, ["NODE", "MIB", "CORES", "NICS"], rows.collect());
    let devices = usb::devices(root).into_iter().map(|device| [device.handle, device.vendor, device.product]);
    table_of(text, ["USB", "MAKER", "MODEL"], devices.collect());
    let devices = pci::devices(root).unwrap_or_default().into_iter();
    // 3D controllers and processing accelerators (PCI Code and ID Assignment, sections 1.4 and 1.19).
    let accelerators = devices.filter(|device| ["0302", "1200"].iter().any(|class| device.class.starts_with(class)));
    let rows = accelerators.map(|device| [device.bus, device.vendor_id, device.product_id]);
    table_of(text, ["ACCELERATOR", "VENDOR", "DEVICE"], rows.collect());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_captured_machine_is_shown_as_a_table_and_as_json() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/machines/server-bonded-sas");
        let shown = inventory(ferric_hardware::MANAGERS, Some(root), false).unwrap();
        let row = |start: &str| shown.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{shown}"));
        assert!(row("firmware").ends_with("booted by uefi") || row("firmware").ends_with("booted by bios"), "{shown}");
        assert!(row("DISK").contains("MODEL"), "{shown}");
        let sda: Vec<&str> = row("/dev/sda").split_whitespace().collect();
        assert_eq!(sda.get(2), Some(&"sas"), "{shown}");
        assert!(row("eno1").contains("f8:f2:1e:00:00:10") && row("eno1").contains("10000"), "{shown}");
        let json: serde_json::Value =
            serde_json::from_str(&inventory(ferric_hardware::MANAGERS, Some(root), true).unwrap()).unwrap();
        assert!(json["disks"].as_array().is_some_and(|disks| !disks.is_empty()));
    }

    #[test]
    fn what_firmware_and_buses_tell_is_shown_too() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/machines/");
        for (name, wanted) in [
            (
                "dell-r740-perc",
                &[
                    "booted by uefi without Secure Boot",
                    "TPM        2.0",
                    "redfish    169.254.0.1 port 443 by USB, from 169.254.0.2",
                    "A1      16 GB  DDR4  2666 MT/s",
                    "iDRAC Virtual NIC",
                ][..],
            ),
            ("huawei-2488h-numa", &["TPM        -", "NODE  MIB    CORES  NICS", "1     64559  4      enp58s0 ib0"]),
            ("qemu-pc-ide", &["booted by bios\n", "MODULE"]),
        ] {
            let shown = inventory(ferric_hardware::MANAGERS, Some(&format!("{folder}{name}")), false).unwrap();
            for text in wanted {
                assert!(shown.contains(text), "no {text:?} of {name} in\n{shown}");
            }
        }
        let dir = tempfile::tempdir().unwrap();
        for path in ["sys/block", "sys/class/net", "proc/self"] {
            std::fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        std::fs::write(dir.path().join("proc/self/mountinfo"), "").unwrap();
        let device = dir.path().join("sys/bus/pci/devices/0000:3b:00.0");
        std::fs::create_dir_all(&device).unwrap();
        for (name, value) in [("vendor", "0x10de"), ("device", "0x20b5"), ("class", "0x030200")] {
            std::fs::write(device.join(name), value).unwrap();
        }
        let shown = inventory(ferric_hardware::MANAGERS, dir.path().to_str(), false).unwrap();
        assert!(
            shown.starts_with(
                "machine    -, serial number -\nhost name  -\nfirmware   -, booted by bios\nTPM        -\n"
            ),
            "{shown}"
        );
        assert!(shown.ends_with("ACCELERATOR   VENDOR  DEVICE\n0000:3b:00.0  10de    20b5\n"), "{shown}");
        assert!(!shown.contains("MODULE") && !shown.contains("NODE"), "{shown}");
    }

    #[test]
    fn what_a_tree_says_cannot_reach_the_terminal_as_commands_and_stays_narrow() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let evil = "a\u{1b}[31m\u{7}\0\r\nb\u{9b}2J\u{202e}\u{2066}c";
        write("proc/self/mountinfo", "");
        write("proc/sys/kernel/hostname", evil);
        write("proc/cmdline", "BOOTIF=01-\u{1b}[2J");
        write("proc/cpuinfo", &format!("processor\t: 0\nmodel name\t: CPU {}\n", "\u{1b}c".repeat(400)));
        write("sys/class/net/eth0/address", "52:54:00:00:00:01");
        write("sys/class/net/eth0/device/vendor", evil);
        write("sys/devices/pci0000:00/0000:00:01.0/nvme/nvme0/nvme0n1/dev", "259:0");
        write("sys/devices/pci0000:00/0000:00:01.0/nvme/nvme0/nvme0n1/size", "18014398509481984");
        write("sys/devices/pci0000:00/0000:00:01.0/nvme/nvme0/model", evil);
        write("sys/devices/pci0000:00/0000:00:01.0/nvme/nvme0/serial", &"S".repeat(24_300));
        for (class, target) in [("sys/block", ".."), ("sys/class/block", "../..")] {
            std::fs::create_dir_all(dir.path().join(class)).unwrap();
            let target = format!("{target}/devices/pci0000:00/0000:00:01.0/nvme/nvme0/nvme0n1");
            std::os::unix::fs::symlink(target, dir.path().join(class).join("nvme0n1")).unwrap();
        }
        let device = dir.path().join("sys/devices/pci0000:00/0000:00:01.0/nvme/nvme0");
        std::os::unix::fs::symlink("..", device.join("nvme0n1/device")).unwrap();
        let shown = inventory(ferric_hardware::MANAGERS, dir.path().to_str(), false).unwrap();
        for character in shown.chars() {
            assert!(character == '\n' || !text::is_command(character), "{character:?} in {shown:?}");
        }
        let longest = shown.lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(300), "{longest:?}\n{shown}");
        let row = |start: &str| shown.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{shown}"));
        assert!(row("host name").starts_with("host name  a\u{fffd}[31m\u{fffd}"), "{shown}");
        assert!(row("boot NIC").ends_with("01-\u{fffd}[2J"), "{shown}");
        assert!(row("/dev/nvme0n1").contains(&format!(" {}\u{2026}", "S".repeat(79))), "{shown}");
        assert!(row("/dev/nvme0n1").contains("a\u{fffd}[31m"), "{shown}");
        assert!(row("processor").contains("1 socket,"), "{shown}");
        assert!(row("/dev/nvme0n1").contains(" 8589934592.0 "), "{shown}");
    }

    #[test]
    fn the_host_and_the_interface_that_it_was_booted_over_are_shown() {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("proc/self/mountinfo", ""),
            ("proc/sys/kernel/hostname", "node-7"),
            ("proc/cmdline", "ro BOOTIF=01-52-54-00-00-00-01"),
            ("sys/block/x", ""),
            ("sys/class/net/eth7/address", "52:54:00:00:00:01"),
            ("sys/class/net/eth7/device/vendor", "0x8086"),
        ] {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let shown = inventory(ferric_hardware::MANAGERS, dir.path().to_str(), false).unwrap();
        assert!(shown.contains("\nhost name  node-7\n"), "{shown}");
        assert!(shown.contains("\nboot NIC   eth7 52:54:00:00:00:01\n"), "{shown}");
    }

    #[test]
    fn what_is_no_capture_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().to_str().unwrap();
        let error = inventory(ferric_hardware::MANAGERS, Some(folder), false).unwrap_err();
        assert_eq!(error.to_string(), format!("{folder} is no captured machine: there is no sys folder in it"));
        std::fs::create_dir_all(dir.path().join("sys")).unwrap();
        std::fs::write(dir.path().join("nics.json"), "[]").unwrap();
        let error = inventory(ferric_hardware::MANAGERS, Some(folder), false).unwrap_err();
        assert!(error.to_string().ends_with("nics.json"), "{error}");
        std::fs::remove_file(dir.path().join("nics.json")).unwrap();
        for name in ["ipmi.json", "lldp.json"] {
            std::fs::write(dir.path().join(name), "7").unwrap();
            let error = inventory(ferric_hardware::MANAGERS, Some(folder), false).unwrap_err();
            assert!(error.to_string().ends_with(name), "{error}");
            std::fs::remove_file(dir.path().join(name)).unwrap();
        }
        let archive = dir.path().join("machine.tar.gz");
        std::fs::write(&archive, "").unwrap();
        let error = inventory(ferric_hardware::MANAGERS, archive.to_str(), false).unwrap_err();
        assert!(error.to_string().ends_with("unpack it first"), "{error}");
    }

    #[test]
    fn a_capture_of_this_machine_can_be_replayed() {
        let dir = tempfile::tempdir().unwrap();
        let named = dir.path().join("machine.zip");
        let error = capture(named.to_str().unwrap(), false).unwrap_err();
        assert!(error.to_string().ends_with("does not end with .tar.gz, .tgz, .tar.zst or .tar"), "{error}");
        let archive = dir.path().join("machine.tar.gz");
        let entries = capture(archive.to_str().unwrap(), false).unwrap();
        let mut unpacked = tar::Archive::new(flate2::read::GzDecoder::new(std::fs::File::open(&archive).unwrap()));
        let folder = dir.path().join("machine");
        unpacked.unpack(&folder).unwrap();
        assert!(entries > 100, "{entries}");
        let shown = inventory(ferric_hardware::MANAGERS, Some(folder.to_str().unwrap()), true).unwrap();
        let replayed: Inventory = serde_json::from_str(&shown).unwrap();
        let here = inventory(ferric_hardware::MANAGERS, None, true).unwrap();
        let here: Inventory = serde_json::from_str(&here).unwrap();
        assert_eq!(replayed.cpu, here.cpu);
        assert_eq!(replayed.disks.len(), here.disks.len());
        assert_eq!(replayed.interfaces.len(), here.interfaces.len());
    }
}
