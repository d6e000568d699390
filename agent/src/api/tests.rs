//! Every row of the protocol's section 12, over a real connection.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::app::App;
use crate::handover::Handover;
use crate::testing::{self, TOKEN};

struct Agent {
    app: Arc<App>,
    port: u16,
    dir: tempfile::TempDir,
    stop: watch::Sender<bool>,
    _runtime: tokio::runtime::Runtime,
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}{}", self.head, self.body))
    }

    fn fault(&self) -> String {
        let fault = self.json();
        let code = if self.status >= 500 { "Server" } else { "Client" };
        assert_eq!(fault["faultcode"], code, "{}", self.body);
        assert!(self.head.to_lowercase().contains("content-type: application/json\r\n"), "{}", self.head);
        fault["faultstring"].as_str().unwrap().to_owned()
    }
}

fn start() -> Agent {
    let dir = tempfile::tempdir().unwrap();
    let app = testing::app(dir.path(), Handover::create());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (stop, stopped) = watch::channel(false);
    runtime.spawn(super::server::serve(app.clone(), listener, None, stopped));
    Agent { app, port, dir, stop, _runtime: runtime }
}

fn read_answer(stream: &mut TcpStream) -> Answer {
    let mut text = Vec::new();
    stream.read_to_end(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("{text}"));
    Answer { status, head: format!("{head}\r\n"), body: body.to_owned() }
}

impl Agent {
    fn send(&self, method: &str, target: &str, body: Option<&str>) -> Answer {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let length = body.map(|body| format!("Content-Length: {}\r\n", body.len())).unwrap_or_default();
        let head = format!("{method} {target} HTTP/1.1\r\nHost: agent:9999\r\nConnection: close\r\n{length}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.unwrap_or_default().as_bytes()).unwrap();
        read_answer(&mut stream)
    }

    fn get(&self, path: &str) -> Answer {
        self.send("GET", path, None)
    }

    /// Posts a command with the right token.
    fn post(&self, name: &str, params: &Value, wait: bool) -> Answer {
        let body = json!({ "name": name, "params": params }).to_string();
        self.send("POST", &format!("/v1/commands/?wait={wait}&agent_token={TOKEN}"), Some(&body))
    }

    fn list(&self) -> Vec<Value> {
        let answer = self.get(&format!("/v1/commands/?agent_token={TOKEN}"));
        assert_eq!(answer.status, 200);
        answer.json()["commands"].as_array().unwrap().clone()
    }

    fn release(&self, name: &str) {
        std::fs::write(self.dir.path().join(name), b"").unwrap();
    }
}

#[test]
fn discovery_and_status_need_no_token() {
    let agent = start();
    let root = agent.get("/").json();
    assert_eq!(root["name"], "OpenStack Ironic Python Agent API");
    assert_eq!(root["versions"][0], root["default_version"]);
    assert_eq!(root["default_version"]["id"], "v1");
    assert_eq!(root["default_version"]["links"][0], json!({ "href": "http://agent:9999/v1", "rel": "self" }));
    let v1 = agent.get("/v1/").json();
    assert_eq!(v1["media_types"][0]["type"], "application/vnd.openstack.ironic-python-agent.v1+json");
    for key in ["commands", "status"] {
        assert_eq!((&v1[key][0]["rel"], &v1[key][1]["rel"]), (&json!("self"), &json!("bookmark")), "{key}");
    }
    for path in ["/v1/status", "/status"] {
        let answer = agent.get(path);
        assert!(answer.head.to_lowercase().contains("server: ironic-python-agent\r\n"), "{}", answer.head);
        assert!(answer.head.to_lowercase().contains("content-type: application/json\r\n"), "{}", answer.head);
        let status = answer.json();
        assert!(status["started_at"].as_f64().unwrap() > 1.7e9, "{status}");
        assert!(!status["version"].as_str().unwrap().is_empty());
        assert_eq!(status.as_object().unwrap().len(), 2);
    }
}

#[test]
fn head_answers_like_get_without_a_body() {
    let agent = start();
    for path in ["/", "/v1/status", &format!("/v1/commands/?agent_token={TOKEN}")] {
        let answer = agent.send("HEAD", path, None);
        assert_eq!((answer.status, answer.body.as_str()), (200, ""), "{path}");
    }
}

#[test]
fn every_command_endpoint_needs_the_token() {
    let agent = start();
    for query in ["", "?agent_token=", "?agent_token=wrong", "?wait=true", &format!("?agent_token={TOKEN}x")] {
        for (method, path) in [
            ("GET", "/v1/commands/"),
            ("GET", "/commands/"),
            ("GET", "/v1/commands/abc"),
            ("POST", "/v1/commands/"),
            ("GET", "/v1/commands/abc/events"),
        ] {
            let answer = agent.send(method, &format!("{path}{query}"), (method == "POST").then_some("{not json"));
            assert_eq!(answer.status, 401, "{method} {path}{query}");
            assert_eq!(answer.fault(), "401 Unauthorized: Token invalid.");
        }
    }
    assert!(agent.list().is_empty());
}

#[test]
fn missing_slashes_are_redirected_with_the_query() {
    let agent = start();
    for (method, path, want) in [
        ("GET", "/v1?x=1", "http://agent:9999/v1/?x=1"),
        ("POST", "/v1/commands?wait=true&agent_token=t", "http://agent:9999/v1/commands/?wait=true&agent_token=t"),
        ("PUT", "/v1/commands", "http://agent:9999/v1/commands/"),
    ] {
        let answer = agent.send(method, path, None);
        assert_eq!(answer.status, 308, "{path}");
        assert!(answer.head.contains(&format!("location: {want}\r\n")), "{path}: {}", answer.head);
        assert!(answer.head.contains("text/html"), "{path}: {}", answer.head);
    }
}

#[test]
fn unknown_paths_and_methods_have_their_faults() {
    let agent = start();
    for path in ["/nope", "/v1/status/", "/v2/", "/v1/commands/a/b"] {
        let answer = agent.get(path);
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.fault().starts_with("404 Not Found: The requested URL was not found on the server."), "{path}");
    }
    for method in ["PUT", "DELETE", "OPTIONS", "PATCH"] {
        let answer = agent.send(method, "/v1/commands/", None);
        assert_eq!(answer.status, 405, "{method}");
        assert!(answer.fault().starts_with("405 Method Not Allowed: "));
        assert!(answer.head.to_lowercase().contains("allow: get, head, post\r\n"), "{method}: {}", answer.head);
    }
    let answer = agent.get(&format!("/v1/commands/abc?agent_token={TOKEN}"));
    assert_eq!((answer.status, answer.fault().as_str()), (404, "Not found: Command Result with id abc not found."));
}

