//! Tables made by hand, and what must be read from them.

use std::path::Path;
use std::time::{Duration, Instant};

use super::*;
use ferric_sys::{Cmd, Exec as _, SystemExec};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// A structure: type, fields behind the head, texts. Its handle is 0x1100 and its type.
pub(crate) fn structure(kind: u8, body: &[u8], texts: &[&str]) -> Vec<u8> {
    let mut bytes = vec![kind, u8::try_from(HEAD + body.len()).unwrap(), kind, 0x11];
    bytes.extend(body);
    for text in texts {
        bytes.extend(text.as_bytes());
        bytes.push(0);
    }
    bytes.extend(if texts.is_empty() { &[0, 0][..] } else { &[0][..] });
    bytes
}

/// Structures and the one that ends them.
pub(crate) fn table(structures: &[Vec<u8>]) -> Vec<u8> {
    [structures.concat(), structure(END, &[], &[])].concat()
}

/// A 64-bit entry point, with the address that `dmidecode` dumps have.
pub(crate) fn entry_point(major: u8, minor: u8) -> Vec<u8> {
    let mut bytes = b"_SM3_\0\x18".to_vec();
    bytes.extend([major, minor, 0, 1, 0]);
    bytes.extend((1_u32 << 20).to_le_bytes());
    bytes.extend(32_u64.to_le_bytes());
    let sum = bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    bytes[5] = sum.wrapping_neg();
    bytes
}

/// The fields of a structure up to `length`, all zero but those given by offset.
pub(crate) fn body(length: usize, fields: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; length];
    for (at, field) in fields {
        bytes[*at..at + field.len()].copy_from_slice(field);
    }
    bytes.split_off(HEAD)
}

fn kinds(smbios: &Smbios) -> Vec<u8> {
    smbios.structures().map(|structure| structure.kind()).collect()
}

#[test]
fn the_version_is_that_of_any_entry_point() {
    let mut old = vec![0; 0x1f];
    old[..4].copy_from_slice(b"_SM_");
    old[6..8].copy_from_slice(&[2, 8]);
    old[0x1c] = 2;
    let mut odd = old.clone();
    odd[7] = 0x33;
    let mut legacy = vec![0; 0x0f];
    legacy[..5].copy_from_slice(b"_DMI_");
    legacy[0x0e] = 0x21;
    let structures = [structure(1, &[], &[]), structure(2, &[], &[]), structure(3, &[], &[])];
    for (what, bytes, version, count) in [
        ("64 bits", entry_point(3, 4), Version(3, 4), 3),
        ("32 bits", old.clone(), Version(2, 8), 2),
        ("a version that never was", odd, Version(2, 6), 2),
        ("before SMBIOS", legacy, Version(2, 1), 3),
        ("none", vec![], Version::default(), 3),
        ("cut short", old[..7].to_vec(), Version::default(), 3),
        ("nonsense", b"_SM4_............".to_vec(), Version::default(), 3),
    ] {
        let smbios = Smbios::new(table(&structures), &bytes);
        assert_eq!((smbios.version(), kinds(&smbios).len()), (version, count), "{what}");
    }
}

#[test]
fn what_is_whole_is_read_and_the_rest_is_left() {
    let whole = [structure(1, &[1, 9, 0], &["one"]), structure(4, &[], &[]), structure(2, &[2], &["a", "b"])];
    let all = table(&whole);
    let smbios = Smbios::new(all.clone(), &[]);
    assert_eq!(kinds(&smbios), [1, 4, 2]);
    let first = smbios.structures().next().unwrap();
    assert_eq!((first.handle(), first.length()), (0x1101, 7));
    assert_eq!((first.text(4), first.text(5), first.text(6)), (Text::Bytes(b"one"), Text::Missing, Text::None));
    assert_eq!((first.string(4).as_deref(), first.text(7), first.dword(6)), (Some("one"), Text::None, 0));
    assert_eq!(smbios.structures().nth(2).unwrap().string(4).as_deref(), Some("b"));
    // Cut anywhere, each structure that is whole is still there.
    let ends: Vec<usize> = whole
        .iter()
        .scan(0, |end, one| {
            *end += one.len();
            Some(*end)
        })
        .collect();
    for length in 0..all.len() {
        let want = ends.iter().filter(|end| **end <= length).count();
        assert_eq!(kinds(&Smbios::new(all[..length].to_vec(), &[])).len(), want, "{length}");
    }
    let mut short_length = all.clone();
    short_length[ends[0] + 1] = 3;
    assert_eq!(kinds(&Smbios::new(short_length, &[])), [1], "a length below that of the head");
    let mut long_length = all;
    long_length[ends[1] + 1] = 0xff;
    assert_eq!(kinds(&Smbios::new(long_length, &[])), [1, 4], "a length beyond the table");
}

