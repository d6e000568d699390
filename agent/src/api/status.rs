//! `GET /v1/status`: for people and health checks.

use serde_json::{Value, json};

use crate::app::App;

/// When the agent started and which version it is.
pub fn document(app: &App) -> Value {
    json!({ "started_at": app.started_at, "version": crate::VERSION })
}
