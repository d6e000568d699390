//! Redfish for the same servers, by sushy-tools' emulator.
//!
//! The emulator's own machines are libvirt's or OpenStack's. It also has systems that are only told of, in a table: what
//! such a system is ordered to do it tells to a URL, which is here, and what a machine does by itself (it powers itself
//! off at the end of a deployment) is put into the table by a power order of our own.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ferric_qemu::conductor::wire::{Headers, MessageReader, write_message};
use serde_json::{Value, json};

use crate::api::Api;
use crate::network::{REDFISH, REDFISH_ORDERS};
use crate::programs::Program;
use crate::server::Controls;

const LIMIT_BYTES: u64 = 1 << 20;
/// How often machines are looked at.
const LOOK: Duration = Duration::from_secs(1);
const START_LIMIT: Duration = Duration::from_secs(60);

/// The running service.
#[derive(Debug)]
pub(crate) struct Redfish {
    _program: Program,
}

impl Redfish {
    /// Starts it for these servers, all of which are off.
    pub(crate) fn start(venv: &Path, servers: [Controls; 2], dir: &Path, logs: &Path) -> Result<Self> {
        let orders = TcpListener::bind(REDFISH_ORDERS).context("binding the port of Redfish orders")?;
        let table: Vec<Value> = servers.iter().map(system).collect();
        let state = dir.join("redfish");
        fs::create_dir_all(&state)?;
        // The emulator's settings are Python; JSON is, too, but for its words for true and false.
        let table = Value::from(table).to_string().replace("true", "True");
        let text = format!(
            "SUSHY_EMULATOR_LISTEN_IP = '{}'\n\
             SUSHY_EMULATOR_LISTEN_PORT = {}\n\
             SUSHY_EMULATOR_FAKE_DRIVER = True\n\
             SUSHY_EMULATOR_FAKE_SYSTEMS = {table}\n\
             SUSHY_EMULATOR_STATE_DIR = '{}'\n\
             EXTERNAL_NOTIFICATION_URL = 'http://{REDFISH_ORDERS}/'\n",
            REDFISH.ip(),
            REDFISH.port(),
            state.display()
        );
        let config = dir.join("redfish.conf");
        fs::write(&config, text).context("writing the settings of the Redfish service")?;
        let theirs = servers.clone();
        // Detached, as is the other: they end with the program.
        drop(thread::spawn(move || {
            for client in orders.incoming().flatten() {
                // The emulator tells the same again with the next change.
                drop(obey(client, &theirs));
            }
        }));
        let program = Program::start(venv.join("bin/sushy-emulator"), &logs.join("redfish.log"), |command| {
            command.arg("--config").arg(&config);
        })?;
        let api = Api::at(REDFISH);
        let end = Instant::now() + START_LIMIT;
        while !api.call("GET", "/redfish/v1/Systems", None).is_ok_and(|(status, _)| status == 200) {
            ensure!(program.is_running() && Instant::now() < end, "it does not answer, see redfish.log");
            thread::sleep(Duration::from_millis(200));
        }
        drop(thread::spawn(move || watch(&api, &servers)));
        Ok(Self { _program: program })
    }
}

/// A server as the emulator's table has it.
fn system(server: &Controls) -> Value {
    let place = server.place();
    json!({
        "uuid": place.uuid, "name": place.name, "power_state": "Off", "external_notifier": true,
        "nics": [{"mac": place.mac, "ip": place.address.to_string()}],
    })
}

/// Takes one message of the emulator: a system as it now is in the table.
fn obey(mut client: TcpStream, servers: &[Controls; 2]) -> Result<()> {
    client.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut reader = MessageReader::default();
    let head = reader.request_head(&mut client)?;
    let body = reader.request_body(&mut client, &head.headers, LIMIT_BYTES)?;
    let told: Value = serde_json::from_slice(&body).context("a system that is not JSON")?;
    let server = servers.iter().find(|server| told["uuid"] == server.place().uuid).context("an unknown system")?;
    server.boot_from_network(told["boot_device"] == "Pxe")?;
    let on = told["power_state"] == "On";
    if on != server.is_on() {
        server.switch(on)?;
    }
    let mut headers = Headers::default();
    headers.push("Content-Length", "0");
    headers.push("Connection", "close");
    write_message(&mut client, "HTTP/1.1 200 OK", &headers, b"")?;
    Ok(())
}

/// Tells the emulator of machines that have gone off by themselves.
fn watch(api: &Api, servers: &[Controls; 2]) {
    loop {
        thread::sleep(LOOK);
        for server in servers.iter().filter(|server| !server.is_on()) {
            let path = format!("/redfish/v1/Systems/{}", server.place().uuid);
            let Ok((200, told)) = api.call("GET", &path, None) else { continue };
            if told["PowerState"] == "On" && !server.is_on() {
                let order = json!({"ResetType": "ForceOff"});
                // Looked at again in a second.
                drop(api.call("POST", &format!("{path}/Actions/ComputerSystem.Reset"), Some(&order)));
            }
        }
    }
}
