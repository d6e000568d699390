//! Texts of options to typed values: what each reader takes is the `form` of the options that use it.
//!
//! Every reader gives `None` for a text it cannot take; the caller keeps what it had and says so.

use std::net::IpAddr;
use std::time::Duration;

use ferric_types::Secret;

/// Lowest TLS version the agent's server and clients take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum TlsVersion {
    /// TLS 1.2 and 1.3.
    #[default]
    V1_2,
    /// TLS 1.3 only.
    V1_3,
}

/// Key of the generated certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsCurve {
    /// NIST P-256.
    P256,
    /// NIST P-384.
    #[default]
    P384,
    /// NIST P-521.
    P521,
}

/// Scheme of the callback URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scheme {
    /// Plain HTTP.
    #[default]
    Http,
    /// HTTP over TLS.
    Https,
}

impl Scheme {
    /// The scheme as written in a URL.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// Form of [`boolean`].
pub(super) const BOOLEAN: &str = "true/1/on/yes or false/0/off/no";
/// Form of [`text`].
pub(super) const TEXT: &str = "text";
/// Form of [`list`].
pub(super) const LIST: &str = "comma-separated list";
/// Form of [`url_list`] and [`root_url_list`].
pub(super) const URL_LIST: &str = "comma-separated list of http:// or https:// URLs, or mdns";
/// Form of [`ip`].
pub(super) const IP: &str = "IP address";
/// Form of [`port`].
pub(super) const PORT: &str = "port number, 1 to 65535";
/// Form of [`seconds`] and [`float_seconds`].
pub(super) const SECONDS: &str = "seconds, 0 or more";
/// Form of [`seconds_not_zero`].
pub(super) const SECONDS_NOT_ZERO: &str = "seconds, 1 or more";
/// Form of [`count`].
pub(super) const COUNT: &str = "number, 0 or more";
/// Form of [`count_not_zero`].
pub(super) const COUNT_NOT_ZERO: &str = "number, 1 or more";
/// Form of [`priority`].
pub(super) const PRIORITY: &str = "number, 0 to 99";
/// Form of [`tls_version`].
pub(super) const TLS_VERSION: &str = "1.2 or 1.3";
/// Form of [`tls_curve`].
pub(super) const TLS_CURVE: &str = "p256, p384 or p521";
/// Form of [`scheme`].
pub(super) const SCHEME: &str = "http or https";
/// Form of [`api_version`].
pub(super) const API_VERSION: &str = "major.minor, such as 1.68";
/// Form of [`time_server`].
pub(super) const TIME_SERVER: &str = "IP address or host name, at most 253 of A-Z a-z 0-9 . : _ -";

/// Longest value taken from anywhere; a kernel command line holds 4096 bytes at most.
const MAX_TEXT: usize = 64 * 1024;

pub(super) fn boolean(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" | "on" | "yes" => Some(true),
        "false" | "0" | "off" | "no" => Some(false),
        _ => None,
    }
}

/// `ipa-debug` is read leniently: whatever does not mean yes means no.
#[expect(clippy::unnecessary_wraps, reason = "has the shape of its sisters")]
pub(super) fn lenient_boolean(text: &str) -> Option<bool> {
    Some(matches!(text.trim().to_ascii_lowercase().as_str(), "1" | "t" | "true" | "on" | "y" | "yes"))
}

/// An empty text unsets an option.
pub(super) fn text(text: &str) -> Option<Option<String>> {
    let text = text.trim();
    (text.len() <= MAX_TEXT).then(|| (!text.is_empty()).then(|| text.to_owned()))
}

pub(super) fn secret(value: &str) -> Option<Option<Secret<String>>> {
    text(value).map(|value| value.map(Secret::new))
}

#[expect(clippy::unnecessary_wraps, reason = "has the shape of its sisters")]
pub(super) fn list(text: &str) -> Option<Vec<String>> {
    Some(text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect())
}

/// `None` inside means that the option was never given, which is not the same as an empty list.
pub(super) fn optional_list(text: &str) -> Option<Option<Vec<String>>> {
    list(text).map(Some)
}

/// URLs as given. The word `mdns` stands for discovery.
pub(super) fn url_list(text: &str) -> Option<Vec<String>> {
    list(text).filter(|urls| urls.iter().all(|url| is_url(url)))
}

/// URLs without a trailing slash, to which paths are added.
pub(super) fn root_url_list(text: &str) -> Option<Vec<String>> {
    let urls: Vec<String> = list(text)?.into_iter().map(|url| url.trim_end_matches('/').to_owned()).collect();
    urls.iter().all(|url| is_url(url)).then_some(urls)
}

pub(super) fn is_url(url: &str) -> bool {
    if url == "mdns" {
        return true;
    }
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    rest.is_some_and(|rest| !rest.starts_with('/') && !rest.is_empty() && !url.contains(char::is_whitespace))
}

pub(super) fn ip(text: &str) -> Option<Option<IpAddr>> {
    let text = text.trim();
    if text.is_empty() {
        return Some(None);
    }
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    bare.parse().ok().map(Some)
}

pub(super) fn port(text: &str) -> Option<u16> {
    text.trim().parse().ok().filter(|port| *port != 0)
}

pub(super) fn count(text: &str) -> Option<u32> {
    text.trim().parse().ok()
}

