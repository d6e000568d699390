//! Which proxy a request goes through.
//!
//! The map of a request (`image_info.proxies`) wins over the environment, scheme by scheme, as in the reference agent.
//! `no_proxy` applies to both: a host the operator wants reached directly is reached directly.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::url::{Host, Scheme, Url, UrlError, redact};

/// Proxies by scheme, and the hosts that are reached without one.
#[derive(Debug, Clone, Default)]
pub struct Proxies {
    /// Keys: `http`, `https`, `all`, or one of them followed by `://host`.
    by_scheme: BTreeMap<String, Url>,
    bypass: Vec<Bypass>,
}

/// One entry of a `no_proxy` list.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Bypass {
    Everything,
    /// The name and everything below it, optionally only on one port.
    Domain(String, Option<u16>),
    /// A network, or one address with the full prefix length, optionally only on one port.
    Network(IpAddr, u8, Option<u16>),
}

impl Proxies {
    /// No proxies at all.
    pub fn none() -> Self {
        Self::default()
    }

    /// Reads the conventional variables `http_proxy`, `https_proxy`, `all_proxy`, `no_proxy`, lower case first.
    /// Unusable values are left out and named in the second result.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> (Self, Vec<UrlError>) {
        let read = |name: &str| {
            variable(name).or_else(|| variable(&name.to_ascii_uppercase())).filter(|value| !value.trim().is_empty())
        };
        let map: BTreeMap<String, String> = ["http", "https", "all"]
            .into_iter()
            .filter_map(|scheme| read(&format!("{scheme}_proxy")).map(|url| (scheme.to_owned(), url)))
            .collect();
        Self::collect(&map, read("no_proxy").as_deref())
    }

    /// Reads the proxies that come with a request.
    ///
    /// # Errors
    /// A proxy URL is not usable.
    pub fn from_map(map: &BTreeMap<String, String>, no_proxy: Option<&str>) -> Result<Self, UrlError> {
        let (proxies, mut bad) = Self::collect(map, no_proxy);
        if bad.is_empty() { Ok(proxies) } else { Err(bad.swap_remove(0)) }
    }

    fn collect(map: &BTreeMap<String, String>, no_proxy: Option<&str>) -> (Self, Vec<UrlError>) {
        let mut by_scheme = BTreeMap::new();
        let mut bad = Vec::new();
        for (key, text) in map {
            // `proxy.example:3128` is a common way of writing http://proxy.example:3128.
            let parsed = if text.contains("://") { text.parse() } else { format!("http://{text}").parse() };
            match parsed {
                Ok(url) => drop(by_scheme.insert(key.to_ascii_lowercase(), url)),
                Err(error) => bad.push(error),
            }
        }
        (Self { by_scheme, bypass: no_proxy.map(parse_bypass).unwrap_or_default() }, bad)
    }

    /// These proxies with gaps filled from `environment`. The own `no_proxy` replaces the environment's.
    pub fn over(mut self, environment: &Self) -> Self {
        for (key, url) in &environment.by_scheme {
            self.by_scheme.entry(key.clone()).or_insert_with(|| url.clone());
        }
        if self.bypass.is_empty() {
            self.bypass.clone_from(&environment.bypass);
        }
        self
    }

    /// The proxy for a URL, none when it is to be reached directly.
    pub fn select(&self, url: &Url) -> Option<&Url> {
        if self.by_scheme.is_empty() || self.bypass.iter().any(|entry| entry.covers(url)) {
            return None;
        }
        let scheme = url.scheme().as_str();
        let host = url.host();
        [format!("{scheme}://{host}"), scheme.to_owned(), format!("all://{host}"), "all".to_owned()]
            .iter()
            .find_map(|key| self.by_scheme.get(key))
    }
}

