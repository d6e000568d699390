use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use ferric_sys::testing::disk::TestDisk;

use super::*;
use crate::image::source::SourceError;
use crate::image::testing::{TestServer, TestSource, disk_content, progress, sha256};

const DISK: u64 = 4 << 20;

fn options(tries: u32) -> ImageOptions {
    ImageOptions {
        permitted_formats: vec![Format::Raw, Format::Gpt, Format::Qcow2],
        deep_inspection: true,
        md5_enabled: false,
        auth: ServerAuth::default(),
        retry: RetryPolicy { tries, interval: Duration::ZERO },
        unpack_bytes: 8 << 20,
        read_back: false,
    }
}

fn info(urls: &[&str], content: &[u8]) -> ImageInfo {
    ImageInfo {
        id: Some("image-1".to_owned()),
        urls: Some(urls.iter().map(|url| (*url).to_owned()).collect()),
        disk_format: Some("raw".to_owned()),
        os_hash_algo: Some("sha256".to_owned()),
        os_hash_value: Some(sha256(content)),
        ..ImageInfo::default()
    }
}

fn server(content: &[u8]) -> TestServer {
    TestServer { image: TestSource::ranged(content.to_vec()), ..TestServer::default() }
}

fn deploy(info: &ImageInfo, server: &TestServer, tries: u32) -> (TestDisk, Result<WriteReport, ImageError>) {
    let disk = TestDisk::used(DISK).unwrap();
    let result = deploy_image(info, server, &disk.open().unwrap(), &options(tries), &progress());
    (disk, result)
}

#[test]
fn a_damaged_download_is_begun_again() {
    let content = disk_content(2 << 20);
    let server = TestServer { bad_downloads: 2, ..server(&content) };
    let (disk, result) = deploy(&info(&["http://good/i"], &content), &server, 3);
    assert_eq!(result.unwrap().checksum, sha256(&content));
    assert!(disk.bytes(0, 2 << 20).unwrap() == content);
    assert_eq!(server.opened.load(Ordering::SeqCst), 3);
}

#[test]
fn the_last_failure_is_reported_when_tries_run_out() {
    let content = disk_content(2 << 20);
    let server = TestServer { bad_downloads: 9, ..server(&content) };
    let (disk, result) = deploy(&info(&["http://good/i"], &content), &server, 3);
    assert_eq!(result.unwrap_err().class(), ErrorClass::ImageChecksum);
    assert_eq!(server.opened.load(Ordering::SeqCst), 3);
    assert_eq!(disk.bytes(0, 1 << 20).unwrap(), vec![0; 1 << 20]);
}

/// Where a test looks at what was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn tries_within_tries_are_logged_with_their_sum() {
    let (log, content) = (Log::default(), disk_content(2 << 20));
    let writer = log.clone();
    // Other tests pass the same places without a subscriber, and tracing would remember that nobody listens there.
    let _set_before = tracing::subscriber::set_global_default(tracing_subscriber::registry());
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    // Each of the three tries of the whole is two tries at each of the two URLs.
    let (_, result) = tracing::subscriber::with_default(subscriber, || {
        deploy(&info(&["http://down/1", "http://down/2"], &content), &server(&content), 3)
    });
    assert!(result.is_err());
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    for want in ["tries=1 of=3 connections=4", "tries=2 of=3 connections=8", "tries=3 of=3 connections=12"] {
        assert!(log.contains(want), "{want}: {log}");
    }
    let last = log.lines().last().unwrap();
    assert!(last.contains("ERROR") && last.contains("all tries of the whole download are used up"), "{log}");
}

#[test]
fn urls_are_tried_in_turn() {
    let content = disk_content(2 << 20);
    let server = server(&content);
    let (_, result) = deploy(&info(&["http://down/1", "http://user:pw@down/2", "http://good/3"], &content), &server, 1);
    assert!(result.is_ok());
    let (_, result) = deploy(&info(&["http://down/1", "http://user:pw@down/2?t=1"], &content), &server, 2);
    let error = result.unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("Download of image image-1 failed: URL: http://down/1; time: "), "{text}");
    assert!(text.contains("; URL: http://down/2; time: ") && text.contains("connection refused"), "{text}");
    assert_eq!(error.class(), ErrorClass::ImageDownload);
}

/// Mirrors of which some give other bytes than the rest.
#[derive(Debug)]
struct Mirrors {
    good: TestServer,
    bad: TestServer,
    asked: Mutex<Vec<String>>,
}

impl Fetch for Mirrors {
    fn open(&self, request: &FetchRequest) -> Result<Box<dyn ImageSource>, SourceError> {
        self.asked.lock().unwrap().push(request.url.rsplit('/').next().unwrap().to_owned());
        if request.url.contains("bad") { self.bad.open(request) } else { self.good.open(request) }
    }

    fn get(&self, request: &FetchRequest, limit: u64) -> Result<Vec<u8>, SourceError> {
        self.good.get(request, limit)
    }
}

#[test]
fn a_mirror_with_other_bytes_is_followed_by_the_next_one() {
    let content = disk_content(2 << 20);
    for (urls, tries, want) in [
        (&["http://goodbad/1", "http://down/2", "http://good/3"][..], 2, &["1", "2", "3"][..]),
        (&["http://goodbad/1", "http://goodbad/2"], 4, &["1", "2", "1", "2"]),
        (&["http://down/1", "http://goodbad/2", "http://down/3", "http://good/4"], 2, &["1", "2", "3", "4"]),
        (&["http://goodbad/1"], 3, &["1", "1", "1"]),
    ] {
        let mirrors = Mirrors {
            good: server(&content),
            bad: TestServer { bad_downloads: u32::MAX, ..server(&content) },
            asked: Mutex::default(),
        };
        let disk = TestDisk::used(DISK).unwrap();
        let result = deploy_image(&info(urls, &content), &mirrors, &disk.open().unwrap(), &options(tries), &progress());
        assert_eq!(*mirrors.asked.lock().unwrap(), want, "{urls:?}");
        assert_eq!(result.is_ok(), urls.last().unwrap().contains("good/"), "{urls:?}: {result:?}");
    }
}