/// A type 4 as Intel's firmware writes it.
fn xeon() -> Vec<u8> {
    let fields: &[(usize, &[u8])] = &[
        (4, &[1, 3, 0xb3, 2]),
        (8, &[0x57, 0x06, 0x05, 0, 0xff, 0xfb, 0xeb, 0xbf, 3, 0x92]),
        (0x12, &[100, 0, 0xa0, 0x0f, 0x34, 0x08, 0x41, 0x36, 0, 7, 1, 7, 2, 7, 4, 0, 5]),
        (0x23, &[16, 16, 32, 0xfc, 0, 0xb3, 0, 16, 0, 16, 0, 32, 0]),
    ];
    structure(
        kind::PROCESSOR,
        &body(0x30, fields),
        &["CPU1", "Intel", "Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz", "A tag", "  "],
    )
}

/// A type 17 of 32 GiB.
fn module() -> Vec<u8> {
    let fields: &[(usize, &[u8])] = &[
        (4, &[0x10, 0x11, 0xfe, 0xff, 72, 0, 64, 0, 0xff, 0x7f, 9, 1, 1, 0, 26, 0x80, 0x20, 0x6a, 0x0a, 2, 3, 0, 4, 2]),
        (0x1c, &[0, 0x80, 0, 0, 0x60, 0x09, 0xb0, 4, 0x22, 6, 0xb0, 4, 3, 8, 0, 0, 0x80, 0xce]),
        (0x3c, &[0, 0, 0, 0, 8]),
    ];
    structure(kind::MEMORY_DEVICE, &body(0x5c, fields), &["A1", "Samsung", "1234", "M393A4K40BB2-CTD"])
}

fn empty_slot() -> Vec<u8> {
    structure(kind::MEMORY_DEVICE, &body(0x22, &[(4, &[0x10, 0x11, 0xfe, 0xff]), (0x0e, &[9, 0, 1, 0, 2, 4])]), &["A2"])
}

fn array(location: u8, slots: u16) -> Vec<u8> {
    let [low, high] = slots.to_le_bytes();
    let fields: &[(usize, &[u8])] = &[(4, &[location, 3, 6, 0, 0, 0, 0x80, 0xfe, 0xff, low, high, 0, 0, 0, 0, 0, 3])];
    structure(kind::MEMORY_ARRAY, &body(0x17, fields), &[])
}

fn firmware() -> Vec<u8> {
    let fields: &[(usize, &[u8])] =
        &[(4, &[1, 2, 0, 0xf0, 3, 0xff, 0x80, 0x08, 0, 0, 0, 0, 0, 0, 3, 0x0d, 2, 8, 0xff, 0xff, 32, 0])];
    structure(kind::FIRMWARE, &body(0x1a, fields), &["Dell Inc.", "2.8.2\u{1}", "08/27/2020"])
}

