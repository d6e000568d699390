//! PID 1's supervisor against real processes. One test only: it collects every child of the process it runs in.

#![allow(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "an integration test is all test")]

use std::time::{Duration, Instant};

use ferric_agent::handover::{Handover, State};
use ferric_agent::init::link;
use ferric_agent::init::power::{self, PowerAction};
use ferric_agent::init::supervisor::{Program, Supervisor};
use ferric_sys::memfd;
use ferric_sys::process::SignalFd;
use ferric_types::Secret;
use rustix::process::Signal;

fn supervisor(worker: &str) -> Supervisor {
    let program = Program {
        path: std::env::current_exe().unwrap(),
        args: [worker, "--exact", "--ignored", "--nocapture"].map(str::to_owned).to_vec(),
    };
    let signals = [Signal::CHILD, Signal::TERM, Signal::INT, Signal::USR1, Signal::USR2];
    let ring = memfd::create("ring", 1 << 20).unwrap().into();
    Supervisor::new(program, SignalFd::new(&signals).unwrap(), ring)
}

#[test]
fn workers_are_started_again_and_get_back_what_they_knew() {
    let started = Instant::now();
    let mut crashing = supervisor("worker_that_crashes_once");
    assert_eq!(crashing.run(), PowerAction::Reboot);
    assert!(started.elapsed() >= Duration::from_secs(1), "the first pause");
    assert!(crashing.worker_pid().is_some());
    crashing.end_worker(Duration::from_secs(5));
    assert_eq!(crashing.worker_pid(), None);

    let mut hanging = supervisor("worker_that_hangs_once").hung_after(Duration::from_millis(1500));
    let started = Instant::now();
    assert_eq!(hanging.run(), PowerAction::PowerOff);
    assert!(started.elapsed() >= Duration::from_millis(2500), "a hang and a pause");
    hanging.end_worker(Duration::from_secs(5));

    let mut missing = supervisor("x");
    missing.end_worker(Duration::ZERO);
    assert_eq!(missing.worker_pid(), None);
}

fn state() -> (Handover, Option<State>) {
    let handover = Handover::from_env();
    let state = handover.load();
    (handover, state)
}

fn sleep_for_ever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(60));
    }
}

#[test]
#[ignore = "a worker for the test above"]
fn worker_that_crashes_once() {
    let (handover, state) = state();
    match state {
        None => {
            handover.save(&State { agent_token: Some(Secret::new("the token".into())), ..State::default() });
            std::process::abort();
        }
        Some(state) => {
            assert_eq!(state.agent_token.unwrap().expose(), "the token");
            assert_eq!((state.restarts, state.last_exit.as_deref()), (1, Some("killed by signal 6 SIGABRT")));
            power::request(PowerAction::Reboot).unwrap();
            sleep_for_ever();
        }
    }
}

#[test]
#[ignore = "a worker for the test above"]
fn worker_that_hangs_once() {
    let (_handover, state) = state();
    let Some(state) = state else { sleep_for_ever() };
    assert_eq!((state.restarts, state.last_exit.as_deref()), (1, Some("it hung and was killed")));
    // Signs of life keep it from being taken for hung.
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(600));
        link::get().unwrap().send("ping").unwrap();
    }
    power::request(PowerAction::PowerOff).unwrap();
    sleep_for_ever();
}
