//! Machines with something damaged: whatever firmware, disks, switches and BMCs say, it is read without a panic and in
//! bounded time, and a capture of it can be made.

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::time::{Duration, Instant};

    use ferric_hardware::probe::smbios::{Smbios, dmi};
    use ferric_hardware::probe::{disks, memory, numa, pci, usb};
    use ferric_hardware::{MANAGERS, Registry, capture, extra, replay};
    use ferric_sys::testing::machine::MachineTree;
    use ferric_sys::{Cmd, Exec as _, Root, SystemExec};
    use proptest::prelude::*;

    /// Longest time for one look in a debug build on a busy machine.
    const LIMIT: Duration = Duration::from_secs(10);

    fn machines() -> Vec<PathBuf> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures/machines");
        let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut found: Vec<PathBuf> = paths.filter(|path| path.is_dir()).collect();
        found.sort();
        found
    }

    /// A folder in memory where there is one: hundreds of small files are slow on some disks.
    fn folder() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
    }

    /// Copies a tree as it is, and returns its files and links.
    fn copy(from: &Path, to: &Path, found: &mut Vec<PathBuf>) {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let (from, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
            if from.is_symlink() {
                std::os::unix::fs::symlink(std::fs::read_link(&from).unwrap(), &to).unwrap();
                found.push(to);
            } else if from.is_dir() {
                copy(&from, &to, found);
            } else {
                std::fs::copy(&from, &to).unwrap();
                found.push(to);
            }
        }
    }

    /// What happens to a file or a link.
    #[derive(Debug, Clone)]
    enum Damage {
        Gone,
        Cut(usize),
        Flipped(usize, u8),
        Replaced(Vec<u8>),
        /// A link to itself.
        Loop,
    }

    fn damage() -> impl Strategy<Value = Damage> {
        prop_oneof![
            Just(Damage::Gone),
            any::<usize>().prop_map(Damage::Cut),
            (any::<usize>(), 1_u8..).prop_map(|(place, bits)| Damage::Flipped(place, bits)),
            proptest::collection::vec(any::<u8>(), 0..300).prop_map(Damage::Replaced),
            "[0-9]{0,30}|-1|0x|[ \\t]*|18446744073709551616|(0-9,){0,9}[0-9]*-4294967295"
                .prop_map(|text| Damage::Replaced(text.into_bytes())),
            Just(Damage::Loop),
        ]
    }

    fn apply(path: &Path, damage: &Damage) {
        let content = std::fs::read(path).unwrap_or_default();
        let write = |content: &[u8]| {
            // What a link leads to may be a folder.
            if !path.is_symlink() {
                std::fs::write(path, content).unwrap();
            }
        };
        match damage {
            Damage::Gone => std::fs::remove_file(path).unwrap(),
            Damage::Cut(length) => write(content.get(..length % (content.len() + 1)).unwrap()),
            Damage::Flipped(place, bits) => {
                let mut content = content;
                let length = content.len().max(1);
                if let Some(byte) = content.get_mut(place % length) {
                    *byte ^= bits;
                }
                write(&content);
            }
            Damage::Replaced(bytes) => write(bytes),
            Damage::Loop => {
                std::fs::remove_file(path).unwrap();
                std::os::unix::fs::symlink(path.file_name().unwrap(), path).unwrap();
            }
        }
    }

    /// Everything that looks at a machine.
    fn look(folder: &Path) {
        // A record of our own that is damaged is an error, and no machine.
        let Ok(machine) = replay::machine(folder) else { return };
        let registry = Registry::new(MANAGERS, &machine).unwrap();
        let inventory = registry.inventory(&machine, &replay::settings(&machine.root));
        serde_json::to_string(&inventory).unwrap();
        let found = disks::disks(&machine.root).unwrap_or_default();
        for disk in &found {
            disks::links(&machine.root, &disk.kname);
        }
        extra::items(&machine, &inventory, &found);
        let _seen = (pci::devices(&machine.root), numa::topology(&machine.root), usb::devices(&machine.root));
        dmi::decode(&Smbios::read(&machine.root).unwrap_or_default());
        capture::capture(&machine, None).unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn a_damaged_machine_is_seen_in_bounded_time(
            which in any::<usize>(),
            damages in proptest::collection::vec((any::<usize>(), damage()), 1..12),
        ) {
            let machines = machines();
            let dir = folder();
            let mut files = Vec::new();
            copy(&machines[which % machines.len()], dir.path(), &mut files);
            for (place, damage) in &damages {
                let path = files[place % files.len()].clone();
                if path.symlink_metadata().is_ok() {
                    apply(&path, damage);
                }
            }
            let start = Instant::now();
            look(dir.path());
            prop_assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
        }
    }

    /// The tables, pages and answers, which are where the foreign bytes are, damaged in all machines that have them.
    #[test]
    fn every_table_page_and_answer_may_be_cut_anywhere() {
        let foreign = ["DMI", "smbios_entry_point", "vpd_pg80", "vpd_pg83", "vpd_pg89"];
        for machine in machines() {
            let dir = folder();
            let mut files = Vec::new();
            copy(&machine, dir.path(), &mut files);
            files.retain(|path| !path.is_symlink() && foreign.iter().any(|name| path.ends_with(name)));
            let whole: Vec<Vec<u8>> = files.iter().map(|path| std::fs::read(path).unwrap()).collect();
            for part in [0, 1, 3, 7] {
                for (path, whole) in files.iter().zip(&whole) {
                    std::fs::write(path, &whole[..whole.len() * part / 8]).unwrap();
                }
                look(dir.path());
            }
        }
    }

    #[test]
    fn a_record_that_is_cut_short_is_an_error_that_names_it() {
        let mut seen = 0;
        for machine in machines() {
            for name in [replay::NICS, replay::IPMI, replay::LLDP] {
                let Ok(whole) = std::fs::read(machine.join(name)) else { continue };
                let dir = folder();
                std::fs::create_dir(dir.path().join("sys")).unwrap();
                std::fs::write(dir.path().join(name), &whole[..whole.len() / 2]).unwrap();
                let error = replay::machine(dir.path()).unwrap_err().to_string();
                assert!(error.ends_with(name), "{}: {error}", machine.display());
                seen += 1;
            }
        }
        assert!(seen > 20, "{seen}");
    }

    /// A small machine with one disk and one processor.
    fn small() -> MachineTree {
        let tree = MachineTree::new().unwrap();
        for (path, text) in [
            ("sys/block/sda/size", "2048"),
            ("sys/block/sda/device/model", "DISK"),
            ("sys/devices/system/cpu/present", "0"),
            ("proc/cpuinfo", "processor\t: 0"),
        ] {
            tree.file(path, text).unwrap();
        }
        tree
    }

    #[test]
    fn what_leads_out_of_a_tree_or_never_ends_is_refused_at_once() {
        let places = [
            "sys/block/sda/device/model",
            "sys/block/sda/size",
            "sys/firmware/dmi/tables/DMI",
            "proc/cpuinfo",
            "proc/cmdline",
            "nics.json",
            "ipmi.json",
            "lldp.json",
        ];
        for place in places {
            for what in ["pipe", "/etc/passwd", "/dev/zero", "../../../../../../../../../../etc/passwd", "huge"] {
                let tree = small();
                assert!(replay::machine(&tree.path("")).is_ok());
                let path = tree.path(place);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                let _may_be_missing = std::fs::remove_file(&path);
                match what {
                    "pipe" => {
                        SystemExec.run(&Cmd::new("mkfifo").arg(&*path.to_string_lossy())).unwrap();
                    }
                    "huge" => std::fs::File::create(&path).unwrap().set_len(2 << 30).unwrap(),
                    target => std::os::unix::fs::symlink(target, &path).unwrap(),
                }
                let start = Instant::now();
                let error = replay::machine(&tree.path("")).unwrap_err().to_string();
                assert!(error.starts_with(&path.display().to_string()), "{place} {what}: {error}");
                assert!(start.elapsed() < LIMIT, "{place} {what}: {:?}", start.elapsed());
            }
        }
    }

    /// Forty layers of two devices, each of which is held by both of the next layer, and the last by the first again.
    #[test]
    fn devices_that_hold_each_other_are_read_in_bounded_time() {
        const LAYERS: usize = 40;
        let tree = small();
        for number in 0..2 * LAYERS {
            let device = format!("sys/devices/dm-{number}");
            tree.file(&format!("{device}/dev"), &format!("253:{number}")).unwrap();
            tree.file(&format!("{device}/size"), "2048").unwrap();
            tree.file(&format!("{device}/dm/uuid"), "mpath-x").unwrap();
            tree.link(&format!("sys/block/dm-{number}"), &device).unwrap();
            tree.link(&format!("sys/class/block/dm-{number}"), &device).unwrap();
            for next in [0, 1].map(|place| (number / 2 + 1) % LAYERS * 2 + place) {
                tree.link(&format!("{device}/holders/dm-{next}"), &format!("sys/devices/dm-{next}")).unwrap();
                tree.link(&format!("sys/devices/dm-{next}/slaves/dm-{number}"), &device).unwrap();
            }
        }
        let start = Instant::now();
        look(&tree.path(""));
        assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
    }

    #[test]
    fn long_lists_of_processors_are_read_in_bounded_time() {
        for list in ["0-65535,", "0-8191,", "8191,", "0-4294967295,"] {
            let tree = small();
            for name in ["present", "online", "possible"] {
                tree.file(&format!("sys/devices/system/cpu/{name}"), &list.repeat(4096 / list.len())).unwrap();
            }
            tree.file("sys/devices/system/node/node0/cpulist", &list.repeat(500)).unwrap();
            tree.file("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 1024 kB").unwrap();
            let start = Instant::now();
            look(&tree.path(""));
            assert!(start.elapsed() < LIMIT, "{list}: {:?}", start.elapsed());
        }
    }

    #[test]
    fn a_table_that_is_cut_short_never_tells_of_more_memory() {
        for machine in machines() {
            let tables = machine.join("sys/firmware/dmi/tables");
            let Ok(table) = std::fs::read(tables.join("DMI")) else { continue };
            let dir = folder();
            let cut = dir.path().join("sys/firmware/dmi/tables/DMI");
            std::fs::create_dir_all(cut.parent().unwrap()).unwrap();
            let installed = |length: usize| {
                std::fs::write(&cut, &table[..length]).unwrap();
                memory::memory(&Root::at(dir.path())).physical_mb.unwrap_or(0)
            };
            let mut before = installed(0);
            assert_eq!(before, 0);
            for length in (0..table.len()).step_by(7) {
                let now = installed(length);
                assert!(
                    now >= before && now <= installed(table.len()),
                    "{}: {now} MiB of {length} bytes",
                    machine.display()
                );
                before = now;
            }
        }
    }
}
