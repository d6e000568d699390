//! HTTP/1.1 messages over a blocking stream: what both the stand-in conductor and its agent client speak.
//!
//! `httparse` reads the heads; this file adds only what sits around them: filling the buffer, the body by length, by
//! chunks or until the end of the stream (RFC 9112 section 6), and limits. A HTTP library is not used here because the
//! conductor has to misbehave on purpose (hang, reset, cut an answer) and the client has to send broken requests.

use std::io::{self, Read, Write};

/// The longest request or response head read, in bytes.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// The most header fields read in one head.
const MAX_HEADERS: usize = 100;
const READ_CHUNK_BYTES: usize = 16 * 1024;

/// Why a message could not be read.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The peer closed the connection between two messages.
    #[error("the connection was closed before a message began")]
    Closed,
    /// Reading or writing the connection failed.
    #[error("reading an HTTP message")]
    Io(#[from] io::Error),
    /// What came is not HTTP/1.1.
    #[error("malformed HTTP message: {what}")]
    Malformed {
        /// What was wrong.
        what: String,
    },
    /// The body is larger than the reader accepts.
    #[error("the body is larger than {limit_bytes} bytes")]
    TooLarge {
        /// The limit.
        limit_bytes: u64,
    },
}

/// Header fields in the order they were sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(pub Vec<(String, String)>);

impl Headers {
    /// The first field of that name, compared without case.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    /// Appends a field.
    pub fn push(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.push((name.into(), value.into()));
    }

    fn content_length(&self) -> Result<Option<u64>, WireError> {
        let Some(text) = self.get("content-length") else { return Ok(None) };
        text.trim().parse().map(Some).map_err(|_error| malformed(format!("content-length {text:?} is not a number"))) // the number parser adds nothing
    }

    fn is_chunked(&self) -> bool {
        self.get("transfer-encoding").is_some_and(|v| v.to_ascii_lowercase().contains("chunked"))
    }

    /// Whether the peer wants the connection closed after this message.
    #[must_use]
    pub fn wants_close(&self) -> bool {
        self.get("connection").is_some_and(|v| v.eq_ignore_ascii_case("close"))
    }
}

/// The head of a request.
#[derive(Debug, Clone)]
pub struct RequestHead {
    /// `GET`, `POST`, ...
    pub method: String,
    /// Path and query as sent.
    pub target: String,
    /// Header fields.
    pub headers: Headers,
}

/// A response as it came, whatever its status.
#[derive(Debug, Clone)]
pub struct RawResponse {
    /// Status code.
    pub status: u16,
    /// Header fields.
    pub headers: Headers,
    /// The body, transfer coding removed.
    pub body: Vec<u8>,
}

impl RawResponse {
    /// The body as text, with replacement characters for what is not UTF-8.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON, or `None`.
    #[must_use]
    pub fn json(&self) -> Option<serde_json::Value> {
        serde_json::from_slice(&self.body).ok()
    }
}

/// Reads messages one after the other from a stream, keeping what was read ahead.
#[derive(Debug, Default)]
pub struct MessageReader {
    buffer: Vec<u8>,
}

impl MessageReader {
    /// Reads a request head.
    pub fn request_head(&mut self, stream: &mut impl Read) -> Result<RequestHead, WireError> {
        loop {
            let mut fields = [httparse::EMPTY_HEADER; MAX_HEADERS];
            let mut parsed = httparse::Request::new(&mut fields);
            match parsed.parse(&self.buffer) {
                Ok(httparse::Status::Complete(length)) => {
                    let head = RequestHead {
                        method: parsed.method.unwrap_or_default().to_owned(),
                        target: parsed.path.unwrap_or_default().to_owned(),
                        headers: headers_of(parsed.headers),
                    };
                    self.buffer.drain(..length);
                    return Ok(head);
                }
                Ok(httparse::Status::Partial) => self.fill_head(stream)?,
                Err(e) => return Err(malformed(e.to_string())),
            }
        }
    }