#[test]
fn a_server_is_told_in_the_words_of_dmidecode() {
    let table = table(&[firmware(), xeon(), array(3, 24), module(), empty_slot(), array(6, 8)]);
    let seen = dmi::decode(&Smbios::new(table, &entry_point(3, 2)));
    assert_eq!(
        seen["bios"],
        json!({
            "Handle": "Handle 0x1100, DMI type 0, 26 bytes", "Vendor": "Dell Inc.", "Version": "2.8.2.",
            "Release Date": "08/27/2020", "Address": "0xF0000", "Runtime Size": "64 kB", "ROM Size": "32 MB",
            "Characteristics": [
                "PCI is supported", "BIOS is upgradeable", "ACPI is supported", "USB legacy is supported",
                "BIOS boot specification is supported", "Targeted content distribution is supported", "UEFI is supported",
            ],
            "BIOS Revision": "2.8",
        })
    );
    let [cpu] = seen["cpu"].as_array().unwrap().as_slice() else { panic!("{seen:#}") };
    for (label, want) in [
        ("Handle", json!("Handle 0x1104, DMI type 4, 48 bytes")),
        ("Socket Designation", json!("CPU1")),
        ("Type", json!("Central Processor")),
        ("Family", json!("Xeon")),
        ("ID", json!("57 06 05 00 FF FB EB BF")),
        ("Signature", json!("Type 0, Family 6, Model 85, Stepping 7")),
        ("Version", json!("Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz")),
        ("Voltage", json!("1.8 V")),
        ("Max Speed", json!("4000 MHz")),
        ("Status", json!("Populated, Enabled")),
        ("Upgrade", json!("Socket LGA3647-1")),
        ("L1 Cache Handle", json!("0x0700")),
        ("Serial Number", json!("A tag")),
        ("Asset Tag", json!("Not Specified")),
        // Blanks only: the reference agent takes that for a list.
        ("Part Number", json!([])),
        ("Thread Count", json!("32")),
    ] {
        assert_eq!(cpu[label], want, "{label} of {cpu:#}");
    }
    let flags = cpu["Flags"].as_array().unwrap();
    assert_eq!((flags.len(), &flags[0]), (28, &json!("FPU (Floating-point unit on-chip)")));
    assert_eq!(cpu["Characteristics"].as_array().unwrap().len(), 6);
    let memory = &seen["memory"];
    assert_eq!(memory["Number Of Devices"], 32, "of both arrays");
    assert_eq!(memory["Location"], "System Board Or Motherboard", "of the first array");
    assert_eq!((&memory["Maximum Capacity"], memory.get("Handle")), (&json!("3 TB"), None));
    let [module, empty] = memory["devices"].as_array().unwrap().as_slice() else { panic!("{memory:#}") };
    for (label, want) in [
        ("Array Handle", "0x1110"),
        ("Error Information Handle", "Not Provided"),
        ("Total Width", "72 bits"),
        ("Size", "32 GB"),
        ("Form Factor", "DIMM"),
        ("Bank Locator", "Not Specified"),
        ("Type", "DDR4"),
        ("Type Detail", "Synchronous Registered (Buffered)"),
        ("Speed", "2666 MT/s"),
        ("Rank", "2"),
        ("Configured Memory Speed", "2400 MT/s"),
        ("Minimum Voltage", "1.2 V"),
        ("Maximum Voltage", "1.57 V"),
        ("Memory Technology", "DRAM"),
        ("Memory Operating Mode Capability", "Volatile memory"),
        ("Module Manufacturer ID", "Bank 1, Hex 0xCE"),
        ("Non-Volatile Size", "None"),
        ("Volatile Size", "32 GB"),
    ] {
        assert_eq!(module[label], want, "{label} of {module:#}");
    }
    assert_eq!((&empty["Size"], &empty["Locator"]), (&json!("No Module Installed"), &json!("A2")));
    assert_eq!(empty.get("Speed"), None, "an empty slot has no speed");
}

#[test]
fn an_arm_server_and_a_machine_without_memory_arrays_are_told_too() {
    let fields: &[(usize, &[u8])] = &[(6, &[0xfe, 1]), (8, &[0xc1, 0xd0, 0x3f, 0x41]), (0x26, &[4, 0, 1, 1])];
    let arm = structure(kind::PROCESSOR, &body(0x30, fields), &["Ampere(R)"]);
    let seen = dmi::decode(&Smbios::new(table(&[arm, module()]), &[]));
    assert_eq!(seen["cpu"][0]["Family"], "ARMv8");
    assert_eq!(seen["cpu"][0]["Signature"], "Implementor 0x41, Variant 0x3, Architecture 15, Part 0xd0c, Revision 1");
    assert_eq!(seen["cpu"][0].get("Flags"), None);
    assert_eq!(seen["memory"].as_object().unwrap().keys().collect::<Vec<_>>(), ["devices"]);
    let nothing = dmi::decode(&Smbios::new(table(&[]), &[]));
    assert_eq!(nothing, json!({"bios": {}, "cpu": [], "memory": {"devices": []}}));
}

