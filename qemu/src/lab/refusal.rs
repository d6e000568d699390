//! Inspection data that the stand-in conductor did not take.

use crate::conductor::RecordedRequest;

/// The conductor refused the inspection data for good, and the agent will not send it again.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the conductor refused the inspection data with status {status}: {reason}{}", agents(.agent_error.as_deref()))]
pub(super) struct InspectionRefused {
    /// Status of the conductor's answer.
    status: u16,
    /// The conductor's words.
    reason: String,
    /// The data's `error`: what went wrong in the agent.
    agent_error: Option<String>,
}

fn agents(error: Option<&str>) -> String {
    error.map(|text| format!("\nthe agent's error: {text}")).unwrap_or_default()
}

impl InspectionRefused {
    /// Whether a request is inspection data refused for good; after 409 and 5xx the agent tries again.
    pub(super) fn is(request: &RecordedRequest) -> bool {
        let refused = request.status.is_some_and(|status| (400..500).contains(&status) && status != 409);
        refused && request.path.trim_end_matches('/') == "/v1/continue_inspection"
    }

    /// What there is to say of such a request.
    pub(super) fn of(request: &RecordedRequest) -> Self {
        let data = request.json();
        InspectionRefused {
            status: request.status.unwrap_or_default(),
            reason: request.refusal_text().unwrap_or_else(|| "no reason is known".to_owned()),
            agent_error: data["error"].as_str().filter(|text| !text.is_empty()).map(str::to_owned),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conductor::{Conductor, ConductorConfig, Endpoint, Fault, Node};
    use serde_json::{Value, json};
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    /// Posts inspection data and gives the conductor's record of it.
    fn posted(conductor: &Conductor, path: &str, data: &Value) -> RecordedRequest {
        let mut stream = TcpStream::connect(("127.0.0.1", conductor.port())).unwrap();
        let body = data.to_string();
        let head = format!("POST {path} HTTP/1.1\r\nHost: h\r\nX-OpenStack-Ironic-API-Version: 1.84\r\n");
        let fields = format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        write!(stream, "{head}{fields}Connection: close\r\n\r\n{body}").unwrap();
        stream.read_to_end(&mut Vec::new()).unwrap();
        conductor.requests().pop().unwrap()
    }

    #[test]
    fn data_without_an_inventory_ends_the_waiting_with_both_reasons() {
        let nodes = vec![Node::new("n", &["52:54:00:12:34:56"])];
        let conductor = Conductor::start(ConductorConfig { nodes, ..ConductorConfig::default() }).unwrap();
        let request = posted(&conductor, "/v1/continue_inspection", &json!({"error": "no collector bogus"}));
        assert!(InspectionRefused::is(&request), "{request:?}");
        assert_eq!(
            InspectionRefused::of(&request).to_string(),
            "the conductor refused the inspection data with status 400: Schema error for data: 'inventory' is a \
             required property\nthe agent's error: no collector bogus"
        );
        let request = posted(&conductor, "/v1/continue_inspection", &json!({"error": null}));
        let text = InspectionRefused::of(&request).to_string();
        assert!(text.ends_with("is a required property"), "{text}");
    }

    #[test]
    fn other_requests_and_refusals_that_pass_do_not_end_it() {
        let conductor = Conductor::start(ConductorConfig::default()).unwrap();
        for status in [409, 500, 503] {
            conductor.script(Endpoint::Inspection, [Fault::Status(status)]);
            let request = posted(&conductor, "/v1/continue_inspection", &json!({}));
            assert_eq!((request.status, InspectionRefused::is(&request)), (Some(status), false));
        }
        let request = posted(&conductor, "/v1/nonsense", &json!({}));
        assert_eq!((request.status, InspectionRefused::is(&request)), (Some(404), false));
    }
}
