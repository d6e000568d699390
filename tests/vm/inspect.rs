//! Inspection of a machine with one of everything, and the lookup that follows on the same boot.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ferric_qemu::conductor::{Endpoint, Fault, ProvisionState};
use ferric_qemu::{Bmc, Disk, DiskBus, DiskFile, Nic, artifacts};
use ferric_tests::{MAC, Plan, unpack};
use serde_json::{Value, json};

const GIB: u64 = 1 << 30;

#[test]
fn inspection_data_describes_the_machine_and_the_agent_stays_for_fast_track() {
    let dir = artifacts::temp_dir("inspect").unwrap();
    let disk = |bus: DiskBus, name: &str, gib: u64| {
        let file = DiskFile::create_raw(dir.path().join(name), gib * GIB).unwrap();
        Disk::new(bus, file.path()).serial(name)
    };
    let disks = [
        disk(DiskBus::VirtioBlk, "VIRTIO-1", 9),
        disk(DiskBus::Nvme, "NVME-1", 8).block_size(4096, 4096),
        disk(DiskBus::Ahci, "AHCI-1", 7).model("FERRIC SATA"),
        disk(DiskBus::VirtioScsi, "SCSI-1", 6).wwn(0x5000_c500_a1b2_c3d4).block_size(512, 4096),
        disk(DiskBus::VirtioScsi, "SCSI-2", 2),
    ];
    let mut plan = Plan::new("inspect");
    plan.state = ProvisionState::InspectWait;
    plan.node = |node| node.fast_track = true;
    plan.cmdline = "ipa-inspection-collectors=default,logs,pci-devices".to_owned();
    let bench = plan
        .boot(|vm| {
            let vm = vm.memory_mib(192).cpus(2).bmc(Bmc::Simulated).smbios(1, "manufacturer", "Ferrous Metals, Inc.");
            let vm = vm.smbios(1, "product", "Anvil 3000").smbios(1, "serial", "SN-0042");
            Ok(disks.into_iter().fold(vm, |vm, disk| vm.disk(disk)))
        })
        .unwrap();
    bench.conductor.script(Endpoint::Inspection, [Fault::Status(409), Fault::Status(500), Fault::Reset]);
    let node = bench
        .conductor
        .wait_for_node(&bench.uuid, bench.limit(40), |node| node.provision_state == ProvisionState::Manageable)
        .with_context(|| bench.excerpts())
        .unwrap();
    let data = node.inspection.context("no inspection data").unwrap();
    machine_is_described(&data.inventory);
    disks_are_described(&data.inventory["disks"]);
    plugins_are_there(&Value::Object(data.plugin_data));
    let posts = bench.conductor.requests_matching(|request| request.path == "/v1/continue_inspection");
    assert_eq!(posts.len(), 4, "three failures and a success");
    assert!(posts.iter().all(|post| post.api_version().is_none() && post.query.is_empty()));
    let beat = bench.heartbeat().unwrap();
    assert!(beat.accepted());
    let lookups = bench.conductor.requests_matching(|request| request.path == "/v1/lookup");
    assert_eq!(lookups[0].query_value("node_uuid"), Some(bench.uuid.as_str()), "the answer named the node");
    assert!(bench.agent().unwrap().commands().unwrap().is_empty());
    assert_eq!(bench.worker_ends(), 0);
}

