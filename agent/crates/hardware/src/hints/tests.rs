use super::*;
use crate::probe::disks::OtherPath;
use ferric_types::inventory::BlockDevice;
use proptest::prelude::*;
use serde_json::json;

const GIB: u64 = 1 << 30;

fn disk() -> Disk {
    Disk {
        serials: vec![Some("S1 AB".to_owned()), None, Some("ATA_S1".to_owned())],
        wwns: vec![Some("0x5000C500".to_owned()), None],
        by_paths: ["/dev/disk/by-path/pci-0000:00:1f.2-ata-1", "/dev/disk/by-path/pci-0000:00:1f.2-ata-1.0"]
            .map(str::to_owned)
            .to_vec(),
        by_ids: vec!["/dev/disk/by-id/ata-S1".to_owned()],
        ..Disk::plain(BlockDevice {
            name: "/dev/sda".to_owned(),
            size: 10 * GIB,
            model: Some("Samsung SSD 860".to_owned()),
            vendor: None,
            hctl: Some("0:0:0:0".to_owned()),
            by_path: Some("/dev/disk/by-path/pci-0000:00:1f.2-ata-1".to_owned()),
            tran: Some("sata".to_owned()),
            ..BlockDevice::default()
        })
    }
}

fn parse(hints: Value) -> Result<RootDeviceHints, HintError> {
    RootDeviceHints::parse(hints.as_object().unwrap())
}

#[test]
fn each_operator_compares_as_documented() {
    let cases = [
        (json!({"size": 10}), true),
        (json!({"size": "10"}), true),
        (json!({"size": 9}), false),
        (json!({"size": "= 9"}), true),
        (json!({"size": "= 11"}), false),
        (json!({"size": "==10"}), true),
        (json!({"size": "!= 10"}), false),
        (json!({"size": "< 11"}), true),
        (json!({"size": "<= 10"}), true),
        (json!({"size": "> 10"}), false),
        (json!({"size": ">= 10"}), true),
        (json!({"size": "<or> 9 <or> 10"}), true),
        (json!({"size": "<or> 9"}), false),
        (json!({"size": "<range-in> [ 5 10 ]"}), true),
        (json!({"size": "<range-in> [ 5 10 )"}), false),
        (json!({"size": "<range-in> ( 10 20 ]"}), false),
        (json!({"model": "samsung ssd 860"}), true),
        (json!({"model": "Samsung SSD"}), false),
        (json!({"model": "<in> ssd 8"}), true),
        (json!({"model": "<in> hdd"}), false),
        (json!({"model": "s== SAMSUNG SSD 860"}), true),
        (json!({"model": "s!= samsung ssd 860"}), false),
        (json!({"model": "s> samsung"}), true),
        (json!({"model": "s< samsung"}), false),
        (json!({"model": "s>= samsung ssd 860"}), true),
        (json!({"model": "s<= samsung"}), false),
        (json!({"model": "<or> other <or> samsung ssd 860"}), true),
        (json!({"rotational": false}), true),
        (json!({"rotational": "No"}), true),
        (json!({"rotational": true}), false),
        (json!({"hctl": "0:0:0:0", "tran": "SATA"}), true),
        (json!({"hctl": "0:0:0:0", "tran": "sas"}), false),
    ];
    for (hints, want) in cases {
        assert_eq!(parse(hints.clone()).unwrap().matches(&disk()), want, "{hints}");
    }
}

#[test]
fn any_of_several_serials_and_names_will_do() {
    let cases = [
        (json!({"serial": "s1 ab"}), true),
        (json!({"serial": "ata_s1"}), true),
        (json!({"serial": "s1"}), false),
        (json!({"serial": "none"}), false),
        (json!({"wwn": "0x5000c500"}), true),
        (json!({"by_path": "/dev/disk/by-path/pci-0000:00:1f.2-ata-1.0"}), true),
    ];
    for (hints, want) in cases {
        assert_eq!(parse(hints.clone()).unwrap().matches(&disk()), want, "{hints}");
    }
    let mut nothing = disk();
    nothing.serials = vec![None, None];
    assert!(!parse(json!({"serial": "s!= x"})).unwrap().matches(&nothing));
}

#[test]
fn a_missing_attribute_is_the_text_none() {
    for (hints, want) in
        [(json!({"vendor": "none"}), true), (json!({"vendor": "s!= ATA"}), true), (json!({"vendor": "ata"}), false)]
    {
        assert_eq!(parse(hints.clone()).unwrap().matches(&disk()), want, "{hints}");
    }
}

