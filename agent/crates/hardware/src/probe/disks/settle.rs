//! Disks that the kernel is about to show: it scans slow buses after their drivers are there.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ferric_sys::{Root, attr};

use super::sysfs::{Hctl, is_numbered};

/// A hub that is younger looks at its ports still, milliseconds: it gives them power, waits until they are steady, and
/// resets what is there. The kernel tells nothing meanwhile.
const HUB_IS_NEW_MS: u64 = 1000;
/// Class of hubs, and that of the interfaces of mass storage (USB assigned numbers).
const HUB: &str = "09";
const MASS_STORAGE: &str = "08";

/// Pause between two looks for a disk that is being scanned.
const PAUSE: Duration = Duration::from_millis(20);

/// Waits until everything that is plugged in has been scanned, but no longer than `limit`: USB storage, which comes after its
/// hub and its driver, and to which the kernel gives a second to spin up, ports of SAS and Fibre Channel, and NVMe controllers that are starting. Such disks would be
/// missing from a list made at once. Returns whether all were.
pub fn settle(root: &Root, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        let device = usb_bus(root)
            .or_else(|| usb(root))
            .or_else(|| sas(root))
            .or_else(|| fibre_channel(root))
            .or_else(|| nvme(root));
        let Some(device) = device else { return true };
        if Instant::now() >= deadline {
            tracing::warn!(device, seconds = limit.as_secs(), "storage is still not scanned, going on without it");
            return false;
        }
        std::thread::sleep(PAUSE);
    }
}

fn below(dir: &Path, wanted: fn(&str) -> bool) -> Vec<PathBuf> {
    attr::list(dir).into_iter().filter(|name| wanted(name)).map(|name| dir.join(name)).collect()
}

/// A hub that may not have found yet what is plugged into it, or an interface of mass storage that has no driver yet.
fn usb_bus(root: &Root) -> Option<String> {
    let bus = root.path("sys/bus/usb/devices");
    attr::list(&bus).into_iter().find(|name| {
        let is_class = |attribute: &str, class: &str| {
            attr::read_optional(&bus.join(name).join(attribute)).is_some_and(|found| found == class)
        };
        let has_driver = || bus.join(name).join("driver").symlink_metadata().is_ok();
        let is_new =
            || attr::read_u64(&bus.join(name).join("power/connected_duration")).is_ok_and(|ms| ms < HUB_IS_NEW_MS);
        (is_class("bInterfaceClass", MASS_STORAGE) && !has_driver()) || (is_class("bDeviceClass", HUB) && is_new())
    })
}

/// A USB interface with a SCSI host on which nothing has been found yet; even a card reader without a card has a target.
fn usb(root: &Root) -> Option<String> {
    let is_done = |interface: &Path| {
        let hosts = below(interface, |name| is_numbered(name, "host"));
        is_scanned(hosts.iter().map(PathBuf::as_path))
    };
    let drivers = root.path("sys/bus/usb/drivers");
    // `ums-realtek` and its like are `usb-storage` for card readers that want more.
    let is_storage = |driver: &Path| {
        let name = driver.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| matches!(name, "usb-storage" | "uas") || name.starts_with("ums-"))
    };
    below(&drivers, |_| true).into_iter().filter(|driver| is_storage(driver)).find_map(|directory| {
        let interfaces = attr::list(&directory).into_iter().filter(|name| name.contains(':'));
        interfaces.into_iter().find(|name| !is_done(&directory.join(name)))
    })
}

/// A device behind a SAS port that takes commands, and for which there is no SCSI target yet.
fn sas(root: &Root) -> Option<String> {
    let devices = root.path("sys/class/sas_device");
    attr::list(&devices).into_iter().filter(|name| name.starts_with("end_device-")).find(|name| {
        let protocols = attr::read_optional(&devices.join(name).join("target_port_protocols"));
        let takes_commands =
            protocols.is_some_and(|list| ["ssp", "stp", "sata"].iter().any(|known| list.contains(known)));
        takes_commands && !is_scanned([devices.join(name).join("device").as_path()])
    })
}

/// A target on the network that is reached, and for which there is no SCSI target yet.
fn fibre_channel(root: &Root) -> Option<String> {
    let ports = root.path("sys/class/fc_remote_ports");
    attr::list(&ports).into_iter().find(|name| {
        let attribute = |attribute: &str| attr::read_optional(&ports.join(name).join(attribute)).unwrap_or_default();
        let is_target = attribute("roles").contains("FCP Target") && attribute("port_state") == "Online";
        is_target && !is_scanned([ports.join(name).join("device").as_path()])
    })
}

/// A controller that is not ready to tell of its namespaces.
fn nvme(root: &Root) -> Option<String> {
    let class = root.path("sys/class/nvme");
    let is_starting = |state: String| matches!(state.as_str(), "new" | "connecting");
    attr::list(&class)
        .into_iter()
        .find(|name| attr::read_optional(&class.join(name).join("state")).is_some_and(is_starting))
}

/// Whether there is a SCSI target below, and every unit of each has what it will have.
fn is_scanned<'a>(above: impl IntoIterator<Item = &'a Path>) -> bool {
    let targets: Vec<PathBuf> =
        above.into_iter().flat_map(|dir| below(dir, |name| name.starts_with("target"))).collect();
    let units = targets.iter().flat_map(|target| below(target, |name| Hctl::parse(name).is_some()));
    !targets.is_empty() && units.into_iter().all(|unit| has_node(&unit))
}

