//! Raw ioctls, one safe function for each. Structures and numbers come from the kernel's uapi headers.

pub mod block;
pub mod dm;
pub mod ipmi;
pub mod net;
pub mod nvme;
pub mod scsi;
pub mod sg;
