//! Versions of the conductor's API (protocol section 6).

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// `major.minor`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApiVersion {
    /// Always 1 so far.
    pub major: u16,
    /// Grows with every change of the API.
    pub minor: u16,
}

impl ApiVersion {
    const fn new(minor: u16) -> Self {
        Self { major: 1, minor }
    }

    /// Assumed when the conductor cannot be asked.
    pub const FALLBACK: Self = Self::new(31);
    /// Heartbeats carry `agent_version` from here on.
    pub const AGENT_VERSION: Self = Self::new(36);
    /// Lookups hand out tokens and heartbeats carry them from here on; also what lookups are made with at most.
    pub const TOKEN: Self = Self::new(62);
    /// Heartbeats carry `agent_verify_ca` from here on; also what they are made with at most.
    pub const VERIFY_CA: Self = Self::new(68);
}

impl fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The text is not `major.minor`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an API version such as 1.68")]
pub struct ParseVersionError {
    /// What was given.
    pub text: String,
}

impl FromStr for ApiVersion {
    type Err = ParseVersionError;

    fn from_str(text: &str) -> Result<Self, ParseVersionError> {
        let number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok()).flatten();
        text.trim()
            .split_once('.')
            .and_then(|(major, minor)| Some(Self { major: number(major)?, minor: number(minor)? }))
            .ok_or_else(|| ParseVersionError { text: text.chars().take(40).collect() })
    }
}

/// The part of `GET /` that matters.
#[derive(Debug, Deserialize)]
pub(super) struct Discovery {
    pub(super) default_version: DefaultVersion,
}

/// The version the conductor offers.
#[derive(Debug, Deserialize)]
pub(super) struct DefaultVersion {
    pub(super) version: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number_not_by_text() {
        let parse = |text: &str| text.parse::<ApiVersion>();
        assert!(parse("1.115").unwrap() > parse("1.68").unwrap());
        assert!(parse("1.9").unwrap() < ApiVersion::FALLBACK);
        assert_eq!(parse(" 1.62 ").unwrap().to_string(), "1.62");
        for text in ["", "1", "1.", ".1", "1.x", "1.+2", "1.2.3", "1.99999", "v1.2"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_discovery_answer_may_hold_anything_else() {
        let text = r#"{"name":"OpenStack Ironic API","default_version":{"id":"v1","version":"1.115","links":[]}}"#;
        let discovery: Discovery = serde_json::from_str(text).unwrap();
        assert_eq!(discovery.default_version.version, "1.115");
    }
}
