//! Erasing by the disk itself: what it offers, and telling it to.
//!
//! The commands go through [`Firmware`], so that tests can put recorded pages and a drive made of a few flags in its place.

pub(super) mod ata;
pub(super) mod nvme;
pub(super) mod scsi;

use std::io;
use std::time::Duration;

use ferric_sys::block_dev::BlockDev;
use ferric_sys::ioctl::nvme::{AdminCommand, admin, namespace_id};
use ferric_sys::ioctl::sg::{self, Answer, Data};

use super::plan::Policy;

use self::ata::Security;
use self::nvme::Controller;
use self::scsi::{Offers, Sense};

/// Longest wait for an answer to a question.
const ASK_LIMIT: Duration = Duration::from_secs(10);
/// Pause between two looks at how far a disk is.
const POLL_PAUSE: Duration = Duration::from_secs(1);
/// A disk that has not sanitized itself in this time never will: three days.
const POLLS: u32 = 3 * 24 * 3600;

/// How commands reach a disk.
pub trait Firmware {
    /// Sends an admin command to an NVMe controller; gives its status.
    ///
    /// # Errors
    /// The command could not be sent.
    fn nvme(&self, command: &AdminCommand, data: &mut [u8]) -> io::Result<u16>;

    /// Number of the NVMe namespace.
    ///
    /// # Errors
    /// It is none.
    fn namespace(&self) -> io::Result<u32>;

    /// Sends a SCSI command.
    ///
    /// # Errors
    /// The command could not be sent.
    fn scsi(&self, command: &[u8], data: Data<'_>, limit: Duration) -> io::Result<Answer>;

    /// Lets time go by.
    fn pause(&self, time: Duration);
}

impl Firmware for BlockDev {
    fn nvme(&self, command: &AdminCommand, data: &mut [u8]) -> io::Result<u16> {
        admin(self, command, data)
    }

    fn namespace(&self) -> io::Result<u32> {
        namespace_id(self)
    }

    fn scsi(&self, command: &[u8], data: Data<'_>, limit: Duration) -> io::Result<Answer> {
        sg::execute(self, command, data, limit)
    }

    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// A disk did not do what it was told.
#[derive(Debug, thiserror::Error)]
pub enum FirmwareError {
    /// The command did not reach it, or its answer did not come back.
    #[error("sending {command}")]
    Send {
        /// Command.
        command: &'static str,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// An NVMe controller refused or failed.
    #[error("the controller answered {command} with status {status:#x} ({})", nvme::words(*status))]
    Nvme {
        /// Command.
        command: &'static str,
        /// Status code and type.
        status: u16,
    },
    /// A SCSI disk or its adapter refused or failed.
    #[error("the disk answered {command} with sense {:x}/{:02x}/{:02x}", sense.key, sense.asc, sense.ascq)]
    Scsi {
        /// Command.
        command: &'static str,
        /// Reason that it gave.
        sense: Sense,
    },
    /// The disk's security is frozen until it loses power.
    #[error("its security settings are frozen")]
    Frozen,
    /// The disk is locked by a password that is not ours.
    #[error("it already has a security password set{}", if *expired { ", and takes no more tries until it loses power" } else { "" })]
    Locked {
        /// Whether too many wrong passwords were tried.
        expired: bool,
    },
    /// The disk says that it has erased itself and has kept the password, which erasing removes.
    #[error("an unknown error occurred: the security password is still set")]
    StillEnabled,
    /// The disk itself says that sanitizing failed.
    #[error("the disk says that sanitizing failed")]
    SanitizeFailed,
    /// The disk is of another kind.
    #[error("it has no such command")]
    NotOffered,
    /// The disk never came to an end.
    #[error("it was not done after {} hours", POLLS / 3600)]
    TooSlow,
}

/// How a disk is attached, which decides what it can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bus {
    /// NVMe.
    Nvme,
    /// ATA commands reach it: SATA, also behind a SAS adapter.
    Ata,
    /// A SCSI disk.
    Scsi,
    /// Nothing but reads and writes: USB bridges, RAID controllers, virtual disks, SD cards.
    Other,
}

/// What a disk says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Drive {
    /// An NVMe namespace and its controller.
    Nvme(Controller),
    /// An NVMe namespace that does not answer.
    Silent {
        /// What was tried and what came of it.
        reason: String,
    },
    /// An ATA disk with the security feature set.
    Ata(Security),
    /// A SCSI disk.
    Scsi(Offers),
    /// One with nothing to offer.
    Plain,
}

/// What the plan for a disk is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The disk.
    pub drive: Drive,
    /// Whether it promises that what is discarded reads as zeroes.
    pub discard_reads_zero: bool,
}

impl Facts {
    /// Asks a disk, a SCSI one only for what is wanted. Whatever does not answer has nothing to offer; only from NVMe an
    /// answer is expected.
    pub fn ask(firmware: &dyn Firmware, bus: Bus, policy: &Policy) -> Self {
        const PLAIN: Facts = Facts { drive: Drive::Plain, discard_reads_zero: false };
        match bus {
            Bus::Nvme => match Controller::ask(firmware) {
                Ok((controller, discard_reads_zero)) => Self { drive: Drive::Nvme(controller), discard_reads_zero },
                Err(error) => Self {
                    drive: Drive::Silent { reason: ferric_types::error::chain(&error) },
                    discard_reads_zero: false,
                },
            },
            Bus::Ata => match ata::identify(firmware) {
                Ok(words) => Self {
                    drive: Security::of(&words).map_or(Drive::Plain, Drive::Ata),
                    discard_reads_zero: ata::trims_to_zero(&words),
                },
                Err(error) => {
                    tracing::debug!(error = ferric_types::error::chain(&error), "no ATA commands reach the disk");
                    PLAIN
                }
            },
            Bus::Scsi => {
                let drive = if policy.sanitize { Drive::Scsi(Offers::ask(firmware)) } else { Drive::Plain };
                let discard_reads_zero = policy.passes.are_one_of_zeroes() && scsi::unmaps_to_zero(firmware);
                Self { drive, discard_reads_zero }
            }
            Bus::Other => PLAIN,
        }
    }
}

/// Two bytes of a page, least significant first; what the page does not have is zero.
fn le16(page: &[u8], at: usize) -> u16 {
    page.get(at..at + 2).map_or(0, |bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
}

/// Four bytes, as [`le16`].
fn le32(page: &[u8], at: usize) -> u32 {
    u32::from(le16(page, at)) | u32::from(le16(page, at + 2)) << 16
}
