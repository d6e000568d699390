//! Scripted misbehaviour: what the conductor does instead of, or with, its proper answer.

use serde_json::Value;
use std::collections::VecDeque;
use std::time::Duration;

/// The part of the API a fault applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// `GET /`.
    Root,
    /// `GET /v1/lookup`.
    Lookup,
    /// `POST /v1/heartbeat/<node>`.
    Heartbeat,
    /// `POST /v1/continue_inspection`.
    Inspection,
}

impl Endpoint {
    /// The endpoint a path belongs to.
    #[must_use]
    pub fn of_path(path: &str) -> Option<Endpoint> {
        let path = path.trim_end_matches('/');
        match path {
            "" => Some(Endpoint::Root),
            "/v1/lookup" => Some(Endpoint::Lookup),
            "/v1/continue_inspection" => Some(Endpoint::Inspection),
            _ => path.starts_with("/v1/heartbeat/").then_some(Endpoint::Heartbeat),
        }
    }
}

/// What happens to one request.
#[derive(Debug, Clone)]
pub enum Fault {
    /// This status with Ironic's error body; the request has no effect.
    Status(u16),
    /// This answer, byte for byte; the request has no effect.
    Answer {
        /// Status code.
        status: u16,
        /// `Content-Type`, none when empty.
        content_type: String,
        /// The body.
        body: Vec<u8>,
    },
    /// The proper answer with these members merged into its body (RFC 7396: null removes a key).
    Patch(Value),
    /// Nothing is answered for this long, then the connection is closed.
    Hang(Duration),
    /// The request is handled and answered properly, this much later.
    Delay(Duration),
    /// The connection is reset (RST); the request has no effect.
    Reset,
    /// The request takes effect, but its answer is lost: the connection is closed instead.
    LoseReply,
    /// The connection is closed after this many bytes of the proper answer.
    CutReply(usize),
}

/// Faults waiting for their requests, first in, first out for each endpoint.
#[derive(Debug, Default)]
pub(crate) struct FaultScript {
    queue: VecDeque<(Endpoint, Fault)>,
}

impl FaultScript {
    pub(crate) fn add(&mut self, endpoint: Endpoint, fault: Fault) {
        self.queue.push_back((endpoint, fault));
    }

    pub(crate) fn take(&mut self, endpoint: Endpoint) -> Option<Fault> {
        let index = self.queue.iter().position(|(e, _)| *e == endpoint)?;
        self.queue.remove(index).map(|(_, fault)| fault)
    }

    pub(crate) fn clear(&mut self) {
        self.queue.clear();
    }

    pub(crate) fn remaining(&self, endpoint: Endpoint) -> usize {
        self.queue.iter().filter(|(e, _)| *e == endpoint).count()
    }
}

/// Merges `patch` into `target` (RFC 7396).
pub(crate) fn merge_patch(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let Value::Object(members) = target else { return };
    for (key, change) in changes {
        if change.is_null() {
            members.remove(key);
        } else {
            merge_patch(members.entry(key.clone()).or_insert(Value::Null), change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn faults_are_used_up_in_order_for_each_endpoint() {
        let mut script = FaultScript::default();
        script.add(Endpoint::Lookup, Fault::Status(404));
        script.add(Endpoint::Heartbeat, Fault::Reset);
        script.add(Endpoint::Lookup, Fault::Status(409));
        assert!(matches!(script.take(Endpoint::Lookup), Some(Fault::Status(404))));
        assert!(matches!(script.take(Endpoint::Lookup), Some(Fault::Status(409))));
        assert!(script.take(Endpoint::Lookup).is_none());
        assert_eq!(script.remaining(Endpoint::Heartbeat), 1);
    }

    #[test]
    fn a_patch_adds_changes_and_removes() {
        let mut answer = json!({"config": {"heartbeat_timeout": 300, "a": 1}, "node": {}});
        merge_patch(&mut answer, &json!({"config": {"heartbeat_timeout": 30, "a": null, "b": 2}}));
        assert_eq!(answer, json!({"config": {"heartbeat_timeout": 30, "b": 2}, "node": {}}));
    }
}
