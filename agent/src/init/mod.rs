//! PID 1.

pub mod inherit;
