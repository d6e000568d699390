//! Where a redirect leads and what of the request goes along (RFC 9110 section 15.4, method rules as browsers and the
//! reference agent's library apply them).
//!
//! A redirect from TLS to plain HTTP is followed, as the reference agent does, but credentials stay behind and the log has
//! a warning: mirrors do that, and what they give is an image with a checksum. Nothing leads to another scheme.

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, LOCATION};
use http::{HeaderMap, Method, StatusCode};

use super::error::HttpError;
use super::url::{Origin, Scheme, Url};

/// Redirects that are followed before giving up.
pub const MAX_REDIRECTS: usize = 10;

/// What is sent to one server of a redirect chain.
#[derive(Debug, Clone)]
pub(super) struct Hop {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// Whether it may go to no other server.
    pub(super) one_origin: bool,
}

/// The next hop, none when the answer is final. A redirect status without a location is a final answer.
pub(super) fn next(hop: &Hop, status: StatusCode, headers: &HeaderMap) -> Result<Option<Hop>, HttpError> {
    let followed = [
        StatusCode::MOVED_PERMANENTLY,
        StatusCode::FOUND,
        StatusCode::SEE_OTHER,
        StatusCode::TEMPORARY_REDIRECT,
        StatusCode::PERMANENT_REDIRECT,
    ];
    let Some(location) = headers.get(LOCATION).filter(|_| followed.contains(&status)) else { return Ok(None) };
    // Some servers send raw UTF-8 here; the URL type encodes it.
    let location = String::from_utf8_lossy(location.as_bytes());
    let url = hop.url.join(&location).map_err(|source| HttpError::BadRedirect { url: hop.url.clone(), source })?;
    if hop.one_origin && url.origin() != hop.url.origin() {
        return Err(HttpError::ForeignRedirect { url: hop.url.clone(), to: url });
    }
    let mut following = Hop { url, ..hop.clone() };
    let becomes_get = match status {
        StatusCode::SEE_OTHER | StatusCode::FOUND => hop.method != Method::HEAD,
        StatusCode::MOVED_PERMANENTLY => hop.method == Method::POST,
        _ => false,
    };
    if becomes_get && hop.method != Method::GET {
        following.method = Method::GET;
        following.body = Bytes::new();
        following.headers.remove(CONTENT_TYPE);
        following.headers.remove(CONTENT_LENGTH);
    }
    if credentials_may_follow(hop.url.origin(), following.url.origin()) {
        following.url = following.url.or_credentials_of(&hop.url);
    } else {
        following.headers.remove(AUTHORIZATION);
        following.headers.remove(COOKIE);
    }
    Ok(Some(following))
}

/// Same origin, or the same host moving from plain HTTP to TLS on the default ports.
fn credentials_may_follow(from: &Origin, to: &Origin) -> bool {
    let upgraded = from.host == to.host
        && (from.scheme, from.port) == (Scheme::Http, 80)
        && (to.scheme, to.port) == (Scheme::Https, 443);
    from == to || upgraded
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn hop(method: Method, url: &str) -> Hop {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Basic eDp5"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Hop { method, url: url.parse().unwrap(), headers, body: Bytes::from_static(b"{}"), one_origin: false }
    }

    fn follow(hop: &Hop, status: u16, location: &'static str) -> Result<Option<Hop>, HttpError> {
        let mut headers = HeaderMap::new();
        headers.insert(LOCATION, HeaderValue::from_static(location));
        next(hop, StatusCode::from_u16(status).unwrap(), &headers)
    }

    #[test]
    fn the_method_follows_the_status() {
        let cases = [
            (301, Method::POST, Method::GET),
            (301, Method::PUT, Method::PUT),
            (302, Method::POST, Method::GET),
            (302, Method::HEAD, Method::HEAD),
            (303, Method::PUT, Method::GET),
            (307, Method::POST, Method::POST),
            (308, Method::POST, Method::POST),
        ];
        for (status, method, want) in cases {
            let next = follow(&hop(method.clone(), "http://h/"), status, "/x").unwrap().unwrap();
            assert_eq!(next.method, want, "{status} {method}");
            let kept = next.method == method;
            assert_eq!(!next.body.is_empty(), kept, "{status} {method}");
            assert_eq!(next.headers.contains_key(CONTENT_TYPE), kept, "{status} {method}");
        }
    }

    #[test]
    fn credentials_stay_with_their_origin() {
        let cases = [
            ("http://h/a", "/b", true),
            ("http://h/a", "https://h/b", true),
            ("https://h/a", "http://h/b", false),
            ("http://h:8080/a", "https://h/b", false),
            ("http://h/a", "http://h:81/b", false),
            ("http://h/a", "http://evil/b", false),
            ("http://h/a", "//evil/b", false),
        ];
        for (from, location, kept) in cases {
            let next = follow(&hop(Method::GET, from), 302, location).unwrap().unwrap();
            assert_eq!(next.headers.contains_key(AUTHORIZATION), kept, "{from} -> {location}");
        }
    }

    #[test]
    fn what_holds_a_secret_stays_with_its_origin() {
        let cases = [
            ("http://h/a", "/b", true),
            ("http://h/a", "http://h:80/b", true),
            ("http://h/a", "https://h/b", false),
            ("https://h/a", "http://h/b", false),
            ("http://h/a", "http://h:81/b", false),
            ("http://h/a", "//evil/b", false),
        ];
        for (from, location, followed) in cases {
            for status in [301, 302, 303, 307, 308] {
                let hop = Hop { one_origin: true, ..hop(Method::POST, from) };
                match follow(&hop, status, location) {
                    Ok(next) => assert!(followed && next.is_some(), "{status} {from} -> {location}"),
                    Err(error) => {
                        assert!(matches!(error, HttpError::ForeignRedirect { .. }), "{error:?}");
                        assert!(!followed, "{status} {from} -> {location}");
                    }
                }
            }
        }
    }

    #[test]
    fn only_redirects_with_a_usable_location_are_followed() {
        for status in [200, 300, 304, 305, 404] {
            assert!(follow(&hop(Method::GET, "http://h/"), status, "/x").unwrap().is_none(), "{status}");
        }
        let gone = next(&hop(Method::GET, "http://h/"), StatusCode::FOUND, &HeaderMap::new());
        assert!(gone.unwrap().is_none());
        assert!(matches!(
            follow(&hop(Method::GET, "http://h/"), 302, "file:///dev/zero"),
            Err(HttpError::BadRedirect { .. })
        ));
    }
}
