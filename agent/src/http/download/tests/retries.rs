//! What is tried again, what is final, and what of a failure is told.

use super::*;

#[test]
fn client_errors_are_final_at_once() {
    for status in [401, 403, 404, 410, 204, 304] {
        let bench = Bench::new(move |_, n| match n {
            1 => Reply::raw(format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n").as_bytes(), Then::KeepAlive),
            _ => Reply::new(200, TAG, image()),
        });
        let error = bench.read().unwrap_err();
        assert!(matches!(error, SourceError::Fatal { .. }), "{status}: {error:?}");
        assert_eq!(error.class(), ErrorClass::ImageDownloadFatal, "{status}");
        let text = chain(&error);
        assert!(text.contains(&format!("Received status code {status}")) && !text.contains("secret"), "{text}");
        assert_eq!(bench.server.seen().len(), 1, "{status}");
    }
}

#[test]
fn error_pages_that_quote_the_request_do_not_betray_it() {
    let bench = Bench::new(|seen, _| {
        let page = format!("{} {} secret-key hunter2secret", seen.line, seen.header("authorization").unwrap());
        Reply::new(403, "", page.as_bytes())
    });
    let request = FetchRequest {
        url: bench.server.url("/image?temp_url_sig=0123abcd&key=secret%2Dkey&n=1"),
        authorization: Some(Secret::new("Bearer hunter2secret".into())),
        ..FetchRequest::default()
    };
    let text = chain(&bench.downloader.get(&request, 10).unwrap_err());
    assert!(text.contains("GET /image?temp_url_sig=***&key=***&n=1 HTTP/1.1 Bearer *** *** ***"), "{text}");
}

#[test]
fn error_texts_hold_neither_control_characters_nor_the_file_itself() {
    for (status, page, end) in [
        (404, "\u{1b}[31mno such\u{7}\0 file", "Response body: [31mno such file"),
        (206, "the file's first bytes", "Response body: "),
    ] {
        let bench = Bench::new(move |_, _| Reply::new(status, "", page.as_bytes()));
        let text = chain(&bench.downloader.get(&bench.request(), 100).unwrap_err());
        assert!(text.ends_with(end), "{status}: {text:?}");
    }
}

#[test]
fn temporary_errors_are_tried_again_until_the_tries_are_used_up() {
    for status in [500, 502, 503, 429, 408] {
        let bench = Bench::new(move |_, n| match n {
            1 | 2 => Reply::new(status, "", b"busy"),
            _ => Reply::new(200, TAG, image()),
        });
        assert!(bench.read().unwrap() == image(), "{status}");
        let bench = Bench::new(move |_, _| Reply::new(status, "", b"busy\n now"));
        let error = bench.read().unwrap_err();
        assert!(matches!(error, SourceError::Failed { tries: 4, .. }), "{status}: {error:?}");
        assert!(chain(&error).ends_with("Response body: busy now"), "{}", chain(&error));
        assert_eq!(bench.server.seen().len(), 4, "{status}");
    }
}

#[test]
fn a_failed_try_is_shown_as_what_holds_the_work_up() {
    let bench = Bench::new(move |_, _| Reply::new(503, "", b"busy"));
    let request = bench.request();
    request.progress.phase("opening the image", None);
    assert!(bench.downloader.open(&request).is_err());
    let phase = request.progress.report().unwrap().phase;
    assert!(phase.starts_with("opening the image, try 3 of 4: Received status code 503"), "{phase}");
    assert!(!phase.contains("secret"), "{phase}");
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let request = FetchRequest { url: format!("http://{nobody}/image"), ..request };
    assert!(bench.downloader.open(&request).is_err());
    let phase = request.progress.report().unwrap().phase;
    assert_eq!(phase, "opening the image, try 3 of 4: Connection refused (os error 111)");
}

#[test]
fn the_server_can_ask_for_a_longer_pause() {
    let bench = Bench::new(move |_, n| match n {
        1 => Reply::new(503, "Retry-After: 1\r\n", b""),
        _ => Reply::new(200, TAG, b"x"),
    });
    let begun = Instant::now();
    assert_eq!(bench.read().unwrap(), b"x");
    assert!(begun.elapsed() >= Duration::from_secs(1));
}

#[test]
fn progress_starts_the_count_of_tries_afresh_and_its_lack_does_not() {
    // Every answer is cut; 1.2 MB in all, so that no try brings a mebibyte: 4 tries are made.
    let bench = Bench::new(|seen, n| match n {
        1 => Reply::cut(200, TAG, image(), 1000),
        _ => {
            let mut reply = part(seen, TAG);
            let head = reply.bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
            reply.bytes.truncate(head + 1000);
            reply.then = Then::Close;
            reply
        }
    });
    let error = bench.read().unwrap_err();
    assert!(matches!(error, SourceError::Failed { tries: 4, .. }), "{error:?}");
    assert_eq!(bench.server.seen().len(), 4);
}
