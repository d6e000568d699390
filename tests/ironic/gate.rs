//! A gate in front of Ironic's API, for the agents: it notes every call that goes through, and can be shut.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use ferric_qemu::conductor::wire::{Headers, MessageReader, RequestHead, write_message};

const LIMIT_BYTES: u64 = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(120);

/// A call of an agent to Ironic.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// When it came.
    pub(crate) at: SystemTime,
    pub(crate) from: IpAddr,
    pub(crate) method: String,
    /// Path and query.
    pub(crate) target: String,
    /// The version of the API that it asks for.
    pub(crate) version: Option<String>,
    /// What it was answered with; 0 when the upstream was not there.
    pub(crate) status: u16,
}

/// The gate. It lives as long as the program.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    upstream: SocketAddr,
    shut: AtomicBool,
    calls: Mutex<Vec<Call>>,
}

impl Gate {
    /// Listens at `address` for what goes to `upstream`.
    pub(crate) fn start(address: SocketAddr, upstream: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(address).with_context(|| format!("binding the gate to {address}"))?;
        let shared = Arc::new(Shared { upstream, shut: AtomicBool::new(false), calls: Mutex::default() });
        let theirs = Arc::clone(&shared);
        // Detached, as are its connections: there is nothing to be saved at the end.
        drop(std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = Arc::clone(&theirs);
                drop(std::thread::spawn(move || drop(shared.serve(client))));
            }
        }));
        Ok(Self { shared })
    }

    /// Answers everything with 503 while it is shut.
    pub(crate) fn shut(&self, shut: bool) {
        self.shared.shut.store(shut, Ordering::SeqCst);
    }

    /// The calls from this address since that time.
    pub(crate) fn calls(&self, from: IpAddr, since: SystemTime) -> Vec<Call> {
        let calls = self.shared.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.iter().filter(|call| call.from == from && call.at >= since).cloned().collect()
    }
}

impl Shared {
    fn serve(&self, mut client: TcpStream) -> Result<()> {
        client.set_read_timeout(Some(PATIENCE))?;
        let from = client.peer_addr()?.ip();
        let mut reader = MessageReader::default();
        loop {
            let head = reader.request_head(&mut client)?;
            let at = SystemTime::now();
            if head.headers.get("expect").is_some() {
                client.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
            }
            let body = reader.request_body(&mut client, &head.headers, LIMIT_BYTES)?;
            if self.shut.load(Ordering::SeqCst) {
                self.note(at, from, &head, 503);
                let mut headers = Headers::default();
                headers.push("Content-Type", "text/plain");
                headers.push("Content-Length", "5");
                write_message(&mut client, "HTTP/1.1 503 Service Unavailable", &headers, b"shut\n")?;
                continue;
            }
            let passed = self.pass(&head, &body);
            self.note(at, from, &head, passed.as_ref().map_or(0, |(status, _)| *status));
            // Without an answer the connection just ends, as it does when the API is restarted.
            client.write_all(&passed?.1)?;
        }
    }

    fn note(&self, at: SystemTime, from: IpAddr, head: &RequestHead, status: u16) {
        let version = head.headers.get("x-openstack-ironic-api-version").map(str::to_owned);
        let call = Call { at, from, method: head.method.clone(), target: head.target.clone(), version, status };
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    }

    /// Sends a request on and gives status and whole answer.
    fn pass(&self, head: &RequestHead, body: &[u8]) -> Result<(u16, Vec<u8>)> {
        let mut upstream = TcpStream::connect(self.upstream).context("connecting to Ironic")?;
        upstream.set_read_timeout(Some(PATIENCE))?;
        let own = ["connection", "transfer-encoding", "content-length", "expect"];
        let mut headers = Headers::default();
        for (name, value) in head.headers.0.iter().filter(|(name, _)| !own.contains(&&*name.to_ascii_lowercase())) {
            headers.push(name.clone(), value.clone());
        }
        headers.push("Content-Length", body.len().to_string());
        headers.push("Connection", "close");
        write_message(&mut upstream, &format!("{} {} HTTP/1.1", head.method, head.target), &headers, body)?;
        let answer = MessageReader::default().response(&mut upstream, head.method == "HEAD", LIMIT_BYTES)?;
        let mut headers = Headers::default();
        for (name, value) in answer.headers.0.iter().filter(|(name, _)| !own.contains(&&*name.to_ascii_lowercase())) {
            headers.push(name.clone(), value.clone());
        }
        headers.push("Content-Length", answer.body.len().to_string());
        let mut bytes = Vec::new();
        write_message(&mut bytes, &format!("HTTP/1.1 {} -", answer.status), &headers, &answer.body)?;
        Ok((answer.status, bytes))
    }
}
