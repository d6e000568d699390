//! The agent's API on a booted machine, over its own TLS, from outside.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferric_qemu::conductor::flow::probe;
use ferric_qemu::conductor::{AgentClient, RawRequest, RawResponse, Wait};
use ferric_tests::{AGENT_ADDRESS, Bench, Plan, note};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, SupportedProtocolVersion};
use serde_json::{Value, json};

#[test]
fn every_answer_is_as_specified_and_no_client_hurts_another() {
    let mut plan = Plan::new("api");
    plan.image = "faulty".to_owned();
    let bench = plan.boot(Ok).unwrap();
    let agent = bench.agent().unwrap();
    let token = bench.node().unwrap().agent_token().unwrap().to_owned();
    let api = Api { agent: &agent, token: &token };
    pages_are_open_and_answer_head(&api);
    faults_are_as_specified(&api);
    probe::token_is_required(&agent).unwrap();
    probe::unknown_commands_are_refused(&agent).unwrap();
    probe::broken_bodies_are_refused(&agent, &token).unwrap();
    failures_are_records(&api);
    busy_agent_refuses_and_shows_progress(&bench, &api);
    old_tls_is_refused(&bench);
    bad_clients_hurt_nobody(&bench, &api);
    thousand_requests_are_answered(&api);
    large_bodies_are_refused_by_size(&api);
    assert_eq!(bench.worker_ends(), 0, "{}", bench.excerpts());
    let console = bench.vm().console().text();
    assert!(!console.contains(&token), "the token is on the console");
}

struct Api<'a> {
    agent: &'a AgentClient,
    token: &'a str,
}

impl Api<'_> {
    fn send(&self, method: &str, target: &str, body: &str) -> RawResponse {
        let request = RawRequest::new(method, target).body(body);
        self.agent.raw(&request).unwrap_or_else(|error| panic!("{method} {target}: {error:?}"))
    }

    fn get(&self, target: &str) -> RawResponse {
        self.send("GET", target, "")
    }

    fn with_token(&self, target: &str) -> String {
        format!("{target}?agent_token={}", self.token)
    }

    fn post(&self, body: &Value) -> RawResponse {
        self.send("POST", &self.with_token("/v1/commands/"), &body.to_string())
    }
}

fn fault_of(response: &RawResponse) -> String {
    let body = response.json().unwrap_or_else(|| panic!("no JSON: {}", response.text()));
    let code = if response.status >= 500 { "Server" } else { "Client" };
    assert_eq!(body["faultcode"], code, "{body}");
    assert_eq!(response.headers.get("content-type"), Some("application/json"), "{body}");
    body["faultstring"].as_str().unwrap_or_else(|| panic!("no faultstring: {body}")).to_owned()
}

fn pages_are_open_and_answer_head(api: &Api<'_>) {
    let root = api.get("/");
    assert_eq!(root.headers.get("server"), Some("ironic-python-agent"));
    let root = root.json().unwrap();
    assert_eq!(root["default_version"]["links"][0]["href"], format!("https://{AGENT_ADDRESS}/v1"), "{root}");
    assert_eq!(api.get("/v1/").json().unwrap()["id"], "v1");
    for path in ["/v1/status", "/status"] {
        let status = api.get(path).json().unwrap();
        assert!(status["started_at"].as_f64().unwrap() > 1.7e9 && status["version"].is_string(), "{status}");
    }
    for path in ["/", "/v1/", "/v1/status", &api.with_token("/v1/commands/")] {
        let answer = api.send("HEAD", path, "");
        assert_eq!((answer.status, answer.body.len()), (200, 0), "{path}");
    }
    for (method, path) in [("GET", "/v1"), ("GET", "/v1/commands"), ("POST", "/v1/commands"), ("PUT", "/v1/commands")] {
        let answer = api.send(method, &api.with_token(path), "");
        let location = format!("https://{AGENT_ADDRESS}{}", api.with_token(&format!("{path}/")));
        assert_eq!((answer.status, answer.headers.get("location")), (308, Some(location.as_str())), "{method} {path}");
    }
}

