//! Work in progress.

pub mod config;
pub mod http;
pub mod tls;
