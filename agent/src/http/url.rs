//! Absolute `http` and `https` URLs, and the resolution of redirects against them.
//!
//! Own code because the URL library brings the Unicode tables of internationalised names with it, hundreds of kilobytes
//! that an agent which only meets host names and addresses would carry in every PXE download. References: RFC 3986
//! sections 3 and 5.2. Only `http` and `https` exist here, so that no `file:` or other source can be asked for.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

use ferric_types::Secret;
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Bytes that may not stand in a request target; everything else is passed on as it was given.
const NOT_IN_TARGET: &AsciiSet =
    &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'\\').add(b'^').add(b'`').add(b'{').add(b'|').add(b'}');

/// Everything but the unreserved characters of RFC 3986 section 2.3.
const NOT_IN_QUERY_VALUE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Longest URL that is accepted, in bytes; presigned object store URLs stay well below.
const MAX_URL_BYTES: usize = 16 * 1024;

/// Protocol of a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scheme {
    /// Plain HTTP.
    Http,
    /// HTTP over TLS.
    Https,
}

impl Scheme {
    /// `http` or `https`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// Port when the URL names none.
    pub const fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// Host part of a URL.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// A name, in lower case.
    Name(String),
    /// An address literal.
    Ip(IpAddr),
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Ip(IpAddr::V4(ip)) => ip.fmt(f),
            Self::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]"),
        }
    }
}

/// What a connection belongs to: scheme, host and port (RFC 6454).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Protocol.
    pub scheme: Scheme,
    /// Host name or address.
    pub host: Host,
    /// Port, the default one filled in.
    pub port: u16,
}

impl Origin {
    /// Host and port, the port always given: the form `CONNECT` and log lines use.
    pub fn host_port(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Value of the `Host` header: the port only when it is not the default one.
    pub fn host_header(&self) -> String {
        if self.port == self.scheme.default_port() { self.host.to_string() } else { self.host_port() }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.as_str(), self.host_header())
    }
}

/// An absolute URL, cheap to clone. Printing it hides credentials and the query, which often carries a signature.
#[derive(Clone, PartialEq, Eq)]
pub struct Url(Arc<Parts>);

#[derive(Clone, PartialEq, Eq)]
struct Parts {
    origin: Origin,
    userinfo: Option<Secret<String>>,
    /// Begins with `/`; includes the query.
    target: String,
}

/// The text is not a URL the agent can use. The text itself is not kept: it may hold credentials.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Neither `http` nor `https`.
    #[error("URL {shown:?} does not begin with http:// or https://")]
    Scheme {
        /// Beginning of the URL up to the end of its scheme.
        shown: String,
    },
    /// No usable host.
    #[error("URL {shown:?} has no valid host name or address")]
    Host {
        /// The URL without credentials and query.
        shown: String,
    },
    /// The port is no number from 1 to 65535.
    #[error("URL {shown:?} has an invalid port")]
    Port {
        /// The URL without credentials and query.
        shown: String,
    },
    /// Longer than any URL should be.
    #[error("URL of {len_bytes} bytes is longer than the {MAX_URL_BYTES} bytes allowed")]
    TooLong {
        /// Length of the text.
        len_bytes: usize,
    },
}

impl Url {
    /// Scheme, host and port.
    pub fn origin(&self) -> &Origin {
        &self.0.origin
    }

    /// Protocol.
    pub fn scheme(&self) -> Scheme {
        self.0.origin.scheme
    }

    /// Host name or address.
    pub fn host(&self) -> &Host {
        &self.0.origin.host
    }

    /// Path and query as they go into the request line.
    pub fn target(&self) -> &str {
        &self.0.target
    }

    /// User and password of the URL, percent-decoded.
    pub fn credentials(&self) -> Option<(Secret<String>, Secret<String>)> {
        let userinfo = self.0.userinfo.as_ref()?.expose();
        let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
        let decode = |text: &str| Secret::new(percent_decode_str(text).decode_utf8_lossy().into_owned());
        Some((decode(user), decode(password)))
    }

