//! What the header of an answer says about the file, and whether a later answer is about the same file.

use http::header::{ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, ETAG, LAST_MODIFIED};
use http::{HeaderMap, StatusCode};

/// What identifies a version of a file (RFC 9110 section 8.8).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) size_bytes: Option<u64>,
    pub(super) etag: Option<String>,
    pub(super) last_modified: Option<String>,
}

impl Version {
    pub(super) fn read(headers: &HeaderMap, size_bytes: Option<u64>) -> Self {
        Self { size_bytes, etag: text(headers, ETAG), last_modified: text(headers, LAST_MODIFIED) }
    }

    /// Value for `If-Range`: a strong entity tag, else the date of the last change (RFC 9110 section 13.1.5).
    pub(super) fn if_range(&self) -> Option<&str> {
        let strong = self.etag.as_deref().filter(|tag| tag.starts_with('"'));
        // A weak tag says that the server cannot promise equal bytes, and its date would promise no more.
        if strong.is_none() && self.etag.is_some() { None } else { strong.or(self.last_modified.as_deref()) }
    }

    /// Whether another answer contradicts this one. What either does not say does not count.
    pub(super) fn differs(&self, other: &Self) -> bool {
        fn clash<T: PartialEq>(a: Option<&T>, b: Option<&T>) -> bool {
            matches!((a, b), (Some(a), Some(b)) if a != b)
        }
        let same_tag = self.etag.is_some() && self.etag == other.etag;
        clash(self.size_bytes.as_ref(), other.size_bytes.as_ref())
            || clash(self.etag.as_ref(), other.etag.as_ref())
            // Copies behind a load balancer have equal tags (when made from content) but seldom equal dates.
            || (!same_tag && clash(self.last_modified.as_ref(), other.last_modified.as_ref()))
    }
}

/// What the server says about ranges with its answer to a plain request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RangeSupport {
    Yes,
    No,
    /// Nothing said: some servers have ranges all the same.
    Unknown,
}

pub(super) fn range_support(headers: &HeaderMap) -> RangeSupport {
    match text(headers, ACCEPT_RANGES) {
        None => RangeSupport::Unknown,
        Some(units) if units.split(',').any(|unit| unit.trim().eq_ignore_ascii_case("bytes")) => RangeSupport::Yes,
        Some(_) => RangeSupport::No,
    }
}

/// A `Content-Range` of bytes: first byte, last byte, size of the file when given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ContentRange {
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) size_bytes: Option<u64>,
}

impl ContentRange {
    /// Reads `bytes 0-99/1000` or `bytes 0-99/*`.
    pub(super) fn parse(value: &str) -> Option<Self> {
        let (unit, rest) = value.trim().split_once(' ')?;
        let (range, size) = rest.trim().split_once('/')?;
        let (first, last) = range.split_once('-')?;
        let number = |text: &str| {
            let text = text.trim();
            text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten()
        };
        let size_bytes = if size.trim() == "*" { None } else { Some(number(size)?) };
        let (first, last) = (number(first)?, number(last)?);
        let sane = first <= last && last < u64::MAX && size_bytes.is_none_or(|size| last < size);
        (unit.eq_ignore_ascii_case("bytes") && sane).then_some(Self { first, last, size_bytes })
    }

    /// Reads the header of a partial answer.
    pub(super) fn read(headers: &HeaderMap) -> Option<Self> {
        Self::parse(&text(headers, CONTENT_RANGE)?)
    }
}

/// What speaks against a file being an image, for the log: the checksum that does not fit later says nothing of it.
pub(super) fn doubtful(headers: &HeaderMap, size_bytes: Option<u64>) -> Option<String> {
    let length = size_bytes.map_or("of unknown length".to_owned(), |bytes| format!("{bytes} bytes long"));
    let kind = text(headers, CONTENT_TYPE).unwrap_or_default();
    if let Some(coding) = text(headers, CONTENT_ENCODING).filter(|coding| coding != "identity") {
        let kind = if kind.is_empty() { "none".to_owned() } else { kind };
        return Some(format!(
            "is sent with Content-Encoding {coding} (Content-Type {kind}, {length}): its bytes are taken as they are"
        ));
    }
    let page = ["text/html", "application/xhtml+xml"].iter().any(|page| kind.to_ascii_lowercase().starts_with(page));
    page.then(|| format!("is sent as {kind}, {length}: a page of a server, a proxy or a login rather than an image?"))
}