#[test]
fn a_refusal_for_good_is_final() {
    let content = disk_content(2 << 20);
    let server = server(&content);
    let (_, result) = deploy(&info(&["http://gone/1", "http://good/2"], &content), &server, 10);
    let error = result.unwrap_err();
    assert_eq!(error.class(), ErrorClass::ImageDownloadFatal);
    assert_eq!(server.opened.load(Ordering::SeqCst), 1);
    let mut wrong = info(&["http://good/i"], &content);
    wrong.disk_format = Some("qcow2".to_owned());
    let (_, result) = deploy(&wrong, &server, 10);
    assert_eq!(result.unwrap_err().class(), ErrorClass::InvalidImage);
    assert_eq!(server.opened.load(Ordering::SeqCst), 2);
}

#[test]
fn the_checksum_may_come_from_a_list() {
    let content = disk_content(2 << 20);
    let mut server = server(&content);
    server.list = format!("{}  other.img\n{}  disk.img\n", "0".repeat(64), sha256(&content));
    let mut info = info(&["http://good/images/disk.img"], &content);
    (info.os_hash_algo, info.os_hash_value) = (None, None);
    info.checksum = Some("http://good/SHA256SUMS".to_owned());
    assert!(deploy(&info, &server, 1).1.is_ok());
    server.list = "nothing of use".to_owned();
    let error = deploy(&info, &server, 10).1.unwrap_err();
    assert!(chain(&error).ends_with("Checksum file does not contain name disk.img"), "{}", chain(&error));
}

#[test]
fn credentials_come_from_the_first_place_that_has_them() {
    let basic = |user: &str, password: &str| ServerAuth {
        strategy: Some("http_basic".to_owned()),
        user: Some(user.to_owned()),
        password: Some(Secret::new(password.to_owned())),
    };
    let mut info = info(&["http://good/i"], b"");
    let header = |info: &ImageInfo, auth: &ServerAuth| {
        let requests = requests(info, auth).unwrap();
        requests[0].authorization.as_ref().map(|header| header.expose().clone())
    };
    assert_eq!(header(&info, &ServerAuth::default()), None);
    assert_eq!(header(&info, &basic("u", "p")).as_deref(), Some("Basic dTpw"));
    info.image_server_auth_strategy = Some("http_basic".to_owned());
    info.image_server_user = Some("me".to_owned());
    let error = requests(&info, &basic("u", "p")).unwrap_err();
    let want = "Download of image image-1 failed: Missing ['password'] fields from HTTP(S) basic auth config";
    assert_eq!(error.to_string(), want);
    assert_eq!(error.class(), ErrorClass::ImageDownloadFatal);
    info.image_server_password = Some(Secret::new("pw".to_owned()));
    assert_eq!(header(&info, &basic("u", "p")).as_deref(), Some("Basic bWU6cHc="));
    info.image_request_authorization = Some(Secret::new(STANDARD.encode("Bearer abc")));
    assert_eq!(header(&info, &ServerAuth::default()).as_deref(), Some("Bearer abc"));
    info.image_request_authorization = Some(Secret::new(STANDARD.encode("Bearer abc\n")));
    assert_eq!(header(&info, &ServerAuth::default()).as_deref(), Some("Bearer abc"));
    info.image_request_authorization = Some(Secret::new("?".to_owned()));
    assert!(requests(&info, &ServerAuth::default()).is_err());
}

/// A server that never answers, and notes what is shown while it is asked.
#[derive(Debug)]
struct Watched(Mutex<Vec<String>>, Mutex<Option<Instant>>);

impl Fetch for Watched {
    fn open(&self, request: &FetchRequest) -> Result<Box<dyn ImageSource>, SourceError> {
        request.progress.hold_up("try 1 of 2: connection refused");
        // All tries belong to the work that began with the first.
        let mut since = self.1.lock().unwrap();
        assert!(request.since.is_some() && since.is_none_or(|since| Some(since) == request.since), "{request:?}");
        *since = request.since;
        self.0.lock().unwrap().push(request.progress.report().unwrap().phase);
        let url = request.url.clone();
        Err(SourceError::Failed { url, tries: 2, source: "connection refused".into() })
    }

    fn get(&self, _request: &FetchRequest, _limit: u64) -> Result<Vec<u8>, SourceError> {
        unreachable!("no small file is asked for")
    }
}

#[test]
fn progress_shows_which_try_at_opening_the_image_failed_and_why() {
    let (server, progress) = (Watched(Mutex::default(), Mutex::default()), progress());
    // What came before, and would be shown all the while.
    progress.phase("fetch the config drive", None);
    let disk = TestDisk::used(DISK).unwrap();
    let result = deploy_image(&info(&["http://down/1"], b""), &server, &disk.open().unwrap(), &options(2), &progress);
    assert!(result.is_err());
    assert_eq!(
        *server.0.lock().unwrap(),
        [
            "opening the image, try 1 of 2: connection refused",
            "opening the image for download 2 of 2, try 1 of 2: connection refused",
        ]
    );
}
