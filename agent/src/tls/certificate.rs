//! The certificate the agent makes for its own API (protocol section 10).

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use ferric_types::Secret;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, DnType, IsCa, KeyPair, SignatureAlgorithm};
use time::OffsetDateTime;

use super::TlsError;
use crate::config::TlsCurve;

/// How long a certificate is valid from now on. The conductor pins it for one boot.
const LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);

/// id-ce-subjectAltName (RFC 5280 section 4.2.1.6).
const SUBJECT_ALT_NAME: &[u64] = &[2, 5, 29, 17];

/// What goes into the certificate.
#[derive(Debug, Clone)]
pub struct CertificateRequest<'a> {
    /// Common name.
    pub hostname: &'a str,
    /// The advertised address: the only subject alternative name.
    pub address: IpAddr,
    /// Curve of the key.
    pub curve: TlsCurve,
    /// The clock of this machine.
    pub now: SystemTime,
    /// How far before `now` the validity begins, for conductors whose clock is behind.
    pub clock_skew: Duration,
}

/// A self-signed certificate and its key.
#[derive(Debug, Clone)]
pub struct SelfSigned {
    /// Certificate, PEM. This is what the heartbeat announces.
    pub certificate_pem: String,
    /// Private key, PKCS#8 PEM.
    pub key_pem: Secret<String>,
}

/// Makes a key and a self-signed X.509 version 3 certificate for one address.
///
/// The crypto library has no P-521 and one hash for each curve; asking for P-521 gives P-384 with a warning. The
/// conductor accepts either.
pub fn generate(request: &CertificateRequest<'_>) -> Result<SelfSigned, TlsError> {
    let key = KeyPair::generate_for(algorithm(request.curve))?;
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    // RFC 5280 allows 64 characters; a longer host name would make certificates that OpenSSL refuses.
    let hostname: String = request.hostname.chars().take(64).collect();
    name.push(DnType::CommonName, if hostname.is_empty() { "localhost" } else { &hostname });
    params.distinguished_name = name;
    params.is_ca = IsCa::NoCa;
    let now = OffsetDateTime::from(request.now);
    params.not_before = now.checked_sub(signed(request.clock_skew)).unwrap_or(now);
    params.not_after = now.checked_add(signed(LIFETIME)).unwrap_or(now);
    let mut addresses = CustomExtension::from_oid_content(SUBJECT_ALT_NAME, address_names(request.address));
    addresses.set_criticality(true);
    params.custom_extensions = vec![addresses];
    let certificate = params.self_signed(&key)?;
    Ok(SelfSigned { certificate_pem: certificate.pem(), key_pem: Secret::new(key.serialize_pem()) })
}

fn algorithm(curve: TlsCurve) -> &'static SignatureAlgorithm {
    match curve {
        TlsCurve::P256 => &rcgen::PKCS_ECDSA_P256_SHA256,
        TlsCurve::P384 => &rcgen::PKCS_ECDSA_P384_SHA384,
        TlsCurve::P521 => {
            tracing::warn!("certificates on curve p521 are not available: p384 is used");
            &rcgen::PKCS_ECDSA_P384_SHA384
        }
    }
}

fn signed(duration: Duration) -> time::Duration {
    time::Duration::try_from(duration).unwrap_or(time::Duration::ZERO)
}

/// DER of `GeneralNames` with one `iPAddress`. All lengths are below 128, so one length byte each.
fn address_names(address: IpAddr) -> Vec<u8> {
    let bytes = match address {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let length = if address.is_ipv4() { 4_u8 } else { 16 };
    let mut der = vec![0x30, length + 2, 0x87, length];
    der.extend(bytes);
    der
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TlsVersion;
    use crate::tls::{server_config_from_pem, validity};
    use rustls_pki_types::pem::PemObject as _;
    use rustls_pki_types::{CertificateDer, ServerName};

    fn request(address: &str) -> CertificateRequest<'static> {
        CertificateRequest {
            hostname: "node-7",
            address: address.parse().unwrap(),
            curve: TlsCurve::P384,
            now: SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000),
            clock_skew: Duration::from_secs(3600),
        }
    }

    #[test]
    fn the_certificate_is_for_the_address_and_valid_from_an_hour_ago_for_thirty_days() {
        for address in ["192.0.2.10", "2001:db8::10"] {
            let made = generate(&request(address)).unwrap();
            let der = CertificateDer::from_pem_slice(made.certificate_pem.as_bytes()).unwrap();
            let (from, to) = validity::period(&der).unwrap();
            assert_eq!(from.as_secs(), 1_800_000_000 - 3600);
            assert_eq!(to.as_secs(), 1_800_000_000 + 30 * 24 * 3600);
            let parsed = rustls::server::ParsedCertificate::try_from(&der).unwrap();
            let name = |text: &str| ServerName::try_from(text.to_owned()).unwrap();
            assert!(rustls::client::verify_server_name(&parsed, &name(address)).is_ok(), "{address}");
            assert!(rustls::client::verify_server_name(&parsed, &name("192.0.2.11")).is_err(), "{address}");
        }
    }

    #[test]
    fn only_the_alternative_name_is_an_extension_and_it_is_critical() {
        let made = generate(&request("192.0.2.10")).unwrap();
        let der = CertificateDer::from_pem_slice(made.certificate_pem.as_bytes()).unwrap();
        // Extension: SEQUENCE { OID 2.5.29.17, BOOLEAN true, OCTET STRING { GeneralNames } }
        let san = [6, 3, 0x55, 29, 17, 1, 1, 0xff, 4, 8, 0x30, 6, 0x87, 4, 192, 0, 2, 10];
        assert!(der.windows(san.len()).any(|window| window == san));
        let any_ce = der.windows(4).filter(|window| window[..4] == [6, 3, 0x55, 29]).count();
        assert_eq!(any_ce, 1, "no other standard extension");
    }

    #[test]
    fn the_pair_works_as_a_server_certificate_and_the_key_is_hidden() {
        for curve in [TlsCurve::P256, TlsCurve::P384, TlsCurve::P521] {
            let made = generate(&CertificateRequest { curve, ..request("192.0.2.10") }).unwrap();
            server_config_from_pem(&made.certificate_pem, made.key_pem.expose(), TlsVersion::V1_3, None).unwrap();
            assert!(made.key_pem.expose().starts_with("-----BEGIN PRIVATE KEY-----"), "PKCS#8");
            assert!(!format!("{made:?}").contains("PRIVATE KEY"));
        }
    }
}
