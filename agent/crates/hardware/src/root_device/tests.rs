use super::*;
use ferric_sys::testing::exec::ScriptedExec;
use ferric_sys::testing::machine::MachineTree;
use serde_json::json;
use std::sync::Arc;

const GIB_SECTORS: u64 = 1 << 21;

struct Lab {
    tree: MachineTree,
    machine: Machine,
    registry: Registry,
    settings: Settings,
}

fn lab(disks: &[(&str, u64)]) -> Lab {
    let tree = MachineTree::new().unwrap();
    for (number, (name, sectors)) in disks.iter().enumerate() {
        add(&tree, number, name, *sectors);
    }
    let machine = Machine::at(tree.root(), Arc::new(ScriptedExec::new()));
    let registry = Registry::new(crate::MANAGERS, &machine).unwrap();
    let settings =
        Settings { disk_wait_attempts: 3, disk_wait_delay: Duration::from_millis(50), ..Settings::default() };
    Lab { tree, machine, registry, settings }
}

fn add(tree: &MachineTree, number: usize, name: &str, sectors: u64) {
    let size = sectors.to_string();
    let attributes = [("size", size.as_str()), ("serial", &format!("serial-{name}"))];
    tree.disk(
        name,
        &format!("pci0000:00/0000:00:{:02x}.0/virtio{number}", number + 3),
        &format!("254:{}", number * 16),
        &attributes,
    )
    .unwrap();
}

impl Lab {
    fn select(&self, node: Value) -> Result<String, CommandError> {
        let node: Node = serde_json::from_value(node).unwrap();
        select(&self.registry, &self.machine, &self.settings, &node).map(|disk| disk.info.name)
    }
}

