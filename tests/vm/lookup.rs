//! Finding the conductor, proving who it is, and going on whatever it answers.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use ferric_qemu::conductor::flow::probe;
use ferric_qemu::conductor::{ApiVersion, Conductor, ConductorConfig, Endpoint, Fault, Node, ProvisionState};
use ferric_qemu::{Disk, DiskBus, DiskFile, artifacts};
use ferric_tests::{Bench, HOST, MAC, Plan};

/// Where the CA lies in the ramdisk.
const CA: &str = "etc/ironic-python-agent/ironic.crt";

#[test]
fn refusals_are_outlasted_and_address_and_certificate_never_change() {
    let dir = artifacts::temp_dir("refusals").unwrap();
    let disk = DiskFile::create_raw(dir.path().join("disk.raw"), 5 << 30).unwrap();
    let mut plan = Plan::new("refusals");
    // A collector that does not exist: the inspection fails, the agent goes on to the lookup all the same.
    plan.cmdline = "ipa-http-request-timeout=4 ipa-inspection-collectors=default,bogus".to_owned();
    let bench = plan.boot(|vm| Ok(vm.disk(Disk::new(DiskBus::VirtioBlk, disk.path())))).unwrap();
    bench.conductor.script(
        Endpoint::Lookup,
        [Fault::Status(404), Fault::Status(404), Fault::Status(500), Fault::Status(409), Fault::Reset],
    );
    bench.conductor.script(
        Endpoint::Heartbeat,
        [Fault::Status(409), Fault::Status(500), Fault::Hang(Duration::from_secs(60)), Fault::Reset],
    );
    let first = bench.heartbeat_after(0, 30).unwrap();
    for endpoint in [Endpoint::Lookup, Endpoint::Heartbeat] {
        assert_eq!(bench.conductor.faults_left(endpoint), 0, "{endpoint:?}");
    }
    unknown_collector_is_posted(&bench);
    locked_node_is_left_alone_for_a_while(&bench);
    let beats = bench.conductor.requests_matching(|request| request.path.starts_with("/v1/heartbeat/"));
    assert_eq!(beats.len(), 5);
    for beat in &beats {
        assert_eq!(beat.json(), beats[0].json(), "the announcement changed");
    }
    end_of_a_command_is_told_at_once(&bench, first.sequence);
    spent_token_is_told(&bench);
}

fn unknown_collector_is_posted(bench: &Bench) {
    let posts = bench.conductor.requests_matching(|request| request.path == "/v1/continue_inspection");
    assert_eq!(posts.len(), 1, "refused data is not posted again");
    let error = posts[0].json()["error"].as_str().unwrap_or_default().to_owned();
    assert!(error.contains("bogus"), "{error}");
}

/// A 409 of a lookup means that the node is locked: five seconds and the ordinary pause pass before the next.
fn locked_node_is_left_alone_for_a_while(bench: &Bench) {
    let lookups = bench.conductor.requests_matching(|request| request.path == "/v1/lookup");
    assert_eq!(lookups.len(), 6, "{lookups:?}");
    let pause = lookups[4].since_start.saturating_sub(lookups[3].since_start);
    assert_eq!(lookups[3].status, Some(409));
    assert!(pause >= Duration::from_millis(5900), "{pause:?} after 409");
    assert!(lookups.iter().all(|lookup| lookup.query_value("addresses").is_some_and(|macs| macs.contains(MAC))));
}

/// The heartbeat timeout is 300 s, so a beat within seconds was forced.
fn end_of_a_command_is_told_at_once(bench: &Bench, sequence: u64) {
    let agent = bench.agent().unwrap();
    let node = bench.node().unwrap();
    probe::wrong_version_is_a_mismatch(&agent, &node, bench.limit(10)).unwrap();
    let ended = SystemTime::now();
    let beat = bench.heartbeat_after(sequence, 10).unwrap();
    let request = bench.conductor.requests_matching(|request| request.sequence == beat.sequence);
    let late = request[0].at.duration_since(ended).unwrap_or_default();
    assert!(late < Duration::from_secs(8), "the forced heartbeat came {late:?} after the command");
}

/// Reset without the conductor's knowledge: the token is given out once, so the new agent must tell a person.
fn spent_token_is_told(bench: &Bench) {
    let beats = bench.conductor.heartbeats().len();
    bench.vm().reset().unwrap();
    bench.says("the conductor has already handed out this boot's agent token", 30).unwrap();
    bench.says("power the machine off and on through Ironic to get a new token", 2).unwrap();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(bench.conductor.heartbeats().len(), beats, "an agent without a token heartbeats");
}

