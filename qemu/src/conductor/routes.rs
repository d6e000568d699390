//! One request to its answer: the body guard, the version check, the route, the arguments.

use super::fault::Endpoint;
use super::record::HeartbeatEffect;
use super::reply::{ApiError, Reply};
use super::version::{self, ApiVersion, MIN_VERSION};
use super::wire::Headers;
use super::{State, heartbeat, inspection, lookup};
use serde_json::{Map, Value, json};

/// `[api]max_json_body_size`.
const MAX_BODY_BYTES: usize = 1024 * 1024;
/// `[api]max_json_body_size_inspection`.
const MAX_INSPECTION_BODY_BYTES: usize = 16 * 1024 * 1024;
/// `[api]max_json_body_depth`.
const MAX_BODY_DEPTH: usize = 25;

/// A request as the routes see it.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) query: &'a [(String, String)],
    pub(crate) headers: &'a Headers,
    pub(crate) body: &'a [u8],
    pub(crate) base_url: &'a str,
}

/// An answer, and what happened besides.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) reply: Reply,
    /// The version named in the answer's head.
    pub(crate) version: ApiVersion,
    /// For heartbeats: the node named in the path and what came of it.
    pub(crate) heartbeat: Option<(String, HeartbeatEffect)>,
}

/// Handles one request.
pub(crate) fn handle(state: &mut State, call: &Call<'_>) -> Outcome {
    let mut outcome = Outcome { reply: Reply { status: 500, body: None }, version: MIN_VERSION, heartbeat: None };
    outcome.reply = dispatch(state, call, &mut outcome).unwrap_or_else(Reply::from);
    outcome
}

fn dispatch(state: &mut State, call: &Call<'_>, outcome: &mut Outcome) -> Result<Reply, ApiError> {
    guard_body(call)?;
    let endpoint = Endpoint::of_path(call.path);
    if endpoint == Some(Endpoint::Root) {
        return Ok(Reply { status: 200, body: Some(root_document(call.base_url, state.settings.max_version)) });
    }
    if !call.path.starts_with("/v1") {
        return Err(ApiError::web(404, "The resource could not be found."));
    }
    let version = version::requested(call.headers, state.settings.max_version)?;
    outcome.version = version;
    let (endpoint, verb) = match endpoint {
        Some(Endpoint::Lookup) => (Endpoint::Lookup, "GET"),
        Some(other) => (other, "POST"),
        None => return Err(ApiError::web(404, "The resource could not be found.")),
    };
    if call.method != verb {
        return Err(ApiError::web(405, format!("The method {} is not allowed for this resource.", call.method)));
    }
    match endpoint {
        Endpoint::Lookup => lookup::handle(state, call, version),
        Endpoint::Inspection => inspection::handle(state, call, version),
        _ => {
            let node = call.path.trim_end_matches('/').trim_start_matches("/v1/heartbeat/").to_owned();
            let result = heartbeat::handle(state, call, &node, version);
            let effect = result.as_ref().map_or(HeartbeatEffect::Refused, |effect| *effect);
            outcome.heartbeat = Some((node, effect));
            result.map(|_| Reply { status: 202, body: None })
        }
    }
}

/// Size and nesting limits, checked before any parser runs and only for bodies that say they are JSON.
fn guard_body(call: &Call<'_>) -> Result<(), ApiError> {
    if !says_json(call.headers) {
        return Ok(());
    }
    let inspection = call.path.trim_matches('/').ends_with("continue_inspection");
    let limit = if inspection { MAX_INSPECTION_BODY_BYTES } else { MAX_BODY_BYTES };
    let hint = "Please contact the service administrator.";
    if call.body.len() > limit {
        return Err(ApiError::guard(413, format!("Request body is too large. {hint}")));
    }
    if nesting_depth(call.body) > MAX_BODY_DEPTH {
        return Err(ApiError::guard(400, format!("Request body JSON is nested too deeply. {hint}")));
    }
    Ok(())
}

