//! Whole machines: each tree below `tests/fixtures/machines` and what the agent must make of it.
//!
//! `UPDATE_GOLDEN=1 cargo test -p ferric-hardware --test machines` writes `expected.json` anew; read the difference
//! before committing it.

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use ferric_hardware::probe::{cpu, disks, pci};
    use ferric_hardware::{MANAGERS, Machine, NicQuery, Registry, Settings, root_device};
    use ferric_sys::Root;
    use ferric_sys::ioctl::net::NicFacts;
    use ferric_sys::testing::exec::ScriptedExec;
    use ferric_types::MacAddress;
    use serde_json::{Value, json};

    fn fixtures() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures/machines")
    }

    /// `nics.json` of a machine: what its kernel would answer over sockets.
    fn nic_facts(dir: &Path) -> BTreeMap<String, NicFacts> {
        let table: Value = serde_json::from_slice(&std::fs::read(dir.join("nics.json")).unwrap()).unwrap();
        let facts = |entry: &Value| NicFacts {
            permanent_address: entry["permanent"].as_str().map(|mac| mac.parse::<MacAddress>().unwrap().0.to_vec()),
            max_speed_mbps: entry["max_speed_mbps"].as_u64(),
            ipv4: entry["ipv4"].as_str().map(|address| address.parse().unwrap()),
            ipv6: entry["ipv6"].as_str().map(|address| address.parse().unwrap()),
        };
        table.as_object().unwrap().iter().map(|(name, entry)| (name.clone(), facts(entry))).collect()
    }

    fn look(dir: &Path) -> Value {
        let facts = nic_facts(dir);
        let mut machine = Machine::at(Root::at(dir), Arc::new(ScriptedExec::new()));
        machine.net = NicQuery::new(move |name| facts.get(name).cloned().unwrap_or_default());
        let registry = Registry::new(MANAGERS, &machine).unwrap();
        let settings = Settings { pxe_interface: Some("01-52-54-00-12-34-56".to_owned()), ..Settings::default() };
        let mut inventory = registry.inventory(&machine, &settings);
        // The one thing that is not in the tree: the kernel that runs the test.
        assert_eq!(inventory.cpu.architecture, cpu::architecture());
        inventory.cpu.architecture = "of the test".to_owned();
        let found = registry.disks(&machine, &settings).unwrap();
        let links: BTreeMap<_, _> =
            found.iter().map(|disk| (disk.kname.clone(), disks::links(&machine.root, &disk.kname))).collect();
        json!({
            "inventory": inventory,
            "root_disk": root_device::smallest(&machine, &found).map(|disk| &disk.info.name),
            "links": links,
            "serials": found.iter().map(|disk| (disk.kname.clone(), json!(disk.serials))).collect::<serde_json::Map<_, _>>(),
            "pci_devices": pci::devices(&machine.root).unwrap_or_default(),
        })
    }

    #[test]
    fn every_machine_is_seen_as_expected() {
        let mut names: Vec<_> = std::fs::read_dir(fixtures())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_dir())
            .collect();
        names.sort();
        assert!(names.len() >= 5, "the fixtures are gone: {names:?}");
        let index = std::fs::read_to_string(fixtures().join("INDEX.md")).unwrap();
        for dir in names {
            let name = dir.file_name().unwrap().to_str().unwrap();
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
}