#[test]
fn without_hints_the_smallest_disk_of_4_gib_counts_then_its_name() {
    /// Name and GiB of each disk; the one chosen.
    type Case<'a> = (&'a [(&'a str, u64)], Option<&'a str>);
    let cases: [Case<'_>; 5] = [
        (&[("vda", 20), ("vdb", 5), ("vdc", 3)], Some("/dev/vdb")),
        (&[("vdb", 5), ("vda", 5)], Some("/dev/vda")),
        (&[("vdb", 5), ("vdaa", 5)], Some("/dev/vdaa")),
        (&[("vda", 4)], Some("/dev/vda")),
        (&[("vda", 3)], None),
    ];
    for (disks, want) in cases {
        let disks: Vec<_> = disks.iter().map(|(name, gib)| (*name, gib * GIB_SECTORS)).collect();
        let found = lab(&disks).select(json!({}));
        assert_eq!(found.as_deref().ok(), want, "{disks:?}");
    }
    let error = lab(&[("vda", 4 * GIB_SECTORS - 1)]).select(json!({})).unwrap_err();
    assert_eq!(error.class, ErrorClass::DeviceNotFound);
    assert_eq!(
        error.details,
        "No suitable device was found for deployment - root device hints were not provided and all found block devices \
         are smaller than 4294967296B."
    );
}

#[test]
fn removable_usb_media_are_chosen_only_when_meant() {
    let lab = lab(&[("vda", 20 * GIB_SECTORS)]);
    for (name, place) in
        [("sda", "usb2/2-1/2-1:1.0/host6/target6:0:0/6:0:0:0"), ("sdb", "ata1/host0/target0:0:0/0:0:0:0")]
    {
        let size = (if name == "sda" { 5 } else { 6 } * GIB_SECTORS).to_string();
        let number = if name == "sda" { "8:0" } else { "8:16" };
        let attributes = [("size", size.as_str()), ("removable", "1")];
        lab.tree.disk(name, &format!("pci0000:00/0000:00:1f.2/{place}"), number, &attributes).unwrap();
    }
    // The kernel calls disks in hot-plug bays removable, too.
    assert_eq!(lab.select(json!({})).unwrap(), "/dev/sdb");
    let hinted = json!({"properties": {"root_device": {"name": "/dev/sda"}}});
    assert_eq!(lab.select(hinted).unwrap(), "/dev/sda");
}

#[test]
fn hints_choose_and_a_wrong_hint_never_falls_back() {
    let lab = lab(&[("vda", 20 * GIB_SECTORS), ("vdb", 5 * GIB_SECTORS)]);
    let hinted = |hints: Value| lab.select(json!({"properties": {"root_device": hints}}));
    assert_eq!(hinted(json!({"serial": "serial-vda"})).unwrap(), "/dev/vda");
    assert_eq!(hinted(json!({"name": "/dev/disk/by-path/pci-0000:00:03.0"})).unwrap(), "/dev/vda");
    assert_eq!(hinted(json!({"size": "> 10"})).unwrap(), "/dev/vda");
    let absent = hinted(json!({"serial": "absent"})).unwrap_err();
    assert_eq!(absent.class, ErrorClass::DeviceNotFound);
    let want = "No suitable device was found for deployment using these hints {\"serial\":\"absent\"}";
    assert!(absent.details.starts_with(want), "{absent}");
    // Each disk with what it has where the hints ask for something else.
    let none = hinted(json!({"serial": "serial-vda", "size": "< 10", "rotational": true, "wwn": "0x1"})).unwrap_err();
    assert!(
        none.details.ends_with(
            ". Disks of this machine: /dev/vda (size is 20.00 GiB, rotational is false, wwn is none); /dev/vdb (serial is \
             serial-vdb, rotational is false, wwn is none)"
        ),
        "{none}"
    );
    assert_eq!(hinted(json!({"size": "> 4"})).unwrap(), "/dev/vda", "the first of several");
    let invalid = hinted(json!({"colour": "red"})).unwrap_err();
    assert!(
        invalid.details.contains("because they failed to validate. Error: The hints \"colour\" are invalid"),
        "{invalid}"
    );
}

#[test]
fn hints_of_the_instance_win() {
    let lab = lab(&[("vda", 20 * GIB_SECTORS), ("vdb", 5 * GIB_SECTORS)]);
    let node = json!({
        "instance_info": {"root_device": {"serial": "serial-vda"}},
        "properties": {"root_device": {"serial": "serial-vdb"}},
    });
    assert_eq!(lab.select(node).unwrap(), "/dev/vda");
}

#[test]
fn skipped_disks_are_no_candidates_with_or_without_hints() {
    let lab = lab(&[("vda", 20 * GIB_SECTORS), ("vdb", 5 * GIB_SECTORS)]);
    let skip = json!([{"serial": "serial-vdb"}]);
    assert_eq!(lab.select(json!({"properties": {"skip_block_devices": skip}})).unwrap(), "/dev/vda");
    let hinted = json!({"properties": {"skip_block_devices": skip, "root_device": {"serial": "serial-vdb"}}});
    assert_eq!(lab.select(hinted).unwrap_err().class, ErrorClass::DeviceNotFound);
}

#[test]
fn virtual_media_and_read_only_disks_are_not_taken_without_a_hint() {
    let lab = lab(&[("vda", 8 * GIB_SECTORS), ("vdb", 6 * GIB_SECTORS), ("vdc", 7 * GIB_SECTORS)]);
    let size = (5 * GIB_SECTORS).to_string();
    let usb = "pci0000:00/0000:00:14.0/usb2/2-1/2-1:1.0/host6/target6:0:0/6:0:0:0";
    lab.tree.disk("sda", usb, "8:0", &[("size", &size), ("removable", "0")]).unwrap();
    lab.tree.link("dev/disk/by-label/IR-VFD-DEV", "dev/sda").unwrap();
    lab.tree.file("sys/block/vdb/ro", "1").unwrap();
    // Whoever had the machine before may have written this on a disk; it is one like others.
    lab.tree.link("dev/disk/by-label/VMEDIA_BOOT_ISO", "dev/vdc").unwrap();
    assert_eq!(lab.select(json!({})).unwrap(), "/dev/vdc");
    assert_eq!(lab.select(json!({"properties": {"root_device": {"name": "/dev/vdb"}}})).unwrap(), "/dev/vdb");
}

#[test]
fn waiting_ends_when_the_disk_comes_up() {
    let mut lab = lab(&[("vda", 20 * GIB_SECTORS)]);
    lab.settings.disk_wait_delay = Duration::from_secs(10);
    let node: Node = serde_json::from_value(json!({"properties": {"root_device": {"serial": "serial-vdb"}}})).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            add(&lab.tree, 1, "vdb", 8);
        });
        let began = Instant::now();
        let found = wait(&lab.registry, &lab.machine, &lab.settings, Some(&node)).unwrap();
        assert_eq!(found.info.name, "/dev/vdb");
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    });
}

#[test]
fn waiting_ends_at_its_limit_and_at_once_for_hints_that_make_no_sense() {
    let mut lab = lab(&[]);
    // A loaded machine may take long over everything: what is measured is that the wait is not shorter than its limit, and
    // much shorter than one that would be wrong.
    let error = wait(&lab.registry, &lab.machine, &lab.settings, None).unwrap_err();
    assert_eq!(error.class, ErrorClass::DeviceNotFound);
    let waited = lab.registry.began().elapsed();
    assert!(waited >= Duration::from_millis(100), "{waited:?}");
    assert!(waited < Duration::from_secs(60), "{waited:?}");
    lab.settings.disk_wait_delay = Duration::from_secs(100);
    let node: Node = serde_json::from_value(json!({"properties": {"root_device": {"colour": "red"}}})).unwrap();
    let began = Instant::now();
    assert!(wait(&lab.registry, &lab.machine, &lab.settings, Some(&node)).is_err());
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}
