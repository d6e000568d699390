//! `poll`: look at the hardware again.

use ferric_types::{CommandError, ErrorClass, Inventory};
use serde::Deserialize;
use serde_json::Value;

use super::NoParams;
use crate::command::{Command, CommandEntry, Context, Extension, Mode};

/// The extension.
pub const EXTENSION: Extension =
    Extension { name: "poll", commands: &[CommandEntry::of::<GetHardwareInfo>(), CommandEntry::of::<SetNodeInfo>()] };

struct GetHardwareInfo;

impl Command for GetHardwareInfo {
    const NAME: &'static str = "get_hardware_info";
    const MODE: Mode = Mode::Sync;
    type Params = NoParams;
    type Reply = Inventory;

    fn run(context: &Context, _params: NoParams) -> Result<Inventory, CommandError> {
        Ok(context.app.probe())
    }
}

struct SetNodeInfo;

/// Parameters of `poll.set_node_info`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeInfo {
    #[serde(rename = "node_info")]
    _node_info: Value,
}

impl Command for SetNodeInfo {
    const NAME: &'static str = "set_node_info";
    const MODE: Mode = Mode::Sync;
    type Params = NodeInfo;
    type Reply = ();

    /// Always refused, as by the reference agent: the stand-alone mode it belonged to is gone (commands section 2).
    fn run(_context: &Context, _params: NodeInfo) -> Result<(), CommandError> {
        Err(CommandError::new(ErrorClass::InvalidCommand, "Node info can only be set in standalone mode"))
    }
}
