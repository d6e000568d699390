use std::process::Command;

use ferric_sys::block_dev::{Access, BlockDev};
use ferric_sys::testing::disk::TestDisk;
use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

/// Runs a partitioning tool of the host on a disk in a file.
#[expect(clippy::disallowed_methods, reason = "tests compare with the tools of the host")]
fn tool(program: &str, args: &[&str], disk: &TestDisk) -> String {
    let output = Command::new(program).args(args).arg(disk.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{program} {args:?}: {text} {}", String::from_utf8_lossy(&output.stderr));
    text
}

fn open(disk: &TestDisk) -> BlockDev {
    BlockDev::open(disk.path(), Access::Exclusive).unwrap()
}

#[test]
fn backup_gpt_moves_to_the_end_of_a_larger_disk() {
    let disk = TestDisk::zeroed(64 * MIB).unwrap();
    tool("sgdisk", &["-n", "1:2048:+16M", "-t", "1:ef00", "-c", "1:boot", "-n", "2:0:0"], &disk);
    std::fs::OpenOptions::new().write(true).open(disk.path()).unwrap().set_len(200 * MIB).unwrap();
    let before = tool("sgdisk", &["-v"], &disk);
    assert!(before.contains("Identified 1 problem"), "{before}");
    let dev = open(&disk);
    assert!(fix_backup_gpt(&dev).unwrap());
    let after = tool("sgdisk", &["-v"], &disk);
    assert!(after.contains("No problems found"), "{after}");
    assert!(!fix_backup_gpt(&dev).unwrap(), "a second time there is nothing to do");
    let table = validate(&dev).unwrap();
    assert_eq!(table.kind, TableKind::Gpt);
    assert_eq!((table.partitions[0].start_bytes, table.partitions[0].size_bytes), (MIB, 16 * MIB));
    assert_eq!(table.partitions[0].kind, PartitionType::Gpt(Guid::EFI_SYSTEM));
    assert_eq!(table.partitions[0].name, "boot");
}

#[test]
fn a_damaged_primary_gpt_is_made_anew_from_the_backup() {
    let disk = TestDisk::zeroed(64 * MIB).unwrap();
    tool("sgdisk", &["-n", "1:2048:+16M"], &disk);
    let dev = open(&disk);
    dev.write_at(512, &[0xff; 512]).unwrap();
    assert!(fix_backup_gpt(&dev).unwrap());
    let after = tool("sgdisk", &["-v"], &disk);
    assert!(after.contains("No problems found"), "{after}");
}

#[test]
fn config_drive_partition_goes_to_the_end_of_a_gpt() {
    let disk = TestDisk::zeroed(1024 * MIB).unwrap();
    tool("sgdisk", &["-n", "1:2048:+16M"], &disk);
    let dev = open(&disk);
    let made = gpt::add_last(&dev, 64_000_000).unwrap();
    // The reference agent's tool makes sectors 1964032 to 2097118 on such a disk for a partition of 64 MiB.
    assert_eq!(made.number, 2);
    assert_eq!(made.start_bytes % MIB, 0);
    assert_eq!((made.start_bytes + made.size_bytes) / 512 - 1, 2_097_118);
    assert!(made.size_bytes >= 64_000_000);
    let text = tool("sgdisk", &["-v"], &disk);
    assert!(text.contains("No problems found"), "{text}");
    assert_eq!(validate(&dev).unwrap().partitions[1], made);
}

#[test]
fn a_full_disk_has_no_room_and_stays_as_it_was() {
    let disk = TestDisk::zeroed(128 * MIB).unwrap();
    tool("sgdisk", &["-n", "1:2048:0"], &disk);
    let dev = open(&disk);
    let before = validate(&dev).unwrap();
    assert!(matches!(gpt::add_last(&dev, 64 * MIB), Err(TableError::NoRoom { .. })));
    assert_eq!(validate(&dev).unwrap(), before);
}

#[test]
fn mbr_takes_a_fourth_partition_but_not_a_fifth() {
    let disk = TestDisk::zeroed(512 * MIB).unwrap();
    let script =
        "label: dos\nlabel-id: 0x7c82b1a4\nsize=16M, type=83, bootable\nsize=16M, type=83\nsize=16M, type=83\n";
    let path = disk.path().with_extension("sfdisk");
    std::fs::write(&path, script).unwrap();
    #[expect(clippy::disallowed_methods, reason = "tests compare with the tools of the host")]
    let made = Command::new("sfdisk").arg(disk.path()).stdin(std::fs::File::open(&path).unwrap()).output().unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let dev = open(&disk);
    assert_eq!(disk_id(&dev).unwrap(), "0x7c82b1a4");
    assert!(!fix_backup_gpt(&dev).unwrap());
    let made = mbr::add_last(&dev, 64 * MIB).unwrap();
    assert_eq!((made.number, made.kind), (4, PartitionType::Mbr(0x0c)));
    assert_eq!(made.start_bytes, 448 * MIB);
    assert!(tool("sfdisk", &["--verify"], &disk).contains("No errors"));
    assert!(matches!(mbr::add_last(&dev, MIB), Err(TableError::MbrFull { primaries: 4, .. })));
}

#[test]
fn a_partition_of_a_huge_mbr_disk_stays_below_two_tib() {
    let disk = TestDisk::zeroed(3 << 40).unwrap();
    let dev = open(&disk);
    let mut sector = [0_u8; 512];
    sector[446..462].copy_from_slice(&[0x80, 0, 2, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 0, 1, 0]);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    dev.write_at(0, &sector).unwrap();
    let made = mbr::add_last(&dev, 64 * MIB).unwrap();
    assert!(made.start_bytes + made.size_bytes <= 2 << 40);
    assert!(made.size_bytes >= 64 * MIB);
}

#[test]
fn disks_without_a_table_are_named_with_their_sector_size() {
    let disk = TestDisk::used(4 * MIB).unwrap();
    let error = validate(&open(&disk)).unwrap_err();
    assert!(matches!(&error, TableError::NoTable { sector: 512, .. }), "{error}");
    assert!(
        error.to_string().starts_with("Unable to find a valid partition table on the disk after writing the image.")
    );
    let empty = TestDisk::zeroed(64 * MIB).unwrap();
    tool("sgdisk", &["-o"], &empty);
    assert!(matches!(validate(&open(&empty)), Err(TableError::NoPartitions { .. })));
}

/// A GPT whose fields are what they are, with the right checksums: entries of `entry_bytes` at `entry_lba`, of which the
/// first ones are partitions.
#[derive(Debug, Clone)]
struct AnyGpt {
    my_lba: u64,
    backup_lba: u64,
    usable: (u64, u64),
    entry_lba: u64,
    entries: u32,
    entry_bytes: u32,
    partitions: Vec<(u64, u64)>,
}

impl AnyGpt {
    fn good() -> Self {
        let partitions = vec![(2048, 4095)];
        Self {
            my_lba: 1,
            backup_lba: 16383,
            usable: (34, 16350),
            entry_lba: 2,
            entries: 128,
            entry_bytes: 128,
            partitions,
        }
    }

    /// Writes it into the sector of a header, with a protective MBR.
    fn write(&self, dev: &BlockDev, lba: u64) {
        let stride = usize::try_from(self.entry_bytes).unwrap().clamp(56, 4096);
        let mut table = vec![0; stride * usize::try_from(self.entries).unwrap().min(2048)];
        for (index, (entry, (start, end))) in table.chunks_exact_mut(stride).zip(&self.partitions).enumerate() {
            entry[..16].copy_from_slice(&Guid::LINUX_DATA.0);
            entry[16..32].fill(u8::try_from(index + 1).unwrap());
            entry[32..40].copy_from_slice(&start.to_le_bytes());
            entry[40..48].copy_from_slice(&end.to_le_bytes());
        }
        let mut header = b"EFI PART\0\0\x01\0\x5c\0\0\0\0\0\0\0\0\0\0\0".to_vec();
        for lba in [self.my_lba, self.backup_lba, self.usable.0, self.usable.1] {
            header.extend(lba.to_le_bytes());
        }
        header.extend([9; 16]);
        header.extend(self.entry_lba.to_le_bytes());
        for word in [self.entries, self.entry_bytes, crc32fast::hash(&table)] {
            header.extend(word.to_le_bytes());
        }
        let sum = crc32fast::hash(&header);
        header[16..20].copy_from_slice(&sum.to_le_bytes());
        // Entries that are said to be off the disk are nowhere.
        let _off_the_disk = dev.write_at(self.entry_lba.saturating_mul(512), &table);
        dev.write_at(lba * 512, &header).unwrap();
        protect(dev);
    }
}

/// Writes a protective MBR.
fn protect(dev: &BlockDev) {
    let mut sector = [0_u8; 512];
    sector[446 + 4] = 0xee;
    sector[446 + 8] = 1;
    sector[446 + 12..446 + 16].fill(0xff);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    dev.write_at(0, &sector).unwrap();
}

/// Everything that a deployment does with a table that it has not made.
fn use_table(dev: &BlockDev) -> Result<Table, TableError> {
    let table = validate(dev);
    let _outcome = (read(dev).is_ok(), disk_id(dev).is_ok(), fix_backup_gpt(dev).is_ok());
    let _outcome = (gpt::add_last(dev, MIB).is_ok(), fix_backup_gpt(dev).is_ok());
    table
}

#[test]
fn headers_with_impossible_fields_are_refused_in_words() {
    let good = AnyGpt::good();
    let cases = [
        (AnyGpt { entries: u32::MAX, ..good.clone() }, "it claims 4294967295 entries, expected 1 to 1024"),
        (AnyGpt { entries: 0, ..good.clone() }, "it claims 0 entries"),
        (AnyGpt { entries: 1024, entry_bytes: 4096, ..good.clone() }, "entries of 4096 bytes, expected 128"),
        (AnyGpt { entry_bytes: 64, ..good.clone() }, "entries of 64 bytes, expected 128"),
        (AnyGpt { my_lba: 7, ..good.clone() }, "its header in sector 1 says that it is in sector 7"),
        (AnyGpt { entry_lba: 1, ..good.clone() }, "its entries cannot begin in sector 1 of 16384"),
        (AnyGpt { entry_lba: 16360, ..good.clone() }, "its entries cannot begin in sector 16360 of 16384"),
        (AnyGpt { entry_lba: u64::MAX, ..good.clone() }, "its entries cannot begin in sector 18446744073709551615"),
        (AnyGpt { usable: (9000, 100), ..good.clone() }, "it claims that sectors 9000 to 100 are usable"),
        (AnyGpt { usable: (34, u64::MAX), ..good.clone() }, "it claims that sectors 34 to 18446744073709551615"),
        (AnyGpt { partitions: vec![(0, 9)], ..good.clone() }, "every partition begins at sector 0"),
        (AnyGpt { partitions: vec![(0, 9), (0, 99)], ..good.clone() }, "every partition begins at sector 0"),
    ];
    for (gpt, want) in cases {
        // As the primary one, and as the backup of one that is damaged.
        for lba in [1, 16383] {
            let disk = TestDisk::zeroed(8 * MIB).unwrap();
            let dev = open(&disk);
            let moved = if gpt.my_lba == 1 { AnyGpt { my_lba: lba, ..gpt.clone() } } else { gpt.clone() };
            moved.write(&dev, lba);
            let error = use_table(&dev).expect_err(want);
            let want = want.replace("in sector 1 says", &format!("in sector {lba} says"));
            assert!(matches!(error, TableError::InvalidGpt { .. }) && error.to_string().contains(&want), "{error}");
        }
    }
    let disk = TestDisk::zeroed(8 * MIB).unwrap();
    good.write(&open(&disk), 1);
    assert_eq!(use_table(&open(&disk)).unwrap().partitions.len(), 1);
}

/// A GPT with partitions in any sectors, as no tool would make it.
fn any_gpt(disk: &TestDisk, partitions: &[(u64, u64)]) {
    tool("sgdisk", &["-o"], disk);
    let dev = open(disk);
    let mut gpt = gpt::read(&dev).unwrap().unwrap();
    for (number, (start, end)) in (1_u32..).zip(partitions) {
        gpt[number] = gptman::GPTPartitionEntry {
            partition_type_guid: Guid::LINUX_DATA.0,
            unique_partition_guid: [u8::try_from(number).unwrap(); 16],
            starting_lba: *start,
            ending_lba: *end,
            attribute_bits: 0,
            partition_name: "".into(),
        };
    }
    let entries: Vec<_> = gpt.iter().map(|(_, entry)| entry.clone()).collect();
    let mut backup = gpt.header.clone();
    (backup.primary_lba, backup.backup_lba) = (gpt.header.backup_lba, gpt.header.primary_lba);
    backup.partition_entry_lba = gpt.header.last_usable_lba + 1;
    for header in [&mut gpt.header, &mut backup] {
        header.write_into(&mut dev.cursor(), 512, &entries).unwrap();
    }
}

/// 64 MiB are 131072 sectors: the table is in 0 to 33, its backup in 131039 to 131071.
const LAST: u64 = 131_071;

#[test]
fn partitions_over_the_table_or_off_the_disk_are_refused_by_number_and_sectors() {
    for (start, end, want) in [
        (1, 4095, "sectors 0 to 1 hold the protective MBR and the header"),
        (0, 4095, "sectors 0 to 1 hold the protective MBR and the header"),
        (20, 4095, "sectors 2 to 33 hold the table's entries"),
        (33, 33, "sectors 2 to 33 hold the table's entries"),
        (4096, LAST, "sectors 131039 to 131071 are for the backup of the table"),
        (4096, 131_039, "sectors 131039 to 131071 are for the backup of the table"),
        (4096, LAST + 1, "the disk ends at sector 131071"),
        (4096, u64::MAX, "the disk ends at sector 131071"),
        (4096, 2048, "it ends before it begins"),
    ] {
        let disk = TestDisk::zeroed(64 * MIB).unwrap();
        any_gpt(&disk, &[(34, 40), (start, end)]);
        let error = validate(&open(&disk)).expect_err(want);
        let text = error.to_string();
        let places = format!("partition 2 covers sectors {start} to {end}, but {want}");
        assert!(matches!(error, TableError::InvalidGpt { .. }) && text.contains(&places), "{text}");
        assert!(text.ends_with("the usable sectors are 34 to 131038"), "{text}");
    }
}

#[test]
fn sloppy_tables_that_systems_take_are_taken() {
    for (name, size, partitions, iso, oddities) in [
        ("right behind the table and up to the backup", 64, vec![(34, LAST - 33)], false, vec![]),
        ("one within another", 64, vec![(64, 100_000), (2048, 4095)], false, vec!["2 (sectors 2048 to 4095) overlaps"]),
        ("the same place twice", 64, vec![(2048, 4095), (2048, 4095)], false, vec!["overlaps partition 1, which ends"]),
        ("a CD image with a partition over all", 64, vec![(0, 9), (2048, 4095)], true, vec!["1 covers sectors 0 to 9"]),
        ("up to the end, on a larger disk", 128, vec![(2048, LAST)], false, vec!["34 to 131038 are usable"]),
    ] {
        let disk = TestDisk::zeroed(64 * MIB).unwrap();
        any_gpt(&disk, &partitions);
        std::fs::OpenOptions::new().write(true).open(disk.path()).unwrap().set_len(size * MIB).unwrap();
        let dev = open(&disk);
        if iso {
            dev.write_at((32 << 10) + 1, b"CD001").unwrap();
        }
        let table = validate(&dev).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(table.partitions.len(), partitions.len(), "{name}");
        let found = gpt::oddities(&gpt::read(&dev).unwrap().unwrap());
        assert_eq!(found.len(), oddities.len(), "{name}: {found:?}");
        for (found, want) in found.iter().zip(oddities) {
            assert!(found.contains(want), "{name}: {found}");
        }
    }
}

#[test]
fn a_gpt_of_which_the_mbr_does_not_tell_is_none() {
    // Entries of the MBR: type and first sector.
    let dos: &[(u8, u32)] = &[(0x83, 2048)];
    let hybrid: &[(u8, u32)] = &[(0x83, 2048), (0xee, 1)];
    for (name, entries, signed, want) in [
        ("stale GPT behind an MBR", dos, true, Ok(TableKind::Mbr)),
        ("hybrid", hybrid, true, Ok(TableKind::Gpt)),
        ("protective entry elsewhere", &[(0xee, 2)], true, Err("no entry of type 0xee that begins at sector 1")),
        ("no boot signature", hybrid, false, Err("no entry of type 0xee that begins at sector 1")),
        ("no MBR at all", &[], false, Err("no entry of type 0xee that begins at sector 1")),
    ] {
        let disk = TestDisk::zeroed(256 * MIB).unwrap();
        tool("sgdisk", &["-n", "1:2048:+16M"], &disk);
        let dev = open(&disk);
        let mut sector = [0_u8; 512];
        for (entry, (kind, start)) in sector[446..510].chunks_exact_mut(16).zip(entries) {
            entry[4] = *kind;
            entry[8..12].copy_from_slice(&start.to_le_bytes());
            entry[12..].copy_from_slice(&2048_u32.to_le_bytes());
        }
        if signed {
            sector[510..].copy_from_slice(&[0x55, 0xaa]);
        }
        dev.write_at(0, &sector).unwrap();
        let header = disk.bytes(512, 512).unwrap();
        match (validate(&dev), want) {
            (Ok(table), Ok(kind)) => assert_eq!(table.kind, kind, "{name}"),
            (Err(error), Err(want)) => assert!(error.to_string().contains(want), "{name}: {error}"),
            (got, _) => panic!("{name}: {got:?}"),
        }
        if want != Ok(TableKind::Gpt) {
            assert!(!fix_backup_gpt(&dev).unwrap(), "{name}");
            assert_eq!(disk.bytes(512, 512).unwrap(), header, "{name}");
        }
    }
}

#[test]
fn a_loop_of_extended_records_ends() {
    let disk = TestDisk::zeroed(8 * MIB).unwrap();
    let dev = open(&disk);
    let mut sector = [0_u8; 512];
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    sector[446 + 4] = 0x05;
    sector[446 + 8] = 8;
    sector[446 + 12] = 255;
    dev.write_at(0, &sector).unwrap();
    sector[446 + 4] = 0x83;
    sector[462 + 4] = 0x05;
    sector[462 + 8] = 0;
    sector[462 + 12] = 255;
    dev.write_at(8 * 512, &sector).unwrap();
    assert_eq!(read(&dev).unwrap().unwrap().partitions.len(), 2);
}

#[test]
fn partition_nodes_have_a_p_after_a_digit() {
    for (disk, want) in
        [("/dev/sda", "/dev/sda3"), ("/dev/nvme0n1", "/dev/nvme0n1p3"), ("/dev/mmcblk0", "/dev/mmcblk0p3")]
    {
        assert_eq!(partition_path(std::path::Path::new(disk), 3), std::path::Path::new(want));
    }
}

/// Any number, but often one at a border.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..40_u64, 1_u64..16400, 16340_u64..16400, any::<u64>(), (u64::MAX - 3)..=u64::MAX]
}

