//! The agent client against a small agent made of threads: what it pins, retries and refuses.

use super::*;
use crate::conductor::wire::{Headers, MessageReader, write_message};
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P384_SHA384, date_time_ymd};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned, SupportedProtocolVersion};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

/// One request as the agent saw it: method, target, body.
type Seen = (String, String, String);

/// What the agent does with a request: status and body, or hang up.
enum Does {
    Answer(u16, String),
    HangUp,
}

struct Agent {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Agent {
    fn start(tls: Option<ServerConfig>, script: impl Fn(usize, &Seen) -> Does + Send + Sync + 'static) -> Agent {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (log, tls, script) = (Arc::clone(&seen), tls.map(Arc::new), Arc::new(script));
        thread::spawn(move || {
            for tcp in listener.incoming().map_while(Result::ok) {
                let (log, script, tls) = (Arc::clone(&log), Arc::clone(&script), tls.clone());
                thread::spawn(move || match tls {
                    None => serve(tcp, &log, script.as_ref()),
                    Some(config) => {
                        serve(StreamOwned::new(ServerConnection::new(config).unwrap(), tcp), &log, script.as_ref());
                    }
                });
            }
        });
        Agent { address, seen }
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

fn serve(mut stream: impl Read + Write, log: &Mutex<Vec<Seen>>, script: &dyn Fn(usize, &Seen) -> Does) {
    let mut reader = MessageReader::default();
    while let Ok(head) = reader.request_head(&mut stream) {
        let body = reader.request_body(&mut stream, &head.headers, 1 << 20).unwrap();
        let request = (head.method, head.target, String::from_utf8(body).unwrap());
        let number = {
            let mut log = log.lock().unwrap();
            log.push(request.clone());
            log.len()
        };
        let Does::Answer(status, body) = script(number, &request) else { return };
        let mut headers = Headers::default();
        headers.push("Content-Length", body.len().to_string());
        write_message(&mut stream, &format!("HTTP/1.1 {status} X"), &headers, body.as_bytes()).unwrap();
    }
}

fn record(name: &str, status: &str) -> String {
    json!({"id": "1", "command_name": name, "command_status": status, "command_error": null, "command_result": null})
        .to_string()
}

fn client(agent: &Agent) -> AgentClient {
    AgentClient::new(&format!("http://{}", agent.address), None, Some("to/ken"))
        .unwrap()
        .with_timeout(Duration::from_secs(5))
}

fn certificate(names: &[&str], change: impl Fn(&mut CertificateParams)) -> (String, PrivateKeyDer<'static>) {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap();
    let mut params = CertificateParams::new(names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>()).unwrap();
    change(&mut params);
    let pem = params.self_signed(&key).unwrap().pem();
    (pem, PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())))
}

fn server(pem: &str, key: PrivateKeyDer<'static>, versions: &[&'static SupportedProtocolVersion]) -> ServerConfig {
    ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![tls::certificate_of_pem(pem).unwrap()], key)
        .unwrap()
}

const TLS13: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];
const TLS12: &[&SupportedProtocolVersion] = &[&rustls::version::TLS12];

#[test]
fn a_command_goes_out_as_ironic_sends_it() {
    let agent = Agent::start(None, |_, _| Does::Answer(200, record("get_clean_steps", "SUCCEEDED")));
    let client = client(&agent);
    let params = json!({"node": {}, "ports": []});
    let record = client.command("clean.get_clean_steps", &params, Wait::ForResult).unwrap();
    assert_eq!((record.command_name.as_str(), record.is_running()), ("get_clean_steps", false));
    let (method, target, body) = agent.seen().remove(0);
    assert_eq!((method.as_str(), target.as_str()), ("POST", "/v1/commands/?wait=true&agent_token=to%2Fken"));
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body, json!({"name": "clean.get_clean_steps", "params": params}));
}

