//! Error bodies of the agent's REST API.

use serde::{Deserialize, Serialize};

/// Body of every answer with a status of 400 or above. The conductor crashes on a body without `faultstring`
/// (protocol section 13), so nothing else may be sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// `Client` below 500, else `Server`.
    pub faultcode: String,
    /// What went wrong.
    pub faultstring: String,
}

impl Fault {
    /// The fault for an HTTP status and a text.
    pub fn new(status: u16, text: impl Into<String>) -> Self {
        let faultcode = if status >= 500 { "Server" } else { "Client" };
        Self { faultcode: faultcode.to_owned(), faultstring: text.into() }
    }
}
