//! `lab`: boots, inspects, cleans and deploys machines in QEMU with a stand-in conductor. `lab --help` says how.

use clap::Parser as _;
use ferric_qemu::lab::{self, options::Cli};
use std::io::Write as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    match lab::run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If standard error is gone there is nobody to tell.
            drop(writeln!(std::io::stderr(), "\nlab: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
