//! The agent, as a library: what a program of ten lines needs to become a ramdisk with extensions of its own.
//!
//! | module | does |
//! |---|---|
//! | [`init`] | PID 1: mounts, consoles, drivers, the worker's life, power |
//! | [`config`] | settings from kernel command line, files and lookup |
//! | [`logs`] | consoles, kernel log, the ring in memory, the log archive |
//! | [`net`] | links, DHCP, the address to announce |
//! | [`http`], [`tls`] | client and downloads; certificates |
//! | [`conductor`] | version, lookup, heartbeat, inspection post |
//! | [`inspect`] | collectors of inspection data |
//! | [`api`] | the REST API that the conductor calls |
//! | [`command`] | the table of commands, running them, their records |
//! | [`extensions`] | the commands themselves, one file an extension |
//! | [`steps`] | listing and running clean, deploy and service steps |
//! | [`app`] | what all of these share |
//! | [`handover`] | what survives the death of the worker |

pub mod api;
pub mod app;
pub mod archive;
mod cli;
pub mod command;
pub mod conductor;
pub mod config;
pub mod error;
pub mod extensions;
pub mod handover;
pub mod http;
pub mod init;
pub mod inspect;
pub mod json;
pub mod logs;
pub mod net;
pub mod report;
pub mod selftest;
pub mod steps;
pub mod tls;
pub mod worker;

#[cfg(test)]
mod testing;

pub use cli::run;

/// Version of the agent, as heartbeats and `/v1/status` tell it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
