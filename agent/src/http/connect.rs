//! Opening a connection: names, addresses, proxies and TLS.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::header::{HOST, PROXY_AUTHORIZATION};
use http::{Method, StatusCode};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::activity::{Activity, Watched};
use super::auth;
use super::error::HttpError;
use super::url::{Host, Origin, Scheme, Url};

/// Pause before the next address of a host is tried beside the one that has not answered yet (RFC 8305 section 5; longer
/// than there because links that just came up drop the first packets).
const NEXT_ADDRESS_DELAY: Duration = Duration::from_millis(750);

/// Largest block of answer headers, and of one piece of a body, in bytes.
const MAX_BUFFER_BYTES: usize = 256 * 1024;

/// Most header lines in an answer.
const MAX_HEADERS: usize = 128;

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// An open HTTP/1.1 connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) sender: SendRequest<Full<Bytes>>,
    pub(super) activity: Activity,
    pub(super) peer: SocketAddr,
}

/// Everything needed to reach a server.
#[derive(Debug)]
pub(super) struct Route<'a> {
    pub(super) url: &'a Url,
    pub(super) proxy: Option<&'a Url>,
    pub(super) tls: &'a Arc<ClientConfig>,
    /// For the name look-up with TCP, for each TLS handshake and for the proxy, each on its own.
    pub(super) limit: Duration,
}

impl Route<'_> {
    /// Opens a connection to the server, through the proxy when there is one.
    pub(super) async fn open(&self) -> Result<Connection, HttpError> {
        let first = self.proxy.unwrap_or(self.url).origin();
        let activity = Activity::new();
        let tcp = self.timed(first, self.tcp(first)).await?;
        let peer = tcp.peer_addr().map_err(|source| self.connect_error(first, source))?;
        let mut stream: Box<dyn Stream> = Box::new(Watched { inner: tcp, activity: activity.clone() });
        if let Some(proxy) = self.proxy {
            if proxy.scheme() == Scheme::Https {
                stream = self.timed(first, self.tls(first, stream)).await?;
            }
            if self.url.scheme() == Scheme::Https {
                stream = self.timed(first, self.tunnel(proxy, stream)).await?;
            }
        }
        if self.url.scheme() == Scheme::Https {
            stream = self.timed(self.url.origin(), self.tls(self.url.origin(), stream)).await?;
        }
        let (sender, connection) = builder()
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|source| HttpError::Exchange { url: self.url.clone(), source })?;
        // The task ends with the connection; its error reaches the exchange that was waiting.
        drop(tokio::spawn(connection));
        Ok(Connection { sender, activity, peer })
    }

    async fn timed<T>(&self, peer: &Origin, work: impl Future<Output = Result<T, HttpError>>) -> Result<T, HttpError> {
        tokio::time::timeout(self.limit, work).await.unwrap_or_else(|_elapsed| {
            Err(HttpError::ConnectTimeout { peer: peer.host_port(), url: self.url.clone(), limit: self.limit })
        })
    }

    fn connect_error(&self, peer: &Origin, source: io::Error) -> HttpError {
        HttpError::Connect { peer: peer.host_port(), url: self.url.clone(), source }
    }

    async fn tcp(&self, peer: &Origin) -> Result<TcpStream, HttpError> {
        let addresses = resolve(peer, self.url).await?;
        let tcp = race(&addresses).await.map_err(|source| self.connect_error(peer, source))?;
        // Requests and forced heartbeats are small; waiting to fill packets would only delay them.
        tcp.set_nodelay(true).map_err(|source| self.connect_error(peer, source))?;
        Ok(tcp)
    }

    async fn tls(&self, peer: &Origin, stream: Box<dyn Stream>) -> Result<Box<dyn Stream>, HttpError> {
        let failed = |source| HttpError::Tls { peer: peer.host_port(), url: self.url.clone(), source };
        let name = match &peer.host {
            Host::Ip(address) => ServerName::IpAddress((*address).into()),
            Host::Name(name) => ServerName::try_from(name.clone()).map_err(|error| failed(io::Error::other(error)))?,
        };
        let tls = TlsConnector::from(Arc::clone(self.tls)).connect(name, stream).await.map_err(failed)?;
        Ok(Box::new(tls))
    }

    /// Asks a proxy for a tunnel to the server (RFC 9110 section 9.3.6).
    async fn tunnel(&self, proxy: &Url, stream: Box<dyn Stream>) -> Result<Box<dyn Stream>, HttpError> {
        let failed = |source| HttpError::Exchange { url: proxy.clone(), source };
        let peer = self.url.origin().host_port();
        let (mut sender, connection) = builder().handshake(TokioIo::new(stream)).await.map_err(failed)?;
        drop(tokio::spawn(connection.with_upgrades()));
        let mut request = http::Request::builder().method(Method::CONNECT).uri(&peer).header(HOST, &peer);
        if let Some((user, password)) = proxy.credentials() {
            request = request.header(PROXY_AUTHORIZATION, auth::basic(user.expose(), password.expose()).expose());
        }
        let request = request.body(Full::<Bytes>::default()).map_err(|source| HttpError::BadHeader {
            name: "Host",
            url: self.url.clone(),
            source,
        })?;
        let answer = sender.send_request(request).await.map_err(failed)?;
        if answer.status() != StatusCode::OK {
            return Err(HttpError::ProxyRefused { proxy: proxy.clone(), peer, status: answer.status() });
        }
        let upgraded = hyper::upgrade::on(answer).await.map_err(failed)?;
        Ok(Box::new(TokioIo::new(upgraded)))
    }
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.max_headers(MAX_HEADERS).max_buf_size(MAX_BUFFER_BYTES);
    builder
}

