//! Why an HTTP exchange failed. URLs inside are shown without credentials and query.

use std::io;
use std::time::Duration;

use super::url::{Url, UrlError};

/// A failed exchange. An answer with an error status is not a failure here: the caller judges statuses.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The URL cannot be used.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The name of the host (or of the proxy) is not known.
    #[error("resolving host name {host:?} for {url}")]
    Resolve {
        /// Name that was looked up.
        host: String,
        /// What was to be fetched.
        url: Url,
        /// The resolver's error.
        #[source]
        source: io::Error,
    },
    /// No address of the host took the connection.
    #[error("connecting to {peer} for {url}")]
    Connect {
        /// Host and port of the server or proxy.
        peer: String,
        /// What was to be fetched.
        url: Url,
        /// The last address's error.
        #[source]
        source: io::Error,
    },
    /// Connecting, the TLS handshake or the proxy took too long.
    #[error("no connection to {peer} for {url} within {} s", .limit.as_secs_f64())]
    ConnectTimeout {
        /// Host and port of the server or proxy.
        peer: String,
        /// What was to be fetched.
        url: Url,
        /// The limit that was passed.
        limit: Duration,
    },
    /// The server's certificate is not acceptable, or there is no TLS version or cipher suite in common.
    #[error("TLS handshake with {peer} for {url}")]
    Tls {
        /// Host and port of the server or proxy.
        peer: String,
        /// What was to be fetched.
        url: Url,
        /// The TLS library's error.
        #[source]
        source: io::Error,
    },
    /// The proxy answered `CONNECT` with an error.
    #[error("proxy {proxy} refuses a tunnel to {peer}: status {status}")]
    ProxyRefused {
        /// URL of the proxy.
        proxy: Url,
        /// Host and port behind the proxy.
        peer: String,
        /// Status of the proxy's answer.
        status: http::StatusCode,
    },
    /// The connection broke before the answer's header was complete, or the answer is not HTTP.
    #[error("asking for {url}")]
    Exchange {
        /// What was asked for.
        url: Url,
        /// The protocol library's error.
        #[source]
        source: hyper::Error,
    },
    /// The server accepted the request and then said nothing.
    #[error("no answer from {url} within {} s", .limit.as_secs_f64())]
    AnswerTimeout {
        /// What was asked for.
        url: Url,
        /// The limit that was passed.
        limit: Duration,
    },
    /// The connection broke inside the body.
    #[error("reading the body of {url}")]
    Body {
        /// What was being read.
        url: Url,
        /// The protocol library's error.
        #[source]
        source: hyper::Error,
    },
    /// The body stopped coming.
    #[error("no data from {url} for {} s", .limit.as_secs_f64())]
    BodyTimeout {
        /// What was being read.
        url: Url,
        /// The limit that was passed.
        limit: Duration,
    },
    /// The exchange as a whole took too long, although bytes may have come all the time.
    #[error("no whole answer from {url} within {} s", .limit.as_secs_f64())]
    TotalTimeout {
        /// What was asked for.
        url: Url,
        /// The limit that was passed.
        limit: Duration,
    },
    /// The body is longer than the caller takes.
    #[error("the body of {url} is larger than {limit_bytes} bytes")]
    TooLarge {
        /// What was being read.
        url: Url,
        /// Largest body allowed.
        limit_bytes: u64,
    },
    /// Redirected too often.
    #[error("{url} redirects more than {limit} times")]
    TooManyRedirects {
        /// First URL of the chain.
        url: Url,
        /// Redirects that are followed.
        limit: usize,
    },
    /// A redirect points to something the agent does not fetch.
    #[error("{url} redirects to an unusable location")]
    BadRedirect {
        /// Where the redirect came from.
        url: Url,
        /// Why the location is unusable.
        #[source]
        source: UrlError,
    },
    /// A redirect leads to a server that must not get what the request carries.
    #[error("{url} redirects to another server, {to}, which must not get the agent's token")]
    ForeignRedirect {
        /// Where the redirect came from.
        url: Url,
        /// Where it leads.
        to: Url,
    },
    /// A header value holds bytes that HTTP does not allow.
    #[error("the {name} header for {url} holds characters that HTTP does not allow")]
    BadHeader {
        /// Name of the header.
        name: &'static str,
        /// What was to be fetched.
        url: Url,
        /// The protocol library's error.
        #[source]
        source: http::Error,
    },
}

impl HttpError {
    /// Whether the server may never have seen the request or the connection broke, so that another server or another
    /// try can help. A server that took the request and stays silent does not count (inspection section 2).
    pub fn is_connection(&self) -> bool {
        matches!(
            self,
            Self::Resolve { .. }
                | Self::Connect { .. }
                | Self::ConnectTimeout { .. }
                | Self::Tls { .. }
                | Self::ProxyRefused { .. }
                | Self::Exchange { .. }
                | Self::Body { .. }
        )
    }

    /// Whether the server's certificate was refused: trying again gives the same result.
    pub fn is_certificate(&self) -> bool {
        self.certificate().is_some()
    }

    /// What the operator can do about it, when the cause is known.
    pub fn hint(&self) -> Option<&'static str> {
        use rustls::CertificateError as Cert;
        if let Some(certificate) = self.certificate() {
            return Some(match certificate {
                Cert::NotValidYet | Cert::NotValidYetContext { .. } | Cert::Expired | Cert::ExpiredContext { .. } => {
                    "compare this machine's clock with the validity of the server's certificate"
                }
                Cert::UnknownIssuer => {
                    "give the agent the issuing CA (option cafile), or ipa-insecure=1 to accept any certificate"
                }
                Cert::NotValidForName | Cert::NotValidForNameContext { .. } => {
                    "use a host name or address that the server's certificate holds as subject alternative name"
                }
                _ => "the server's certificate does not pass verification",
            });
        }
        match self {
            Self::Resolve { .. } => Some("check the name and the DNS servers given by DHCP"),
            Self::Connect { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused => {
                Some("the host answers but nothing listens on that port")
            }
            Self::Connect { .. } | Self::ConnectTimeout { .. } => {
                Some("check address, port, routes and firewalls between this machine and that host")
            }
            Self::Tls { .. } => Some("the server may need another TLS version or cipher suite (ipa-tls-min-version)"),
            Self::ProxyRefused { .. } => Some("check the proxy settings and no_proxy"),
            Self::ForeignRedirect { .. } => Some("ipa-api-url must be the URL that the API itself has"),
            _ => None,
        }
    }

    /// The error with its causes and the hint, as one line for the console.
    pub fn explain(&self) -> String {
        explained(self, self.hint())
    }

    fn certificate(&self) -> Option<&rustls::CertificateError> {
        let Self::Tls { source, .. } = self else { return None };
        match source.get_ref()?.downcast_ref::<rustls::Error>()? {
            rustls::Error::InvalidCertificate(error) => Some(error),
            _ => None,
        }
    }
}

/// An error with its causes, and a hint in brackets.
pub(crate) fn explained(error: &dyn std::error::Error, hint: Option<&str>) -> String {
    let text = ferric_types::error::chain(error);
    hint.map_or(text.clone(), |hint| format!("{text} ({hint})"))
}
