//! Error answers. Every one has a `faultstring`; the conductor crashes on a body without (protocol section 13).

use ferric_types::CommandError;
use ferric_types::fault::Fault;
use hyper::header::{ALLOW, CONNECTION, HeaderValue};
use hyper::{Response, StatusCode};

use super::{Body, json};

/// Why a request gets no ordinary answer.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The command was refused before it became a record.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// 400: `name` or `params` missing or of the wrong type.
    #[error("400 Bad Request: Missing or invalid name or params")]
    NameOrParams,
    /// 400: the body is no JSON.
    #[error("400 Bad Request: Failed to decode JSON object: {0}")]
    Json(#[from] serde_json::Error),
    /// 400: the body could not be read.
    #[error("400 Bad Request: {0}")]
    Body(String),
    /// 401: token missing or wrong.
    #[error("401 Unauthorized: Token invalid.")]
    Token,
    /// 404: no such path.
    #[error(
        "404 Not Found: The requested URL was not found on the server. If you entered the URL manually please check \
         your spelling and try again."
    )]
    Path,
    /// 404: no such command record.
    #[error("Not found: Command Result with id {0} not found.")]
    Record(String),
    /// 405: the path exists, but not for this method.
    #[error("405 Method Not Allowed: The method is not allowed for the requested URL.")]
    Method(&'static str),
    /// 408: the body did not arrive in time.
    #[error("408 Request Timeout: the request body did not arrive within {0} s")]
    Slow(u64),
    /// 413: the body is too large.
    #[error(
        "413 Request Entity Too Large: the request body is larger than {0} bytes; the way for a larger config drive is a URL"
    )]
    TooLarge(usize),
    /// 500: a bug of ours.
    #[error("500 Internal Server Error: {0}")]
    Internal(String),
}

impl ApiError {
    /// Status of the answer.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Command(error) => {
                StatusCode::from_u16(error.class.code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
            }
            Self::NameOrParams | Self::Json(_) | Self::Body(_) => StatusCode::BAD_REQUEST,
            Self::Token => StatusCode::UNAUTHORIZED,
            Self::Path | Self::Record(_) => StatusCode::NOT_FOUND,
            Self::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Slow(_) => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The answer.
    pub fn response(&self) -> Response<Body> {
        let status = self.status();
        let mut response = json(status, &Fault::new(status.as_u16(), self.to_string()));
        match self {
            Self::Method(allowed) => {
                response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
            }
            // The rest of the body is not read, so nothing more can come on this connection; a client that is not told
            // would lose its next request.
            Self::TooLarge(_) | Self::Slow(_) => {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}
