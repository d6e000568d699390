//! The stand-in conductor against plain requests: every refusal, the token rules, the faults.

use super::*;
use serde_json::json;
use std::io::{Read as _, Write as _};

const MAC: &str = "52:54:00:12:34:56";
const URL: &str = "https://10.0.2.15:9999";
const LIMIT: Duration = Duration::from_secs(10);

struct Lab {
    conductor: Conductor,
    uuid: String,
    http: AgentClient,
}

/// A conductor with one node in this state, and a client without any manners of its own.
fn lab(state: ProvisionState) -> Lab {
    let mut node = Node::new("node-1", &[MAC]);
    node.provision_state = state;
    let uuid = node.uuid.clone();
    let conductor = Conductor::start(ConductorConfig { nodes: vec![node], ..ConductorConfig::default() }).unwrap();
    let http = AgentClient::new(&conductor.url(), None, None).unwrap();
    Lab { conductor, uuid, http }
}

impl Lab {
    fn get(&self, target: &str, version: &str) -> RawResponse {
        self.http.raw(&RawRequest::new("GET", target).header(VERSION_HEADER, version)).unwrap()
    }

    fn lookup(&self) -> RawResponse {
        self.get(&format!("/v1/lookup?addresses={MAC}"), "1.62")
    }

    fn token(&self) -> String {
        self.lookup().json().unwrap()["config"]["agent_token"].as_str().unwrap().to_owned()
    }

    fn beat_as(&self, version: &str, body: &Value) -> RawResponse {
        let request = RawRequest::new("POST", &format!("/v1/heartbeat/{}", self.uuid));
        self.http.raw(&request.header(VERSION_HEADER, version).body(body.to_string())).unwrap()
    }

    fn beat(&self, body: &Value) -> RawResponse {
        self.beat_as("1.68", body)
    }

    fn inspect(&self, body: &Value) -> RawResponse {
        self.http.raw(&RawRequest::new("POST", "/v1/continue_inspection").body(body.to_string())).unwrap()
    }
}

fn beat_body(token: &str) -> Value {
    json!({"callback_url": URL, "agent_token": token, "agent_version": "1.0", "agent_verify_ca": "PEM\n"})
}

/// The text in an error of Ironic, which is JSON inside of JSON.
fn fault_text(response: &RawResponse) -> String {
    let outer = response.json().unwrap();
    let inner: Value = serde_json::from_str(outer["error_message"].as_str().unwrap()).unwrap();
    inner["faultstring"].as_str().or(inner["message"].as_str()).unwrap().to_owned()
}

#[test]
fn the_root_announces_the_version_range() {
    let lab = lab(ProvisionState::CleanWait);
    let root = lab.http.raw(&RawRequest::new("GET", "/")).unwrap();
    assert_eq!(root.status, 200);
    assert_eq!(root.json().unwrap()["default_version"]["version"], "1.115");
    lab.conductor.configure(|s| s.max_version = ApiVersion(61));
    assert_eq!(
        lab.http.raw(&RawRequest::new("GET", "/")).unwrap().json().unwrap()["default_version"]["version"],
        "1.61"
    );
}

#[test]
fn lookup_is_refused_row_by_row() {
    let lab = lab(ProvisionState::CleanWait);
    let known = format!("addresses={MAC}");
    for (case, query, version, status) in [
        ("unknown key", format!("{known}&colour=red"), "1.62", 400),
        ("no usable address", "addresses=nonsense".to_owned(), "1.62", 400),
        ("nothing at all", String::new(), "1.62", 400),
        ("bad uuid", format!("{known}&node_uuid=7"), "1.62", 400),
        ("unknown address", "addresses=52:54:00:00:00:99".to_owned(), "1.62", 404),
        ("unknown uuid", format!("{known}&node_uuid=00000000-0000-4000-8000-000000000000"), "1.62", 404),
        ("old version", known.clone(), "1.21", 404),
        ("too new version", known.clone(), "1.116", 406),
        ("version that is none", known.clone(), "new", 406),
        ("upper case, encoded, among others", "addresses=junk%2C52%3A54%3A00%3A12%3A34%3A56".to_owned(), "1.62", 200),
    ] {
        assert_eq!(lab.get(&format!("/v1/lookup?{query}"), version).status, status, "{case}");
    }
    assert_eq!(lab.http.raw(&RawRequest::new("POST", "/v1/lookup")).unwrap().status, 405);
    assert_eq!(lab.get("/v1/nodes", "1.62").status, 404);
    assert_eq!(lab.get("/nonsense", "1.62").status, 404);
}

