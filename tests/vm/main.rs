//! Tests that boot the image in QEMU and talk to its agent as a conductor does.
//!
//! Each test has a machine of its own; logs are under `build/vm-logs/<test>/`.

mod boot;
#[cfg(test)]
mod os_image;