#[test]
fn bad_bodies_and_names_have_their_faults() {
    let agent = start();
    let post = |body: &str| agent.send("POST", &format!("/v1/commands/?agent_token={TOKEN}"), Some(body));
    for body in ["", "{", "[1"] {
        let answer = post(body);
        assert_eq!(answer.status, 400, "{body}");
        assert!(answer.fault().starts_with("400 Bad Request: Failed to decode JSON object: "), "{body}");
    }
    for body in ["[]", "null", "7", r#"{"name":"a.b"}"#, r#"{"params":{}}"#, r#"{"name":"a.b","params":[]}"#] {
        let answer = post(body);
        assert_eq!(answer.status, 400, "{body}");
        assert_eq!(answer.fault(), "400 Bad Request: Missing or invalid name or params", "{body}");
    }
    for (name, status, text) in [
        ("nodot", 400, "Invalid command: Command name must be of the form <extension>.<name>"),
        ("standby.cache_image", 400, "Invalid command: Unknown command: cache_image"),
        ("nope.run", 404, "Not found: Extension with id nope not found."),
    ] {
        let answer = agent.post(name, &json!({}), true);
        assert_eq!((answer.status, answer.fault().as_str()), (status, text), "{name}");
    }
    let answer = agent.post("standby.prepare_image", &json!({ "image_info": { "urls": ["http://x"] } }), false);
    assert_eq!(
        (answer.status, answer.fault().as_str()),
        (400, "Invalid command parameters: Image is missing 'id' field.")
    );
    assert!(agent.list().is_empty(), "refused commands leave no record");
}

#[test]
fn records_have_five_keys_in_order_and_short_names() {
    let agent = start();
    let answer = agent.post("test.echo", &json!({ "a": 1 }), false);
    assert_eq!(answer.status, 200);
    let id = answer.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(
        answer.body,
        format!(
            "{{\"id\":\"{id}\",\"command_name\":\"echo\",\"command_status\":\"SUCCEEDED\",\"command_error\":null,\
             \"command_result\":{{\"echo\":{{\"a\":1}}}}}}"
        )
    );
    assert_eq!(agent.get(&format!("/v1/commands/{id}?agent_token={TOKEN}")).body, answer.body);
    assert_eq!(agent.get(&format!("/commands/{id}?agent_token={TOKEN}")).body, answer.body);
    assert_eq!(agent.list(), [answer.json()]);
}

