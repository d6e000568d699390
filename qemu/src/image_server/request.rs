//! Requests: reading one from a connection, and what its `Range` asks for (RFC 9110 section 14).

use std::io::{BufRead, ErrorKind};
use std::time::Duration;

use anyhow::{Result, bail};

/// Most bytes of a request's head.
const HEAD_LIMIT: usize = 16 << 10;

/// One request that was answered, for assertions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// `GET` or `HEAD`, or whatever came.
    pub method: String,
    /// Path without the query.
    pub path: String,
    /// Query without the question mark.
    pub query: Option<String>,
    /// Headers in order, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Status of the answer; 0 when there was none.
    pub status: u16,
    /// Bytes of body that were sent.
    pub sent_bytes: u64,
    /// Whether the answer was sent to its end.
    pub complete: bool,
    /// When it came, since the server's start.
    pub at: Duration,
}

impl Request {
    /// The value of a header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// Reads the head of a request; `None` when the client closed the connection between requests.
pub(super) fn read(reader: &mut impl BufRead, at: impl Fn() -> Duration) -> Result<Option<Request>> {
    let mut head = Vec::new();
    loop {
        let mut line = Vec::new();
        match reader.read_until(b'\n', &mut line) {
            Ok(0) if head.is_empty() => return Ok(None),
            Ok(0) => bail!("connection closed within a request"),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        }
        head.extend(&line);
        if head.len() > HEAD_LIMIT {
            bail!("the head of a request is longer than {HEAD_LIMIT} bytes");
        }
        if line == b"\r\n" || line == b"\n" {
            break;
        }
    }
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut parsed = httparse::Request::new(&mut headers);
    if parsed.parse(&head)?.is_partial() {
        bail!("half a request");
    }
    let target = parsed.path.unwrap_or_default();
    let (path, query) = target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query.to_owned())));
    let headers = parsed.headers.iter();
    let headers =
        headers.map(|h| (h.name.to_ascii_lowercase(), String::from_utf8_lossy(h.value).into_owned())).collect();
    Ok(Some(Request {
        method: parsed.method.unwrap_or_default().to_owned(),
        path: path.to_owned(),
        query,
        headers,
        status: 0,
        sent_bytes: 0,
        complete: false,
        at: at(),
    }))
}

/// What a `Range` header means for a body of some length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Range {
    /// Bytes from the first to the last, both included.
    Part(u64, u64),
    /// 416.
    Unsatisfiable,
    /// Not understood, or several ranges: the whole body.
    Whole,
}

/// Understands a `Range` header's value.
pub(super) fn range(value: &str, len_bytes: u64) -> Range {
    let Some(spec) = value.trim().strip_prefix("bytes=") else { return Range::Whole };
    let Some((first, last)) = spec.split_once('-') else { return Range::Whole };
    let number = |text: &str| text.trim().parse::<u64>().ok();
    match (first.trim(), last.trim()) {
        ("", suffix) => match number(suffix) {
            Some(0) => Range::Unsatisfiable,
            Some(_) if len_bytes == 0 => Range::Unsatisfiable,
            Some(count) => Range::Part(len_bytes.saturating_sub(count), len_bytes - 1),
            None => Range::Whole,
        },
        (first, last) => match (number(first), last.is_empty(), number(last)) {
            (Some(first), true, _) if first < len_bytes => Range::Part(first, len_bytes - 1),
            (Some(first), false, Some(last)) if first <= last && first < len_bytes => {
                Range::Part(first, last.min(len_bytes - 1))
            }
            (Some(first), false, Some(last)) if first > last => Range::Whole,
            (Some(_), true, _) | (Some(_), false, Some(_)) => Range::Unsatisfiable,
            _ => Range::Whole,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_mean_what_the_standard_says() {
        let cases = [
            ("bytes=0-0", 10, Range::Part(0, 0)),
            ("bytes=0-", 10, Range::Part(0, 9)),
            ("bytes=4-100", 10, Range::Part(4, 9)),
            ("bytes= 4 - 5 ", 10, Range::Part(4, 5)),
            ("bytes=-3", 10, Range::Part(7, 9)),
            ("bytes=-30", 10, Range::Part(0, 9)),
            ("bytes=10-", 10, Range::Unsatisfiable),
            ("bytes=10-20", 10, Range::Unsatisfiable),
            ("bytes=-0", 10, Range::Unsatisfiable),
            ("bytes=0-", 0, Range::Unsatisfiable),
            ("bytes=-1", 0, Range::Unsatisfiable),
            ("bytes=5-4", 10, Range::Whole),
            ("bytes=0-1,4-5", 10, Range::Whole),
            ("bytes=x-", 10, Range::Whole),
            ("bytes=-", 10, Range::Whole),
            ("lines=0-1", 10, Range::Whole),
            ("bytes", 10, Range::Whole),
        ];
        for (value, len, expected) in cases {
            assert_eq!(range(value, len), expected, "{value} of {len}");
        }
    }

    #[test]
    fn heads_are_read_one_after_another() {
        let text = b"GET /a?b=c HTTP/1.1\r\nHost: x\r\nRange: bytes=1-\r\n\r\nHEAD /d HTTP/1.1\n\n";
        let mut reader = &text[..];
        let first = read(&mut reader, || Duration::ZERO).unwrap().unwrap();
        assert_eq!((first.method.as_str(), first.path.as_str(), first.query.as_deref()), ("GET", "/a", Some("b=c")));
        assert_eq!(first.header("range"), Some("bytes=1-"));
        assert_eq!(read(&mut reader, || Duration::ZERO).unwrap().unwrap().path, "/d");
        assert_eq!(read(&mut reader, || Duration::ZERO).unwrap(), None);
    }

    #[test]
    fn bad_heads_are_refused() {
        let long = format!("GET / HTTP/1.1\r\nA: {}\r\n\r\n", "x".repeat(20_000));
        for text in ["GET / HTTP/1.1\r\nA: b", "no request at all\r\n\r\n", long.as_str()] {
            assert!(read(&mut text.as_bytes(), || Duration::ZERO).is_err(), "{:.30}", text);
        }
    }

    proptest! {
        #[test]
        fn any_range_lies_within_the_body(value in "(bytes)?=?[0-9, -]{0,24}", len in 0u64..1000) {
            if let Range::Part(first, last) = range(&value, len) {
                prop_assert!(first <= last && last < len);
            }
        }
    }
}
