//! Downloads from a scripted server with every fault the module doc promises to handle.

mod network;
mod parts;
mod retries;
mod secrets;

use std::io::Read as _;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use ferric_disk::image::source::{Fetch as _, FetchRequest, SourceError};
use ferric_types::error::chain;
use ferric_types::{ErrorClass, Secret};
use tokio::runtime::Handle;

use super::source::{HttpSource, Target};
use super::{DownloadOptions, Downloader, MIN_BYTES, RATE_WINDOW};
use crate::config::TlsVersion;
use crate::http::testing::{Authority, Reply, Seen, Server, Then, client};
use crate::tls::TlsOptions;

const OPTIONS: DownloadOptions = DownloadOptions {
    timeout: Duration::from_secs(2),
    retries: 3,
    retry_interval: Duration::from_millis(10),
    max_duration: None,
    rate_window: RATE_WINDOW,
    min_bytes: MIN_BYTES,
};

/// A server and a downloader, both on a runtime in a thread of its own, so that the test's thread can block.
struct Bench {
    server: Arc<Server>,
    downloader: Downloader,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Bench {
    fn new(script: impl Fn(&Seen, usize) -> Reply + Send + Sync + 'static) -> Self {
        Self::with(OPTIONS, TlsOptions::default(), async || Server::start(script).await)
    }

    fn with(options: DownloadOptions, tls: TlsOptions, start: impl AsyncFnOnce() -> Server) -> Self {
        Self::logging(options, tls, start, secrets::Log::default())
    }

    /// A bench whose transfers log to `log`.
    fn logging(
        options: DownloadOptions,
        tls: TlsOptions,
        start: impl AsyncFnOnce() -> Server,
        log: secrets::Log,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let server = Arc::new(runtime.block_on(start()));
        let downloader = Downloader::with_options(client(tls), options, runtime.handle().clone());
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let thread = std::thread::spawn(move || log.during(|| drop(runtime.block_on(stopped))));
        Self { server, downloader, stop: Some(stop), thread: Some(thread) }
    }

    fn request(&self) -> FetchRequest {
        FetchRequest { url: self.server.url("/image?sig=secret"), ..FetchRequest::default() }
    }

    /// The bytes from `offset`, read in odd pieces.
    fn read_from(&self, offset: u64) -> Result<Vec<u8>, SourceError> {
        let mut source = self.downloader.open(&self.request())?;
        let mut reader = source.stream(offset)?;
        let mut all = Vec::new();
        let mut piece = [0; 777];
        loop {
            match reader.read(&mut piece) {
                Ok(0) => return Ok(all),
                Ok(count) => all.extend_from_slice(&piece[..count]),
                Err(error) => return Err(SourceError::from_io(error).unwrap()),
            }
        }
    }

    fn read(&self) -> Result<Vec<u8>, SourceError> {
        self.read_from(0)
    }

    fn ranges(&self) -> Vec<Option<String>> {
        self.server.seen().iter().map(|seen| seen.header("range").map(str::to_owned)).collect()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        self.thread.take().unwrap().join().unwrap();
    }
}

fn image() -> &'static [u8] {
    static IMAGE: LazyLock<Vec<u8>> =
        LazyLock::new(|| (0..300_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect());
    &IMAGE
}

const TAG: &str = "ETag: \"v1\"\r\nAccept-Ranges: bytes\r\n";

/// A well-behaved answer to a range.
fn part(seen: &Seen, headers: &str) -> Reply {
    let image = image();
    let start = seen.range_start().unwrap();
    let asked = seen.header("range").unwrap().rsplit('-').next().unwrap();
    let end = asked.parse().map_or(image.len() - 1, |end: usize| end.min(image.len() - 1));
    let headers = format!("{headers}Content-Range: bytes {start}-{end}/{}\r\n", image.len());
    Reply::new(206, &headers, &image[start..=end])
}

#[test]
fn a_file_arrives_as_it_is() {
    let bench = Bench::new(|_, _| Reply::new(200, TAG, image()));
    assert!(bench.read().unwrap() == image());
    let seen = &bench.server.seen()[0];
    assert_eq!(seen.header("accept-encoding"), Some("identity"));
    assert_eq!(seen.header("range"), None);
}

#[test]
fn a_cut_download_goes_on_where_it_ended() {
    let bench = Bench::new(|seen, n| match n {
        1 => Reply::cut(200, TAG, image(), 600_000),
        2 => {
            let mut reply = part(seen, TAG);
            reply.bytes.truncate(reply.bytes.len() - 100_000);
            reply.then = Then::Close;
            reply
        }
        _ => part(seen, TAG),
    });
    assert!(bench.read().unwrap() == image());
    let seen = bench.server.seen();
    assert_eq!(bench.ranges(), [None, Some("bytes=600000-".into()), Some("bytes=1100000-".into())]);
    assert!(seen[1..].iter().all(|seen| seen.header("if-range") == Some("\"v1\"")), "{seen:?}");
}

/// Ends the connection at fifty places that look random, some of them next to each other, one within a TLS record or two
/// of the end.
#[test]
fn a_download_cut_fifty_times_takes_no_more_than_its_size() {
    const SIZE: usize = 48 << 20;
    let image: Arc<Vec<u8>> = Arc::new(
        (0..SIZE / 4).flat_map(|n| u32::try_from(n).unwrap().wrapping_mul(2_654_435_761).to_le_bytes()).collect(),
    );
    let mut state = 7_u64;
    let mut cuts: Vec<usize> = (0..48)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap() % SIZE
        })
        .chain([1, SIZE - 1])
        .collect();
    cuts.sort_unstable();
    cuts.dedup();
    assert_eq!(cuts.len(), 50);
    let options = DownloadOptions { retries: 9, ..OPTIONS };
    let bench = {
        let image = Arc::clone(&image);
        Bench::with(options, TlsOptions::default(), async || {
            Server::start(move |seen, _| {
                let start = seen.range_start().unwrap_or_default();
                let end = cuts.iter().copied().find(|cut| *cut > start).unwrap_or(SIZE);
                let status = if start == 0 { 200 } else { 206 };
                let headers = format!("{TAG}Content-Range: bytes {start}-{}/{SIZE}\r\n", SIZE - 1);
                Reply::cut(status, &headers, &image[start..], end - start)
            })
            .await
        })
    };
    let mut source = bench.downloader.open(&bench.request()).unwrap();
    let mut all = Vec::with_capacity(SIZE);
    source.stream(0).unwrap().read_to_end(&mut all).unwrap();
    assert!(all == *image, "other bytes");
    // Each request starts where the last one was cut: nothing was transferred twice.
    let starts: Vec<usize> = bench.server.seen().iter().map(|seen| seen.range_start().unwrap_or_default()).collect();
    assert_eq!(starts.len(), 51);
    assert!(starts.is_sorted_by(|one, next| one < next), "{starts:?}");
}

