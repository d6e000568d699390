//! `GET /v1/commands/<id>/events`: live progress of a command as server-sent events.
//!
//! An event `progress` holds the command's record; a last event `end` holds the finished one. For people and tools;
//! Ironic does not know it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ferric_types::{CommandRecord, CommandStatus};
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::Response;
use hyper::body::Frame;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};

use super::Body;
use super::fault::ApiError;
use crate::app::App;

/// Time between two events of a running command.
const PERIOD: Duration = Duration::from_millis(500);

/// Starts the stream.
///
/// # Errors
/// [`ApiError::Record`].
pub fn watch(app: &Arc<App>, id: &str) -> Result<Response<Body>, ApiError> {
    let first = app.store.get(id).ok_or_else(|| ApiError::Record(id.to_owned()))?;
    let state = Some((app.clone(), id.to_owned(), Some(first)));
    let events = stream::unfold(state, |state| async {
        let (app, id, first) = state?;
        let record = match first {
            Some(record) => record,
            None => next(&app, &id).await?,
        };
        let running = record.command_status == CommandStatus::Running;
        let name = if running { "progress" } else { "end" };
        let data = serde_json::to_string(&record).ok()?;
        let frame = Frame::data(Bytes::from(format!("event: {name}\ndata: {data}\n\n")));
        Some((Ok::<_, Infallible>(frame), running.then_some((app, id, None))))
    });
    let mut response = Response::new(StreamBody::new(events).boxed());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// The record after one period, or as soon as the command has ended.
async fn next(app: &App, id: &str) -> Option<CommandRecord> {
    match tokio::time::timeout(PERIOD, app.store.wait(id)).await {
        Ok(record) => record,
        Err(_still_running) => app.store.get(id),
    }
}
