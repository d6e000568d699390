//! Why the conductor did not do what it was asked.

use std::time::Duration;

use http::StatusCode;

use crate::http::error::explained;
use crate::http::{HttpError, Url, UrlError};

/// A failed call to the conductor.
#[derive(Debug, thiserror::Error)]
pub enum ConductorError {
    /// No URL of the conductor is known.
    #[error("no URL of the conductor is configured (ipa-api-url)")]
    NoUrl,
    /// The configured URL cannot be used.
    #[error("the conductor's URL (ipa-api-url) is not usable")]
    Url(#[from] UrlError),
    /// None of the conductor's URLs answers.
    #[error("{what}: the conductor cannot be reached")]
    Unreachable {
        /// What was attempted.
        what: &'static str,
        /// Error of the URL tried last.
        #[source]
        source: HttpError,
    },
    /// The conductor answers with an error.
    #[error("{what} at {url}: Error {}: {text}", .status.as_u16())]
    Refused {
        /// What was attempted.
        what: &'static str,
        /// Which API answered.
        url: Url,
        /// Its status.
        status: StatusCode,
        /// Its explanation.
        text: String,
    },
    /// The answer is not what the API promises.
    #[error("{what} at {url}: the answer {problem}")]
    BadAnswer {
        /// What was attempted.
        what: &'static str,
        /// Which API answered.
        url: Url,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The node was not found for so long that the agent begins anew.
    #[error("no lookup succeeded within {} s", .waited.as_secs())]
    LookupTimedOut {
        /// How long lookups were tried.
        waited: Duration,
        /// Why the last one failed.
        #[source]
        last: Box<ConductorError>,
    },
}

impl ConductorError {
    /// Status of the conductor's answer, when there was one.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            Self::LookupTimedOut { last, .. } => last.status(),
            _ => None,
        }
    }

    /// Whether the node is locked by another operation of the conductor, which passes.
    pub fn is_conflict(&self) -> bool {
        self.status() == Some(StatusCode::CONFLICT)
    }

    /// The error with its causes and the hint, as one line for the console.
    pub fn explain(&self) -> String {
        explained(self, self.hint())
    }

    /// What it means and what can be done, in words for the console.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Unreachable { source, .. } => source.hint(),
            Self::Refused { what, status, text, .. } => refusal_hint(what, *status, text),
            Self::BadAnswer { .. } => Some("is this URL really the root of an Ironic API?"),
            Self::LookupTimedOut { last, .. } => last.hint(),
            Self::NoUrl | Self::Url(_) => None,
        }
    }
}

/// Only words for a person depend on the text of the answer; what the agent does depends on the status alone.
fn refusal_hint(what: &str, status: StatusCode, text: &str) -> Option<&'static str> {
    let lower = text.to_lowercase();
    let says = |words: &str| lower.contains(words);
    match status {
        StatusCode::FORBIDDEN => Some("this API does not serve agents; use one that does"),
        StatusCode::NOT_FOUND if what == super::LOOKUP => Some(
            "no node has a port with one of this machine's addresses, or the node's provision state expects no agent",
        ),
        StatusCode::NOT_FOUND => Some("the node is gone, or the URL is not the root of an Ironic API"),
        StatusCode::CONFLICT => Some("the node is locked by another operation; this passes"),
        _ if says("tls is required") => {
            Some("the conductor takes only https callback URLs: leave enable_auto_tls on, or set listen_tls")
        }
        _ if says("agent token") => Some(
            "the conductor knows another token for this boot: power the machine off and on through Ironic to get a new one",
        ),
        _ if status.is_server_error() => Some("see the logs of ironic-api and ironic-conductor"),
        _ => None,
    }
}
