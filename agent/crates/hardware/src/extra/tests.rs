use std::collections::BTreeMap;

use super::*;
use crate::probe::smbios::tests::{body, structure, table};
use crate::{MANAGERS, Registry, Settings, replay};
use ferric_sys::testing::exec::ScriptedExec;
use ferric_sys::testing::machine::MachineTree;
use serde_json::json;
use std::path::Path;
use std::sync::Arc;

/// The list as Ironic's hook turns it into an object: numbers in texts become numbers, of equal keys the last counts.
fn object(items: Items) -> BTreeMap<String, Value> {
    let Value::Array(items) = items.into_value() else { panic!("no list") };
    let path = |item: &Value| {
        let item = item.as_array().unwrap();
        assert_eq!(item.len(), 4, "{item:?}");
        let part = |at: usize| item[at].as_str().unwrap().to_owned();
        let value = item[3].as_str().and_then(|text| text.parse::<i64>().ok()).map_or(item[3].clone(), Value::from);
        (format!("{}.{}.{}", part(0), part(1), part(2)), value)
    };
    items.iter().map(path).collect()
}

fn look(machine: &Machine) -> BTreeMap<String, Value> {
    let registry = Registry::new(MANAGERS, machine).unwrap();
    let settings = Settings::default();
    let inventory = registry.inventory(machine, &settings);
    object(items(machine, &inventory, &registry.disks(machine, &settings).unwrap()))
}

fn assert_has(found: &BTreeMap<String, Value>, wanted: &[(&str, Value)]) {
    for (path, value) in wanted {
        assert_eq!(found.get(*path), Some(value), "{path} of {found:#?}");
    }
}

