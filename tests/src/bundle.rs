//! What `log.collect_system_logs` returns, taken apart.

use std::collections::BTreeMap;
use std::io::Read as _;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use ferric_qemu::conductor::{AgentClient, Wait};
use serde_json::json;

/// Members of a log archive by name.
#[derive(Debug, Clone, Default)]
pub struct Bundle(BTreeMap<String, Vec<u8>>);

/// Takes a log archive apart: base64 of a gzip-compressed tar.
///
/// # Errors
/// It is none.
pub fn unpack(base64_text: &str) -> Result<Bundle> {
    let bytes = base64::engine::general_purpose::STANDARD.decode(base64_text).context("decoding a log archive")?;
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(bytes.as_slice()));
    let mut members = BTreeMap::new();
    for entry in archive.entries().context("reading a log archive")? {
        let mut entry = entry.context("reading a log archive")?;
        let name = entry.path()?.display().to_string();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).with_context(|| format!("reading {name} of a log archive"))?;
        members.insert(name, content);
    }
    Ok(Bundle(members))
}

impl Bundle {
    /// Asks an agent for its logs.
    ///
    /// # Errors
    /// It has none.
    pub fn of(agent: &AgentClient) -> Result<Self> {
        let record = agent.command("log.collect_system_logs", &json!({}), Wait::ForResult)?;
        unpack(record.command_result["system_logs"].as_str().context("no system_logs")?)
    }

    /// A member as text; empty when it is not there.
    pub fn text(&self, name: &str) -> String {
        self.0.get(name).map(|bytes| String::from_utf8_lossy(bytes).into_owned()).unwrap_or_default()
    }

    /// All members together.
    pub fn all_text(&self) -> String {
        self.0.values().map(|bytes| String::from_utf8_lossy(bytes)).collect::<Vec<_>>().join("\n")
    }

    /// Peak memory of the worker in KiB.
    ///
    /// # Errors
    /// The list of processes does not have it.
    pub fn worker_peak_kib(&self) -> Result<u64> {
        let list = self.text("ps");
        // PID PPID STATE RSS PEAK OOM COMMAND
        let line = list.lines().find(|line| line.trim_end().ends_with(" run")).with_context(|| list.clone())?;
        line.split_whitespace().nth(4).and_then(|peak| peak.parse().ok()).with_context(|| list.clone())
    }
}