#[test]
fn a_silent_connection_counts_as_cut() {
    let bench = Bench::new(|seen, n| match n {
        1 => Reply { then: Then::Hang, ..Reply::cut(200, TAG, image(), 1000) },
        _ => part(seen, TAG),
    });
    assert!(bench.read().unwrap() == image());
    assert_eq!(bench.ranges()[1].as_deref(), Some("bytes=1000-"));
}

#[test]
fn a_server_without_ranges_is_read_again_from_the_start() {
    for headers in ["", TAG, "Last-Modified: Mon, 30 Nov 2026 00:00:00 GMT\r\n"] {
        let bench = Bench::new(move |_, n| match n {
            1 => Reply::cut(200, headers, image(), 600_001),
            _ => Reply::new(200, headers, image()),
        });
        assert!(bench.read().unwrap() == image(), "{headers}");
        assert_eq!(bench.server.seen().len(), 2);
    }
}

#[test]
fn a_file_that_changed_meanwhile_is_noticed() {
    fn other() -> Vec<u8> {
        let mut other = image().to_vec();
        other[5] ^= 1;
        other
    }
    type Second = fn(&Seen) -> Reply;
    let cases: [(&str, Second); 6] = [
        ("new tag, whole file", |_| Reply::new(200, "ETag: \"v2\"\r\n", image())),
        ("new tag, part", |seen| part(seen, "ETag: \"v2\"\r\n")),
        ("other size, whole file", |_| Reply::new(200, "", &image()[1..])),
        ("other size, part", |_| Reply::new(206, "Content-Range: bytes 600000-600009/600010\r\n", b"0123456789")),
        ("same size, other bytes, no tag", |_| Reply::new(200, "", &other())),
        ("shorter than what is there", |_| Reply::new(416, "Content-Range: bytes */1000\r\n", b"")),
    ];
    for (name, second) in cases {
        let bench = Bench::new(move |seen, n| match n {
            1 => Reply::cut(200, TAG, image(), 600_000),
            _ => second(seen),
        });
        let error = bench.read().unwrap_err();
        assert!(matches!(error, SourceError::Changed { .. }), "{name}: {error:?}");
        assert_eq!(bench.server.seen().len(), 2, "{name}");
    }
}

