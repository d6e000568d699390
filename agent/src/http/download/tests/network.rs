//! Servers behind proxies, redirects and TLS, and such as take for ever.

use std::collections::BTreeMap;

use super::*;
use crate::http::download::answer::Version;
use crate::http::download::retry::Failure;
use crate::http::{Client, HttpOptions, Proxies};

fn small(bench: &Bench, request: &FetchRequest) -> Result<Vec<u8>, SourceError> {
    bench.downloader.get(request, 1 << 20)
}

/// A registry that wants its token and hands over to a store, which has signed the address and takes no second proof, as
/// S3 does; the transfer is cut twice.
#[test]
fn a_blob_of_a_registry_comes_from_a_store_that_never_sees_the_token() {
    let store = Bench::new(|seen, n| {
        if seen.header("authorization").is_some() || !seen.line.contains("signature=") {
            return Reply::new(400, "", b"Only one auth mechanism allowed");
        }
        match n {
            1 => Reply::cut(200, TAG, image(), 500_000),
            2 => {
                let mut reply = part(seen, TAG);
                reply.bytes.truncate(200_000);
                reply.then = Then::Close;
                reply
            }
            _ => part(seen, TAG),
        }
    });
    let location = store.server.url("/blob?signature=of");
    let registry = Bench::new(move |seen, n| match seen.header("authorization") {
        Some("Bearer token-of-registry") => Reply::new(307, &format!("Location: {location}-{n}\r\n"), b""),
        _ => Reply::new(401, "WWW-Authenticate: Bearer realm=\"x\"\r\n", b""),
    });
    let request = FetchRequest {
        url: registry.server.url("/v2/os/blobs/sha256:abc"),
        authorization: Some(Secret::new("Bearer token-of-registry".into())),
        ..FetchRequest::default()
    };
    let mut bytes = Vec::new();
    let mut source = registry.downloader.open(&request).unwrap();
    source.stream(0).unwrap().read_to_end(&mut bytes).unwrap();
    assert!(bytes == image());
    // A signature may be good for minutes only: each part is asked for at the registry.
    let signed: Vec<String> = store.server.lines().iter().map(|line| line.rsplit('=').next().unwrap().into()).collect();
    assert_eq!(signed, ["of-1", "of-2", "of-3"]);
    let starts: Vec<_> = store.server.seen().iter().map(Seen::range_start).collect();
    assert!(starts[0].is_none() && starts[1] == Some(500_000) && starts[2] > starts[1], "{starts:?}");
}

#[test]
fn a_header_that_was_given_wins_over_credentials_in_the_url() {
    let bench = Bench::new(|seen, _| Reply::new(200, "", seen.header("authorization").unwrap().as_bytes()));
    let url = bench.server.url("/x").replace("://", "://user:password@");
    let in_url = FetchRequest { url, ..FetchRequest::default() };
    let given = FetchRequest { authorization: Some(Secret::new("Bearer given".into())), ..in_url.clone() };
    assert_eq!(small(&bench, &in_url).unwrap(), b"Basic dXNlcjpwYXNzd29yZA==");
    assert_eq!(small(&bench, &given).unwrap(), b"Bearer given");
}

#[test]
fn a_header_with_lines_of_its_own_is_never_sent() {
    let bench = Bench::new(|_, _| Reply::new(200, "", b""));
    for value in ["Bearer token-x\r\nX-Evil: 1", "Bearer token-x\nGET / HTTP/1.1", "Bearer token-x\0"] {
        let request = FetchRequest { authorization: Some(Secret::new(value.into())), ..bench.request() };
        let error = small(&bench, &request).unwrap_err();
        assert!(matches!(error, SourceError::Fatal { .. }), "{value:?}: {error:?}");
        assert!(!format!("{} {error:?}", chain(&error)).contains("token-x"), "{error:?}");
    }
    assert_eq!(bench.server.seen().len(), 0);
}

#[test]
fn proxies_of_the_image_are_used_but_for_the_hosts_it_names() {
    let proxy = Bench::new(|seen, _| Reply::new(200, "", seen.line.as_bytes()));
    let direct = Bench::new(|_, _| Reply::new(200, "", b"direct"));
    let proxies = BTreeMap::from([("http".to_owned(), proxy.server.url(""))]);
    let request = |url: &str, no_proxy: Option<&str>| FetchRequest {
        url: url.to_owned(),
        proxies: proxies.clone(),
        no_proxy: no_proxy.map(str::to_owned),
        ..FetchRequest::default()
    };
    let far = "http://images.example/disk.img?x=1";
    let line = b"GET http://images.example/disk.img?x=1 HTTP/1.1";
    assert_eq!(small(&direct, &request(far, Some("other.example, 10.0.0.0/8"))).unwrap(), line);
    assert_eq!(small(&direct, &request(&direct.server.url("/"), Some("127.0.0.0/8"))).unwrap(), b"direct");
    let other_port = small(&direct, &request(&direct.server.url("/"), Some("127.0.0.1:1"))).unwrap();
    assert!(other_port.starts_with(b"GET http://127.0.0.1:"), "{other_port:?}");
    let bad = FetchRequest {
        proxies: BTreeMap::from([("http".into(), "socks5://x:pw-of-proxy@h".into())]),
        ..request(far, None)
    };
    let error = small(&direct, &bad).unwrap_err();
    assert!(matches!(error, SourceError::Fatal { .. }) && !chain(&error).contains("pw-of-proxy"), "{error:?}");
}

