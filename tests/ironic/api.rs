//! Ironic's REST API as an operator uses it, and one node of it.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ferric_qemu::conductor::wire::{Headers, MessageReader, write_message};
use serde_json::{Value, json};

const CALL_LIMIT: Duration = Duration::from_secs(60);
/// How often a node is looked at.
const POLL: Duration = Duration::from_millis(400);
/// How long another's lock on a node is waited for.
const LOCK_LIMIT: Duration = Duration::from_secs(60);

/// The API.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    address: SocketAddr,
}

impl Api {
    /// The API at this address.
    pub(crate) fn at(address: SocketAddr) -> Self {
        Self { address }
    }

    /// One call, whatever it is answered with.
    pub(crate) fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<(u16, Value)> {
        let attempt = || -> Result<(u16, Value)> {
            let mut stream = TcpStream::connect_timeout(&self.address, CALL_LIMIT)?;
            stream.set_read_timeout(Some(CALL_LIMIT))?;
            let body = body.map(|value| value.to_string().into_bytes()).unwrap_or_default();
            let length = body.len().to_string();
            let mut headers = Headers::default();
            for (name, value) in [
                ("Host", self.address.to_string().as_str()),
                ("X-OpenStack-Ironic-API-Version", "latest"),
                ("Accept", "application/json"),
                ("Content-Type", "application/json"),
                ("Content-Length", &length),
                ("Connection", "close"),
            ] {
                headers.push(name, value);
            }
            write_message(&mut stream, &format!("{method} {path} HTTP/1.1"), &headers, &body)?;
            let answer = MessageReader::default().response(&mut stream, false, 64 << 20)?;
            Ok((answer.status, answer.json().unwrap_or_else(|| json!(answer.text()))))
        };
        attempt().with_context(|| format!("{method} {path}"))
    }

    /// A call that must succeed; a locked node is waited for.
    pub(crate) fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let end = Instant::now() + LOCK_LIMIT;
        loop {
            let (status, answer) = self.call(method, path, body)?;
            match status {
                200..=299 => return Ok(answer),
                409 if Instant::now() < end => std::thread::sleep(POLL),
                _ => bail!("{method} {path}: {status} {}", fault(&answer)),
            }
        }
    }

    pub(crate) fn get(&self, path: &str) -> Result<Value> {
        self.ask("GET", path, None)
    }

    /// Whether a conductor with this hardware type is there.
    pub(crate) fn has_driver(&self, driver: &str) -> bool {
        let listed = self.call("GET", "/v1/drivers", None);
        let has = |answer: &Value| {
            answer["drivers"].as_array().is_some_and(|list| list.iter().any(|found| found["name"] == driver))
        };
        listed.is_ok_and(|(status, answer)| status == 200 && has(&answer))
    }
}

/// The text of an error of the API, which is JSON inside of JSON at times.
fn fault(answer: &Value) -> String {
    let message = &answer["error_message"];
    let inner = message.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    let inner = inner.as_ref().unwrap_or(message);
    inner["faultstring"].as_str().map_or_else(|| answer.to_string(), str::to_owned)
}

/// One node.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    api: Api,
    pub(crate) uuid: String,
}

impl Node {
    /// Enrols a node.
    pub(crate) fn create(api: &Api, node: &Value) -> Result<Self> {
        let made = api.ask("POST", "/v1/nodes", Some(node))?;
        let uuid = made["uuid"].as_str().context("the new node has no UUID")?.to_owned();
        Ok(Self { api: api.clone(), uuid })
    }

    pub(crate) fn add_port(&self, mac: &str) -> Result<()> {
        self.api.ask("POST", "/v1/ports", Some(&json!({"node_uuid": self.uuid, "address": mac}))).map(drop)
    }

    fn path(&self, more: &str) -> String {
        format!("/v1/nodes/{}{more}", self.uuid)
    }

    /// All fields.
    pub(crate) fn show(&self) -> Result<Value> {
        self.api.get(&self.path(""))
    }

    /// Inspection data.
    pub(crate) fn inventory(&self) -> Result<Value> {
        self.api.get(&self.path("/inventory"))
    }