/// Whether a status may change when asked again.
pub(super) fn is_temporary(status: StatusCode) -> bool {
    status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT || status == StatusCode::TOO_MANY_REQUESTS
}

pub(super) fn text(headers: &HeaderMap, name: http::HeaderName) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.trim().to_owned()).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn content_ranges_are_read_strictly() {
        let range = |first, last, size_bytes| Some(ContentRange { first, last, size_bytes });
        let cases = [
            ("bytes 0-99/1000", range(0, 99, Some(1000))),
            ("Bytes 5-5/*", range(5, 5, None)),
            ("bytes 0-1000/1000", None),
            ("bytes 9-5/1000", None),
            ("bytes */1000", None),
            ("bytes 0-18446744073709551615/*", None),
            ("bytes +1-2/3", None),
            ("items 0-1/2", None),
            ("bytes=0-1/2", None),
            ("", None),
        ];
        for (text, want) in cases {
            assert_eq!(ContentRange::parse(text), want, "{text}");
        }
    }

    #[test]
    fn pages_and_packed_bytes_are_told_of() {
        let doubt = |fields: &[(http::HeaderName, &'static str)], size_bytes| {
            let fields = fields.iter().map(|(name, value)| (name.clone(), http::HeaderValue::from_static(value)));
            doubtful(&fields.collect(), size_bytes)
        };
        let page = doubt(&[(CONTENT_TYPE, "Text/HTML; charset=utf-8")], Some(1234)).unwrap();
        assert!(page.contains("Text/HTML; charset=utf-8, 1234 bytes long"), "{page}");
        let packed = doubt(&[(CONTENT_ENCODING, "gzip"), (CONTENT_TYPE, "application/octet-stream")], None).unwrap();
        assert!(packed.contains("gzip (Content-Type application/octet-stream, of unknown length)"), "{packed}");
        let images: [&[_]; 3] = [&[], &[(CONTENT_TYPE, "application/gzip")], &[(CONTENT_ENCODING, "identity")]];
        for fields in images {
            assert_eq!(doubt(fields, Some(5)), None, "{fields:?}");
        }
    }

    fn version(size_bytes: Option<u64>, etag: Option<&str>, date: Option<&str>) -> Version {
        Version { size_bytes, etag: etag.map(str::to_owned), last_modified: date.map(str::to_owned) }
    }

    #[test]
    fn only_contradictions_make_versions_differ() {
        let known = version(Some(10), Some("\"a\""), Some("Mon"));
        let cases = [
            (version(None, None, None), false),
            (known.clone(), false),
            (version(Some(11), Some("\"a\""), Some("Mon")), true),
            (version(Some(10), Some("\"b\""), Some("Mon")), true),
            (version(Some(10), Some("\"a\""), Some("Tue")), false),
            (version(Some(10), None, Some("Tue")), true),
        ];
        for (other, want) in cases {
            assert_eq!(known.differs(&other), want, "{other:?}");
            assert_eq!(other.differs(&known), want, "{other:?}");
        }
    }

    #[test]
    fn if_range_needs_a_strong_validator() {
        let cases = [
            (version(None, Some("\"a\""), Some("Mon")), Some("\"a\"")),
            (version(None, None, Some("Mon")), Some("Mon")),
            (version(None, Some("W/\"a\""), Some("Mon")), None),
            (version(None, None, None), None),
        ];
        for (version, want) in cases {
            assert_eq!(version.if_range(), want, "{version:?}");
        }
    }

    #[test]
    fn only_statuses_that_may_pass_are_temporary() {
        for status in [408, 429, 500, 502, 503, 504, 507] {
            assert!(is_temporary(StatusCode::from_u16(status).unwrap()), "{status}");
        }
        for status in [204, 301, 400, 401, 403, 404, 410, 416, 418, 451] {
            assert!(!is_temporary(StatusCode::from_u16(status).unwrap()), "{status}");
        }
    }

    proptest! {
        #[test]
        fn any_content_range_is_handled(text in ".*") {
            if let Some(range) = ContentRange::parse(&text) {
                prop_assert!(range.first <= range.last);
            }
        }
    }
}
