//! TLS settings shared by the HTTP client and the agent's API server: provider, versions, cipher suites, trusted
//! certificates, and the certificate the agent makes for itself (protocol sections 6 and 10).

mod certificate;
mod suites;
mod trust;
mod validity;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, ServerConfig, SupportedProtocolVersion};
use rustls_pki_types::pem::{self, PemObject as _};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::{Config, TlsVersion};

pub use self::certificate::{CertificateRequest, SelfSigned, generate};

/// Where distributions keep the certificates of public authorities.
const SYSTEM_CA_FILE: &str = "/etc/ssl/certs/ca-certificates.crt";

/// TLS settings of a client.
#[derive(Debug, Clone)]
pub struct TlsOptions {
    /// Accept any certificate.
    pub insecure: bool,
    /// The only certificates to trust, instead of the public authorities.
    pub cafile: Option<PathBuf>,
    /// Certificates trusted beside the built-in authorities, when the file exists.
    pub system_cafile: PathBuf,
    /// Client certificate chain and key, both PEM.
    pub client_certificate: Option<(PathBuf, PathBuf)>,
    /// Lowest version to speak.
    pub min_version: TlsVersion,
    /// OpenSSL list of TLS 1.2 cipher suites.
    pub cipher_suites: Option<String>,
}

impl Default for TlsOptions {
    fn default() -> Self {
        Self {
            insecure: false,
            cafile: None,
            system_cafile: PathBuf::from(SYSTEM_CA_FILE),
            client_certificate: None,
            min_version: TlsVersion::V1_2,
            cipher_suites: None,
        }
    }
}

impl TlsOptions {
    /// The client side of the agent's settings. A certificate without key, or the reverse, is left out with a warning.
    pub fn from_config(config: &Config) -> Self {
        let client_certificate = match (&config.certfile, &config.keyfile) {
            (Some(certificate), Some(key)) => Some((PathBuf::from(certificate), PathBuf::from(key))),
            (None, None) => None,
            _ => {
                tracing::warn!("certfile and keyfile must be set together: no client certificate is used");
                None
            }
        };
        Self {
            insecure: config.insecure,
            cafile: config.cafile.as_ref().map(PathBuf::from),
            client_certificate,
            min_version: config.tls_min_version,
            cipher_suites: config.tls_cipher_suites.clone(),
            ..Self::default()
        }
    }
}

/// TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file with certificates or a key cannot be read.
    #[error("reading {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The file is no PEM file of the expected kind.
    #[error("reading PEM data of {path}")]
    Pem {
        /// The file, or what stands for it.
        path: PathBuf,
        /// The parser's error.
        #[source]
        source: pem::Error,
    },
    /// The file holds no usable certificate.
    #[error("{path} holds no usable certificate")]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// The TLS library refuses the settings, such as a key that does not belong to the certificate.
    #[error("setting up TLS")]
    Rustls(#[from] rustls::Error),
    /// The verifier cannot be built.
    #[error("setting up the verification of certificates")]
    Verifier(#[from] rustls::client::VerifierBuilderError),
    /// A certificate could not be made.
    #[error("making a certificate")]
    Generate(#[from] rcgen::Error),
}

/// The ring provider with the chosen cipher suites.
pub fn provider(cipher_suites: Option<&str>) -> Arc<CryptoProvider> {
    let default = rustls::crypto::ring::default_provider();
    Arc::new(CryptoProvider { cipher_suites: suites::select(&default.cipher_suites, cipher_suites), ..default })
}

static FROM_1_2: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13, &rustls::version::TLS12];
static FROM_1_3: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// Versions from the lowest one on.
pub fn versions(min: TlsVersion) -> &'static [&'static SupportedProtocolVersion] {
    match min {
        TlsVersion::V1_2 => FROM_1_2,
        TlsVersion::V1_3 => FROM_1_3,
    }
}

/// Settings for connections to servers.
pub fn client_config(options: &TlsOptions) -> Result<Arc<ClientConfig>, TlsError> {
    let provider = provider(options.cipher_suites.as_deref());
    let verifier = trust::verifier(options, &provider)?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions(options.min_version))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match &options.client_certificate {
        Some((certificate, key)) => builder.with_client_auth_cert(read_chain(certificate)?, read_key(key)?)?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Settings of the API server, which never asks for a client certificate.
pub fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    min_version: TlsVersion,
    cipher_suites: Option<&str>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let mut config = ServerConfig::builder_with_provider(provider(cipher_suites))
        .with_protocol_versions(versions(min_version))?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Settings of the API server from PEM texts, such as those of [`SelfSigned`].
pub fn server_config_from_pem(
    certificate_pem: &str,
    key_pem: &str,
    min_version: TlsVersion,
    cipher_suites: Option<&str>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let path = Path::new("the agent's own certificate");
    let chain = parse_chain(path, certificate_pem.as_bytes())?;
    let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes())
        .map_err(|source| TlsError::Pem { path: path.to_owned(), source })?;
    server_config(chain, key, min_version, cipher_suites)
}

/// Settings of the API server from PEM files (options `tls_cert_file` and `tls_key_file`).
pub fn server_config_from_files(
    certificate: &Path,
    key: &Path,
    min_version: TlsVersion,
    cipher_suites: Option<&str>,
) -> Result<Arc<ServerConfig>, TlsError> {
    server_config(read_chain(certificate)?, read_key(key)?, min_version, cipher_suites)
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source })
}

fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    parse_chain(path, &read(path)?)
}

fn parse_chain(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let chain: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(pem).collect();
    let chain = chain.map_err(|source| TlsError::Pem { path: path.to_owned(), source })?;
    if chain.is_empty() { Err(TlsError::NoCertificate { path: path.to_owned() }) } else { Ok(chain) }
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|source| TlsError::Pem { path: path.to_owned(), source })
}
