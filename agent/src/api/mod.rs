//! The REST API that the conductor calls (protocol section 12).
//!
//! `server` accepts connections, `routes` turns a request into a [`routes::Route`], one file per resource answers it,
//! `fault` words every error so that the conductor can read it.

pub mod commands;
pub mod discovery;
pub mod events;
pub mod fault;
mod places;
pub mod routes;
pub mod server;
pub mod status;
pub mod token;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;

/// Body of an answer: whole, or a stream of events.
pub type Body = BoxBody<Bytes, std::convert::Infallible>;

/// A body that is already complete.
pub fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed()
}

/// An answer with a JSON body.
pub fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    let (status, bytes) = match serde_json::to_vec(value) {
        Ok(bytes) => (status, bytes),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            // Built by hand: the encoder has just failed.
            format!(r#"{{"faultcode":"Server","faultstring":"encoding the answer: {}"}}"#, error.line()).into_bytes(),
        ),
    };
    let mut response = Response::new(whole(bytes));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests;
