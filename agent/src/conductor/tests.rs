//! The client against the stand-in conductor, which refuses what Ironic refuses, and against a scripted server for what
//! no Ironic does.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use ferric_qemu::conductor as stand_in;
use ferric_qemu::conductor::{ConductorConfig, Endpoint, Fault, ProvisionState};
use ferric_types::error::chain;
use ferric_types::{MacAddress, Secret};
use http::StatusCode;
use serde_json::json;

use super::inspection::{InspectionError, post_with_pauses};
use super::token::{self, Verdict};
use super::*;
use crate::http::testing::{Reply, Server, Then, client};
use crate::tls::TlsOptions;

const MAC: MacAddress = MacAddress([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
const OTHER_MAC: MacAddress = MacAddress([0x52, 0x54, 0, 0xaa, 0xbb, 0xcc]);
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";

/// A stand-in with one node that waits for its agent, and the node's UUID.
fn ironic(change: impl FnOnce(&mut ConductorConfig)) -> (stand_in::Conductor, String) {
    let mut node = stand_in::Node::new("node-1", &[&MAC.to_string()]);
    node.provision_state = ProvisionState::CleanWait;
    let uuid = node.uuid.clone();
    let mut config = ConductorConfig { nodes: vec![node], ..ConductorConfig::default() };
    change(&mut config);
    (stand_in::Conductor::start(config).unwrap(), uuid)
}

fn options(urls: &[String]) -> ConductorOptions {
    ConductorOptions {
        urls: urls.iter().map(|url| url.parse().unwrap()).collect(),
        request_id: Some("req-3b1f".into()),
        api_version: None,
        lookup_timeout: Duration::from_secs(20),
        lookup_interval: Duration::ZERO,
    }
}

fn conductor(urls: &[String]) -> Conductor {
    Conductor::with_options(client(TlsOptions::default()), options(urls))
}

fn announcement(uuid: &str, token: Option<Secret<String>>) -> Announcement {
    Announcement {
        node_uuid: uuid.to_owned(),
        callback_url: "https://192.0.2.10:9999".into(),
        agent_token: token,
        agent_version: "11.9.0".into(),
        agent_verify_ca: Some(CERTIFICATE.into()),
    }
}

fn own_token(answer: &LookupAnswer) -> Option<Secret<String>> {
    match token::judge(answer.config.as_ref().unwrap().agent_token.as_ref(), None) {
        Verdict::Adopt(token) => Some(token),
        _ => None,
    }
}

#[tokio::test]
async fn discovery_lookup_and_heartbeat_satisfy_ironic() {
    let ca = tempfile::NamedTempFile::new().unwrap();
    let (ironic, uuid) = ironic(|config| config.tls_names = Some(vec!["127.0.0.1".into()]));
    std::fs::write(ca.path(), ironic.ca_pem().unwrap()).unwrap();
    let tls = TlsOptions { cafile: Some(ca.path().into()), ..TlsOptions::default() };
    // A trailing slash makes no difference.
    let conductor = Conductor::with_options(client(tls), options(&[format!("{}/", ironic.url())]));

    let answer = conductor.lookup(&[OTHER_MAC, MAC], None).await.unwrap();
    assert_eq!(answer.node.uuid(), Some(uuid.as_str()));
    assert_eq!(lookup::heartbeat_timeout(&answer), Some(Duration::from_secs(300)));
    let token = own_token(&answer);
    assert_eq!(token.as_ref().unwrap().expose().len(), 43);
    conductor.heartbeat(&announcement(&uuid, token)).await.unwrap();

    let requests = ironic.requests();
    let lines: Vec<String> = requests.iter().map(|seen| format!("{} {}", seen.method, seen.path)).collect();
    assert_eq!(lines, ["GET /", "GET /v1/lookup", &format!("POST /v1/heartbeat/{uuid}")]);
    assert_eq!(requests[1].query_value("addresses"), Some("52:54:00:aa:bb:cc,52:54:00:12:34:56"));
    assert!(requests[1].target.contains("%3A") && requests[1].target.contains("%2C"), "{}", requests[1].target);
    let versions: Vec<Option<&str>> = requests.iter().map(stand_in::RecordedRequest::api_version).collect();
    assert_eq!(versions, [None, Some("1.62"), Some("1.68")]);
    for request in &requests {
        assert_eq!(request.headers.get("content-type"), Some("application/json"), "{}", request.path);
        assert_eq!(request.headers.get("accept"), Some("application/json"), "{}", request.path);
        assert_eq!(request.headers.get("x-openstack-request-id"), Some("req-3b1f"), "{}", request.path);
        assert_eq!(request.connection, 1, "one connection is enough");
    }
    let beat = &ironic.heartbeats()[0];
    assert!(beat.accepted());
    let keys: Vec<&String> = beat.body.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["callback_url", "agent_token", "agent_version", "agent_verify_ca"]);
    assert_eq!(beat.text("agent_verify_ca"), Some(CERTIFICATE));
}

#[tokio::test]
async fn heartbeats_hold_only_what_the_api_version_knows() {
    let cases = [
        (Some(ApiVersion { major: 1, minor: 31 }), vec!["callback_url"]),
        (Some(ApiVersion { major: 1, minor: 61 }), vec!["callback_url", "agent_version"]),
        (Some(ApiVersion { major: 1, minor: 67 }), vec!["callback_url", "agent_token", "agent_version"]),
    ];
    for (version, want) in cases {
        let server = Server::start(|_, _| Reply::new(202, "", b"")).await;
        let options = ConductorOptions { api_version: version, ..options(&[server.url("")]) };
        let conductor = Conductor::with_options(client(TlsOptions::default()), options);
        conductor.heartbeat(&announcement("u-u-i-d", None)).await.unwrap();
        let seen = server.seen();
        assert_eq!(seen.len(), 1, "no discovery when the version is given");
        assert_eq!(seen[0].header("x-openstack-ironic-api-version"), version.map(|v| v.to_string()).as_deref());
        let body: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&seen[0].body).unwrap();
        assert_eq!(body.keys().collect::<Vec<_>>(), want, "{version:?}");
        assert!(!want.contains(&"agent_token") || body["agent_token"].is_null());
    }
}

