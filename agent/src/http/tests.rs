//! The client against a scripted server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::testing::{Authority, Reply, Seen, Server, Then, client, client_with};
use super::*;
use crate::config::TlsVersion;
use ferric_types::error::chain;
use http::StatusCode;
use rustls::ServerConfig;

fn plain() -> Client {
    client(TlsOptions::default())
}

fn get(url: &str) -> Request {
    Request::get(url.parse().unwrap())
}

async fn body(client: &Client, request: Request) -> (StatusCode, String) {
    let response = client.send(request).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
    let status = response.status;
    (status, String::from_utf8(response.bytes(1 << 20).await.unwrap().to_vec()).unwrap())
}

#[tokio::test]
async fn connections_are_used_again() {
    let server = Server::start(|_, n| Reply::new(200, "", format!("answer {n}").as_bytes())).await;
    let client = plain();
    for n in 1..=3 {
        assert_eq!(body(&client, get(&server.url("/a"))).await, (StatusCode::OK, format!("answer {n}")));
    }
    let seen = server.seen();
    assert!(seen.iter().all(|seen| seen.connection == 1), "{seen:?}");
    assert_eq!(seen[0].header("host"), Some(format!("127.0.0.1:{}", server.port).as_str()));
    assert!(seen[0].header("user-agent").unwrap().starts_with("ferric-agent/"));
}

#[tokio::test]
async fn a_connection_closed_while_idle_is_replaced_unseen() {
    // The server says nothing about closing and closes right after the answer.
    let server = Server::start(|_, _| Reply { then: Then::Close, ..Reply::new(200, "", b"x") }).await;
    let client = plain();
    for _ in 0..5 {
        let post = Request::post(server.url("/").parse().unwrap(), Bytes::from_static(b"{}"));
        assert_eq!(body(&client, post).await.1, "x");
    }
    assert_eq!(server.seen().last().unwrap().connection, 5);
}

