//! Making and deleting software RAID on disks that are files, with a kernel and an `mdadm` on paper.

use std::path::Path;
use std::sync::{Arc, Mutex};

use ferric_disk::boot::load_option;
use ferric_disk::{filesystem, table};
use ferric_sys::block_dev::{Access, BlockDev};
use ferric_sys::testing::exec::ScriptedExec;
use ferric_sys::{Cmd, Exec, ExecError, Output, Root};
use ferric_types::error::{CommandError, ErrorClass};
use ferric_types::step::StepKind;
use serde_json::{Value, json};

use super::{Lab, MIB, boot, lab};
use crate::generic::deploy::{self, BootLoaderRequest};
use crate::machine::Machine;
use crate::root_device;

const GIB: u64 = 1 << 30;

/// Does what the kernel and `mdadm` show of themselves in sysfs, and keeps the calls.
#[derive(Debug)]
struct Md {
    root: Root,
    ran: Mutex<Vec<String>>,
    /// A member that is lost at first.
    loses: Option<&'static str>,
    /// Whether arrays can be stopped.
    stops: bool,
}

impl Exec for Md {
    fn run(&self, cmd: &Cmd) -> Result<Output, ExecError> {
        self.ran.lock().unwrap().push(cmd.to_string());
        let args: Vec<&str> = cmd.args.iter().map(String::as_str).collect();
        let class = self.root.path("sys/class/block");
        let slave = |array: &str, member: &str| {
            let slaves = class.join(array.trim_start_matches("/dev/")).join("slaves");
            std::fs::create_dir_all(&slaves).unwrap();
            std::fs::write(slaves.join(member.trim_start_matches("/dev/")), "").unwrap();
        };
        match args.as_slice() {
            ["--create", array, .., "--raid-devices", count, _, _]
            | ["--create", array, .., "--raid-devices", count, _, _, _, _] => {
                let members = args.len() - count.parse::<usize>().unwrap();
                for member in args[members..].iter().filter(|member| Some(**member) != self.loses) {
                    assert!(self.root.path(member).exists(), "{member} has no node");
                    slave(array, member);
                }
                // An array of EFI system partitions is formatted at once.
                std::fs::File::create(self.root.path(array)).unwrap().set_len(549 * MIB).unwrap();
                if args.contains(&"esp") {
                    std::fs::create_dir_all(self.root.path("sys/block").join(array.trim_start_matches("/dev/")))
                        .unwrap();
                }
            }
            ["--add", array, member] => slave(array, member),
            ["--stop", array] if self.stops => {
                std::fs::remove_file(self.root.path("sys/block").join(array.trim_start_matches("/dev/"))).unwrap();
            }
            ["--stop", _] => return Ok(Output { code: 1, stderr: b"mdadm: fail".to_vec(), ..Output::default() }),
            ["--version"] | ["--assemble", "--scan"] => {}
            other => panic!("{other:?}"),
        }
        Ok(Output::default())
    }
}

fn install(lab: &mut Lab, loses: Option<&'static str>, stops: bool) -> Arc<Md> {
    let md = Arc::new(Md { root: lab.tree.root(), ran: Mutex::default(), loses, stops });
    let exec: Arc<dyn Exec> = md.clone();
    lab.machine = Machine::at(lab.tree.root(), exec);
    md
}

/// Disks of 4 GiB, with nodes for the partitions that they will have.
fn disks(lab: &mut Lab, names: &[&str]) {
    for name in names {
        lab.disk(name, 4 * GIB, false);
        for number in 1..=3 {
            lab.medium(&format!("{name}{number}"), MIB);
        }
    }
}

fn root(size: Value) -> Value {
    json!({"controller": "software", "raid_level": "1", "size_gb": size, "volume_name": "root", "is_root_volume": true})
}

fn node(config: Value) -> Value {
    json!({"uuid": "n-1", "target_raid_config": config, "properties": {"capabilities": "boot_mode:uefi"}})
}

/// Number, first and last MiB of a disk's partitions.
fn partitions(lab: &Lab, disk: &str) -> Vec<(u32, u64, u64)> {
    let dev = BlockDev::open(lab.tree.path(format!("dev/{disk}")), Access::Read).unwrap();
    let table = table::read(&dev).unwrap().map(|table| table.partitions).unwrap_or_default();
    let place =
        |part: &table::Partition| (part.number, part.start_bytes / MIB, (part.start_bytes + part.size_bytes) / MIB);
    table.iter().map(place).collect()
}

