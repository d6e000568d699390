//! The listener and its connections: one thread each, TLS when asked for, and the scripted faults.

use super::fault::{Endpoint, Fault, merge_patch};
use super::record::{Heartbeat, RecordedRequest, split_target};
use super::reply::{self, ApiError, Reply};
use super::routes::{Call, Outcome, handle};
use super::wire::{Headers, MessageReader, RequestHead, WireError, write_message};
use super::{Shared, inspection};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, SystemTime};

/// More than any limit of the API, so that the refusal comes from the API and not from the transport.
const MAX_BODY_BYTES: u64 = 64 * 1024 * 1024;
/// How often a sleeping fault looks whether the conductor is being stopped.
const STOP_CHECK: Duration = Duration::from_millis(50);

/// Accepts connections until the conductor stops.
pub(crate) fn accept_loop(shared: &Arc<Shared>, listener: &TcpListener, tls: Option<&Arc<ServerConfig>>) {
    for connection in 1u64.. {
        let Ok((stream, _)) = listener.accept() else { return };
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        if let Ok(handle) = stream.try_clone() {
            shared.track(handle);
        }
        let shared = Arc::clone(shared);
        let tls = tls.map(Arc::clone);
        thread::spawn(move || serve(&shared, stream, tls, connection));
    }
}

fn serve(shared: &Arc<Shared>, tcp: TcpStream, tls: Option<Arc<ServerConfig>>, connection: u64) {
    let Ok(control) = tcp.try_clone() else { return };
    // Small answers must not wait for the client's delayed acknowledgement; without it they are only slower.
    drop(tcp.set_nodelay(true));
    let base_scheme = if tls.is_some() { "https" } else { "http" };
    match tls {
        None => {
            requests(shared, &mut { tcp }, &control, connection, base_scheme);
        }
        Some(config) => {
            let Ok(session) = ServerConnection::new(config) else { return };
            let mut stream = StreamOwned::new(session, tcp);
            if requests(shared, &mut stream, &control, connection, base_scheme) == End::Proper {
                stream.conn.send_close_notify();
                drop(stream.flush()); // the client may be gone
            }
        }
    }
    drop(control.shutdown(Shutdown::Both)); // already closed is as good
}

/// How a connection ends.
#[derive(PartialEq, Eq)]
enum End {
    /// As HTTP and TLS want it.
    Proper,
    /// In the middle of things.
    Abrupt,
}

/// What to do with a connection after a request.
#[derive(PartialEq, Eq)]
enum After {
    Keep,
    Close(End),
}

fn requests(
    shared: &Arc<Shared>,
    mut stream: &mut (impl Read + Write),
    control: &TcpStream,
    connection: u64,
    scheme: &str,
) -> End {
    let mut reader = MessageReader::default();
    loop {
        let head = match reader.request_head(&mut stream) {
            Ok(head) => head,
            Err(WireError::Malformed { .. }) => {
                let error = ApiError::web(400, "The server could not comply with the request.");
                drop(answer(shared, &mut stream, &outcome_of(error), true, None)); // the client may be gone
                return End::Proper;
            }
            Err(_) => return End::Proper,
        };
        if head.headers.get("expect").is_some_and(|v| v.eq_ignore_ascii_case("100-continue"))
            && write_message(&mut stream, "HTTP/1.1 100 Continue", &Headers::default(), b"").is_err()
        {
            return End::Abrupt;
        }
        let Ok(body) = reader.request_body(&mut stream, &head.headers, MAX_BODY_BYTES) else { return End::Abrupt };
        if let After::Close(end) = respond(shared, &mut stream, control, connection, scheme, &head, body) {
            return end;
        }
    }
}

fn outcome_of(error: ApiError) -> Outcome {
    Outcome { reply: Reply::from(error), version: super::version::MIN_VERSION, heartbeat: None }
}

fn respond(
    shared: &Arc<Shared>,
    stream: &mut impl Write,
    control: &TcpStream,
    connection: u64,
    scheme: &str,
    head: &RequestHead,
    body: Vec<u8>,
) -> After {
    let (path, query) = split_target(&head.target);
    let sequence = record(shared, connection, head, &path, &query, body.clone());
    let fault = Endpoint::of_path(&path).and_then(|endpoint| shared.lock().faults.take(endpoint));
    if let Some(delay) = shared.lock().delay {
        sleep(shared, delay);
    }
    if fault.is_some() {
        note(shared, sequence, |r| r.faulted = true);
    }
    match &fault {
        Some(Fault::Hang(time)) => {
            sleep(shared, *time);
            return After::Close(End::Abrupt);
        }
        Some(Fault::Reset) => {
            reset(control);
            return After::Close(End::Abrupt);
        }
        Some(Fault::Answer { status, content_type, body }) => {
            note(shared, sequence, |r| r.status = Some(*status));
            return raw_answer(stream, *status, content_type, body);
        }
        Some(Fault::Delay(time)) => sleep(shared, *time),
        _ => {}
    }
    let host = head.headers.get("host").unwrap_or("localhost");
    let base_url = format!("{scheme}://{host}");
    let call = Call {
        method: if head.method == "HEAD" { "GET" } else { &head.method },
        path: &path,
        query: &query,
        headers: &head.headers,
        body: &body,
        base_url: &base_url,
    };
    let mut outcome = match &fault {
        Some(Fault::Status(status)) => scripted_refusal(&path, *status),
        _ => handle(&mut shared.lock(), &call),
    };
    if let (Some(Fault::Patch(patch)), Some(body)) = (&fault, outcome.reply.body.as_mut()) {
        merge_patch(body, patch);
    }
    settle(shared, sequence, &path, &body, &outcome);
    let cut = match fault {
        Some(Fault::LoseReply) => return After::Close(End::Abrupt),
        Some(Fault::CutReply(bytes)) => Some(bytes),
        _ => None,
    };
    let written = answer(shared, stream, &outcome, head.headers.wants_close(), cut);
    match written {
        Ok(()) if cut.is_none() && !head.headers.wants_close() => After::Keep,
        Ok(()) if cut.is_none() => After::Close(End::Proper),
        _ => After::Close(End::Abrupt),
    }
}

