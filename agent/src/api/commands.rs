//! `/v1/commands/`: run, list and show commands.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ferric_types::CommandRecord;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use serde::Serialize;
use serde_json::{Map, Value};

use super::fault::ApiError;
use super::token::parameter;
use crate::app::App;
use crate::command::run;

/// Largest request body: a config drive of 64 MiB would not come inline, and Ironic's own limit for an agent's
/// inspection data is this too.
pub const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;
/// How long a body may take to arrive.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// All records, oldest first.
#[derive(Debug, Serialize)]
pub struct CommandList {
    commands: Vec<CommandRecord>,
}

/// The list of commands.
pub fn list(app: &App) -> CommandList {
    CommandList { commands: app.store.all() }
}

/// One command; with `wait=true` when it has ended.
///
/// # Errors
/// [`ApiError::Record`].
pub async fn show(app: &App, id: &str, query: Option<&str>) -> Result<CommandRecord, ApiError> {
    let record = if waits(query) { app.store.wait(id).await } else { app.store.get(id) };
    record.ok_or_else(|| ApiError::Record(id.to_owned()))
}

/// Runs a command.
///
/// # Errors
/// Anything wrong with the request; a command that fails is a record, not an error.
pub async fn run(app: &Arc<App>, body: Incoming, query: Option<&str>) -> Result<CommandRecord, ApiError> {
    let body = tokio::time::timeout(BODY_TIMEOUT, read(body))
        .await
        .map_err(|_elapsed| ApiError::Slow(BODY_TIMEOUT.as_secs()))??;
    let (name, params) = parse(&body)?;
    drop(body);
    Ok(run::execute(app, &name, params, waits(query)).await?)
}

fn waits(query: Option<&str>) -> bool {
    query.and_then(|query| parameter(query, "wait")).is_some_and(|text| text.eq_ignore_ascii_case("true"))
}

async fn read(mut body: Incoming) -> Result<Bytes, ApiError> {
    // Room for what is announced, so that a large body is not moved while it grows.
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let mut bytes = BytesMut::with_capacity(announced.min(MAX_BODY_BYTES));
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| ApiError::Body(error.to_string()))?;
        if let Ok(data) = frame.into_data() {
            if bytes.len() + data.len() > MAX_BODY_BYTES {
                return Err(ApiError::TooLarge(MAX_BODY_BYTES));
            }
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes.freeze())
}

/// Values that a body may hold: each costs some fifty bytes once it is read. Nodes with hundreds of ports have a few
/// thousand.
const MAX_VALUES: usize = 200_000;

/// Whether a body has more values than any request needs; what is inside texts does not count.
fn has_too_many_values(body: &[u8]) -> bool {
    let (mut in_text, mut escaped, mut values) = (false, false, 0_usize);
    for byte in body {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b',' | b'[' | b'{' if !in_text => values += 1,
            _ => {}
        }
    }
    values > MAX_VALUES
}

/// Name and parameters of a body. Unlike the reference agent, a body of `null` or a number is the client's fault
/// (400), not the server's (500).
fn parse(body: &[u8]) -> Result<(String, Map<String, Value>), ApiError> {
    if has_too_many_values(body) {
        return Err(ApiError::Body(format!("the request body holds more than {MAX_VALUES} values")));
    }
    let value: Value = serde_json::from_slice(body)?;
    let Value::Object(mut object) = value else { return Err(ApiError::NameOrParams) };
    match (object.remove("name"), object.remove("params")) {
        (Some(Value::String(name)), Some(Value::Object(params))) if !name.is_empty() => Ok((name, params)),
        _ => Err(ApiError::NameOrParams),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_of_the_wrong_shape_are_told_apart() {
        let bad_json = ["", "{", "{\"name\": }", "\u{0}"];
        for body in bad_json {
            let error = parse(body.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with("400 Bad Request: Failed to decode JSON object: "), "{body}: {error}");
        }
        let bad_shape = [
            "[]",
            "null",
            "5",
            "{}",
            r#"{"name": "a.b"}"#,
            r#"{"params": {}}"#,
            r#"{"name": 5, "params": {}}"#,
            r#"{"name": "", "params": {}}"#,
            r#"{"name": "a.b", "params": []}"#,
            r#"{"name": "a.b", "params": null}"#,
        ];
        for body in bad_shape {
            let error = parse(body.as_bytes()).unwrap_err().to_string();
            assert_eq!(error, "400 Bad Request: Missing or invalid name or params", "{body}");
        }
        let (name, params) = parse(br#"{"name": "a.b", "params": {"x": 1}, "extra": 2}"#).unwrap();
        assert_eq!((name.as_str(), params["x"].as_u64()), ("a.b", Some(1)));
    }

    #[test]
    fn bodies_of_countless_values_are_refused_but_large_texts_are_not() {
        let many = format!(r#"{{"name": "a.b", "params": {{"x": [{}0]}}}}"#, "0,".repeat(MAX_VALUES));
        assert!(parse(many.as_bytes()).unwrap_err().to_string().contains("more than 200000 values"));
        let text = format!(r#"{{"name": "a.b", "params": {{"x": "{}\""}}}}"#, "[,{".repeat(MAX_VALUES));
        assert!(parse(text.as_bytes()).is_ok());
    }

    #[test]
    fn wait_is_true_in_any_case_and_nothing_else() {
        assert!(waits(Some("wait=true")));
        assert!(waits(Some("agent_token=x&wait=TRUE")));
        assert!(!waits(Some("wait=1")));
        assert!(!waits(None));
    }
}
