//! The network goes away and comes back, and comes late; another one is hostile.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::Context as _;
use ferric_qemu::conductor::Wait;
use ferric_qemu::{Nic, VmBuilder};
use ferric_tests::{HOST, MAC, Plan};
use serde_json::{Value, json};

#[test]
fn heartbeats_go_on_after_the_cable_was_out() {
    let mut plan = Plan::new("cable");
    // A beat every 3 to 6 s.
    plan.settings.heartbeat_timeout_secs = 10;
    plan.cmdline = "ipa-http-request-timeout=3".to_owned();
    let bench = plan.boot(Ok).unwrap();
    let first = bench.heartbeat().unwrap();
    bench.heartbeat_after(first.sequence, 5).unwrap();
    for number in 1..=2 {
        bench.vm().set_link(0, false).unwrap();
        bench.says("link is down", 5).unwrap();
        bench.says("failure 1 in a row", 10).unwrap();
        let before = bench.conductor.last_heartbeat_sequence();
        bench.vm().set_link(0, true).unwrap();
        bench.says("link is up", 5).unwrap();
        // The one that failed may have been under way and arrive now.
        bench.says("the conductor accepts heartbeats again", 5).unwrap();
        let beat = bench.heartbeat_after(before, 5).unwrap();
        assert_eq!(beat.body, first.body, "round {number}: the announcement changed");
        bench.agent().unwrap().commands().unwrap();
        bench.vm().console().mark();
    }
    assert_eq!(bench.worker_ends(), 0);
}

#[test]
fn dhcp_server_that_is_silent_for_long_is_still_heard() {
    let bench = Plan::new("late-dhcp")
        .boot(|mut vm| {
            vm.machine_mut().nics = vec![Nic::silent().mac(MAC)];
            // Something that swallows packets on the same switch: QEMU holds them back while there is nobody else.
            let sink = "socket,id=sink,udp=127.0.0.1:9,localaddr=127.0.0.1:0";
            Ok(vm.arg(&["-netdev", sink, "-netdev", "hubport,id=sinkport,hubid=1,netdev=sink"]))
        })
        .unwrap();
    let line = bench.says("waiting for a network address for 10 s", 20).unwrap();
    assert!(line.contains(MAC) && line.contains("asks for an address"), "{line}");
    // The switch that the card is plugged into gets a network.
    let monitor = |line: &str| {
        let said = bench.vm().qmp().monitor(line).unwrap();
        assert!(said.trim().is_empty(), "{line}: {said}");
    };
    monitor("netdev_add user,id=late");
    monitor("netdev_add hubport,id=latehub,hubid=1,netdev=late");
    // The pause between two DISCOVERs is at most about a minute.
    let beat = bench.conductor.wait_for_heartbeat(bench.limit(15).max(Duration::from_secs(90)));
    beat.with_context(|| bench.excerpts()).unwrap();
    assert_eq!(bench.worker_ends(), 0);
}

#[test]
fn dhcp_servers_of_other_networks_cannot_take_the_conductor_away() {
    let host: Ipv4Addr = HOST.parse().unwrap();
    // A route to the conductor alone, and the conductor's address itself.
    let detour = [&[121, 9, 32], &host.octets()[..], &SERVER.octets()[..]].concat();
    let route = Rogue::start(Ipv4Addr::new(192, 0, 2, 77), &detour, None);
    let address = Rogue::start(host, &[], None);
    let mut plan = Plan::new("rogue-dhcp");
    plan.settings.heartbeat_timeout_secs = 10;
    plan.cmdline = "ipa-http-request-timeout=3".to_owned();
    let bench = plan.boot(|vm| Ok(address.plug(route.plug(vm, 1), 2))).unwrap();
    let first = bench.heartbeat().unwrap();
    bench.says("the route to 10.0.2.2/32 of DHCP server 192.0.2.1 is left out: it would take", 15).unwrap();
    bench.says("192.0.2.77/24 from 192.0.2.1", 5).unwrap();
    bench
        .says("address 10.0.2.2 of DHCP server 192.0.2.1 is declined: it is the address of the conductor", 15)
        .unwrap();
    let kinds: Vec<u8> = address.kinds.try_iter().collect();
    assert_eq!(kinds.get(..3), Some(&[DISCOVER, REQUEST, DECLINE][..]), "{kinds:?}");
    let beat = bench.heartbeat_after(first.sequence, 10).unwrap();
    let last = bench.heartbeat_after(beat.sequence, 10).unwrap();
    assert_eq!(last.body, first.body);
    bench.agent().unwrap().commands().unwrap();
    assert_eq!(bench.worker_ends(), 0);
}

