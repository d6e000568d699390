//! `POST /v1/heartbeat/<node>`: every check of the server, in the server's order (spec/protocol.md section 9).

use super::State;
use super::node::{Node, timestamp};
use super::record::HeartbeatEffect;
use super::reply::ApiError;
use super::routes::{Call, arguments, check_names, text_argument};
use super::version::ApiVersion;
use serde_json::{Map, Value};

const ARGUMENTS: &[&str] =
    &["callback_url", "agent_version", "agent_token", "agent_verify_ca", "agent_status", "agent_status_message"];

pub(crate) fn handle(
    state: &mut State,
    call: &Call<'_>,
    node_ident: &str,
    version: ApiVersion,
) -> Result<HeartbeatEffect, ApiError> {
    let body = arguments(call)?;
    check_names(body.keys().chain(call.query.iter().map(|(key, _)| key)).map(String::as_str), ARGUMENTS)?;
    let beat = Beat::from_body(&body)?;
    if version < ApiVersion::RAMDISK {
        return Err(ApiError::not_found());
    }
    beat.check_fields(version)?;
    let require_tls = state.settings.require_tls;
    let node = state
        .nodes
        .iter_mut()
        .find(|n| n.uuid == node_ident || n.name == node_ident)
        .ok_or_else(|| ApiError::fault(404, format!("Node {node_ident} could not be found.")))?;
    beat.check_against(node, require_tls)?;
    Ok(beat.apply(node))
}

/// The arguments of one heartbeat. Null counts as absent.
struct Beat<'a> {
    callback_url: &'a str,
    agent_version: Option<&'a str>,
    agent_token: Option<&'a str>,
    agent_verify_ca: Option<&'a str>,
    agent_status: Option<&'a str>,
    agent_status_message: Option<&'a str>,
}

impl<'a> Beat<'a> {
    fn from_body(body: &'a Map<String, Value>) -> Result<Self, ApiError> {
        let missing = || ApiError::fault(400, "Missing mandatory parameter: callback_url");
        Ok(Beat {
            callback_url: text_argument(body, "callback_url")?.ok_or_else(missing)?,
            agent_version: text_argument(body, "agent_version")?,
            agent_token: text_argument(body, "agent_token")?,
            agent_verify_ca: text_argument(body, "agent_verify_ca")?,
            agent_status: text_argument(body, "agent_status")?,
            agent_status_message: text_argument(body, "agent_status_message")?,
        })
    }

    /// Fields that the version asked for does not have.
    fn check_fields(&self, version: ApiVersion) -> Result<(), ApiError> {
        let refuse = |message: &str| Err(ApiError::fault(400, message));
        if self.agent_version.is_some_and(|v| !v.is_empty()) && version < ApiVersion::AGENT_VERSION {
            return refuse("Field \"agent_version\" not recognised");
        }
        let has_status = [self.agent_status, self.agent_status_message].iter().flatten().any(|s| !s.is_empty());
        if has_status && version < ApiVersion::AGENT_STATUS {
            return refuse("Fields \"agent_status\" and \"agent_status_message\" not recognised.");
        }
        if self.agent_verify_ca.is_some() && version < ApiVersion::VERIFY_CA {
            return refuse("Field \"agent_verify_ca\" not recognised in this version");
        }
        Ok(())
    }

    /// What the API checks, then what the conductor checks.
    fn check_against(&self, node: &Node, require_tls: bool) -> Result<(), ApiError> {
        let refuse = |message: &str| Err(ApiError::fault(400, message));
        let scheme = self.callback_url.split_once(':').map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
        if !self.callback_url.is_empty() && !scheme.contains("http") {
            return refuse("An issue with the supplied \"callback_url\" has been detected.");
        }
        if node.agent_url().is_some_and(|url| url != self.callback_url) {
            return refuse("Detected change in ramdisk provided \"callback_url\"");
        }
        let Some(token) = self.agent_token else {
            return refuse("Agent token is required for heartbeat processing.");
        };
        if self.agent_status.is_some_and(|s| !["start", "end", "error"].contains(&s)) {
            return refuse("Agent status is invalid. Valid states are start,end,error.");
        }
        if self.agent_version.is_none() && self.agent_status.is_none() {
            return refuse(
                "Agent did not transmit a version, and a version is required. Please update the agent being used.",
            );
        }
        if node.agent_token() != Some(token) {
            return refuse("Invalid or missing agent token received.");
        }
        if require_tls && !self.callback_url.is_empty() && !self.callback_url.starts_with("https://") {
            return refuse("TLS is required by configuration");
        }
        if let (Some(known), Some(sent)) = (&node.agent_certificate, self.agent_verify_ca)
            && !sent.is_empty()
            && known.trim() != sent.trim()
        {
            return refuse("Detected change in ramdisk provided \"agent_verify_ca\"");
        }
        if node.agent_url().is_none()
            && let Some(host) = &node.reservation
        {
            return Err(ApiError::locked(&node.uuid, host));
        }
        Ok(())
    }

    /// The asynchronous half: what an accepted heartbeat does to the node.
    fn apply(&self, node: &mut Node) -> HeartbeatEffect {
        let certificate = self.agent_verify_ca.filter(|pem| !pem.is_empty());
        if let Some(pem) = certificate {
            // Stored before the state is looked at, as the real one does.
            node.agent_certificate = Some(pem.to_owned());
        }
        if !node.provision_state.allows_heartbeat(node.fast_track) {
            return HeartbeatEffect::Ignored;
        }
        if node.reservation.is_some() {
            return HeartbeatEffect::SkippedLocked;
        }
        node.set_internal("agent_url", self.callback_url);
        node.set_internal("agent_version", self.agent_version.unwrap_or_default());
        node.set_internal("agent_last_heartbeat", timestamp());
        if certificate.is_some() {
            node.set_internal("agent_verify_ca", format!("/var/lib/ironic/certificates/{}.crt", node.uuid));
        }
        if node.provision_state.is_waiting_for_agent() && !node.maintenance {
            HeartbeatEffect::Drives
        } else {
            HeartbeatEffect::Recorded
        }
    }
}
