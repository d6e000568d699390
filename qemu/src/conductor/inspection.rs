//! `POST /v1/continue_inspection`: is this acceptable inspection data, and whose (spec/inspection.md section 4).

use super::State;
use super::lookup;
use super::node::{InspectionData, Node};
use super::reply::{ApiError, Reply};
use super::routes::{Call, body_object, check_names, normalize_mac, uuid_argument};
use super::state::ProvisionState;
use super::version::{ApiVersion, MIN_VERSION};
use serde_json::{Map, Value, json};

/// Where the conductor caches a node's BMC addresses when inspection starts.
pub(crate) const BMC_CACHE_KEY: &str = "lookup_bmc_addresses";

pub(crate) fn handle(state: &mut State, call: &Call<'_>, version: ApiVersion) -> Result<Reply, ApiError> {
    let mut data = body_object(call)?;
    check_names(call.query.iter().map(|(key, _)| key.as_str()), &["node_uuid"])?;
    let node_uuid = uuid_argument(call)?;
    check_schema(&data)?;
    let new_style = version >= ApiVersion::CONTINUE_INSPECTION;
    if !(new_style || version == MIN_VERSION && node_uuid.is_none()) {
        let message = format!("API version {} or newer is required", ApiVersion::CONTINUE_INSPECTION);
        return Err(ApiError::fault(404, message));
    }
    let inventory = data.remove("inventory").unwrap_or_default();
    let macs: Vec<String> = inventory["interfaces"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|nic| normalize_mac(nic["mac_address"].as_str()?))
        .collect();
    let bmc_addresses: Vec<&str> = ["bmc_address", "bmc_v6address"]
        .iter()
        .filter_map(|key| inventory[*key].as_str())
        .filter(|address| !address.is_empty())
        .collect();
    if macs.is_empty() && bmc_addresses.is_empty() && node_uuid.is_none() {
        return Err(ApiError::fault(400, "No lookup information provided"));
    }
    let index = find_node(&state.nodes, &macs, &bmc_addresses, node_uuid)?;
    let node = &mut state.nodes[index];
    let token = if new_style { Some(lookup::token_for(node)?) } else { None };
    if let Some(host) = &node.reservation {
        return Err(ApiError::locked(&node.uuid, host));
    }
    // `resume`: the conductor takes the lock and works on the data in the background.
    node.provision_state = ProvisionState::Inspecting;
    node.reservation = Some("conductor-inspection".to_owned());
    node.inspection = Some(InspectionData { inventory, plugin_data: data });
    let body = match token {
        Some(token) => lookup::answer(&state.settings, &state.nodes[index], Some(token), call.base_url),
        None => json!({"uuid": state.nodes[index].uuid}),
    };
    Ok(Reply { status: 202, body: Some(body) })
}

/// The schema of `ramdisk.py:DATA_VALIDATOR`: an inventory with at least one NIC that has a MAC address.
fn check_schema(data: &Map<String, Value>) -> Result<(), ApiError> {
    let refuse = |what: String| Err(ApiError::fault(400, format!("Schema error for data: {what}")));
    let Some(inventory) = data.get("inventory") else {
        return refuse("'inventory' is a required property".to_owned());
    };
    let Some(inventory) = inventory.as_object() else {
        return refuse(format!("{inventory} is not of type 'object'"));
    };
    for key in ["bmc_address", "bmc_v6address"] {
        if let Some(value) = inventory.get(key)
            && !value.is_string()
            && !value.is_null()
        {
            return refuse(format!("{value} is not of type 'string', 'null'"));
        }
    }
    let Some(interfaces) = inventory.get("interfaces") else {
        return refuse("'interfaces' is a required property".to_owned());
    };
    let Some(interfaces) = interfaces.as_array() else {
        return refuse(format!("{interfaces} is not of type 'array'"));
    };
    if interfaces.is_empty() {
        return refuse("[] should be non-empty".to_owned());
    }
    for nic in interfaces {
        match nic.as_object().map(|members| members.get("mac_address")) {
            None => return refuse(format!("{nic} is not of type 'object'")),
            Some(None) => return refuse("'mac_address' is a required property".to_owned()),
            Some(Some(mac)) if !mac.is_string() => return refuse(format!("{mac} is not of type 'string'")),
            Some(Some(_)) => {}
        }
    }
    Ok(())
}

/// The node the data is about. All failures look alike: 404 without a reason.
fn find_node(nodes: &[Node], macs: &[String], bmc: &[&str], uuid: Option<&str>) -> Result<usize, ApiError> {
    let mut found = match uuid {
        Some(uuid) => Some(nodes.iter().position(|n| n.uuid == uuid).ok_or_else(ApiError::not_found)?),
        None => None,
    };
    if !macs.is_empty() {
        let owners = nodes.iter().filter(|n| n.ports.iter().any(|port| macs.contains(&port.address))).count();
        let by_mac = lookup::find_by_macs(nodes, macs);
        let contradicts = found.is_some() && by_mac.is_some() && found != by_mac;
        if owners > 1 || contradicts {
            return Err(ApiError::not_found());
        }
        found = by_mac.or(found);
    }
    if found.is_some_and(|i| nodes[i].provision_state != ProvisionState::InspectWait) {
        return Err(ApiError::not_found());
    }
    let by_bmc: Vec<usize> = (0..nodes.len())
        .filter(|i| nodes[*i].provision_state == ProvisionState::InspectWait && has_bmc(&nodes[*i], bmc))
        .collect();
    match (found, by_bmc.as_slice()) {
        (Some(node), []) => Ok(node),
        (Some(node), candidates) if candidates.contains(&node) => Ok(node),
        (None, [only]) => Ok(*only),
        _ => Err(ApiError::not_found()),
    }
}

fn has_bmc(node: &Node, addresses: &[&str]) -> bool {
    let cached = node.driver_internal_info.get(BMC_CACHE_KEY).and_then(Value::as_array);
    cached.into_iter().flatten().any(|a| a.as_str().is_some_and(|a| addresses.contains(&a)))
}

/// The hooks, cut down to what decides over success: a ramdisk that reported an error fails the inspection.
pub(crate) fn finish(node: &mut Node) {
    if node.provision_state != ProvisionState::Inspecting {
        return;
    }
    let error = node.inspection.as_ref().and_then(|data| data.plugin_data.get("error")).filter(|e| !e.is_null());
    if let Some(error) = error {
        node.last_error = Some(format!("Ramdisk reported error: {error}"));
        node.provision_state = ProvisionState::InspectFail;
    } else {
        let architecture = node.inspection.as_ref().and_then(|d| d.inventory["cpu"]["architecture"].as_str());
        if let Some(architecture) = architecture {
            node.properties.insert("cpu_arch".to_owned(), json!(architecture));
        }
        node.provision_state = ProvisionState::Manageable;
    }
    node.reservation = None;
}
