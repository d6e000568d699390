//! `standby.get_partition_uuids`: what was found on the disk after the last image (commands section 5).

use ferric_types::CommandError;
use serde_json::Value;

use crate::command::{Command, Context, Mode};
use crate::extensions::NoParams;

/// The command.
#[derive(Debug)]
pub struct GetPartitionUuids;

impl Command for GetPartitionUuids {
    const NAME: &'static str = "get_partition_uuids";
    const MODE: Mode = Mode::Sync;
    type Params = NoParams;
    type Reply = Value;

    fn run(context: &Context, _params: NoParams) -> Result<Value, CommandError> {
        Ok(context.app.services().partition_uuids())
    }
}
