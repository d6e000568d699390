//! Ready-made scenarios for tests that boot the image: a machine, a stand-in conductor that knows it, an image server.

mod bench;
mod bundle;
mod drivers;
mod kernel;
mod overlay;
mod trivial;

use std::io::Write as _;

pub use bench::{AGENT_ADDRESS, Bench, Files, HOST, MAC, Plan, uptime};
pub use bundle::{Bundle, unpack};
pub use drivers::drivers;
pub use trivial::{TRIVIAL_INIT_SAYS, trivial_initramfs};

/// Prints a measurement past the capturing of test output.
pub fn note(text: &str) {
    // There is nobody to tell when it fails.
    drop(writeln!(std::io::stderr(), "MEASURED: {text}"));
}