#[tokio::test]
async fn a_failed_discovery_assumes_the_oldest_version_and_is_repeated() {
    let (ironic, _) = ironic(|_| {});
    ironic.script(Endpoint::Root, [Fault::Status(503), Fault::Status(500)]);
    let conductor = conductor(&[ironic.url()]);
    assert_eq!(conductor.version().await, ApiVersion::FALLBACK);
    conductor.lookup_once(&[MAC], None).await.unwrap();
    let lookup = ironic.requests().pop().unwrap();
    assert_eq!(lookup.api_version(), Some("1.31"));
    assert_eq!(conductor.version().await.to_string(), "1.115");
    assert_eq!(conductor.version().await.to_string(), "1.115");
    assert_eq!(ironic.requests_matching(|seen| seen.path == "/").len(), 3, "cached once it is known");
}

#[tokio::test]
async fn a_dead_url_is_passed_over_and_the_one_that_answers_comes_first() {
    let dead = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let broken = Server::start(|_, _| Reply::raw(b"", Then::Close)).await;
    let (ironic, _) = ironic(|_| {});
    let conductor = conductor(&[format!("http://{dead}"), broken.url(""), ironic.url()]);
    conductor.lookup_once(&[MAC], None).await.unwrap();
    assert_eq!(broken.seen().len(), 1, "asked for the version, and then not again");
    // An error status is an answer: no other URL is tried.
    ironic.script(Endpoint::Lookup, [Fault::Status(500)]);
    let error = conductor.lookup_once(&[MAC], None).await.unwrap_err();
    assert_eq!(error.status(), Some(StatusCode::INTERNAL_SERVER_ERROR));
    assert_eq!(broken.seen().len(), 1);
    assert_eq!(conductor.urls().len(), 3);
}

