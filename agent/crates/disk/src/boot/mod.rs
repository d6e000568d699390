//! Making a written image bootable: EFI boot entries.
//!
//! No program of the image is ever run (CVE-2026-43003, pitfall C23), and its file systems are read by our own code,
//! never mounted.

pub mod csv;
pub mod efi;
pub mod efivars;
pub mod esp;
pub mod load_option;
