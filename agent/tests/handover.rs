//! A worker that is killed while it saves its state, again and again.

#![allow(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "an integration test is all test")]
#![allow(clippy::disallowed_methods, reason = "the test starts a worker as PID 1 does")]

use std::process::Command;
use std::time::Duration;

use ferric_agent::handover::{Handover, State, Unfinished};
use ferric_agent::init::inherit::{Numbers, VARIABLE};
use ferric_sys::{memfd, process};

const ROUNDS: u32 = 40;

fn state(number: u32) -> State {
    // Of a length that changes, and with a content that can be checked.
    let length = usize::try_from(number * 7919 % 60_000).unwrap();
    State {
        node_uuid: Some(number.to_string()),
        callback_url: Some("x".repeat(length)),
        unfinished: vec![Unfinished { id: number.to_string(), command_name: "clean.execute_clean_step".into() }],
        restarts: number,
        ..State::default()
    }
}

#[test]
fn a_kill_at_any_moment_leaves_a_whole_state() {
    let handover = Handover::create();
    let file = handover.try_clone_file().unwrap();
    let others = [memfd::create("ring", 1 << 20).unwrap(), memfd::create("link", 1).unwrap()];
    let numbers = Numbers {
        handover: process::make_inheritable(&file).unwrap(),
        ring: process::make_inheritable(&others[0]).unwrap(),
        link: process::make_inheritable(&others[1]).unwrap(),
    };
    let mut last = 0;
    for round in 0..ROUNDS {
        let mut worker = Command::new(std::env::current_exe().unwrap())
            .args(["worker_that_saves", "--exact", "--ignored"])
            .env(VARIABLE, numbers.to_string())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_micros(20_000 + u64::from(round) * 997));
        worker.kill().unwrap();
        worker.wait().unwrap();
        if let Some(found) = handover.load() {
            assert_eq!(found, state(found.restarts), "round {round}");
            assert!(found.restarts >= last, "round {round}: {} after {last}", found.restarts);
            last = found.restarts;
        }
    }
    assert!(last > ROUNDS, "the workers did save: {last}");
}

#[test]
#[ignore = "the worker of the test above"]
fn worker_that_saves() {
    let handover = Handover::from_env();
    let mut number = handover.load().map_or(0, |state| state.restarts);
    loop {
        number += 1;
        handover.save(&state(number));
    }
}