#[tokio::test]
async fn an_answer_that_drips_is_given_up_and_the_next_url_is_asked() {
    let (ironic, uuid) = ironic(|_| {});
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n";
    // In the body, and in the header.
    for start in [head.as_slice(), b"HTTP/1.1 200 OK\r\nX: "] {
        let drips = Server::start(|_, _| {
            let drops = vec![b" ".to_vec(); 1000];
            Reply::raw(start, Then::Pieces(Duration::from_millis(50), drops))
        })
        .await;
        let mut alone = conductor(&[drips.url("")]);
        alone.call_limit = Duration::from_millis(300);
        let error = alone.lookup_once(&[MAC], None).await.unwrap_err();
        let text = error.explain();
        assert!(matches!(error, ConductorError::Unreachable { source: HttpError::TotalTimeout { .. }, .. }), "{text}");
        assert!(text.contains("no whole answer from") && text.contains("within 0.3 s"), "{text}");

        let mut both = conductor(&[drips.url(""), ironic.url()]);
        both.call_limit = Duration::from_millis(300);
        assert_eq!(both.lookup_once(&[MAC], None).await.unwrap().node.uuid(), Some(uuid.as_str()));
    }
    let patient = conductor(&[ironic.url()]);
    assert_eq!(patient.call_limit, Duration::from_secs(60), "with the waits of the options");
}

#[tokio::test]
async fn a_heartbeat_is_not_redirected_to_another_server() {
    let other = Server::start(|_, _| Reply::new(202, "", b"")).await;
    let location = format!("Location: {}\r\n", other.url("/v1/heartbeat/u"));
    for status in [302, 307, 308] {
        let location = location.clone();
        let server = Server::start(move |_, _| Reply::new(status, &location, b"")).await;
        let options = ConductorOptions { api_version: Some(ApiVersion::VERIFY_CA), ..options(&[server.url("")]) };
        let conductor = Conductor::with_options(client(TlsOptions::default()), options);
        let error = conductor.heartbeat(&announcement("u", Some(Secret::new("t".repeat(43))))).await.unwrap_err();
        assert!(error.explain().contains("redirects to another server"), "{}", error.explain());
    }
    assert!(other.seen().is_empty(), "{:?}", other.seen());
}

#[tokio::test]
async fn an_answer_larger_than_any_node_is_refused() {
    let server = Server::start(|_, _| Reply::new(200, "", &vec![b' '; (4 << 20) + 1])).await;
    let error = conductor(&[server.url("")]).lookup_once(&[MAC], None).await.unwrap_err();
    assert!(error.explain().contains("larger than 4194304 bytes"), "{}", error.explain());
}

#[tokio::test]
async fn every_failure_says_what_where_and_what_to_do() {
    let (ironic, uuid) = ironic(|_| {});
    let conductor = conductor(&[ironic.url()]);
    let error = conductor.lookup_once(&[OTHER_MAC], None).await.unwrap_err();
    assert_eq!(error.status(), Some(StatusCode::NOT_FOUND));
    assert!(error.hint().unwrap().contains("no node has a port"), "{error:?}");
    assert!(error.to_string().starts_with(&format!("lookup at {}/: Error 404: ", ironic.url())), "{error}");

    ironic.update_node(&uuid, |node| node.reservation = Some("conductor-2".into())).unwrap();
    let error = conductor.lookup_once(&[MAC], None).await.unwrap_err();
    assert!(error.is_conflict() && error.hint().unwrap().contains("locked"), "{error:?}");
    ironic.update_node(&uuid, |node| node.reservation = None).unwrap();

    ironic.script(
        Endpoint::Lookup,
        [
            Fault::Answer { status: 200, content_type: "text/html".into(), body: b"<html>hello</html>".to_vec() },
            Fault::Patch(json!({"config": {"heartbeat_timeout": null}})),
            Fault::Patch(json!({"node": {"uuid": null}})),
            // A connection that breaks while it is used again is replaced without a word, once.
            Fault::Reset,
            Fault::Reset,
        ],
    );
    for want in ["in JSON", "no heartbeat_timeout", "no node UUID", "cannot be reached"] {
        let error = conductor.lookup_once(&[MAC], None).await.unwrap_err();
        assert!(chain(&error).contains(want), "{want}: {}", chain(&error));
    }
    let token = own_token(&conductor.lookup_once(&[MAC], None).await.unwrap());
    // The reply of an earlier lookup was lost, so that the token is lost too.
    assert_eq!(token, None);
}

