//! `clean`: list and run clean steps.

use ferric_types::CommandError;
use ferric_types::step::StepKind;
use serde_json::Value;

use crate::command::{Command, CommandEntry, Context, Extension, Mode};
use crate::steps::{self, ExecuteParams, ListParams};

/// The extension.
pub const EXTENSION: Extension =
    Extension { name: "clean", commands: &[CommandEntry::of::<GetSteps>(), CommandEntry::of::<ExecuteStep>()] };

struct GetSteps;

impl Command for GetSteps {
    const NAME: &'static str = "get_clean_steps";
    const MODE: Mode = Mode::Sync;
    type Params = ListParams;
    type Reply = Value;

    fn run(context: &Context, params: ListParams) -> Result<Value, CommandError> {
        steps::list(context, StepKind::Clean, params)
    }
}

struct ExecuteStep;

impl Command for ExecuteStep {
    const NAME: &'static str = "execute_clean_step";
    const MODE: Mode = Mode::Async;
    type Params = ExecuteParams;
    type Reply = Value;

    fn run(context: &Context, params: ExecuteParams) -> Result<Value, CommandError> {
        steps::execute(context, StepKind::Clean, params)
    }
}
