//! `GET /v1/lookup`: which node is this machine, and its settings and token (spec/protocol.md section 7).

use super::node::{MASKED, Node};
use super::reply::{ApiError, Reply};
use super::routes::{Call, check_names, normalize_mac, uuid_argument};
use super::version::ApiVersion;
use super::{Settings, State, fault};
use serde_json::{Value, json};

pub(crate) fn handle(state: &mut State, call: &Call<'_>, version: ApiVersion) -> Result<Reply, ApiError> {
    check_names(call.query.iter().map(|(key, _)| key.as_str()), &["addresses", "node_uuid"])?;
    let node_uuid = uuid_argument(call)?;
    if version < ApiVersion::RAMDISK {
        return Err(ApiError::not_found());
    }
    let macs = valid_macs(call);
    if macs.is_empty() && node_uuid.is_none() {
        let message = "At least one of 'addresses' and 'node_uuid' parameters is required";
        return Err(ApiError::fault(400, message));
    }
    let index = match node_uuid {
        Some(uuid) => state.nodes.iter().position(|n| n.uuid == uuid),
        None => find_by_macs(&state.nodes, &macs),
    };
    let index = index.ok_or_else(ApiError::not_found)?;
    let node = &mut state.nodes[index];
    if !node.provision_state.allows_lookup(node.fast_track) {
        return Err(ApiError::not_found());
    }
    let token = if version >= ApiVersion::AGENT_TOKEN { Some(token_for(node)?) } else { None };
    let mut answer = answer(&state.settings, &state.nodes[index], token, call.base_url);
    fault::merge_patch(&mut answer, &state.settings.lookup_patch);
    Ok(Reply { status: 200, body: Some(answer) })
}

/// Addresses are compared lower-cased; those that are none are left out without a word.
fn valid_macs(call: &Call<'_>) -> Vec<String> {
    call.query
        .iter()
        .filter(|(key, _)| key == "addresses")
        .flat_map(|(_, value)| value.split(','))
        .filter_map(normalize_mac)
        .collect()
}

/// The node that owns one of the addresses. Addresses of two nodes match none.
pub(crate) fn find_by_macs(nodes: &[Node], macs: &[String]) -> Option<usize> {
    let mut owners = (0..nodes.len()).filter(|i| nodes[*i].ports.iter().any(|port| macs.contains(&port.address)));
    let first = owners.next()?;
    owners.next().is_none().then_some(first)
}

/// A new token on the first lookup, stars ever after. Creating one needs the node's lock.
pub(crate) fn token_for(node: &mut Node) -> Result<String, ApiError> {
    if node.agent_token().is_some() {
        return Ok(MASKED.to_owned());
    }
    if let Some(host) = &node.reservation {
        return Err(ApiError::locked(&node.uuid, host));
    }
    Ok(node.create_token())
}

/// The node and the settings for its agent.
pub(crate) fn answer(settings: &Settings, node: &Node, token: Option<String>, base_url: &str) -> Value {
    json!({
        "node": node.lookup_view(base_url),
        "config": {
            "metrics": {
                "backend": "noop", "prepend_host": false, "prepend_uuid": false, "prepend_host_reverse": true,
                "global_prefix": null,
            },
            "metrics_statsd": {"statsd_host": "localhost", "statsd_port": 8125},
            "heartbeat_timeout": settings.heartbeat_timeout_secs,
            "agent_containers": {
                "allow_arbitrary_containers": false, "allowed_containers": [],
                "container_steps_file": "/etc/ironic-python-agent.d/mysteps.yaml", "runner": "podman",
                "pull_options": [], "run_options": ["--rm", "--network=host"],
            },
            "agent_token": token,
            "agent_token_required": true,
            "agent_md5_checksum_enable": true,
            "disable_deep_image_inspection": false,
            "permitted_image_formats": ["raw", "gpt", "qcow2", "iso"],
            "agent_skip_bmc_detect": false,
            "enable_bios_bootloader_install": false,
            "tls_min_version": "1.3",
            "tls_cipher_suites": null,
        },
    })
}