/// The addresses of a host, IPv6 and IPv4 in turn, beginning with the family the resolver prefers.
async fn resolve(peer: &Origin, url: &Url) -> Result<Vec<SocketAddr>, HttpError> {
    let name = match &peer.host {
        Host::Ip(address) => return Ok(vec![SocketAddr::new(*address, peer.port)]),
        Host::Name(name) => name,
    };
    let failed = |source| HttpError::Resolve { host: name.clone(), url: url.clone(), source };
    let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), peer.port)).await.map_err(failed)?.collect();
    if found.is_empty() {
        return Err(failed(io::Error::new(io::ErrorKind::NotFound, "the name has no address")));
    }
    Ok(interleave(&found))
}

/// All addresses of a host, for choosing the address that routes towards it.
pub(super) async fn addresses(url: &Url) -> Result<Vec<IpAddr>, HttpError> {
    Ok(resolve(url.origin(), url).await?.into_iter().map(|address| address.ip()).collect())
}

fn interleave(found: &[SocketAddr]) -> Vec<SocketAddr> {
    let Some(first) = found.first() else { return Vec::new() };
    let (preferred, other): (Vec<_>, Vec<_>) =
        found.iter().copied().partition(|a: &SocketAddr| a.is_ipv6() == first.is_ipv6());
    let mut mixed: Vec<SocketAddr> = Vec::with_capacity(found.len());
    let (mut preferred, mut other) = (preferred.into_iter(), other.into_iter());
    loop {
        let pair = (preferred.next(), other.next());
        if pair == (None, None) {
            return mixed;
        }
        mixed.extend([pair.0, pair.1].into_iter().flatten());
    }
}

/// The first connection that comes up; the next address is tried when one fails or stays silent for a moment.
async fn race(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut waiting = addresses.iter();
    let mut running = FuturesUnordered::new();
    let mut last_error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    loop {
        if let Some(address) = waiting.next() {
            running.push(TcpStream::connect(*address));
        } else if running.is_empty() {
            return Err(last_error);
        }
        let more = waiting.len() > 0;
        tokio::select! {
            Some(done) = running.next() => match done {
                Ok(stream) => return Ok(stream),
                Err(error) => last_error = error,
            },
            () = tokio::time::sleep(NEXT_ADDRESS_DELAY), if more => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_families_take_turns() {
        let parse = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect::<Vec<SocketAddr>>();
        let found = parse(&["[2001:db8::1]:1", "[2001:db8::2]:1", "[2001:db8::3]:1", "192.0.2.1:1"]);
        let want = parse(&["[2001:db8::1]:1", "192.0.2.1:1", "[2001:db8::2]:1", "[2001:db8::3]:1"]);
        assert_eq!(interleave(&found), want);
        assert_eq!(interleave(&[]), []);
    }

    #[tokio::test]
    async fn a_dead_address_does_not_hide_a_living_one() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let alive = listener.local_addr().unwrap();
        let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let stream = race(&[closed, alive]).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), alive);
        assert_eq!(race(&[closed, closed]).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