    /// Everything in the URL that may be secret, as it may turn up in a text of the server: values of the query and
    /// the password, each as given and percent-decoded.
    pub(super) fn secrets(&self) -> Vec<String> {
        let query = self.target().split_once('?').map_or("", |(_, query)| query);
        let values = query.split('&').filter_map(|pair| pair.split_once('=')).map(|(_, value)| value.to_owned());
        let decoded = |text: &String| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let mut secrets: Vec<String> = values.collect();
        secrets.extend(secrets.iter().map(decoded).collect::<Vec<_>>());
        secrets.extend(self.credentials().map(|(_, password)| password.expose().clone()));
        secrets
    }

    /// This URL, with the credentials of another one when it has none of its own.
    pub(super) fn or_credentials_of(self, other: &Self) -> Self {
        if self.0.userinfo.is_some() {
            return self;
        }
        Self(Arc::new(Parts { userinfo: other.0.userinfo.clone(), ..Parts::clone(&self.0) }))
    }

    /// The URL without its query and with `path` behind its own path, a final `/` of it dropped first.
    pub fn with_path(&self, path: &str) -> Self {
        let base = self.path().trim_end_matches('/');
        self.with_target(&format!("{base}{path}"))
    }

    /// The URL with a query of the given pairs, each percent-encoded.
    pub fn with_query(&self, pairs: &[(&str, &str)]) -> Self {
        let quote = |text: &str| utf8_percent_encode(text, NOT_IN_QUERY_VALUE).to_string();
        let query: Vec<String> = pairs.iter().map(|(key, value)| format!("{key}={}", quote(value))).collect();
        self.with_target(&format!("{}?{}", self.path(), query.join("&")))
    }

    fn path(&self) -> &str {
        self.target().split('?').next().unwrap_or_default()
    }

    fn with_target(&self, target: &str) -> Self {
        Self(Arc::new(Parts { target: absolute(encode(target)), ..Parts::clone(&self.0) }))
    }

    /// The whole URL for the request line to a proxy (RFC 9112 section 3.2.2), without credentials.
    pub fn absolute_form(&self) -> String {
        format!("{}{}", self.origin(), self.target())
    }

    /// What a `Location` header means relative to this URL (RFC 3986 section 5.2). Credentials are kept only for the
    /// same origin.
    ///
    /// # Errors
    /// The reference is not usable, such as one to another scheme.
    pub fn join(&self, reference: &str) -> Result<Self, UrlError> {
        let reference = reference.trim();
        if has_scheme(reference) {
            return reference.parse();
        }
        if let Some(rest) = reference.strip_prefix("//") {
            return format!("{}://{rest}", self.scheme().as_str()).parse();
        }
        if reference.len() > MAX_URL_BYTES {
            return Err(UrlError::TooLong { len_bytes: reference.len() });
        }
        let reference = reference.split('#').next().unwrap_or_default();
        let path = self.path();
        let merged = if reference.is_empty() {
            self.target().to_owned()
        } else if reference.starts_with('?') {
            format!("{path}{reference}")
        } else {
            let (new_path, query) = match reference.split_once('?') {
                Some((new_path, query)) => (new_path, Some(query)),
                None => (reference, None),
            };
            let full = if new_path.starts_with('/') {
                new_path.to_owned()
            } else {
                let folder = path.rfind('/').and_then(|at| path.get(..=at)).unwrap_or("/");
                format!("{folder}{new_path}")
            };
            let clean = remove_dot_segments(&full);
            query.map_or(clean.clone(), |query| format!("{clean}?{query}"))
        };
        Ok(self.with_target(&merged))
    }
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let text = text.trim();
        if text.len() > MAX_URL_BYTES {
            return Err(UrlError::TooLong { len_bytes: text.len() });
        }
        let (scheme, rest) = split_scheme(text)?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, tail) = rest.split_at(end);
        let (userinfo, host_port) = match authority.rsplit_once('@') {
            Some((userinfo, host_port)) => (Some(Secret::new(userinfo.to_owned())), host_port),
            None => (None, authority),
        };
        let shown = || redact(text);
        let (host, port) = split_host_port(host_port).ok_or_else(|| UrlError::Host { shown: shown() })?;
        let port = match port {
            None | Some("") => scheme.default_port(),
            Some(digits) => parse_port(digits).ok_or_else(|| UrlError::Port { shown: shown() })?,
        };
        let tail = tail.split('#').next().unwrap_or_default();
        let origin = Origin { scheme, host, port };
        Ok(Self(Arc::new(Parts { origin, userinfo, target: absolute(encode(tail)) })))
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme().as_str())?;
        if self.0.userinfo.is_some() {
            f.write_str("***@")?;
        }
        f.write_str(&self.origin().host_header())?;
        match self.target().split_once('?') {
            Some((path, _)) => write!(f, "{path}?***"),
            None => f.write_str(self.target()),
        }
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Any text that may be a URL, with credentials and query hidden: for messages about URLs that do not parse.
pub fn redact(text: &str) -> String {
    let (base, query) = match text.split_once(['?', '#']) {
        Some((base, _)) => (base, "?***"),
        None => (text, ""),
    };
    let (scheme, rest) = base.split_once("://").map_or(("", base), |(scheme, rest)| (scheme, rest));
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority.to_owned(), |(_, host)| format!("***@{host}"));
    let separator = if base.contains("://") { "://" } else { "" };
    let shown: String = format!("{scheme}{separator}{host}{path}{query}").chars().take(200).collect();
    shown.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn split_scheme(text: &str) -> Result<(Scheme, &str), UrlError> {
    for scheme in [Scheme::Http, Scheme::Https] {
        let name = scheme.as_str();
        let matches = text.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
        if let (true, Some(rest)) = (matches, text.get(name.len()..).and_then(|rest| rest.strip_prefix("://"))) {
            return Ok((scheme, rest));
        }
    }
    Err(UrlError::Scheme { shown: redact(text) })
}