fn machine_is_described(inventory: &Value) {
    let nics = inventory["interfaces"].as_array().unwrap();
    assert_eq!(nics.len(), 1, "{nics:?}");
    for (key, value) in [
        ("mac_address", json!(MAC)),
        ("ipv4_address", json!("10.0.2.15")),
        ("has_carrier", json!(true)),
        ("vendor", json!("0x1af4")),
        ("driver", json!("virtio_net")),
    ] {
        assert_eq!(nics[0][key], value, "{key} of {}", nics[0]);
    }
    assert!(nics[0]["name"].is_string());
    let boot = json!({"current_boot_mode": "bios", "pxe_interface": MAC, "secure_boot": null});
    assert_eq!(inventory["boot"], boot);
    assert_eq!(inventory["memory"]["physical_mb"], 192, "{}", inventory["memory"]);
    let total = inventory["memory"]["total"].as_u64().unwrap();
    assert!((100 << 20..192 << 20).contains(&total), "{total}");
    assert_eq!((&inventory["cpu"]["architecture"], &inventory["cpu"]["count"]), (&json!("x86_64"), &json!(2)));
    assert!(inventory["cpu"]["flags"].as_array().unwrap().contains(&json!("sse2")));
    let vendor = &inventory["system_vendor"];
    for (key, value) in
        [("manufacturer", "Ferrous Metals, Inc."), ("product_name", "Anvil 3000"), ("serial_number", "SN-0042")]
    {
        assert_eq!(vendor[key], value, "{vendor}");
    }
    // The simulated controller is there, but nobody has given it an address.
    assert_eq!((&inventory["bmc_address"], &inventory["bmc_v6address"]), (&json!("0.0.0.0"), &json!("::/0")));
    assert!(inventory.get("bmc_mac").is_none(), "{}", inventory["bmc_mac"]);
    assert!(inventory["hostname"].is_string());
}

fn disks_are_described(disks: &Value) {
    let disks = disks.as_array().unwrap();
    assert_eq!(disks.len(), 5, "{disks:#?}");
    let by_serial = |serial: &str| {
        disks.iter().find(|disk| disk["serial"] == serial).unwrap_or_else(|| panic!("no {serial} in {disks:#?}"))
    };
    for (serial, name, gib, logical, physical) in [
        ("VIRTIO-1", "/dev/vda", 9, 512, 512),
        ("NVME-1", "/dev/nvme0n1", 8, 4096, 4096),
        ("AHCI-1", "/dev/sd", 7, 512, 512),
        ("SCSI-1", "/dev/sd", 6, 512, 4096),
        ("SCSI-2", "/dev/sd", 2, 512, 512),
    ] {
        let disk = by_serial(serial);
        assert!(disk["name"].as_str().unwrap().starts_with(name), "{disk}");
        assert_eq!(disk["size"], gib * GIB, "{disk}");
        assert_eq!(
            (&disk["logical_sectors"], &disk["physical_sectors"]),
            (&json!(logical), &json!(physical)),
            "{disk}"
        );
        assert!(disk["by_path"].as_str().is_some_and(|path| path.starts_with("/dev/disk/by-path/")), "{disk}");
    }
    assert_eq!(by_serial("AHCI-1")["model"], "FERRIC SATA");
    assert_eq!(by_serial("SCSI-1")["wwn"], "0x5000c500a1b2c3d4");
    assert!(by_serial("SCSI-1")["hctl"].is_string());
}

fn plugins_are_there(data: &Value) {
    assert_eq!(data["error"], Value::Null, "{}", data["error"]);
    assert_eq!(data["boot_interface"], MAC);
    // The smallest of at least 4 GiB.
    assert_eq!(data["root_disk"]["serial"], "SCSI-1", "{}", data["root_disk"]);
    let devices = data["pci_devices"].as_array().unwrap();
    let nic = devices.iter().find(|device| device["vendor_id"] == "1af4" && device["product_id"] == "1000");
    assert!(nic.is_some_and(|nic| nic["class"] == "020000" && nic["bus"].is_string()), "{devices:#?}");
    let logs = unpack(data["logs"].as_str().unwrap()).unwrap();
    assert!(logs.text("journal").contains("collecting") && logs.text("cmdline").contains("ipa-api-url"));
}

/// Chassis and port of a switch, and its time to live.
const NEIGHBOUR: &[u8] = b"\x02\x07\x04\x88\x5a\x92\xec\x54\x59\x04\x05\x05et-1\x06\x02\x00\x78\x00\x00";

fn lldp_frame(payload: &[u8]) -> Vec<u8> {
    [&[0x01, 0x80, 0xc2, 0, 0, 0x0e, 2, 0, 0, 0, 0, 1, 0x88, 0xcc][..], payload].concat()
}

/// A port of UDP that was free a moment ago.
fn free_port() -> u16 {
    UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).unwrap().port()
}