/// What the reference agent makes of the output of `dmidecode`.
fn as_the_reference_agent_reads(output: &str) -> Value {
    let (mut firmware, mut processors, mut arrays, mut devices) = (Map::new(), vec![], vec![], vec![]);
    for text in output.split("\n\n").filter(|text| text.starts_with("Handle 0x")) {
        let (mut block, mut list) = (Map::new(), None::<String>);
        for line in text.lines().map(str::trim) {
            if let Some((label, value)) = line.split_once(':') {
                let (label, value) = (label.trim().to_owned(), value.trim());
                list = value.is_empty().then(|| label.clone());
                block.insert(label, if value.is_empty() { json!([]) } else { json!(value) });
            } else if line.contains("Handle 0x") {
                block.insert("Handle".to_owned(), line.into());
            } else if let Some(label) = &list {
                block[label].as_array_mut().unwrap().push(line.into());
            }
        }
        let kind: u8 = text.split(',').nth(1).unwrap().trim().strip_prefix("DMI type ").unwrap().parse().unwrap();
        match kind {
            0 => firmware = block,
            4 => processors.push(Value::Object(block)),
            16 => arrays.push(block),
            17 => devices.push(Value::Object(block)),
            _ => {}
        }
    }
    let slots: u64 =
        arrays.iter().map(|array| array["Number Of Devices"].as_str().unwrap().parse::<u64>().unwrap()).sum();
    let mut memory = Map::new();
    if let Some(first) = arrays.into_iter().next() {
        memory = first;
        memory.insert("Number Of Devices".to_owned(), slots.into());
        memory.remove("Handle");
    }
    memory.insert("devices".to_owned(), devices.into());
    json!({"bios": firmware, "cpu": processors, "memory": memory})
}

fn dmidecode() -> Option<&'static str> {
    ["/usr/sbin/dmidecode", "/sbin/dmidecode"].into_iter().find(|path| Path::new(path).exists())
}

/// Both readings of tables, ours and that of `dmidecode`.
fn both(dmidecode: &str, version: (u8, u8), structures: &[Vec<u8>]) -> (Value, Value) {
    both_of_bytes(dmidecode, version, &table(structures))
}

fn both_of_bytes(dmidecode: &str, version: (u8, u8), table: &[u8]) -> (Value, Value) {
    let entry_point = entry_point(version.0, version.1);
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut dump = entry_point.clone();
    dump.resize(32, 0);
    dump.extend(table);
    std::fs::write(file.path(), dump).unwrap();
    let types = ["-t", "bios", "-t", "processor", "-t", "memory", "--from-dump"];
    let command = Cmd::new(dmidecode).args(types).arg(file.path().to_str().unwrap());
    let output = SystemExec.run(&command).unwrap();
    let theirs = as_the_reference_agent_reads(&String::from_utf8_lossy(&output.stdout));
    (dmi::decode(&Smbios::new(table.to_vec(), &entry_point)), theirs)
}

/// Numbers that are newer than this `dmidecode`: what it has no name for may have one.
fn forgive(ours: &mut Value, theirs: &Value) {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            if theirs.get("Family").is_some_and(|family| family == "<OUT OF SPEC>") {
                ours.retain(|label, _| theirs.contains_key(label));
            }
            ours.iter_mut().for_each(|(label, value)| forgive(value, theirs.get(label).unwrap_or(&Value::Null)));
        }
        (Value::Array(ours), Value::Array(theirs)) => {
            ours.iter_mut().zip(theirs).for_each(|(ours, theirs)| forgive(ours, theirs));
        }
        (ours, theirs) if theirs == "<OUT OF SPEC>" => *ours = theirs.clone(),
        _ => {}
    }
}

/// Bytes of every structure that the collector tells of, with texts that test what can be said wrongly.
fn any_structures() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let texts = proptest::sample::subsequence(
        vec!["Intel", "AMD", "  ", " a: b ", "caf\u{e9}\t", "AMD Athlon(TM)", "Intel(R) Core(TM)2", "x"],
        0..8,
    );
    let byte = prop_oneof![4 => 0_u8..8, 2 => any::<u8>(), 1 => Just(0xff), 1 => Just(0xfe)];
    let one = (proptest::sample::select(vec![0_u8, 4, 16, 17, 1, 20]), proptest::collection::vec(byte, 0..0x60), texts);
    let whole = one.prop_map(|(kind, mut body, texts)| {
        // An array must say how many slots it has: without, the reference agent fails.
        if kind == kind::MEMORY_ARRAY && body.len() < 0x0b {
            body.resize(0x0b, 1);
        }
        // Processors of the time before SMBIOS are not told of in all detail.
        for family in [0x06, 0x28].map(|at: usize| at - HEAD) {
            if kind == kind::PROCESSOR && body.get(family).is_some_and(|family| matches!(family, 5 | 6)) {
                body[family] = 0xb3;
            }
        }
        structure(kind, &body, &texts)
    });
    proptest::collection::vec(whole, 0..12)
}

