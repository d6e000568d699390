//! `service`: list and run service steps.

use ferric_types::CommandError;
use ferric_types::step::StepKind;
use serde_json::Value;

use crate::command::{Command, CommandEntry, Context, Extension, Mode};
use crate::steps::{self, ExecuteParams, ListParams};

/// The extension.
pub const EXTENSION: Extension =
    Extension { name: "service", commands: &[CommandEntry::of::<GetSteps>(), CommandEntry::of::<ExecuteStep>()] };

struct GetSteps;

impl Command for GetSteps {
    const NAME: &'static str = "get_service_steps";
    const MODE: Mode = Mode::Sync;
    type Params = ListParams;
    type Reply = Value;

    fn run(context: &Context, params: ListParams) -> Result<Value, CommandError> {
        steps::list(context, StepKind::Service, params)
    }
}

struct ExecuteStep;

impl Command for ExecuteStep {
    const NAME: &'static str = "execute_service_step";
    const MODE: Mode = Mode::Async;
    type Params = ExecuteParams;
    type Reply = Value;

    fn run(context: &Context, params: ExecuteParams) -> Result<Value, CommandError> {
        steps::execute(context, StepKind::Service, params)
    }
}
