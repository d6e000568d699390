//! From power-on to the first accepted heartbeat.

use ferric_qemu::Firmware;
use ferric_tests::{AGENT_ADDRESS, Plan};

#[test]
fn first_heartbeat_arrives_in_128_mib() {
    let bench = Plan::new("first-heartbeat").boot(Ok).unwrap();
    let beat = bench.heartbeat().unwrap();
    assert!(beat.accepted(), "{beat:?}");
    assert_eq!(beat.text("callback_url"), Some(format!("https://{AGENT_ADDRESS}").as_str()));
    assert!(beat.text("agent_verify_ca").unwrap().starts_with("-----BEGIN CERTIFICATE-----"));
    let agent = bench.agent().unwrap();
    assert!(agent.commands().unwrap().is_empty());
}

#[test]
fn network_boot_by_bios_reaches_the_conductor() {
    let mut plan = Plan::new("network-boot-bios");
    plan.network_boot = true;
    let bench = plan.boot(|vm| Ok(vm.memory_mib(256))).unwrap();
    assert!(bench.heartbeat().unwrap().accepted());
}

#[test]
fn network_boot_by_uefi_reaches_the_conductor() {
    let mut plan = Plan::new("network-boot-uefi");
    plan.network_boot = true;
    let bench = plan.boot(|vm| Ok(vm.memory_mib(256).firmware(Firmware::uefi()))).unwrap();
    assert!(bench.heartbeat().unwrap().accepted());
}
