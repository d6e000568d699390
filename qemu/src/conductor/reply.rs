//! Answers: how Ironic writes results, and how it writes refusals.

use super::version::{ApiVersion, MIN_VERSION, VERSION_HEADER};
use super::wire::Headers;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::macros::format_description;

/// An answer before it is written.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// `None` sends no body and no content type, as the 202 of a heartbeat.
    pub(crate) body: Option<Value>,
}

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: u16,
    message: String,
    form: ErrorForm,
}

/// Ironic writes errors in three ways, depending on which layer refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ErrorForm {
    /// `error_message` holds JSON text with `faultcode`, `faultstring` and `debuginfo`: the API methods.
    Fault,
    /// `error_message` holds JSON text with `message`, `code` and `title`: the web framework.
    Web,
    /// `faultcode` and `faultstring` directly: the guard in front of the JSON parser.
    Guard,
}

impl ApiError {
    /// A refusal by an API method.
    pub(crate) fn fault(status: u16, message: impl Into<String>) -> Self {
        ApiError { status, message: message.into(), form: ErrorForm::Fault }
    }

    /// A refusal by the web framework.
    pub(crate) fn web(status: u16, message: impl Into<String>) -> Self {
        ApiError { status, message: message.into(), form: ErrorForm::Web }
    }

    /// A refusal by the body guard.
    pub(crate) fn guard(status: u16, message: impl Into<String>) -> Self {
        ApiError { status, message: message.into(), form: ErrorForm::Guard }
    }

    /// 404 without a word about what was not found.
    pub(crate) fn not_found() -> Self {
        Self::fault(404, "Resource could not be found.")
    }

    /// 409: somebody holds the node's lock.
    pub(crate) fn locked(node: &str, host: &str) -> Self {
        let hint = "please retry after the current operation is completed.";
        Self::fault(409, format!("Node {node} is locked by host {host}, {hint}"))
    }

    pub(crate) fn body(&self) -> Value {
        let faultcode = if self.status >= 500 { "Server" } else { "Client" };
        let inner = match self.form {
            ErrorForm::Guard => return json!({"faultcode": faultcode, "faultstring": self.message}),
            ErrorForm::Fault => json!({"faultcode": faultcode, "faultstring": self.message, "debuginfo": null}),
            ErrorForm::Web => json!({
                "message": format!("{}<br /><br />\n\n\n", self.message),
                "code": format!("{} {}", self.status, reason(self.status)),
                "title": reason(self.status),
            }),
        };
        json!({"error_message": inner.to_string()})
    }
}

impl From<ApiError> for Reply {
    fn from(error: ApiError) -> Self {
        Reply { status: error.status, body: Some(error.body()) }
    }
}

/// The head fields of an answer.
pub(crate) fn headers(version: ApiVersion, max: ApiVersion, content_type: Option<&str>, length: usize) -> Headers {
    let mut headers = Headers::default();
    headers.push("X-OpenStack-Ironic-API-Minimum-Version", MIN_VERSION.to_string());
    headers.push("X-OpenStack-Ironic-API-Maximum-Version", max.to_string());
    headers.push(VERSION_HEADER, version.to_string());
    headers.push("Date", date());
    headers.push("Content-Length", length.to_string());
    if let Some(content_type) = content_type {
        headers.push("Content-Type", content_type);
    }
    headers
}

/// The time as HTTP has it (RFC 9110 section 5.6.7).
fn date() -> String {
    let format =
        format_description!("[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT");
    OffsetDateTime::now_utc().format(format).unwrap_or_default() // fails only for formats without the needed fields
}

/// Reason phrase of the status codes in use.
pub(crate) fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        202 => "Accepted",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        409 => "Conflict",
        413 => "Request Entity Too Large",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        _ => "Unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_api_are_encoded_twice() {
        let body = ApiError::fault(400, "no \"quotes\" lost").body();
        let inner: Value = serde_json::from_str(body["error_message"].as_str().unwrap()).unwrap();
        assert_eq!(inner, json!({"faultcode": "Client", "faultstring": "no \"quotes\" lost", "debuginfo": null}));
        let server: Value =
            serde_json::from_str(ApiError::fault(500, "x").body()["error_message"].as_str().unwrap()).unwrap();
        assert_eq!(server["faultcode"], "Server");
        let web: Value =
            serde_json::from_str(ApiError::web(404, "x").body()["error_message"].as_str().unwrap()).unwrap();
        assert_eq!((web["title"].as_str(), web.get("faultstring")), (Some("Not Found"), None));
    }
}
