//! A disk that a manager hides is not there for anybody: not in the inventory, not for hints, and not for cleaning.

use ferric_types::error::ErrorClass;
use serde_json::{Value, json};

use super::{Lab, MIB, lab};
use crate::manager::{HardwareSupport, Probes};
use crate::probe::disks::Disk;
use crate::registry::Registry;
use crate::registry::testing::Fake;
use crate::root_device;

/// Knows that one disk of its machines belongs to the BMC.
static HIDER: Fake = {
    const PROBES: Probes = Probes { keeps_disk: Some(keeps), ..Probes::NONE };
    Fake { name: "hider", support: HardwareSupport::Mainline, probes: &PROBES, ..Fake::PLAIN }
};

fn keeps(disk: &Disk) -> bool {
    disk.info.serial.as_deref() != Some("serial-vdb")
}

fn with_hidden_disk() -> Lab {
    let mut lab = lab();
    lab.disk("vda", 8 * MIB, true).disk("vdb", 8 * MIB, true);
    let managers = [crate::MANAGERS, &[&HIDER]].concat();
    lab.registry = Registry::new(&managers, &lab.machine).unwrap();
    lab
}

#[test]
fn a_hidden_disk_is_neither_shown_nor_chosen() {
    let lab = with_hidden_disk();
    let shown = lab.registry.inventory(&lab.machine, &lab.settings).disks;
    assert_eq!(shown.iter().map(|disk| disk.name.as_str()).collect::<Vec<_>>(), ["/dev/vda"]);
    let chosen = |serial: &str| {
        lab.with(&json!({"properties": {"root_device": {"serial": serial}}}), |context| {
            root_device::select(context.registry, context.machine, context.settings, context.node)
        })
    };
    assert_eq!(chosen("serial-vda").unwrap().info.name, "/dev/vda");
    let error = chosen("serial-vdb").unwrap_err();
    assert_eq!(error.class, ErrorClass::DeviceNotFound);
    assert!(error.details.ends_with("Disks of this machine: /dev/vda (serial is serial-vda)"), "{error}");
}

#[test]
fn a_hidden_disk_and_its_partitions_are_not_cleaned() {
    let lab = with_hidden_disk();
    assert_eq!(lab.clean("erase_devices_metadata", &json!({})).unwrap(), Value::Null);
    assert_eq!((lab.byte("vda", 0), lab.byte("vda1", 0)), (0, 0));
    let result = lab.clean("erase_devices", &json!({})).unwrap();
    assert_eq!(result.as_object().unwrap().keys().collect::<Vec<_>>(), ["/dev/vda"]);
    for place in [0, MIB, 8 * MIB - 1] {
        assert_eq!((lab.byte("vda", place), lab.byte("vdb", place)), (0, 0xa5), "at {place}");
    }
    assert_eq!(lab.byte("vdb1", 0), 0xa5);
}
