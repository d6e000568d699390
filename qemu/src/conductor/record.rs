//! What the conductor saw: every request with its answer, and every heartbeat with what came of it.

use super::wire::Headers;
use serde_json::Value;
use std::time::{Duration, SystemTime};

/// One request as it came in, and the status it was answered with.
#[derive(Debug, Clone)]
pub struct RecordedRequest {
    /// Counts from 1.
    pub sequence: u64,
    /// Wall clock time.
    pub at: SystemTime,
    /// Time since the conductor started.
    pub since_start: Duration,
    /// Number of the connection it came on, from 1; equal numbers mean a kept-alive connection.
    pub connection: u64,
    /// `GET`, `POST`, ...
    pub method: String,
    /// Path and query as sent.
    pub target: String,
    /// Path, percent-decoded.
    pub path: String,
    /// Query, percent-decoded, in order.
    pub query: Vec<(String, String)>,
    /// Header fields.
    pub headers: Headers,
    /// The body.
    pub body: Vec<u8>,
    /// Status of the answer; `None` while it is not answered, or when a fault left it without one.
    pub status: Option<u16>,
    /// Body of the answer, when it is a refusal (400 and above) of the conductor's own.
    pub refusal: Option<Value>,
    /// Whether a scripted fault decided the answer.
    pub faulted: bool,
}

impl RecordedRequest {
    /// The body as JSON, or null.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// Why it was refused, in the conductor's words.
    #[must_use]
    pub fn refusal_text(&self) -> Option<String> {
        let message = self.refusal.as_ref()?["error_message"].as_str()?;
        let inner: Value = serde_json::from_str(message).unwrap_or_default();
        Some(inner["faultstring"].as_str().unwrap_or(message).to_owned())
    }

    /// The first value of a query key.
    #[must_use]
    pub fn query_value(&self, key: &str) -> Option<&str> {
        self.query.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// The API version asked for.
    #[must_use]
    pub fn api_version(&self) -> Option<&str> {
        self.headers.get(super::version::VERSION_HEADER)
    }
}

/// What the conductor did with a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeartbeatEffect {
    /// Recorded, and the conductor goes on with its work.
    Drives,
    /// Recorded only.
    Recorded,
    /// Answered 202 but not looked at: the node is locked.
    SkippedLocked,
    /// Answered 202 but not looked at: no heartbeat is expected in this state.
    Ignored,
    /// Answered with an error.
    Refused,
}

/// One heartbeat.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    /// The number of its [`RecordedRequest`].
    pub sequence: u64,
    /// Time since the conductor started.
    pub since_start: Duration,
    /// Node identifier from the path.
    pub node: String,
    /// The body as it came.
    pub body: Value,
    /// Status it was answered with.
    pub status: u16,
    /// What came of it.
    pub effect: HeartbeatEffect,
}

impl Heartbeat {
    /// A text field of the body.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        self.body.get(key).and_then(Value::as_str)
    }

    /// Whether it was answered 202.
    #[must_use]
    pub fn accepted(&self) -> bool {
        self.effect != HeartbeatEffect::Refused
    }
}

/// Splits a request target into its decoded path and query.
#[must_use]
pub(crate) fn split_target(target: &str) -> (String, Vec<(String, String)>) {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(&key.replace('+', " ")), decode(&value.replace('+', " ")))
    });
    (decode(path), pairs.collect())
}

fn decode(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_split_and_decoded() {
        let (path, query) = split_target("/v1/lookup?addresses=aa%3Abb%2Ccc&x=&y&z=a+b");
        assert_eq!(path, "/v1/lookup");
        let expected = [("addresses", "aa:bb,cc"), ("x", ""), ("y", ""), ("z", "a b")];
        assert_eq!(query, expected.map(|(k, v)| (k.to_owned(), v.to_owned())));
        assert_eq!(split_target("/").1, []);
    }
}