fn scripted_refusal(path: &str, status: u16) -> Outcome {
    let mut outcome = outcome_of(ApiError::fault(status, format!("Scripted fault {status}.")));
    if Endpoint::of_path(path) == Some(Endpoint::Heartbeat) {
        let node = path.trim_end_matches('/').trim_start_matches("/v1/heartbeat/").to_owned();
        outcome.heartbeat = Some((node, super::record::HeartbeatEffect::Refused));
    }
    outcome
}

fn record(
    shared: &Shared,
    connection: u64,
    head: &RequestHead,
    path: &str,
    query: &[(String, String)],
    body: Vec<u8>,
) -> u64 {
    let mut state = shared.lock();
    let sequence = super::to_u64(state.requests.len()) + 1;
    state.requests.push(RecordedRequest {
        sequence,
        at: SystemTime::now(),
        since_start: shared.started.elapsed(),
        connection,
        method: head.method.clone(),
        target: head.target.clone(),
        path: path.to_owned(),
        query: query.to_vec(),
        headers: head.headers.clone(),
        body,
        status: None,
        refusal: None,
        faulted: false,
    });
    drop(state);
    shared.changed.notify_all();
    sequence
}

fn note(shared: &Shared, sequence: u64, change: impl FnOnce(&mut RecordedRequest)) {
    let mut state = shared.lock();
    if let Some(request) = state.requests.iter_mut().find(|r| r.sequence == sequence) {
        change(request);
    }
    drop(state);
    shared.changed.notify_all();
}

/// Notes the answer, and starts what a real conductor does in the background.
fn settle(shared: &Arc<Shared>, sequence: u64, path: &str, body: &[u8], outcome: &Outcome) {
    let mut state = shared.lock();
    if let Some((node, effect)) = &outcome.heartbeat {
        state.heartbeats.push(Heartbeat {
            sequence,
            since_start: shared.started.elapsed(),
            node: node.clone(),
            body: serde_json::from_slice(body).unwrap_or_default(),
            status: outcome.reply.status,
            effect: *effect,
        });
    }
    let hooks_time = state.settings.inspection_hooks;
    drop(state);
    note(shared, sequence, |r| {
        r.status = Some(outcome.reply.status);
        r.refusal = outcome.reply.body.clone().filter(|_| outcome.reply.status >= 400);
    });
    if Endpoint::of_path(path) == Some(Endpoint::Inspection) && outcome.reply.status == 202 {
        let shared = Arc::clone(shared);
        thread::spawn(move || {
            sleep(&shared, hooks_time);
            shared.lock().nodes.iter_mut().for_each(inspection::finish);
            shared.changed.notify_all();
        });
    }
}

fn answer(
    shared: &Shared,
    stream: &mut impl Write,
    outcome: &Outcome,
    close: bool,
    cut: Option<usize>,
) -> std::io::Result<()> {
    let max = shared.lock().settings.max_version;
    let status = outcome.reply.status;
    let body = outcome.reply.body.as_ref().map(ToString::to_string).unwrap_or_default();
    let content_type = outcome.reply.body.is_some().then_some("application/json");
    let mut headers = reply::headers(outcome.version, max, content_type, body.len());
    if close {
        headers.push("Connection", "close");
    }
    let first_line = format!("HTTP/1.1 {status} {}", reply::reason(status));
    let Some(cut) = cut else { return write_message(stream, &first_line, &headers, body.as_bytes()) };
    let mut whole = Vec::new();
    write_message(&mut whole, &first_line, &headers, body.as_bytes())?;
    whole.truncate(cut);
    stream.write_all(&whole)?;
    stream.flush()
}

fn raw_answer(stream: &mut impl Write, status: u16, content_type: &str, body: &[u8]) -> After {
    let mut headers = Headers::default();
    headers.push("Content-Length", body.len().to_string());
    if !content_type.is_empty() {
        headers.push("Content-Type", content_type);
    }
    let first_line = format!("HTTP/1.1 {status} {}", reply::reason(status));
    if write_message(stream, &first_line, &headers, body).is_ok() { After::Keep } else { After::Close(End::Abrupt) }
}

/// Makes the coming close a reset: no lingering, so the kernel sends RST (socket(7), `SO_LINGER`).
fn reset(control: &TcpStream) {
    // Where it fails the peer sees an ordinary close, which is an error for it all the same.
    rustix::net::sockopt::set_socket_linger(control, Some(Duration::ZERO)).ok();
}

/// Sleeps, but not past the end of the conductor.
fn sleep(shared: &Shared, time: Duration) {
    let end = std::time::Instant::now() + time;
    while !shared.stopping.load(Ordering::SeqCst) {
        let left = end.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() {
            return;
        }
        thread::sleep(left.min(STOP_CHECK));
    }
}
