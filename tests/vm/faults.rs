//! Commands that panic, crash and eat all memory, and what the conductor sees of it.

use std::time::Duration;

use ferric_qemu::Nic;
use ferric_qemu::conductor::flow::probe;
use ferric_qemu::conductor::{AgentClient, CommandRecord, Heartbeat, Wait};
use ferric_tests::{Bench, Plan};
use serde_json::json;

/// Of the second network card.
const OTHER_MAC: &str = "52:54:00:fe:00:02";

#[test]
fn worker_that_dies_comes_back_as_the_same_agent_and_tells_why() {
    let mut plan = Plan::new("faults");
    plan.image = "faulty".to_owned();
    let bench = plan.boot(|vm| Ok(vm.nic(Nic::silent().mac(OTHER_MAC)))).unwrap();
    let first = bench.heartbeat().unwrap();
    let agent = bench.agent().unwrap();

    permanent_address_counts(&agent);
    panic_fails_its_command_only(&bench, &agent);
    // Each death in a row is followed by a longer pause.
    let rounds = [
        ("faulty.abort", "killed by signal 6 SIGABRT", 1),
        ("faulty.eat", "killed by the kernel: out of memory", 2),
        ("faulty.abort", "killed by signal 6 SIGABRT", 5),
    ];
    for (ends, (command, cause, pause)) in rounds.into_iter().enumerate() {
        let record = dies_of(&bench, &agent, &first, command, &format!("({cause}); starting it again in {pause} s"));
        let error = record.error_text();
        assert!(error.contains("restarted") && error.contains(cause), "{command}: {error}");
        assert_eq!(bench.worker_ends(), ends + 1, "{command}");
    }
    let record = agent.command("standby.sync", &json!({}), Wait::ForResult).unwrap();
    assert_eq!(record.command_status, "SUCCEEDED");
    let lookups = bench.conductor.requests_matching(|request| request.path == "/v1/lookup");
    assert_eq!(lookups.len(), 4, "one for each start of the worker");
}

/// A member of a bond has the bond's address for as long as it is one.
fn permanent_address_counts(agent: &AgentClient) {
    let look = || {
        let record = agent.command("poll.get_hardware_info", &json!({}), Wait::ForResult).unwrap();
        let nics = record.command_result["interfaces"].as_array().unwrap();
        let nic = nics.iter().find(|nic| nic["mac_address"] == OTHER_MAC);
        nic.unwrap_or_else(|| panic!("no {OTHER_MAC} in {nics:#?}")).clone()
    };
    let before = look();
    let params = json!({"interface": before["name"], "mac": "02:00:00:00:00:77"});
    let record = agent.command("faulty.readdress", &params, Wait::ForResult).unwrap();
    assert_eq!(record.command_result["result"], "02:00:00:00:00:77", "{record:?}");
    assert_eq!(look(), before);
}

fn panic_fails_its_command_only(bench: &Bench, agent: &AgentClient) {
    let started = agent.command("faulty.panic", &json!({}), Wait::No).unwrap();
    let record = probe::wait_for_end(agent, &started.id, bench.limit(5)).unwrap();
    assert_eq!(record.command_status, "FAILED");
    assert!(record.error_text().contains("panicked: on purpose"), "{record:?}");
    bench.says("PANIC in thread panic", 5).unwrap();
    assert_eq!(agent.command("standby.sync", &json!({}), Wait::ForResult).unwrap().command_status, "SUCCEEDED");
    assert_eq!(bench.worker_ends(), 0, "a panic of a command ended the worker");
}

/// Gives a command that kills the worker, waits for the next one's heartbeat and gives the record as it shows it.
fn dies_of(bench: &Bench, agent: &AgentClient, first: &Heartbeat, command: &str, said: &str) -> CommandRecord {
    let before = bench.conductor.last_heartbeat_sequence();
    bench.vm().console().mark();
    let started = agent.command(command, &json!({}), Wait::No).unwrap();
    assert!(started.is_running(), "{started:?}");
    bench.says(said, 20).unwrap();
    let beat = bench.heartbeat_after(before, 15).unwrap();
    assert_eq!(beat.body, first.body, "token, address or certificate changed");
    // The same client: it trusts the first certificate only, and has the first token.
    let records = agent.commands().unwrap_or_else(|error| panic!("{error}: {}", bench.excerpts()));
    let record = records.into_iter().find(|record| record.id == started.id);
    let record = record.unwrap_or_else(|| panic!("{command} is not listed any more"));
    assert_eq!(record.command_status, "FAILED", "{record:?}");
    assert_eq!(Some(record.command_name.as_str()), command.split('.').nth(1));
    std::thread::sleep(Duration::from_millis(200));
    record
}