#[test]
fn arrays_are_made_on_new_partitions_and_the_configuration_is_the_answer() {
    let mut lab = lab();
    disks(&mut lab, &["vda", "vdb"]);
    lab.disk("sdc", GIB, false);
    lab.tree.link("dev/disk/by-label/ir-vfd-dev", "dev/sdc").unwrap();
    let md = install(&mut lab, None, true);
    let data = json!({"controller": "software", "raid_level": "1+0", "size_gb": 1, "volume_name": "data"});
    let config = json!({"logical_disks": [root(json!("MAX")), data]});
    assert_eq!(lab.clean("create_configuration", &node(config.clone())).unwrap(), config);
    for disk in ["vda", "vdb"] {
        // 551 MiB are left for an EFI system partition, and MAX comes last.
        assert_eq!(partitions(&lab, disk), [(1, 551, 1024), (2, 1024, 4095)], "{disk}");
        assert_eq!(lab.byte(disk, 551 * MIB), 0);
    }
    assert_eq!(lab.byte("sdc", 0), 0xa5);
    let create = |number, level, name, part| {
        format!(
            "mdadm --create /dev/md{number} --force --run --metadata=1 --level {level} --name {name} --raid-devices 2 \
             /dev/vda{part} /dev/vdb{part}"
        )
    };
    assert_eq!(
        *md.ran.lock().unwrap(),
        ["mdadm --version".to_owned(), create(0, "10", "data", 1), create(1, "1", "root", 2)]
    );
}

#[test]
fn disks_are_chosen_by_hints_and_a_lost_member_is_put_back() {
    let mut lab = lab();
    disks(&mut lab, &["vda", "vdb", "vdc"]);
    let md = install(&mut lab, Some("/dev/vda1"), true);
    let mut volume = root(json!(2));
    volume["physical_disks"] = json!([{"serial": "serial-vdc"}, {"size": ">= 4"}]);
    let config = json!({"logical_disks": [volume]});
    let node = json!({"uuid": "n-1", "target_raid_config": config, "properties": {"capabilities": "boot_mode:bios"}});
    lab.clean("create_configuration", &node).unwrap();
    assert_eq!((partitions(&lab, "vdc"), partitions(&lab, "vdb")), (vec![(1, 1, 2048)], vec![]));
    let ran = md.ran.lock().unwrap();
    assert!(ran[1].ends_with("--raid-devices 2 /dev/vdc1 /dev/vda1"), "{ran:?}");
    assert_eq!(ran[2..], ["mdadm --add /dev/md0 /dev/vda1"]);
}

#[test]
fn what_cannot_be_made_is_refused_before_a_disk_is_touched() {
    let with_hints = |hints: Value| {
        let mut volume = root(json!(2));
        volume["physical_disks"] = hints;
        json!({"logical_disks": [volume]})
    };
    let plain = json!({"logical_disks": [root(json!(2))]});
    let cases: [(&str, Value, &str); 6] = [
        ("partitions", plain.clone(), "Partitions detected on devices /dev/vdb during RAID config"),
        ("no program", plain.clone(), "mdadm is not in this ramdisk"),
        (
            "no such disk",
            with_hints(json!([{"serial": "nosuch"}, {"size": "> 1"}])),
            "No candidates for physical disk {\"serial\":\"nosuch\"} from the list /dev/vda, /dev/vdb",
        ),
        (
            "the same disk twice",
            with_hints(json!([{"serial": "serial-vda"}, {"serial": "serial-vda"}])),
            "No candidates left for physical disk {\"serial\":\"serial-vda\"} from the list /dev/vda after picking /dev/vda",
        ),
        ("too large", json!({"logical_disks": [root(json!(4))]}), "Failed to create partitions on /dev/vda"),
        (
            "a rule",
            json!({"logical_disks": [root(json!(1)), root(json!(1))]}),
            "Could not validate Software RAID config for n-1",
        ),
    ];
    for (case, config, want) in cases {
        let mut lab = lab();
        disks(&mut lab, &["vda", "vdb"]);
        install(&mut lab, None, true);
        if case == "no program" {
            lab.machine = Machine::at(lab.tree.root(), Arc::new(ScriptedExec::new()));
        }
        if case == "partitions" {
            let dir = "sys/class/block/vdb/vdb1";
            for (file, value) in [("partition", "1"), ("size", "8"), ("dev", "254:17")] {
                lab.tree.file(&format!("{dir}/{file}"), value).unwrap();
            }
        }
        let error = lab.clean("create_configuration", &node(config)).unwrap_err();
        assert_eq!(error.class, ErrorClass::SoftwareRaid, "{case}: {error}");
        assert!(error.details.contains(want), "{case}: {want:?} not in {error}");
        assert_eq!((lab.byte("vda", 0), lab.byte("vdb", 0)), (0xa5, 0xa5), "{case}");
    }
    let lab = lab();
    for config in [json!(null), json!({}), json!({"logical_disks": [{"controller": "hardware"}]})] {
        assert_eq!(lab.clean("create_configuration", &node(config)).unwrap(), json!({}));
    }
}

