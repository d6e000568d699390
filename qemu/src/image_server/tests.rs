//! The server as a client sees it: plain sockets, so that nothing is retried or repaired on the way.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use super::*;

struct Reply {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Reply {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// Sends one request and reads until the connection closes.
fn fetch(server: &ImageServer, method: &str, path: &str, headers: &str) -> Reply {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n").unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    split(&bytes)
}

fn split(bytes: &[u8]) -> Reply {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Reply { status: 0, head: String::new(), body: bytes.to_vec() };
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    Reply { status: head[9..12].parse().unwrap(), head, body: bytes[end + 4..].to_vec() }
}

fn get(server: &ImageServer, headers: &str) -> Reply {
    fetch(server, "GET", "/i", headers)
}

/// A server with the hundred bytes 0, 1, 2, ... at `/i`.
fn hundred() -> (ImageServer, Vec<u8>) {
    let server = ImageServer::start().unwrap();
    let bytes: Vec<u8> = (0..100).collect();
    server.add("/i", Content::bytes(bytes.clone()));
    (server, bytes)
}

#[test]
fn whole_part_and_head_are_served_and_recorded() {
    let (server, bytes) = hundred();
    let whole = get(&server, "");
    assert_eq!((whole.status, whole.body.as_slice()), (200, bytes.as_slice()));
    let etag = whole.header("ETag").unwrap().to_owned();
    let part = get(&server, &format!("Range: bytes=90-\r\nIf-Range: {etag}\r\n"));
    assert_eq!(
        (part.status, part.body.as_slice(), part.header("Content-Range")),
        (206, &bytes[90..], Some("bytes 90-99/100"))
    );
    let head = fetch(&server, "HEAD", "/i", "");
    assert_eq!((head.status, head.header("Content-Length"), head.body.len()), (200, Some("100"), 0));
    assert_eq!(fetch(&server, "GET", "/other", "").status, 404);
    let seen: Vec<_> =
        server.requests().into_iter().map(|r| (r.method, r.path, r.status, r.sent_bytes, r.complete)).collect();
    let expected =
        [("GET", "/i", 200, 100), ("GET", "/i", 206, 10), ("HEAD", "/i", 200, 0), ("GET", "/other", 404, 13)];
    let expected: Vec<_> =
        expected.iter().map(|(m, p, s, n)| ((*m).to_owned(), (*p).to_owned(), *s, *n, true)).collect();
    assert_eq!(seen, expected);
    assert_eq!(server.requests_for("/i")[1].header("range"), Some("bytes=90-"));
}

#[test]
fn folder_is_served_as_it_is_and_nothing_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("served");
    std::fs::create_dir_all(folder.join("sub")).unwrap();
    std::fs::write(dir.path().join("secret"), "s").unwrap();
    let (server, _) = hundred();
    server.serve_folder(&folder);
    assert_eq!(fetch(&server, "GET", "/sub/file", "").status, 404);
    std::fs::write(folder.join("sub/file"), "content").unwrap();
    assert_eq!(fetch(&server, "GET", "/sub/file", "").body, b"content");
    assert_eq!(fetch(&server, "GET", "/i", "").body.len(), 100, "what was added stays");
    for path in ["/sub", "/../secret", "/sub/../../secret", "/%2e%2e/secret", "//", "/"] {
        assert_eq!(fetch(&server, "GET", path, "").status, 404, "{path}");
    }
}

#[test]
fn connection_is_kept_for_the_next_request() {
    let (server, bytes) = hundred();
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    for _ in 0..3 {
        stream.write_all(b"GET /i HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut got = Vec::new();
        while !got.ends_with(&bytes) {
            let mut buffer = [0; 64];
            let count = stream.read(&mut buffer).unwrap();
            assert!(count > 0);
            got.extend(&buffer[..count]);
        }
    }
    assert_eq!(server.requests().len(), 3);
}

#[test]
fn cut_connection_gives_the_ordered_bytes_and_wears_off() {
    let (server, bytes) = hundred();
    server.fault("/i", Fault::CutAfter(30), Some(1));
    let cut = get(&server, "");
    assert_eq!((cut.header("Content-Length"), cut.body.as_slice()), (Some("100"), &bytes[..30]));
    let rest = get(&server, "Range: bytes=30-\r\n");
    assert_eq!((rest.status, rest.body.as_slice()), (206, &bytes[30..]));
    let seen: Vec<_> = server.requests().iter().map(|r| (r.sent_bytes, r.complete)).collect();
    assert_eq!(seen, [(30, false), (70, true)]);
}

#[test]
fn range_faults_reach_the_wire() {
    let (server, bytes) = hundred();
    let cases: [(Fault, u16, &[u8]); 3] =
        [(Fault::IgnoreRange, 200, &bytes), (Fault::NoRanges, 200, &bytes), (Fault::WrongRange(5), 206, &bytes[55..])];
    for (fault, status, body) in cases {
        server.fault("/i", fault.clone(), Some(1));
        let reply = get(&server, "Range: bytes=50-\r\n");
        assert_eq!((reply.status, reply.body.as_slice()), (status, body), "{fault:?}");
    }
    assert_eq!(get(&server, "Range: bytes=50-\r\n").status, 206, "all used up");
}

#[test]
fn replaced_content_and_changing_etag_defeat_if_range() {
    let (server, bytes) = hundred();
    let etag = get(&server, "").header("ETag").unwrap().to_owned();
    let resume = format!("Range: bytes=50-\r\nIf-Range: {etag}\r\n");
    assert_eq!(get(&server, &resume).status, 206);
    server.fault("/i", Fault::ChangingEtag, Some(1));
    assert_eq!(get(&server, &resume).status, 200);
    let etag = get(&server, "").header("ETag").unwrap().to_owned();
    server.add("/i", Content::bytes(bytes[..60].to_vec()));
    let reply = get(&server, &format!("Range: bytes=50-\r\nIf-Range: {etag}\r\n"));
    assert_eq!((reply.status, reply.body.len()), (200, 60));
    server.remove("/i");
    assert_eq!(get(&server, "").status, 404);
}

#[test]
fn status_faults_come_one_after_the_other_then_content() {
    let (server, _) = hundred();
    server.fault("/i", Fault::Status(503), Some(2));
    server.fault("/i", Fault::Status(404), Some(1));
    let seen: Vec<u16> = (0..4).map(|_| get(&server, "").status).collect();
    assert_eq!(seen, [503, 503, 404, 200]);
    server.fault("/i", Fault::Status(500), None);
    assert_eq!(get(&server, "").status, 500);
    server.clear_faults("/i");
    assert_eq!(get(&server, "").status, 200);
}

#[test]
fn slow_answers_take_their_time() {
    let (server, bytes) = hundred();
    let cases = [
        (Fault::Throttle(250), 390),
        (Fault::Trickle(40, Duration::from_millis(100)), 290),
        (Fault::Delay(Duration::from_millis(200)), 200),
    ];
    for (fault, least) in cases {
        server.fault("/i", fault.clone(), Some(1));
        let start = Instant::now();
        assert_eq!(get(&server, "").body, bytes, "{fault:?}");
        assert!(start.elapsed() >= Duration::from_millis(least), "{fault:?}: {:?}", start.elapsed());
    }
}

#[test]
fn corrupt_byte_is_at_its_place_in_whole_and_part() {
    let (server, bytes) = hundred();
    server.fault("/i", Fault::Corrupt(70), None);
    let whole = get(&server, "").body;
    let wrong: Vec<usize> = (0..100).filter(|i| whole[*i] != bytes[*i]).collect();
    assert_eq!(wrong, [70]);
    assert_eq!(get(&server, "Range: bytes=70-71\r\n").body, [!70, 71]);
    assert_eq!(get(&server, "Range: bytes=71-\r\n").body, bytes[71..]);
}

#[test]
fn stalled_connection_stays_open_until_the_server_ends_it() {
    let (server, bytes) = hundred();
    server.fault("/i", Fault::StallAfter(25), None);
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.write_all(b"GET /i HTTP/1.1\r\n\r\n").unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut got = Vec::new();
    let error = stream.read_to_end(&mut got).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "still open");
    assert_eq!(split(&got).body, bytes[..25]);
    server.drop_connections();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "closed now");
}

