//! One connection to an agent, plain or TLS, and the requests sent over it.

use crate::conductor::wire::{Headers, MessageReader, RawResponse, WireError};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

/// More than any answer of an agent; log bundles are the largest.
const MAX_ANSWER_BYTES: u64 = 256 * 1024 * 1024;

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The host of the URL has no address.
    #[error("resolving {authority}")]
    Resolve {
        /// Host and port.
        authority: String,
        /// The resolver's error; none when it found nothing.
        #[source]
        source: Option<std::io::Error>,
    },
    /// No TCP connection.
    #[error("connecting to {address}")]
    Connect {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The host of the URL cannot be in a certificate.
    #[error("{authority} is not a name for TLS")]
    Name {
        /// Host and port.
        authority: String,
    },
    /// TLS refused.
    #[error("TLS handshake with {authority}")]
    Tls {
        /// Host and port.
        authority: String,
        /// What the handshake failed on.
        #[source]
        source: std::io::Error,
    },
    /// Writing the request failed.
    #[error("sending the request")]
    Send(#[source] std::io::Error),
    /// Reading the answer failed.
    #[error("reading the answer")]
    Receive(#[source] WireError),
}

/// Where an agent is and how to reach it.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) https: bool,
    /// Host and port as in the URL.
    pub(super) authority: String,
    host: String,
    /// Path in front of `/v1`, without a slash at its end.
    pub(super) prefix: String,
    pub(super) address: Option<SocketAddr>,
    pub(super) tls: Option<Arc<ClientConfig>>,
}

impl Target {
    pub(super) fn parse(url: &str) -> Option<Target> {
        let (scheme, rest) = url.split_once("://")?;
        let https = match scheme {
            "http" => false,
            "https" => true,
            _ => return None,
        };
        let (authority, prefix) = rest.split_once('/').map_or((rest, ""), |(a, p)| (a, p));
        let (host, port) = authority.rsplit_once(':')?;
        port.parse::<u16>().ok()?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let prefix = if prefix.is_empty() { String::new() } else { format!("/{}", prefix.trim_end_matches('/')) };
        (!host.is_empty()).then(|| Target {
            https,
            authority: authority.to_owned(),
            host,
            prefix,
            address: None,
            tls: None,
        })
    }

    fn address(&self) -> Result<SocketAddr, HttpError> {
        if let Some(address) = self.address {
            return Ok(address);
        }
        let failed = |source| HttpError::Resolve { authority: self.authority.clone(), source };
        let mut found = self.authority.to_socket_addrs().map_err(|e| failed(Some(e)))?;
        found.next().ok_or_else(|| failed(None))
    }
}

/// A request to be sent as it is.
#[derive(Debug, Clone)]
pub struct RawRequest {
    method: String,
    target: String,
    headers: Headers,
    body: Vec<u8>,
}

impl RawRequest {
    /// A request without a body; `target` is path and query as they go over the wire.
    #[must_use]
    pub fn new(method: &str, target: &str) -> Self {
        RawRequest {
            method: method.to_owned(),
            target: target.to_owned(),
            headers: Headers::default(),
            body: Vec::new(),
        }
    }

    /// Adds a head field, in place of the usual one of that name.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push(name, value);
        self
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    fn to_bytes(&self, authority: &str) -> Vec<u8> {
        let length = self.body.len().to_string();
        let mut headers = Headers::default();
        for (name, value) in [
            ("Host", authority),
            ("User-Agent", "python-requests/2.34.2"),
            ("Accept-Encoding", "gzip, deflate"),
            ("Accept", "*/*"),
            ("Connection", "keep-alive"),
            ("Content-Type", "application/json"),
        ] {
            if self.headers.get(name).is_none() {
                headers.push(name, value);
            }
        }
        let has_length =
            self.headers.get("content-length").is_some() || self.headers.get("transfer-encoding").is_some();
        let bodiless_get = self.body.is_empty() && self.method == "GET";
        if !has_length && !bodiless_get {
            headers.push("Content-Length", length);
        }
        headers.0.extend(self.headers.0.iter().cloned());
        let mut text = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        for (name, value) in &headers.0 {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

/// One open connection.
pub(super) struct Connection {
    stream: Stream,
    reader: MessageReader,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Connection {
    pub(super) fn open(target: &Target, timeout: Duration) -> Result<Connection, HttpError> {
        let address = target.address()?;
        let connect = |source| HttpError::Connect { address, source };
        let tcp = TcpStream::connect_timeout(&address, timeout).map_err(connect)?;
        tcp.set_read_timeout(Some(timeout)).map_err(connect)?;
        tcp.set_write_timeout(Some(timeout)).map_err(connect)?;
        tcp.set_nodelay(true).map_err(connect)?;
        let stream = match &target.tls {
            None => Stream::Plain(tcp),
            Some(config) => Stream::Tls(Box::new(handshake(target, config, tcp)?)),
        };
        Ok(Connection { stream, reader: MessageReader::default() })
    }

    /// Whether the peer has kept its side open and sent nothing unasked: as urllib3 checks before it uses a pooled
    /// connection again.
    pub(super) fn is_usable(&self) -> bool {
        let tcp = match &self.stream {
            Stream::Plain(tcp) => tcp,
            Stream::Tls(tls) => &tls.sock,
        };
        if self.reader.has_buffered() || tcp.set_nonblocking(true).is_err() {
            return false;
        }
        let quiet = matches!(tcp.peek(&mut [0u8]), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock);
        tcp.set_nonblocking(false).is_ok() && quiet
    }

    pub(super) fn exchange(&mut self, request: &RawRequest, target: &Target) -> Result<RawResponse, HttpError> {
        let head_only = request.method == "HEAD";
        self.send(&request.to_bytes(&target.authority), head_only)
    }

    pub(super) fn exchange_bytes(&mut self, bytes: &[u8]) -> Result<RawResponse, HttpError> {
        self.send(bytes, false)
    }

    fn send(&mut self, bytes: &[u8], head_only: bool) -> Result<RawResponse, HttpError> {
        match &mut self.stream {
            Stream::Plain(tcp) => transfer(tcp, &mut self.reader, bytes, head_only),
            Stream::Tls(tls) => transfer(tls.as_mut(), &mut self.reader, bytes, head_only),
        }
    }
}

fn handshake(
    target: &Target,
    config: &Arc<ClientConfig>,
    mut tcp: TcpStream,
) -> Result<StreamOwned<ClientConnection, TcpStream>, HttpError> {
    let authority = || target.authority.clone();
    let name =
        ServerName::try_from(target.host.clone()).map_err(|_error| HttpError::Name { authority: authority() })?; // the name says it all
    let failed = |source| HttpError::Tls { authority: authority(), source };
    let mut session = ClientConnection::new(Arc::clone(config), name).map_err(|e| failed(std::io::Error::other(e)))?;
    while session.is_handshaking() {
        session.complete_io(&mut tcp).map_err(failed)?;
    }
    Ok(StreamOwned::new(session, tcp))
}

/// Sends and reads. A server may refuse a large body with an answer before it has read it all; that answer counts
/// more than the failed write.
fn transfer(
    stream: &mut (impl Read + Write),
    reader: &mut MessageReader,
    bytes: &[u8],
    head_only: bool,
) -> Result<RawResponse, HttpError> {
    let sent = stream.write_all(bytes).and_then(|()| stream.flush());
    match (reader.response(stream, head_only, MAX_ANSWER_BYTES), sent) {
        (Ok(response), _) => Ok(response),
        (Err(_), Err(e)) => Err(HttpError::Send(e)),
        (Err(e), Ok(())) => Err(HttpError::Receive(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_urls_are_taken_apart() {
        for (url, expected) in [
            ("https://10.0.2.15:9999", Some((true, "10.0.2.15:9999", "10.0.2.15", ""))),
            ("https://[fd00::1]:9999/", Some((true, "[fd00::1]:9999", "fd00::1", ""))),
            ("http://h:1/deep/er/", Some((false, "h:1", "h", "/deep/er"))),
            ("ftp://h:1", None),
            ("https://h", None),
            ("h:1", None),
        ] {
            let target = Target::parse(url);
            let got = target.as_ref().map(|t| (t.https, t.authority.as_str(), t.host.as_str(), t.prefix.as_str()));
            assert_eq!(got, expected, "{url}");
        }
    }
}