#[test]
fn the_pinned_certificate_is_the_only_one_accepted() {
    let good = certificate(&["10.0.2.15"], |_| ());
    let other = certificate(&["10.0.2.15"], |_| ());
    let expired = certificate(&["10.0.2.15"], |p| p.not_after = date_time_ymd(2020, 1, 1));
    let early = certificate(&["10.0.2.15"], |p| p.not_before = date_time_ymd(2100, 1, 1));
    let elsewhere = certificate(&["10.0.2.16"], |_| ());
    let named = certificate(&["10.0.2.15.example"], |_| ());
    let key = |(pem, key): &(String, PrivateKeyDer<'static>)| (pem.clone(), key.clone_key());
    for (case, served, pinned, versions, accepted) in [
        ("the announced one", key(&good), &good.0, TLS13, true),
        ("another one", key(&other), &good.0, TLS13, false),
        ("expired", key(&expired), &expired.0, TLS13, false),
        ("not valid yet", key(&early), &early.0, TLS13, false),
        ("for another address", key(&elsewhere), &elsewhere.0, TLS13, false),
        ("for a name only", key(&named), &named.0, TLS13, false),
        ("over TLS 1.2", key(&good), &good.0, TLS12, false),
    ] {
        let config = server(&served.0, served.1, versions);
        let agent = Agent::start(Some(config), |_, _| Does::Answer(200, json!({"commands": []}).to_string()));
        let client =
            AgentClient::new("https://10.0.2.15:9999", Some(pinned), None).unwrap().connecting_to(agent.address);
        let result = client.commands();
        assert_eq!(result.is_ok(), accepted, "{case}: {result:?}");
        if !accepted {
            assert!(matches!(result, Err(AgentError::Connection { .. })), "{case}: {result:?}");
        }
    }
}

#[test]
fn a_server_that_shows_the_certificate_without_owning_its_key_is_refused() {
    let (good, _) = certificate(&["10.0.2.15"], |_| ());
    let (_, thiefs_key) = certificate(&["10.0.2.15"], |_| ());
    let provider = rustls::crypto::ring::default_provider();
    let signing_key = provider.key_provider.load_private_key(thiefs_key).unwrap();
    // Built without the check that key and certificate belong together.
    let pair = rustls::sign::CertifiedKey::new(vec![tls::certificate_of_pem(&good).unwrap()], signing_key);
    let config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(TLS13)
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(pair)));
    let agent = Agent::start(Some(config), |_, _| Does::Answer(200, json!({"commands": []}).to_string()));
    let client = AgentClient::new("https://10.0.2.15:9999", Some(&good), None).unwrap().connecting_to(agent.address);
    assert!(matches!(client.commands(), Err(AgentError::Connection { .. })));
}

#[test]
fn an_https_agent_without_a_usable_certificate_is_an_error_of_its_own() {
    assert!(matches!(AgentClient::new("https://10.0.2.15:9999", None, None), Err(AgentError::NoCertificate { .. })));
    let nonsense = AgentClient::new("https://10.0.2.15:9999", Some("nonsense"), None);
    assert!(matches!(nonsense, Err(AgentError::Certificate { .. })));
    assert!(matches!(AgentClient::new("10.0.2.15", None, None), Err(AgentError::BadUrl { .. })));
}