#[test]
fn text_results_are_wrapped_and_failures_answer_200() {
    let agent = start();
    let said = agent.post("test.say", &json!({}), true).json();
    assert_eq!(said["command_result"], json!({ "result": "say: done" }));
    let failed = agent.post("test.fail", &json!({}), true);
    assert_eq!(failed.status, 200);
    let failed = failed.json();
    assert_eq!((&failed["command_name"], &failed["command_status"]), (&json!("test.fail"), &json!("FAILED")));
    assert_eq!(
        failed["command_error"],
        json!({ "type": "CommandExecutionError", "code": 500, "message": "Command execution failed", "details": "no luck" })
    );
    assert_eq!(agent.list().len(), 2, "the list can be read after a failure");
}

#[test]
fn wrong_parameters_are_a_failed_record_not_a_broken_list() {
    let agent = start();
    for name in ["standby.sync", "test.async_until", "clean.execute_clean_step"] {
        let answer = agent.post(name, &json!({ "bogus": 1 }), true);
        assert_eq!(answer.status, 200, "{name}");
        let record = answer.json();
        assert_eq!(record["command_status"], "FAILED", "{name}");
        assert_eq!(record["command_error"]["type"], "CommandExecutionError", "{name}");
    }
    assert_eq!(agent.list().len(), 3);
}

#[test]
fn a_running_command_makes_the_agent_busy_but_not_deaf() {
    let agent = start();
    let running = agent.post("test.async_until", &json!({ "file": "go" }), false).json();
    assert_eq!(running["command_status"], "RUNNING");
    let id = running["id"].as_str().unwrap().to_owned();
    let busy = agent.post("nope.run", &json!({}), false);
    assert_eq!((busy.status, busy.fault().as_str()), (409, "Agent is busy: executing command async_until"));
    assert_eq!(agent.post("nodot", &json!({}), false).status, 400, "a malformed name comes before busy");
    // A large body is not even read.
    let large = agent.post("test.echo", &json!({ "x": "a".repeat(1 << 20) }), false);
    assert_eq!((large.status, large.fault()), (409, busy.fault()));
    let deadline = Instant::now() + Duration::from_secs(5);
    let progress = loop {
        let listed = agent.list();
        if let Some(progress) = listed[0].get("progress") {
            break progress.clone();
        }
        assert!(Instant::now() < deadline, "no progress shown");
    };
    assert_eq!(
        (&progress["phase"], &progress["done_bytes"], &progress["total_bytes"]),
        (&json!("waiting"), &json!(25), &json!(100))
    );
    agent.release("go");
    let done = agent.get(&format!("/v1/commands/{id}?agent_token={TOKEN}&wait=true")).json();
    assert_eq!(done["command_status"], "SUCCEEDED");
    assert!(done.get("progress").is_none());
}

#[test]
fn a_synchronous_command_blocks_the_next_but_no_reader() {
    let agent = start();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| agent.post("test.sync_until", &json!({ "file": "go" }), true));
        std::thread::sleep(Duration::from_millis(100));
        let second = scope.spawn(|| agent.post("test.echo", &json!({}), true));
        std::thread::sleep(Duration::from_millis(100));
        let began = Instant::now();
        assert!(agent.list().is_empty());
        assert!(began.elapsed() < Duration::from_secs(2), "reading the list waited");
        assert!(!second.is_finished(), "the second command did not wait");
        agent.release("go");
        assert_eq!(first.join().unwrap().json()["command_status"], "SUCCEEDED");
        assert_eq!(second.join().unwrap().json()["command_status"], "SUCCEEDED");
    });
}

#[test]
fn a_panic_fails_its_command_only() {
    let agent = start();
    let record = agent.post("test.panic", &json!({}), true).json();
    assert_eq!(record["command_status"], "FAILED");
    assert_eq!(record["command_error"]["details"], "the command panicked: on purpose");
    assert_eq!(agent.post("test.echo", &json!({}), true).json()["command_status"], "SUCCEEDED");
}