fn faults_are_as_specified(api: &Api<'_>) {
    for path in ["/nope", "/v1/status/", "/v2/"] {
        let answer = api.get(path);
        assert_eq!(answer.status, 404, "{path}");
        assert!(fault_of(&answer).starts_with("404 Not Found: The requested URL was not found"), "{path}");
    }
    for method in ["PUT", "DELETE", "OPTIONS", "PATCH"] {
        let answer = api.send(method, &api.with_token("/v1/commands/"), "");
        assert_eq!((answer.status, answer.headers.get("allow")), (405, Some("GET, HEAD, POST")), "{method}");
        assert!(fault_of(&answer).starts_with("405 Method Not Allowed: "), "{method}");
    }
    let answer = api.get(&api.with_token("/v1/commands/abc"));
    assert_eq!((answer.status, fault_of(&answer).as_str()), (404, "Not found: Command Result with id abc not found."));
    let answer = api.post(&json!({"name": "standby.prepare_image", "params": {"image_info": {"urls": ["http://x"]}}}));
    let text = "Invalid command parameters: Image is missing 'id' field.";
    assert_eq!((answer.status, fault_of(&answer).as_str()), (400, text));
    for body in ["null", "7", "\"x\""] {
        let answer = api.send("POST", &api.with_token("/v1/commands/"), body);
        // Python's text with 500 in the reference agent; the client's fault here.
        let text = "400 Bad Request: Missing or invalid name or params";
        assert_eq!((answer.status, fault_of(&answer).as_str()), (400, text), "{body}");
    }
}

/// Wrong parameters become a failed record, answered 200, and the list stays readable.
fn failures_are_records(api: &Api<'_>) {
    let answer = api.post(&json!({"name": "standby.sync", "params": {"bogus": 1}}));
    let record = answer.json().unwrap();
    assert_eq!((answer.status, &record["command_status"]), (200, &json!("FAILED")), "{record}");
    assert_eq!(record["command_name"], "standby.sync");
    assert!(record["command_error"]["type"].is_string() && record["command_error"]["code"].is_u64(), "{record}");
    let answer = api.post(&json!({"name": "standby.sync", "params": {}}));
    let record = answer.json().unwrap();
    let keys: Vec<&String> = record.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["id", "command_name", "command_status", "command_error", "command_result"]);
    assert_eq!((&record["command_name"], &record["command_status"]), (&json!("sync"), &json!("SUCCEEDED")));
    let shown = api.get(&api.with_token(&format!("/commands/{}", record["id"].as_str().unwrap())));
    assert_eq!(shown.json().unwrap(), record);
    assert_eq!(api.agent.commands().unwrap().len(), 2);
}

fn busy_agent_refuses_and_shows_progress(bench: &Bench, api: &Api<'_>) {
    let params = json!({"seconds": 20});
    let running = probe::lost_reply_is_recognized(api.agent, "faulty.sleep", &params).unwrap();
    probe::busy_agent_refuses(api.agent, &running).unwrap();
    assert_eq!(api.post(&json!({"name": "nodot", "params": {}})).status, 400, "a bad name counts even while busy");
    assert_eq!(api.post(&json!({"name": "nope.x", "params": {}})).status, 409, "extensions are looked up when idle");
    let end = Instant::now() + bench.limit(5);
    loop {
        let record = api.get(&api.with_token(&format!("/v1/commands/{}", running.id))).json().unwrap();
        if record["progress"]["phase"] == "sleeping" {
            break;
        }
        assert!(Instant::now() < end, "no progress: {record}");
    }
    let ended = probe::wait_for_end(api.agent, &running.id, bench.limit(30)).unwrap();
    assert_eq!(ended.command_status, "SUCCEEDED");
    assert!(ended.extra.is_empty(), "{ended:?}");
}