#[test]
fn a_node_is_shown_only_in_states_that_expect_a_ramdisk() {
    for (state, plain, fast) in [
        (ProvisionState::Manageable, 404, 200),
        (ProvisionState::Active, 404, 404),
        (ProvisionState::InspectWait, 200, 200),
        (ProvisionState::ServiceWait, 200, 200),
    ] {
        let lab = lab(state);
        assert_eq!(lab.lookup().status, plain, "{state}");
        lab.conductor.update_node(&lab.uuid, |n| n.fast_track = true).unwrap();
        assert_eq!(lab.lookup().status, fast, "{state} with fast track");
    }
}

#[test]
fn an_address_that_two_nodes_have_finds_none() {
    let lab = lab(ProvisionState::CleanWait);
    let mut twin = Node::new("node-2", &[MAC]);
    twin.provision_state = ProvisionState::CleanWait;
    let twin_uuid = twin.uuid.clone();
    lab.conductor.add_node(twin);
    assert_eq!(lab.lookup().status, 404);
    assert_eq!(lab.get(&format!("/v1/lookup?addresses={MAC}&node_uuid={twin_uuid}"), "1.62").status, 200);
}

#[test]
fn a_token_is_given_once_and_again_after_a_power_cycle() {
    let lab = lab(ProvisionState::CleanWait);
    let first = lab.token();
    assert_eq!(first.len(), 43);
    assert_eq!(lab.token(), MASKED);
    lab.conductor.update_node(&lab.uuid, Node::forget_agent).unwrap();
    let second = lab.token();
    assert!(second.len() == 43 && second != first);
    lab.conductor.update_node(&lab.uuid, |n| n.pregenerate_token()).unwrap();
    assert_eq!(lab.token(), MASKED, "a token made before the boot is never shown");
}

#[test]
fn a_locked_node_gets_409_only_while_it_has_no_token() {
    let lab = lab(ProvisionState::CleanWait);
    lab.conductor.update_node(&lab.uuid, |n| n.reservation = Some("host".to_owned())).unwrap();
    let locked = lab.lookup();
    assert_eq!(locked.status, 409);
    assert!(fault_text(&locked).contains("is locked by host host"));
    lab.conductor.update_node(&lab.uuid, |n| n.reservation = None).unwrap();
    lab.token();
    lab.conductor.update_node(&lab.uuid, |n| n.reservation = Some("host".to_owned())).unwrap();
    assert_eq!(lab.lookup().status, 200);
}

#[test]
fn lookups_hide_secrets_but_not_root_device_hints() {
    let lab = lab(ProvisionState::DeployWait);
    lab.conductor
        .update_node(&lab.uuid, |n| {
            n.instance_info =
                node::object(json!({"root_device": {"serial": "x"}, "configdrive": "H4s", "image_url": "u"}));
        })
        .unwrap();
    let answer = lab.lookup().json().unwrap();
    assert_eq!(
        answer["node"]["instance_info"],
        json!({"root_device": {"serial": "x"}, "configdrive": MASKED, "image_url": MASKED})
    );
    assert_eq!(answer["node"]["driver_internal_info"]["agent_secret_token"], MASKED);
    assert_eq!(answer["config"]["heartbeat_timeout"], 300);
}

#[test]
fn an_accepted_heartbeat_is_202_without_body_or_content_type() {
    let lab = lab(ProvisionState::CleanWait);
    let token = lab.token();
    let answer = lab.beat(&beat_body(&token));
    assert_eq!((answer.status, answer.body.len()), (202, 0));
    assert_eq!(answer.headers.get("content-type"), None);
    assert_eq!(answer.headers.get("content-length"), Some("0"));
    let beat = lab.conductor.wait_for_heartbeat(LIMIT).unwrap();
    assert_eq!((beat.effect, beat.text("callback_url")), (HeartbeatEffect::Drives, Some(URL)));
    let node = lab.conductor.node(&lab.uuid).unwrap();
    assert_eq!((node.agent_url(), node.agent_certificate.as_deref()), (Some(URL), Some("PEM\n")));
    assert!(node.internal_text("agent_last_heartbeat").is_some());
}

