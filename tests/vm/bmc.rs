//! BMCs as the inventory shows them: one with its network on an odd channel, which before that is silent, then slow.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use ferric_qemu::Bmc;
use ferric_qemu::bmc::{FakeBmc, Ipv6Entry, LanChannel, Mood};
use ferric_qemu::conductor::{AgentClient, Wait};
use ferric_tests::Plan;
use serde_json::{Value, json};

/// What the agent spends on a BMC at most.
const LIMIT: Duration = Duration::from_secs(3);
/// How long it leaves one in peace that has not told everything.
const PAUSE: Duration = Duration::from_secs(5);

/// Two channels: one that is not set up, and number 8, whose IPv6 addresses are one that is pending, one by DHCPv6 and a
/// static one.
fn channels() -> Vec<LanChannel> {
    let unused = LanChannel {
        number: 1,
        v4: Ipv4Addr::UNSPECIFIED,
        mac: [2, 0, 0, 0, 0, 1],
        enables: 0,
        fixed: vec![],
        dynamic: vec![],
    };
    let entry = |address: &str, source, status| Ipv6Entry { address: address.parse().unwrap(), source, status };
    let used = LanChannel {
        number: 8,
        v4: Ipv4Addr::new(192, 0, 2, 108),
        mac: [2, 0, 0, 0xa0, 0xa1, 0xaa],
        enables: 2,
        fixed: vec![entry("2001:db8::5", 0x80, 0)],
        dynamic: vec![entry("2001:db8::1", 1, 2), entry("2001:db8::8", 2, 0)],
    };
    vec![unused, used]
}

/// The keys of the BMC in the inventory, and how long that took.
fn ask(agent: &AgentClient) -> ([Value; 3], Duration) {
    let begun = Instant::now();
    let record = agent.command("poll.get_hardware_info", &json!({}), Wait::ForResult).unwrap();
    let inventory = &record.command_result;
    assert!(inventory["interfaces"].is_array(), "{record:?}");
    let value = |key: &str| inventory.get(key).cloned().unwrap_or_else(|| json!("no such key"));
    (["bmc_address", "bmc_v6address", "bmc_mac"].map(value), begun.elapsed())
}

#[test]
fn a_bmc_is_found_on_any_channel_and_costs_three_seconds_however_slow_it_is() {
    let bmc = FakeBmc::start(channels()).unwrap();
    bmc.set_mood(Mood::Silent);
    let bench = Plan::new("bmc").boot(|vm| Ok(vm.bmc(Bmc::External { port: bmc.port() }))).unwrap();
    let agent = bench.agent().unwrap();
    assert_eq!(bmc.lan_questions(), 0, "nobody has asked for an inventory yet");
    let nothing = [Value::Null, Value::Null, json!("no such key")];
    // Beside the BMC an inventory takes a moment.
    let limit = LIMIT + bench.limit(1);

    // Two at a time: the second one does not wait for three more seconds.
    let both = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| assert_eq!(ask(&agent).0, nothing));
        }
    });
    let took = both.elapsed();
    assert!((LIMIT..limit).contains(&took), "silent: {took:?}");
    assert_eq!(bmc.lan_questions(), 1, "one that does not answer is asked once");
    bench.says("the BMC has not told all of its addresses", 1).unwrap();

    bmc.set_mood(Mood::Slow(Duration::from_millis(800)));
    std::thread::sleep(PAUSE);
    let (found, took) = ask(&agent);
    assert_eq!(found, nothing, "it has not got to channel 8");
    assert!((LIMIT - Duration::from_secs(1)..limit).contains(&took), "slow: {took:?}");
    let slow = bmc.lan_questions();
    assert!((2..=6).contains(&slow), "{slow}");

    bmc.set_mood(Mood::Prompt);
    std::thread::sleep(PAUSE);
    let want = ["192.0.2.108", "2001:db8::8", "02:00:00:a0:a1:aa"].map(Value::from);
    let (found, took) = ask(&agent);
    assert_eq!(found, want, "{}", bench.excerpts());
    assert!(took < LIMIT, "prompt: {took:?}");
    let asked = bmc.lan_questions();
    assert_eq!(ask(&agent).0, want);
    assert_eq!(bmc.lan_questions(), asked, "a BMC does not move: it is not asked again");
    assert_eq!(bench.worker_ends(), 0);
}
