//! ATA: the security feature set, by ATA PASS-THROUGH (16) (ATA8-ACS sections 4.19 and 7.45 to 7.50, SAT-3 section 12.2).
//!
//! A drive erases itself only with a password set, which erasing removes. What is set here is the empty one, as `hdparm`
//! calls it `NULL`: whoever comes after an interrupted erasure, this program or another agent, can unlock the drive by it.

use std::time::Duration;

use ferric_sys::ioctl::sg::Data;

use super::scsi::scsi;
use super::{ASK_LIMIT, Firmware, FirmwareError, le16};

const IDENTIFY_DEVICE: u8 = 0xec;
const SET_PASSWORD: u8 = 0xf1;
const UNLOCK: u8 = 0xf2;
const ERASE_PREPARE: u8 = 0xf3;
const ERASE_UNIT: u8 = 0xf4;
const DISABLE_PASSWORD: u8 = 0xf6;
const SECTOR: usize = 512;
const PASSWORD_BYTES: usize = 32;
/// For drives that do not say how long they need: a week, more than the largest disk takes.
const UNKNOWN_LIMIT: Duration = Duration::from_secs(7 * 24 * 3600);
/// The least that is waited: estimates of solid state disks are minutes, and some exceed them.
const LEAST_LIMIT: Duration = Duration::from_secs(1800);

/// Words of IDENTIFY DEVICE, as bytes.
pub(super) type Words = [u8; SECTOR];

/// State of a drive's security (words 89, 90 and 128).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Security {
    /// A password is set.
    pub enabled: bool,
    /// Nothing can be read or written without the password.
    pub locked: bool,
    /// Nothing can be changed until the drive loses power: most firmware does so at boot.
    pub frozen: bool,
    /// Too many wrong passwords.
    pub expired: bool,
    /// Also erases what was taken out of use, with a pattern of the maker.
    pub has_enhanced: bool,
    /// How long erasing takes, by the drive's own word; `None` when it does not say, or more than it can say.
    pub estimate: Option<Duration>,
    /// The same for the enhanced kind.
    pub enhanced_estimate: Option<Duration>,
}

impl Security {
    /// `None` when the drive does not have the feature set.
    pub fn of(words: &[u8; SECTOR]) -> Option<Self> {
        let word = |number: usize| le16(words, number * 2);
        let status = word(128);
        let bit = |number: u16| status >> number & 1 == 1;
        bit(0).then(|| Self {
            enabled: bit(1),
            locked: bit(2),
            frozen: bit(3),
            expired: bit(4),
            has_enhanced: bit(5),
            estimate: minutes(word(89)),
            enhanced_estimate: minutes(word(90)),
        })
    }

    /// How long it takes.
    pub fn estimate_of(&self, enhanced: bool) -> Option<Duration> {
        if enhanced { self.enhanced_estimate } else { self.estimate }
    }
}

/// Steps of two minutes in the low byte, or in fifteen bits where the highest bit says so.
fn minutes(word: u16) -> Option<Duration> {
    let (count, most) = if word & 0x8000 == 0 { (word & 0xff, 0xff) } else { (word & 0x7fff, 0x7fff) };
    (count != 0 && count != most).then(|| Duration::from_secs(u64::from(count) * 120))
}

/// Whether trimmed sectors certainly read as zeroes: word 169 bit 0, word 69 bits 14 and 5.
pub(super) fn trims_to_zero(words: &Words) -> bool {
    le16(words, 169 * 2) & 1 == 1 && le16(words, 69 * 2) & 0x4020 == 0x4020
}

pub(super) fn identify(firmware: &dyn Firmware) -> Result<Words, FirmwareError> {
    let mut words = [0; SECTOR];
    // Data in by programmed transfer; its direction, and its length in blocks in the count field.
    let command = pass_through(4, 0x0e, IDENTIFY_DEVICE);
    scsi(firmware, "IDENTIFY DEVICE", &command, Data::In(&mut words), ASK_LIMIT)?;
    Ok(words)
}

