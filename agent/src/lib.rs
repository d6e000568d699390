//! Work in progress.

pub mod config;
