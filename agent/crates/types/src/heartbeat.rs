//! Body of a heartbeat (protocol section 9).

use serde::{Serialize, Serializer};

use crate::secret::Secret;

/// What the agent announces. Ironic refuses unknown keys, so a field is absent when the API version lacks it.
#[derive(Debug, Clone, Serialize)]
pub struct Heartbeat {
    /// Where the conductor reaches the agent; constant for one boot.
    pub callback_url: String,
    /// Since API 1.62; null when the agent has none.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "inner")]
    pub agent_token: Option<Option<Secret<String>>>,
    /// Since API 1.36.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// Since API 1.68: the agent's own certificate in PEM, constant for one boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_verify_ca: Option<String>,
}

fn inner<S: Serializer>(token: &Option<Option<Secret<String>>>, serializer: S) -> Result<S::Ok, S::Error> {
    token.as_ref().and_then(Option::as_ref).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_unknown_to_the_api_version_are_absent() {
        let mut beat = Heartbeat {
            callback_url: "https://[2001:db8::1]:9999".into(),
            agent_token: None,
            agent_version: None,
            agent_verify_ca: None,
        };
        assert_eq!(serde_json::to_string(&beat).unwrap(), r#"{"callback_url":"https://[2001:db8::1]:9999"}"#);
        beat.agent_token = Some(None);
        beat.agent_version = Some("1".into());
        assert_eq!(
            serde_json::to_string(&beat).unwrap(),
            r#"{"callback_url":"https://[2001:db8::1]:9999","agent_token":null,"agent_version":"1"}"#
        );
    }
}