#[test]
fn conductor_that_starts_late_behind_a_dead_url_is_found() {
    // A port that nobody listens on, and one on which a conductor will.
    let free = || TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap();
    let (dead, late) = (free(), free());
    let mut plan = Plan::new("late-conductor");
    plan.api_url = false;
    plan.cmdline = format!("ipa-api-url=http://{HOST}:{},http://{HOST}:{}", dead.port(), late.port());
    let bench = plan.boot(Ok).unwrap();
    bench.says("next try in", 20).unwrap();
    let mut node = Node::new("late", &[MAC]);
    node.provision_state = ProvisionState::CleanWait;
    let listen = SocketAddr::from(([127, 0, 0, 1], late.port()));
    let conductor =
        Conductor::start(ConductorConfig { listen, nodes: vec![node], ..ConductorConfig::default() }).unwrap();
    let beat = conductor.wait_for_heartbeat(bench.limit(20)).with_context(|| bench.excerpts()).unwrap();
    assert!(beat.text("callback_url").is_some_and(|url| url.starts_with("https://")));
    assert_eq!(bench.worker_ends(), 0, "the agent waits, it does not start over: {}", bench.excerpts());
}

#[test]
fn old_conductors_get_no_newer_keys() {
    for (version, keys) in [(31, ["callback_url"].as_slice()), (61, ["callback_url", "agent_version"].as_slice())] {
        let mut plan = Plan::new(&format!("api-1.{version}"));
        plan.settings.max_version = ApiVersion(version);
        plan.settings.require_tls = false;
        let bench = plan.boot(Ok).unwrap();
        // This conductor imitates a newer one in wanting a token: it refuses, and the agent must not stop at that.
        let first = bench.conductor.wait_for_heartbeat_after(0, bench.limit(20), |_| true);
        let first = first.with_context(|| bench.excerpts()).unwrap();
        bench.conductor.wait_for_heartbeat_after(first.sequence, bench.limit(20), |_| true).unwrap();
        bench.says("the conductor sent no agent token", 5).unwrap();
        let body = first.body;
        let sent: Vec<&String> = body.as_object().unwrap().keys().collect();
        assert_eq!(sent, keys, "1.{version}");
        assert!(body["callback_url"].as_str().unwrap().starts_with("http://"), "{body}");
        for request in bench.conductor.requests().iter().filter(|request| request.path != "/") {
            if let Some(asked) = request.api_version() {
                assert_eq!(asked, format!("1.{version}"), "{}", request.target);
            }
        }
    }
}

#[test]
fn ca_in_a_second_archive_makes_a_tls_conductor_trusted() {
    let mut plan = Plan::new("tls-ca");
    plan.tls = true;
    plan.files = |conductor| {
        let conf = format!("[DEFAULT]\ncafile = /{CA}\n");
        vec![
            (CA.to_owned(), conductor.ca_pem().unwrap_or_default().as_bytes().to_vec()),
            ("etc/ironic-python-agent.d/ironic-tls.conf".to_owned(), conf.into_bytes()),
        ]
    };
    let bench = plan.boot(Ok).unwrap();
    assert!(bench.heartbeat().unwrap().accepted());
    assert!(bench.conductor.url().starts_with("https://"));
}

#[test]
fn certificate_is_valid_by_the_conductors_clock_when_the_machines_is_years_off() {
    let bench = Plan::new("wrong-clock").boot(|vm| Ok(vm.rtc_base("2020-02-03T04:05:06"))).unwrap();
    // The agent client checks the validity as Ironic's OpenSSL does.
    assert!(bench.agent().unwrap().commands().unwrap().is_empty());
    bench.says("the clocks of this machine and of the conductor are", 2).unwrap();
}

#[test]
fn tls_conductor_of_an_unknown_ca_is_refused_unless_told_otherwise() {
    let mut plan = Plan::new("tls-unknown");
    plan.tls = true;
    plan.cmdline = "ipa-lookup-timeout=3".to_owned();
    let bench = plan.boot(Ok).unwrap();
    let line = bench.says("next try in", 20).unwrap();
    assert!(line.contains("certificate") && line.contains("ca"), "the cause and what to do are missing: {line}");
    assert!(bench.conductor.requests().is_empty(), "something was sent to a server that is not trusted");
    // A person sees why it does not go on, and that it begins anew.
    bench.says("the agent cannot go on: finding the conductor", 10).unwrap();
    bench.says("the agent ended (exit code 1); starting it again in 2 s", 20).unwrap();
    drop(bench);

    let mut plan = Plan::new("tls-insecure");
    plan.tls = true;
    plan.cmdline = "ipa-insecure=1".to_owned();
    let bench = plan.boot(Ok).unwrap();
    assert!(bench.heartbeat().unwrap().accepted());
}