fn says_json(headers: &Headers) -> bool {
    headers.get("content-type").is_some_and(|t| t.contains("json"))
}

/// The deepest nesting of brackets outside of strings.
fn nesting_depth(json: &[u8]) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0usize, 0usize, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// The members of a body that holds a method's arguments: read only when it says that it is JSON.
pub(crate) fn arguments(call: &Call<'_>) -> Result<Map<String, Value>, ApiError> {
    if says_json(call.headers) { body_object(call) } else { Ok(Map::new()) }
}

/// The members of a JSON object body; none when it is empty.
pub(crate) fn body_object(call: &Call<'_>) -> Result<Map<String, Value>, ApiError> {
    if call.body.is_empty() {
        return Ok(Map::new());
    }
    match serde_json::from_slice(call.body) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(ApiError::web(400, "The request body must be a JSON object.")),
        Err(e) => Err(ApiError::web(400, format!("The request body is not JSON: {e}."))),
    }
}

/// Refuses arguments a method does not have.
pub(crate) fn check_names<'a>(names: impl Iterator<Item = &'a str>, known: &[&str]) -> Result<(), ApiError> {
    let unknown: Vec<&str> = names.filter(|name| !known.contains(name)).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    Err(ApiError::fault(400, format!("Unexpected arguments: {}", unknown.join(", "))))
}

/// An optional text argument; null counts as absent, anything but text is refused.
pub(crate) fn text_argument<'a>(body: &'a Map<String, Value>, name: &str) -> Result<Option<&'a str>, ApiError> {
    match body.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(ApiError::fault(400, format!("Expected string for {name}: {other}"))),
    }
}

/// The `node_uuid` query argument, checked to look like a UUID.
pub(crate) fn uuid_argument<'a>(call: &Call<'a>) -> Result<Option<&'a str>, ApiError> {
    match call.query.iter().find(|(key, _)| key == "node_uuid") {
        None => Ok(None),
        Some((_, value)) if uuid::Uuid::try_parse(value).is_ok() => Ok(Some(value)),
        Some((_, value)) => Err(ApiError::fault(400, format!("Expected UUID for node_uuid: {value}"))),
    }
}

/// A MAC address in lower case with colons, or `None` when it is not one.
pub(crate) fn normalize_mac(text: &str) -> Option<String> {
    let mac = text.trim().to_ascii_lowercase();
    let parts: Vec<&str> = mac.split(':').collect();
    let valid = parts.len() == 6 && parts.iter().all(|p| p.len() == 2 && p.bytes().all(|b| b.is_ascii_hexdigit()));
    valid.then_some(mac)
}

fn root_document(base_url: &str, max: ApiVersion) -> Value {
    let v1 = json!({
        "id": "v1", "links": [{"href": format!("{base_url}/v1/"), "rel": "self"}], "status": "CURRENT",
        "min_version": MIN_VERSION.to_string(), "version": max.to_string(),
    });
    json!({
        "name": "OpenStack Ironic API",
        "description": "A stand-in for Ironic that answers deploy ramdisks only.",
        "default_version": v1, "versions": [v1],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesting_is_counted_outside_of_strings() {
        for (text, depth) in [(r#"{"a":[1,{"b":2}]}"#, 3), (r#"{"a":"[[[\"[["}"#, 1), ("[][]", 1), ("", 0)] {
            assert_eq!(nesting_depth(text.as_bytes()), depth, "{text}");
        }
    }

    #[test]
    fn mac_addresses_are_normalized() {
        for (text, expected) in [
            ("52:54:00:AA:bb:01", Some("52:54:00:aa:bb:01")),
            ("52-54-00-aa-bb-01", None),
            ("52:54:00:aa:bb", None),
            ("52:54:00:aa:bb:0g", None),
            ("", None),
        ] {
            assert_eq!(normalize_mac(text).as_deref(), expected, "{text}");
        }
    }
}
