//! OpenSSL names of TLS 1.2 cipher suites.

use rustls::{CipherSuite, SupportedCipherSuite};

/// OpenSSL name and suite: all that the crypto provider has for TLS 1.2.
const NAMES: &[(&str, CipherSuite)] = &[
    ("ECDHE-ECDSA-AES256-GCM-SHA384", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-RSA-AES256-GCM-SHA384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-ECDSA-AES128-GCM-SHA256", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-RSA-AES128-GCM-SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-ECDSA-CHACHA20-POLY1305", CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("ECDHE-RSA-CHACHA20-POLY1305", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];

/// The first four names: what the reference agent takes when nothing is set (protocol section 2).
const DEFAULT_COUNT: usize = 4;

/// The suites of `available` that a list allows, in the list's order. TLS 1.3 suites always stay, as with OpenSSL,
/// whose list is about 1.2 only. Names that mean nothing here are warned about; a list without any usable name counts
/// as no list, because an agent that cannot talk helps nobody.
pub(super) fn select(available: &[SupportedCipherSuite], list: Option<&str>) -> Vec<SupportedCipherSuite> {
    let default = || NAMES.iter().take(DEFAULT_COUNT).map(|(_, suite)| *suite).collect();
    let mut wanted: Vec<CipherSuite> = match list.map(parse) {
        None => default(),
        Some(suites) if suites.is_empty() => {
            tracing::warn!("the list of TLS cipher suites names none that this agent has: the default is used");
            default()
        }
        Some(suites) => suites,
    };
    let version_13 = available.iter().filter(|suite| suite.tls13().is_some()).map(SupportedCipherSuite::suite);
    let mut order: Vec<CipherSuite> = version_13.collect();
    order.append(&mut wanted);
    order.iter().filter_map(|wanted| available.iter().find(|suite| suite.suite() == *wanted).copied()).collect()
}

fn parse(list: &str) -> Vec<CipherSuite> {
    let mut suites = Vec::new();
    for name in list.split([':', ',', ' ']).map(str::trim).filter(|name| !name.is_empty()) {
        match NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)) {
            Some((_, suite)) if !suites.contains(suite) => suites.push(*suite),
            Some(_) => {}
            None if name.starts_with("TLS_") => {}
            None => tracing::warn!("TLS cipher suite {name:?} is not available and is left out"),
        }
    }
    suites
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(list: Option<&str>) -> Vec<CipherSuite> {
        let available = rustls::crypto::ring::default_provider().cipher_suites;
        let all = select(&available, list);
        assert!(all.iter().filter(|suite| suite.tls13().is_some()).count() >= 3, "TLS 1.3 suites stay: {list:?}");
        all.iter().filter(|suite| suite.tls13().is_none()).map(SupportedCipherSuite::suite).collect()
    }

    #[test]
    fn openssl_names_choose_and_order_the_suites() {
        let all: Vec<CipherSuite> = NAMES.iter().map(|(_, suite)| *suite).collect();
        let cases = [
            (None, all[..4].to_vec()),
            (Some("ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384"), vec![all[3], all[0]]),
            (Some("ecdhe-rsa-chacha20-poly1305,AES256-SHA"), vec![all[5]]),
            (Some("HIGH:!aNULL"), all[..4].to_vec()),
            (Some(""), all[..4].to_vec()),
        ];
        for (list, want) in cases {
            assert_eq!(chosen(list), want, "{list:?}");
        }
    }
}
