//! `/v1/commands/`: run, list and show commands.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ferric_types::CommandRecord;
use http_body_util::BodyExt;
use hyper::HeaderMap;
use hyper::body::{Body as _, Incoming};
use hyper::header::EXPECT;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::fault::ApiError;
use super::token::parameter;
use crate::app::App;
use crate::command::run;
use crate::json::{self, JsonError};

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
pub async fn run(
    app: &Arc<App>,
    head: &HeaderMap,
    body: Incoming,
    query: Option<&str>,
) -> Result<CommandRecord, ApiError> {
    // A client that waits to be told to go on has sent nothing that would have to be read first.
    let expects = head.contains_key(EXPECT);
    let whole = tokio::time::timeout(BODY_TIMEOUT, Reading { app, body, expects }.whole()).await;
    let (body, _turn) = whole.map_err(|_elapsed| ApiError::Slow(BODY_TIMEOUT.as_secs()))??;
    let (name, params) = parse(&body)?;
    drop(body);
    Ok(run::execute(app, &name, params, waits(query)).await?)
}

fn waits(query: Option<&str>) -> bool {
    query.and_then(|query| parameter(query, "wait")).is_some_and(|text| text.eq_ignore_ascii_case("true"))
}

/// Bodies up to this size are read at any time; larger ones one after the other, since several at once do not fit into
/// the memory of a small machine.
const SMALL_BODY_BYTES: usize = 64 << 10;
/// Whose turn it is with a large body.
static LARGE_BODY: Semaphore = Semaphore::const_new(1);
/// How much of a refused body is read, so that the client sees the answer and not a broken connection.
const DISCARDED_BYTES: u64 = 64 << 20;

/// A body on its way in.
struct Reading<'a> {
    app: &'a App,
    body: Incoming,
    expects: bool,
}

impl Reading<'_> {
    /// The body, and the turn that a large one has until its command is under way.
    async fn whole(mut self) -> Result<(Bytes, Option<SemaphorePermit<'static>>), ApiError> {
        // Room for what is announced, so that a large body is not moved while it grows.
        let announced = usize::try_from(self.body.size_hint().lower()).unwrap_or(usize::MAX);
        if announced > MAX_BODY_BYTES {
            return Err(self.refused(ApiError::TooLarge(MAX_BODY_BYTES)).await);
        }
        let mut turn = None;
        if announced > SMALL_BODY_BYTES {
            turn = Some(self.turn().await?);
        }
        let mut bytes = BytesMut::with_capacity(announced);
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| ApiError::Body(error.to_string()))?;
            let Ok(data) = frame.into_data() else { continue };
            let length = bytes.len() + data.len();
            if length > MAX_BODY_BYTES {
                return Err(self.refused(ApiError::TooLarge(MAX_BODY_BYTES)).await);
            }
            if length > SMALL_BODY_BYTES && turn.is_none() {
                turn = Some(self.turn().await?);
            }
            bytes.extend_from_slice(&data);
        }
        Ok((bytes.freeze(), turn))
    }

    /// Waits for the turn of a large body. While a command runs it would be refused anyway.
    async fn turn(&mut self) -> Result<SemaphorePermit<'static>, ApiError> {
        if let Some(running) = self.app.store.busy() {
            return Err(self.refused(run::busy(&running).into()).await);
        }
        // Nobody closes it.
        let turn = LARGE_BODY.acquire().await.map_err(|closed| ApiError::Internal(closed.to_string()))?;
        match self.app.store.busy() {
            Some(running) => Err(self.refused(run::busy(&running).into()).await),
            None => Ok(turn),
        }
    }

    /// Throws the rest of the body away, if that is no endless task.
    async fn refused(&mut self, error: ApiError) -> ApiError {
        let mut left = DISCARDED_BYTES;
        if self.expects || self.body.size_hint().lower() > left {
            return error;
        }
        while let Some(Ok(frame)) = self.body.frame().await {
            let length = frame.data_ref().map_or(0, |data| u64::try_from(data.len()).unwrap_or(u64::MAX));
            left = left.saturating_sub(length);
            if left == 0 {
                break;
            }
        }
        error
    }
}

/// Name and parameters of a body. Unlike the reference agent, a body of `null` or a number is the client's fault
/// (400), not the server's (500).
fn parse(body: &[u8]) -> Result<(String, Map<String, Value>), ApiError> {
    let value: Value = json::from_slice(body).map_err(|error| match error {
        JsonError::TooComplex => ApiError::Body(format!("the request body is too complex: {error}")),
        JsonError::Json(error) => error.into(),
    })?;
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
        let many = format!(r#"{{"name": "a.b", "params": {{"x": [{}0]}}}}"#, "0,".repeat(100_000));
        assert!(parse(many.as_bytes()).unwrap_err().to_string().contains("more values than any use of it needs"));
        let text = format!(r#"{{"name": "a.b", "params": {{"x": "{}\""}}}}"#, "[,{".repeat(100_000));
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
