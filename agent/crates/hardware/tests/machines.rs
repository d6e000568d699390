//! Whole machines: each tree below `tests/fixtures/machines` and what the agent must make of it.
//!
//! `UPDATE_GOLDEN=1 cargo test -p ferric-hardware --test machines` writes `expected.json` anew; read the difference
//! before committing it.

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::{Path, PathBuf};
    use std::time::{Duration, Instant};

    use ferric_hardware::probe::smbios::{Smbios, dmi};
    use ferric_hardware::probe::{disks, numa, pci, usb};
    use ferric_hardware::{MANAGERS, Registry, replay, root_device};
    use serde_json::{Value, json};

    fn fixtures() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures/machines")
    }

    /// Folder and name of each machine.
    fn machines() -> Vec<(PathBuf, String)> {
        let paths = std::fs::read_dir(fixtures()).unwrap().map(|entry| entry.unwrap().path());
        let named = |dir: PathBuf| (dir.clone(), dir.file_name().unwrap().to_str().unwrap().to_owned());
        let mut found: Vec<_> = paths.filter(|path| path.is_dir()).map(named).collect();
        found.sort();
        assert!(found.len() >= 20, "the fixtures are gone: {found:?}");
        found
    }

    fn look(dir: &Path) -> Value {
        let machine = replay::machine(dir).unwrap();
        let registry = Registry::new(MANAGERS, &machine).unwrap();
        let settings = replay::settings(&machine.root);
        let inventory = registry.inventory(&machine, &settings);
        let found = registry.disks(&machine, &settings).unwrap();
        let links: BTreeMap<_, _> =
            found.iter().map(|disk| (disk.kname.clone(), disks::links(&machine.root, &disk.kname))).collect();
        json!({
            "inventory": inventory,
            "root_disk": root_device::smallest(&machine, &found).map(|disk| &disk.info.name),
            "links": links,
            "serials": found.iter().map(|disk| (disk.kname.clone(), json!(disk.serials))).collect::<serde_json::Map<_, _>>(),
            "pci_devices": pci::devices(&machine.root).unwrap_or_default(),
            "numa_topology": numa::topology(&machine.root),
            "usb_devices": usb::devices(&machine.root),
        })
    }

    #[test]
    fn every_machine_is_seen_as_expected() {
        let index = std::fs::read_to_string(fixtures().join("INDEX.md")).unwrap();
        for (dir, name) in machines() {
            assert!(index.contains(&format!("`{name}`")), "{name} is not in INDEX.md");
            let seen = serde_json::to_string_pretty(&look(&dir)).unwrap() + "\n";
            let golden = dir.join("expected.json");
            if std::env::var_os("UPDATE_GOLDEN").is_some() {
                std::fs::write(&golden, &seen).unwrap();
            }
            let expected = std::fs::read_to_string(&golden).unwrap();
            for (number, (seen, expected)) in seen.lines().zip(expected.lines()).enumerate() {
                assert_eq!(seen, expected, "{name}/expected.json, line {}", number + 1);
            }
            assert_eq!(seen.lines().count(), expected.lines().count(), "{name}");
        }
    }

    /// Every field of the inventory (hardware section 2), whether it may have no value (null, absent or an empty text),
    /// and whether some machine must show that. What the specification has as null only where reading fails is not.
    const FIELDS: &[(&str, bool)] = &[
        ("interfaces.name", false),
        ("interfaces.mac_address", false),
        ("interfaces.ipv4_address", true),
        ("interfaces.ipv6_address", true),
        ("interfaces.has_carrier", false),
        ("interfaces.lldp", true),
        ("interfaces.vendor", true),
        ("interfaces.product", true),
        ("interfaces.client_id", true),
        ("interfaces.biosdevname", true),
        ("interfaces.speed_mbps", true),
        ("interfaces.pci_address", true),
        ("interfaces.driver", true),
        ("cpu.model_name", false),
        ("cpu.frequency", true),
        ("cpu.count", false),
        ("cpu.architecture", false),
        ("cpu.flags", false),
        ("cpu.socket_count", false),
        ("disks.name", false),
        ("disks.model", true),
        ("disks.size", false),
        ("disks.rotational", false),
        ("disks.wwn", true),
        ("disks.serial", true),
        ("disks.vendor", true),
        ("disks.wwn_with_extension", true),
        ("disks.wwn_vendor_extension", true),
        ("disks.hctl", true),
        ("disks.by_path", true),
        ("disks.logical_sectors", false),
        ("disks.physical_sectors", false),
        ("disks.tran", true),
        ("memory.total", false),
        ("memory.physical_mb", false),
        ("bmc_address", true),
        ("bmc_v6address", true),
        ("bmc_mac", true),
        ("system_vendor.product_name", true),
        ("system_vendor.serial_number", true),
        ("system_vendor.manufacturer", true),
        ("system_vendor.firmware.vendor", true),
        ("system_vendor.firmware.version", true),
        ("system_vendor.firmware.build_date", true),
        ("boot.current_boot_mode", false),
        ("boot.pxe_interface", true),
        ("hostname", false),
    ];
    /// Fields with few values, all of which some machine must have.
    const VALUES: &[(&str, &[&str])] = &[
        ("interfaces.has_carrier", &["true", "false"]),
        ("disks.rotational", &["true", "false"]),
        ("disks.logical_sectors", &["512", "4096"]),
        ("disks.physical_sectors", &["512", "4096", "65536"]),
        (
            "disks.tran",
            &["\"ata\"", "\"fc\"", "\"fcoe\"", "\"mmc\"", "\"nvme\"", "\"sas\"", "\"sata\"", "\"usb\"", "\"virtio\""],
        ),
        ("cpu.architecture", &["\"aarch64\"", "\"x86_64\""]),
        ("boot.current_boot_mode", &["\"bios\"", "\"uefi\""]),
        ("bmc_address", &["\"0.0.0.0\""]),
        ("bmc_v6address", &["\"::/0\""]),
    ];

    /// The kind of device that a value is of: by its driver or its model for an interface or a disk, else the machine.
    fn kind(machine: &str, owner: &Value) -> String {
        let text = |key: &str| owner[key].as_str().unwrap_or("-").to_owned();
        if owner.get("mac_address").is_some() {
            format!("{} {} {}", text("driver"), text("vendor"), text("product"))
        } else if owner.get("hctl").is_some() {
            format!("{} {} {}", text("tran"), text("vendor"), text("model"))
        } else {
            machine.to_owned()
        }
    }

    /// The values of a field in an inventory, each with the object that it is in.
    fn values<'a>(inventory: &'a Value, field: &str) -> Vec<(&'a Value, &'a Value)> {
        let mut found = vec![(inventory, inventory)];
        for key in field.split('.') {
            let inner = |(_, value): (&'a Value, &'a Value)| match value {
                Value::Array(items) => items.iter().map(|item| (item, &item[key])).collect(),
                value => vec![(value, &value[key])],
            };
            found = found.into_iter().flat_map(inner).collect();
        }
        found
    }

    #[test]
    fn every_field_has_a_value_on_three_kinds_of_device_and_none_where_that_may_be() {
        let seen: Vec<(String, Value)> =
            machines().into_iter().map(|(dir, name)| (name, look(&dir)["inventory"].clone())).collect();
        let is_empty = |value: &Value| match value {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            _ => false,
        };
        for (field, may_be_empty) in FIELDS {
            let all: Vec<(String, &Value)> = seen
                .iter()
                .flat_map(|(name, inventory)| {
                    values(inventory, field).into_iter().map(|(owner, value)| (kind(name, owner), value))
                })
                .collect();
            let with: BTreeSet<&String> =
                all.iter().filter(|(_, value)| !is_empty(value)).map(|(kind, _)| kind).collect();
            let without = all.iter().filter(|(_, value)| is_empty(value)).count();
            assert!(with.len() >= 3, "{field} has a value on {with:?} only");
            assert_eq!(without > 0, *may_be_empty, "{field} is empty {without} times");
        }
        for (field, wanted) in VALUES {
            let all: BTreeSet<String> = seen
                .iter()
                .flat_map(|(_, inventory)| values(inventory, field).into_iter().map(|(_, value)| value.to_string()))
                .collect();
            for value in *wanted {
                assert!(all.contains(*value), "{field} is never {value}, but {all:?}");
            }
        }
    }

    #[test]
    fn the_list_of_fields_is_that_of_the_inventory() {
        let (dir, _) = machines().into_iter().find(|(_, name)| name == "dell-r740-perc").unwrap();
        let inventory = look(&dir)["inventory"].clone();
        for (field, _) in FIELDS {
            let found = values(&inventory, field);
            let key = field.rsplit('.').next().unwrap();
            assert!(
                !found.is_empty() && found.iter().all(|(owner, _)| owner.get(key).is_some()),
                "{field} is not there"
            );
        }
        // What the reference agent does not have.
        let beyond = ["firmware", "predictable_names"];
        for part in ["interfaces", "disks"] {
            for key in inventory[part][0].as_object().unwrap().keys().filter(|key| !beyond.contains(&key.as_str())) {
                let field = format!("{part}.{key}");
                assert!(FIELDS.iter().any(|(known, _)| *known == field), "{field} is not in the list");
            }
        }
    }

    #[test]
    fn every_table_is_decoded() {
        let (mut tables, mut compared) = (0, 0);
        for (dir, name) in machines() {
            let root = replay::machine(&dir).unwrap().root;
            let Some(smbios) = Smbios::read(&root) else { continue };
            tables += 1;
            let decoded = dmi::decode(&smbios);
            let slots = smbios.of(17).count();
            let devices = decoded["memory"]["devices"].as_array().map_or(0, Vec::len);
            assert_eq!(devices, slots, "{name}");
            let cpus = decoded["cpu"].as_array().map_or(0, Vec::len);
            assert_eq!(cpus, smbios.of(4).count(), "{name}");
            if smbios.of(0).next().is_some() {
                assert!(decoded["bios"]["Vendor"].is_string(), "{name}: {}", decoded["bios"]);
            }
            // As dmidecode 3.4 has it.
            if let Ok(text) = std::fs::read(dir.join("dmi.json")) {
                compared += 1;
                assert_eq!(decoded, serde_json::from_slice::<Value>(&text).unwrap(), "{name}/dmi.json");
            }
        }
        assert!(tables >= 13 && compared >= 3, "{tables} tables, {compared} compared");
    }

    #[test]
    fn a_machine_is_seen_in_a_moment() {
        for (dir, name) in machines() {
            let start = Instant::now();
            look(&dir);
            assert!(start.elapsed() < Duration::from_secs(5), "{name}: {:?}", start.elapsed());
        }
    }
}
