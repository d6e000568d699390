//! The network: bringing it up, and what is announced about it.

pub mod advertise;
