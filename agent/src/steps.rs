//! Listing and running steps: one code for clean, deploy and service (commands sections 3 and 4).

use ferric_disk::image::source::redacted;
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

/// A node whose hints and settings can be understood.
fn understood(node: Node) -> Result<Node, CommandError> {
    node.check_shape().map_err(|problem| CommandError::new(ErrorClass::CommandExecution, problem))?;
    Ok(node)
}

/// Runs a step and echoes it: the conductor takes a different step, or none, for "not finished yet". Secrets in its
/// arguments are masked as the conductor itself masks them; it compares the step's name and interface only.
///
/// # Errors
/// `VersionMismatch`, a malformed step, or whatever the step reports.
pub fn execute(context: &Context, kind: StepKind, params: ExecuteParams) -> Result<Value, CommandError> {
    let app = &context.app;
    let ExecuteParams { mut step, node, ports, mut rest } = params;
    app.adopt_node(understood(node)?);
    let version = rest.remove(&format!("{}_version", kind.word()));
    ferric_hardware::version::check(&app.registry.versions(), version.as_ref())?;
    let Some(name) = step.get("step").and_then(Value::as_str).map(str::to_owned) else {
        return Err(CommandError::new(
            ErrorClass::CommandExecution,
            format!("Malformed {}_step, no \"step\" key: {}", kind.word(), Value::Object(step)),
        ));
    };
    let args = StepArgs::take(&mut step, rest).map_err(|other| {
        CommandError::new(
            ErrorClass::CommandExecution,
            format!("Malformed {}_step, \"args\" is {other} where an object was expected", kind.word()),
        )
    })?;
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
    let result = app.registry.execute(kind, &name, &step_context, args.all())?;
    args.give_back(&mut step);
    // By hand: `json!` would copy what it is given.
    Ok(Value::Object(Map::from_iter([
        (format!("{}_result", kind.word()), result),
        (format!("{}_step", kind.word()), Value::Object(step)),
    ])))
}

/// Arguments of a step: those inside it and those beside it, of which the inner ones win. They are moved, not copied: a
/// config drive among them may have megabytes.
#[derive(Debug)]
struct StepArgs {
    all: Map<String, Value>,
    /// Names of those inside the step, in order; `None` when it had no `args`.
    inner: Option<Vec<String>>,
}

impl StepArgs {
    /// What stands in place of a secret.
    const MASK: &str = "******";
    /// Arguments, and keys of arguments, that are nobody's business once the step has been done, as are all named after
    /// passwords; the config drive and contents of files would also take megabytes of memory as long as the agent lives.
    const SECRETS: [&str; 4] = ["configdrive", "content", "image_request_authorization", "oci_pull_secret"];

    /// Takes the arguments out of a step, whose `args` are empty until [`StepArgs::give_back`].
    ///
    /// # Errors
    /// What stands in `args` when it is no object.
    fn take(step: &mut Map<String, Value>, mut beside: Map<String, Value>) -> Result<Self, Value> {
        let inner = match step.get_mut("args") {
            None | Some(Value::Null) => return Ok(Self { all: beside, inner: None }),
            Some(Value::Object(args)) => std::mem::take(args),
            Some(other) => return Err(other.take()),
        };
        let names = inner.keys().cloned().collect();
        beside.extend(inner);
        Ok(Self { all: beside, inner: Some(names) })
    }

    /// All of them.
    const fn all(&self) -> &Map<String, Value> {
        &self.all
    }

    /// Makes the step what it was, but for secrets.
    fn give_back(mut self, step: &mut Map<String, Value>) {
        if let Some(names) = self.inner {
            let mut args: Map<String, Value> =
                names.into_iter().filter_map(|name| self.all.remove_entry(&name)).collect();
            mask(&mut args);
            step.insert("args".to_owned(), Value::Object(args));
        }
    }
}

/// Masks what is secret by its name, and takes credentials and queries out of addresses, at any depth.
fn mask(object: &mut Map<String, Value>) {
    let is_secret = |key: &str| StepArgs::SECRETS.contains(&key) || key.contains("password");
    for (key, value) in object.iter_mut() {
        if is_secret(key) && !value.is_null() {
            *value = StepArgs::MASK.into();
        } else {
            mask_in(value);
        }
    }
}

