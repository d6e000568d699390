//! What can go wrong with hardware managers and probes.

use ferric_types::error::{CommandError, ErrorClass};

/// A manager, a probe or the set of managers is not as it must be.
#[derive(Debug, thiserror::Error)]
pub enum HardwareError {
    /// Two managers of the image have the same name.
    #[error("hardware managers {first} and {second} are both named {name:?}")]
    DuplicateManager {
        /// The shared name.
        name: &'static str,
        /// Class of the one listed first.
        first: &'static str,
        /// Class of the other.
        second: &'static str,
    },
    /// A manager has two steps of the same name.
    #[error("hardware manager {manager} lists the step {step:?} twice")]
    DuplicateStep {
        /// Class of the manager.
        manager: &'static str,
        /// The step.
        step: &'static str,
    },
    /// No manager supports this machine, not even the generic one.
    #[error("no hardware manager of this image supports this machine")]
    NoManager,
    /// A manager leaves this to the managers below it.
    #[error("{manager} does not handle {what}")]
    Incompatible {
        /// Class of the manager.
        manager: &'static str,
        /// What was asked for.
        what: &'static str,
    },
    /// No manager in use has the probe.
    #[error("no hardware manager of this image can look for {what}")]
    NoProbe {
        /// What was asked for.
        what: &'static str,
    },
    /// A file of sysfs or procfs is missing or malformed.
    #[error(transparent)]
    Attr(#[from] ferric_sys::attr::AttrError),
    /// A program failed.
    #[error(transparent)]
    Exec(#[from] ferric_sys::ExecError),
}

impl HardwareError {
    /// Error class towards the conductor.
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::DuplicateManager { .. } | Self::DuplicateStep { .. } | Self::NoManager => {
                ErrorClass::HardwareManagerConfiguration
            }
            Self::NoProbe { .. } => ErrorClass::HardwareManagerMethodNotFound,
            Self::Incompatible { .. } => ErrorClass::IncompatibleHardwareMethod,
            Self::Attr(_) => ErrorClass::BlockDevice,
            Self::Exec(_) => ErrorClass::CommandExecution,
        }
    }
}

impl From<HardwareError> for CommandError {
    fn from(error: HardwareError) -> Self {
        Self::from_chain(error.class(), &error)
    }
}
