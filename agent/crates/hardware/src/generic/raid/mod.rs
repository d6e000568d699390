//! Software RAID: making and deleting md arrays, finding the one for the operating system, and what makes a machine boot
//! from it (hardware section 7, deploy section 9.4).
//!
//! What is wanted, and where it goes, is planned by [`ferric_disk::raid`]. Partitions are made and superblocks wiped by our
//! own code; `mdadm` makes, starts and stops arrays. In an image without it, arrays cannot be made and the step says so;
//! what is left of former ones is still wiped.

use ferric_sys::{Cmd, ExecError, exec};
use ferric_types::Node;
use ferric_types::error::{CommandError, ErrorClass};
use serde_json::{Map, Value, json};

use crate::context::StepContext;
use crate::manager::ArgInfo;

pub(crate) mod arrays;
pub(super) mod boot;
mod create;
mod delete;
pub(crate) mod root;

/// Arguments of `apply_configuration`.
pub(super) const ARGS: &[ArgInfo] = &[
    ArgInfo { name: "raid_config", description: "The RAID configuration to apply.", required: true },
    ArgInfo {
        name: "delete_existing",
        description: "Setting this to 'True' indicates to delete existing RAID configuration prior to creating the new \
                      configuration. Default value is 'True'.",
        required: false,
    },
];

/// `create_configuration`: what the node's `target_raid_config` wants. The conductor takes an empty answer for a failure.
pub(super) fn create_configuration(context: &StepContext<'_>) -> Result<Value, CommandError> {
    match context.node.get("target_raid_config") {
        Some(config) => create::create(context, config),
        None => Ok(json!({})),
    }
}

/// `delete_configuration`: all arrays, but those on the node's skip list.
pub(super) fn delete_configuration(context: &StepContext<'_>) -> Result<Value, CommandError> {
    delete::delete(context).map(|()| Value::Null)
}

/// `apply_configuration`: a configuration that comes as an argument, by default in place of what is there.
pub(super) fn apply_configuration(context: &StepContext<'_>, args: &Map<String, Value>) -> Result<Value, CommandError> {
    let config = args.get("raid_config").filter(|config| config.is_object()).ok_or_else(|| {
        CommandError::new(ErrorClass::InvalidCommandParams, "apply_configuration needs the argument raid_config")
    })?;
    // Before anything is deleted.
    create::check(context, config)?;
    let keeps = match args.get("delete_existing") {
        Some(Value::Bool(delete)) => !delete,
        Some(Value::String(text)) => text.eq_ignore_ascii_case("false"),
        _ => false,
    };
    if !keeps {
        delete::delete(context)?;
    }
    create::create(context, config)
}

fn failed(details: impl Into<String>) -> CommandError {
    CommandError::new(ErrorClass::SoftwareRaid, details)
}

/// Names of volumes that the node wants to be left alone.
fn skipped_names(node: &Node) -> Vec<String> {
    let list = node.lookup("properties", "skip_block_devices").and_then(Value::as_array);
    let names = list.into_iter().flatten().filter_map(|entry| entry.get("volume_name")?.as_str());
    names.map(str::to_owned).collect()
}

/// Runs `mdadm`. That it is missing is told with what to do about it.
fn mdadm(context: &StepContext<'_>, cmd: &Cmd) -> Result<(), CommandError> {
    match exec::check(&*context.machine.exec, cmd) {
        Ok(_) => Ok(()),
        Err(ExecError::NotFound { program }) => Err(missing(&program)),
        Err(error) => Err(CommandError::from_chain(ErrorClass::SoftwareRaid, &error)),
    }
}

fn missing(program: &str) -> CommandError {
    failed(format!(
        "{program} is not in this ramdisk, so that there is no software RAID. Use a profile that has it (storage)"
    ))
}