#[test]
fn refusals_are_told_apart() {
    let busy = r#"{"faultcode":"Client","faultstring":"Agent is busy: executing command x"}"#;
    for (case, status, body, expected) in [
        ("409", 409, r#"{"faultstring":"no"}"#, "InProgress"),
        ("busy by text", 500, busy, "InProgress"),
        ("401", 401, r#"{"faultstring":"401 Unauthorized"}"#, "Api"),
        ("404", 404, r#"{"faultstring":"Not found"}"#, "Api"),
        ("no faultstring", 400, r#"{"error":"x"}"#, "MissingFaultstring"),
        ("null faultstring", 400, r#"{"faultstring":null}"#, "MissingFaultstring"),
        ("not JSON", 502, "<html>", "BadAnswer"),
        ("JSON of another kind", 200, "[]", "BadAnswer"),
    ] {
        let body = body.to_owned();
        let agent = Agent::start(None, move |_, _| Does::Answer(status, body.clone()));
        let error = client(&agent).command("standby.sync", &json!({}), Wait::ForResult).unwrap_err();
        assert!(format!("{error:?}").starts_with(expected), "{case}: {error:?}");
    }
}

#[test]
fn a_type_error_is_taken_for_an_old_agent() {
    let mut answer: Value = serde_json::from_str(&record("sync", "FAILED")).unwrap();
    answer["command_error"] = json!({"type": "TypeError", "code": 500, "message": "m", "details": "d"});
    let agent = Agent::start(None, move |_, _| Does::Answer(200, answer.to_string()));
    let error = client(&agent).command("standby.sync", &json!({}), Wait::ForResult).unwrap_err();
    assert!(matches!(&error, AgentError::Api { status: 500, fault, .. } if fault == "d"), "{error:?}");
}

#[test]
fn a_lost_reply_is_made_up_for_from_the_command_list() {
    let running = format!("{{\"commands\":[{}]}}", record("execute_clean_step", "RUNNING"));
    let agent = Agent::start(
        None,
        move |_, (method, ..)| {
            if method == "POST" { Does::HangUp } else { Does::Answer(200, running.clone()) }
        },
    );
    let record = client(&agent).command("clean.execute_clean_step", &json!({}), Wait::No).unwrap();
    assert!(record.is_running());
    assert_eq!(agent.seen().iter().filter(|(method, ..)| method == "POST").count(), 1);
}

#[test]
fn a_lost_reply_of_a_command_that_is_not_running_is_sent_three_times() {
    for (case, list) in [
        ("empty", "{\"commands\":[]}".to_owned()),
        ("ended", format!("{{\"commands\":[{}]}}", record("sync", "SUCCEEDED"))),
        ("another", format!("{{\"commands\":[{}]}}", record("power_off", "RUNNING"))),
    ] {
        let agent = Agent::start(
            None,
            move |_, (method, ..)| {
                if method == "POST" { Does::HangUp } else { Does::Answer(200, list.clone()) }
            },
        );
        let error = client(&agent).command("standby.sync", &json!({}), Wait::ForResult).unwrap_err();
        assert!(matches!(error, AgentError::Connection { .. }), "{case}: {error:?}");
        assert_eq!(agent.seen().iter().filter(|(method, ..)| method == "POST").count(), 3, "{case}");
    }
}

#[test]
fn polling_looks_at_the_newest_record_of_the_name() {
    let record = |status| serde_json::from_str::<Value>(&record("install_bootloader", status)).unwrap();
    let (old, running, done) = (record("FAILED"), record("RUNNING"), record("SUCCEEDED"));
    let agent = Agent::start(None, move |number, (method, ..)| {
        let list = if number < 4 { json!([old, running]) } else { json!([old, done]) };
        Does::Answer(200, if method == "POST" { running.to_string() } else { json!({"commands": list}).to_string() })
    });
    let step = Duration::from_millis(1);
    let ended = client(&agent).command_polled("image.install_bootloader", &json!({}), step, Duration::from_secs(5));
    assert_eq!(ended.unwrap().command_status, "SUCCEEDED");
    assert_eq!(agent.seen().len(), 4);
}

#[test]
fn a_list_without_commands_fails_whatever_its_status() {
    for (status, body) in [(401, r#"{"faultstring":"x"}"#), (200, "{}"), (500, "oops")] {
        let agent = Agent::start(None, move |_, _| Does::Answer(status, body.to_owned()));
        let error = client(&agent).commands().unwrap_err();
        assert!(matches!(error, AgentError::BadAnswer { .. }), "{status}: {error:?}");
    }
}

#[test]
fn a_connection_is_kept_and_replaced_when_the_agent_closed_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let served = thread::spawn(move || {
        let answer_two = |mut tcp: TcpStream| {
            let mut reader = MessageReader::default();
            for _ in 0..2 {
                reader.request_head(&mut tcp).unwrap();
                tcp.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
            }
        };
        for _ in 0..2 {
            answer_two(listener.accept().unwrap().0);
        }
    });
    let client = AgentClient::new(&url, None, None).unwrap();
    for _ in 0..4 {
        assert_eq!(client.raw(&RawRequest::new("GET", "/")).unwrap().status, 200);
        thread::sleep(Duration::from_millis(50));
    }
    served.join().unwrap();
}

#[test]
fn the_error_text_is_what_ironic_would_show() {
    for (error, text) in [
        (json!({"details": "d", "message": "m"}), "d"),
        (json!({"details": null, "message": "m"}), "m"),
        (json!("plain"), "plain"),
        (json!(null), "Invalid agent response"),
        (json!({"code": 1}), "{\"code\":1}"),
    ] {
        let mut record: CommandRecord = serde_json::from_str(&record("x", "FAILED")).unwrap();
        record.command_error = error;
        assert_eq!(record.error_text(), text);
    }
}