#[tokio::test]
async fn a_get_that_dies_on_a_used_connection_is_sent_once_more() {
    let server = Server::start(|_, n| match n {
        2 => Reply::raw(b"", Then::Close),
        _ => Reply::new(200, "", b"x"),
    })
    .await;
    let client = plain();
    for _ in 0..2 {
        assert_eq!(body(&client, get(&server.url("/"))).await.1, "x");
    }
    assert_eq!(server.seen().len(), 3);
    // On a fresh connection the failure is reported.
    let server = Server::start(|_, _| Reply::raw(b"", Then::Close)).await;
    let error = client.send(get(&server.url("/"))).await.unwrap_err();
    assert!(error.is_connection(), "{error:?}");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn redirects_are_followed_and_credentials_stay() {
    let far = Server::start(|_, _| Reply::new(200, "", b"far")).await;
    let target = far.url("/end");
    let server = Server::start(move |seen, _| match seen.line.split(' ').nth(1).unwrap() {
        "/start" => Reply::new(302, "Location: next?x=1\r\n", b"moved"),
        "/next?x=1" => Reply::new(307, &format!("Location: {target}\r\n"), b"moved"),
        other => panic!("{other}"),
    })
    .await;
    let client = plain();
    let url = server.url("/start").replace("://", "://user:secret@");
    assert_eq!(body(&client, get(&url)).await.1, "far");
    let (near, far) = (server.seen(), far.seen());
    assert_eq!(near.len(), 2);
    assert!(near.iter().all(|seen| seen.header("authorization") == Some("Basic dXNlcjpzZWNyZXQ=")), "{near:?}");
    assert!(near.iter().all(|seen| seen.connection == 1), "{near:?}");
    assert_eq!(far[0].header("authorization"), None);
}

#[tokio::test]
async fn redirect_loops_end() {
    let server = Server::start(|_, _| Reply::new(301, "Location: /\r\n", b"")).await;
    let error = plain().send(get(&server.url("/"))).await.unwrap_err();
    assert!(matches!(error, HttpError::TooManyRedirects { limit: 10, .. }), "{error:?}");
    assert_eq!(server.seen().len(), 11);
}

#[tokio::test]
async fn redirects_to_other_schemes_are_refused() {
    let server = Server::start(|_, _| Reply::new(302, "Location: file:///dev/zero\r\n", b"")).await;
    let error = plain().send(get(&server.url("/"))).await.unwrap_err();
    assert!(matches!(error, HttpError::BadRedirect { .. }), "{error:?}");
}

#[tokio::test]
async fn a_silent_server_is_given_up_after_the_limit() {
    let server = Server::start(|_, _| Reply::raw(b"", Then::Hang)).await;
    let client = plain().with_timeout(Duration::from_secs(1));
    let begun = Instant::now();
    let error = client.send(get(&server.url("/x?sig=secret"))).await.unwrap_err();
    assert!(matches!(error, HttpError::AnswerTimeout { .. }) && !error.is_connection(), "{error:?}");
    assert!(!error.to_string().contains("secret"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(4));
    let server = Server::start(|_, _| Reply::raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", Then::Hang)).await;
    let error = client.send(get(&server.url("/"))).await.unwrap().bytes(100).await.unwrap_err();
    assert!(matches!(error, HttpError::BodyTimeout { .. }), "{error:?}");
}

#[tokio::test]
async fn an_unreachable_server_says_so() {
    let port = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let error = plain().send(get(&format!("http://127.0.0.1:{port}/x"))).await.unwrap_err();
    assert!(matches!(error, HttpError::Connect { .. }), "{error:?}");
    assert_eq!(error.hint(), Some("the host answers but nothing listens on that port"));
    let error = plain().send(get("http://no-such-host.invalid/x")).await.unwrap_err();
    assert!(matches!(error, HttpError::Resolve { .. }), "{error:?}");
}

#[tokio::test]
async fn bodies_and_headers_have_limits() {
    let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n5\r\nworld\r\n0\r\n\r\n";
    let cases: [(&str, Vec<u8>); 2] =
        [("length", Reply::new(200, "", b"helloworld").bytes), ("chunked", chunked.to_vec())];
    for (name, bytes) in cases {
        let server = Server::start(move |_, _| Reply::raw(&bytes, Then::KeepAlive)).await;
        let client = plain();
        let error = client.send(get(&server.url("/"))).await.unwrap().bytes(9).await.unwrap_err();
        assert!(matches!(error, HttpError::TooLarge { limit_bytes: 9, .. }), "{name}: {error:?}");
        assert_eq!(body(&client, get(&server.url("/"))).await.1, "helloworld", "{name}");
    }
    let server = Server::start(|_, _| Reply::new(200, &format!("X: {}\r\n", "y".repeat(600_000)), b"")).await;
    let error = plain().send(get(&server.url("/"))).await.unwrap_err();
    assert!(matches!(error, HttpError::Exchange { .. }), "{error:?}");
    let server = Server::start(|_, _| Reply::new(200, &"A: b\r\n".repeat(200), b"")).await;
    assert!(plain().send(get(&server.url("/"))).await.is_err(), "too many header lines");
    let server = Server::start(|_, _| Reply::raw(b"SSH-2.0-OpenSSH_9.2\r\n", Then::Hang)).await;
    assert!(plain().send(get(&server.url("/"))).await.is_err(), "not HTTP");
}

#[tokio::test]
async fn old_and_closing_servers_are_understood() {
    let answers: [&[u8]; 4] = [
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello",
    ];
    for bytes in answers {
        let server = Server::start(|_, _| Reply::raw(bytes, Then::Close)).await;
        let client = plain();
        for _ in 0..2 {
            assert_eq!(body(&client, get(&server.url("/"))).await.1, "hello", "{}", bytes.escape_ascii());
        }
    }
}

#[tokio::test]
async fn plain_requests_go_through_a_proxy_in_absolute_form() {
    let proxy = Server::start(|_, _| Reply::new(200, "", b"proxied")).await;
    let map = BTreeMap::from([("http".to_owned(), proxy.url("").replace("://", "://puser:ppass@"))]);
    let client = client_with(TlsOptions::default(), Proxies::from_map(&map, Some("direct.example")).unwrap());
    assert_eq!(body(&client, get("http://u:p@target.example/x?y=1")).await.1, "proxied");
    let seen = &proxy.seen()[0];
    assert_eq!(seen.line, "GET http://target.example/x?y=1 HTTP/1.1");
    assert_eq!(seen.header("host"), Some("target.example"));
    assert_eq!(seen.header("proxy-authorization"), Some("Basic cHVzZXI6cHBhc3M="));
    assert_eq!(seen.header("authorization"), Some("Basic dTpw"));
    let error = client.send(get("http://direct.example/")).await.unwrap_err();
    assert!(matches!(error, HttpError::Resolve { .. }), "no_proxy hosts are reached directly: {error:?}");
}

fn ok(_: &Seen, _: usize) -> Reply {
    Reply::new(200, "", b"secure")
}

fn trusting(authority: &Authority) -> TlsOptions {
    TlsOptions { cafile: Some(authority.cafile.path().to_owned()), ..TlsOptions::default() }
}

#[tokio::test]
async fn tls_requests_go_through_a_tunnel_of_the_proxy() {
    let authority = Authority::new();
    let server = Server::start_tls(authority.server(&["127.0.0.1"], TlsVersion::V1_2), ok).await;
    let to = format!("127.0.0.1:{}", server.port);
    let expected = format!("CONNECT {to} HTTP/1.1");
    let proxy = Server::start(move |seen, n| match n {
        1 => Reply::raw(b"HTTP/1.1 200 Connection established\r\n\r\n", Then::Tunnel(to.clone())),
        _ => Reply::new(407, "", seen.line.as_bytes()),
    })
    .await;
    let own = Proxies::from_map(&BTreeMap::from([("https".to_owned(), proxy.url(""))]), None).unwrap();
    let client = client(trusting(&authority));
    assert_eq!(body(&client, get(&server.url("/x")).proxies(own.clone())).await.1, "secure");
    assert_eq!(proxy.seen()[0].line, expected);
    assert_eq!(server.lines(), ["GET /x"]);
    // Another client has no idle tunnel and meets the proxy's refusal.
    let client = super::testing::client(trusting(&authority));
    let error = client.send(get(&server.url("/x")).proxies(own)).await.unwrap_err();
    assert!(matches!(&error, HttpError::ProxyRefused { status, .. } if status.as_u16() == 407), "{error:?}");
}

#[tokio::test]
async fn certificates_are_verified_against_the_ca_file() {
    let authority = Authority::new();
    let good = Server::start_tls(authority.server(&["127.0.0.1"], TlsVersion::V1_2), ok).await;
    let wrong_name = Server::start_tls(authority.server(&["other.example"], TlsVersion::V1_2), ok).await;
    let trusting = client(trusting(&authority));
    assert_eq!(body(&trusting, get(&good.url("/"))).await.1, "secure");
    let error = trusting.send(get(&wrong_name.url("/"))).await.unwrap_err();
    assert!(error.is_certificate() && error.hint().unwrap().contains("subject alternative name"), "{error:?}");
    let stranger = plain();
    let error = stranger.send(get(&good.url("/"))).await.unwrap_err();
    assert!(error.is_certificate() && error.hint().unwrap().contains("cafile"), "{error:?}");
    // Without verification both are fine, and such a connection is not used for a verified request.
    assert_eq!(body(&stranger, get(&wrong_name.url("/")).unverified()).await.1, "secure");
    assert!(stranger.send(get(&wrong_name.url("/"))).await.is_err());
    let insecure = client(TlsOptions { insecure: true, ..TlsOptions::default() });
    assert_eq!(body(&insecure, get(&wrong_name.url("/"))).await.1, "secure");
}

#[tokio::test]
async fn a_self_signed_server_certificate_works_as_ca_file() {
    for is_ca in [true, false] {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        if is_ca {
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        }
        let expired = {
            let mut params = params.clone();
            params.not_after = rcgen::date_time_ymd(2020, 1, 1);
            params
        };
        for (params, valid) in [(params, true), (expired, false)] {
            let certificate = params.self_signed(&key).unwrap();
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), certificate.pem()).unwrap();
            let config = tls::server_config_from_pem(&certificate.pem(), &key.serialize_pem(), TlsVersion::V1_2, None);
            let server = Server::start_tls(config.unwrap(), ok).await;
            let client = client(TlsOptions { cafile: Some(file.path().into()), ..TlsOptions::default() });
            let result = client.send(get(&server.url("/"))).await;
            assert_eq!(result.is_ok(), valid, "CA {is_ca}: {result:?}");
            if let Err(error) = result {
                assert!(error.hint().unwrap().contains("clock"), "{error:?}");
            }
            let other = server.url("/").replace("127.0.0.1", "localhost");
            let error = client.send(get(&other)).await.unwrap_err();
            assert!(error.is_certificate(), "the name counts: {error:?}");
        }
    }
}

#[tokio::test]
async fn a_server_without_the_demanded_tls_version_fails_with_a_hint() {
    let authority = Authority::new();
    let with_13 = authority.server(&["127.0.0.1"], TlsVersion::V1_3);
    let only_12 = {
        let provider = tls::provider(None);
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let chain = vec![params.self_signed(&key).unwrap().der().clone()];
        let key = rustls_pki_types::PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let builder = ServerConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS12]).unwrap();
        Arc::new(builder.with_no_client_auth().with_single_cert(chain, key).unwrap())
    };
    let strict = client(TlsOptions { insecure: true, min_version: TlsVersion::V1_3, ..TlsOptions::default() });
    let server = Server::start_tls(only_12, ok).await;
    let error = strict.send(get(&server.url("/"))).await.unwrap_err();
    assert!(matches!(error, HttpError::Tls { .. }) && !error.is_certificate(), "{error:?}");
    assert!(error.hint().unwrap().contains("ipa-tls-min-version"), "{}", chain(&error));
    let relaxed = client(TlsOptions { insecure: true, ..TlsOptions::default() });
    assert_eq!(body(&relaxed, get(&server.url("/"))).await.1, "secure");
    let server = Server::start_tls(with_13, ok).await;
    assert_eq!(body(&strict, get(&server.url("/"))).await.1, "secure");
}