    /// Reads a response, its body included. `head_only` is for answers to HEAD.
    pub fn response(
        &mut self,
        stream: &mut impl Read,
        head_only: bool,
        limit_bytes: u64,
    ) -> Result<RawResponse, WireError> {
        loop {
            let mut fields = [httparse::EMPTY_HEADER; MAX_HEADERS];
            let mut parsed = httparse::Response::new(&mut fields);
            match parsed.parse(&self.buffer) {
                Ok(httparse::Status::Complete(length)) => {
                    let status = parsed.code.unwrap_or_default();
                    let headers = headers_of(parsed.headers);
                    self.buffer.drain(..length);
                    if (100..200).contains(&status) {
                        continue; // interim answers, RFC 9110 section 15.2
                    }
                    let body = if head_only || status == 204 || status == 304 {
                        Vec::new()
                    } else if headers.is_chunked() {
                        self.chunked_body(stream, limit_bytes)?
                    } else if let Some(length) = headers.content_length()? {
                        self.sized_body(stream, length, limit_bytes)?
                    } else {
                        self.body_until_end(stream, limit_bytes)?
                    };
                    return Ok(RawResponse { status, headers, body });
                }
                Ok(httparse::Status::Partial) => self.fill_head(stream)?,
                Err(e) => return Err(malformed(e.to_string())),
            }
        }
    }

    /// Reads the body of a request whose head was just read.
    pub fn request_body(
        &mut self,
        stream: &mut impl Read,
        headers: &Headers,
        limit_bytes: u64,
    ) -> Result<Vec<u8>, WireError> {
        if headers.is_chunked() {
            return self.chunked_body(stream, limit_bytes);
        }
        match headers.content_length()? {
            Some(length) => self.sized_body(stream, length, limit_bytes),
            None => Ok(Vec::new()),
        }
    }

    /// Whether bytes were read ahead that belong to the next message.
    #[must_use]
    pub fn has_buffered(&self) -> bool {
        !self.buffer.is_empty()
    }

    fn fill_head(&mut self, stream: &mut impl Read) -> Result<(), WireError> {
        if self.buffer.len() > MAX_HEAD_BYTES {
            return Err(malformed(format!("the head is longer than {MAX_HEAD_BYTES} bytes")));
        }
        let was_empty = self.buffer.is_empty();
        if self.fill(stream)? {
            return Ok(());
        }
        if was_empty { Err(WireError::Closed) } else { Err(malformed("the stream ended inside a head".to_owned())) }
    }

    /// Reads some bytes; false at the end of the stream.
    fn fill(&mut self, stream: &mut impl Read) -> Result<bool, WireError> {
        let mut chunk = [0u8; READ_CHUNK_BYTES];
        loop {
            match stream.read(&mut chunk) {
                Ok(0) => return Ok(false),
                Ok(n) => {
                    self.buffer.extend_from_slice(&chunk[..n]);
                    return Ok(true);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // TLS without close_notify: the end of the stream, as every HTTP client takes it.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn sized_body(&mut self, stream: &mut impl Read, length: u64, limit_bytes: u64) -> Result<Vec<u8>, WireError> {
        if length > limit_bytes {
            return Err(WireError::TooLarge { limit_bytes });
        }
        let length = usize::try_from(length).map_err(|_error| WireError::TooLarge { limit_bytes })?; // 32-bit hosts only
        while self.buffer.len() < length {
            if !self.fill(stream)? {
                return Err(malformed(format!("the body ended at {} of {length} bytes", self.buffer.len())));
            }
        }
        Ok(self.buffer.drain(..length).collect())
    }

    fn body_until_end(&mut self, stream: &mut impl Read, limit_bytes: u64) -> Result<Vec<u8>, WireError> {
        while self.fill(stream)? {
            if to_u64(self.buffer.len()) > limit_bytes {
                return Err(WireError::TooLarge { limit_bytes });
            }
        }
        Ok(std::mem::take(&mut self.buffer))
    }

    fn chunked_body(&mut self, stream: &mut impl Read, limit_bytes: u64) -> Result<Vec<u8>, WireError> {
        let mut body = Vec::new();
        loop {
            let line = self.line(stream)?;
            let digits = line.split(';').next().unwrap_or_default().trim();
            let size = u64::from_str_radix(digits, 16)
                .map_err(|_error| malformed(format!("chunk size {digits:?} is not a number")))?; // as above
            if to_u64(body.len()).saturating_add(size) > limit_bytes {
                return Err(WireError::TooLarge { limit_bytes });
            }
            if size == 0 {
                while !self.line(stream)?.is_empty() {} // trailers
                return Ok(body);
            }
            body.extend(self.sized_body(stream, size, limit_bytes)?);
            if !self.line(stream)?.is_empty() {
                return Err(malformed("a chunk is longer than its size line says".to_owned()));
            }
        }
    }

    fn line(&mut self, stream: &mut impl Read) -> Result<String, WireError> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|w| w == b"\r\n") {
                let line = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
                self.buffer.drain(..end + 2);
                return Ok(line);
            }
            if self.buffer.len() > MAX_HEAD_BYTES || !self.fill(stream)? {
                return Err(malformed("a line of a chunked body does not end".to_owned()));
            }
        }
    }
}

