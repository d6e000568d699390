//! `log`: hand over everything that tells what happened.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ferric_types::CommandError;
use serde::Serialize;

use super::NoParams;
use crate::command::{Command, CommandEntry, Context, Extension, Mode};

/// The extension.
pub const EXTENSION: Extension = Extension { name: "log", commands: &[CommandEntry::of::<CollectSystemLogs>()] };

struct CollectSystemLogs;

/// Result of `log.collect_system_logs`.
#[derive(Debug, Serialize)]
struct Logs {
    /// base64 of a gzip-compressed tar archive.
    system_logs: String,
}

impl Command for CollectSystemLogs {
    const NAME: &'static str = "collect_system_logs";
    const MODE: Mode = Mode::Sync;
    type Params = NoParams;
    type Reply = Logs;

    fn run(context: &Context, _params: NoParams) -> Result<Logs, CommandError> {
        Ok(Logs { system_logs: STANDARD.encode(context.app.collect_logs()) })
    }
}