#[test]
fn heartbeats_are_refused_row_by_row() {
    let lab = lab(ProvisionState::CleanWait);
    let token = lab.token();
    let with = |change: &dyn Fn(&mut Value)| {
        let mut body = beat_body(&token);
        change(&mut body);
        body
    };
    let set = |key: &'static str, value: Value| with(&move |b| b[key] = value.clone());
    let without = |key: &'static str| with(&move |b| drop(b.as_object_mut().unwrap().remove(key)));
    for (case, version, body, status, text) in [
        ("extra key", "1.68", set("progress", json!(1)), 400, "Unexpected arguments: progress"),
        ("token that is no text", "1.68", set("agent_token", json!(7)), 400, "Expected string for agent_token"),
        ("no url", "1.68", without("callback_url"), 400, "callback_url"),
        ("old api", "1.21", without("agent_verify_ca"), 404, "could not be found"),
        ("version too early", "1.35", without("agent_verify_ca"), 400, "agent_version"),
        ("certificate too early", "1.67", set("x", json!(null)), 400, "Unexpected arguments"),
        ("certificate too early", "1.67", beat_body(&token), 400, "agent_verify_ca"),
        ("status too early", "1.68", set("agent_status", json!("end")), 400, "agent_status"),
        ("strange scheme", "1.68", set("callback_url", json!("gopher://10.0.2.15:9999")), 400, "callback_url"),
        ("no token", "1.68", without("agent_token"), 400, "token is required"),
        ("null token", "1.68", set("agent_token", json!(null)), 400, "token is required"),
        ("no version", "1.68", without("agent_version"), 400, "did not transmit a version"),
        ("wrong token", "1.68", set("agent_token", json!("x".repeat(43))), 400, "Invalid or missing agent token"),
        ("plain http", "1.68", set("callback_url", json!("http://10.0.2.15:9999")), 400, "TLS is required"),
    ] {
        let answer = lab.beat_as(version, &body);
        assert_eq!(answer.status, status, "{case}: {}", answer.text());
        assert!(fault_text(&answer).contains(text), "{case}: {}", answer.text());
    }
    let stranger = RawRequest::new("POST", "/v1/heartbeat/stranger").header(VERSION_HEADER, "1.68");
    assert_eq!(lab.http.raw(&stranger.body(beat_body(&token).to_string())).unwrap().status, 404);
    assert!(lab.conductor.heartbeats().iter().all(|b| !b.accepted()));
    assert_eq!(lab.conductor.node(&lab.uuid).unwrap().agent_url(), None);
}

#[test]
fn address_and_certificate_must_stay_the_same() {
    let lab = lab(ProvisionState::CleanWait);
    let token = lab.token();
    assert_eq!(lab.beat(&beat_body(&token)).status, 202);
    for (key, text) in [("callback_url", "callback_url"), ("agent_verify_ca", "agent_verify_ca")] {
        let mut body = beat_body(&token);
        body[key] = json!("https://10.0.2.16:9999");
        let answer = lab.beat(&body);
        assert_eq!(answer.status, 400, "{key}");
        assert!(fault_text(&answer).contains(text), "{key}");
    }
    assert_eq!(lab.beat(&beat_body(&token)).status, 202);
}

#[test]
fn a_heartbeat_of_an_unknown_agent_to_a_locked_node_is_409_and_later_ones_are_skipped() {
    let lab = lab(ProvisionState::CleanWait);
    let token = lab.token();
    let lock =
        |host: Option<&str>| lab.conductor.update_node(&lab.uuid, |n| n.reservation = host.map(str::to_owned)).unwrap();
    lock(Some("host"));
    assert_eq!(lab.beat(&beat_body(&token)).status, 409);
    lock(None);
    assert_eq!(lab.beat(&beat_body(&token)).status, 202);
    lock(Some("host"));
    assert_eq!(lab.beat(&beat_body(&token)).status, 202);
    let effects: Vec<_> = lab.conductor.heartbeats().iter().map(|b| b.effect).collect();
    assert_eq!(effects, [HeartbeatEffect::Refused, HeartbeatEffect::Drives, HeartbeatEffect::SkippedLocked]);
}

