//! Errors as Ironic sees them: one class per error type of the reference agent.

use std::fmt;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

/// Which of the reference agent's error classes an error is (commands section 7).
///
/// The conductor reads the type name, the code and the two texts; the class decides the first three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each variant is the wire class of the same name; `row` says what it means")]
pub enum ErrorClass {
    Rest,
    InvalidContent,
    NotFound,
    CommandExecution,
    InvalidCommand,
    InvalidCommandParams,
    RequestedObjectNotFound,
    AgentIsBusy,
    ImageDownload,
    ImageDownloadFatal,
    ImageDownloadOutOfSpace,
    ImageDownloadTimeout,
    ImageChecksum,
    ImageWrite,
    InvalidImage,
    SystemReboot,
    BlockDeviceErase,
    BlockDevice,
    SoftwareRaid,
    VirtualMediaBoot,
    UnknownNode,
    HardwareManagerMethodNotFound,
    HardwareManagerConfiguration,
    IncompatibleHardwareMethod,
    VersionMismatch,
    Cleaning,
    Deployment,
    Servicing,
    ProtectedDevice,
    DeviceNotFound,
    ClockSync,
    FileSystemNotSupported,
}

impl ErrorClass {
    /// Type name, status code and message on the wire.
    const fn row(self) -> (&'static str, u16, &'static str) {
        match self {
            Self::Rest => ("RESTError", 500, "An error occurred"),
            Self::InvalidContent => ("InvalidContentError", 400, "Invalid request body"),
            Self::NotFound => ("NotFound", 404, "Not found"),
            Self::CommandExecution => ("CommandExecutionError", 500, "Command execution failed"),
            Self::InvalidCommand => ("InvalidCommandError", 400, "Invalid command"),
            Self::InvalidCommandParams => ("InvalidCommandParamsError", 400, "Invalid command parameters"),
            Self::RequestedObjectNotFound => ("RequestedObjectNotFoundError", 404, "Not found"),
            Self::AgentIsBusy => ("AgentIsBusy", 409, "Agent is busy"),
            Self::ImageDownload => ("ImageDownloadError", 500, "Error downloading image"),
            Self::ImageDownloadFatal => ("ImageDownloadFatalError", 500, "Error downloading image"),
            Self::ImageDownloadOutOfSpace => ("ImageDownloadOutofSpaceError", 500, "Error downloading image"),
            Self::ImageDownloadTimeout => ("ImageDownloadTimeoutError", 408, "Image download timeout"),
            Self::ImageChecksum => ("ImageChecksumError", 500, "Error verifying image checksum"),
            Self::ImageWrite => ("ImageWriteError", 500, "Error writing image to device"),
            Self::InvalidImage => ("InvalidImage", 500, "The provided image is not valid for use"),
            Self::SystemReboot => ("SystemRebootError", 500, "Error rebooting system"),
            Self::BlockDeviceErase => ("BlockDeviceEraseError", 500, "Error erasing block device"),
            Self::BlockDevice => ("BlockDeviceError", 500, "Block device caused unknown error"),
            Self::SoftwareRaid => ("SoftwareRAIDError", 500, "Software RAID caused unknown error"),
            Self::VirtualMediaBoot => ("VirtualMediaBootError", 500, "Configuring agent from virtual media failed"),
            Self::UnknownNode => ("UnknownNodeError", 500, "Agent is not associated with an Ironic node"),
            Self::HardwareManagerMethodNotFound => {
                ("HardwareManagerMethodNotFound", 500, "No HardwareManager found to handle method")
            }
            Self::HardwareManagerConfiguration => {
                ("HardwareManagerConfigurationError", 500, "Hardware manager configuration error")
            }
            Self::IncompatibleHardwareMethod => {
                ("IncompatibleHardwareMethodError", 500, "HardwareManager method is not compatible with hardware")
            }
            Self::VersionMismatch => {
                ("VersionMismatch", 409, "Hardware managers version mismatch, reload agent with correct version")
            }
            Self::Cleaning => ("CleaningError", 500, "Clean step failed"),
            Self::Deployment => ("DeploymentError", 500, "Deploy step failed"),
            Self::Servicing => ("ServicingError", 500, "Service step failed"),
            Self::ProtectedDevice => ("ProtectedDeviceError", 500, "Protected device located"),
            Self::DeviceNotFound => {
                ("DeviceNotFound", 404, "Error finding the disk or partition device to deploy the image onto")
            }
            Self::ClockSync => ("ClockSyncError", 500, "Error syncing system clock"),
            Self::FileSystemNotSupported => ("FileSystemNotSupported", 500, "File system not supported"),
        }
    }