/// Where `dmidecode` is; says so when it is not there.
fn found(test: &str) -> Option<&'static str> {
    let found = dmidecode();
    if found.is_none() {
        let reason = format!("SKIPPED: {test}: there is no dmidecode to compare with\n");
        std::io::Write::write_all(&mut std::io::stderr(), reason.as_bytes()).unwrap();
    }
    found
}

#[test]
fn dmidecode_says_the_same() {
    let Some(dmidecode) = found("dmidecode_says_the_same") else { return };
    let server = [firmware(), xeon(), array(3, 24), module(), empty_slot(), array(6, 8)];
    let (ours, theirs) = both(dmidecode, (3, 2), &server);
    assert_eq!(ours, theirs);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let cases = (any_structures(), proptest::sample::select(vec![(2, 0), (2, 2), (2, 8), (3, 0), (3, 5)]));
    let outcome = runner.run(&cases, |(structures, version)| {
        let (mut ours, theirs) = both(dmidecode, version, &structures);
        forgive(&mut ours, &theirs);
        for part in ["bios", "cpu", "memory"] {
            prop_assert_eq!(&ours[part], &theirs[part]);
        }
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn dmidecode_says_the_same_of_every_fixture() {
    let Some(dmidecode) = found("dmidecode_says_the_same_of_every_fixture") else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures/machines");
    let mut compared = 0;
    for machine in std::fs::read_dir(folder).unwrap() {
        let tables = machine.unwrap().path().join("sys/firmware/dmi/tables");
        let Some(bytes) = bounded(&tables.join("DMI"), TABLE_BYTES) else { continue };
        let read = Smbios::new(bytes.clone(), &bounded(&tables.join("smbios_entry_point"), 256).unwrap_or_default());
        let version = if read.version() == Version::default() { Version(3, 0) } else { read.version() };
        let (mut ours, theirs) = both_of_bytes(dmidecode, (version.0, version.1), &bytes);
        forgive(&mut ours, &theirs);
        assert_eq!(ours, theirs, "{}", tables.display());
        compared += 1;
    }
    assert!(compared >= 10, "{compared}");
}

#[test]
fn a_table_of_the_greatest_length_is_read_in_bounded_time_and_space() {
    let longest = usize::try_from(TABLE_BYTES).unwrap();
    let tiny = structure(kind::MEMORY_DEVICE, &body(0x15, &[(0x0c, &[1])]), &[]);
    let begun = Instant::now();
    for (what, one) in [
        ("many small structures", tiny),
        (
            "one with endless texts",
            structure(kind::MEMORY_DEVICE, &body(0x5c, &[(0x10, &[0xff]), (0x0c, &[1])]), &["a"; 300]),
        ),
        ("no end", vec![17, 0x5c, 0, 0, 1]),
        ("zeroes", vec![0]),
    ] {
        let mut bytes = one.repeat(longest / one.len());
        bytes.truncate(longest);
        let smbios = Smbios::new(bytes, &[]);
        assert!(smbios.structures().count() <= MAX_STRUCTURES, "{what}");
        let seen = dmi::decode(&smbios);
        assert!(seen["memory"]["devices"].as_array().unwrap().len() <= 2048, "{what}");
        host_interface::host_interfaces(&smbios);
    }
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

proptest! {
    #[test]
    fn any_bytes_are_survived(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
        entry in proptest::collection::vec(any::<u8>(), 0..40),
        magic in proptest::sample::select(vec!["_SM3_", "_SM_", "_DMI_", ""]),
    ) {
        let smbios = Smbios::new(bytes, &[magic.as_bytes(), &entry].concat());
        let total: usize = smbios.structures().map(|structure| structure.length()).sum();
        prop_assert!(total <= 600);
        dmi::decode(&smbios);
        host_interface::host_interfaces(&smbios);
    }

    #[test]
    fn any_structures_are_survived_wherever_the_table_is_cut(structures in any_structures(), cut in 0_usize..600) {
        let mut bytes = table(&structures);
        bytes.truncate(cut);
        let smbios = Smbios::new(bytes, &entry_point(3, 2));
        dmi::decode(&smbios);
        host_interface::host_interfaces(&smbios);
    }
}