#[test]
fn a_name_may_be_a_link_that_is_followed_when_comparing() {
    let cases = [
        (json!({"name": "/dev/sda"}), true),
        (json!({"name": "/dev/sdb"}), false),
        (json!({"name": "/dev/disk/by-path/pci-0000:00:1F.2-ata-1"}), true),
        (json!({"name": "/dev/disk/by-id/ata-S1"}), true),
        (json!({"name": "/dev/disk/by-id/ata-S2"}), false),
        (json!({"name": "s!= /dev/disk/by-id/ata-S1"}), false),
        (json!({"name": "<or> /dev/sdb <or> /dev/disk/by-id/ata-S1"}), true),
    ];
    for (hints, want) in cases {
        assert_eq!(parse(hints.clone()).unwrap().matches(&disk()), want, "{hints}");
    }
}

#[test]
fn every_path_to_a_disk_names_it_and_excludes_it() {
    let mut disk = disk();
    disk.other_paths = vec![OtherPath { name: "/dev/sdq".to_owned(), hctl: Some("7:0:0:1".to_owned()) }];
    let cases = [
        (json!({"name": "/dev/sdq"}), true),
        (json!({"name": "/dev/sda"}), true),
        (json!({"name": "/dev/sdb"}), false),
        (json!({"name": "s!= /dev/sdq"}), false),
        (json!({"name": "s!= /dev/sdb"}), true),
        (json!({"name": "s!= /dev/disk/by-id/ata-S1"}), false),
        (json!({"hctl": "7:0:0:1"}), true),
        (json!({"hctl": "0:0:0:0"}), true),
        (json!({"hctl": "s!= 7:0:0:1"}), false),
        (json!({"hctl": "<or> 5:0:0:0 <or> 7:0:0:1"}), true),
        (json!({"by_path": "s!= /dev/disk/by-path/pci-0000:00:1f.2-ata-1.0"}), false),
    ];
    for (hints, want) in cases {
        assert_eq!(parse(hints.clone()).unwrap().matches(&disk), want, "{hints}");
    }
    assert_eq!(parse(json!({"hctl": "9:0:0:0"})).unwrap().mismatches(&disk), "hctl is 0:0:0:0 or 7:0:0:1");
}

/// What the reference agent was seen to do (hardware section 4), and what is done here where the two differ.
#[test]
fn quirks_of_the_reference_agent_are_kept_or_left_out_on_purpose() {
    let mut ten_and_a_bit = disk();
    ten_and_a_bit.info.size = 10 * GIB + 1;
    let (exact, bit) = (disk(), ten_and_a_bit);
    // Kept: a plain size is exact, and the usual form is at least; nothing is rounded.
    for (hints, of_exact, of_bit) in [
        (json!({"size": 10}), true, false),
        (json!({"size": "== 10"}), true, false),
        (json!({"size": "= 10"}), true, true),
        (json!({"size": ">= 10"}), true, true),
        (json!({"size": "<= 10"}), true, false),
        (json!({"size": "> 10"}), false, true),
        // There a number is compared to a text, which never fits. Nobody writes this in the hope of no disk at all.
        (json!({"size": "<or> 10 <or> 20"}), true, false),
        // There it is refused.
        (json!({"size": "<range-in> [ 10 11 )"}), true, true),
    ] {
        let rules = parse(hints.clone()).unwrap();
        assert_eq!((rules.matches(&exact), rules.matches(&bit)), (of_exact, of_bit), "{hints}");
    }
    // Kept: blanks inside a text count, those around it and the case of letters do not, operators need none.
    for (hints, want) in [
        (json!({"model": "  SAMSUNG ssd 860  "}), true),
        (json!({"model": "samsungssd860"}), false),
        (json!({"model": "s==Samsung SSD 860"}), true),
        (json!({"model": "<in>ssd 860"}), true),
        (json!({"model": "<IN> SSD"}), true),
        (json!({"model": "<or>x<or>Samsung SSD 860"}), true),
        // Kept: what is missing is the text none.
        (json!({"vendor": "NONE"}), true),
        (json!({"vendor": "<in> on"}), true),
        (json!({"vendor": "s!= none"}), false),
        (json!({"wwn_with_extension": "none"}), true),
        // Kept: of several values the missing ones do not count, not even as none.
        (json!({"serial": "s!= S1 AB"}), true),
        (json!({"wwn": "<or> none <or> 0x1"}), false),
        // Kept: all spellings of yes and no.
        (json!({"rotational": "OFF"}), true),
        (json!({"rotational": 0}), true),
        (json!({"rotational": "t"}), false),
    ] {
        assert_eq!(parse(hints.clone()).unwrap().matches(&exact), want, "{hints}");
    }
    // Here as there, all hints must fit.
    assert!(!parse(json!({"size": 10, "model": "other"})).unwrap().matches(&exact));
    assert!(parse(json!({})).unwrap().matches(&exact), "nothing is asked for");
}