/// A superblock of version 1.2 in a partition of a file.
fn superblock(lab: &Lab, device: &str, name: &str, uuid: u8) {
    let mut head = vec![0; 256];
    for (at, bytes) in [
        (0, &0xa92b_4efc_u32.to_le_bytes()[..]),
        (4, &1_u32.to_le_bytes()),
        (16, &[uuid; 16]),
        (32, name.as_bytes()),
        (144, &8_u64.to_le_bytes()),
    ] {
        head[at..at + bytes.len()].copy_from_slice(bytes);
    }
    lab.write(device, 4096, &head);
}

/// Two arrays, each on a partition of its own of two disks.
fn lab_with_arrays() -> Lab {
    let mut lab = lab();
    for name in ["vda", "vdb", "vdc", "vdd"] {
        lab.disk(name, 16 * MIB, true);
    }
    for (array, name, members) in [("md126", "host:root", ["vda1", "vdb1"]), ("md127", "data", ["vdc1", "vdd1"])] {
        let attributes = [("size", "16384"), ("md/level", "raid1")];
        lab.tree.disk(array, "virtual", &format!("9:{}", &array[2..]), &attributes).unwrap();
        lab.medium(array, 8 * MIB);
        for member in members {
            lab.tree
                .link(&format!("sys/class/block/{array}/slaves/{member}"), &format!("sys/class/block/{member}"))
                .unwrap();
            superblock(&lab, member, name, array.as_bytes()[4]);
        }
    }
    lab
}

#[test]
fn every_array_is_stopped_and_wiped_with_the_tables_of_its_disks() {
    let mut lab = lab_with_arrays();
    let md = install(&mut lab, None, true);
    assert_eq!(lab.clean("delete_configuration", &json!({})).unwrap(), Value::Null);
    let ran = md.ran.lock().unwrap().clone();
    assert_eq!(ran, ["mdadm --assemble --scan", "mdadm --stop /dev/md126", "mdadm --stop /dev/md127"]);
    for (device, offset) in
        [("md126", 0), ("vda1", 4096), ("vdb1", 4096), ("vdc1", 4096), ("vda", 0), ("vdd", 16 * MIB - 1)]
    {
        assert_eq!(lab.byte(device, offset), 0, "{device} at {offset}");
    }
}

#[test]
fn a_volume_on_the_skip_list_stays_with_everything_on_its_disks() {
    let mut lab = lab_with_arrays();
    let md = install(&mut lab, None, true);
    let node = json!({"properties": {"skip_block_devices": [{"volume_name": "root"}]}});
    lab.clean("delete_configuration", &node).unwrap();
    assert_eq!(md.ran.lock().unwrap()[1..], ["mdadm --stop /dev/md127"]);
    for (device, offset, want) in [
        ("md126", 0, 0xa5),
        ("vda1", 4096, 0xfc),
        ("vda", 0, 0xa5),
        ("vdb", 16 * MIB - 1, 0xa5),
        ("vdc1", 4096, 0),
        ("vdc", 0, 0),
    ] {
        assert_eq!(lab.byte(device, offset), want, "{device} at {offset}");
    }
}

#[test]
fn an_array_that_does_not_stop_is_named_and_without_the_program_old_superblocks_still_go() {
    let mut lab = lab_with_arrays();
    install(&mut lab, None, false);
    let error = lab.clean("delete_configuration", &json!({})).unwrap_err();
    assert_eq!(error.class, ErrorClass::SoftwareRaid);
    let want = "Unable to clean all softraid correctly. Remaining [\"/dev/md126\", \"/dev/md127\"]";
    assert_eq!(error.details, want);

    let mut lab = super::lab();
    lab.disk("vda", 16 * MIB, true).disk("vdb", 16 * MIB, true);
    superblock(&lab, "vda1", "root", 1);
    lab.clean("delete_configuration", &json!({})).unwrap();
    assert_eq!((lab.byte("vda1", 4096), lab.byte("vdb1", 4096)), (0, 0xa5));
}

