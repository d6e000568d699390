//! Whole machines: each tree below `tests/fixtures/machines` and what the agent must make of it.
//!
//! `UPDATE_GOLDEN=1 cargo test -p ferric-hardware --test machines` writes `expected.json` anew; read the difference
//! before committing it.

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::{Path, PathBuf};

    use ferric_hardware::probe::{disks, pci};
    use ferric_hardware::{MANAGERS, Registry, Settings, replay, root_device};
    use serde_json::{Value, json};

    fn fixtures() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures/machines")
    }

    fn look(dir: &Path) -> Value {
        let machine = replay::machine(dir).unwrap();
        let registry = Registry::new(MANAGERS, &machine).unwrap();
        let settings = Settings { pxe_interface: Some("01-52-54-00-12-34-56".to_owned()), ..Settings::default() };
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