#[test]
fn a_heartbeat_in_another_state_is_recorded_or_ignored() {
    for (state, effect) in [
        (ProvisionState::Cleaning, HeartbeatEffect::Recorded),
        (ProvisionState::InspectWait, HeartbeatEffect::Ignored),
        (ProvisionState::RescueWait, HeartbeatEffect::Drives),
    ] {
        let lab = lab(ProvisionState::CleanWait);
        let token = lab.token();
        lab.conductor.update_node(&lab.uuid, |n| n.provision_state = state).unwrap();
        assert_eq!(lab.beat(&beat_body(&token)).status, 202, "{state}");
        assert_eq!(lab.conductor.heartbeats()[0].effect, effect, "{state}");
    }
}

fn inventory() -> Value {
    json!({"inventory": {"interfaces": [{"name": "eth0", "mac_address": MAC}], "bmc_address": null,
           "cpu": {"architecture": "aarch64"}}, "error": null, "root_disk": {"name": "/dev/vda"}})
}

#[test]
fn inspection_data_is_accepted_and_the_node_becomes_manageable() {
    let lab = lab(ProvisionState::InspectWait);
    let answer = lab.inspect(&inventory());
    assert_eq!((answer.status, answer.json().unwrap()), (202, json!({"uuid": lab.uuid})));
    assert_eq!(lab.inspect(&inventory()).status, 404, "not in inspect wait any more");
    let node =
        lab.conductor.wait_for_node(&lab.uuid, LIMIT, |n| n.provision_state == ProvisionState::Manageable).unwrap();
    assert_eq!(node.inspection.unwrap().plugin_data["root_disk"]["name"], "/dev/vda");
    assert_eq!((node.properties["cpu_arch"].as_str(), node.reservation), (Some("aarch64"), None));
}

#[test]
fn a_ramdisk_that_reports_an_error_fails_the_inspection() {
    let lab = lab(ProvisionState::InspectWait);
    let mut data = inventory();
    data["error"] = json!("no disks");
    assert_eq!(lab.inspect(&data).status, 202);
    let node =
        lab.conductor.wait_for_node(&lab.uuid, LIMIT, |n| n.provision_state == ProvisionState::InspectFail).unwrap();
    assert!(node.last_error.unwrap().contains("no disks"));
}

#[test]
fn inspection_data_is_refused_row_by_row() {
    let lab = lab(ProvisionState::InspectWait);
    let nic = |nic: Value| json!({"inventory": {"interfaces": [nic]}});
    let deep = (0..25).fold(json!(1), |inner, _| json!([inner]));
    for (case, body, status) in [
        ("no inventory", json!({"error": null}), 400),
        ("inventory is a list", json!({"inventory": []}), 400),
        ("no interfaces", json!({"inventory": {}}), 400),
        ("empty interfaces", json!({"inventory": {"interfaces": []}}), 400),
        ("nic without mac", nic(json!({"name": "eth0"})), 400),
        ("nic with null mac", nic(json!({"mac_address": null})), 400),
        ("nic is text", nic(json!("eth0")), 400),
        (
            "bmc address is a number",
            json!({"inventory": {"interfaces": [{"mac_address": MAC}], "bmc_address": 1}}),
            400,
        ),
        ("unknown mac", nic(json!({"mac_address": "52:54:00:00:00:99"})), 404),
        ("mac that is none", nic(json!({"mac_address": "??"})), 400),
        ("a list", json!([1]), 400),
        ("too deep", json!({"inventory": {"interfaces": [{"mac_address": MAC}]}, "x": deep}), 400),
    ] {
        assert_eq!(lab.inspect(&body).status, status, "{case}");
    }
    let large = format!("{{\"x\":\"{}\"}}", "a".repeat(16 * 1024 * 1024));
    let answer = lab.http.raw(&RawRequest::new("POST", "/v1/continue_inspection").body(large)).unwrap();
    assert_eq!(answer.status, 413);
    assert_eq!(answer.json().unwrap()["faultcode"], "Client", "the guard does not encode twice");
    assert!(lab.conductor.node(&lab.uuid).unwrap().inspection.is_none());
}