#[tokio::test]
async fn the_second_lookup_hands_out_no_token() {
    let (ironic, uuid) = ironic(|_| {});
    let conductor = conductor(&[ironic.url()]);
    let first = conductor.lookup_once(&[MAC], None).await.unwrap();
    assert!(own_token(&first).is_some());
    let second = conductor.lookup_once(&[MAC], Some(&uuid)).await.unwrap();
    let masked = second.config.unwrap().agent_token;
    assert_eq!(token::judge(masked.as_ref(), None), Verdict::Refused);
    assert_eq!(token::judge(masked.as_ref(), own_token(&first).as_ref()), Verdict::Keep);
    assert_eq!(ironic.requests().pop().unwrap().query_value("node_uuid"), Some(uuid.as_str()));
}

#[tokio::test]
async fn the_conductors_objections_to_a_heartbeat_are_explained() {
    let (ironic, uuid) = ironic(|_| {});
    let conductor = conductor(&[ironic.url()]);
    let token = own_token(&conductor.lookup_once(&[MAC], None).await.unwrap());
    let good = announcement(&uuid, token);
    let wrong_token = Secret::new("x".repeat(43));
    let cases = [
        (Announcement { agent_token: Some(wrong_token), ..good.clone() }, 400, "power the machine off and on"),
        (Announcement { callback_url: "http://192.0.2.10:9999".into(), ..good.clone() }, 400, "enable_auto_tls"),
        (
            Announcement { node_uuid: "4c2ebc54-0000-4000-8000-000000000000".into(), ..good.clone() },
            404,
            "node is gone",
        ),
    ];
    for (beat, status, hint) in cases {
        let error = conductor.heartbeat(&beat).await.unwrap_err();
        assert_eq!(error.status().unwrap().as_u16(), status, "{error}");
        assert!(error.hint().is_some_and(|text| text.contains(hint)), "{error}: {:?}", error.hint());
    }
    for status in [200, 204, 409, 500] {
        ironic.script(Endpoint::Heartbeat, [Fault::Answer { status, content_type: String::new(), body: Vec::new() }]);
        let error = conductor.heartbeat(&good).await.unwrap_err();
        assert_eq!(error.status().unwrap().as_u16(), status, "only 202 is success");
    }
    conductor.heartbeat(&good).await.unwrap();
}

#[tokio::test]
async fn the_heartbeater_beats_at_once_and_stops_when_told() {
    let (ironic, uuid) = ironic(|_| {});
    let conductor = Arc::new(conductor(&[ironic.url()]));
    let token = own_token(&conductor.lookup_once(&[MAC], None).await.unwrap());
    let force = Force::new();
    let heartbeater = Heartbeater::spawn(conductor, announcement(&uuid, token), Duration::from_secs(300), &force);
    let mut status = heartbeater.status();
    tokio::time::timeout(Duration::from_secs(10), status.wait_for(|status| status.accepted == 1))
        .await
        .unwrap()
        .unwrap();
    heartbeater.stop().await;
    assert_eq!(ironic.heartbeats().len(), 1);
}

#[tokio::test]
async fn the_clock_of_the_conductor_is_remembered() {
    let server = Server::start(|_, _| Reply::new(404, "Date: Mon, 30 Nov 2026 12:00:00 GMT\r\n", b"{}")).await;
    let conductor = conductor(&[server.url("")]);
    assert!(conductor.last_server_date().is_none());
    conductor.lookup_once(&[MAC], None).await.unwrap_err();
    let date = conductor.last_server_date().unwrap();
    assert_eq!(date.date.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs(), 1_796_040_000);
    assert!(date.now() >= date.date);
}