#[test]
fn a_configuration_beside_a_volume_that_is_kept_makes_only_what_is_missing() {
    let config = |second: &str| {
        let second = json!({"controller": "software", "raid_level": "0", "size_gb": 1, "volume_name": second});
        json!({"logical_disks": [root(json!(1)), second]})
    };
    let node = |second: &str, skip: &str| {
        json!({
            "uuid": "n-1", "target_raid_config": config(second),
            "properties": {"skip_block_devices": [{"volume_name": skip}]},
        })
    };
    let mut lab = lab_with_arrays();
    let md = install(&mut lab, None, true);
    // Both are there: nothing is left to do.
    let error = lab.clean("create_configuration", &node("data", "root")).unwrap_err();
    assert!(error.details.contains("detected that should not: /dev/md127 (data) on vdc, vdd"), "{error}");
    let both = json!({
        "uuid": "n-1", "target_raid_config": config("data"),
        "properties": {"skip_block_devices": [{"volume_name": "root"}, {"volume_name": "data"}]},
    });
    assert_eq!(lab.clean("create_configuration", &both).unwrap(), config("data"));
    assert_eq!(*md.ran.lock().unwrap(), [""; 0]);
    let plain = json!({"uuid": "n-1", "target_raid_config": config("data")});
    let error = lab.clean("create_configuration", &plain).unwrap_err();
    assert!(error.details.contains("Existing Software RAID device detected that should not: /dev/md126"), "{error}");
}

fn apply(lab: &Lab, args: &Value) -> Result<Value, CommandError> {
    let args = args.as_object().cloned().unwrap_or_default();
    lab.with(&json!({"uuid": "n-1"}), |context| {
        lab.registry.execute(StepKind::Deploy, "apply_configuration", context, &args)
    })
}

#[test]
fn apply_configuration_checks_first_then_deletes_then_makes() {
    let mut lab = lab_with_arrays();
    let md = install(&mut lab, None, true);
    let bad = json!({"logical_disks": [{"controller": "software", "raid_level": "0", "size_gb": 1}]});
    for (args, class) in [
        (json!({}), ErrorClass::InvalidCommandParams),
        (json!({"raid_config": "x"}), ErrorClass::InvalidCommandParams),
        (json!({"raid_config": bad}), ErrorClass::SoftwareRaid),
        (
            json!({"raid_config": {"logical_disks": [root(json!(1))]}, "delete_existing": false}),
            ErrorClass::SoftwareRaid,
        ),
    ] {
        assert_eq!(apply(&lab, &args).unwrap_err().class, class, "{args}");
        assert!(md.ran.lock().unwrap().is_empty(), "{args}");
    }
    // What is left after deleting is too small for a volume.
    let error = apply(&lab, &json!({"raid_config": {"logical_disks": [root(json!(1))]}})).unwrap_err();
    assert_eq!(md.ran.lock().unwrap().len(), 3, "{error}");
}

#[test]
fn the_operating_system_goes_to_the_array_that_the_configuration_says() {
    let mut lab = lab_with_arrays();
    for name in ["vda", "vdb", "vdc", "vdd"] {
        lab.tree.file(&format!("sys/class/block/{name}/size"), "33554432").unwrap();
    }
    let select = |node: &Value| {
        lab.with(node, |context| {
            root_device::select(context.registry, context.machine, context.settings, context.node)
                .map(|disk| disk.info.name)
                .map_err(|error| error.details)
        })
    };
    let hints = json!({"root_device": {"name": "/dev/vdd"}});
    let config = |is_root: Value| {
        let mut volume = root(json!(5));
        volume["is_root_volume"] = is_root;
        json!({"logical_disks": [volume]})
    };
    for (node, want) in [
        (json!({}), "/dev/vda"),
        (json!({"raid_config": config(json!(true))}), "/dev/md126"),
        (json!({"target_raid_config": config(json!(true))}), "/dev/md126"),
        (json!({"raid_config": config(json!(true)), "properties": hints}), "/dev/md126"),
        (json!({"raid_config": config(json!(null)), "properties": hints}), "/dev/vdd"),
        // Neither the array nor the disks below it.
        (json!({"raid_config": config(json!(false))}), "/dev/vdc"),
        (json!({"raid_config": {}, "properties": hints}), "/dev/vdd"),
    ] {
        assert_eq!(select(&node).as_deref(), Ok(want), "{node}");
    }
    assert!(!lab.tree.path(Path::new("dev/md0")).exists());
    lab.disks = 0;
}