#[test]
fn inspection_takes_no_version_or_a_new_one() {
    for (version, query, status) in [
        (None, "", 202),
        (Some("1.1"), "", 202),
        (Some("1.2"), "", 404),
        (Some("1.83"), "", 404),
        (Some("1.84"), "", 202),
        (None, "?node_uuid=UUID", 404),
        (Some("1.84"), "?node_uuid=UUID", 202),
        (None, "?colour=red", 400),
    ] {
        let lab = lab(ProvisionState::InspectWait);
        let target = format!("/v1/continue_inspection{}", query.replace("UUID", &lab.uuid));
        let mut request = RawRequest::new("POST", &target).body(inventory().to_string());
        if let Some(version) = version {
            request = request.header(VERSION_HEADER, version);
        }
        let answer = lab.http.raw(&request).unwrap();
        assert_eq!(answer.status, status, "{version:?} {query}: {}", answer.text());
        if version == Some("1.84") {
            assert!(answer.json().unwrap()["config"]["agent_token"].is_string(), "{version:?} {query}");
        }
    }
}

#[test]
fn inspection_respects_bmc_addresses_and_locks() {
    let lab = lab(ProvisionState::InspectWait);
    let mut other = Node::new("node-2", &["52:54:00:00:00:02"]);
    other.provision_state = ProvisionState::InspectWait;
    other.set_internal(inspection::BMC_CACHE_KEY, json!(["192.0.2.9"]));
    let other_uuid = other.uuid.clone();
    lab.conductor.add_node(other);
    let mut data = inventory();
    data["inventory"]["bmc_address"] = json!("192.0.2.9");
    assert_eq!(lab.inspect(&data).status, 404, "addresses of two nodes");
    data["inventory"]["interfaces"][0]["mac_address"] = json!("52:54:00:00:00:77");
    lab.conductor.update_node(&other_uuid, |n| n.reservation = Some("host".to_owned())).unwrap();
    assert_eq!(lab.inspect(&data).status, 409, "found by its BMC, and locked");
    lab.conductor.update_node(&other_uuid, |n| n.reservation = None).unwrap();
    assert_eq!(lab.inspect(&data).json().unwrap(), json!({"uuid": other_uuid}));
}

#[test]
fn faults_happen_in_order_and_then_the_proper_answer_comes() {
    let lab = lab(ProvisionState::CleanWait);
    let patch = Fault::Patch(json!({"config": {"heartbeat_timeout": 30}}));
    let odd = Fault::Answer { status: 200, content_type: "text/html".to_owned(), body: b"<html>".to_vec() };
    lab.conductor.script(Endpoint::Lookup, [Fault::Status(404), Fault::Status(500), odd, patch]);
    let not_found = lab.lookup();
    assert_eq!((not_found.status, fault_text(&not_found).as_str()), (404, "Scripted fault 404."));
    assert_eq!(lab.lookup().status, 500);
    assert_eq!(lab.lookup().text(), "<html>");
    assert_eq!(lab.lookup().json().unwrap()["config"]["heartbeat_timeout"], 30);
    assert_eq!(lab.lookup().json().unwrap()["config"]["heartbeat_timeout"], 300);
    assert_eq!(lab.conductor.faults_left(Endpoint::Lookup), 0);
    assert_eq!(lab.conductor.requests_matching(|r| r.faulted).len(), 4);
}

#[test]
fn connections_can_be_reset_cut_hung_and_slowed() {
    let lab = lab(ProvisionState::CleanWait);
    let quick = AgentClient::new(&lab.conductor.url(), None, None).unwrap().with_timeout(Duration::from_millis(300));
    let root = RawRequest::new("GET", "/");
    for fault in [Fault::Reset, Fault::CutReply(40), Fault::LoseReply, Fault::Hang(Duration::from_secs(60))] {
        lab.conductor.script(Endpoint::Root, [fault.clone()]);
        assert!(quick.raw(&root).is_err(), "{fault:?}");
        assert_eq!(quick.raw(&root).unwrap().status, 200, "after {fault:?}");
    }
    lab.conductor.set_delay(Some(Duration::from_millis(200)));
    let start = Instant::now();
    assert_eq!(lab.http.raw(&root).unwrap().status, 200);
    assert!(start.elapsed() >= Duration::from_millis(200));
}