#[test]
fn a_tunnel_that_a_proxy_refuses_is_asked_for_once_unless_the_proxy_is_in_trouble() {
    for (status, tries) in [(403, 1), (407, 1), (404, 1), (502, 4), (429, 4)] {
        let proxy = Bench::new(move |_, _| Reply::new(status, "", b""));
        let request = FetchRequest {
            url: "https://images.example/disk.img".into(),
            proxies: BTreeMap::from([("https".to_owned(), proxy.server.url(""))]),
            ..FetchRequest::default()
        };
        let error = small(&proxy, &request).unwrap_err();
        assert!(matches!(error, SourceError::Failed { tries: made, .. } if made == tries), "{status}: {error:?}");
        assert_eq!(
            proxy.server.lines(),
            vec!["CONNECT images.example:443"; usize::try_from(tries).unwrap()],
            "{status}"
        );
    }
}

#[test]
fn a_date_in_retry_after_is_taken_by_the_clock_of_the_server() {
    let headers = "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\nRetry-After: Sun, 06 Nov 1994 08:49:38 GMT\r\n";
    let bench = Bench::new(move |_, n| match n {
        1 => Reply::new(429, headers, b""),
        _ => Reply::new(200, TAG, b"x"),
    });
    let begun = Instant::now();
    assert_eq!(bench.read().unwrap(), b"x");
    assert!((1..10).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    // A date that has passed, and no date at all.
    for value in ["Sun, 06 Nov 1994 08:49:37 GMT", "soon", "-5"] {
        let headers = format!("Retry-After: {value}\r\n");
        let bench =
            Bench::new(move |_, n| if n == 1 { Reply::new(503, &headers, b"") } else { Reply::new(200, "", b"x") });
        assert_eq!(bench.read().unwrap(), b"x", "{value}");
    }
}

#[test]
fn a_server_that_says_nothing_in_the_tls_handshake_is_given_up() {
    // What it gets is no request, so that it goes on waiting.
    let options = DownloadOptions { timeout: Duration::from_millis(200), retries: 0, ..OPTIONS };
    let start = async || Server::start(|_, _| Reply::new(200, "", b"")).await;
    let bench = Bench::with(options, TlsOptions::default(), start);
    let request = FetchRequest { url: bench.server.url("/").replace("http:", "https:"), ..FetchRequest::default() };
    let begun = Instant::now();
    let error = chain(&small(&bench, &request).unwrap_err());
    assert!(error.contains("no connection to 127.0.0.1") && error.contains("within 0.2 s"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

/// What a server drips, a byte before each limit on silence is over, by a clock that is turned; how long the answer to the
/// `n`th request was borne, and why no longer.
async fn drip<T: std::fmt::Debug>(
    answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static,
    ask: impl AsyncFnOnce(Target) -> T,
) -> (T, u64) {
    let pieces = Then::Pieces(Duration::from_secs(59), vec![b"x".to_vec(); 10_000]);
    let server = Server::start(move |seen, _| Reply { then: pieces.clone(), ..answer(seen) }).await;
    let timeout = Duration::from_secs(60);
    let http = HttpOptions { tls: TlsOptions::default(), proxies: Proxies::none(), timeout };
    let options = DownloadOptions { timeout, retries: 2, retry_interval: Duration::from_secs(10), ..OPTIONS };
    let request = FetchRequest { url: server.url("/image"), ..FetchRequest::default() };
    let target = Target::new(Client::with_options(&http).unwrap(), Arc::new(options), &request).unwrap();
    let begun = tokio::time::Instant::now();
    let result = ask(target).await;
    (result, begun.elapsed().as_secs())
}

fn reason(failure: &Failure) -> String {
    match failure {
        Failure::Temporary { cause, .. } => chain(cause),
        Failure::Final(error) => format!("final: {}", chain(error)),
        Failure::Unwanted => "unwanted".to_owned(),
    }
}

const RATE: &str = "only 61440 bytes or less arrive in 60 s";

#[tokio::test(start_paused = true)]
async fn an_image_that_comes_a_byte_each_59_seconds_is_given_up_within_minutes() {
    let open = async |target| HttpSource::open(target, Handle::current()).await.unwrap().drain().await.unwrap_err();
    let (error, seconds) = drip(|_| Reply::cut(200, TAG, image(), 0), open).await;
    assert!(matches!(error, SourceError::Failed { tries: 3, .. }), "{error:?}");
    assert!(chain(&error).ends_with(RATE), "{}", chain(&error));
    // Two bytes are seen in each try, and there are two pauses.
    assert_eq!(seconds, 3 * 2 * 59 + 2 * 10);
}

#[tokio::test(start_paused = true)]
async fn nothing_else_that_trickles_holds_a_download_for_ever() {
    let small = async |target: Target| reason(&target.get_small(2 << 20).await.unwrap_err());
    let (error, seconds) = drip(|_| Reply::cut(200, "", image(), 0), small).await;
    assert_eq!((error.as_str(), seconds), (RATE, 2 * 59), "a small file");
    let part = async |target: Target| reason(&target.get_range(0, 99_999, &Version::default()).await.unwrap_err());
    let range = "Content-Range: bytes 0-99999/1200000\r\n";
    let (error, seconds) = drip(|_| Reply::cut(206, range, &image()[..100_000], 0), part).await;
    assert_eq!((error.as_str(), seconds), (RATE, 2 * 59), "a part");
    let (error, seconds) = drip(|_| Reply::cut(404, "", image(), 0), small).await;
    assert!(error.starts_with("final: ") && error.contains("404"), "{error}");
    assert_eq!(seconds, 60, "an error page");
    let (error, seconds) = drip(|_| Reply::raw(b"HTTP/1.1 200 OK\r\nX: ", Then::Close), small).await;
    assert!(error.starts_with("no whole answer from http://127.0.0.1") && error.ends_with("within 300 s"), "{error}");
    assert_eq!(seconds, 300, "a header");
}
