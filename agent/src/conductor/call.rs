//! One answer of the conductor, read whole.

use std::time::SystemTime;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, DATE};
use http::{HeaderName, StatusCode};

use super::error::ConductorError;
use super::fault;
use crate::http::{HttpError, Request, Response, Url};

/// Largest answer that is read, in bytes; a lookup answer holds a node record, where Ironic masks a config drive.
const MAX_ANSWER_BYTES: u64 = 4 * 1024 * 1024;

/// Ties the log lines of all services for one operation together.
const REQUEST_ID_HEADER: HeaderName = HeaderName::from_static("x-openstack-request-id");

/// The header fields of every call.
pub(super) fn json_headers(request: Request, request_id: Option<&str>) -> Result<Request, HttpError> {
    let request = request.header(CONTENT_TYPE, "application/json")?.header(ACCEPT, "application/json")?;
    match request_id {
        Some(id) => request.header(REQUEST_ID_HEADER, id),
        None => Ok(request),
    }
}

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    /// Root of the API, or full URL, that was asked.
    pub(super) url: Url,
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
    /// The server's clock.
    pub(super) date: Option<SystemTime>,
}

impl Answer {
    pub(super) async fn read(url: &Url, response: Response) -> Result<Self, HttpError> {
        let date = response.header(DATE).and_then(|text| httpdate::parse_http_date(text).ok());
        let status = response.status;
        let body = response.bytes(MAX_ANSWER_BYTES).await?;
        Ok(Self { url: url.clone(), status, body, date })
    }

    pub(super) fn expect_status(&self, what: &'static str, status: StatusCode) -> Result<(), ConductorError> {
        if self.status == status {
            return Ok(());
        }
        let text = fault::text(&self.body);
        Err(ConductorError::Refused { what, url: self.url.clone(), status: self.status, text })
    }

    pub(super) fn bad(&self, what: &'static str, problem: &'static str) -> ConductorError {
        ConductorError::BadAnswer { what, url: self.url.clone(), problem }
    }
}