const fn pass_through(protocol: u8, flags: u8, command: u8) -> [u8; 16] {
    let blocks = if flags == 0 { 0 } else { 1 };
    [0x85, protocol << 1, flags, 0, 0, 0, blocks, 0, 0, 0, 0, 0, 0, 0, command, 0]
}

/// A command that sends a block with the user's password.
fn with_password(
    firmware: &dyn Firmware,
    name: &'static str,
    command: u8,
    control: u8,
    password: &[u8],
    limit: Duration,
) -> Result<(), FirmwareError> {
    let mut block = [0; SECTOR];
    block[0] = control;
    for (to, from) in block[2..2 + PASSWORD_BYTES].iter_mut().zip(password) {
        *to = *from;
    }
    // Data out by programmed transfer.
    scsi(firmware, name, &pass_through(5, 0x06, command), Data::Out(&block), limit)
}

fn state(firmware: &dyn Firmware) -> Result<Security, FirmwareError> {
    Ok(Security::of(&identify(firmware)?).unwrap_or_default())
}

/// Passwords that an earlier erasure may have left.
const OURS: [&[u8]; 2] = [b"", b"NULL"];

/// Unlocks a drive with what an interrupted erasure leaves; gives its state and the password that fits.
fn unlock(firmware: &dyn Firmware, mut state_now: Security) -> Result<(Security, &'static [u8]), FirmwareError> {
    for password in OURS {
        if !state_now.locked {
            return Ok((state_now, password));
        }
        match with_password(firmware, "SECURITY UNLOCK", UNLOCK, 0, password, ASK_LIMIT) {
            Ok(()) => {
                state_now = state(firmware)?;
                if !state_now.locked {
                    return Ok((state_now, password));
                }
            }
            Err(error) => tracing::debug!(error = ferric_types::error::chain(&error), "not this password"),
        }
    }
    Err(FirmwareError::Locked { expired: state(firmware)?.expired })
}

/// Unlocks a drive that is locked by a password of ours; whether there was such a drive.
pub(crate) fn unlock_ours(firmware: &dyn Firmware) -> bool {
    match state(firmware) {
        Ok(security) if security.locked && !security.frozen => match unlock(firmware, security) {
            Ok(_) => true,
            Err(error) => {
                tracing::warn!(error = ferric_types::error::chain(&error), "a drive stays locked");
                false
            }
        },
        _ => false,
    }
}

/// Erases the drive, from whatever state it is in (hardware section 5.2), and waits for the end. Nothing can stop it.
pub(crate) fn erase(firmware: &dyn Firmware, enhanced: bool) -> Result<(), FirmwareError> {
    let begin = state(firmware)?;
    if begin.frozen {
        return Err(FirmwareError::Frozen);
    }
    let (security, password) = unlock(firmware, begin)?;
    if !security.enabled {
        with_password(firmware, "SECURITY SET PASSWORD", SET_PASSWORD, 0, password, ASK_LIMIT)?;
    }
    let limit = security.estimate_of(enhanced).map_or(UNKNOWN_LIMIT, |time| (time * 4).max(LEAST_LIMIT));
    let control = if enhanced { 2 } else { 0 };
    let erased = scsi(firmware, "SECURITY ERASE PREPARE", &pass_through(3, 0, ERASE_PREPARE), Data::None, ASK_LIMIT)
        .and_then(|()| with_password(firmware, "SECURITY ERASE UNIT", ERASE_UNIT, control, password, limit));
    if let Err(error) = erased {
        open_again(firmware);
        return Err(error);
    }
    if state(firmware)?.enabled {
        open_again(firmware);
        return Err(FirmwareError::StillEnabled);
    }
    Ok(())
}

/// After a failure: without this the drive would be locked at the next power-on, and could not be overwritten now.
fn open_again(firmware: &dyn Firmware) {
    let opened = state(firmware).and_then(|now| unlock(firmware, now)).and_then(|(now, password)| {
        if now.enabled {
            with_password(firmware, "SECURITY DISABLE PASSWORD", DISABLE_PASSWORD, 0, password, ASK_LIMIT)?;
        }
        Ok(())
    });
    if let Err(error) = opened {
        tracing::warn!(error = ferric_types::error::chain(&error), "the drive keeps the security password");
    }
}
