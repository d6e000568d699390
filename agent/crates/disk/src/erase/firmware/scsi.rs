//! SCSI: SANITIZE and what unmapped blocks read as (SBC-4 sections 4.11, 5.31 and 6.6.7; SPC-5 sections 4.4 and 6.35).

use std::time::Duration;

use ferric_sys::ioctl::sg::Data;

use super::super::plan::Sanitize;
use super::{ASK_LIMIT, Firmware, FirmwareError, POLL_PAUSE, POLLS};

const INQUIRY: u8 = 0x12;
const REQUEST_SENSE: u8 = 0x03;
const SANITIZE: u8 = 0x48;
const MAINTENANCE_IN: u8 = 0xa3;
const REPORT_SUPPORTED_OPCODES: u8 = 0x0c;
/// Vital product data about thin provisioning.
const PROVISIONING: u8 = 0xb2;

/// Why a command ended as it did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sense {
    /// Sense key.
    pub key: u8,
    /// Additional sense code.
    pub asc: u8,
    /// Its qualifier.
    pub ascq: u8,
    /// How far a long operation is, in parts of 65,536.
    pub progress: Option<u16>,
}

impl Sense {
    /// Reads sense data of either format; none at all is all zeroes.
    pub fn of(data: &[u8]) -> Self {
        let byte = |at: usize| data.get(at).copied().unwrap_or(0);
        let specific = |at: usize| (byte(at) & 0x80 != 0).then(|| u16::from_be_bytes([byte(at + 1), byte(at + 2)]));
        match byte(0) & 0x7f {
            0x70 | 0x71 => Self { key: byte(2) & 0xf, asc: byte(12), ascq: byte(13), progress: specific(15) },
            0x72 | 0x73 => {
                let mut at = 8;
                while at < data.len() && byte(at) != 2 {
                    at += usize::from(byte(at + 1)) + 2;
                }
                let progress = if at < data.len() { specific(at + 4) } else { None };
                Self { key: byte(1) & 0xf, asc: byte(2), ascq: byte(3), progress }
            }
            _ => Self::default(),
        }
    }

    const fn is(self, asc: u8, ascq: u8) -> bool {
        self.asc == asc && self.ascq == ascq
    }
}

/// Ways of SANITIZE that a disk has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offers {
    /// Throws its key away.
    pub crypto: bool,
    /// Erases its flash.
    pub block: bool,
    /// Writes over everything.
    pub overwrite: bool,
}

const fn service_action(how: Sanitize) -> u8 {
    match how {
        Sanitize::Overwrite => 1,
        Sanitize::Block => 2,
        Sanitize::Crypto => 3,
    }
}

impl Offers {
    pub(super) fn ask(firmware: &dyn Firmware) -> Self {
        let has = |how| {
            let mut answer = [0; 32];
            // One command, by opcode and service action.
            let command =
                [MAINTENANCE_IN, REPORT_SUPPORTED_OPCODES, 2, SANITIZE, 0, service_action(how), 0, 0, 0, 32, 0, 0];
            let asked = scsi(firmware, "REPORT SUPPORTED OPERATION CODES", &command, Data::In(&mut answer), ASK_LIMIT);
            // 3: as the standard has it; 5: in the maker's own way.
            asked.is_ok() && matches!(answer[1] & 7, 3 | 5)
        };
        Self { crypto: has(Sanitize::Crypto), block: has(Sanitize::Block), overwrite: has(Sanitize::Overwrite) }
    }
}

/// Whether unmapped blocks certainly read as zeroes: LBPU and LBPRZ of the page about provisioning.
pub(super) fn unmaps_to_zero(firmware: &dyn Firmware) -> bool {
    let mut page = [0; 64];
    let command = [INQUIRY, 1, PROVISIONING, 0, 64, 0];
    let asked = scsi(firmware, "INQUIRY", &command, Data::In(&mut page), ASK_LIMIT);
    asked.is_ok() && page[1] == PROVISIONING && page[5] & 0x80 != 0 && page[5] >> 2 & 7 == 1
}

/// Sends a command whose refusal is an error.
pub(super) fn scsi(
    firmware: &dyn Firmware,
    name: &'static str,
    command: &[u8],
    data: Data<'_>,
    limit: Duration,
) -> Result<(), FirmwareError> {
    let answer = firmware.scsi(command, data, limit).map_err(|source| FirmwareError::Send { command: name, source })?;
    if answer.is_good() {
        return Ok(());
    }
    if answer.sense.is_empty() {
        return Err(FirmwareError::Send { command: name, source: answer.refused() });
    }
    Err(FirmwareError::Scsi { command: name, sense: Sense::of(&answer.sense) })
}

/// Sanitizes the disk and waits for the end. Nothing can stop it, a loss of power included.
pub(crate) fn sanitize(firmware: &dyn Firmware, how: Sanitize, tell: &dyn Fn(u16)) -> Result<(), FirmwareError> {
    // One pass of a pattern of four bytes.
    let parameters = [1, 0, 0, 4, 0, 0, 0, 0];
    let (length, data) = match how {
        Sanitize::Overwrite => (8, Data::Out(&parameters)),
        Sanitize::Block | Sanitize::Crypto => (0, Data::None),
    };
    // Answered at once; the disk goes on by itself.
    let command = [SANITIZE, 0x80 | service_action(how), 0, 0, 0, 0, 0, 0, length, 0];
    scsi(firmware, "SANITIZE", &command, data, ASK_LIMIT * 6)?;
    for _ in 0..POLLS {
        let mut data = [0; 252];
        scsi(firmware, "REQUEST SENSE", &[REQUEST_SENSE, 0, 0, 0, 252, 0], Data::In(&mut data), ASK_LIMIT)?;
        let sense = Sense::of(&data);
        if sense.is(0x31, 0x03) {
            return Err(FirmwareError::SanitizeFailed);
        }
        if !sense.is(0x04, 0x1b) {
            return Ok(());
        }
        tell(sense.progress.unwrap_or(0));
        firmware.pause(POLL_PAUSE);
    }
    Err(FirmwareError::TooSlow)
}
