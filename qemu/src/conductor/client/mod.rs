//! The conductor's side of the agent's API: what `ironic/drivers/modules/agent_client.py` does, quirks included.
//!
//! The agent's certificate is the only trusted one, TLS is 1.3 or nothing, the certificate must name the host of the
//! callback URL, while the TCP connection may go elsewhere ([`AgentClient::connecting_to`]). A lost reply is looked up
//! in the command list, three times in all; an error without `faultstring` is a failure of its own, because it makes
//! a real conductor crash.

mod http;

pub use http::RawRequest;

use super::tls;
use super::wire::RawResponse;
use http::{Connection, HttpError, Target};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// `[agent]max_command_attempts`.
const MAX_ATTEMPTS: u32 = 3;
/// `[agent]command_timeout`.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// Whether the answer to a command waits for its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// `wait=true`.
    ForResult,
    /// `wait=false`.
    No,
}

/// Why a command could not be given.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// No heartbeat told the agent's URL yet.
    #[error("the agent's url is not known yet")]
    NoUrl,
    /// The URL in the heartbeat is not one of an agent.
    #[error("agent url {url:?} is not http(s)://host:port")]
    BadUrl {
        /// The URL.
        url: String,
    },
    /// An https URL without a certificate to pin.
    #[error("agent at {url} serves https but announced no certificate")]
    NoCertificate {
        /// The agent's URL.
        url: String,
    },
    /// The announced certificate is unusable.
    #[error("reading the certificate announced by the agent at {url}")]
    Certificate {
        /// The agent's URL.
        url: String,
        /// What is wrong with it.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The agent cannot be reached, and the command list does not show that the command arrived.
    #[error("connecting to the agent at {url}")]
    Connection {
        /// The agent's URL.
        url: String,
        /// The last failure.
        #[source]
        source: HttpError,
    },
    /// 409, or a text that says so: the agent is busy.
    #[error("the agent is busy with another command: {fault}")]
    InProgress {
        /// The agent's `faultstring`.
        fault: String,
    },
    /// Any other refusal.
    #[error("the agent refused {command} with {status}: {fault}")]
    Api {
        /// The command.
        command: String,
        /// HTTP status.
        status: u16,
        /// The agent's `faultstring`.
        fault: String,
    },
    /// An error without `faultstring`.
    #[error("the agent answered {command} with {status} and no faultstring: {body}")]
    MissingFaultstring {
        /// The command.
        command: String,
        /// HTTP status.
        status: u16,
        /// The body.
        body: String,
    },
    /// The answer is not what the API promises.
    #[error("the agent's answer to {command} is not {expected}: {body}")]
    BadAnswer {
        /// The command, or the path that was read.
        command: String,
        /// What it should be.
        expected: &'static str,
        /// The body.
        body: String,
    },
    /// A polled command did not end in time.
    #[error("{command} was still running after {limit:?}")]
    CommandTimeout {
        /// The command.
        command: String,
        /// The time allowed.
        limit: Duration,
    },
}

/// A command's record as the agent shows it.
#[derive(Debug, Clone, Deserialize)]
pub struct CommandRecord {
    /// Identifier.
    pub id: String,
    /// Short name, without the extension.
    pub command_name: String,
    /// `RUNNING`, `SUCCEEDED`, `FAILED`, `CLEAN_VERSION_MISMATCH`.
    pub command_status: String,
    /// Null or an error object.
    #[serde(default)]
    pub command_error: Value,
    /// Null or the result.
    #[serde(default)]
    pub command_result: Value,
    /// Keys beyond Ironic's five, `progress` among them.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl CommandRecord {
    /// Whether it has not ended.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.command_status == "RUNNING"
    }

    /// The text Ironic would show as `last_error`: `details`, else `message`, else the whole error.
    #[must_use]
    pub fn error_text(&self) -> String {
        let error = &self.command_error;
        match (error["details"].as_str(), error["message"].as_str(), error) {
            (Some(text), _, _) | (None, Some(text), _) if !text.is_empty() => text.to_owned(),
            (_, _, Value::String(text)) => text.clone(),
            (_, _, Value::Null) => "Invalid agent response".to_owned(),
            (_, _, other) => other.to_string(),
        }
    }
}