#[test]
fn vlans_are_interfaces_with_their_own_address_by_number_and_as_the_switch_names_them() {
    let port = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).unwrap().port();
    let tagged = Rogue::start(Ipv4Addr::new(192, 0, 2, 77), &[], Some(100));
    let mut plan = Plan::new("vlan");
    // The first by the address of its card, the second as the switch says. One says nothing.
    plan.cmdline = "ipa-enable-vlan-interfaces=52:54:00:FE:01:01.100,52:54:00:fe:02:02,eth9.7,eth0.4095 \
                    ipa-collect-lldp=1 ipa-lldp-timeout=2"
        .to_owned();
    let bench = plan
        .boot(|vm| {
            let vm = tagged.plug(vm, 1).nic(Nic::frames(port).mac("52:54:00:fe:02:02"));
            // No card of this kind can be driven by the image.
            let vm = vm.arg(&["-device", "rtl8139,romfile=,mac=52:54:00:fe:03:03"]);
            // The firmware gives this one a number.
            let vm =
                vm.arg(&["-netdev", "hubport,id=inslot,hubid=90", "-device", "pcie-root-port,id=rp9,chassis=9,slot=9"]);
            let card = "virtio-net-pci,bus=rp9,netdev=inslot,mac=52:54:00:fe:09:09,romfile=,acpi-index=7";
            Ok(vm.arg(&["-device", card]))
        })
        .unwrap();
    bench.says("eth0.4095 is left out: the number of a VLAN is 1 to 4094", 10).unwrap();
    bench.says(".100: address 192.0.2.77/24 from 192.0.2.1", 20).unwrap();
    let line = bench.says("no driver in this image for the network controller", 10).unwrap();
    assert!(line.contains("PCI id 10ec:8139, pci:v000010ECd00008139"), "{line}");
    let kinds: Vec<u8> = tagged.kinds.try_iter().collect();
    assert_eq!(kinds.get(..2), Some(&[DISCOVER, REQUEST][..]), "{kinds:?}");

    // The switch names VLAN 200, over and over.
    let switch = UdpSocket::bind("127.0.0.1:0").unwrap();
    let frame = b"\x01\x80\xc2\0\0\x0e\x02\0\0\0\0\x01\x88\xcc\xfe\x08\x00\x80\xc2\x03\x00\xc8\x01a\x00\x00";
    drop(std::thread::spawn(move || {
        while switch.send_to(frame, ("127.0.0.1", port)).is_ok() {
            std::thread::sleep(Duration::from_millis(300));
        }
    }));
    let agent = bench.agent().unwrap();
    let record = agent.command("poll.get_hardware_info", &json!({}), Wait::ForResult).unwrap();
    let interfaces = record.command_result["interfaces"].as_array().unwrap();
    let at = |mac: &str, is_vlan: bool| {
        let is_this =
            |nic: &&Value| nic["mac_address"] == mac && nic["name"].as_str().unwrap().contains('.') == is_vlan;
        interfaces.iter().find(is_this).unwrap_or_else(|| panic!("no {mac} {is_vlan} in {interfaces:#?}"))
    };
    assert_eq!(interfaces.len(), 6, "{interfaces:#?}");
    let names = &at("52:54:00:fe:09:09", false)["predictable_names"];
    assert_eq!((&names["onboard"], &names["path"]), (&json!("eno7"), &json!("enp1s0")), "{names}");
    for (mac, id, address) in
        [("52:54:00:fe:01:01", "100", json!("192.0.2.77")), ("52:54:00:fe:02:02", "200", Value::Null)]
    {
        let (card, vlan) = (at(mac, false), at(mac, true));
        assert_eq!(vlan["name"], format!("{}.{id}", card["name"].as_str().unwrap()));
        assert_eq!((&card["ipv4_address"], &vlan["ipv4_address"]), (&Value::Null, &address), "{id}");
        assert_eq!(vlan["has_carrier"], true, "{id}");
        for key in ["vendor", "product", "pci_address", "driver", "biosdevname"] {
            assert_eq!(vlan[key], Value::Null, "{key} of {vlan}");
        }
    }
    let heard = at("52:54:00:fe:02:02", false)["lldp"].as_array().unwrap();
    assert_eq!(heard.first(), Some(&json!([127, "0080c20300c80161"])), "{heard:?}");
    let user = at(MAC, false);
    assert_eq!((&user["ipv4_address"], &user["lldp"]), (&json!("10.0.2.15"), &json!([])));
    assert_eq!(bench.worker_ends(), 0);
}

/// The rogue servers' own address.
const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const DECLINE: u8 = 4;
const ACK: u8 = 5;

