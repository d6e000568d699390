//! Reads what the machine is made of: files of sysfs and procfs below a `Root`, and a few ioctls.

pub mod bmc;