/// Writes a head and a body in one go, as one TLS record or segment where it fits.
pub fn write_message(stream: &mut impl Write, first_line: &str, headers: &Headers, body: &[u8]) -> io::Result<()> {
    let mut message = String::with_capacity(512);
    message.push_str(first_line);
    message.push_str("\r\n");
    for (name, value) in &headers.0 {
        message.push_str(name);
        message.push_str(": ");
        message.push_str(value);
        message.push_str("\r\n");
    }
    message.push_str("\r\n");
    let mut bytes = message.into_bytes();
    bytes.extend_from_slice(body);
    stream.write_all(&bytes)?;
    stream.flush()
}

fn headers_of(fields: &[httparse::Header<'_>]) -> Headers {
    Headers(fields.iter().map(|h| (h.name.to_owned(), String::from_utf8_lossy(h.value).trim().to_owned())).collect())
}

fn malformed(what: String) -> WireError {
    WireError::Malformed { what }
}

fn to_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn response(text: &str) -> Result<RawResponse, WireError> {
        MessageReader::default().response(&mut text.as_bytes(), false, 1 << 20)
    }

    #[test]
    fn a_body_is_read_by_length_by_chunks_and_to_the_end() {
        for (case, text) in [
            ("length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"),
            ("chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n"),
            ("to the end", "HTTP/1.1 200 OK\r\n\r\nhello"),
            ("after 100", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"),
        ] {
            assert_eq!(response(text).unwrap().text(), "hello", "{case}");
        }
    }

    #[test]
    fn cut_and_broken_messages_are_errors() {
        for (case, text) in [
            ("cut body", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello"),
            ("cut head", "HTTP/1.1 200 OK\r\nContent-Le"),
            ("bad chunk size", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
            ("not http", "SSH-2.0-OpenSSH\r\n\r\n"),
            ("bad length", "HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n"),
        ] {
            assert!(matches!(response(text), Err(WireError::Malformed { .. })), "{case}");
        }
        assert!(matches!(response(""), Err(WireError::Closed)));
    }

    #[test]
    fn two_requests_in_one_read_are_kept_apart() {
        let mut stream = "POST /a HTTP/1.1\r\nContent-Length: 2\r\n\r\nhiGET /b HTTP/1.1\r\n\r\n".as_bytes();
        let mut reader = MessageReader::default();
        let first = reader.request_head(&mut stream).unwrap();
        assert_eq!(reader.request_body(&mut stream, &first.headers, 10).unwrap(), b"hi");
        assert_eq!(reader.request_head(&mut stream).unwrap().target, "/b");
        assert!(matches!(reader.request_head(&mut stream), Err(WireError::Closed)));
    }

    proptest! {
        #[test]
        fn foreign_bytes_never_panic(bytes: Vec<u8>) {
            let mut reader = MessageReader::default();
            drop(reader.response(&mut bytes.as_slice(), false, 4096));
            let mut reader = MessageReader::default();
            drop(reader.request_head(&mut bytes.as_slice()));
        }
    }
}
