//! Why the worker cannot go on.

use std::net::SocketAddr;

/// The worker ended. The supervisor prints the chain of causes and starts it again.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The extensions of this image contradict each other.
    #[error("checking the extensions of this image")]
    Extensions(#[from] crate::command::entry::TableError),
    /// The hardware managers of this image contradict each other.
    #[error("setting up the hardware managers")]
    Hardware(#[from] ferric_hardware::HardwareError),
    /// No network.
    #[error("bringing up the network")]
    Network(#[from] crate::net::NetError),
    /// The conductor cannot be reached, or does not know this machine.
    #[error("finding the conductor")]
    Conductor(#[from] crate::conductor::ConductorError),
    /// The inspection data did not reach the conductor.
    #[error("inspecting this machine")]
    Inspection(#[from] crate::conductor::inspection::InspectionError),
    /// No address under which the conductor could call back.
    #[error("choosing the address to announce")]
    Advertise(#[from] crate::net::advertise::AdvertiseError),
    /// The API's certificate or key is unusable.
    #[error("setting up TLS for the API")]
    Tls(#[from] crate::tls::TlsError),
    /// `listen_tls` without a certificate.
    #[error("listen_tls is set, but tls_cert_file and tls_key_file are not")]
    NoCertificate,
    /// The HTTP client cannot be set up.
    #[error("setting up the HTTP client")]
    Client(#[from] crate::http::ClientError),
    /// The API's port cannot be opened.
    #[error("listening on {address}")]
    Listen {
        /// Address and port.
        address: SocketAddr,
        /// Reason.
        #[source]
        source: std::io::Error,
    },
    /// The network interfaces could not be taken down.
    #[error("taking the network down")]
    Lockdown(#[source] ferric_types::CommandError),
    /// There is no runtime.
    #[error("starting the asynchronous runtime")]
    Runtime(#[source] std::io::Error),
}
