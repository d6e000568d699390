//! The lab: virtual machines in QEMU, network boot, an image server that misbehaves on order, and a stand-in Ironic conductor.
//!
//! Everything here blocks and needs no rights beyond starting QEMU; networks are QEMU's user-mode ones.
//!
//! | module | gives |
//! |---|---|
//! | [`vm`] | [`Vm::builder`], running machines |
//! | [`machine`] | the description of a machine and its QEMU command line |
//! | [`disk`], [`net`] | disks and network cards as the guest sees them |
//! | [`disk_file`] | the files behind disks: create, fill, compare |
//! | [`bmc`] | a BMC that answers, dawdles or is silent |
//! | [`pxe`] | the TFTP folder of a network boot |
//! | [`console`], [`watchdog`] | waiting for console output; signs of a hang |
//! | [`qmp`] | QEMU's control protocol |
//! | [`process`] | QEMU dies with the program that started it |
//! | [`accel`] | KVM or software emulation, and time limits to match |
//! | [`artifacts`] | where the built image, QEMU and firmware are |
//! | [`conductor`] | a stand-in Ironic: API, agent client, flows |
//! | [`image_server`] | HTTP server with ranges and faults |
//! | [`lab`] | the `lab` program: all of it together for a person |
//! | [`os_image`] | bootable operating system images to deploy, and tiny ones for tests |

pub mod accel;
pub mod artifacts;
pub mod bmc;
pub mod conductor;
pub mod console;
pub mod disk;
pub mod disk_file;
pub mod image_server;
pub mod lab;
pub mod machine;
pub mod net;
pub mod os_image;
pub mod process;
pub mod pxe;
pub mod qmp;
pub mod vm;
pub mod watchdog;

pub use accel::Accel;
pub use artifacts::Image;
pub use console::{Console, Pattern};
pub use disk::{Disk, DiskBus, DiskFormat, FaultyIo, IoFault, Throttle};
pub use disk_file::DiskFile;
pub use image_server::{Content, Fault, ImageServer};
pub use machine::{Bmc, Boot, Firmware, Machine};
pub use net::{Cable, Nic, NicModel};
pub use pxe::PxeTree;
pub use vm::{Shutdown, Vm, VmBuilder};