/// Its files but those that are made below.
const SERVER: &[(&str, &str)] = &[
    (
        "proc/cpuinfo",
        "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\nmodel name\t: Xeon\nstepping\t: 4\ncpu MHz\t: 2100.500\nflags\t: fpu vme",
    ),
    ("proc/sys/kernel/osrelease", "6.1.0-57-amd64"),
    ("proc/sys/kernel/arch", "x86_64"),
    ("sys/devices/system/cpu/present", "0-7"),
    ("sys/devices/system/cpu/online", "0-7"),
    ("sys/devices/system/cpu/smt/control", "on"),
    ("sys/devices/system/cpu/cpufreq/boost", "1"),
    ("sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_min_freq", "800000"),
    ("sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "3700000"),
    ("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave"),
    ("sys/devices/system/cpu/cpu0/cache/index0/level", "1"),
    ("sys/devices/system/cpu/cpu0/cache/index0/type", "Data"),
    ("sys/devices/system/cpu/cpu0/cache/index0/size", "32K"),
    ("sys/devices/system/cpu/cpu0/cache/index3/level", "3"),
    ("sys/devices/system/cpu/cpu0/cache/index3/type", "Unified"),
    ("sys/devices/system/cpu/cpu0/cache/index3/size", "22528K"),
    ("sys/devices/system/node/node0/cpulist", "0-3"),
    ("sys/devices/system/node/node0/cpumap", "00000000,0000000f"),
    ("sys/devices/system/node/node1/cpulist", ""),
    ("sys/devices/system/node/node1/cpumap", "00000000,00000000"),
    ("sys/class/dmi/id/product_name", "PowerEdge R640"),
    ("sys/class/dmi/id/product_serial", "0123456789"),
    ("sys/class/dmi/id/sys_vendor", "Dell Inc."),
    ("sys/class/dmi/id/bios_vendor", "Dell Inc."),
    ("sys/class/dmi/id/bios_version", "2.10.2"),
    ("sys/class/dmi/id/bios_date", "02/24/2021"),
    ("sys/class/net/eth0/device/vendor", "0x8086"),
    ("sys/class/net/eth0/device/device", "0x1572"),
    ("sys/class/net/eth0/address", "24:6E:96:00:00:01"),
    ("sys/class/net/eth0/carrier", "1"),
    ("sys/class/net/eth0/speed", "10000"),
    ("sys/class/net/eth0/duplex", "full"),
];

/// Two sockets with two cores of two threads, one NIC, a SAS disk, and memory in two arrays of which one is a flash chip.
fn server() -> MachineTree {
    let tree = MachineTree::new().unwrap();
    for (path, text) in SERVER {
        tree.file(path, text).unwrap();
    }
    for cpu in 0..8 {
        let path = format!("sys/devices/system/cpu/cpu{cpu}/topology");
        tree.file(&format!("{path}/physical_package_id"), &(cpu / 4).to_string()).unwrap();
        tree.file(&format!("{path}/core_id"), &(cpu % 2).to_string()).unwrap();
    }
    let attributes: &[(&str, &str)] = &[
        ("size", "4096000"),
        ("device/vendor", "SEAGATE "),
        ("device/model", "ST2000"),
        ("device/rev", "N004"),
        ("queue/optimal_io_size", "0"),
        ("queue/rotational", "1"),
        ("queue/scheduler", "none [mq-deadline] kyber"),
        ("device/scsi_device/0:0:0:0/uevent", ""),
        ("device/scsi_disk/0:0:0:0/cache_type", "write through"),
    ];
    tree.disk("sda", "pci0000:00/0000:00:05.0/host0/target0:0:0/0:0:0:0", "8:0", attributes).unwrap();
    let uuid: &[u8] = &[0x44, 0x45, 0x4c, 0x4c, 0x33, 0, 0x10, 0x51, 0x80, 0x44, 0xb4, 0xc0, 0x4f, 0x4a, 0x35, 0x32];
    // The handle of a structure made here is 0x1100 and its type.
    let array = |using: u8, handle: u8| {
        let mut bytes = structure(kind::MEMORY_ARRAY, &body(0x17, &[(4, &[3, using, 6])]), &[]);
        bytes[2] = handle;
        bytes
    };
    let module = |array: u8, size: u16, detail: &[u8]| {
        let size = size.to_le_bytes();
        let fields: &[(usize, &[u8])] =
            &[(4, &[array, 0x11]), (0x0c, &size), (0x0e, &[9, 0, 1, 0, 26]), (0x13, detail)];
        structure(kind::MEMORY_DEVICE, &body(0x22, fields), &["A1", "Samsung", "  ", "M393A4K40BB2-CTD"])
    };
    let system = structure(kind::SYSTEM, &body(0x1b, &[(6, &[1]), (8, uuid)]), &["1.0"]);
    let board = structure(kind::BOARD, &body(0x0f, &[(4, &[1, 2, 3, 4])]), &["Dell", "0H28RR", "A02", "CN7016"]);
    let full: &[u8] = &[0x80, 0x20, 0x6a, 0x0a, 2, 3, 0, 4];
    let structures = [
        system,
        board,
        array(5, 1),
        module(1, 16, &[0, 0]),
        array(3, 2),
        module(2, 16384, full),
        module(2, 0, &[0x80, 0]),
    ];
    tree.bytes("sys/firmware/dmi/tables/DMI", &table(&structures)).unwrap();
    tree
}

#[test]
fn a_server_is_listed_as_hardware_detect_lists_it() {
    let tree = server();
    let found = look(&Machine::at(tree.root(), Arc::new(ScriptedExec::new())));
    assert_has(
        &found,
        &[
            ("cpu.physical.number", json!(2)),
            ("cpu.physical.smt", json!("on")),
            ("cpu.physical_0.boost", json!("enabled")),
            ("cpu.physical_0.vendor", json!("GenuineIntel")),
            ("cpu.physical_0.product", json!("Xeon")),
            ("cpu.physical_0.family", json!(6)),
            ("cpu.physical_0.model", json!(85)),
            ("cpu.physical_1.stepping", json!(4)),
            ("cpu.physical_1.cores", json!(2)),
            ("cpu.physical_1.threads", json!(4)),
            ("cpu.physical_1.threads_per_core", json!(2)),
            ("cpu.physical_1.architecture", json!("x86_64")),
            ("cpu.physical_1.l1d cache", json!("32K")),
            ("cpu.physical_1.l3 cache", json!("22528K")),
            ("cpu.physical_1.min_Mhz", json!(800.0)),
            ("cpu.physical_1.max_Mhz", json!(3700.0)),
            ("cpu.physical_1.current_Mhz", json!(2100.5)),
            ("cpu.physical_1.flags", json!("fpu vme")),
            ("cpu.logical.number", json!(8)),
            ("cpu.logical_1.governor", json!("powersave")),
            ("numa.nodes.count", json!(2)),
            ("numa.node_0.cpu_count", json!(4)),
            ("numa.node_0.cpu_mask", json!("0xf")),
            ("numa.node_1.cpu_count", json!(0)),
            ("numa.node_1.cpu_mask", json!("0x0")),
            ("system.product.name", json!("PowerEdge R640")),
            ("system.product.vendor", json!("Dell Inc.")),
            ("system.product.version", json!("1.0")),
            ("system.product.uuid", json!("4c4c4544-0033-5110-8044-b4c04f4a3532")),
            // Instead of a serial number that is none.
            ("system.product.serial", json!("4c4c4544-0033-5110-8044-b4c04f4a3532")),
            ("system.motherboard.name", json!("0H28RR")),
            ("system.motherboard.serial", json!("CN7016")),
            ("system.kernel.version", json!("6.1.0-57-amd64")),
            ("system.kernel.arch", json!("x86_64")),
            ("firmware.bios.version", json!("2.10.2")),
            ("firmware.bios.date", json!("02/24/2021")),
            ("memory.total.size", json!(16_u64 << 30)),
            ("memory.banks.count", json!(2)),
            ("memory.bank:0.size", json!(16_u64 << 30)),
            ("memory.bank:0.clock", json!(2_666_000_000_u64)),
            ("memory.bank:0.description", json!("DIMM DDR4 Synchronous Registered (Buffered) 2666 MHz (0.4 ns)")),
            ("memory.bank:0.vendor", json!("Samsung")),
            ("memory.bank:0.product", json!("M393A4K40BB2-CTD")),
            ("memory.bank:0.slot", json!("A1")),
            ("memory.bank:1.description", json!("DIMM DDR4 Synchronous [empty]")),
            ("disk.logical.count", json!(1)),
            ("disk.sda.size", json!(2)),
            ("disk.sda.vendor", json!("SEAGATE")),
            ("disk.sda.model", json!("ST2000")),
            ("disk.sda.rev", json!("N004")),
            ("disk.sda.optimal_io_size", json!(0)),
            ("disk.sda.rotational", json!(1)),
            ("disk.sda.scheduler", json!("mq-deadline")),
            ("disk.sda.Write Cache Enable", json!(0)),
            ("disk.sda.Read Cache Disable", json!(0)),
            ("network.eth0.vendor", json!("0x8086")),
            ("network.eth0.product", json!("0x1572")),
            ("network.eth0.size", json!(10_000_000_000_u64)),
            ("network.eth0.speed", json!("10Gbit/s")),
            ("network.eth0.duplex", json!("full")),
            ("network.eth0.link", json!("yes")),
            ("network.eth0.serial", json!("24:6e:96:00:00:01")),
        ],
    );
    for absent in ["memory.bank:1.size", "memory.bank:0.serial", "memory.bank:2.size", "memory.bank:0:0.size"] {
        assert_eq!(found.get(absent), None, "{absent}");
    }
}

#[test]
fn whole_machines_have_items_of_every_class() {
    for (name, sockets, threads, memory) in
        [("dell-r740-perc", 2, None, true), ("ampere-altra", 2, Some(1), true), ("qemu-q35-virtio", 2, None, false)]
    {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures/machines").join(name);
        let found = look(&replay::machine(&folder).unwrap());
        let paths = |start: &str| found.keys().filter(|path| path.starts_with(start)).count();
        assert_eq!(found["cpu.physical.number"], sockets, "{name}");
        if let Some(threads) = threads {
            assert_eq!(found["cpu.physical_0.threads_per_core"], threads, "{name}");
        }
        for class in ["cpu.", "disk.", "network.", "system.product.", "firmware.bios.", "memory.total."] {
            assert!(paths(class) > 0, "{name} has no {class}: {found:#?}");
        }
        assert_eq!(paths("memory.bank") > 0, memory, "{name}: {found:#?}");
    }
}

#[test]
fn a_machine_that_says_nothing_has_few_items_and_none_is_empty() {
    let tree = MachineTree::new().unwrap();
    let found = look(&Machine::at(tree.root(), Arc::new(ScriptedExec::new())));
    assert_eq!(found["disk.logical.count"], 0);
    assert!(found.values().all(|value| value != ""), "{found:#?}");
}