#[test]
fn large_and_slow_requests_do_not_hurt_others() {
    let agent = start();
    let mut idle = TcpStream::connect(("127.0.0.1", agent.port)).unwrap();
    idle.write_all(b"POST /v1/commands/?agent_token=").unwrap();
    let mut garbage = TcpStream::connect(("127.0.0.1", agent.port)).unwrap();
    garbage.write_all(b"\x16\x03\x01\x00garbage\r\n\r\n").unwrap();
    let large = format!("{{\"name\":\"test.echo\",\"params\":{{\"x\":\"{}\"}}}}", "a".repeat(17 << 20));
    let target = format!("/v1/commands/?agent_token={TOKEN}");
    let refused = agent.send("POST", &target, Some(&large));
    assert_eq!(refused.status, 413);
    assert!(refused.fault().contains("larger than 16777216 bytes"), "{}", refused.body);
    // Announced only: who waits to be told to go on is told not to, and nobody waits for what nobody can send.
    for more in ["Content-Length: 20000000\r\nExpect: 100-continue\r\n", "Content-Length: 99999999999999\r\n"] {
        let mut stream = TcpStream::connect(("127.0.0.1", agent.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let head = format!("POST {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{more}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        assert_eq!(read_answer(&mut stream).status, 413, "{more}");
    }
    let mut long = TcpStream::connect(("127.0.0.1", agent.port)).unwrap();
    let _sent = long.write_all(format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(100_000)).as_bytes()).is_ok();
    assert_eq!(agent.get("/v1/status").status, 200);
}

#[test]
fn events_stream_progress_until_the_end() {
    let agent = start();
    let id = agent.post("test.async_until", &json!({ "file": "go" }), false).json()["id"].as_str().unwrap().to_owned();
    std::thread::scope(|scope| {
        let events = scope.spawn(|| agent.get(&format!("/v1/commands/{id}/events?agent_token={TOKEN}")));
        std::thread::sleep(Duration::from_millis(700));
        agent.release("go");
        let answer = events.join().unwrap();
        assert!(answer.head.contains("text/event-stream"), "{}", answer.head);
        assert!(answer.body.contains("event: progress\ndata: {"), "{}", answer.body);
        assert!(answer.body.contains("\"phase\":\"waiting\""), "{}", answer.body);
        assert!(answer.body.contains("event: end\ndata: {"), "{}", answer.body);
    });
}

#[test]
fn stopping_finishes_answers_under_way_and_closes_the_port() {
    let agent = start();
    std::thread::scope(|scope| {
        let last = scope.spawn(|| agent.post("test.sync_until", &json!({ "file": "go" }), true));
        std::thread::sleep(Duration::from_millis(200));
        agent.stop.send_replace(true);
        std::thread::sleep(Duration::from_millis(200));
        agent.release("go");
        assert_eq!(last.join().unwrap().json()["command_status"], "SUCCEEDED");
    });
    let deadline = Instant::now() + Duration::from_secs(5);
    while TcpStream::connect(("127.0.0.1", agent.port)).is_ok() {
        assert!(Instant::now() < deadline, "the port stays open");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_worker_that_died_leaves_its_command_failed_with_the_cause() {
    let dir = tempfile::tempdir().unwrap();
    let handover = Handover::create();
    let again = Handover::from_file(handover.try_clone_file().unwrap());
    let app = testing::app(dir.path(), handover);
    let id = app.store.begin("execute_clean_step", ferric_types::Progress::new());
    app.save_handover();
    app.update_state(|state| state.last_exit = Some("killed by signal 9".to_owned()));
    let started_at = app.started_at;
    drop(app);
    let app = testing::app(dir.path(), again);
    let record = serde_json::to_value(app.store.get(&id).unwrap()).unwrap();
    assert_eq!(record["command_status"], "FAILED");
    let details = record["command_error"]["details"].as_str().unwrap();
    assert!(details.contains("execute_clean_step") && details.contains("killed by signal 9"), "{details}");
    // The last bit may be lost in JSON.
    assert!((app.started_at - started_at).abs() < 0.001, "{} and {started_at}", app.started_at);
    assert!(app.state().unfinished.is_empty());
    assert_eq!(app.token().unwrap().expose(), TOKEN);
}

#[test]
fn rescue_and_lockdown_stop_the_api() {
    let agent = start();
    let empty = agent.post("rescue.finalize_rescue", &json!({}), false);
    assert_eq!((empty.status, empty.fault().as_str()), (400, "Invalid command parameters: rescue_password is empty"));
    let record =
        agent.post("rescue.finalize_rescue", &json!({ "rescue_password": "$5$x$y", "hashed": true }), false).json();
    assert_eq!((&record["command_status"], &record["command_result"]), (&json!("SUCCEEDED"), &Value::Null));
    let written = std::fs::read_to_string(agent.dir.path().join("etc/ipa-rescue-config/ipa-rescue-password")).unwrap();
    assert_eq!(written, "$5$x$y");
    assert!(agent.dir.path().join("etc/.rescued").exists());
    assert_eq!(*agent.app.serving().borrow(), crate::app::Serving::Stopped);
    agent.post("system.lockdown", &json!({}), false);
    assert_eq!(*agent.app.serving().borrow(), crate::app::Serving::LockedDown);
}

#[test]
fn flows_run_in_order_and_name_the_one_that_failed() {
    let agent = start();
    let good =
        agent.post("flow.start_flow", &json!({ "flow": [{ "test.echo": {} }, { "test.say": {} }] }), true).json();
    assert_eq!(good["command_status"], "SUCCEEDED");
    let bad =
        agent.post("flow.start_flow", &json!({ "flow": [{ "test.fail": {} }, { "test.echo": {} }] }), true).json();
    assert_eq!(bad["command_status"], "FAILED");
    assert!(bad["command_error"]["details"].as_str().unwrap().contains("`test.fail` was failed"), "{bad}");
    let refused = agent.post("flow.start_flow", &json!({ "flow": [{ "test.nope": {} }] }), true);
    assert_eq!(refused.status, 400);
    assert!(refused.fault().contains("Extension test doesn't provide nope method"));
    let unknown = agent.post("flow.start_flow", &json!({ "flow": [{ "nope.x": {} }] }), true).json();
    assert_eq!(unknown["command_error"]["type"], "RequestedObjectNotFoundError");
}

#[test]
fn steps_are_listed_by_manager_and_echoed_unchanged() {
    let agent = start();
    let node = json!({ "uuid": "1be26c0b-03f2-4d2e-ae87-c02d7f33c123", "properties": {} });
    let listed = agent.post("clean.get_clean_steps", &json!({ "node": node, "ports": [] }), true).json();
    let result = &listed["command_result"];
    let steps = result["clean_steps"]["GenericHardwareManager"].as_array().unwrap();
    let metadata = steps.iter().find(|step| step["step"] == "erase_devices_metadata").unwrap();
    assert_eq!(
        (&metadata["priority"], &metadata["interface"], &metadata["abortable"]),
        (&json!(99), &json!("deploy"), &json!(true))
    );
    assert!(result["hardware_manager_version"]["generic_hardware_manager"].is_string());
    let stale = json!({ "step": { "step": "erase_devices", "interface": "deploy" }, "node": node, "ports": [], "clean_version": { "generic_hardware_manager": "0" } });
    let mismatch = agent.post("clean.execute_clean_step", &stale, true).json();
    assert_eq!(
        (&mismatch["command_status"], &mismatch["command_error"]["code"]),
        (&json!("CLEAN_VERSION_MISMATCH"), &json!(409))
    );
    let unknown = json!({ "step": { "step": "no_such_step", "interface": "deploy" }, "node": node, "ports": [], "clean_version": null });
    let unknown = agent.post("clean.execute_clean_step", &unknown, true).json();
    assert_eq!(unknown["command_error"]["type"], "HardwareManagerMethodNotFound");
    assert_eq!(unknown["command_error"]["details"], "Could not find method: no_such_step");
    let malformed =
        agent.post("clean.execute_clean_step", &json!({ "step": { "x": 1 }, "node": node, "ports": [] }), true).json();
    assert!(malformed["command_error"]["details"].as_str().unwrap().contains("no \"step\" key"), "{malformed}");
    let shapeless = json!({ "step": { "step": "erase_devices" }, "node": { "properties": 5 }, "ports": [] });
    let shapeless = agent.post("clean.execute_clean_step", &shapeless, true).json();
    let details = shapeless["command_error"]["details"].as_str().unwrap();
    assert!(details.contains("where an object was expected"), "{details}");
    // A machine without disks: erasing nothing succeeds, and the step comes back as it was sent.
    let step = json!({ "step": "erase_devices", "priority": 10, "interface": "deploy", "requires_ramdisk": true, "args": null });
    let run = json!({ "step": step, "node": node, "ports": [], "clean_version": result["hardware_manager_version"] });
    let done = agent.post("clean.execute_clean_step", &run, true).json();
    assert_eq!(done["command_status"], "SUCCEEDED", "{done}");
    assert_eq!(done["command_result"], json!({ "clean_result": {}, "clean_step": step }));
}