fn mask_in(value: &mut Value) {
    match value {
        Value::Object(object) => mask(object),
        Value::Array(items) => items.iter_mut().for_each(mask_in),
        Value::String(text) if text.contains("://") => *text = redacted(text),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        let Value::Object(object) = value else { panic!("{value} is no object") };
        object
    }

    #[test]
    fn arguments_inside_the_step_win_and_the_step_is_given_back_unchanged() {
        for (step, all) in [
            (
                json!({"step": "s", "args": {"b": 1, "a": {"c": null}}, "priority": 1}),
                json!({"a": {"c": null}, "b": 1, "x": 3}),
            ),
            (json!({"step": "s", "args": {}}), json!({"a": 9, "x": 3})),
            (json!({"step": "s", "args": null}), json!({"a": 9, "x": 3})),
            (json!({"step": "s"}), json!({"a": 9, "x": 3})),
        ] {
            let mut given = object(step.clone());
            let args = StepArgs::take(&mut given, object(json!({"a": 9, "x": 3}))).unwrap();
            assert_eq!(Value::Object(args.all().clone()), all, "{step}");
            args.give_back(&mut given);
            // As text: the order of the keys counts too.
            assert_eq!(Value::Object(given).to_string(), step.to_string());
        }
    }

    #[test]
    fn secrets_are_masked_in_what_is_echoed() {
        let drive = json!({"step": "write_image", "args": {
            "image_info": {"id": "i", "configdrive": "H4sI", "image_server_password": "p", "image_request_authorization": null},
            "configdrive": "H4sI", "password": "p",
        }});
        let mut step = object(drive);
        let args = StepArgs::take(&mut step, Map::new()).unwrap();
        assert_eq!(args.all()["configdrive"], "H4sI");
        args.give_back(&mut step);
        let masked = json!({"step": "write_image", "args": {
            "image_info": {
                "id": "i", "configdrive": "******", "image_server_password": "******", "image_request_authorization": null,
            },
            "configdrive": "******", "password": "******",
        }});
        assert_eq!(Value::Object(step), masked);
    }

    #[test]
    fn addresses_are_echoed_without_credentials_and_queries() {
        let image = json!({"urls": ["https://user:pw@s/i.img?temp_url_sig=abc", "http://s/i.img"],
            "proxies": {"http": "http://u:pw@proxy:3128"}, "checksum": "http://s/SUMS?t=1", "id": "i?x"});
        let mut step =
            object(json!({"step": "write_image", "args": {"image_info": image, "deep": [[{"a": "x://u@h"}]]}}));
        let args = StepArgs::take(&mut step, Map::new()).unwrap();
        assert_eq!(args.all()["image_info"], image);
        args.give_back(&mut step);
        let masked = json!({"urls": ["https://s/i.img", "http://s/i.img"], "proxies": {"http": "http://proxy:3128"},
            "checksum": "http://s/SUMS", "id": "i?x"});
        assert_eq!(step["args"], json!({"image_info": masked, "deep": [[{"a": "x://h"}]]}));
    }

    #[test]
    fn contents_of_files_are_masked_in_what_is_echoed() {
        let files =
            json!([{"path": "/etc/key", "content": "c2VjcmV0", "mode": 384}, {"path": "/etc/x", "deleted": true}]);
        let mut step = object(json!({"step": "inject_files", "args": {"files": files, "verify_ca": true}}));
        let args = StepArgs::take(&mut step, Map::new()).unwrap();
        assert_eq!(args.all()["files"], files);
        args.give_back(&mut step);
        let masked = json!({"step": "inject_files", "args": {
            "files": [{"path": "/etc/key", "content": "******", "mode": 384}, {"path": "/etc/x", "deleted": true}],
            "verify_ca": true,
        }});
        assert_eq!(Value::Object(step), masked);
    }

    #[test]
    fn arguments_that_are_no_object_are_refused() {
        let wrong = StepArgs::take(&mut object(json!({"args": [1]})), Map::new()).unwrap_err();
        assert_eq!(wrong, json!([1]));
    }
}
