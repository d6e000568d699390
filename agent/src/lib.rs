//! Work in progress.

pub mod conductor;
pub mod config;
pub mod handover;
pub mod http;
pub mod init;
pub mod logs;
pub mod net;
pub mod selftest;
pub mod tls;
