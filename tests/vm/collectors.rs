//! Inspection by all collectors, of a machine with two NUMA nodes and firmware that has much to tell.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use ferric_qemu::conductor::ProvisionState;
use ferric_qemu::{Disk, DiskBus, DiskFile, Firmware, artifacts};
use ferric_tests::{MAC, Plan};
use serde_json::{Value, json};

const GIB: u64 = 1 << 30;
const FAR_MAC: &str = "52:54:00:77:00:01";

/// A structure of SMBIOS as QEMU takes it from a file. Its handle is 0x4200 and its type.
fn smbios_file(path: &Path, kind: u8, fields: &[u8]) -> String {
    let length = u8::try_from(fields.len() + 4).unwrap();
    let bytes = [&[kind, length, kind, 0x42][..], fields, &[0, 0]].concat();
    std::fs::write(path, bytes).unwrap();
    format!("file={}", path.display())
}

/// Fields of a network interface (type 42) to a Redfish service at 169.254.0.1, by USB.
fn host_interface() -> Vec<u8> {
    let device = b"\x02\x6b\x04\xb0\xff";
    let address = |bytes: [u8; 4]| [&bytes[..], &[0; 12]].concat();
    let record = [
        &(0..16).collect::<Vec<u8>>()[..],
        &[1, 1],
        &address([169, 254, 0, 2]),
        &address([255, 255, 0, 0]),
        &[1, 1],
        &address([169, 254, 0, 1]),
        &address([255, 255, 0, 0]),
        &443_u16.to_le_bytes(),
        &[0; 4],
        &[4],
        b"bmc\0",
    ]
    .concat();
    let lengths = [device.len(), record.len()].map(|length| u8::try_from(length).unwrap());
    [&[0x40, lengths[0]][..], device, &[1, 4, lengths[1]], &record].concat()
}

#[test]
fn all_collectors_describe_a_machine_of_two_nodes_and_the_benchmarks_only_read() {
    let dir = artifacts::temp_dir("collectors").unwrap();
    let file = DiskFile::create_raw(dir.path().join("disk"), 5 * GIB).unwrap();
    file.fill(3, 0, 16 << 20).unwrap();
    let disk = Disk::new(DiskBus::VirtioScsi, file.path()).serial("SCSI-1").wwn(0x5000_c500_a1b2_c3d4);
    let redfish = smbios_file(&dir.path().join("type42"), 42, &host_interface());
    let mut tpm = vec![0; 0x1b];
    tpm[..6].copy_from_slice(b"STM \x02\x00");
    let tpm = smbios_file(&dir.path().join("type43"), 43, &tpm);
    let mut plan = Plan::new("collectors");
    plan.state = ProvisionState::InspectWait;
    plan.node = |node| node.fast_track = true;
    plan.cmdline =
        "ipa-inspection-collectors=default,logs,pci-devices,numa-topology,dmi-decode,usb-devices,extra-hardware,\
                    lldp ipa-lldp-timeout=1 ipa-inspection-benchmarks=cpu,mem,disk"
            .to_owned();
    let bench = plan
        .boot(|vm| {
            let vm = vm.memory_mib(256).cpus(2).disk(disk);
            let vm = vm.smbios(0, "vendor", "Ferrous Firmware").smbios(0, "version", "1.42").smbios(0, "uefi", "on");
            let vm = vm.smbios(4, "sock_pfx", "SOCKET").smbios(4, "version", "Anvil CPU");
            let vm = vm.smbios(17, "part", "HAMMER-16").smbios(17, "speed", "3200").smbios(17, "loc_pfx", "SLOT");
            Ok(vm
                .arg(&["-smp", "sockets=2"])
                .arg(&["-smbios", &redfish, "-smbios", &tpm])
                .arg(&["-object", "memory-backend-ram,id=near,size=128M"])
                .arg(&["-object", "memory-backend-ram,id=far,size=128M"])
                .arg(&["-numa", "node,nodeid=0,cpus=0,memdev=near", "-numa", "node,nodeid=1,cpus=1,memdev=far"])
                .arg(&["-device", "pxb-pcie,id=farbus,bus_nr=64,numa_node=1,bus=pcie.0"])
                .arg(&["-device", "pcie-root-port,id=farport,bus=farbus,chassis=77,slot=77"])
                .arg(&["-netdev", "user,id=farnet"])
                .arg(&["-device", &format!("e1000e,netdev=farnet,bus=farport,mac={FAR_MAC}")])
                .arg(&["-device", "qemu-xhci,id=usb,bus=pcie.0", "-device", "usb-kbd,bus=usb.0"]))
        })
        .unwrap();
    let node = bench
        .conductor
        .wait_for_node(&bench.uuid, bench.limit(90), |node| node.provision_state == ProvisionState::Manageable)
        .with_context(|| bench.excerpts())
        .unwrap();
    let data = node.inspection.context("no inspection data").unwrap();
    let plugins = Value::Object(data.plugin_data);
    assert_eq!(plugins["error"], Value::Null);
    nodes_are_described(&data.inventory, &plugins);
    tables_are_decoded(&plugins["dmi"]);
    items_are_listed(&plugins["data"]);
    assert_eq!(plugins["usb_devices"][0]["product"], "QEMU USB Keyboard", "{}", plugins["usb_devices"]);
    assert_eq!(bench.worker_ends(), 0);
    file.check_fill(3, 0, 16 << 20).unwrap();
    firmware_is_described(&data.inventory);
}

