//! Making a written image bootable: EFI boot entries, and the boot loader that an image of one file system brings along.
//!
//! No program of the image is ever run (CVE-2026-43003, pitfall C23). EFI system partitions are read and written by our own
//! code; only the root file system of a partition image is mounted, see [`foreign`].

pub mod arch;
pub mod assets;
pub mod csv;
pub mod efi;
pub mod efivars;
pub mod esp;
pub mod fallback;
pub mod foreign;
pub mod head;
pub mod load_option;
