//! Whatever goes wrong, nobody reads in a log, an error or a progress what only the server was to know.

use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;

use super::*;

/// Part of every secret in these tests.
const MARK: &str = "TopSecret7";

/// All that was logged.
#[derive(Clone, Default)]
pub(super) struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }

    /// Everything that this crate says, down to its traces, while `run` runs.
    pub(super) fn during<T>(&self, run: impl FnOnce() -> T) -> T {
        // Other tests pass the same places without a subscriber, and tracing would remember that nobody listens there.
        let _set_before = tracing::subscriber::set_global_default(tracing_subscriber::registry());
        let log = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(tracing::Level::TRACE)
            .with_writer(move || log.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, run)
    }
}

/// An answer that gives back all it was told, as debugging pages do.
fn echo(status: u16, seen: &Seen) -> Reply {
    let page = format!("you sent: {}", seen.head);
    Reply::new(status, "X-Where: over there\r\n", page.as_bytes())
}

fn cases(seen: &Seen, n: usize) -> Reply {
    let path = seen.line.split(['?', ' ']).nth(1).unwrap().rsplit('/').next().unwrap();
    match path {
        "forbidden" => echo(403, seen),
        "busy" => echo(503, seen),
        "away" => Reply::new(302, &format!("Location: ftp://user:{MARK}@h/?sig={MARK}\r\n"), b""),
        "around" => Reply::new(302, &format!("Location: around?sig={MARK}-{n}\r\n"), b""),
        "onwards" => Reply::new(302, &format!("Location: forbidden?signature={MARK}-{n}\r\n"), b""),
        "cut" => Reply::cut(200, TAG, image(), 1000),
        "changed" if n == 1 => Reply::cut(200, TAG, image(), 1000),
        "changed" => Reply::new(200, "ETag: \"v2\"\r\n", image()),
        "noise" => Reply::raw(format!("SSH-2.0-{MARK}\r\n\r\n").as_bytes(), Then::Close),
        "page" => Reply::new(200, "Content-Type: text/html\r\nContent-Encoding: gzip\r\n", b"x"),
        "silent" => Reply::raw(b"", Then::Hang),
        other => panic!("{other}"),
    }
}

#[test]
fn no_failure_tells_what_was_secret_in_the_request() {
    let options = DownloadOptions { timeout: Duration::from_millis(300), retries: 1, ..OPTIONS };
    for path in [
        "forbidden",
        "busy",
        "away",
        "around",
        "onwards",
        "cut",
        "changed",
        "noise",
        "page",
        "silent",
        "refused",
        "proxy",
        "unknown-scheme",
        "bad-port",
        "bad-header",
    ] {
        let log = Log::default();
        let runtime_log = log.clone();
        let bench =
            Bench::logging(options.clone(), TlsOptions::default(), async || Server::start(cases).await, runtime_log);
        let address = bench.server.url(&format!("/images/{path}?temp_url_sig={MARK}-sig&n=1&key=%54opSecret7"));
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let address = match path {
            "refused" => address.replace(&bench.server.port.to_string(), &nobody.port().to_string()),
            "proxy" => address.replace("http:", "https:").replace("127.0.0.1", "images.example"),
            "unknown-scheme" => address.replace("http:", "file:"),
            "bad-port" => address.replace(&bench.server.port.to_string(), "99999"),
            _ => address,
        };
        let authorization = if path == "bad-header" { "Bearer\n" } else { "Bearer " };
        let request = FetchRequest {
            url: address.replace("://", &format!("://user:{MARK}-password@")),
            authorization: Some(Secret::new(format!("{authorization}{MARK}-token"))),
            proxies: match path {
                "proxy" => BTreeMap::from([("https".into(), format!("http://user:{MARK}-proxy@{nobody}"))]),
                _ => BTreeMap::new(),
            },
            ..FetchRequest::default()
        };
        request.progress.phase("opening", None);
        let (error, shown) = log.during(|| {
            let result = bench.downloader.open(&request).and_then(|mut source| {
                let mut reader = source.stream(0)?;
                io::copy(&mut reader, &mut io::sink()).map_err(|error| SourceError::from_io(error).unwrap())
            });
            let shown = format!("{request:?} {:?} {:?}", bench.downloader, request.progress.report());
            (result.err(), shown)
        });
        assert_eq!(error.is_none(), path == "page", "{path}: {error:?}");
        let error = error.map_or_else(String::new, |error| format!("{} {error:?} {}", error, chain(&error)));
        for (what, text) in [("error", &error), ("state", &shown), ("log", &log.text())] {
            assert!(!text.contains(MARK), "{path}: {what}: {text}");
        }
        if matches!(path, "busy" | "cut" | "page" | "refused" | "around") {
            assert!(log.text().contains("/images/"), "{path} has logged nothing: {}", log.text());
        }
    }
}

#[test]
fn a_secret_that_gets_into_a_log_after_all_leaves_the_machine_as_stars() {
    let bench = Bench::new(|_, _| Reply::new(200, "", b"x"));
    let request = FetchRequest {
        url: bench.server.url("/x").replace("://", "://user:hidden-password-9@"),
        authorization: Some(Secret::new("Bearer hidden-token-9".into())),
        ..FetchRequest::default()
    };
    bench.downloader.get(&request, 10).unwrap();
    let text = crate::logs::redact(b"panicked: hidden-token-9, hidden-password-9");
    assert_eq!(String::from_utf8(text).unwrap(), "panicked: ******, ******");
}
