//! `flow`: several commands in a row. Ironic does not use it.

use ferric_types::{CommandError, ErrorClass};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::command::{Command, CommandEntry, Context, Extension, Mode, dispatch};

/// The extension.
pub const EXTENSION: Extension = Extension { name: "flow", commands: &[CommandEntry::of::<StartFlow>()] };

struct StartFlow;

/// Parameters of `flow.start_flow`: objects of one key, the full command name, whose value holds its parameters.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    flow: Vec<Map<String, Value>>,
}

impl Params {
    fn members(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.flow.iter().flatten()
    }
}

impl Command for StartFlow {
    const NAME: &'static str = "start_flow";
    const MODE: Mode = Mode::Async;
    type Params = Params;
    type Reply = ();

    fn validate(context: &Context, params: &Params) -> Result<(), CommandError> {
        for (name, params) in params.members() {
            let (extension, command) = dispatch::split(name)?;
            dispatch::find(context.app.extensions, extension, command).map_err(|error| match error.class {
                ErrorClass::InvalidCommand => CommandError::new(
                    ErrorClass::InvalidCommandParams,
                    format!("Extension {extension} doesn't provide {command} method"),
                ),
                _ => error,
            })?;
            if !params.is_object() {
                return Err(CommandError::new(
                    ErrorClass::InvalidCommandParams,
                    format!("Parameters of {name} must be an object, not {params}"),
                ));
            }
        }
        Ok(())
    }

    fn run(context: &Context, params: Params) -> Result<(), CommandError> {
        for (name, params) in params.members() {
            let (extension, command) = dispatch::split(name)?;
            let entry = dispatch::find(context.app.extensions, extension, command)?;
            let params = params.as_object().cloned().unwrap_or_default();
            let outcome = entry.prepare(context, params).and_then(|job| job(context));
            if let Err(error) = outcome {
                return Err(CommandError::new(ErrorClass::CommandExecution, format!("`{name}` was failed: {error}")));
            }
        }
        Ok(())
    }
}