pub(super) fn count_not_zero(text: &str) -> Option<u32> {
    count(text).filter(|count| *count != 0)
}

pub(super) fn priority(text: &str) -> Option<u32> {
    count(text).filter(|priority| *priority <= 99)
}

pub(super) fn seconds(text: &str) -> Option<Duration> {
    count(text).map(|seconds| Duration::from_secs(u64::from(seconds)))
}

pub(super) fn seconds_not_zero(text: &str) -> Option<Duration> {
    seconds(text).filter(|time| !time.is_zero())
}

/// Zero switches the limit off.
pub(super) fn optional_seconds(text: &str) -> Option<Option<Duration>> {
    seconds(text).map(|time| (!time.is_zero()).then_some(time))
}

pub(super) fn float_seconds(text: &str) -> Option<Duration> {
    let seconds: f64 = text.trim().parse().ok()?;
    (seconds <= f64::from(u32::MAX)).then(|| Duration::try_from_secs_f64(seconds).ok()).flatten()
}

pub(super) fn tls_version(text: &str) -> Option<TlsVersion> {
    match text.trim() {
        "1.2" => Some(TlsVersion::V1_2),
        "1.3" => Some(TlsVersion::V1_3),
        _ => None,
    }
}

pub(super) fn tls_curve(text: &str) -> Option<TlsCurve> {
    match text.trim() {
        "p256" => Some(TlsCurve::P256),
        "p384" => Some(TlsCurve::P384),
        "p521" => Some(TlsCurve::P521),
        _ => None,
    }
}

pub(super) fn scheme(text: &str) -> Option<Scheme> {
    match text.trim() {
        "http" => Some(Scheme::Http),
        "https" => Some(Scheme::Https),
        _ => None,
    }
}

pub(super) fn api_version(text: &str) -> Option<Option<String>> {
    let text = text.trim();
    if text.is_empty() {
        return Some(None);
    }
    let (major, minor) = text.split_once('.')?;
    let number = |part: &str| part.bytes().all(|b| b.is_ascii_digit()) && part.parse::<u16>().is_ok();
    (number(major) && number(minor)).then(|| Some(text.to_owned()))
}

/// Only characters that occur in addresses and host names: this value once reached a shell elsewhere.
pub(super) fn time_server(text: &str) -> Option<Option<String>> {
    let text = text.trim();
    if text.is_empty() {
        return Some(None);
    }
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b':' | b'_' | b'-');
    (text.len() <= 253 && !text.starts_with('-') && text.bytes().all(allowed)).then(|| Some(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans_take_ironics_eight_words_only() {
        for yes in ["true", "1", "on", "yes", "True", "ON"] {
            assert_eq!(boolean(yes), Some(true), "{yes}");
        }
        for no in ["false", "0", "off", "no", "FALSE"] {
            assert_eq!(boolean(no), Some(false), "{no}");
        }
        for bad in ["", "t", "y", "2", "truely"] {
            assert_eq!(boolean(bad), None, "{bad}");
        }
        assert_eq!(lenient_boolean("t"), Some(true));
        assert_eq!(lenient_boolean("whatever"), Some(false));
    }

    #[test]
    fn urls_need_a_scheme_and_a_host() {
        let urls = root_url_list("http://a:6385/, https://[2001:db8::1]/baremetal/").unwrap();
        assert_eq!(urls, ["http://a:6385", "https://[2001:db8::1]/baremetal"]);
        assert_eq!(url_list("mdns").unwrap(), ["mdns"]);
        for bad in ["10.0.0.1:6385", "ftp://a", "http://", "http:///v1", "http://a b", "http://a,b"] {
            assert_eq!(url_list(bad), None, "{bad}");
        }
    }

    #[test]
    fn time_servers_are_hosts_and_nothing_a_shell_would_act_on() {
        for good in ["10.0.0.1", "ntp.example.org", "2001:db8::1", "my_ntp-1"] {
            assert_eq!(time_server(good), Some(Some(good.to_owned())), "{good}");
        }
        let long = "a".repeat(254);
        for bad in ["$(reboot)", "a;b", "a b", "-x", "é", long.as_str()] {
            assert_eq!(time_server(bad), None, "{bad}");
        }
    }

    #[test]
    fn numbers_keep_their_ranges() {
        assert_eq!(port("0"), None);
        assert_eq!(port("65536"), None);
        assert_eq!(port(" 9999 "), Some(9999));
        assert_eq!(priority("99"), Some(99));
        assert_eq!(priority("100"), None);
        assert_eq!(seconds_not_zero("0"), None);
        assert_eq!(optional_seconds("0"), Some(None));
        assert_eq!(float_seconds("30.5"), Some(Duration::from_millis(30_500)));
        for bad in ["-1", "nan", "inf", "1e300", ""] {
            assert_eq!(float_seconds(bad), None, "{bad}");
        }
    }

    #[test]
    fn versions_and_addresses() {
        assert_eq!(api_version("1.68"), Some(Some("1.68".to_owned())));
        for bad in ["1", "1.", ".1", "a.b", "1.68.1", "1.99999"] {
            assert_eq!(api_version(bad), None, "{bad}");
        }
        assert_eq!(ip("[::1]"), Some(Some("::1".parse().unwrap())));
        assert_eq!(ip("host"), None);
        assert_eq!(ip(""), Some(None));
    }
}