/// Whether a SCSI unit has its block device, or will never have one: only disks and CD drives do.
fn has_node(unit: &Path) -> bool {
    let is_block = attr::read_optional(&unit.join("type")).is_some_and(|kind| kind == "0" || kind == "5");
    !is_block || unit.join("block").exists()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_sys::testing::machine::MachineTree;

    #[test]
    fn usb_storage_is_waited_for_until_it_is_scanned_or_the_time_is_over() {
        let tree = MachineTree::new().unwrap();
        assert!(settle(&tree.root(), Duration::ZERO));
        tree.file("sys/bus/usb/drivers/usb-storage/bind", "").unwrap();
        tree.file("sys/bus/usb/drivers/usb-storage/1-1:1.0/bInterfaceClass", "08").unwrap();
        tree.file("sys/bus/usb/drivers/usb-storage/1-1:1.0/host6/uevent", "").unwrap();
        assert!(!settle(&tree.root(), Duration::from_millis(50)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(100));
                let unit = "sys/bus/usb/drivers/usb-storage/1-1:1.0/host6/target6:0:0/6:0:0:0";
                tree.file(&format!("{unit}/type"), "0").unwrap();
                assert!(!settle(&tree.root(), Duration::ZERO), "the disk is found, but has no node yet");
                tree.file(&format!("{unit}/block/sdb/size"), "8").unwrap();
            });
            assert!(settle(&tree.root(), Duration::from_secs(20)));
        });
    }

    #[test]
    fn usb_storage_is_waited_for_before_it_has_a_driver_and_before_its_hub_has_found_it() {
        let tree = MachineTree::new().unwrap();
        let is_done = || settle(&tree.root(), Duration::ZERO);
        let bus = "sys/bus/usb/devices";
        tree.file(&format!("{bus}/usb1/bDeviceClass"), "09").unwrap();
        for (age, want) in [("0", false), ("999", false), ("1000", true), ("86400000", true)] {
            tree.file(&format!("{bus}/usb1/power/connected_duration"), age).unwrap();
            assert_eq!(is_done(), want, "a hub of {age} ms");
        }
        // A keyboard has no disks, however new it is.
        tree.file(&format!("{bus}/1-2/bDeviceClass"), "00").unwrap();
        tree.file(&format!("{bus}/1-2/power/connected_duration"), "1").unwrap();
        tree.file(&format!("{bus}/1-2:1.0/bInterfaceClass"), "03").unwrap();
        assert!(is_done());
        tree.file(&format!("{bus}/1-1:1.0/bInterfaceClass"), "08").unwrap();
        assert!(!is_done(), "no driver yet");
        for driver in ["usb-storage", "ums-realtek"] {
            let interface = format!("sys/bus/usb/drivers/{driver}/1-1:1.0");
            tree.file(&format!("{interface}/host6/uevent"), "").unwrap();
            tree.link(&format!("{bus}/1-1:1.0/driver"), &format!("sys/bus/usb/drivers/{driver}")).unwrap();
            assert!(!is_done(), "{driver}: nothing found behind it yet");
            tree.file(&format!("{interface}/host6/target6:0:0/6:0:0:0/block/sdb/size"), "8").unwrap();
            assert!(is_done(), "{driver}: found");
            std::fs::remove_file(tree.path(format!("{bus}/1-1:1.0/driver"))).unwrap();
        }
    }

    #[test]
    fn ports_and_controllers_are_waited_for_until_they_show_what_is_behind_them() {
        let tree = MachineTree::new().unwrap();
        let is_done = || settle(&tree.root(), Duration::ZERO);
        // A disk behind a SAS port: the port comes first. What only sends commands has no disk.
        let end = "sys/devices/pci0000:00/0000:00:02.0/host0/port-0:0/end_device-0:0";
        tree.file("sys/class/sas_device/expander-0:0/target_port_protocols", "smp").unwrap();
        tree.file("sys/class/sas_device/end_device-0:9/target_port_protocols", "none").unwrap();
        assert!(is_done());
        tree.file("sys/class/sas_device/end_device-0:0/target_port_protocols", "ssp").unwrap();
        tree.link("sys/class/sas_device/end_device-0:0/device", end).unwrap();
        assert!(!is_done(), "sas");
        tree.file(&format!("{end}/target0:0:0/0:0:0:0/type"), "13").unwrap();
        assert!(is_done(), "an enclosure has no block device");
        // A storage network: hosts and switches are no targets.
        let port = "sys/devices/pci0000:00/0000:00:03.0/host1/rport-1:0-0";
        for (name, roles, state) in [
            ("rport-1:0-0", "FCP Target", "Online"),
            ("rport-1:0-1", "FCP Initiator", "Online"),
            ("rport-1:0-2", "FCP Target", "Blocked"),
        ] {
            tree.file(&format!("sys/class/fc_remote_ports/{name}/roles"), roles).unwrap();
            tree.file(&format!("sys/class/fc_remote_ports/{name}/port_state"), state).unwrap();
        }
        tree.link("sys/class/fc_remote_ports/rport-1:0-0/device", port).unwrap();
        assert!(!is_done(), "fibre channel");
        tree.file(&format!("{port}/target1:0:0/1:0:0:0/type"), "0").unwrap();
        assert!(!is_done(), "fibre channel, the disk has no node yet");
        tree.file(&format!("{port}/target1:0:0/1:0:0:0/block/sda/size"), "8").unwrap();
        assert!(is_done());
        for (state, want) in [("connecting", false), ("new", false), ("live", true), ("dead", true)] {
            tree.file("sys/class/nvme/nvme0/state", state).unwrap();
            assert_eq!(is_done(), want, "{state}");
        }
    }
}
