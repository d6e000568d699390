//! From method and path to a resource.

use hyper::Method;

use super::fault::ApiError;

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Route<'a> {
    /// `GET /`
    Root,
    /// `GET /v1/`
    V1,
    /// `GET /v1/status`
    Status,
    /// `GET /v1/commands/`
    ListCommands,
    /// `POST /v1/commands/`
    RunCommand,
    /// `GET /v1/commands/<id>`
    ShowCommand(&'a str),
    /// `GET /v1/commands/<id>/events`: live progress.
    WatchCommand(&'a str),
    /// The same path with a slash at its end, for any method (308).
    AddSlash,
}

const READ: &str = "GET, HEAD";
const READ_AND_RUN: &str = "GET, HEAD, POST";

/// Finds the route.
///
/// # Errors
/// [`ApiError::Path`] or [`ApiError::Method`].
pub fn find<'a>(method: &Method, path: &'a str) -> Result<Route<'a>, ApiError> {
    let reading = *method == Method::GET || *method == Method::HEAD;
    let read = |route| if reading { Ok(route) } else { Err(ApiError::Method(READ)) };
    match path {
        "/" => return read(Route::Root),
        "/v1" | "/v1/commands" | "/commands" => return Ok(Route::AddSlash),
        "/v1/" => return read(Route::V1),
        "/v1/status" | "/status" => return read(Route::Status),
        "/v1/commands/" | "/commands/" if reading => return Ok(Route::ListCommands),
        "/v1/commands/" | "/commands/" if *method == Method::POST => return Ok(Route::RunCommand),
        "/v1/commands/" | "/commands/" => return Err(ApiError::Method(READ_AND_RUN)),
        _ => {}
    }
    let rest = path.strip_prefix("/v1/commands/").or_else(|| path.strip_prefix("/commands/")).ok_or(ApiError::Path)?;
    match rest.split_once('/') {
        None => read(Route::ShowCommand(rest)),
        Some((id, "events")) if !id.is_empty() => read(Route::WatchCommand(id)),
        Some(_) => Err(ApiError::Path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_reference_agent_lead_to_the_same_resources() {
        let cases = [
            ("GET", "/", Ok(Route::Root)),
            ("HEAD", "/v1/", Ok(Route::V1)),
            ("POST", "/v1", Ok(Route::AddSlash)),
            ("PUT", "/v1/commands", Ok(Route::AddSlash)),
            ("GET", "/status", Ok(Route::Status)),
            ("GET", "/v1/status", Ok(Route::Status)),
            ("GET", "/v1/status/", Err(404)),
            ("GET", "/commands/", Ok(Route::ListCommands)),
            ("POST", "/v1/commands/", Ok(Route::RunCommand)),
            ("DELETE", "/v1/commands/", Err(405)),
            ("OPTIONS", "/v1/commands/", Err(405)),
            ("PATCH", "/", Err(405)),
            ("GET", "/v1/commands/abc", Ok(Route::ShowCommand("abc"))),
            ("POST", "/v1/commands/abc", Err(405)),
            ("GET", "/v1/commands/abc/", Err(404)),
            ("GET", "/v1/commands/abc/events", Ok(Route::WatchCommand("abc"))),
            ("GET", "/v1/commands//events", Err(404)),
            ("GET", "/v2/", Err(404)),
            ("GET", "", Err(404)),
        ];
        for (method, path, want) in cases {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let got = find(&method, path).map_err(|error| error.status().as_u16());
            assert_eq!(got, want, "{method} {path}");
        }
    }
}
