//! The network goes away and comes back, and comes late.

use std::time::Duration;

use anyhow::Context as _;
use ferric_qemu::Nic;
use ferric_tests::{MAC, Plan};

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
