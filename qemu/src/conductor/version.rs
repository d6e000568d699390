//! API versions: the header, the range this conductor speaks, and which version brought what.

use super::reply::ApiError;
use super::wire::Headers;
use std::fmt;

/// The header that names the API version of a request, and of its answer.
pub const VERSION_HEADER: &str = "X-OpenStack-Ironic-API-Version";
/// Oldest version any Ironic speaks.
pub(crate) const MIN_VERSION: ApiVersion = ApiVersion(1);

/// Minor version of the API; the major version is 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApiVersion(pub u32);

impl ApiVersion {
    /// Lookup and heartbeat exist.
    pub const RAMDISK: ApiVersion = ApiVersion(22);
    /// Heartbeats may carry `agent_version`.
    pub const AGENT_VERSION: ApiVersion = ApiVersion(36);
    /// Agent tokens.
    pub const AGENT_TOKEN: ApiVersion = ApiVersion(62);
    /// Heartbeats may carry `agent_verify_ca`.
    pub const VERIFY_CA: ApiVersion = ApiVersion(68);
    /// Heartbeats may carry `agent_status`.
    pub const AGENT_STATUS: ApiVersion = ApiVersion(72);
    /// Inspection data may be sent with a version, and `node_uuid`.
    pub const CONTINUE_INSPECTION: ApiVersion = ApiVersion(84);
}

impl fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}", self.0)
    }
}

/// The version a request asks for: the oldest when it names none.
pub(crate) fn requested(headers: &Headers, max: ApiVersion) -> Result<ApiVersion, ApiError> {
    let Some(text) = headers.get(VERSION_HEADER) else { return Ok(MIN_VERSION) };
    if text.eq_ignore_ascii_case("latest") {
        return Ok(max);
    }
    let parsed = text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let Some((major, minor)): Option<(u32, u32)> = parsed else {
        return Err(ApiError::web(406, format!("Invalid value for {VERSION_HEADER} header")));
    };
    let range = format!("The supported version range is: [{MIN_VERSION}, {max}].");
    if major != 1 {
        return Err(ApiError::web(
            406,
            format!(
                "Mutually exclusive versions requested. Version {text} requested but not supported by this service. {range}"
            ),
        ));
    }
    let version = ApiVersion(minor);
    if version < MIN_VERSION || version > max {
        return Err(ApiError::web(
            406,
            format!("Version {text} was requested but the minor version is not supported by this service. {range}"),
        ));
    }
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_header_is_checked() {
        let max = ApiVersion(115);
        for (text, expected) in [
            (None, Ok(1)),
            (Some("1.62"), Ok(62)),
            (Some("1.115"), Ok(115)),
            (Some("latest"), Ok(115)),
            (Some("1.116"), Err(406)),
            (Some("1.0"), Err(406)),
            (Some("2.1"), Err(406)),
            (Some("one"), Err(406)),
            (Some("1.2.3"), Err(406)),
        ] {
            let headers = Headers(text.map(|t| (VERSION_HEADER.to_lowercase(), t.to_owned())).into_iter().collect());
            let got = requested(&headers, max).map(|v| v.0).map_err(|e| e.status);
            assert_eq!(got, expected, "{text:?}");
        }
    }
}
