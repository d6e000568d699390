//! Certificates: the conductor's own CA and server certificate, and the check of an agent's pinned certificate.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureScheme};
use std::sync::Arc;

/// A self-made certificate authority with one server certificate below it.
pub(crate) struct ServerIdentity {
    pub(crate) ca_pem: String,
    pub(crate) config: Arc<ServerConfig>,
}

/// Makes a CA and a server certificate for these names and addresses.
pub(crate) fn server_identity(names: &[String]) -> anyhow::Result<ServerIdentity> {
    let ca_key = KeyPair::generate()?;
    let mut ca = CertificateParams::new(Vec::new())?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    ca.distinguished_name.push(DnType::CommonName, "stand-in conductor CA");
    let ca_pem = ca.self_signed(&ca_key)?.pem();
    let issuer = Issuer::new(ca, ca_key);

    let key = KeyPair::generate()?;
    let mut leaf = CertificateParams::new(names.to_vec())?;
    leaf.distinguished_name.push(DnType::CommonName, "stand-in conductor");
    let certificate = leaf.signed_by(&key, &issuer)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)?;
    Ok(ServerIdentity { ca_pem, config: Arc::new(config) })
}

/// The first certificate of a PEM text.
pub(crate) fn certificate_of_pem(pem: &str) -> Result<CertificateDer<'static>, rustls::pki_types::pem::Error> {
    CertificateDer::from_pem_slice(pem.as_bytes())
}

/// A client that trusts exactly one certificate and speaks TLS 1.3 only, as Ironic's agent client does.
pub(crate) fn pinning_client(pinned: CertificateDer<'static>) -> Result<Arc<ClientConfig>, Error> {
    let provider = provider();
    let verifier = PinnedCertificate { pinned, provider: Arc::clone(&provider) };
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Accepts one certificate only.
///
/// Ironic hands the agent's self-signed certificate to OpenSSL as its CA bundle. OpenSSL then accepts the server when
/// it presents that very certificate, the certificate is within its validity, and the host is among its subject
/// alternative names. webpki will not take a self-signed end-entity certificate as its own issuer, so those three
/// checks are made here. The certificate's signature on itself is not checked (OpenSSL does not for a trusted root
/// either); that the server owns the key is proved by the signature of the handshake, which is checked as always.
#[derive(Debug)]
struct PinnedCertificate {
    pinned: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedCertificate {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if end_entity.as_ref() != self.pinned.as_ref() {
            return Err(CertificateError::UnknownIssuer.into());
        }
        let (rest, parsed) = x509_parser::parse_x509_certificate(end_entity.as_ref())
            .map_err(|_error| Error::from(CertificateError::BadEncoding))?; // rustls has no place for the parser's words
        if !rest.is_empty() {
            return Err(CertificateError::BadEncoding.into());
        }
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        if now < parsed.validity().not_before.timestamp() {
            return Err(CertificateError::NotValidYet.into());
        }
        if now > parsed.validity().not_after.timestamp() {
            return Err(CertificateError::Expired.into());
        }
        rustls::client::verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