#[test]
fn switches_are_named_by_their_frames_and_a_silent_or_hostile_one_holds_nobody_up() {
    // A switch repeats itself; the frames of the others are damaged or odd.
    let neighbour = [json!([1, "04885a92ec5459"]), json!([2, "0565742d31"]), json!([3, "0078"]), json!([0, ""])];
    let ttl = json!([3, "0078"]);
    let long = [b"\x06\x02\x00\x78\xfb\xff".as_slice(), &[7; 511], &[0xfb, 0xff], &[8; 511], &[0xfb, 0xd4], &[9; 468]]
        .concat();
    assert_eq!(long.len(), 1500);
    let mut tagged = lldp_frame(b"\x06\x02\x00\x78\x00\x00");
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    let frames = [
        ("whole", lldp_frame(NEIGHBOUR), json!(neighbour)),
        ("a TLV longer than what is left", lldp_frame(b"\x06\x02\x00\x78\xff\xff\x01"), json!([ttl])),
        ("no end, an odd byte", lldp_frame(b"\x06\x02\x00\x78\x02"), json!([ttl])),
        ("TLVs of no length", lldp_frame(b"\x08\x00\x0a\x00\x06\x02\x00\x78"), json!([[4, ""], [5, ""], ttl])),
        (
            "1500 bytes",
            lldp_frame(&long),
            json!([ttl, [125, "07".repeat(511)], [125, "08".repeat(511)], [125, "09".repeat(468)]]),
        ),
        ("in a VLAN", tagged, json!([ttl, [0, ""]])),
        // Longer than the card takes; what comes of it, if anything, is zeroes.
        ("jumbo", lldp_frame(&[0; 9000]), json!([])),
    ];
    let ports = frames.each_ref().map(|_| free_port());
    let mut plan = Plan::new("lldp");
    plan.state = ProvisionState::InspectWait;
    plan.node = |node| node.fast_track = true;
    plan.cmdline = "ipa-inspection-collectors=default,lldp ipa-lldp-timeout=6 ipa-disk-wait-attempts=0".to_owned();
    let bench = plan
        .boot(|vm| {
            let vm = ports.into_iter().fold(vm, |vm, port| vm.nic(Nic::frames(port)));
            Ok(vm.nic(Nic::silent()).nic(Nic::unplugged()))
        })
        .unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let begun = Instant::now();
    let node = loop {
        for (port, (_, frame, _)) in ports.iter().zip(&frames) {
            // Until QEMU listens there is nobody to take it.
            let _unheard = sender.send_to(frame, ("127.0.0.1", *port));
        }
        let node = bench.node().unwrap();
        if node.provision_state == ProvisionState::Manageable {
            break node;
        }
        assert!(begun.elapsed() < bench.limit(40), "{}", bench.excerpts());
        std::thread::sleep(Duration::from_millis(200));
    };
    let data = node.inspection.unwrap();
    let raw = data.plugin_data["lldp_raw"].as_object().unwrap();
    assert_eq!(data.plugin_data["error"], Value::Null);
    let names: Vec<String> = data.inventory["interfaces"]
        .as_array()
        .unwrap()
        .iter()
        .map(|nic| nic["name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(names.len(), 1 + frames.len() + 2, "{names:?}");
    // The first card has nobody on its wire who says anything, nor have the last two.
    for name in names[..1].iter().chain(&names[1 + frames.len()..]) {
        assert_eq!(raw[name], json!([]), "{name} of {raw:?}");
    }
    for (name, (what, frame, want)) in names[1..].iter().zip(&frames) {
        let (found, want) = (raw[name].as_array().unwrap(), want.as_array().unwrap());
        assert_eq!(found.get(..want.len()), Some(&want[..]), "{what}: {found:?} of {frame:x?}");
        // The wire pads short frames.
        assert!(found[want.len()..].iter().all(|tlv| *tlv == json!([0, ""])), "{what}: {found:?}");
    }
    // One wait for all, not one for each.
    let took =
        bench.uptime_of("posting inspection data").unwrap() - bench.uptime_of("collecting collector=lldp").unwrap();
    assert!((Duration::from_secs(5)..Duration::from_secs(14)).contains(&took), "{took:?}");
}
