//! The shape of a command and of the compile-time table of extensions.

use std::any::Any;
use std::cell::RefCell;
use std::sync::Arc;

use ferric_types::{CommandError, ErrorClass, Progress};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde::de::value::MapDeserializer;
use serde_json::{Map, Value};

use crate::app::App;

/// How a command is run (commands section 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Inside the request: the record is finished when the answer is sent.
    Sync,
    /// In the background: the answer holds a running record, and a heartbeat is forced at the end.
    Async,
}

/// What a command may use while it runs. Commands are blocking code on a thread of their own.
#[derive(Debug, Clone)]
pub struct Context {
    /// The agent.
    pub app: Arc<App>,
    /// Where the command reports its progress.
    pub progress: Progress,
}

/// One command of an extension: a unit struct with this trait.
pub trait Command: 'static {
    /// Name within the extension, such as `execute_clean_step`.
    const NAME: &'static str;
    /// Inside the request or in the background.
    const MODE: Mode;
    /// Parameters, as the object under `params`. Use `deny_unknown_fields` unless the specification says otherwise.
    type Params: DeserializeOwned + Send + 'static;
    /// What the record shows as the result.
    type Reply: Serialize + 'static;

    /// Checks parameters before the command is accepted. An error of an invalid-content class is answered with
    /// HTTP 400 and leaves no record; any other becomes a failed record.
    ///
    /// # Errors
    /// Whatever makes the parameters unusable.
    fn validate(_context: &Context, _params: &Self::Params) -> Result<(), CommandError> {
        Ok(())
    }

    /// Does the work. A panic in here fails this command only.
    ///
    /// # Errors
    /// Whatever the operator should read as the node's last error.
    fn run(context: &Context, params: Self::Params) -> Result<Self::Reply, CommandError>;
}

/// A command that has its parameters and can be started.
pub type Job = Box<dyn FnOnce(&Context) -> Result<Value, CommandError> + Send>;

/// One row of an extension's table, made from a [`Command`] by [`CommandEntry::of`].
#[derive(Debug, Clone, Copy)]
pub struct CommandEntry {
    /// Name within the extension.
    pub name: &'static str,
    /// Inside the request or in the background.
    pub mode: Mode,
    prepare: fn(&Context, Map<String, Value>) -> Result<Job, CommandError>,
}

impl CommandEntry {
    /// The row of a command.
    pub const fn of<C: Command>() -> Self {
        Self { name: C::NAME, mode: C::MODE, prepare: prepare::<C> }
    }

    /// Reads and checks the parameters.
    ///
    /// # Errors
    /// Parameters of the wrong shape, or refused by the command.
    pub fn prepare(&self, context: &Context, params: Map<String, Value>) -> Result<Job, CommandError> {
        (self.prepare)(context, params)
    }
}

fn prepare<C: Command>(context: &Context, params: Map<String, Value>) -> Result<Job, CommandError> {
    let params = read_params(params).map_err(|problem| {
        CommandError::new(ErrorClass::CommandExecution, format!("parameters of {}: {problem}", C::NAME))
    })?;
    C::validate(context, &params)?;
    Ok(Box::new(move |context| {
        let reply = C::run(context, params)?;
        to_value(reply)
            .map_err(|error| CommandError::new(ErrorClass::CommandExecution, format!("result of {}: {error}", C::NAME)))
    }))
}

/// Reads parameters. A problem is told with the parameter's name, which serde alone does not.
fn read_params<P: DeserializeOwned>(params: Map<String, Value>) -> Result<P, String> {
    let current = RefCell::new(String::new());
    let fields = params.into_iter().inspect(|(name, _)| current.borrow_mut().clone_from(name));
    P::deserialize(MapDeserializer::<_, serde_json::Error>::new(fields)).map_err(|error| {
        let (problem, name) = (error.to_string(), current.take());
        let is_named = ["missing field", "unknown field", "duplicate field"].iter().any(|s| problem.starts_with(s));
        if is_named || name.is_empty() { problem } else { format!("{name}: {problem}") }
    })
}