#[test]
fn settings_without_a_usable_url_are_refused_and_bad_ones_left_out() {
    let from = |urls: &[&str]| {
        let api_urls = urls.iter().map(|url| (*url).to_owned()).collect();
        ConductorOptions::from_config(&Config { api_urls, ..Config::default() })
    };
    assert!(matches!(from(&[]), Err(ConductorError::NoUrl)));
    assert!(matches!(from(&["http://"]), Err(ConductorError::Url(_))));
    let options = from(&["http://", "http://192.0.2.1:6385/"]).unwrap();
    assert_eq!(options.urls.len(), 1);
}

fn inventory() -> Bytes {
    let nic = json!({"name": "eth0", "mac_address": MAC.to_string()});
    Bytes::from(json!({"inventory": {"interfaces": [nic]}, "error": null}).to_string())
}

fn inspecting() -> (stand_in::Conductor, String, String) {
    let (ironic, uuid) = ironic(|config| config.nodes[0].provision_state = ProvisionState::InspectWait);
    let url = format!("{}/v1/continue_inspection", ironic.url());
    (ironic, uuid, url)
}

async fn post(urls: &[String], document: Bytes) -> Result<Option<String>, InspectionError> {
    let client = client(TlsOptions::default()).with_timeout(Duration::from_millis(1500));
    post_with_pauses(&client, urls, Some("req-1"), document, |_| Duration::ZERO).await
}

#[tokio::test]
async fn inspection_data_is_posted_and_names_the_node() {
    let (ironic, uuid, url) = inspecting();
    let dead = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let urls = [format!("http://{dead}/v1/continue_inspection"), url];
    assert_eq!(post(&urls, inventory()).await.unwrap(), Some(uuid));
    let request = ironic.requests().pop().unwrap();
    assert_eq!(request.api_version(), None);
    assert_eq!(request.headers.get("content-type"), Some("application/json"));
    assert_eq!(request.headers.get("x-openstack-request-id"), Some("req-1"));
    assert!(request.query.is_empty());
}

#[tokio::test]
async fn inspection_posts_are_repeated_only_when_that_can_help() {
    let (ironic, uuid, url) = inspecting();
    ironic.script(Endpoint::Inspection, [Fault::Status(409), Fault::Status(503), Fault::Reset, Fault::Status(500)]);
    assert_eq!(post(std::slice::from_ref(&url), inventory()).await.unwrap(), Some(uuid));
    assert_eq!(ironic.requests().len(), 5);

    let (ironic, _, url) = inspecting();
    ironic.script(Endpoint::Inspection, vec![Fault::Status(409); 10]);
    let error = post(&[url], inventory()).await.unwrap_err();
    assert!(matches!(error, InspectionError::Unavailable { tries: 5, .. }) && !error.goes_on(), "{error:?}");
    assert_eq!(ironic.requests().len(), 5);

    let (ironic, _, url) = inspecting();
    let error = post(std::slice::from_ref(&url), Bytes::from_static(b"{}")).await.unwrap_err();
    assert!(matches!(&error, InspectionError::Refused { status, .. } if status.as_u16() == 400), "{error:?}");
    assert!(error.goes_on() && error.to_string().contains("Schema error"), "{error}");
    assert_eq!(ironic.requests().len(), 1);

    ironic.script(Endpoint::Inspection, [Fault::Hang(Duration::from_secs(5))]);
    let error = post(&[url], inventory()).await.unwrap_err();
    assert!(matches!(error, InspectionError::NoAnswer(_)) && !error.goes_on(), "{error:?}");
    assert_eq!(ironic.requests().len(), 2, "a server that stays silent may have the data");

    assert!(matches!(post(&[], inventory()).await, Err(InspectionError::NoUrl(None))));
    assert!(matches!(post(&["mdns".into()], inventory()).await, Err(InspectionError::NoUrl(Some(_)))));
}
