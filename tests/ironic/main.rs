//! A real, unmodified Ironic drives the image: what it is on the wire, an agent that Ironic takes for its own.
//!
//! Ironic comes from PyPI into `build/ironic/venv`, pinned by `requirements.txt`. It switches two virtual machines on and
//! off by IPMI and Redfish, boots them over the network with its own iPXE interface, and has them inspected, cleaned, deployed,
//! rescued, serviced and faulted. All of it runs in a network and a process namespace of its own, without a way out, and
//! with the rights of whoever runs it; root is not needed. Nothing outlives the run.
//!
//! | module | holds |
//! |---|---|
//! | [`outside`], [`arguments`], [`venv`], [`runs`] | what is done before: packages, images, the namespaces |
//! | [`checks`] | tests of the lab itself |
//! | [`inside`], [`harness`] | setting up the lab, running the cases |
//! | [`network`], [`server`], [`redfish`], [`ironic`], [`gate`] | the parts of the lab |
//! | [`api`], [`bench`], [`trace`] | Ironic's API, a server with its node, the calls on the wire |
//! | [`life`], [`disks`], [`faults`] | the cases |
//!
//! Logs of each run are kept under `build/ironic/`.

mod api;
mod arguments;
mod bench;
mod checks;
mod disks;
mod faults;
mod gate;
mod harness;
mod inside;
mod ironic;
mod life;
mod network;
mod outside;
mod programs;
mod redfish;
mod runs;
mod server;
mod trace;
mod venv;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.split_first() {
        Some((first, rest)) if first == inside::MARK => inside::run(rest),
        Some((first, [seconds])) if first == outside::HOLD => outside::hold(seconds),
        _ => outside::run(&arguments),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            harness::print(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
