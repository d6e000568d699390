//! The `logs` collector: the same archive that `log.collect_system_logs` returns.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::{CollectError, Collector};
use crate::app::App;

/// The collector.
pub const LOGS: Collector = Collector { name: "logs", collect };

#[expect(clippy::unnecessary_wraps, reason = "the signature of every collector")]
fn collect(app: &App, body: &mut Map<String, Value>) -> Result<(), CollectError> {
    body.insert("logs".to_owned(), Value::String(STANDARD.encode(app.collect_logs())));
    Ok(())
}