prop_compose! {
    fn hostile_gpt()(
        my_lba in prop_oneof![9 => Just(0), 1 => number()], backup_lba in number(), usable in (number(), number()),
        entry_lba in prop_oneof![Just(2), number()], partitions in proptest::collection::vec((number(), number()), 0..4),
        entries in prop_oneof![Just(128), 0_u32..200, 900_u32..1100, any::<u32>()],
        entry_bytes in prop_oneof![4 => Just(128), 1 => 0_u32..8192, 1 => any::<u32>()],
    ) -> AnyGpt {
        AnyGpt { my_lba, backup_lba, usable, entry_lba, entries, entry_bytes, partitions }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn tables_with_the_right_checksums_never_panic(gpt in hostile_gpt(), backup in hostile_gpt(), which in 0..3) {
        let disk = TestDisk::zeroed(8 * MIB).unwrap();
        let dev = open(&disk);
        for (gpt, lba, wanted) in [(gpt, 1, which != 1), (backup, 16383, which != 0)] {
            let my_lba = if gpt.my_lba == 0 { lba } else { gpt.my_lba };
            if wanted {
                AnyGpt { my_lba, ..gpt }.write(&dev, lba);
            }
        }
        let _outcome = use_table(&dev).is_ok();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn random_tables_never_panic(bytes in proptest::collection::vec(any::<u8>(), 2048), gpt in any::<bool>(), mbr in any::<bool>()) {
        let disk = TestDisk::zeroed(2 * MIB).unwrap();
        let dev = open(&disk);
        let mut bytes = bytes;
        if gpt {
            bytes[512..520].copy_from_slice(b"EFI PART");
            bytes[450] = 0xee;
            bytes[454..458].copy_from_slice(&[1, 0, 0, 0]);
        }
        if mbr {
            bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
            for at in [446, 462, 478, 494] {
                bytes[at] = 0;
            }
        }
        dev.write_at(0, &bytes).unwrap();
        let _outcome = read(&dev).is_ok();
        let _outcome = fix_backup_gpt(&dev).is_ok();
    }
}

#[test]
fn partitions_are_added_and_taken_out_and_others_stay() {
    for (kind, types) in [
        (TableKind::Gpt, [PartitionType::Gpt(Guid::LINUX_DATA), PartitionType::Gpt(Guid::EFI_SYSTEM)]),
        (TableKind::Mbr, [PartitionType::Mbr(0x83), PartitionType::Mbr(0xef)]),
    ] {
        let disk = TestDisk::zeroed(64 * MIB).unwrap();
        let dev = open(&disk);
        let part = |number, start, size, kind| Partition {
            number,
            start_bytes: start * MIB,
            size_bytes: size * MIB,
            kind,
            guid: None,
            name: "esp".to_owned(),
        };
        create(&dev, kind, &[part(1, 20, 10, types[0]), part(2, 30, 10, types[0])], None).unwrap();
        let before = read(&dev).unwrap().unwrap().partitions;
        edit(&dev, &[2, 9], &[part(3, 1, 19, types[1])]).unwrap();
        let after = read(&dev).unwrap().unwrap().partitions;
        let places: Vec<_> = after.iter().map(|part| (part.number, part.start_bytes / MIB, part.kind)).collect();
        assert_eq!(places, [(1, 20, types[0]), (3, 1, types[1])], "{kind:?}");
        assert_eq!((after[0].guid, &after[0].name), (before[0].guid, &before[0].name), "{kind:?}");
        for taken in [part(1, 50, 5, types[0]), part(2, 25, 10, types[0]), part(0, 50, 5, types[0])] {
            let error = edit(&dev, &[], std::slice::from_ref(&taken)).unwrap_err();
            assert!(matches!(error, TableError::NoRoom { .. }), "{kind:?} {taken:?}: {error}");
        }
        assert_eq!(read(&dev).unwrap().unwrap().partitions, after, "{kind:?}");
    }
    let disk = TestDisk::zeroed(64 * MIB).unwrap();
    assert!(matches!(edit(&open(&disk), &[1], &[]), Err(TableError::NoTable { .. })));
}