impl Bypass {
    fn covers(&self, url: &Url) -> bool {
        let is_port = |port: &Option<u16>| port.is_none_or(|port| port == url.origin().port);
        match (self, url.host()) {
            (Self::Everything, _) => true,
            (Self::Domain(domain, port), Host::Name(name)) => {
                let rest = name.trim_end_matches('.').strip_suffix(domain.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.')) && is_port(port)
            }
            (Self::Network(network, bits, port), Host::Ip(address)) => {
                same_network(*network, *address, *bits) && is_port(port)
            }
            _ => false,
        }
    }
}

fn parse_bypass(list: &str) -> Vec<Bypass> {
    let entries = list.split(|c: char| c == ',' || c.is_whitespace()).filter(|entry| !entry.is_empty());
    entries.filter_map(parse_entry).collect()
}

/// `*`, an address, a network, or a host or domain; before it there may be a scheme, behind it a port.
fn parse_entry(entry: &str) -> Option<Bypass> {
    if entry == "*" {
        return Some(Bypass::Everything);
    }
    let bare = entry.split_once("://").map_or(entry, |(_scheme, rest)| rest);
    let (base, bits) = bare.split_once('/').map_or((bare, None), |(base, bits)| (base, Some(bits)));
    let literal = base.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(base);
    let full = |address: IpAddr| if address.is_ipv4() { 32 } else { 128 };
    if let Ok(address) = literal.parse::<IpAddr>() {
        let bits = bits.filter(|bits| !bits.is_empty());
        let bits = bits.map_or(Some(full(address)), |bits| bits.parse().ok().filter(|bits| *bits <= full(address)));
        if bits.is_none() {
            tracing::warn!("no_proxy entry {:?} is no valid network and is ignored", redact(entry));
        }
        return bits.map(|bits| Bypass::Network(address, bits, None));
    }
    let name = base.trim_start_matches("*.").trim_start_matches('.');
    match format!("{}://{name}", Scheme::Http.as_str()).parse::<Url>() {
        Ok(url) => {
            let port = name.rsplit_once(':').map(|_| url.origin().port);
            Some(match url.host() {
                Host::Name(name) => Bypass::Domain(name.trim_end_matches('.').to_owned(), port),
                Host::Ip(address) => Bypass::Network(*address, full(*address), port),
            })
        }
        Err(_unusable) => {
            tracing::warn!("no_proxy entry {:?} is no host name and is ignored", redact(entry));
            None
        }
    }
}

fn same_network(network: IpAddr, address: IpAddr, bits: u8) -> bool {
    let shifted = |value: u128, width: u8| value.checked_shr(u32::from(width - bits)).unwrap_or(0);
    match (network, address) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            shifted(u128::from(u32::from(a)), 32) == shifted(u128::from(u32::from(b)), 32)
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => shifted(u128::from(a), 128) == shifted(u128::from(b), 128),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn proxies(map: &[(&str, &str)], no_proxy: Option<&str>) -> Proxies {
        let map = map.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Proxies::from_map(&map, no_proxy).unwrap()
    }

    fn selected(proxies: &Proxies, url: &str) -> Option<String> {
        proxies.select(&url.parse().unwrap()).map(ToString::to_string)
    }

    #[test]
    fn the_most_precise_key_wins() {
        let proxies =
            proxies(&[("http", "http://p1:3128"), ("all", "p2:1"), ("https://special.example", "https://p3")], None);
        let cases = [
            ("http://h/x", "http://p1:3128/"),
            ("https://h/x", "http://p2:1/"),
            ("https://special.example/x", "https://p3/"),
        ];
        for (url, want) in cases {
            assert_eq!(selected(&proxies, url).as_deref(), Some(want), "{url}");
        }
    }

    #[test]
    fn no_proxy_entries_cover_hosts_domains_and_networks() {
        let list = "internal.example, .lab.example,10.0.0.0/8,[2001:db8::]/32,192.0.2.7,only.example:8080,10.0.0.0/9z, \
                    *.star.example\tDot.Example.,https://scheme.example/path [2001:db9::7]:8080 198.51.100.1:81,\
                    2001:db9::8,[2001:db9::9],203.0.113.*,,[::1]/129,http://,c\u{e9}.example";
        let proxies = proxies(&[("http", "http://p")], Some(list));
        let cases = [
            ("http://internal.example/", true),
            ("http://a.internal.example/", true),
            ("http://notinternal.example/", false),
            ("http://lab.example/", true),
            ("http://x.lab.example/", true),
            ("http://10.200.0.1/", true),
            ("http://11.0.0.1/", false),
            ("http://[2001:db8:5::1]/", true),
            ("http://[2001:db9::1]/", false),
            ("http://192.0.2.7:1234/", true),
            ("http://192.0.2.8/", false),
            ("http://only.example:8080/", true),
            ("http://only.example/", false),
            ("http://a.star.example/", true),
            ("http://star.example/", true),
            ("http://dot.example/", true),
            ("http://a.DOT.example./", true),
            ("http://internal.example./", true),
            ("https://scheme.example/", true),
            ("http://scheme.example:8080/", true),
            ("http://[2001:db9::7]:8080/", true),
            ("http://[2001:db9::7]/", false),
            ("http://198.51.100.1:81/", true),
            ("http://198.51.100.1/", false),
            ("http://[2001:db9::8]/", true),
            ("http://[2001:db9::9]:1/", true),
            ("http://203.0.113.5/", false),
            ("http://[::1]/", false),
            // Names that look like parts of entries.
            ("http://example/", false),
            ("http://http/", false),
            ("http://10.example/", false),
        ];
        for (url, direct) in cases {
            assert_eq!(selected(&proxies, url).is_none(), direct, "{url}");
        }
        assert_eq!(selected(&self::proxies(&[("all", "http://p")], Some(" * ")), "http://h/"), None);
        assert_eq!(selected(&self::proxies(&[("all", "http://p")], Some("0.0.0.0/0")), "http://1.2.3.4/"), None);
    }

    proptest! {
        #[test]
        fn any_list_is_taken(list in ".{0,60}", host in "[a-z0-9.:\\[\\]-]{1,20}") {
            let proxies = proxies(&[("all", "http://p")], Some(&list));
            if let Ok(url) = format!("http://{host}/").parse::<Url>() {
                let _selected = proxies.select(&url);
            }
        }
    }

    #[test]
    fn the_request_wins_over_the_environment() {
        let variables = |name: &str| match name {
            "http_proxy" => Some("http://env:1".to_owned()),
            "HTTPS_PROXY" => Some("env:2".to_owned()),
            "all_proxy" => Some("socks5://u:secret@env:3".to_owned()),
            "no_proxy" => Some("a.example".to_owned()),
            _ => None,
        };
        let (environment, bad) = Proxies::from_variables(variables);
        assert_eq!(bad.len(), 1);
        assert!(!bad[0].to_string().contains("secret"));
        let merged = proxies(&[("http", "http://own")], None).over(&environment);
        assert_eq!(selected(&merged, "http://h/").as_deref(), Some("http://own/"));
        assert_eq!(selected(&merged, "https://h/").as_deref(), Some("http://env:2/"));
        assert_eq!(selected(&merged, "http://a.example/"), None);
        let own_list = proxies(&[], Some("b.example")).over(&environment);
        assert_eq!(selected(&own_list, "http://a.example/").as_deref(), Some("http://env:1/"));
        assert_eq!(selected(&own_list, "http://b.example/"), None);
    }
}
