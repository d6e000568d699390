//! Where the conductor reaches this agent, and what proves that it is this agent.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ferric_hardware::probe::system;
use ferric_types::Secret;
use tokio::net::{TcpListener, TcpSocket};
use tokio_rustls::TlsAcceptor;
use tracing::warn;

use crate::app::App;
use crate::conductor::{ApiVersion, Conductor};
use crate::config::{Config, Scheme};
use crate::error::WorkerError;
use crate::net::advertise::{self, AdvertiseOptions};
use crate::tls;

/// Difference to the conductor's clock that is worth a line.
const NOTABLE_SKEW: Duration = Duration::from_secs(60);

/// Where the conductor reaches this agent, and what proves that it is this agent. Constant for one boot: a restarted
/// worker takes over the address and the certificate of the one before.
pub(super) struct Endpoint {
    pub(super) callback_url: String,
    pub(super) certificate: Option<String>,
    key: Option<Secret<String>>,
}

impl Endpoint {
    /// The endpoint of this boot: that of the worker before this one, or a new one.
    pub(super) async fn of(app: &Arc<App>, conductor: &Conductor) -> Result<Self, WorkerError> {
        let state = app.state();
        if let Some(callback_url) = state.callback_url {
            return Ok(Self { callback_url, certificate: state.tls_cert_pem, key: state.tls_key_pem });
        }
        let config = app.config();
        let options = AdvertiseOptions::from_config(&config);
        let address = advertise::choose(&options, conductor.client(), conductor.urls()).await?;
        let own_tls =
            config.enable_auto_tls && !config.listen_tls && conductor.version().await >= ApiVersion::VERIFY_CA;
        let made = if own_tls {
            // Not by way of the inventory: the first heartbeat would wait for disks and a slow BMC.
            let hostname = system::hostname(&app.machine.root);
            Some(tls::generate(&tls::CertificateRequest {
                hostname: &hostname,
                address,
                curve: config.tls_certificate_curve,
                now: clock(conductor),
                clock_skew: config.auto_tls_allowed_clock_skew,
            })?)
        } else {
            None
        };
        let https = made.is_some() || config.advertise_protocol == Scheme::Https;
        let scheme = if https { Scheme::Https } else { Scheme::Http };
        let callback_url = advertise::callback_url(scheme, address, config.advertise_port);
        let (certificate, key) = made.map(|made| (made.certificate_pem, made.key_pem)).unzip();
        app.update_state(|state| {
            state.callback_url = Some(callback_url.clone());
            state.tls_cert_pem.clone_from(&certificate);
            state.tls_key_pem.clone_from(&key);
        });
        Ok(Self { callback_url, certificate, key })
    }

    /// What turns a connection into a TLS one; none for plain HTTP.
    pub(super) fn acceptor(&self, config: &Config) -> Result<Option<TlsAcceptor>, WorkerError> {
        let suites = config.tls_cipher_suites.as_deref();
        let server = match (&self.certificate, &self.key, &config.tls_cert_file, &config.tls_key_file) {
            (Some(certificate), Some(key), _, _) => {
                tls::server_config_from_pem(certificate, key.expose(), config.tls_min_version, suites)?
            }
            (_, _, Some(certificate), Some(key)) if config.listen_tls => {
                tls::server_config_from_files(certificate.as_ref(), key.as_ref(), config.tls_min_version, suites)?
            }
            _ if config.listen_tls => return Err(WorkerError::NoCertificate),
            _ => return Ok(None),
        };
        Ok(Some(TlsAcceptor::from(server)))
    }
}

/// Binds the API's port: dual stack where the kernel has IPv6, unless an address is configured.
pub(super) fn listen(config: &Config) -> Result<TcpListener, WorkerError> {
    let bind = |host: IpAddr| {
        let address = SocketAddr::new(host, config.listen_port);
        let open = || {
            let socket = if address.is_ipv6() { TcpSocket::new_v6() } else { TcpSocket::new_v4() }?;
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            socket.listen(128)
        };
        open().map_err(|source| WorkerError::Listen { address, source })
    };
    match config.listen_host {
        Some(host) => bind(host),
        None => bind(Ipv6Addr::UNSPECIFIED.into()).or_else(|_no_ipv6| bind(Ipv4Addr::UNSPECIFIED.into())),
    }
}

/// The time by which the certificate must be valid: the conductor's, who will check it, where its answers had a date.
/// A machine's own clock may be in local time, or years off after its battery failed.
fn clock(conductor: &Conductor) -> SystemTime {
    let own = SystemTime::now();
    let Some(theirs) = conductor.last_server_date().map(|date| date.now()) else { return own };
    let skew = theirs.duration_since(own).unwrap_or_else(|behind| behind.duration());
    if skew >= NOTABLE_SKEW {
        warn!(
            "the clocks of this machine and of the conductor are {} s apart; going by the conductor's",
            skew.as_secs()
        );
    }
    theirs
}