#[test]
fn a_wrong_content_range_makes_the_file_come_again_from_its_start() {
    for range in ["bytes 0-1199999/1200000", "bytes 600001-1199999/1200000", "nonsense", "bytes 600000-5/1200000"] {
        let headers = format!("{TAG}Content-Range: {range}\r\n");
        let bench = Bench::new(move |_, n| match n {
            1 => Reply::cut(200, TAG, image(), 600_000),
            2 => Reply::new(206, &headers, &image()[600_000..]),
            _ => Reply::new(200, TAG, image()),
        });
        assert!(bench.read().unwrap() == image(), "{range}");
        assert_eq!(bench.ranges(), [None, Some("bytes=600000-".into()), None], "{range}");
    }
    // A server that sends parts nobody asked for.
    let bench = Bench::new(move |_, n| match n {
        1 => Reply::cut(200, TAG, image(), 600_000),
        _ => Reply::new(206, &format!("{TAG}Content-Range: nonsense\r\n"), &image()[600_000..]),
    });
    let error = chain(&bench.read().unwrap_err());
    assert!(error.contains("Received status code 206 Partial Content") && error.contains("expected 200"), "{error}");
    assert_eq!(bench.server.seen().len(), 3);
}

#[test]
fn a_trickling_server_is_given_up() {
    let pieces = vec![b"x".to_vec(); 1000];
    let start = async move || {
        Server::start(move |_, _| Reply {
            then: Then::Pieces(Duration::from_millis(20), pieces.clone()),
            ..Reply::cut(200, "", image(), 0)
        })
        .await
    };
    let options = DownloadOptions { rate_window: Duration::from_millis(100), retries: 1, ..OPTIONS };
    let bench = Bench::with(options, TlsOptions::default(), start);
    let error = bench.read().unwrap_err();
    assert!(chain(&error).contains("only 61440 bytes or less arrive in 0.1 s"), "{}", chain(&error));
}

#[test]
fn a_slow_reader_is_not_taken_for_a_trickling_server() {
    let options = DownloadOptions { rate_window: Duration::from_millis(100), ..OPTIONS };
    let start = async || Server::start(|_, _| Reply::new(200, TAG, &image().repeat(8))).await;
    let bench = Bench::with(options, TlsOptions::default(), start);
    let mut source = bench.downloader.open(&bench.request()).unwrap();
    let mut reader = source.stream(0).unwrap();
    let mut count = 0;
    let mut piece = vec![0; 1 << 20];
    loop {
        std::thread::sleep(Duration::from_millis(60));
        match reader.read(&mut piece).unwrap() {
            0 => break,
            read => count += read,
        }
        if count > 3_000_000 {
            // Longer than the limit on silence.
            std::thread::sleep(Duration::from_millis(2500));
            reader.read_to_end(&mut piece).unwrap();
            count += piece.len() - (1 << 20);
            break;
        }
    }
    assert_eq!(count, image().len() * 8);
    assert_eq!(bench.server.seen().len(), 1);
}

