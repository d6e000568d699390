//! An HTTP/1.1 server for images: ranges, ETags, keep-alive, faults on order, and a record of every request.
//!
//! It listens on a free port of 127.0.0.1, unless told otherwise; guests on the user-mode network reach it at 10.0.2.2.
//! One thread for each connection. The protocol part is our own on purpose: a proper server library would not lie.
//!
//! ```
//! # fn main() -> anyhow::Result<()> {
//! use ferric_qemu::{Content, Fault, ImageServer};
//!
//! let server = ImageServer::start()?;
//! server.add("/image.raw", Content::Pattern { seed: 1, len_bytes: 1 << 30 });
//! server.fault("/image.raw", Fault::CutAfter(1000), Some(1)); // the first download is cut
//! let url = server.guest_url("/image.raw"); // http://10.0.2.2:<port>/image.raw
//! // ... later: what did the client ask for?
//! assert!(server.requests_for("/image.raw").is_empty());
//! # drop(url); Ok(()) }
//! ```

mod answer;
mod connection;
mod content;
mod fault;
mod request;

use std::collections::HashMap;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime};

use anyhow::{Context as _, Result};

pub use content::Content;
pub use fault::Fault;
pub use request::Request;

use crate::net::HOST_ADDRESS;
use answer::Resource;
use fault::Faults;

/// `Last-Modified` of everything; the ETag is what tells versions apart.
const LAST_MODIFIED: &str = "Thu, 01 Jan 2026 00:00:00 GMT";

/// A running server. It stops, and its connections close, when dropped.
#[derive(Debug)]
pub struct ImageServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    started: Instant,
    stopping: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<String, Entry>,
    /// A folder whose files are served where there is no entry.
    folder: Option<PathBuf>,
    requests: Vec<Request>,
    /// Clones of the open connections, to close them at the end.
    streams: HashMap<u64, TcpStream>,
    next_stream: u64,
}

#[derive(Debug)]
struct Entry {
    content: Content,
    faults: Faults,
    credentials: Option<String>,
    /// Part of the ETag; counts replacements.
    version: u64,
}

impl ImageServer {
    /// Starts a server with nothing on it.
    ///
    /// # Errors
    /// When no port of 127.0.0.1 can be had.
    pub fn start() -> Result<Self> {
        Self::start_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
    }

    /// Starts a server at an address of this host's.
    ///
    /// # Errors
    /// When the address cannot be had.
    pub fn start_at(address: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(address).with_context(|| format!("binding the image server to {address}"))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            started: Instant::now(),
            stopping: AtomicBool::new(false),
            state: Mutex::new(State::default()),
        });
        let theirs = Arc::clone(&shared);
        let acceptor = std::thread::spawn(move || accept(&listener, &theirs));
        Ok(Self { address, shared, acceptor: Some(acceptor) })
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// URL of `path` for programs on this host.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// URL of `path` for guests on the user-mode network.
    pub fn guest_url(&self, path: &str) -> String {
        format!("http://{HOST_ADDRESS}:{}{path}", self.port())
    }

    /// Puts `content` at `path`. What was there is replaced, as when a file is overwritten: a new ETag, faults and credentials stay.
    pub fn add(&self, path: &str, content: Content) {
        let mut state = self.shared.lock();
        match state.entries.get_mut(path) {
            Some(entry) => {
                entry.content = content;
                entry.version += 1;
            }
            None => {
                let entry = Entry { content, faults: Faults::default(), credentials: None, version: 1 };
                state.entries.insert(path.to_owned(), entry);
            }
        }
    }

    /// Serves the files under `folder`, as they are when asked for, where nothing was added.
    pub fn serve_folder(&self, folder: &Path) {
        self.shared.lock().folder = Some(folder.to_owned());
    }

    /// Removes `path`: 404 from now on.
    pub fn remove(&self, path: &str) {
        self.shared.lock().entries.remove(path);
    }

    /// Makes `path` misbehave for the next `times` requests, or for ever. Several faults act together; of several of one
    /// kind, one after the other.
    pub fn fault(&self, path: &str, fault: Fault, times: Option<u32>) {
        if let Some(entry) = self.shared.lock().entries.get_mut(path) {
            entry.faults.add(fault, times);
        }
    }

    /// Ends all faults of `path`.
    pub fn clear_faults(&self, path: &str) {
        if let Some(entry) = self.shared.lock().entries.get_mut(path) {
            entry.faults.clear();
        }
    }

    /// Wants HTTP basic authentication for `path`.
    pub fn require_basic_auth(&self, path: &str, user: &str, password: &str) {
        if let Some(entry) = self.shared.lock().entries.get_mut(path) {
            entry.credentials = Some(format!("{user}:{password}"));
        }
    }

    /// All requests so far, in the order in which they came.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.lock().requests.clone()
    }

    /// The requests for `path`.
    pub fn requests_for(&self, path: &str) -> Vec<Request> {
        self.shared.lock().requests.iter().filter(|request| request.path == path).cloned().collect()
    }

    /// Forgets the requests so far.
    pub fn clear_requests(&self) {
        self.shared.lock().requests.clear();
    }

    /// Closes every open connection, as when the server is restarted; new ones are served.
    pub fn drop_connections(&self) {
        self.shared.close_all();
    }
}