#[test]
fn firmware_boots_from_any_disk_of_the_array_that_an_image_was_written_to() {
    let mut lab = lab();
    for (number, name) in ["vda", "vdb"].into_iter().enumerate() {
        lab.disk(name, 2 * GIB, true);
        let dir = format!("sys/devices/pci0000:00/0000:00:{:02x}.0/virtio{number}/block/{name}/{name}2", number + 3);
        for (file, value) in [("partition", "2"), ("size", "1126400"), ("dev", &*format!("254:{}", number * 16 + 2))] {
            lab.tree.file(&format!("{dir}/{file}"), value).unwrap();
        }
        lab.tree.link(&format!("sys/class/block/{name}2"), &dir).unwrap();
        lab.medium(&format!("{name}2"), MIB);
        let dev = BlockDev::open(lab.tree.path(format!("dev/{name}")), Access::Write).unwrap();
        let member = table::Partition {
            number: 1,
            start_bytes: 551 * MIB,
            size_bytes: 473 * MIB,
            kind: table::PartitionType::Gpt(table::Guid::LINUX_DATA),
            guid: None,
            name: "primary".to_owned(),
        };
        table::create(&dev, table::TableKind::Gpt, &[member], None).unwrap();
        superblock(&lab, &format!("{name}1"), "root", 7);
    }
    lab.tree.disk("md0", "virtual", "9:0", &[("size", "16777216"), ("md/level", "raid1")]).unwrap();
    lab.medium("md0", 8 * MIB);
    for member in ["vda1", "vdb1"] {
        lab.tree.link(&format!("sys/class/block/md0/slaves/{member}"), &format!("sys/class/block/{member}")).unwrap();
    }
    lab.write("md0", 0, &boot::image(table::TableKind::Gpt, &[boot::ESP]));
    lab.tree.file("sys/firmware/efi/fw_platform_size", "64").unwrap();
    lab.tree.bytes(&format!("{}/BootOrder-{}", boot::EFIVARS, boot::SUFFIX), &[7, 0, 0, 0]).unwrap();
    let md = install(&mut lab, None, true);
    let node = json!({"raid_config": {"logical_disks": [root(json!(1))]}});
    // What a lookup answers does not have the configuration.
    lab.services.refreshed = serde_json::from_value(json!({"uuid": "n-1"})).ok();
    let request = BootLoaderRequest { target_boot_mode: "uefi".to_owned(), ..BootLoaderRequest::default() };
    let told = lab.with(&node, |context| deploy::install_bootloader(context, &request)).unwrap();
    assert_eq!(told, None);
    let create = "mdadm --create /dev/md1 --force --run --metadata=1.0 --level 1 --name esp --raid-devices 2 /dev/vda2 \
                  /dev/vdb2";
    assert_eq!(*md.ran.lock().unwrap(), [create]);
    for disk in ["vda", "vdb"] {
        assert_eq!(partitions(&lab, disk), [(1, 551, 1024), (2, 1, 551)], "{disk}");
    }
    let open = |name: &str| BlockDev::open(lab.tree.path(format!("dev/{name}")), Access::Read).unwrap();
    let esp = open("md1");
    let fs = filesystem::fat(&esp, 0, 549 * MIB).unwrap();
    assert_eq!(fs.fat_type(), fatfs::FatType::Fat32);
    assert!(fs.root_dir().open_file("EFI/BOOT/BOOTX64.EFI").is_ok());
    assert!(filesystem::fat(&open("md0"), MIB, 2 * MIB).is_err(), "there are two of the same serial number");
    for (entry, label) in [("Boot0000", "ironic1 (RAID, part0)"), ("Boot0001", "ironic1 (RAID, part1)")] {
        let path = lab.tree.path(format!("{}/{entry}-{}", boot::EFIVARS, boot::SUFFIX));
        let bytes = std::fs::read(path).unwrap();
        assert_eq!(load_option::label(&bytes[4..]).as_deref(), Some(label));
    }
}
