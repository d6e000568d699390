//! Which server certificates are accepted.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::{TlsError, TlsOptions, parse_chain, read, read_chain, validity};

/// The verifier that the options ask for.
pub(super) fn verifier(
    options: &TlsOptions,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
    if options.insecure {
        return Ok(Arc::new(AcceptAny { provider: Arc::clone(provider) }));
    }
    let mut roots = RootCertStore::empty();
    let mut pinned = Vec::new();
    if let Some(path) = &options.cafile {
        pinned = read_chain(path)?;
        let (usable, unusable) = roots.add_parsable_certificates(pinned.iter().cloned());
        if usable == 0 {
            return Err(TlsError::NoCertificate { path: path.clone() });
        }
        if unusable > 0 {
            tracing::warn!("{} of the certificates in {} are not usable", unusable, path.display());
        }
    } else {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        add_system_roots(&mut roots, &options.system_cafile);
    }
    let chain = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider)).build()?;
    Ok(Arc::new(PinnedOrChain { chain, pinned }))
}

/// Authorities of the distribution, or of the operator who put them into the image; a missing file is normal.
fn add_system_roots(roots: &mut RootCertStore, path: &Path) {
    if !path.exists() {
        return;
    }
    match read(path).and_then(|pem| parse_chain(path, &pem)) {
        Ok(certificates) => {
            let (usable, unusable) = roots.add_parsable_certificates(certificates);
            tracing::debug!("{}: {usable} certificates, {unusable} not usable", path.display());
        }
        Err(error) => tracing::warn!("{}", ferric_types::error::chain(&error)),
    }
}

/// Ordinary chain verification, and beside it the server certificates that stand in the CA file themselves.
///
/// Small installations give the agent the server's self-signed certificate as `cafile`. The chain verifier refuses it
/// as a server certificate when it says that it is an authority, as `openssl req -x509` writes by default; the TLS
/// library of the reference agent accepts it. Name and validity are checked here in the same way.
#[derive(Debug)]
struct PinnedOrChain {
    chain: Arc<WebPkiServerVerifier>,
    pinned: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for PinnedOrChain {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if !self.pinned.iter().any(|pinned| pinned.as_ref() == end_entity.as_ref()) {
            return self.chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        }
        let invalid = |error| Err(Error::InvalidCertificate(error));
        let Some((not_before, not_after)) = validity::period(end_entity) else {
            return invalid(CertificateError::BadEncoding);
        };
        if now < not_before {
            return invalid(CertificateError::NotValidYetContext { time: now, not_before });
        }
        if now > not_after {
            return invalid(CertificateError::ExpiredContext { time: now, not_after });
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
        self.chain.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// Accepts every certificate (`ipa-insecure`). Signatures of the handshake are still checked, which costs nothing.
#[derive(Debug)]
struct AcceptAny {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
