//! Ready-made scenarios for tests that boot the image: a machine, a stand-in conductor that knows it, an image server.

mod bench;

pub use bench::{AGENT_ADDRESS, Bench, MAC, Plan};
