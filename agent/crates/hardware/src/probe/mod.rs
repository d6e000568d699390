//! Reads what the machine is made of: files of sysfs and procfs below a `Root`, and a few ioctls.

pub mod bmc;
pub mod cpu;
pub mod disks;
pub mod infiniband;
pub mod lldp;
pub mod memory;
pub mod naming;
pub mod nics;
pub mod numa;
pub mod pci;
pub mod smbios;
pub mod system;
pub(crate) mod text;
pub mod tpm;
pub mod usb;
pub mod vlan;
