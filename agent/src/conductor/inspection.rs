//! Posting inspection data to the conductor (inspection section 2).

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;

use super::call::{Answer, json_headers};
use super::{backoff, fault};
use crate::http::{Client, HttpError, Request, Url, UrlError};

/// What one post may take in all: the data, some MiB at most, over the slowest of links.
const POST_LIMIT: Duration = Duration::from_secs(300);

/// Inspection data did not reach the conductor.
#[derive(Debug, thiserror::Error)]
pub enum InspectionError {
    /// No URL is usable.
    #[error("no usable URL for inspection data is configured (ipa-inspection-callback-url)")]
    NoUrl(#[source] Option<UrlError>),
    /// The conductor does not want the data. The agent goes on to the lookup.
    #[error("posting inspection data to {url}: Error {}: {text}", .status.as_u16())]
    Refused {
        /// Where it was posted.
        url: Url,
        /// Status of the answer.
        status: StatusCode,
        /// Its explanation.
        text: String,
    },
    /// Every try failed although another one could have helped.
    #[error("posting inspection data failed {tries} times, at last with {last}")]
    Unavailable {
        /// Tries made.
        tries: u32,
        /// The last failure.
        last: String,
    },
    /// A server took the request and did not answer: it may have the data, so it is not sent again.
    #[error("posting inspection data")]
    NoAnswer(#[source] HttpError),
}

impl InspectionError {
    /// Whether the agent goes on to the lookup; otherwise it begins anew.
    pub fn goes_on(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }
}

/// What the conductor answers; every field may be missing.
#[derive(Debug, Default, Deserialize)]
struct Accepted {
    #[serde(default)]
    uuid: Option<String>,
}

/// Posts a JSON document to the first URL that answers. The result is the node's UUID when the conductor tells it.
///
/// Connection errors, 409 and 5xx are tried 5 times with pauses of 5, 5, 6 and 12 seconds.
///
/// # Errors
/// See [`InspectionError::goes_on`] for what the agent does next.
pub async fn post(
    client: &Client,
    urls: &[String],
    request_id: Option<&str>,
    document: Bytes,
) -> Result<Option<String>, InspectionError> {
    post_with_pauses(client, urls, request_id, document, backoff::inspection_pause).await
}

pub(super) async fn post_with_pauses(
    client: &Client,
    urls: &[String],
    request_id: Option<&str>,
    document: Bytes,
    pause_after: fn(u32) -> Duration,
) -> Result<Option<String>, InspectionError> {
    let mut usable = Vec::new();
    let mut problem = None;
    for text in urls {
        match text.parse::<Url>() {
            Ok(url) => usable.push(url),
            Err(error) => {
                tracing::error!("a URL for inspection data is left out: {error}");
                problem = Some(error);
            }
        }
    }
    let Some(last) = usable.pop() else { return Err(InspectionError::NoUrl(problem)) };
    let mut tries = 1;
    loop {
        let failure = match attempt(client, (&usable, &last), request_id, &document).await {
            Ok(answer) if answer.status.is_success() => return Ok(node_uuid(&answer)),
            Ok(answer) => {
                let (url, status) = (answer.url.clone(), answer.status);
                let text = fault::text(&answer.body);
                if status != StatusCode::CONFLICT && !status.is_server_error() {
                    return Err(InspectionError::Refused { url, status, text });
                }
                format!("{url}: Error {}: {text}", status.as_u16())
            }
            Err(error) if !error.is_connection() => return Err(InspectionError::NoAnswer(error)),
            Err(error) => error.explain(),
        };
        if tries >= backoff::INSPECTION_TRIES {
            return Err(InspectionError::Unavailable { tries, last: failure });
        }
        let pause = pause_after(tries);
        tracing::warn!(
            "posting inspection data, try {tries} of {}: {failure}; next try in {} s",
            backoff::INSPECTION_TRIES,
            pause.as_secs()
        );
        tokio::time::sleep(pause).await;
        tries += 1;
    }
}

/// One try: the URLs in order; only a connection error leads to the next.
async fn attempt(
    client: &Client,
    (earlier, last): (&[Url], &Url),
    request_id: Option<&str>,
    document: &Bytes,
) -> Result<Answer, HttpError> {
    for url in earlier {
        match post_once(client, url, request_id, document).await {
            Err(error) if error.is_connection() => {
                tracing::warn!("posting inspection data: {}; trying the next URL", error.explain());
            }
            result => return result,
        }
    }
    post_once(client, last, request_id, document).await
}

async fn post_once(
    client: &Client,
    url: &Url,
    request_id: Option<&str>,
    document: &Bytes,
) -> Result<Answer, HttpError> {
    let request = Request::post(url.clone(), document.clone()).within(POST_LIMIT.max(client.small_exchange()));
    let request = json_headers(request, request_id)?;
    Answer::read(url, client.send(request).await?).await
}

fn node_uuid(answer: &Answer) -> Option<String> {
    let accepted: Accepted = serde_json::from_slice(&answer.body).unwrap_or_default();
    if accepted.uuid.is_none() {
        tracing::warn!("{} accepted the inspection data but names no node", answer.url);
    }
    accepted.uuid
}
