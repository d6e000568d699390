//! What a step may use while it runs.

use std::fmt::Debug;

use ferric_disk::image::source::Fetch;
use ferric_types::{Node, Progress};
use serde_json::Value;

use crate::machine::Machine;
use crate::registry::Registry;
use crate::settings::Settings;

/// What the agent lends to blocking code.
pub trait Services: Send + Sync + Debug {
    /// Downloads images, checksum lists and config drives.
    fn fetch(&self) -> &dyn Fetch;

    /// Looks the node up once more, since hints may have been set after the agent started (protocol section 7);
    /// `None` when the conductor could not be asked.
    fn refresh_node(&self) -> Option<Node>;

    /// Keeps the answer of `standby.get_partition_uuids` (commands section 5).
    fn remember_partition_uuids(&self, uuids: Value);

    /// What [`Services::remember_partition_uuids`] was last given; an empty object before.
    fn partition_uuids(&self) -> Value;

    /// Notes that the image with this id is on the disk.
    fn image_written(&self, id: &str);
}

/// Everything a step is given besides its arguments.
#[derive(Debug, Clone, Copy)]
pub struct StepContext<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// The managers of this machine.
    pub registry: &'a Registry,
    /// The node, as the command brought it.
    pub node: &'a Node,
    /// The node's ports.
    pub ports: &'a [Value],
    /// Where to report progress.
    pub progress: &'a Progress,
    /// Options.
    pub settings: &'a Settings,
    /// The agent.
    pub services: &'a dyn Services,
}
