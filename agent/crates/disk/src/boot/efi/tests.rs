use ferric_sys::Root;
use ferric_sys::block_dev::Access;
use ferric_sys::testing::disk::TestDisk;
use proptest::prelude::*;

use super::*;

const SUFFIX: &str = "-8be4df61-93ca-11d2-aa0d-00e098032b8c";

struct Machine {
    dir: tempfile::TempDir,
    vars: EfiVars,
}

/// A machine with boot entries (name, label), and an order.
fn machine(entries: &[(&str, &str)], order: &[u16]) -> Machine {
    let dir = tempfile::tempdir().unwrap();
    let efivars = dir.path().join("sys/firmware/efi/efivars");
    std::fs::create_dir_all(&efivars).unwrap();
    let signature = Signature::Gpt(Guid::NIL);
    let target = Target { partition: 1, start_lba: 1, sectors: 1, signature, path: "\\x".into() };
    for (name, label) in entries {
        let mut bytes = vec![7, 0, 0, 0];
        bytes.extend(load_option::encode(label, &target).unwrap());
        std::fs::write(efivars.join(format!("{name}{SUFFIX}")), bytes).unwrap();
    }
    let bytes: Vec<u8> = [7, 0, 0, 0].into_iter().chain(order.iter().flat_map(|n| n.to_le_bytes())).collect();
    std::fs::write(efivars.join(format!("BootOrder{SUFFIX}")), bytes).unwrap();
    let vars = EfiVars::of(&Root::at(dir.path())).unwrap();
    Machine { dir, vars }
}

impl Machine {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("sys/firmware/efi/efivars/{name}{SUFFIX}"))
    }

    /// Has every write to a variable end in "no space left on device".
    fn fill(&self, name: &str) {
        std::fs::remove_file(self.path(name)).unwrap();
        std::os::unix::fs::symlink("/dev/full", self.path(name)).unwrap();
    }

    /// efivarfs replaces a value whole; the plain file of this fixture keeps its old tail, which repeats what is in it.
    fn order(&self, len: usize) -> Vec<u16> {
        self.vars.boot_order().unwrap()[..len].to_vec()
    }
}

/// A disk with an EFI system partition of 40 MiB at 1 MiB and the files in it, in a table of the kind.
fn disk(kind: TableKind, files: &[(&str, &[u8])]) -> TestDisk {
    let disk = esp::tests::esp(files);
    let dev = disk.open().unwrap();
    let is_gpt = kind == TableKind::Gpt;
    let esp = Partition {
        number: 1,
        start_bytes: 1 << 20,
        size_bytes: 40 << 20,
        kind: if is_gpt { PartitionType::Gpt(Guid::EFI_SYSTEM) } else { PartitionType::Mbr(0xef) },
        guid: None,
        name: String::new(),
    };
    table::create(&dev, kind, &[esp], None).unwrap();
    disk
}

fn run(disk: &TestDisk, vars: Option<&EfiVars>) -> Result<Installed, EfiError> {
    let dev = BlockDev::open(disk.path(), Access::Read).unwrap();
    install(&dev, None, &Firmware { vars, suffix: Some("x64") })
}

fn labels(labels: &[&str]) -> Installed {
    Installed::Entries(labels.iter().map(|label| (*label).to_owned()).collect())
}

const DEBIAN: [(&str, &[u8]); 3] = [
    ("EFI/debian/BOOTX64.CSV", b"shimx64.efi,debian,,"),
    ("EFI/debian/shimx64.efi", b"MZ shim"),
    ("EFI/debian/grubx64.efi", b"MZ grub"),
];

#[test]
fn five_entries_of_a_label_become_one_in_front_of_an_order_without_repeats() {
    let old = ["Boot0001", "Boot0003", "Boot0005", "Boot0007", "Boot000A"].map(|name| (name, "debian"));
    let others = [("Boot0000", "UEFI PXE"), ("Boot0004", "Debian")];
    let machine = machine(&[&old[..], &others].concat(), &[1, 0, 3, 1, 4, 5, 0, 7, 10, 4]);
    assert_eq!(run(&disk(TableKind::Gpt, &DEBIAN), Some(&machine.vars)).unwrap(), labels(&["debian"]));
    assert_eq!(machine.vars.boot_entries(), [0, 1, 4]);
    assert_eq!(machine.order(3), [1, 0, 4]);
    let made = machine.vars.read("Boot0001").unwrap().unwrap();
    assert_eq!(load_option::label(&made).unwrap(), "debian");
    let path: Vec<u8> = "\\EFI\\debian\\shimx64.efi".encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert!(made.windows(path.len()).any(|window| window == path));
}

