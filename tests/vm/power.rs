//! The last acts: power off, reboot, lockdown, rescue.

use std::io::{ErrorKind, Read as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ferric_qemu::conductor::flow::probe;
use ferric_qemu::conductor::{AgentClient, Node, ProvisionState, Wait};
use ferric_qemu::{Disk, DiskBus, DiskFile, artifacts};
use ferric_tests::{Bench, Plan};
use serde_json::json;

const MIB: u64 = 1 << 20;

#[test]
fn power_off_ends_the_machine_with_everything_written() {
    let dir = artifacts::temp_dir("power-off").unwrap();
    let disk = DiskFile::create_raw(dir.path().join("disk.raw"), 5 << 30).unwrap();
    disk.fill(1, 0, MIB).unwrap();
    let bench = Plan::new("power-off").boot(|vm| Ok(vm.disk(Disk::new(DiskBus::VirtioBlk, disk.path())))).unwrap();
    let agent = bench.agent().unwrap();
    let node = bench.node().unwrap();
    let step = json!({
        "step": {"interface": "deploy", "step": "erase_devices_metadata", "priority": 99},
        "node": node.as_dict(true), "ports": node.ports_list(),
    });
    let started = agent.command("clean.execute_clean_step", &step, Wait::No).unwrap();
    let ended = probe::wait_for_end(&agent, &started.id, bench.limit(20)).unwrap();
    assert_eq!(ended.command_status, "SUCCEEDED", "{ended:?}");
    let began = Instant::now();
    let record = agent.command("standby.power_off", &json!({}), Wait::No).unwrap();
    assert!(record.is_running(), "{record:?}");
    let shutdown = bench.vm().wait_shutdown(bench.limit(5)).unwrap();
    assert!(shutdown.by_guest && shutdown.reason == "guest-shutdown", "{shutdown:?}");
    assert!(began.elapsed() < bench.limit(4), "{:?}", began.elapsed());
    disk.check_zero(0, 16 * 1024).unwrap();
    assert_eq!(bench.worker_ends(), 0, "an ordered end is no crash: {}", bench.excerpts());
}

#[test]
fn run_image_boots_anew_with_a_new_token_and_lockdown_takes_the_network_down() {
    let bench = Plan::new("reboot-lockdown").boot(Ok).unwrap();
    let agent = bench.agent().unwrap();
    let old_token = bench.node().unwrap().agent_token().unwrap().to_owned();
    let record = agent.command("standby.run_image", &json!({}), Wait::No).unwrap();
    assert!(record.is_running(), "{record:?}");
    let before = bench.conductor.last_heartbeat_sequence();
    bench.vm().wait_reset(bench.limit(5)).unwrap();
    bench.conductor.update_node(&bench.uuid, Node::forget_agent).unwrap();
    bench.heartbeat_after(before, 20).unwrap();
    let agent = bench.agent().unwrap();
    assert_ne!(bench.node().unwrap().agent_token(), Some(old_token.as_str()));
    assert!(agent.commands().unwrap().is_empty());

    agent.command("standby.sync", &json!({}), Wait::ForResult).unwrap();
    let record = agent.command("system.lockdown", &json!({}), Wait::ForResult).unwrap();
    assert_eq!(record.command_status, "SUCCEEDED", "{record:?}");
    // As Ironic: 7 x 5 s at most until there is no connection.
    goes_away(&bench, &agent, Duration::from_secs(35));
    bench.says("locked down: the network is off", 10).unwrap();
    assert!(bench.vm().is_running(), "lockdown leaves the machine on");
    assert!(!refuses_connections(&bench), "the network is still up");
}

#[test]
fn finalize_rescue_answers_and_then_there_is_no_api_and_no_heartbeat() {
    let mut plan = Plan::new("rescue");
    plan.state = ProvisionState::RescueWait;
    // A beat every 1 to 2 s, so that a missing one shows soon.
    plan.settings.heartbeat_timeout_secs = 3;
    let bench = plan.boot(Ok).unwrap();
    let agent = bench.agent().unwrap();
    let params = json!({"rescue_password": "$6$salt$hash", "hashed": true});
    let record = agent.command("rescue.finalize_rescue", &params, Wait::No).unwrap();
    assert_eq!(record.command_status, "SUCCEEDED", "Ironic wants the end in the answer: {record:?}");
    goes_away(&bench, &agent, bench.limit(5));
    bench.says("the API is off; the network stays up", 5).unwrap();
    let beats = bench.conductor.heartbeats().len();
    std::thread::sleep(Duration::from_secs(8));
    assert_eq!(bench.conductor.heartbeats().len(), beats, "heartbeats go on in rescue");
    assert!(refuses_connections(&bench), "rescue needs the network");
    assert!(!bench.vm().console().contains("$6$salt"), "the password is on the console");
    assert_eq!(bench.worker_ends(), 0);
}

/// Whether the guest says that nobody listens on the agent's port; without a network it says nothing.
fn refuses_connections(bench: &Bench) -> bool {
    let mut stream = TcpStream::connect(("127.0.0.1", bench.vm().agent_port().unwrap())).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(4))).unwrap();
    !matches!(stream.read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// Waits until the agent does not answer any more.
fn goes_away(bench: &Bench, agent: &AgentClient, limit: Duration) {
    let end = Instant::now() + limit;
    while agent.commands().is_ok() {
        assert!(Instant::now() < end, "the API still answers after {limit:?}: {}", bench.excerpts());
        std::thread::sleep(Duration::from_millis(300));
    }
}