#[test]
fn no_answer_redirect_chunks_and_false_length() {
    let (server, bytes) = hundred();
    server.fault("/i", Fault::NoAnswer, Some(1));
    assert_eq!(get(&server, "").status, 0);
    assert_eq!(server.requests()[0].status, 0);
    server.fault("/i", Fault::Redirect(server.url("/j")), Some(1));
    let reply = get(&server, "");
    assert_eq!((reply.status, reply.header("Location")), (302, Some(server.url("/j").as_str())));
    server.fault("/i", Fault::Chunked, Some(1));
    let reply = get(&server, "");
    let expected = [b"64\r\n", bytes.as_slice(), b"\r\n0\r\n\r\n"].concat();
    assert_eq!((reply.header("Content-Length"), reply.body.as_slice()), (None, expected.as_slice()));
    server.fault("/i", Fault::ClaimLength(500), Some(1));
    let reply = get(&server, "");
    assert_eq!((reply.header("Content-Length"), reply.body.len()), (Some("500"), 100));
}

#[test]
fn credentials_open_the_path() {
    let (server, _) = hundred();
    server.require_basic_auth("/i", "user", "secret");
    let reply = get(&server, "");
    assert_eq!((reply.status, reply.header("WWW-Authenticate")), (401, Some("Basic realm=\"images\"")));
    assert_eq!(get(&server, "Authorization: Basic dXNlcjpzZWNyZXQ=\r\n").status, 200);
}

#[test]
fn large_generated_content_has_any_part_and_files_are_read_anew() {
    let server = ImageServer::start().unwrap();
    server.add("/i", Content::Pattern { seed: 5, len_bytes: 1 << 40 });
    let part = get(&server, "Range: bytes=1099511627000-1099511627009\r\n");
    let mut expected = vec![0; 10];
    crate::disk_file::pattern(5, 1_099_511_627_000, &mut expected);
    assert_eq!(part.body, expected);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    server.add("/a b", Content::File(path.clone()));
    assert_eq!(fetch(&server, "GET", "/a%20b", "").status, 500, "gone file");
    std::fs::write(&path, vec![1; 600_000]).unwrap();
    assert_eq!(fetch(&server, "GET", "/a%20b", "").body.len(), 600_000);
}

#[test]
fn many_clients_at_once_and_a_bad_one_among_them() {
    let (server, bytes) = hundred();
    let mut bad = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    bad.write_all(b"garbage\r\n\r\n").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| assert_eq!(get(&server, "").body, bytes));
        }
    });
    assert_eq!(server.requests().len(), 16);
    assert_eq!(bad.read(&mut [0]).unwrap_or(0), 0, "the bad one is closed");
}
