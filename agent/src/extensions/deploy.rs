//! `deploy`: list and run deploy steps; `deploy.prepare_image` is another name of `standby.prepare_image`.

use ferric_types::CommandError;
use ferric_types::step::StepKind;
use serde_json::Value;

use super::standby::prepare_image::PrepareImage;
use crate::command::{Command, CommandEntry, Context, Extension, Mode};
use crate::steps::{self, ExecuteParams, ListParams};

/// The extension.
pub const EXTENSION: Extension = Extension {
    name: "deploy",
    commands: &[CommandEntry::of::<GetSteps>(), CommandEntry::of::<ExecuteStep>(), CommandEntry::of::<PrepareImage>()],
};

struct GetSteps;

impl Command for GetSteps {
    const NAME: &'static str = "get_deploy_steps";
    const MODE: Mode = Mode::Sync;
    type Params = ListParams;
    type Reply = Value;

    fn run(context: &Context, params: ListParams) -> Result<Value, CommandError> {
        steps::list(context, StepKind::Deploy, params)
    }
}

struct ExecuteStep;

impl Command for ExecuteStep {
    const NAME: &'static str = "execute_deploy_step";
    const MODE: Mode = Mode::Async;
    type Params = ExecuteParams;
    type Reply = Value;

    fn run(context: &Context, params: ExecuteParams) -> Result<Value, CommandError> {
        steps::execute(context, StepKind::Deploy, params)
    }
}