fn has_scheme(reference: &str) -> bool {
    let Some((scheme, _)) = reference.split_once(':') else { return false };
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
}

fn split_host_port(text: &str) -> Option<(Host, Option<&str>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (literal, after) = rest.split_once(']')?;
        let address: Ipv6Addr = literal.parse().ok()?;
        let port = match after {
            "" => None,
            _ => Some(after.strip_prefix(':')?),
        };
        return Some((Host::Ip(IpAddr::V6(address)), port));
    }
    let (host, port) = match text.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    };
    if let Ok(address) = host.parse::<IpAddr>() {
        return Some((Host::Ip(address), port));
    }
    let valid = !host.is_empty()
        && host.len() <= 253
        && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && host.split('.').rev().skip(usize::from(host.ends_with('.'))).all(|label| !label.is_empty());
    valid.then(|| (Host::Name(host.to_ascii_lowercase()), port))
}

fn parse_port(digits: &str) -> Option<u16> {
    let plain = digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|port| plain && *port != 0)
}

fn encode(text: &str) -> String {
    utf8_percent_encode(text, NOT_IN_TARGET).to_string()
}

fn absolute(target: String) -> String {
    if target.starts_with('/') { target } else { format!("/{target}") }
}

fn remove_dot_segments(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    for (index, segment) in segments.iter().enumerate() {
        let last = index + 1 == segments.len();
        match *segment {
            "." | ".." => {
                if *segment == ".." {
                    kept.pop();
                }
                if last {
                    kept.push("");
                }
            }
            other => kept.push(other),
        }
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn url(text: &str) -> Url {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn parts_are_read_from_the_usual_forms() {
        let cases = [
            ("http://192.0.2.1:6385", "192.0.2.1:6385", "/"),
            ("HTTPS://Ironic.Example.COM/baremetal/", "ironic.example.com", "/baremetal/"),
            ("http://[2001:db8::1]:6385/v1", "[2001:db8::1]:6385", "/v1"),
            ("https://[2001:DB8:0::1]", "[2001:db8::1]", "/"),
            ("http://h:80/x", "h", "/x"),
            ("http://h:/x", "h", "/x"),
            ("http://h?a=b", "h", "/?a=b"),
            ("http://h/a b/\u{e9}?q=\"1\"#frag", "h", "/a%20b/%C3%A9?q=%221%22"),
            ("http://h/a%20b", "h", "/a%20b"),
            ("http://h/x\r\nEvil: 1", "h", "/x%0D%0AEvil:%201"),
        ];
        for (text, host, target) in cases {
            let url = url(text);
            assert_eq!(url.origin().host_header(), host, "{text}");
            assert_eq!(url.target(), target, "{text}");
        }
    }

    #[test]
    fn unusable_urls_are_refused_without_showing_secrets() {
        let cases = [
            "file:///dev/zero",
            "ftp://u:hunter2@h/x",
            "http:/h/x",
            "http://",
            "http://u:hunter2@/x?sig=hunter2",
            "http://h:99999/?sig=hunter2",
            "http://h:0/",
            "http://h:+1/",
            "http://[fe80::1%eth0]/",
            "http://[::1]x/",
            "http://a..b/",
            "http://b\u{fc}cher/",
            "h.example/x",
            "",
        ];
        for text in cases {
            let error = text.parse::<Url>().expect_err(text).to_string();
            assert!(!error.contains("hunter2"), "{text}: {error}");
        }
    }

    #[test]
    fn printing_hides_credentials_and_query() {
        let url = url("https://user:p%40ss@h:8443/images/a.qcow2?temp_url_sig=abc");
        assert_eq!(format!("{url} {url:?}"), ["https://***@h:8443/images/a.qcow2?***"; 2].join(" "));
        let (user, password) = url.credentials().unwrap();
        assert_eq!((user.expose().as_str(), password.expose().as_str()), ("user", "p@ss"));
        assert_eq!(url.absolute_form(), "https://h:8443/images/a.qcow2?temp_url_sig=abc");
    }

    #[test]
    fn redirect_references_resolve_as_rfc_3986_says() {
        let base = url("http://u:p@a/b/c/d?q");
        let cases = [
            ("g", "http://a/b/c/g"),
            ("./g", "http://a/b/c/g"),
            ("g/", "http://a/b/c/g/"),
            ("/g", "http://a/g"),
            ("//g", "http://g/"),
            ("?y", "http://a/b/c/d?y"),
            ("g?y", "http://a/b/c/g?y"),
            ("g#s", "http://a/b/c/g"),
            ("", "http://a/b/c/d?q"),
            (".", "http://a/b/c/"),
            ("..", "http://a/b/"),
            ("../g", "http://a/b/g"),
            ("../../../g", "http://a/g"),
            ("g;x=1/../y", "http://a/b/c/y"),
            ("https://z:444/x", "https://z:444/x"),
        ];
        for (reference, want) in cases {
            let joined = base.join(reference).unwrap();
            assert_eq!(joined.absolute_form(), want, "{reference}");
            assert_eq!(joined.credentials().is_some(), joined.origin() == base.origin(), "{reference}");
        }
        assert!(matches!(base.join("file:///etc/shadow"), Err(UrlError::Scheme { .. })));
        assert!(matches!(base.join("javascript:1"), Err(UrlError::Scheme { .. })));
    }

    #[test]
    fn paths_and_queries_are_added_to_a_base() {
        assert_eq!(url("http://h:1/bm/").with_path("/v1/lookup").target(), "/bm/v1/lookup");
        assert_eq!(url("http://h").with_path("/").target(), "/");
        let lookup = url("http://h/v1/lookup").with_query(&[("addresses", "52:54:00,x"), ("node_uuid", "a-b")]);
        assert_eq!(lookup.target(), "/v1/lookup?addresses=52%3A54%3A00%2Cx&node_uuid=a-b");
    }

    proptest! {
        #[test]
        fn any_text_parses_or_is_refused(text in ".*", reference in ".*") {
            drop(text.parse::<Url>());
            let base: Url = "http://h/a/b".parse().unwrap();
            if let Ok(joined) = base.join(&reference) {
                prop_assert!(joined.target().starts_with('/'));
                prop_assert!(joined.target().parse::<http::Uri>().is_ok(), "{}", joined.target());
            }
        }

        #[test]
        fn targets_are_always_valid_request_targets(tail in "[/?#][^\u{0}]*") {
            if let Ok(url) = format!("http://h{tail}").parse::<Url>() {
                prop_assert!(url.target().parse::<http::Uri>().is_ok(), "{}", url.target());
            }
        }
    }
}