#[test]
fn a_lost_reply_still_has_its_effect() {
    let lab = lab(ProvisionState::CleanWait);
    lab.conductor.script(Endpoint::Lookup, [Fault::LoseReply]);
    assert!(
        lab.http
            .raw(&RawRequest::new("GET", &format!("/v1/lookup?addresses={MAC}")).header(VERSION_HEADER, "1.62"))
            .is_err()
    );
    assert_eq!(lab.token(), MASKED, "the token went out with the lost reply");
}

#[test]
fn everything_seen_is_recorded_and_can_be_waited_for() {
    let lab = lab(ProvisionState::CleanWait);
    lab.lookup();
    let seen = lab.conductor.wait_for_request(LIMIT, |r| r.path == "/v1/lookup").unwrap();
    assert_eq!((seen.query_value("addresses"), seen.api_version(), seen.status), (Some(MAC), Some("1.62"), Some(200)));
    lab.lookup();
    let connections: Vec<u64> = lab.conductor.requests().iter().map(|r| r.connection).collect();
    assert_eq!(connections, [1, 1], "one connection, kept alive");
    assert!(lab.conductor.wait_for_heartbeat(Duration::from_millis(50)).is_err());
    let token = lab.token();
    assert_eq!(token, MASKED);
}

#[test]
fn broken_requests_get_400_and_do_not_stop_the_conductor() {
    let lab = lab(ProvisionState::CleanWait);
    assert_eq!(lab.http.raw_bytes(b"what is this\r\n\r\n").unwrap().status, 400);
    let token = lab.token();
    let broken = RawRequest::new("POST", &format!("/v1/heartbeat/{}", lab.uuid)).header(VERSION_HEADER, "1.68");
    assert_eq!(lab.http.raw(&broken.clone().body("{\"callback_url\":")).unwrap().status, 400);
    let untyped = broken.header("Content-Type", "text/plain").body(beat_body(&token).to_string());
    assert_eq!(lab.http.raw(&untyped).unwrap().status, 400, "a body that does not say it is JSON is not read");
    assert_eq!(lab.beat(&beat_body(&token)).status, 202);
}

#[test]
fn https_is_served_with_a_certificate_of_the_self_made_ca() {
    let names = Some(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]);
    let conductor = Conductor::start(ConductorConfig { tls_names: names, ..ConductorConfig::default() }).unwrap();
    assert!(conductor.url().starts_with("https://127.0.0.1:"));
    let get = |roots: rustls::RootCertStore| {
        let config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
        let session = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let mut stream =
            rustls::StreamOwned::new(session, TcpStream::connect(("127.0.0.1", conductor.port())).unwrap());
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text).map(|_| text)
    };
    let mut roots = rustls::RootCertStore::empty();
    roots.add(tls::certificate_of_pem(conductor.ca_pem().unwrap()).unwrap()).unwrap();
    assert!(get(roots).unwrap().starts_with("HTTP/1.1 200 OK"));
    let mut stranger = rustls::RootCertStore::empty();
    let other = tls::server_identity(&["127.0.0.1".to_owned()]).unwrap();
    stranger.add(tls::certificate_of_pem(&other.ca_pem).unwrap()).unwrap();
    assert!(get(stranger).is_err());
}

#[test]
fn dropping_a_conductor_frees_its_port_and_its_connections() {
    let lab = lab(ProvisionState::CleanWait);
    assert_eq!(lab.http.raw(&RawRequest::new("GET", "/")).unwrap().status, 200);
    let port = lab.conductor.port();
    drop(lab.conductor);
    assert!(lab.http.raw(&RawRequest::new("GET", "/")).is_err());
    assert!(TcpListener::bind(("127.0.0.1", port)).is_ok());
}
