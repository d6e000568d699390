//! Command records: what the conductor reads back.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::CommandError;
use crate::progress::ProgressReport;

/// Where a command stands (protocol section 12).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum CommandStatus {
    /// Still at work.
    Running,
    /// Ended well.
    Succeeded,
    /// Ended with an error.
    Failed,
    /// The conductor's idea of the hardware managers' versions is out of date (used for clean, deploy and service).
    #[serde(rename = "CLEAN_VERSION_MISMATCH")]
    VersionMismatch,
}

/// One command as `GET /v1/commands/` shows it: five keys in this order, and `progress` while a long command runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CommandRecord {
    /// UUID of the command.
    pub id: String,
    /// Short name, such as `execute_clean_step`; the full name for a failed synchronous command.
    pub command_name: String,
    /// Where it stands.
    pub command_status: CommandStatus,
    /// Why it failed.
    pub command_error: Option<CommandError>,
    /// What it returned: null, an object or a list.
    pub command_result: Option<Value>,
    /// Live progress of a running command; Ironic ignores the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressReport>,
}