/// A DHCP server (RFC 2131) on a network of its own, which lends one address to everybody; frames are UDP datagrams.
struct Rogue {
    /// Types of the messages it got.
    kinds: mpsc::Receiver<u8>,
    here: SocketAddr,
    card: SocketAddr,
}

impl Rogue {
    /// Starts it; `options` are sent beside the necessary ones. In a VLAN it is deaf to everything outside of it.
    fn start(address: Ipv4Addr, options: &[u8], vlan: Option<u8>) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let card = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).unwrap();
        let here = socket.local_addr().unwrap();
        let (kind, kinds) = mpsc::channel();
        let options = options.to_vec();
        let tag = vlan.map(|id| [0x81, 0, 0, id]);
        drop(std::thread::spawn(move || {
            let mut frame = [0; 2000];
            while let Ok(length) = socket.recv(&mut frame) {
                let Some(frame) = untagged(&frame[..length], tag) else { continue };
                let Some(question) = question(&frame) else { continue };
                // The option that every message begins with here.
                let asked = question[242];
                if kind.send(asked).is_err() {
                    return;
                }
                let answered = match asked {
                    DISCOVER => OFFER,
                    REQUEST => ACK,
                    _ => continue,
                };
                let answer = answer(question, answered, address, &options);
                let mut answer = framed(&frame[6..12], &answer);
                answer.splice(12..12, tag.into_iter().flatten());
                socket.send_to(&answer, card).unwrap();
            }
        }));
        Self { kinds, here, card }
    }

    /// Adds a card on its network to a machine.
    fn plug(&self, vm: VmBuilder, number: u8) -> VmBuilder {
        let end =
            |name: &str, at: SocketAddr| format!("{name}.type=inet,{name}.host=127.0.0.1,{name}.port={}", at.port());
        let netdev = format!("dgram,id=rogue{number},{},{}", end("local", self.card), end("remote", self.here));
        let device = format!("virtio-net-pci,netdev=rogue{number},mac=52:54:00:fe:01:0{number},romfile=");
        vm.arg(&["-netdev", &netdev, "-device", &device])
    }
}

/// A frame without the tag that it must have, the priority in it aside; frames of other VLANs, or of any, are none.
fn untagged(frame: &[u8], tag: Option<[u8; 4]>) -> Option<Vec<u8>> {
    let Some(tag) = tag else { return Some(frame.to_vec()) };
    let found: [u8; 4] = frame.get(12..16)?.try_into().ok()?;
    let same = [found[0], found[1], found[2] & 0x0f, found[3]] == tag;
    same.then(|| [&frame[..12], &frame[16..]].concat())
}

/// The BOOTP message in a frame to port 67.
fn question(frame: &[u8]) -> Option<&[u8]> {
    let is_dhcp = frame.len() > 14 + 20 + 8 + 243 && frame[12..14] == [8, 0] && frame[23] == 17;
    (is_dhcp && frame[36..38] == [0, 67]).then(|| &frame[42..])
}

fn answer(question: &[u8], kind: u8, address: Ipv4Addr, options: &[u8]) -> Vec<u8> {
    let mut answer = vec![0; 236];
    answer[..4].copy_from_slice(&[2, 1, 6, 0]);
    answer[4..8].copy_from_slice(&question[4..8]);
    answer[16..20].copy_from_slice(&address.octets());
    answer[28..44].copy_from_slice(&question[28..44]);
    answer.extend([0x63, 0x82, 0x53, 0x63, 53, 1, kind, 54, 4]);
    answer.extend(SERVER.octets());
    answer.extend([1, 4, 255, 255, 255, 0, 51, 4, 0, 0, 2, 88]);
    answer.extend(options);
    answer.push(255);
    answer
}

/// The message in UDP (without a checksum), IPv4 and Ethernet.
fn framed(to: &[u8], message: &[u8]) -> Vec<u8> {
    let length = |more: usize| u16::try_from(message.len() + more).unwrap().to_be_bytes();
    let mut header = vec![0x45, 0];
    header.extend(length(28));
    header.extend([0, 1, 0, 0, 64, 17, 0, 0]);
    header.extend(SERVER.octets());
    header.extend([255; 4]);
    let sum: u32 = header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    header[10..12].copy_from_slice(&u16::try_from(!folded & 0xffff).unwrap().to_be_bytes());
    let udp = [[0, 67, 0, 68].as_slice(), &length(8), &[0, 0]].concat();
    [to, &[0x52, 0x54, 0, 0xaa, 0xaa, 0xaa, 8, 0], &header, &udp, message].concat()
}
