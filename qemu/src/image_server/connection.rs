//! One connection: requests in, answers out, faults of the wire.

use std::io::{BufReader, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::answer::{Answer, answer};
use super::content::Body;
use super::fault::Fault;
use super::{Shared, request};

/// How often a sleeping connection looks whether the server stops.
const NAP: Duration = Duration::from_millis(20);

/// Answers requests until the client or a fault ends the connection.
pub(super) fn serve(stream: &TcpStream, shared: &Shared) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    while !shared.is_stopping() {
        let Some(request) = request::read(&mut reader, || shared.started.elapsed())? else { return Ok(()) };
        let close = request.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        // A body is of no use to us, so the connection is not used again after one.
        let has_body = request.header("content-length").is_some_and(|len| len != "0")
            || request.header("transfer-encoding").is_some();
        let path = percent_encoding::percent_decode_str(&request.path).decode_utf8_lossy().into_owned();
        let head_only = request.method == "HEAD";
        let place = shared.record(request.clone());
        let (given, body, faults) = match shared.look_up(&path) {
            None => (Answer::text(404, "nothing here\n"), None, Vec::new()),
            Some(Err(error)) => (Answer::text(500, &format!("{error:#}\n")), None, Vec::new()),
            Some(Ok((resource, content, faults))) => {
                (answer(&request, &resource, &faults), Some(content.open()?), faults)
            }
        };
        let mut sender = Sender { stream, shared, place, faults };
        if !sender.send(&given, body.as_ref().filter(|_| !head_only), head_only)? || close || has_body {
            return Ok(());
        }
    }
    Ok(())
}

struct Sender<'a> {
    stream: &'a TcpStream,
    shared: &'a Shared,
    place: usize,
    faults: Vec<Fault>,
}

impl Sender<'_> {
    /// Sends an answer; false when the connection is to be closed.
    fn send(&mut self, given: &Answer, body: Option<&Body>, head_only: bool) -> Result<bool> {
        if let Some(wait) = self.find(|fault| if let Fault::Delay(wait) = fault { Some(*wait) } else { None }) {
            self.sleep(wait);
        }
        if self.faults.contains(&Fault::NoAnswer) {
            return Ok(false);
        }
        self.shared.amend(self.place, |request| request.status = given.status);
        let mut head = format!("HTTP/1.1 {} {}\r\n", given.status, phrase(given.status));
        for (name, value) in &given.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        self.stream.write_all(head.as_bytes())?;
        if head_only {
            self.shared.amend(self.place, |request| request.complete = true);
            return Ok(true);
        }
        let whole = match (&given.text, body) {
            (Some(text), _) => {
                self.stream.write_all(text.as_bytes())?;
                self.sent(u64::try_from(text.len())?);
                true
            }
            (None, Some(body)) => self.send_content(given, body)?,
            (None, None) => true,
        };
        let claims_more = self.faults.iter().any(|fault| matches!(fault, Fault::ClaimLength(_)));
        self.shared.amend(self.place, |request| request.complete = whole);
        Ok(whole && !claims_more)
    }

    /// Sends the content; false when a fault ends it early.
    fn send_content(&self, given: &Answer, body: &Body) -> Result<bool> {
        let cut = self.find(|fault| if let Fault::CutAfter(after) = fault { Some(*after) } else { None });
        let stall = self.find(|fault| if let Fault::StallAfter(after) = fault { Some(*after) } else { None });
        let stop = cut.into_iter().chain(stall).min().unwrap_or(u64::MAX);
        let end = given.len_bytes.min(stop);
        let corrupt = self.find(|fault| if let Fault::Corrupt(at) = fault { Some(*at) } else { None });
        let pace = Pace::of(&self.faults);
        let started = Instant::now();
        let mut done = 0;
        while done < end {
            if self.shared.is_stopping() {
                return Ok(false);
            }
            let at = given.start + done;
            let mut chunk = body.read(at, (end - done).min(pace.piece_bytes))?;
            if let Some(byte) =
                corrupt.and_then(|place| place.checked_sub(at)).and_then(|i| chunk.get_mut(usize::try_from(i).ok()?))
            {
                *byte = !*byte;
            }
            self.send_chunk(&chunk, given.chunked)?;
            done += u64::try_from(chunk.len())?;
            self.sent(u64::try_from(chunk.len())?);
            self.sleep(pace.rest(started, done));
        }
        if done < given.len_bytes {
            // The stall comes first if it is the nearer one; the client or the server's end ends it.
            while stall == Some(done) && !self.shared.is_stopping() && self.is_open() {
                self.sleep(NAP);
            }
            return Ok(false);
        }
        if given.chunked {
            (&mut &*self.stream).write_all(b"0\r\n\r\n")?;
        }
        Ok(true)
    }

    fn send_chunk(&self, chunk: &[u8], chunked: bool) -> Result<()> {
        let mut stream = self.stream;
        if chunked {
            stream.write_all(format!("{:x}\r\n", chunk.len()).as_bytes())?;
            stream.write_all(chunk)?;
            stream.write_all(b"\r\n")?;
        } else {
            stream.write_all(chunk)?;
        }
        Ok(())
    }

    /// Whether the client still holds the connection, without taking bytes from it.
    fn is_open(&self) -> bool {
        let mut byte = [0];
        let nonblocking = self.stream.set_nonblocking(true);
        let peeked = self.stream.peek(&mut byte);
        let blocking = self.stream.set_nonblocking(false);
        let gone = match peeked {
            Ok(count) => count == 0,
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        };
        nonblocking.is_ok() && blocking.is_ok() && !gone
    }

    fn sent(&self, bytes: u64) {
        self.shared.amend(self.place, |request| request.sent_bytes += bytes);
    }

    fn find<T>(&self, pick: impl FnMut(&Fault) -> Option<T>) -> Option<T> {
        self.faults.iter().find_map(pick)
    }

    /// Sleeps, but not past the server's end.
    fn sleep(&self, wait: Duration) {
        let until = Instant::now() + wait;
        while !self.shared.is_stopping() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(NAP));
        }
    }
}

/// How fast a body is sent.
struct Pace {
    piece_bytes: u64,
    bytes_per_second: Option<u64>,
    pause: Duration,
}

impl Pace {
    fn of(faults: &[Fault]) -> Self {
        let mut pace = Self { piece_bytes: u64::MAX, bytes_per_second: None, pause: Duration::ZERO };
        for fault in faults {
            match fault {
                Fault::Throttle(speed) => {
                    let speed = (*speed).max(1);
                    pace.bytes_per_second = Some(speed);
                    // Twenty pieces a second.
                    pace.piece_bytes = pace.piece_bytes.min((speed / 20).max(1));
                }
                Fault::Trickle(piece, pause) => {
                    pace.piece_bytes = pace.piece_bytes.min((*piece).max(1));
                    pace.pause = *pause;
                }
                _ => {}
            }
        }
        pace
    }

    /// Time to wait after `done` bytes of a body that was begun at `started`.
    fn rest(&self, started: Instant, done: u64) -> Duration {
        let due = self.bytes_per_second.map_or(Duration::ZERO, |speed| {
            Duration::from_millis(done.saturating_mul(1000) / speed).saturating_sub(started.elapsed())
        });
        due.max(self.pause)
    }
}

fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        206 => "Partial Content",
        302 => "Found",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        416 => "Range Not Satisfiable",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Other",
    }
}