#[test]
fn an_entry_on_an_mbr_disk_names_the_identifier_of_the_disk() {
    let machine = machine(&[], &[]);
    let disk = disk(TableKind::Mbr, &DEBIAN);
    run(&disk, Some(&machine.vars)).unwrap();
    let made = machine.vars.read("Boot0000").unwrap().unwrap();
    // Attributes, length, label; then 24 bytes of the node up to the signature.
    let at = 6 + 14 + 24;
    assert_eq!(made[at..at + 4], disk.bytes(440, 4).unwrap());
    assert_eq!(made[at + 4..at + 18], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
}

#[test]
fn a_full_store_is_left_as_it_was_and_the_disk_boots_by_the_fallback_path() {
    let machine = machine(&[("Boot0000", "UEFI PXE"), ("Boot0002", "debian")], &[2, 0]);
    machine.fill("BootOrder");
    let disk = disk(TableKind::Gpt, &DEBIAN);
    let Installed::Fallback { found, reason } = run(&disk, Some(&machine.vars)).unwrap() else { panic!("an entry") };
    assert_eq!(found, Fallback { path: "\\EFI\\BOOT\\BOOTX64.EFI".into(), copied: true });
    assert!(reason.contains("writing EFI variable BootOrder") && reason.contains("No space left"), "{reason}");
    assert_eq!(machine.vars.boot_entries(), [0]);
    let dev = disk.open().unwrap();
    let fs = crate::filesystem::fat(&dev, 1 << 20, 40 << 20).unwrap();
    for name in ["BOOTX64.EFI", "grubx64.efi"] {
        assert!(fs.root_dir().open_file(&format!("EFI/BOOT/{name}")).is_ok(), "{name}");
    }
}

#[test]
fn without_variables_the_disk_boots_by_the_fallback_path() {
    let disk = disk(TableKind::Gpt, &[("EFI/BOOT/BOOTX64.EFI", b"MZ own"), ("EFI/BOOT/BOOTIA32.EFI", b"MZ")]);
    let Installed::Fallback { found, reason } = run(&disk, None).unwrap() else { panic!("an entry") };
    assert!(!found.copied && reason == "the firmware's variables cannot be reached", "{reason}");
}

#[test]
fn what_neither_way_boots_is_an_error_with_both_reasons() {
    let huge = vec![7; 21 << 20];
    let disk = disk(TableKind::Gpt, &[("EFI/a/BOOTX64.CSV", b"huge.efi,huge,,"), ("EFI/a/huge.efi", &huge)]);
    let error = run(&disk, None).unwrap_err();
    assert_eq!(error.class(), ErrorClass::CommandExecution);
    let text = chain(&error);
    assert!(text.contains("variables cannot be reached") && text.contains("no boot loader could be put"), "{text}");
}

#[test]
fn other_failures_leave_no_entry_behind_and_are_told() {
    let machine = machine(&[("Boot0000", "UEFI PXE")], &[0]);
    let order = machine.path("BootOrder");
    std::fs::remove_file(&order).unwrap();
    std::fs::create_dir(&order).unwrap();
    let error = write(&machine.vars, &[("debian".to_owned(), vec![0; 8])]).unwrap_err();
    assert!(matches!(error, WriteError::Variable(EfiVarError::Read { .. })), "{error:?}");
    assert_eq!(machine.vars.boot_entries(), [0]);
    let machine = self::machine(&[], &[]);
    std::fs::remove_file(machine.path("BootOrder")).unwrap();
    std::os::unix::fs::symlink("/nowhere/at/all", machine.path("BootOrder")).unwrap();
    let error = run(&disk(TableKind::Gpt, &DEBIAN), Some(&machine.vars)).unwrap_err();
    assert!(matches!(error, EfiError::Variable { source: EfiVarError::Write { .. }, .. }), "{error:?}");
    assert!(machine.vars.boot_entries().is_empty());
}

#[test]
fn disks_that_uefi_cannot_boot_are_refused_in_words() {
    let machine = machine(&[], &[]);
    let arm = disk(TableKind::Gpt, &[("EFI/BOOT/BOOTAA64.EFI", b"MZ")]);
    let error = run(&arm, Some(&machine.vars)).unwrap_err();
    let want = "has no boot loader for this machine's firmware (x64), only for another architecture: \\EFI\\BOOT\\BOOTAA64.EFI";
    assert!(error.to_string().contains(want), "{error}");
    assert_eq!(run(&disk(TableKind::Gpt, &[]), Some(&machine.vars)).unwrap(), Installed::Nothing);
    let bios = disk(TableKind::Mbr, &DEBIAN);
    bios.open().unwrap().write_at(446 + 4, &[0x83]).unwrap();
    let error = run(&bios, Some(&machine.vars)).unwrap_err();
    assert_eq!(error.class(), ErrorClass::DeviceNotFound);
    for words in ["No EFI partition could be detected", "Mbr partition table with 1 partition(s)", "UEFI-compatible"] {
        assert!(error.to_string().contains(words), "{error}");
    }
    // Unless the conductor knows it.
    let dev = BlockDev::open(bios.path(), Access::Read).unwrap();
    let uuid = identity::identify(&dev, 1 << 20, 40 << 20).unwrap().uuid.unwrap();
    let firmware = Firmware { vars: Some(&machine.vars), suffix: Some("x64") };
    assert_eq!(install(&dev, Some(&uuid), &firmware).unwrap(), labels(&["debian"]));
    assert!(install(&dev, Some(""), &firmware).is_err() && install(&dev, Some("8765-4321"), &firmware).is_err());
}

#[test]
fn a_machine_without_efi_has_no_variables() {
    let dir = tempfile::tempdir().unwrap();
    assert!(EfiVars::of(&Root::at(dir.path())).is_none());
}

#[test]
fn without_a_number_left_nothing_is_planned() {
    let known: Vec<(u16, Option<String>)> = (0..=u16::MAX).map(|number| (number, Some("x".to_owned()))).collect();
    assert_eq!(plan(&known, &[], &["debian"]), None);
    assert!(plan(&known[1..], &[], &["debian"]).unwrap().contains(&Change::Write(0, 0)));
}

proptest! {
    /// Pitfalls D1 and D6.
    #[test]
    fn every_variable_is_touched_once_and_the_order_last(
        known in proptest::collection::btree_map(0_u16..40, prop_oneof![Just("a"), Just("b"), Just("other")], 0..30),
        order in proptest::collection::vec(0_u16..45, 0..60),
        labels in prop_oneof![Just(vec!["a"]), Just(vec!["a", "b"]), Just(vec!["new", "a"])],
    ) {
        let entries: Vec<_> = known.iter().map(|(number, label)| (*number, Some((*label).to_owned()))).collect();
        let changes = plan(&entries, &order, &labels).unwrap();
        let rank = |change: &Change| match change {
            Change::Delete(_) => 0,
            Change::Write(..) => 1,
            Change::Order(_) => 2,
        };
        prop_assert!(changes.is_sorted_by_key(rank));
        let written: Vec<u16> =
            changes.iter().filter_map(|c| if let Change::Write(n, _) = c { Some(*n) } else { None }).collect();
        prop_assert_eq!(written.len(), labels.len());
        let Some(Change::Order(new)) = changes.last() else { panic!("no order") };
        prop_assert_eq!(changes.iter().filter(|change| rank(change) == 2).count(), 1);
        let unique: std::collections::BTreeSet<_> = new.iter().collect();
        prop_assert_eq!(unique.len(), new.len());
        let front: Vec<u16> = written.iter().rev().copied().collect();
        prop_assert_eq!(&new[..labels.len()], &front[..]);
        for (number, label) in &known {
            let is_old = labels.contains(label);
            prop_assert_eq!(changes.contains(&Change::Delete(*number)), is_old);
            prop_assert!(is_old || !written.contains(number));
            prop_assert!(is_old || !order.contains(number) || new.contains(number));
        }
    }
}
