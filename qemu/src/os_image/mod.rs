//! Real operating system disk images, made on the spot from Debian's packages, for demonstrations and tests of deployment.
//!
//! The system is small but whole: Debian's own kernel, an initramfs with the storage drivers, BusyBox as init, Debian's
//! base files. A GPT image starts under UEFI (systemd-boot on the ESP) and under BIOS (GRUB: boot code in the protective MBR
//! and a BIOS boot partition); an MBR image starts under BIOS. Started from a node's own disk it says on the serial console
//!
//! ```text
//! FERRIC-DEMO-OS up: Debian GNU/Linux 12 (bookworm) kernel 6.1.0-57-amd64 root /dev/vda3
//! FERRIC-DEMO-OS configdrive hostname=node-1.example.org
//! FERRIC-DEMO-OS user_data: #cloud-config
//! ```
//!
//! (or `FERRIC-DEMO-OS configdrive none`), gives a shell there, and powers off on the ACPI power button, or at once if the
//! kernel command line has `ferric.poweroff` or the configdrive's `meta_data.json` has `"poweroff": true`.
//!
//! No root rights, loop devices or mounts are needed: packages are fetched by `apt-get download` and unpacked, the ext4 file
//! system is filled by `debugfs`, FAT, GPT and MBR are written here, and GRUB's images are joined here. Everything is kept in a cache folder by a hash of the recipe; a second call is immediate.
//!
//! Own code here: joining the parts. There is no library that makes bootable images without mounts.

mod convert;
mod esp;
mod ext4;
mod grub;
mod layout;
mod packages;
mod partition;
mod recipe;
mod system;
mod tiny;
mod tool;
mod uki;

pub use convert::{Qcow2Kind, qcow2_from};
pub use layout::DiskLabel;
pub use packages::{grub_install, static_busybox, systemd_boot};
pub use partition::{PARTITION_IMAGE_LABEL, PARTITION_IMAGE_LOADER, PARTITION_IMAGE_UUID, partition_image};
pub use recipe::{ImageFormat, OsImage, Recipe, demo_image};
pub use tiny::{tiny_chunk, tiny_raw};
