//! NVMe: Format NVM and Sanitize (NVM Express base specification 1.4, sections 5.15, 5.23, 5.24 and 5.14.1.16.2).

use std::time::Duration;

use ferric_sys::ioctl::nvme::AdminCommand;

use super::super::plan::Sanitize;
use super::{ASK_LIMIT, Firmware, FirmwareError, POLL_PAUSE, POLLS, le16, le32};

const PAGE_BYTES: usize = 4096;
const IDENTIFY: u8 = 0x06;
const GET_LOG_PAGE: u8 = 0x02;
const FORMAT: u8 = 0x80;
const SANITIZE: u8 = 0x84;
/// What Identify is to describe.
const CNS_NAMESPACE: u32 = 0;
const CNS_CONTROLLER: u32 = 1;
const CNS_ACTIVE_NAMESPACES: u32 = 2;
const ALL_NAMESPACES: u32 = 0xffff_ffff;
/// Sanitize status, 512 bytes.
const LOG_SANITIZE: u32 = 0x81;
/// A drive without a key overwrites all of its flash; the kernel would reset the controller after its usual minute.
const FORMAT_LIMIT: Duration = Duration::from_secs(4 * 3600);

/// What a controller offers for one of its namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Controller {
    /// Whether it has Format NVM (OACS bit 1).
    pub has_format: bool,
    /// Whether formatting, or erasing by it, hits all namespaces (FNA bits 0 and 1).
    pub format_hits_all: bool,
    /// Whether it can throw its key away (FNA bit 2).
    pub has_crypto: bool,
    /// Whether Format takes no "all namespaces" (FNA bit 3).
    pub needs_namespace: bool,
    /// Sanitize operations: bits for crypto erase, block erase, overwrite (SANICAP).
    pub sanitize: u32,
    /// This namespace.
    pub nsid: u32,
    /// Its format as dword 10 of Format has it, which stays as it is.
    pub format: u32,
    /// Namespaces that the controller has.
    pub namespaces: Vec<u32>,
}

impl Controller {
    /// Asks the controller; also whether discarded blocks read as zeroes.
    pub(super) fn ask(firmware: &dyn Firmware) -> Result<(Self, bool), FirmwareError> {
        let send = |source| FirmwareError::Send { command: "the question for its namespace", source };
        let nsid = firmware.namespace().map_err(send)?;
        let controller = identify(firmware, CNS_CONTROLLER, 0)?;
        let namespace = identify(firmware, CNS_NAMESPACE, nsid)?;
        // Version 1.0 has no list.
        let list = identify(firmware, CNS_ACTIVE_NAMESPACES, 0).ok();
        Ok(Self::of(nsid, &controller, &namespace, list.as_deref()))
    }

    /// From the pages of Identify: controller, namespace, and active namespaces.
    pub fn of(nsid: u32, controller: &[u8], namespace: &[u8], list: Option<&[u8]>) -> (Self, bool) {
        let byte = |page: &[u8], at: usize| u32::from(page.get(at).copied().unwrap_or(0));
        let fna = byte(controller, 524);
        let namespaces = match list {
            Some(list) => (0..PAGE_BYTES / 4).map(|index| le32(list, index * 4)).take_while(|id| *id != 0).collect(),
            None => (1..=le32(controller, 516).clamp(1, 1024)).collect(),
        };
        let (flbas, dps) = (byte(namespace, 26), byte(namespace, 29));
        // Bits 6:5 only count where there are more than 16 formats.
        let upper = if byte(namespace, 25) > 15 { flbas >> 5 & 3 } else { 0 };
        let format = flbas & 0xf | (flbas >> 4 & 1) << 4 | (dps & 7) << 5 | (dps >> 3 & 1) << 8 | upper << 12;
        let offers = Self {
            has_format: le16(controller, 256) & 2 != 0,
            format_hits_all: fna & 3 != 0,
            has_crypto: fna & 4 != 0,
            needs_namespace: fna & 8 != 0,
            sanitize: le32(controller, 328) & 7,
            nsid,
            format,
            namespaces,
        };
        // ONCS bit 2: dataset management; DLFEAT bits 2:0: 1 for zeroes.
        let discards_to_zero = le16(controller, 520) & 4 != 0 && byte(namespace, 33) & 7 == 1;
        (offers, discards_to_zero)
    }
}