fn large_bodies_are_refused_by_size(api: &Api<'_>) {
    let body = |bytes: usize| {
        let filler = "x".repeat(bytes);
        json!({"name": "standby.sync", "params": {"filler": filler}}).to_string()
    };
    let accepted = api.send("POST", &api.with_token("/v1/commands/"), &body(4 << 20));
    assert_eq!(accepted.status, 200, "{}", accepted.text());
    let refused = api.send("POST", &api.with_token("/v1/commands/"), &body(17 << 20));
    assert_eq!(refused.status, 413, "{}", refused.text());
    fault_of(&refused);
    // Several of the largest at once, and many small values, in 128 MiB.
    std::thread::scope(|scope| {
        let one = || api.send("POST", &api.with_token("/v1/commands/"), &body(15 << 20)).status;
        let all: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
        let all: Vec<u16> = all.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(all.iter().all(|status| [200, 408].contains(status)), "{all:?}");
    });
    let objects = json!({"name": "standby.sync", "params": {"a": vec![json!({"a": 0}); 95_000]}});
    assert_eq!(api.post(&objects).status, 400);
    assert_eq!(api.get("/v1/status").status, 200);
    let head = RawRequest::new("GET", "/v1/status").header("X-Long", &"y".repeat(300_000));
    if let Ok(refused) = api.agent.raw(&head) {
        assert!((400..500).contains(&refused.status), "{}", refused.status);
    }
    assert_eq!(api.get("/v1/status").status, 200);
}

/// What a handshake with one version of TLS fails on; no certificate is trusted, so that a good one fails too.
fn handshake(bench: &Bench, version: &'static SupportedProtocolVersion) -> String {
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = ServerName::try_from("10.0.2.15").unwrap();
    let mut session = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = connect(bench);
    loop {
        match session.complete_io(&mut stream) {
            Ok(_) if session.is_handshaking() => {}
            Ok(_) => return "no error".to_owned(),
            Err(error) => return error.to_string(),
        }
    }
}

fn connect(bench: &Bench) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", bench.vm().agent_port().unwrap())).unwrap();
    stream.set_read_timeout(Some(bench.limit(5))).unwrap();
    stream
}

/// The lookup's answer says `tls_min_version` 1.3.
fn old_tls_is_refused(bench: &Bench) {
    let old = handshake(bench, &rustls::version::TLS12);
    assert!(old.contains("ProtocolVersion"), "TLS 1.2: {old}");
    let new = handshake(bench, &rustls::version::TLS13);
    assert!(new.contains("UnknownIssuer"), "TLS 1.3: {new}");
}

fn bad_clients_hurt_nobody(bench: &Bench, api: &Api<'_>) {
    // Silent, half a handshake, garbage instead of one.
    let mut open = Vec::new();
    for bytes in [&b""[..], b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/1.1\r\n\r\n", &[0xff; 4096]] {
        for _ in 0..8 {
            let mut stream = connect(bench);
            match stream.write_all(bytes) {
                Ok(()) => {}
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {}
                Err(error) => panic!("{error}"),
            }
            open.push(stream);
        }
    }
    let patience = bench.limit(1);
    std::thread::scope(|scope| {
        // Half a request over good TLS, and requests that are none.
        for bytes in [&b"POST /v1/commands/?agent_token="[..], b"GET /v1/sta", b"\0\0\0\r\n\r\n", b"FROB\r\n\r\n"] {
            let slow = bench.conductor.agent(&bench.uuid).unwrap().with_timeout(patience);
            scope.spawn(move || match slow.raw_bytes(bytes) {
                Ok(answer) => assert!((400..500).contains(&answer.status), "{bytes:?}: {}", answer.status),
                Err(_closed_or_waited) => {}
            });
        }
        let began = Instant::now();
        assert_eq!(api.get("/v1/status").status, 200);
        let record = api.agent.command("standby.sync", &json!({}), Wait::ForResult).unwrap();
        assert_eq!(record.command_status, "SUCCEEDED");
        assert!(began.elapsed() < patience, "a bad client held others up for {:?}", began.elapsed());
    });
    // Garbage is not waited for until the handshake's time is over.
    let mut garbage = open.pop().unwrap();
    garbage.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let mut byte = [0];
    assert!(!matches!(garbage.read(&mut byte), Err(error) if error.kind() == ErrorKind::WouldBlock), "still open");
}

fn thousand_requests_are_answered(api: &Api<'_>) {
    let began = Instant::now();
    let mut slowest = Duration::ZERO;
    for _ in 0..1000 {
        let sent = Instant::now();
        assert_eq!(api.get("/v1/status").status, 200);
        slowest = slowest.max(sent.elapsed());
    }
    let took = began.elapsed();
    note(&format!("1000 GET /v1/status over one connection: {took:.2?}, the slowest {slowest:.2?}"));
    assert!(slowest < Duration::from_secs(5), "{slowest:?}");
}