    /// Class name on the wire, such as `ImageChecksumError`.
    pub const fn type_name(self) -> &'static str {
        self.row().0
    }

    /// HTTP status code of the class.
    pub const fn code(self) -> u16 {
        self.row().1
    }

    /// Fixed first part of the error text.
    pub const fn message(self) -> &'static str {
        self.row().2
    }

    /// Whether the class means that the request's content is at fault, so that it is answered with HTTP 400 and
    /// leaves no command record (commands section 1).
    pub const fn is_invalid_content(self) -> bool {
        matches!(self, Self::InvalidContent | Self::InvalidCommand | Self::InvalidCommandParams)
    }
}

/// Why a command failed, as the conductor shows it to the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandError {
    /// Error class; decides type name, code and message.
    pub class: ErrorClass,
    /// What the operator reads in the node's `last_error`.
    pub details: String,
}

impl CommandError {
    /// An error of the given class with the text that the operator will see.
    pub fn new(class: ErrorClass, details: impl Into<String>) -> Self {
        Self { class, details: details.into() }
    }

    /// An error whose details are the error's whole source chain joined with `: `.
    pub fn from_chain(class: ErrorClass, error: &dyn std::error::Error) -> Self {
        Self { class, details: chain(error) }
    }

    /// First part of the text; the protected-device class repeats its details here (hardware section 5.6).
    pub fn message(&self) -> &str {
        if self.class == ErrorClass::ProtectedDevice { &self.details } else { self.class.message() }
    }
}

/// The texts of an error and of its sources, joined with `: `, each only once.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let part = cause.to_string();
        if !text.ends_with(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        source = cause.source();
    }
    text
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.message() == self.details {
            f.write_str(&self.details)
        } else {
            write!(f, "{}: {}", self.message(), self.details)
        }
    }
}

impl std::error::Error for CommandError {}

impl Serialize for CommandError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("CommandError", 4)?;
        object.serialize_field("type", self.class.type_name())?;
        object.serialize_field("code", &self.class.code())?;
        object.serialize_field("message", self.message())?;
        object.serialize_field("details", &self.details)?;
        object.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_object_has_the_four_keys_in_order() {
        let error = CommandError::new(ErrorClass::ImageChecksum, "no match");
        assert_eq!(
            serde_json::to_string(&error).unwrap(),
            r#"{"type":"ImageChecksumError","code":500,"message":"Error verifying image checksum","details":"no match"}"#
        );
        assert_eq!(error.to_string(), "Error verifying image checksum: no match");
    }

    #[test]
    fn protected_device_says_its_text_once() {
        let error = CommandError::new(ErrorClass::ProtectedDevice, "Protected VMFS located on device /dev/sda.");
        assert_eq!(error.to_string(), "Protected VMFS located on device /dev/sda.");
        assert_eq!(error.message(), error.details);
    }

    #[derive(Debug, thiserror::Error)]
    #[error("writing /dev/sda")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn details_hold_the_whole_chain() {
        let error = Outer(std::io::Error::other("disk on fire"));
        assert_eq!(CommandError::from_chain(ErrorClass::ImageWrite, &error).details, "writing /dev/sda: disk on fire");
    }
}
