use super::*;
use crate::{MANAGERS, Registry, Settings};
use ferric_types::Inventory;

fn fixtures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures/machines");
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.is_dir()).collect()
}

fn write(tree: &Tree, folder: &Path) {
    for (path, entry) in tree {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match entry {
            Entry::File(content) => fs::write(path, content).unwrap(),
            Entry::Link(target) => std::os::unix::fs::symlink(target, path).unwrap(),
        }
    }
}

fn inventory(machine: &Machine) -> Inventory {
    Registry::new(MANAGERS, machine).unwrap().inventory(machine, &Settings::default())
}

/// What must not be in a capture, and what takes its place when two inventories are compared.
fn identities(inventory: &mut Inventory) -> Vec<String> {
    let mut found = Vec::new();
    let mut take = |value: &mut String| found.push(std::mem::replace(value, "?".to_owned()));
    for disk in &mut inventory.disks {
        for value in [
            &mut disk.serial,
            &mut disk.wwn,
            &mut disk.wwn_with_extension,
            &mut disk.wwn_vendor_extension,
            &mut disk.by_path,
        ] {
            value.as_mut().map(&mut take);
        }
    }
    for nic in &mut inventory.interfaces {
        nic.ipv4_address.as_mut().map(&mut take);
        nic.ipv6_address.as_mut().map(&mut take);
        take(&mut nic.mac_address);
    }
    for interface in &mut inventory.host_interfaces {
        take(&mut interface.service_uuid);
        interface.mac_address.as_mut().map(&mut take);
    }
    take(&mut inventory.system_vendor.serial_number);
    inventory.hostname.clear();
    found
}

#[test]
fn a_captured_machine_is_the_same_but_for_what_names_it() {
    for fixture in fixtures() {
        let name = fixture.display();
        let machine = replay::machine(&fixture).unwrap();
        let tree = capture(&machine).unwrap();
        let dir = tempfile::tempdir().unwrap();
        write(&tree, dir.path());
        let mut seen = inventory(&replay::machine(dir.path()).unwrap());
        let mut real = inventory(&machine);
        let (invented, names) = (identities(&mut seen), identities(&mut real));
        assert_eq!(seen, real, "{name}");
        assert_eq!(invented.len(), names.len(), "{name}");
        for identity in names.iter().filter(|text| text.len() >= 8 && text.bytes().any(|byte| byte.is_ascii_digit())) {
            // Where a disk is plugged in tells nothing, unless its name is part of it; addresses for documentation are
            // no secret.
            if identity.starts_with("/dev/disk/by-path")
                || ["192.0.2.", "2001:db8:"].iter().any(|net| identity.starts_with(net))
            {
                continue;
            }
            let identity = identity.trim_start_matches("0x").as_bytes();
            let told = tree.iter().find(|(_, entry)| match entry {
                Entry::File(content) => content.windows(identity.len()).any(|bytes| bytes == identity),
                Entry::Link(_) => false,
            });
            assert!(
                told.is_none(),
                "{name}: {:?} is in {:?}",
                String::from_utf8_lossy(identity),
                told.map(|(path, _)| path)
            );
        }
    }
}

#[test]
fn links_out_of_the_tree_are_left_out() {
    for (path, target, inside) in [
        ("sys/block/sda", "../devices/pci0000:00/block/sda", true),
        ("sys/block/sda", "../../etc/shadow", true),
        ("sys/block/sda", "../../../etc/shadow", false),
        ("sys/block/sda", "/etc/shadow", false),
        ("a", "b/../../c", false),
    ] {
        assert_eq!(stays_inside(Path::new(path), Path::new(target)), inside, "{path} -> {target}");
    }
}
