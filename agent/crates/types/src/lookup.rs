//! Answer of a lookup (protocol section 7).

use serde::Deserialize;

use crate::node::Node;
use crate::secret::Secret;

/// A node and the settings that the conductor wants its agent to use.
#[derive(Debug, Clone, Deserialize)]
pub struct LookupAnswer {
    /// The node that owns one of the addresses.
    pub node: Node,
    /// Settings; missing from very old APIs.
    #[serde(default)]
    pub config: Option<LookupConfig>,
    /// Where very old APIs put the heartbeat timeout, in seconds.
    #[serde(default)]
    pub heartbeat_timeout: Option<f64>,
}

/// Settings from the conductor. Every key may be missing or null; a value of the wrong type fails only itself,
/// which `config/lookup.rs` of the agent handles, so they stay JSON here where Ironic's type is not sure.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct LookupConfig {
    /// Seconds within which the conductor expects a heartbeat.
    #[serde(default)]
    pub heartbeat_timeout: Option<f64>,
    /// Token for this boot, or `******` when one was handed out before.
    #[serde(default)]
    pub agent_token: Option<Secret<String>>,
    /// Everything else by its wire name.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}