fn firmware_is_described(inventory: &Value) {
    let boot = json!({"current_boot_mode": "bios", "pxe_interface": MAC, "secure_boot": null});
    assert_eq!(inventory["boot"], boot);
    assert_eq!(inventory["tpm"], json!({"version": "2.0"}));
    assert_eq!(
        inventory["host_interfaces"],
        json!([{
            "device_type": "usb", "vendor": "0x046b", "product": "0xffb0", "mac_address": null,
            "service_uuid": "03020100-0504-0706-0809-0a0b0c0d0e0f",
            "host_ip_assignment": "static", "host_address": "169.254.0.2", "host_mask": "255.255.0.0",
            "service_ip_discovery": "static", "service_address": "169.254.0.1", "service_mask": "255.255.0.0",
            "service_port": 443, "service_vlan": 0, "service_hostname": "bmc",
        }])
    );
    assert_eq!(inventory["system_vendor"]["firmware"]["vendor"], "Ferrous Firmware");
    assert_eq!(inventory["memory"]["physical_mb"], 256);
    assert_eq!((&inventory["cpu"]["count"], &inventory["cpu"]["socket_count"]), (&json!(2), &json!(2)));
}

fn nodes_are_described(inventory: &Value, plugins: &Value) {
    let nics = inventory["interfaces"].as_array().unwrap();
    let name = |mac: &str| nics.iter().find(|nic| nic["mac_address"] == mac).unwrap()["name"].as_str().unwrap();
    let topology = &plugins["numa_topology"];
    let nodes = |part: &str| {
        let parts = topology[part].as_array().unwrap().iter();
        parts.map(|part| part["numa_node"].as_i64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!((nodes("ram"), nodes("cpus")), (vec![0, 1], vec![0, 1]), "{topology}");
    assert_eq!(topology["cpus"][1]["thread_siblings"], json!([1]), "{topology}");
    let nic = |mac: &str| topology["nics"].as_array().unwrap().iter().find(|nic| nic["name"] == name(mac)).cloned();
    assert_eq!(nic(FAR_MAC).unwrap()["numa_node"], 1, "{topology}");
    // A virtio card does not say where it is plugged in.
    assert_eq!(nic(MAC), None, "{topology}");
    let devices = plugins["pci_devices"].as_array().unwrap();
    assert!(devices.iter().any(|device| device["numa_node_id"] == "1" && device["vendor_id"] == "8086"), "{devices:?}");
}

fn tables_are_decoded(dmi: &Value) {
    for (label, want) in [("Vendor", "Ferrous Firmware"), ("Version", "1.42")] {
        assert_eq!(dmi["bios"][label], want, "{}", dmi["bios"]);
    }
    let traits = dmi["bios"]["Characteristics"].as_array().unwrap();
    assert!(traits.contains(&json!("UEFI is supported")), "{traits:?}");
    let processors = dmi["cpu"].as_array().unwrap();
    assert_eq!(processors.len(), 2, "{processors:?}");
    for (label, want) in
        [("Socket Designation", "SOCKET 0"), ("Version", "Anvil CPU"), ("Status", "Populated, Enabled")]
    {
        assert_eq!(processors[0][label], want, "{}", processors[0]);
    }
    let memory = &dmi["memory"];
    assert_eq!((&memory["Number Of Devices"], memory.get("Handle")), (&json!(1), None), "{memory}");
    assert_eq!(memory["Error Correction Type"], "Multi-bit ECC", "{memory}");
    for (label, want) in [
        ("Size", "256 MB"),
        ("Locator", "SLOT 0"),
        ("Part Number", "HAMMER-16"),
        ("Speed", "3200 MT/s"),
        ("Form Factor", "DIMM"),
    ] {
        assert_eq!(memory["devices"][0][label], want, "{memory}");
    }
}

fn items_are_listed(data: &Value) {
    let items: BTreeMap<String, &Value> = data
        .as_array()
        .unwrap()
        .iter()
        .map(|item| {
            let text = |at: usize| item[at].as_str().unwrap();
            (format!("{}.{}.{}", text(0), text(1), text(2)), &item[3])
        })
        .collect();
    let item = |path: &str| *items.get(path).unwrap_or_else(|| panic!("no {path} in {items:#?}"));
    for (path, want) in [
        ("cpu.physical.number", json!(2)),
        ("cpu.logical.number", json!(2)),
        ("numa.nodes.count", json!(2)),
        ("memory.total.size", json!("268435456")),
        ("memory.bank:0.product", json!("HAMMER-16")),
        ("firmware.bios.version", json!("1.42")),
        ("disk.logical.count", json!("1")),
        ("disk.sda.size", json!("5")),
        ("disk.sda.vendor", json!("QEMU")),
    ] {
        assert_eq!(*item(path), want, "{path}");
    }
    assert!(item("system.kernel.cmdline").as_str().unwrap().contains("ipa-api-url="));
    for path in [
        "cpu.logical_0.loops_per_sec",
        "cpu.logical_1.loops_per_sec",
        "cpu.logical.loops_per_sec",
        "cpu.logical_0.bandwidth_1M",
        "cpu.logical.threaded_bandwidth_1M",
        "disk.sda.standalone_read_1M_KBps",
        "disk.sda.standalone_randread_4k_IOps",
    ] {
        let value: u64 = item(path).as_str().unwrap().parse().unwrap();
        assert!(value > 0, "{path}");
    }
}

#[test]
fn uefi_firmware_says_that_secure_boot_is_off() {
    let mut plan = Plan::new("secure-boot");
    plan.state = ProvisionState::InspectWait;
    plan.node = |node| node.fast_track = true;
    plan.cmdline = "ipa-inspection-collectors=default,dmi-decode ipa-disk-wait-attempts=0".to_owned();
    let bench = plan.boot(|vm| Ok(vm.firmware(Firmware::uefi()).memory_mib(192))).unwrap();
    let node = bench
        .conductor
        .wait_for_node(&bench.uuid, bench.limit(60), |node| node.provision_state == ProvisionState::Manageable)
        .with_context(|| bench.excerpts())
        .unwrap();
    let data = node.inspection.context("no inspection data").unwrap();
    let boot = json!({"current_boot_mode": "uefi", "pxe_interface": MAC, "secure_boot": false});
    assert_eq!(data.inventory["boot"], boot);
    assert_eq!((&data.inventory["tpm"], &data.inventory["host_interfaces"]), (&Value::Null, &json!([])));
    assert_eq!(data.inventory["memory"]["physical_mb"], 192);
    assert_eq!(data.plugin_data["dmi"]["memory"]["devices"][0]["Size"], "192 MB");
}

#[test]
fn installed_memory_is_what_the_firmware_says_in_extended_sizes_too() {
    let dir = artifacts::temp_dir("modules").unwrap();
    // In the array with this handle; both fields for the size.
    let module = |name: &str, array: u16, size: u16, extended: u32| {
        let mut fields = vec![0; 0x22 - 4];
        for (at, bytes) in [(4, &array.to_le_bytes()[..]), (0x0c, &size.to_le_bytes()), (0x1c, &extended.to_le_bytes())]
        {
            fields[at - 4..at - 4 + bytes.len()].copy_from_slice(bytes);
        }
        smbios_file(&dir.path().join(name), 17, &fields)
    };
    let mut array = vec![0; 0x17 - 4];
    array[..2].copy_from_slice(&[3, 3]);
    let structures = [
        smbios_file(&dir.path().join("array"), 16, &array),
        module("large", 0x4210, 0x7fff, 131_072),
        module("small", 0x4210, 0x8000 | 1024, 0),
        module("plain", 0x4210, 2048, 0),
        module("empty", 0x4210, 0, 0),
        module("unknown", 0x4210, 0xffff, 0),
        module("elsewhere", 0x4299, 512, 0),
    ];
    let mut plan = Plan::new("modules");
    plan.state = ProvisionState::InspectWait;
    plan.node = |node| node.fast_track = true;
    plan.cmdline = "ipa-inspection-collectors=default,dmi-decode ipa-disk-wait-attempts=0".to_owned();
    let bench =
        plan.boot(|vm| Ok(structures.iter().fold(vm, |vm, structure| vm.arg(&["-smbios", structure])))).unwrap();
    let node = bench
        .conductor
        .wait_for_node(&bench.uuid, bench.limit(40), |node| node.provision_state == ProvisionState::Manageable)
        .with_context(|| bench.excerpts())
        .unwrap();
    let data = node.inspection.context("no inspection data").unwrap();
    assert_eq!(data.inventory["memory"]["physical_mb"], 131_072 + 1 + 2048 + 512);
    let devices = data.plugin_data["dmi"]["memory"]["devices"].as_array().unwrap();
    let sizes: Vec<&str> = devices.iter().map(|device| device["Size"].as_str().unwrap()).collect();
    assert_eq!(sizes, ["128 GB", "1 MB", "2 GB", "No Module Installed", "Unknown", "512 MB"]);
}
