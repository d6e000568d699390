//! Listing and running steps: one code for clean, deploy and service (commands sections 3 and 4).

use ferric_hardware::StepContext;
use ferric_types::step::StepKind;
use ferric_types::{CommandError, ErrorClass, Node};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::command::Context;

/// Parameters of `get_*_steps`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListParams {
    /// Ironic's record of the machine.
    pub node: Node,
    /// Its ports.
    #[serde(default)]
    pub ports: Vec<Value>,
}

/// Parameters of `execute_*_step`. Any further one is handed to the step.
#[derive(Debug, Deserialize)]
pub struct ExecuteParams {
    /// The step, as the conductor chose it.
    pub step: Map<String, Value>,
    /// Ironic's record of the machine.
    pub node: Node,
    /// Its ports.
    #[serde(default)]
    pub ports: Vec<Value>,
    /// Everything else: `<kind>_version`, and arguments.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// Answers `get_*_steps`: steps by manager class, and the managers' versions.
///
/// # Errors
/// None at present; the signature is that of a command.
pub fn list(context: &Context, kind: StepKind, params: ListParams) -> Result<Value, CommandError> {
    let app = &context.app;
    app.adopt_node(understood(params.node)?);
    let steps = app.registry.steps(kind, &app.settings());
    Ok(json!({
        format!("{}_steps", kind.word()): steps,
        "hardware_manager_version": app.registry.versions(),
    }))
}

/// A node whose hints and settings can be understood, without what is too large to keep.
fn understood(mut node: Node) -> Result<Node, CommandError> {
    node.check_shape().map_err(|problem| CommandError::new(ErrorClass::CommandExecution, problem))?;
    node.forget_configdrive();
    Ok(node)
}

/// Runs a step and echoes it: the conductor takes a different step, or none, for "not finished yet".
///
/// # Errors
/// `VersionMismatch`, a malformed step, or whatever the step reports.
pub fn execute(context: &Context, kind: StepKind, params: ExecuteParams) -> Result<Value, CommandError> {
    let app = &context.app;
    let ExecuteParams { step, node, ports, mut rest } = params;
    app.adopt_node(understood(node)?);
    let version = rest.remove(&format!("{}_version", kind.word()));
    ferric_hardware::version::check(&app.registry.versions(), version.as_ref())?;
    let Some(name) = step.get("step").and_then(Value::as_str) else {
        return Err(CommandError::new(
            ErrorClass::CommandExecution,
            format!("Malformed {}_step, no \"step\" key: {}", kind.word(), Value::Object(step)),
        ));
    };
    let mut args = rest;
    match step.get("args") {
        None | Some(Value::Null) => {}
        Some(Value::Object(given)) => args.extend(given.clone()),
        Some(other) => {
            return Err(CommandError::new(
                ErrorClass::CommandExecution,
                format!("Malformed {}_step, \"args\" is {other} where an object was expected", kind.word()),
            ));
        }
    }
    let settings = app.settings();
    let node = app.node().unwrap_or_default();
    let step_context = StepContext {
        machine: &app.machine,
        registry: &app.registry,
        node: &node,
        ports: &ports,
        progress: &context.progress,
        settings: &settings,
        services: app.services(),
    };
    let result = app.registry.execute(kind, name, &step_context, args)?;
    Ok(json!({
        format!("{}_result", kind.word()): result,
        format!("{}_step", kind.word()): step,
    }))
}
