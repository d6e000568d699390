//! A scripted HTTP server for tests: it records requests and misbehaves on demand.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::config::TlsVersion;
use crate::http::{Client, HttpOptions, Proxies};
use crate::tls::{self, TlsOptions};

/// A request as the server saw it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// `GET /x HTTP/1.1`.
    pub(crate) line: String,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// Number of the connection it came on, from 1.
    pub(crate) connection: usize,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    /// First byte of a `Range` header.
    pub(crate) fn range_start(&self) -> Option<usize> {
        self.header("range")?.strip_prefix("bytes=")?.split('-').next()?.parse().ok()
    }
}

/// What the server does after the bytes of a reply.
#[derive(Debug, Clone)]
pub(crate) enum Then {
    KeepAlive,
    Close,
    Hang,
    /// Further pieces, each after a pause; then the connection stays open.
    Pieces(Duration, Vec<Vec<u8>>),
    /// Becomes a tunnel to an address.
    Tunnel(String),
}

/// The server's reaction to a request.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) bytes: Vec<u8>,
    pub(crate) then: Then,
}

impl Reply {
    /// A whole answer with a length.
    pub(crate) fn new(status: u16, headers: &str, body: &[u8]) -> Self {
        Self::cut(status, headers, body, body.len())
    }

    /// An answer that announces the whole body and sends only its first `sent` bytes; a short one closes.
    pub(crate) fn cut(status: u16, headers: &str, body: &[u8], sent: usize) -> Self {
        let mut bytes = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n{headers}\r\n", body.len()).into_bytes();
        bytes.extend_from_slice(&body[..sent]);
        Self { bytes, then: if sent == body.len() { Then::KeepAlive } else { Then::Close } }
    }

    /// Bytes that are no good answer.
    pub(crate) fn raw(bytes: &[u8], then: Then) -> Self {
        Self { bytes: bytes.to_vec(), then }
    }
}

/// A running server on a port of the loopback address.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) port: u16,
    scheme: &'static str,
    log: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    /// Starts a plain server; `script` gets each request and its number, from 1.
    pub(crate) async fn start(script: impl Fn(&Seen, usize) -> Reply + Send + Sync + 'static) -> Self {
        Self::listen(None, script).await
    }

    pub(crate) async fn start_tls(
        config: Arc<ServerConfig>,
        script: impl Fn(&Seen, usize) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::listen(Some(TlsAcceptor::from(config)), script).await
    }

    async fn listen(tls: Option<TlsAcceptor>, script: impl Fn(&Seen, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let log = Arc::new(Mutex::new(Vec::new()));
        let scheme = if tls.is_some() { "https" } else { "http" };
        let server = Self { port, scheme, log: Arc::clone(&log) };
        let script = Arc::new(script);
        drop(tokio::spawn(async move {
            for connection in 1.. {
                let (stream, _) = listener.accept().await.unwrap();
                let (tls, log, script) = (tls.clone(), Arc::clone(&log), Arc::clone(&script));
                drop(tokio::spawn(async move {
                    let answer = |seen: Seen| {
                        let mut log = log.lock().unwrap();
                        log.push(seen.clone());
                        let count = log.len();
                        drop(log);
                        script(&seen, count)
                    };
                    match tls {
                        None => serve(stream, connection, answer).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(stream, connection, answer).await;
                            }
                        }
                    }
                }));
            }
        }));
        server
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}://127.0.0.1:{}{path}", self.scheme, self.port)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.log.lock().unwrap().clone()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.seen().into_iter().map(|seen| seen.line.trim_end_matches(" HTTP/1.1").to_owned()).collect()
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, connection: usize, answer: impl Fn(Seen) -> Reply) {
    let mut buffer = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            match stream.read_buf(&mut buffer).await {
                Ok(count) if count > 0 => {}
                _ => return,
            }
        };
        let head = String::from_utf8(buffer.drain(..end).collect()).unwrap();
        let mut seen = Seen { line: head.lines().next().unwrap().into(), head, body: Vec::new(), connection };
        let length = seen.header("content-length").map_or(0, |length| length.parse().unwrap());
        while buffer.len() < length {
            if stream.read_buf(&mut buffer).await.unwrap_or(0) == 0 {
                return;
            }
        }
        seen.body = buffer.drain(..length).collect();
        let reply = answer(seen);
        if stream.write_all(&reply.bytes).await.is_err() || stream.flush().await.is_err() {
            return;
        }
        match reply.then {
            Then::KeepAlive => {}
            Then::Close => {
                drop(stream.shutdown().await);
                return;
            }
            Then::Hang => std::future::pending().await,
            Then::Pieces(pause, pieces) => {
                for piece in pieces {
                    tokio::time::sleep(pause).await;
                    if stream.write_all(&piece).await.is_err() || stream.flush().await.is_err() {
                        return;
                    }
                }
            }
            Then::Tunnel(to) => {
                let mut server = TcpStream::connect(to).await.unwrap();
                drop(tokio::io::copy_bidirectional(&mut stream, &mut server).await);
                return;
            }
        }
    }
}

/// A certificate authority and a server certificate of it for 127.0.0.1 and `localhost`.
pub(crate) struct Authority {
    /// PEM file of the authority.
    pub(crate) cafile: tempfile::NamedTempFile,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let cafile = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(cafile.path(), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { cafile, issuer: Issuer::new(params, key) }
    }

    /// Server settings with a certificate for the given names.
    pub(crate) fn server(&self, names: &[&str], version: TlsVersion) -> Arc<ServerConfig> {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        tls::server_config(vec![certificate.der().clone()], key, version, None).unwrap()
    }
}

/// A client with short limits that takes the given TLS settings.
pub(crate) fn client(tls: TlsOptions) -> Client {
    client_with(tls, Proxies::none())
}

pub(crate) fn client_with(tls: TlsOptions, proxies: Proxies) -> Client {
    Client::with_options(&HttpOptions { tls, proxies, timeout: Duration::from_secs(5) }).unwrap()
}