/// Speaks to one agent. Cheap to make; keeps one connection open between calls.
#[derive(Debug)]
pub struct AgentClient {
    url: String,
    target: Target,
    token: Option<String>,
    timeout: Duration,
    connection: Mutex<Option<Connection>>,
}

impl AgentClient {
    /// A client for the agent at `callback_url`, trusting only `certificate_pem`.
    pub fn new(callback_url: &str, certificate_pem: Option<&str>, token: Option<&str>) -> Result<Self, AgentError> {
        let url = callback_url.to_owned();
        let mut target = Target::parse(callback_url).ok_or_else(|| AgentError::BadUrl { url: url.clone() })?;
        if target.https {
            let pem = certificate_pem.ok_or_else(|| AgentError::NoCertificate { url: url.clone() })?;
            let bad =
                |source: Box<dyn std::error::Error + Send + Sync>| AgentError::Certificate { url: url.clone(), source };
            let certificate = tls::certificate_of_pem(pem).map_err(|e| bad(e.into()))?;
            target.tls = Some(tls::pinning_client(certificate).map_err(|e| bad(e.into()))?);
        }
        Ok(AgentClient {
            url,
            target,
            token: token.map(str::to_owned),
            timeout: COMMAND_TIMEOUT,
            connection: Mutex::new(None),
        })
    }

    /// Makes the TCP connection to `address`; everything else still follows the callback URL.
    #[must_use]
    pub fn connecting_to(mut self, address: SocketAddr) -> Self {
        self.target.address = Some(address);
        self
    }

    /// Uses another token, or none: for tests of what the agent refuses.
    #[must_use]
    pub fn with_token(mut self, token: Option<&str>) -> Self {
        self.token = token.map(str::to_owned);
        self
    }

    /// Waits this long for a connection and for each answer, instead of a minute.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Host and port of the callback URL, as `10.0.2.15:9999` or `[fd00::1]:9999`.
    #[must_use]
    pub fn host_and_port(&self) -> String {
        self.target.authority.clone()
    }

    /// The callback URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Gives a command, as `clean.get_clean_steps`, and returns its record.
    pub fn command(&self, command: &str, params: &Value, wait: Wait) -> Result<CommandRecord, AgentError> {
        let wait_text = if wait == Wait::ForResult { "true" } else { "false" };
        let target = format!("{}/v1/commands/?wait={wait_text}{}", self.target.prefix, self.token_query('&'));
        let body = json!({"name": command, "params": params}).to_string();
        let request = RawRequest::new("POST", &target).body(body);
        let mut attempt = 1;
        let record = loop {
            match self.raw(&request) {
                Ok(response) => break record_of(command, &response)?,
                Err(source) => {
                    if let Some(record) = self.running_record(command) {
                        break record;
                    }
                    if attempt == MAX_ATTEMPTS {
                        return Err(AgentError::Connection { url: self.url.clone(), source });
                    }
                    attempt += 1;
                }
            }
        };
        refuse_type_error(command, record)
    }

    /// Gives a command without waiting, then reads the command list every `interval` until the newest record of that
    /// name has ended: how Ironic runs `image.install_bootloader` (6 s, 100 times).
    pub fn command_polled(
        &self,
        command: &str,
        params: &Value,
        interval: Duration,
        limit: Duration,
    ) -> Result<CommandRecord, AgentError> {
        self.command(command, params, Wait::No)?;
        let end = Instant::now() + limit;
        loop {
            let newest = self.commands()?.into_iter().rev().find(|r| r.command_name == short_name(command));
            if let Some(record) = newest.filter(|r| !r.is_running()) {
                return refuse_type_error(command, record);
            }
            if Instant::now() >= end {
                return Err(AgentError::CommandTimeout { command: command.to_owned(), limit });
            }
            thread::sleep(interval);
        }
    }