    /// Addresses of its ports, sorted.
    pub(crate) fn ports(&self) -> Result<Vec<String>> {
        let list = self.api.get(&self.path("/ports"))?;
        let ports = list["ports"].as_array().context("no list of ports")?;
        let mut found: Vec<String> = ports.iter().filter_map(|p| p["address"].as_str().map(str::to_owned)).collect();
        found.sort();
        Ok(found)
    }

    /// Sets fields by their JSON paths, `/instance_info` for one.
    pub(crate) fn set(&self, fields: &[(&str, Value)]) -> Result<()> {
        let patch: Vec<Value> =
            fields.iter().map(|(path, value)| json!({"op": "add", "path": path, "value": value})).collect();
        self.api.ask("PATCH", &self.path(""), Some(&json!(patch))).map(drop)
    }

    /// Ends the maintenance into which Ironic puts a node that it failed to clean.
    pub(crate) fn end_maintenance(&self) -> Result<()> {
        self.api.ask("DELETE", &self.path("/maintenance"), None).map(drop)
    }

    /// What the switch said of the port with that address.
    pub(crate) fn link(&self, mac: &str) -> Result<Value> {
        let list = self.api.get(&self.path("/ports?fields=address,local_link_connection"))?;
        let ports = list["ports"].as_array().context("no list of ports")?;
        let port = ports.iter().find(|port| port["address"] == mac).context("no such port")?;
        Ok(port["local_link_connection"].clone())
    }

    /// Gives the node another driver, with that driver's own interfaces where the old ones do not go with it.
    pub(crate) fn change_driver(&self, driver: &str, info: &Value) -> Result<()> {
        let patch = json!([
            {"op": "replace", "path": "/driver", "value": driver},
            {"op": "replace", "path": "/driver_info", "value": info},
        ]);
        self.api.ask("PATCH", &self.path("?reset_interfaces=true"), Some(&patch))?;
        // They have no default in the settings of the tests.
        self.set(&[("/inspect_interface", json!("agent")), ("/rescue_interface", json!("agent"))])
    }

    pub(crate) fn state(&self) -> Result<String> {
        let node = self.api.get(&self.path("?fields=provision_state"))?;
        Ok(node["provision_state"].as_str().unwrap_or_default().to_owned())
    }

    /// Waits for the end of whatever Ironic is doing with it, good or bad: what an earlier case may have left behind.
    pub(crate) fn settle(&self, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        loop {
            let state = self.state()?;
            let resting = ["enroll", "manageable", "available", "active", "rescue", "error"].contains(&state.as_str());
            if resting || state.ends_with(" failed") {
                return Ok(());
            }
            ensure!(Instant::now() < end, "the node does not leave the state {state:?}");
            std::thread::sleep(POLL);
        }
    }

    /// Orders a change of state; `more` are further keys of the request.
    pub(crate) fn order(&self, target: &str, more: &Value) -> Result<()> {
        let mut body = json!({"target": target});
        if let (Some(body), Some(more)) = (body.as_object_mut(), more.as_object()) {
            body.extend(more.clone());
        }
        self.api
            .ask("PUT", &self.path("/states/provision"), Some(&body))
            .with_context(|| format!("ordering {target:?}"))
            .map(drop)
    }

    /// Waits for a state.
    pub(crate) fn wait(&self, wanted: &str, limit: Duration) -> Result<Value> {
        self.wait_until(wanted, limit, |node| node["provision_state"] == wanted)
    }

    /// Waits until the node is as wanted; a failed state ends the wait.
    pub(crate) fn wait_until(&self, what: &str, limit: Duration, done: impl Fn(&Value) -> bool) -> Result<Value> {
        let end = Instant::now() + limit;
        loop {
            // The API may be gone for a while, when it is restarted.
            let shown = self.show();
            let late = Instant::now() >= end;
            match shown {
                Ok(node) if done(&node) => return Ok(node),
                Ok(node) => {
                    let state = node["provision_state"].as_str().unwrap_or_default();
                    let failed = state.contains("failed") || state == "error";
                    ensure!(
                        !failed && !late,
                        "waiting for {what}: {} in state {state:?}, last error {}",
                        if late { "it takes too long," } else { "it failed," },
                        node["last_error"]
                    );
                }
                Err(error) if late => return Err(error.context(format!("waiting for {what}"))),
                Err(_) => {}
            }
            std::thread::sleep(POLL);
        }
    }
}
