//! Steps of cleaning, deploying and servicing.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Which list of steps: each has its own extension and wire keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StepKind {
    /// `clean.get_clean_steps`, `clean.execute_clean_step`
    Clean,
    /// `deploy.get_deploy_steps`, `deploy.execute_deploy_step`
    Deploy,
    /// `service.get_service_steps`, `service.execute_service_step`
    Service,
}

impl StepKind {
    /// `clean`, `deploy` or `service`, the first word of every wire key of the kind.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Deploy => "deploy",
            Self::Service => "service",
        }
    }
}

/// A step as `get_*_steps` announces it (commands section 3).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepInfo {
    /// Name of the step.
    pub step: String,
    /// 0 means only on request; else higher runs earlier.
    pub priority: u32,
    /// Driver interface of the conductor it belongs to: `deploy`, `raid`, ...
    pub interface: String,
    /// Whether the machine must be rebooted after it.
    pub reboot_requested: bool,
    /// Whether the operator may abort it; absent for deploy steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abortable: Option<bool>,
    /// Arguments; a step without it cannot be given any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argsinfo: Option<Map<String, Value>>,
}