#[test]
fn a_size_that_is_not_a_whole_number_of_gib_is_compared_unrounded() {
    let mut odd = disk();
    odd.info.size = 10 * GIB + 512;
    assert!(!parse(json!({"size": 10})).unwrap().matches(&odd));
    assert!(parse(json!({"size": "> 10"})).unwrap().matches(&odd));
}

#[test]
fn numbers_in_text_attributes_are_compared_as_numbers() {
    let mut numbered = disk();
    numbered.serials = vec![Some("42".to_owned())];
    assert!(parse(json!({"serial": ">= 41.5"})).unwrap().matches(&numbered));
    assert!(!parse(json!({"serial": ">= 41"})).unwrap().matches(&disk()));
}

#[test]
fn hints_that_make_no_sense_are_refused_with_the_reason() {
    let cases = [
        (
            json!({"colour": "red", "shape": "x"}),
            "The hints \"colour, shape\" are invalid. Valid hints are: \"size, rotational,",
        ),
        (json!({"serial": 5}), "Root device hint \"serial\" is not a string value. Current value: 5"),
        (json!({"model": null}), "Root device hint \"model\" is not a string value"),
        (json!({"size": "big"}), "Root device hint \"size\" is not a positive integer value. Current value: big"),
        (json!({"size": 0}), "is not a positive integer value"),
        (json!({"size": -5}), "is not a positive integer value"),
        (json!({"size": 10.5}), "is not a positive integer value"),
        (json!({"size": true}), "is not a positive integer value"),
        (json!({"size": "s== 10"}), "cannot be used with the operator s=="),
        (json!({"size": "<range-in> 5 10"}), "is not a range such as [ 10 20 ]"),
        (json!({"size": "<or> 5 <or> x"}), "is not a positive integer value"),
        (json!({"model": "  "}), "Root device hint \"model\" expression is empty"),
        (json!({"model": "s=="}), "expression is empty"),
        (json!({"model": "<all-in> a b"}), "cannot be used with the operator <all-in>"),
        (json!({"model": "== abc"}), "cannot be used with the operator =="),
        (json!({"rotational": "perhaps"}), "Root device hint \"rotational\" is not a Boolean value"),
    ];
    for (hints, want) in cases {
        let error = parse(hints.clone()).unwrap_err().to_string();
        assert!(error.contains(want), "{hints}: {error}");
    }
}

proptest! {
    #[test]
    fn any_expression_is_survived(name in prop_oneof![Just("size"), Just("model"), Just("name"), Just("rotational")], text in "[ -~<>=!s]{0,30}") {
        if let Ok(hints) = parse(json!({name: text})) {
            hints.matches(&disk());
        }
    }

    #[test]
    fn a_text_hint_without_operator_finds_itself(serial in "[A-Za-z0-9][A-Za-z0-9 ]{0,20}[A-Za-z0-9]") {
        prop_assume!(!serial.to_lowercase().starts_with("s="));
        let mut disk = disk();
        disk.serials = vec![Some(serial.clone())];
        let matched = parse(json!({"serial": serial})).unwrap().matches(&disk);
        prop_assert!(matched);
    }

    #[test]
    fn whole_gib_compare_exactly(gib in 1_u32..1_000_000) {
        let mut disk = disk();
        disk.info.size = u64::from(gib) * GIB;
        let equal = parse(json!({"size": gib})).unwrap().matches(&disk);
        let more = parse(json!({"size": format!("> {gib}")})).unwrap().matches(&disk);
        prop_assert_eq!((equal, more), (true, false));
    }
}

#[test]
fn the_largest_size_is_a_number() {
    for (bytes, want) in
        [(0, 0.0), (1 << 29, 0.5), (5 << 30, 5.0), (1 << 62, 4_294_967_296.0), (u64::MAX - 511, 17_179_869_184.0)]
    {
        assert!((gib(bytes) - want).abs() < 0.001, "{bytes}: {}", gib(bytes));
    }
}
