//! Deciding what a request is answered with: pure, so that every fault's answer can be read off a value.

use super::fault::Fault;
use super::request::{Range, Request, range};

/// What is known of a path when a request for it comes.
#[derive(Debug, Clone)]
pub(super) struct Resource {
    pub(super) len_bytes: u64,
    pub(super) etag: String,
    pub(super) last_modified: &'static str,
    /// `user:password` that the path wants.
    pub(super) credentials: Option<String>,
}

/// An answer: its head and which bytes of the content follow.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: Vec<(&'static str, String)>,
    /// Text instead of content.
    pub(super) text: Option<String>,
    /// First byte of the content.
    pub(super) start: u64,
    /// Bytes of the content.
    pub(super) len_bytes: u64,
    /// Sent in chunks.
    pub(super) chunked: bool,
}

impl Answer {
    pub(super) fn text(status: u16, text: &str) -> Self {
        let headers = vec![("Content-Type", "text/plain".to_owned()), ("Content-Length", text.len().to_string())];
        Self { status, headers, text: Some(text.to_owned()), ..Self::default() }
    }

    fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// The answer to `request` under `faults`.
pub(super) fn answer(request: &Request, resource: &Resource, faults: &[Fault]) -> Answer {
    if !matches!(request.method.as_str(), "GET" | "HEAD") {
        return Answer::text(405, "only GET and HEAD\n").with("Allow", "GET, HEAD");
    }
    for fault in faults {
        match fault {
            Fault::Status(status) => return Answer::text(*status, "as ordered\n"),
            Fault::Redirect(to) => return Answer::text(302, "elsewhere\n").with("Location", to),
            _ => {}
        }
    }
    if let Some(credentials) = &resource.credentials {
        let expected =
            format!("Basic {}", base64::Engine::encode(&base64::engine::general_purpose::STANDARD, credentials));
        if request.header("authorization") != Some(&expected) {
            return Answer::text(401, "who are you?\n").with("WWW-Authenticate", "Basic realm=\"images\"");
        }
    }
    content_answer(request, resource, faults)
}

fn content_answer(request: &Request, resource: &Resource, faults: &[Fault]) -> Answer {
    let has = |wanted: &Fault| faults.contains(wanted);
    let no_ranges = has(&Fault::NoRanges);
    let asked = match request.header("range") {
        Some(value) if !no_ranges && !has(&Fault::IgnoreRange) && still_same(request, resource) => {
            range(value, resource.len_bytes)
        }
        _ => Range::Whole,
    };
    let mut answer = match asked {
        Range::Unsatisfiable => {
            return Answer::text(416, "no such range\n")
                .with("Content-Range", format!("bytes */{}", resource.len_bytes));
        }
        Range::Whole => Answer { status: 200, len_bytes: resource.len_bytes, ..Answer::default() },
        Range::Part(first, last) => {
            let shift =
                faults.iter().find_map(|fault| if let Fault::WrongRange(by) = fault { Some(*by) } else { None });
            let first = first.saturating_add(shift.unwrap_or(0)).min(last);
            let part = Answer { status: 206, start: first, len_bytes: last - first + 1, ..Answer::default() };
            part.with("Content-Range", format!("bytes {first}-{last}/{}", resource.len_bytes))
        }
    };
    answer = answer.with("Content-Type", "application/octet-stream");
    answer = answer.with("Accept-Ranges", if no_ranges { "none" } else { "bytes" });
    if !has(&Fault::NoValidators) {
        answer = answer.with("ETag", &resource.etag).with("Last-Modified", resource.last_modified);
    }
    answer.chunked = has(&Fault::Chunked);
    if answer.chunked {
        return answer.with("Transfer-Encoding", "chunked");
    }
    let claimed = faults.iter().find_map(|fault| if let Fault::ClaimLength(len) = fault { Some(*len) } else { None });
    let length = claimed.unwrap_or(answer.len_bytes);
    answer.with("Content-Length", length.to_string())
}

/// Whether the `If-Range` of a request, if it has one, names what is here now (RFC 9110 section 13.1.5).
fn still_same(request: &Request, resource: &Resource) -> bool {
    request.header("if-range").is_none_or(|value| value == resource.etag || value == resource.last_modified)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn request(headers: &[(&str, &str)]) -> Request {
        Request {
            method: "GET".into(),
            path: "/x".into(),
            query: None,
            headers: headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            status: 0,
            sent_bytes: 0,
            complete: false,
            at: Duration::ZERO,
        }
    }

    fn resource() -> Resource {
        Resource {
            len_bytes: 100,
            etag: "\"v1\"".into(),
            last_modified: "Thu, 01 Jan 2026 00:00:00 GMT",
            credentials: None,
        }
    }

    fn header<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
        answer.headers.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn part_is_given_only_of_what_the_client_already_has() {
        let cases = [
            (None, 206, 40),
            (Some("\"v1\""), 206, 40),
            (Some("Thu, 01 Jan 2026 00:00:00 GMT"), 206, 40),
            (Some("\"v0\""), 200, 0),
            (Some("W/\"v1\""), 200, 0),
        ];
        for (if_range, status, start) in cases {
            let mut headers = vec![("range", "bytes=40-")];
            headers.extend(if_range.map(|value| ("if-range", value)));
            let given = answer(&request(&headers), &resource(), &[]);
            assert_eq!((given.status, given.start), (status, start), "{if_range:?}");
        }
    }

    #[test]
    fn faults_change_the_answer_as_named() {
        let asked = request(&[("range", "bytes=40-49")]);
        let with = |fault| answer(&asked, &resource(), &[fault]);
        let plain = answer(&asked, &resource(), &[]);
        assert_eq!(header(&plain, "Content-Range"), Some("bytes 40-49/100"));
        assert_eq!(header(&plain, "Content-Length"), Some("10"));
        assert_eq!(with(Fault::IgnoreRange).status, 200);
        assert_eq!(header(&with(Fault::IgnoreRange), "Accept-Ranges"), Some("bytes"));
        assert_eq!(
            (with(Fault::NoRanges).status, header(&with(Fault::NoRanges), "Accept-Ranges")),
            (200, Some("none"))
        );
        let wrong = with(Fault::WrongRange(5));
        assert_eq!((wrong.status, wrong.start, header(&wrong, "Content-Range")), (206, 45, Some("bytes 45-49/100")));
        assert_eq!(header(&with(Fault::NoValidators), "ETag"), None);
        assert_eq!(with(Fault::Status(503)).status, 503);
        assert_eq!(header(&with(Fault::Redirect("/y".into())), "Location"), Some("/y"));
        assert_eq!(header(&with(Fault::Chunked), "Content-Length"), None);
        assert_eq!(header(&with(Fault::ClaimLength(7)), "Content-Length"), Some("7"));
    }

    #[test]
    fn credentials_are_wanted_and_checked() {
        let resource = Resource { credentials: Some("user:secret".into()), ..resource() };
        assert_eq!(answer(&request(&[]), &resource, &[]).status, 401);
        assert_eq!(answer(&request(&[("authorization", "Basic dXNlcjpzZWNyZXQ=")]), &resource, &[]).status, 200);
        assert_eq!(answer(&request(&[("authorization", "Basic dXNlcjp3cm9uZw==")]), &resource, &[]).status, 401);
    }

    #[test]
    fn other_methods_and_impossible_ranges_are_refused() {
        let post = Request { method: "POST".into(), ..request(&[]) };
        assert_eq!(answer(&post, &resource(), &[]).status, 405);
        let given = answer(&request(&[("range", "bytes=100-")]), &resource(), &[]);
        assert_eq!((given.status, header(&given, "Content-Range")), (416, Some("bytes */100")));
    }
}