impl Drop for ImageServer {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        // Wakes the acceptor.
        drop(TcpStream::connect(self.address));
        if let Some(acceptor) = self.acceptor.take() {
            // It cannot have panicked with anything of use to us.
            drop(acceptor.join());
        }
        self.shared.close_all();
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.is_stopping() {
            return;
        }
        let Ok(stream) = stream else { continue };
        let Ok(twin) = stream.try_clone() else { continue };
        let number = {
            let mut state = shared.lock();
            state.next_stream += 1;
            let number = state.next_stream;
            state.streams.insert(number, twin);
            number
        };
        let theirs = Arc::clone(shared);
        // Detached: it ends when its connection closes, which the server's drop sees to.
        drop(std::thread::spawn(move || {
            // A client that goes away is no fault of ours; what it got is in the record.
            drop(connection::serve(&stream, &theirs));
            drop(stream.shutdown(Shutdown::Both));
            theirs.lock().streams.remove(&number);
        }));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    fn close_all(&self) {
        for stream in self.lock().streams.values() {
            // Already closed is closed enough.
            drop(stream.shutdown(Shutdown::Both));
        }
    }

    /// What is at `path`, and the faults that act on this request.
    fn look_up(&self, path: &str) -> Option<Result<(Resource, Content, Vec<Fault>)>> {
        let mut state = self.lock();
        let Some(entry) = state.entries.get_mut(path) else {
            return state.folder.as_deref().and_then(|folder| file_in(folder, path)).map(Ok);
        };
        let faults = entry.faults.take();
        if faults.contains(&Fault::ChangingEtag) {
            entry.version += 1;
        }
        let content = entry.content.clone();
        let (version, credentials) = (entry.version, entry.credentials.clone());
        Some(content.len_bytes().map(|len_bytes| {
            let etag = format!("\"{len_bytes:x}-{version}\"");
            (Resource { len_bytes, etag, last_modified: LAST_MODIFIED, credentials }, content, faults)
        }))
    }

    /// Adds a request to the record, and gives its place.
    fn record(&self, request: Request) -> usize {
        let mut state = self.lock();
        state.requests.push(request);
        state.requests.len() - 1
    }

    fn amend(&self, place: usize, change: impl FnOnce(&mut Request)) {
        if let Some(request) = self.lock().requests.get_mut(place) {
            change(request);
        }
    }
}

/// The file of that path in a folder that is served; none outside of it.
fn file_in(folder: &Path, path: &str) -> Option<(Resource, Content, Vec<Fault>)> {
    let inside = Path::new(path.trim_start_matches('/'));
    if inside.components().any(|part| !matches!(part, Component::Normal(_))) {
        return None;
    }
    let file = folder.join(inside);
    let facts = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let changed = facts.modified().ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_nanos();
    let etag = format!("\"{:x}-{changed:x}\"", facts.len());
    let resource = Resource { len_bytes: facts.len(), etag, last_modified: LAST_MODIFIED, credentials: None };
    Some((resource, Content::File(file), Vec::new()))
}

#[cfg(test)]
mod tests;