/// A reply as a JSON value. One that is a value already is not copied: logs have megabytes.
fn to_value<R: Serialize + 'static>(reply: R) -> serde_json::Result<Value> {
    let mut reply = Some(reply);
    match (&mut reply as &mut dyn Any).downcast_mut::<Option<Value>>().and_then(Option::take) {
        Some(value) => Ok(value),
        None => serde_json::to_value(reply),
    }
}

/// A namespace of commands.
#[derive(Debug)]
pub struct Extension {
    /// Name before the dot, such as `clean`.
    pub name: &'static str,
    /// Its commands.
    pub commands: &'static [CommandEntry],
}

/// Why a set of extensions cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Two extensions of one name.
    #[error("two extensions are named {name:?}; an extension cannot replace another")]
    DuplicateExtension {
        /// Name.
        name: &'static str,
    },
    /// Two commands of one name in an extension.
    #[error("extension {extension:?} has two commands named {command:?}")]
    DuplicateCommand {
        /// Extension.
        extension: &'static str,
        /// Command.
        command: &'static str,
    },
    /// A name that could not be addressed as `extension.command`.
    #[error("{name:?} is not a name of lower-case letters, digits and underscores")]
    BadName {
        /// Name.
        name: &'static str,
    },
}

/// Checks a set of extensions at start-up, so that nothing is ever shadowed.
///
/// # Errors
/// The first name that is double or unusable.
pub fn check_table(extensions: &[&'static Extension]) -> Result<(), TableError> {
    let good = |name: &str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    for (index, extension) in extensions.iter().enumerate() {
        if !good(extension.name) {
            return Err(TableError::BadName { name: extension.name });
        }
        if extensions.iter().take(index).any(|other| other.name == extension.name) {
            return Err(TableError::DuplicateExtension { name: extension.name });
        }
        for (index, command) in extension.commands.iter().enumerate() {
            if !good(command.name) {
                return Err(TableError::BadName { name: command.name });
            }
            if extension.commands.iter().take(index).any(|other| other.name == command.name) {
                return Err(TableError::DuplicateCommand { extension: extension.name, command: command.name });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Plain {
        #[expect(dead_code, reason = "only read by serde")]
        count: u32,
        #[serde(default)]
        #[expect(dead_code, reason = "only read by serde")]
        node: Map<String, Value>,
    }

    #[derive(Debug, Deserialize)]
    struct Open {
        node: Map<String, Value>,
        #[serde(flatten)]
        rest: Map<String, Value>,
    }

    fn problem<P: DeserializeOwned + std::fmt::Debug>(params: Value) -> String {
        let Value::Object(params) = params else { panic!("{params} is no object") };
        read_params::<P>(params).unwrap_err()
    }

    #[test]
    fn what_is_wrong_names_the_parameter() {
        assert_eq!(
            problem::<Plain>(json!({"node": {}, "count": "x"})),
            "count: invalid type: string \"x\", expected u32"
        );
        assert_eq!(problem::<Plain>(json!({"node": 5, "count": 1})), "node: invalid type: integer `5`, expected a map");
        assert_eq!(problem::<Plain>(json!({"node": {}})), "missing field `count`");
        assert_eq!(problem::<Plain>(json!({"count": 1, "b": 1})), "unknown field `b`, expected `count` or `node`");
        assert_eq!(problem::<Open>(json!({"a": 1, "node": null, "b": 1})), "node: invalid type: null, expected a map");
    }

    #[test]
    fn parameters_beside_the_known_ones_are_kept_in_order() {
        let Value::Object(params) = json!({"z": [1], "node": {"a": null}, "b": "c"}) else { unreachable!() };
        let open: Open = read_params(params).unwrap();
        assert_eq!(Value::Object(open.node), json!({"a": null}));
        assert_eq!(Value::Object(open.rest).to_string(), r#"{"z":[1],"b":"c"}"#);
    }
}
