//! Reading parts of a file.

use super::*;

#[test]
fn parts_are_read_where_the_server_has_ranges() {
    // What the server says about ranges, and whether it has them.
    for (says, has) in
        [("Accept-Ranges: bytes\r\n", true), ("", true), ("", false), ("Accept-Ranges: bytes\r\n", false)]
    {
        let bench = Bench::new(move |seen, n| match seen.range_start() {
            // A temporary error in between.
            Some(_) if n == 3 => Reply::new(503, "", b""),
            Some(_) if has => part(seen, says),
            _ => Reply::new(200, says, image()),
        });
        let mut source = bench.downloader.open(&bench.request()).unwrap();
        assert_eq!(source.size_bytes(), Some(1_200_000));
        assert_eq!(source.has_ranges(), has, "{says:?}");
        if has {
            let mut buf = [0; 5000];
            source.read_exact_at(123_456, &mut buf).unwrap();
            assert!(buf == image()[123_456..128_456]);
            let error = source.read_exact_at(1_199_999, &mut buf).unwrap_err();
            assert!(matches!(error, SourceError::Fatal { .. }), "{error:?}");
            source.read_exact_at(0, &mut []).unwrap();
            let mut rest = Vec::new();
            source.stream(1_000_000).unwrap().read_to_end(&mut rest).unwrap();
            assert!(rest == image()[1_000_000..]);
        }
    }
    let bench = Bench::new(|_, _| Reply::new(200, "Accept-Ranges: none\r\n", image()));
    assert!(!bench.downloader.open(&bench.request()).unwrap().has_ranges());
    assert_eq!(bench.server.seen().len(), 1, "the server was believed");
}

#[test]
fn a_stream_from_the_middle_resumes_too_even_without_ranges_any_more() {
    let bench = Bench::new(|seen, n| match n {
        1 => Reply::new(200, TAG, image()),
        2 => {
            let mut reply = part(seen, TAG);
            reply.bytes.truncate(100_000);
            reply.then = Then::Close;
            reply
        }
        _ => Reply::new(200, TAG, image()),
    });
    assert!(bench.read_from(700_000).unwrap() == image()[700_000..]);
    assert_eq!(bench.server.seen().len(), 3);
}

#[test]
fn a_changed_file_is_noticed_by_reads_of_parts() {
    let bench = Bench::new(|seen, n| match n {
        1 => Reply::new(200, TAG, image()),
        2 => part(seen, "ETag: \"v2\"\r\n"),
        // If-Range did not match.
        _ => Reply::new(200, "ETag: \"v2\"\r\n", image()),
    });
    let mut source = bench.downloader.open(&bench.request()).unwrap();
    for _ in 0..2 {
        let error = source.read_exact_at(10, &mut [0; 10]).unwrap_err();
        assert!(matches!(error, SourceError::Changed { .. }), "{error:?}");
    }
}