    /// The command list, oldest first. As in Ironic the status is not looked at: an answer without `commands` fails.
    pub fn commands(&self) -> Result<Vec<CommandRecord>, AgentError> {
        let target = format!("{}/v1/commands/{}", self.target.prefix, self.token_query('?'));
        let mut attempt = 1;
        let response = loop {
            match self.raw(&RawRequest::new("GET", &target)) {
                Ok(response) => break response,
                Err(source) if attempt == MAX_ATTEMPTS => {
                    return Err(AgentError::Connection { url: self.url.clone(), source });
                }
                Err(_) => attempt += 1,
            }
        };
        let bad = || AgentError::BadAnswer {
            command: "GET /v1/commands/".to_owned(),
            expected: "a list of command records",
            body: response.text(),
        };
        let records = response.json().and_then(|mut body| body.get_mut("commands").map(Value::take)).ok_or_else(bad)?;
        serde_json::from_value(records).map_err(|_error| bad()) // the body itself says more than the parser
    }

    /// Sends any request over the kept connection and returns whatever is answered. `Host`, `User-Agent`, `Accept`,
    /// `Content-Type` and `Content-Length` are added where the request does not have them.
    pub fn raw(&self, request: &RawRequest) -> Result<RawResponse, HttpError> {
        let mut slot = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let mut connection = match slot.take() {
            Some(open) if open.is_usable() => open,
            _ => Connection::open(&self.target, self.timeout)?,
        };
        let response = connection.exchange(request, &self.target)?;
        if !response.headers.wants_close() {
            *slot = Some(connection);
        }
        Ok(response)
    }

    /// Sends these bytes on a connection of their own and reads one answer.
    pub fn raw_bytes(&self, bytes: &[u8]) -> Result<RawResponse, HttpError> {
        Connection::open(&self.target, self.timeout)?.exchange_bytes(bytes)
    }

    /// After a lost reply: the last record, if it is this command and still running.
    fn running_record(&self, command: &str) -> Option<CommandRecord> {
        let last = self.commands().ok()?.pop()?;
        (last.command_name == short_name(command) && last.is_running()).then_some(last)
    }

    fn token_query(&self, separator: char) -> String {
        let encode = |token| percent_encoding::utf8_percent_encode(token, percent_encoding::NON_ALPHANUMERIC);
        self.token.as_deref().map(|token| format!("{separator}agent_token={}", encode(token))).unwrap_or_default()
    }
}

fn short_name(command: &str) -> &str {
    command.split_once('.').map_or(command, |(_, name)| name)
}

fn record_of(command: &str, response: &RawResponse) -> Result<CommandRecord, AgentError> {
    let bad = |expected| AgentError::BadAnswer { command: command.to_owned(), expected, body: response.text() };
    let body = response.json().ok_or_else(|| bad("JSON"))?;
    if response.status < 400 {
        return serde_json::from_value(body).map_err(|_error| bad("a command record")); // as in commands()
    }
    let status = response.status;
    let Some(fault) = body["faultstring"].as_str().map(str::to_owned) else {
        return Err(AgentError::MissingFaultstring { command: command.to_owned(), status, body: response.text() });
    };
    if status == 409 || fault.to_lowercase().contains("agent is busy") {
        return Err(AgentError::InProgress { fault });
    }
    Err(AgentError::Api { command: command.to_owned(), status, fault })
}

/// Ironic takes an error of Python's `TypeError` for an agent that is too old for the call.
fn refuse_type_error(command: &str, record: CommandRecord) -> Result<CommandRecord, AgentError> {
    if record.command_error["type"] != "TypeError" {
        return Ok(record);
    }
    let status = record.command_error["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(500);
    Err(AgentError::Api { command: command.to_owned(), status, fault: record.error_text() })
}

#[cfg(test)]
mod tests;
