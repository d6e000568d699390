//! Tests that boot the image in QEMU and talk to its agent as a conductor does.
//!
//! Each test has a machine of its own; logs are under `build/vm-logs/<test>/`.

#[cfg(test)]
mod api;
#[cfg(test)]
mod bmc;
#[cfg(test)]
mod boot;
#[cfg(test)]
mod clean;
#[cfg(test)]
mod collectors;
#[cfg(test)]
mod config_drives;
#[cfg(test)]
mod deploy;
#[cfg(test)]
mod deploy_boot;
#[cfg(test)]
mod deploy_faults;
#[cfg(test)]
mod disks;
#[cfg(test)]
mod efi;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod hints;
#[cfg(test)]
mod inject;
#[cfg(test)]
mod inspect;
#[cfg(test)]
mod kit;
#[cfg(test)]
mod lookup;
#[cfg(test)]
mod metadata;
#[cfg(test)]
mod network;
#[cfg(test)]
mod os_image;
#[cfg(test)]
mod partition;
#[cfg(test)]
mod partition_hostile;
#[cfg(test)]
mod power;
#[cfg(test)]
mod raid;
#[cfg(test)]
mod secrets;
#[cfg(test)]
mod traps;
