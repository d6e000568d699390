//! The network of the tests: a bridge in a network namespace of its own, with no way out.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use ferric_qemu::artifacts;

use crate::programs::{self, Program, run};

/// This host: Ironic, files, DHCP. TEST-NET-2 of RFC 5737, as all addresses here.
pub(crate) const HOST: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
/// Where agents find Ironic: the gate.
pub(crate) const API: SocketAddr = SocketAddr::new(IpAddr::V4(HOST), 6385);
/// Where Ironic itself listens.
pub(crate) const UPSTREAM: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 6386);
/// Where the servers' Redfish service is.
pub(crate) const REDFISH: SocketAddr = SocketAddr::new(IpAddr::V4(HOST), 8000);
/// Where that service tells what it was ordered to do.
pub(crate) const REDFISH_ORDERS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8001);
/// Where files are.
pub(crate) const FILES: SocketAddr = SocketAddr::new(IpAddr::V4(HOST), 8080);
const BRIDGE: &str = "lan0";

/// What the switch calls itself, as in `switch.py`.
pub(crate) const SWITCH: (&str, &str) = ("02:00:ca:1e:c0:01", "switch-1");

/// What identifies one server on the network.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) name: &'static str,
    pub(crate) uuid: &'static str,
    pub(crate) tap: &'static str,
    pub(crate) mac: &'static str,
    /// Of the card that is on no network.
    pub(crate) second_mac: &'static str,
    pub(crate) address: Ipv4Addr,
    pub(crate) bmc: Ipv4Addr,
    pub(crate) bmc_mac: &'static str,
    /// What the switch calls its port.
    pub(crate) switch_port: &'static str,
    /// Port of 127.0.0.1 where QEMU reaches the management controller.
    pub(crate) kcs_port: u16,
}

/// The servers' places.
pub(crate) const PLACES: [Place; 2] = [
    Place {
        name: "bios",
        uuid: "0b105000-0000-4000-8000-000000000001",
        tap: "tap0",
        mac: "52:54:00:b1:05:01",
        second_mac: "52:54:00:b1:05:02",
        address: Ipv4Addr::new(198, 51, 100, 11),
        bmc: Ipv4Addr::new(198, 51, 100, 2),
        bmc_mac: "52:54:00:b1:05:0b",
        switch_port: "Ethernet1/1",
        kcs_port: 9002,
    },
    Place {
        name: "uefi",
        uuid: "0efe1000-0000-4000-8000-000000000002",
        tap: "tap1",
        mac: "52:54:00:ef:e1:01",
        second_mac: "52:54:00:ef:e1:02",
        address: Ipv4Addr::new(198, 51, 100, 12),
        bmc: Ipv4Addr::new(198, 51, 100, 3),
        bmc_mac: "52:54:00:ef:e1:0b",
        switch_port: "Ethernet1/2",
        kcs_port: 9003,
    },
];

/// Makes the bridge, its addresses and the servers' tap devices. The namespace is ours alone.
pub(crate) fn make() -> Result<()> {
    ip("link set lo up")?;
    ip(&format!("link add {BRIDGE} type bridge"))?;
    for address in [HOST, PLACES[0].bmc, PLACES[1].bmc] {
        ip(&format!("addr add {address}/24 dev {BRIDGE}"))?;
    }
    for place in PLACES {
        ip(&format!("tuntap add {} mode tap", place.tap))?;
        ip(&format!("link set {} master {BRIDGE} up", place.tap))?;
    }
    ip(&format!("link set {BRIDGE} up"))
}

/// Starts the switch's announcements of itself.
pub(crate) fn announce_switch(venv: &Path, logs: &Path) -> Result<Program> {
    let script = programs::own_file("switch.py")?;
    Program::start(venv.join("bin/python"), &logs.join("switch.log"), |command| {
        command.arg(script).args(PLACES.map(|place| place.tap));
    })
}

fn ip(arguments: &str) -> Result<()> {
    let words: Vec<&str> = arguments.split(' ').collect();
    run(&artifacts::program("ip", "iproute2")?, &words).map(drop)
}

/// Starts the DHCP server. The cards' boot ROM is iPXE, so it gives out Ironic's script at once.
pub(crate) fn serve_dhcp(dir: &Path, logs: &Path) -> Result<Program> {
    let mut text = format!(
        "port=0\nno-daemon\nuser=root\ngroup=root\nbind-interfaces\ninterface={BRIDGE}\nlisten-address={HOST}\n\
         log-dhcp\nleasefile-ro\ndhcp-range={HOST},static,255.255.255.0,12h\n\
         dhcp-option=option:router\ndhcp-option=option:dns-server\ndhcp-boot=http://{FILES}/boot.ipxe\n"
    );
    for place in PLACES {
        text.push_str(&format!("dhcp-host={},{}\n", place.mac, place.address));
    }
    let config = dir.join("dnsmasq.conf");
    std::fs::write(&config, text).context("writing dnsmasq.conf")?;
    let program = artifacts::program("dnsmasq", "dnsmasq-base")?;
    let started = Program::start(program, &logs.join("dnsmasq.log"), |command| {
        command.arg(format!("--conf-file={}", config.display()));
    })?;
    ensure!(started.is_running(), "dnsmasq ended at once, see dnsmasq.log");
    Ok(started)
}