#[test]
fn the_whole_download_has_a_limit() {
    let options = DownloadOptions { max_duration: Some(Duration::from_secs(1)), ..OPTIONS };
    let start = async || {
        Server::start(|_, _| Reply {
            then: Then::Pieces(Duration::from_millis(100), vec![vec![b'x'; 1000]; 100]),
            ..Reply::cut(200, "", image(), 0)
        })
        .await
    };
    let bench = Bench::with(options, TlsOptions::default(), start);
    let begun = Instant::now();
    let error = bench.read().unwrap_err();
    assert_eq!(error.to_string(), "Download exceeded max allowed time (1 seconds)");
    assert!(begun.elapsed() < Duration::from_secs(8));
    // It has been going on before: the limit is for all tries together.
    let request = FetchRequest { since: begun.checked_sub(Duration::from_secs(30)), ..bench.request() };
    for result in [bench.downloader.open(&request).map(drop), bench.downloader.get(&request, 10).map(drop)] {
        assert!(matches!(result, Err(SourceError::TimedOut { .. })), "{result:?}");
    }
}

#[test]
fn small_files_have_a_limit_and_are_tried_again() {
    let bench = Bench::new(|_, n| match n {
        1 => Reply::cut(200, "", b"0123456789", 5),
        _ => Reply::new(200, "", b"0123456789"),
    });
    assert_eq!(bench.downloader.get(&bench.request(), 10).unwrap(), b"0123456789");
    let error = bench.downloader.get(&bench.request(), 9).unwrap_err();
    assert!(matches!(error, SourceError::TooLarge { limit: 9, .. }), "{error:?}");
    assert!(!error.to_string().contains("secret"));
}

#[test]
fn authorization_goes_along() {
    let bench = Bench::new(|seen, _| match seen.header("authorization") {
        Some("Bearer abc" | "Basic dTpw") => Reply::new(200, "", b"x"),
        _ => Reply::new(401, "", b""),
    });
    let bearer = Some(Secret::new("Bearer abc".to_owned()));
    let with_header = FetchRequest { authorization: bearer, ..bench.request() };
    let in_url = FetchRequest { url: bench.server.url("/x").replace("://", "://u:p@"), ..FetchRequest::default() };
    for request in [with_header, in_url] {
        assert_eq!(bench.downloader.get(&request, 10).unwrap(), b"x", "{request:?}");
    }
    assert!(bench.downloader.get(&bench.request(), 10).is_err());
}

#[test]
fn a_refused_certificate_is_not_tried_again_and_unknown_schemes_never() {
    let authority = Authority::new();
    let config = authority.server(&["127.0.0.1"], TlsVersion::V1_2);
    let options = DownloadOptions { retry_interval: Duration::from_secs(60), ..OPTIONS };
    let start = async || Server::start_tls(config, |_, _| Reply::new(200, "", b"x")).await;
    let bench = Bench::with(options, TlsOptions::default(), start);
    let begun = Instant::now();
    let error = bench.read().unwrap_err();
    assert!(matches!(error, SourceError::Failed { tries: 1, .. }), "{error:?}");
    // Unless whoever asks takes any.
    let request = FetchRequest { insecure: true, ..bench.request() };
    assert_eq!(bench.downloader.get(&request, 10).unwrap(), b"x");
    assert!(bench.read().is_err(), "a connection without checks was used for a request with checks");
    for url in ["file:///dev/zero", "oci://registry/x", "http://"] {
        let request = FetchRequest { url: url.into(), ..FetchRequest::default() };
        let error = bench.downloader.get(&request, 10).unwrap_err();
        assert!(matches!(error, SourceError::Fatal { .. }), "{url}: {error:?}");
    }
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_file_of_unknown_length_is_read_to_its_end() {
    let bench = Bench::new(|_, _| {
        let mut bytes = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        for chunk in image().chunks(7000) {
            bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            bytes.extend_from_slice(chunk);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"0\r\n\r\n");
        Reply::raw(&bytes, Then::KeepAlive)
    });
    assert!(bench.read().unwrap() == image());
    let empty = Bench::new(|_, _| Reply::new(200, "", b""));
    assert_eq!(empty.read().unwrap(), b"");
}

#[test]
fn dropping_the_reader_ends_the_transfer() {
    let bench = Bench::new(|_, _| Reply::new(200, TAG, &image().repeat(20)));
    let mut source = bench.downloader.open(&bench.request()).unwrap();
    let mut buf = [0; 100];
    source.stream(0).unwrap().read_exact(&mut buf).unwrap();
    assert_eq!(buf, image()[..100]);
}