fn identify(firmware: &dyn Firmware, cns: u32, nsid: u32) -> Result<Vec<u8>, FirmwareError> {
    let mut page = vec![0; PAGE_BYTES];
    let command = AdminCommand { opcode: IDENTIFY, nsid, cdw10: cns, limit: ASK_LIMIT, ..AdminCommand::default() };
    send(firmware, "Identify", &command, &mut page)?;
    Ok(page)
}

fn send(
    firmware: &dyn Firmware,
    name: &'static str,
    command: &AdminCommand,
    data: &mut [u8],
) -> Result<(), FirmwareError> {
    match firmware.nvme(command, data) {
        Ok(0) => Ok(()),
        Ok(status) => Err(FirmwareError::Nvme { command: name, status }),
        Err(source) => Err(FirmwareError::Send { command: name, source }),
    }
}

/// Formats the namespace, or all of them, with its data erased: by throwing the key away, or all of it.
pub(crate) fn format(
    firmware: &dyn Firmware,
    controller: &Controller,
    crypto: bool,
    all: bool,
) -> Result<(), FirmwareError> {
    let secure = if crypto { 2 } else { 1 };
    let command = AdminCommand {
        opcode: FORMAT,
        nsid: if all && !controller.needs_namespace { ALL_NAMESPACES } else { controller.nsid },
        cdw10: controller.format | secure << 9,
        limit: FORMAT_LIMIT,
        ..AdminCommand::default()
    };
    send(firmware, "Format NVM", &command, &mut [])
}

/// State of the last sanitize operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Never,
    Done,
    Running(u16),
    Failed,
}

fn state(firmware: &dyn Firmware) -> Result<State, FirmwareError> {
    let mut page = [0; 512];
    let command = AdminCommand {
        opcode: GET_LOG_PAGE,
        nsid: ALL_NAMESPACES,
        // Dwords of the page, counted from zero.
        cdw10: LOG_SANITIZE | (512 / 4 - 1) << 16,
        limit: ASK_LIMIT,
        ..AdminCommand::default()
    };
    send(firmware, "Get Log Page (sanitize status)", &command, &mut page)?;
    Ok(match le16(&page, 2) & 7 {
        0 => State::Never,
        2 => State::Running(le16(&page, 0)),
        3 => State::Failed,
        _ => State::Done,
    })
}

/// Sanitizes the whole subsystem and waits for the end. One that is under way, begun before the machine was restarted, is
/// waited for first: no other command would be taken.
pub(crate) fn sanitize(firmware: &dyn Firmware, how: Sanitize, tell: &dyn Fn(u16)) -> Result<(), FirmwareError> {
    if matches!(state(firmware)?, State::Running(_)) {
        tracing::info!("waiting for a sanitize operation that was begun before");
        wait(firmware, tell)?;
    }
    let action = match how {
        Sanitize::Block => 2,
        // One pass, of zeroes.
        Sanitize::Overwrite => 3 | 1 << 4,
        Sanitize::Crypto => 4,
    };
    let command = AdminCommand { opcode: SANITIZE, cdw10: action, limit: ASK_LIMIT * 6, ..AdminCommand::default() };
    send(firmware, "Sanitize", &command, &mut [])?;
    match wait(firmware, tell)? {
        State::Done => Ok(()),
        _ => Err(FirmwareError::SanitizeFailed),
    }
}

fn wait(firmware: &dyn Firmware, tell: &dyn Fn(u16)) -> Result<State, FirmwareError> {
    for _ in 0..POLLS {
        match state(firmware)? {
            State::Running(part) => tell(part),
            state => return Ok(state),
        }
        firmware.pause(POLL_PAUSE);
    }
    Err(FirmwareError::TooSlow)
}

/// What a status means, for those that a drive gives to these commands; its type is in bits 10:8.
pub(super) fn words(status: u16) -> &'static str {
    match status & 0x7ff {
        0x001 => "it does not know the command",
        0x002 => "it does not offer this kind of it",
        0x006 => "internal error",
        0x00b => "no such namespace",
        0x015 => "not allowed now",
        0x01c => "an earlier sanitize operation failed",
        0x01d => "a sanitize operation is under way",
        0x020 => "write-protected",
        0x10a => "no such format",
        0x10b => "it wants to be reset for a new firmware",
        _ => "see the NVM Express specification",
    }
}