#[tokio::test]
async fn a_client_certificate_is_shown() {
    let authority = Authority::new();
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["agent".to_owned()]).unwrap().self_signed(&key).unwrap();
    let files: Vec<_> = [certificate.pem(), key.serialize_pem()]
        .iter()
        .map(|pem| {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), pem).unwrap();
            file
        })
        .collect();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.der().clone()).unwrap();
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), tls::provider(None));
    let server_key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let chain_of_server = vec![params.self_signed(&server_key).unwrap().der().clone()];
    let config = ServerConfig::builder_with_provider(tls::provider(None))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(chain_of_server, rustls_pki_types::PrivateKeyDer::Pkcs8(server_key.serialize_der().into()))
        .unwrap();
    let server = Server::start_tls(Arc::new(config), ok).await;
    let paths = (files[0].path().to_owned(), files[1].path().to_owned());
    let insecure = TlsOptions { insecure: true, ..TlsOptions::default() };
    let with = client(TlsOptions { client_certificate: Some(paths), ..insecure.clone() });
    assert_eq!(body(&with, get(&server.url("/"))).await.1, "secure");
    let without = client(insecure);
    assert!(without.send(get(&server.url("/"))).await.is_err());
    let _authority = authority;
}

#[test]
fn unusable_certificate_files_are_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let cases = [
        TlsOptions { cafile: Some("/nonexistent/ca.pem".into()), ..TlsOptions::default() },
        TlsOptions { cafile: Some(file.path().into()), ..TlsOptions::default() },
        TlsOptions {
            client_certificate: Some((file.path().into(), "/nonexistent/key.pem".into())),
            ..TlsOptions::default()
        },
    ];
    for tls in cases {
        let options = HttpOptions { tls: tls.clone(), proxies: Proxies::none(), timeout: Duration::from_secs(1) };
        let text = chain(&Client::with_options(&options).unwrap_err());
        assert!(text.contains("/nonexistent/") || text.contains(file.path().to_str().unwrap()), "{tls:?}: {text}");
    }
}
