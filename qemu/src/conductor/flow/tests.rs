//! The flows against an agent made of threads that keeps to the protocol, and against ones that do not.

use super::*;
use crate::conductor::record::split_target;
use crate::conductor::version::VERSION_HEADER;
use crate::conductor::wire::{Headers, MessageReader, write_message};
use crate::conductor::{ConductorConfig, RawRequest, Settings};
use std::collections::BTreeMap;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

const MAC: &str = "52:54:00:12:34:56";

/// How the agent is built: what its steps are and what they do.
#[derive(Clone)]
struct Nature {
    /// `step` to its description and what it returns, or its error.
    steps: Vec<(Value, Result<Value, String>)>,
    /// Version of the hardware managers, one for each boot or question.
    versions: Vec<&'static str>,
    /// How long a step takes.
    step_time: Duration,
    /// Refuses this many `execute_*_step` as busy.
    busy: usize,
    /// Forgets to echo the step.
    no_echo: bool,
    /// Posts inspection data at boot.
    inspects: bool,
    /// Refuses hashed rescue passwords.
    clear_rescue_only: bool,
}

impl Default for Nature {
    fn default() -> Self {
        let step = |name: &str, interface: &str, priority: u64| json!({"step": name, "interface": interface, "priority": priority, "reboot_requested": false, "abortable": true});
        Nature {
            steps: vec![
                (step("erase_devices", "deploy", 10), Ok(json!({"/dev/vda": null}))),
                (step("erase_devices_metadata", "deploy", 99), Ok(Value::Null)),
                (step("write_image", "deploy", 0), Ok(json!({"result": "written"}))),
            ],
            versions: vec!["1.2"],
            step_time: Duration::from_millis(20),
            busy: 0,
            no_echo: false,
            inspects: false,
            clear_rescue_only: false,
        }
    }
}

#[derive(Default)]
struct Memory {
    records: Vec<Value>,
    asked: Vec<(String, Value)>,
    asks_for_steps: usize,
    busy: usize,
}

/// A running agent: a server, and heartbeats to the conductor.
struct Agent {
    stop: Arc<AtomicBool>,
    listener: TcpListener,
}

struct AgentParts {
    nature: Nature,
    memory: Mutex<Memory>,
    stop: Arc<AtomicBool>,
    conductor: AgentClient,
    uuid: String,
    token: String,
    url: String,
    off: Arc<AtomicBool>,
}

impl AgentParts {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap()
    }

    fn beat(&self) {
        let body = json!({"callback_url": self.url, "agent_token": self.token, "agent_version": "9"}).to_string();
        let request = RawRequest::new("POST", &format!("/v1/heartbeat/{}", self.uuid)).header(VERSION_HEADER, "1.67");
        drop(self.conductor.raw(&request.body(body))); // the conductor may be gone at the end of a test
    }

    fn answer(self: &Arc<Self>, method: &str, target: &str, body: &[u8]) -> (u16, Value) {
        let (_, query) = split_target(target);
        assert!(query.contains(&("agent_token".to_owned(), self.token.clone())), "{target}");
        if method == "GET" {
            return (200, json!({"commands": self.memory().records}));
        }
        let body: Value = serde_json::from_slice(body).unwrap();
        let name = body["name"].as_str().unwrap().to_owned();
        let params = body["params"].clone();
        self.memory().asked.push((name.clone(), params.clone()));
        let short = name.split('.').next_back().unwrap().to_owned();
        let running = self.memory().records.last().is_some_and(|r| r["command_status"] == "RUNNING");
        if running || (short.starts_with("execute_") && self.memory().busy < self.nature.busy) {
            self.memory().busy += 1;
            let other = self.clone();
            thread::spawn(move || other.beat_later(Duration::from_millis(100)));
            return (409, json!({"faultstring": "Agent is busy: executing command x"}));
        }
        if short == "finalize_rescue" && self.nature.clear_rescue_only && params["hashed"] == true {
            return (400, json!({"faultcode": "Client", "faultstring": "Invalid command parameters: hashed"}));
        }
        (200, self.run(&short, &params))
    }

    fn run(self: &Arc<Self>, short: &str, params: &Value) -> Value {
        let record = |status: &str, result: Value| {
            json!({"id": params.to_string(), "command_name": short, "command_status": status, "command_error": null,
                   "command_result": result})
        };
        let kind = short.split('_').nth(1).unwrap_or_default().to_owned();
        if short.starts_with("get_") && short.ends_with("_steps") {
            let mut memory = self.memory();
            let version = self.nature.versions[memory.asks_for_steps.min(self.nature.versions.len() - 1)];
            memory.asks_for_steps += 1;
            let steps: Vec<&Value> = self.nature.steps.iter().map(|(step, _)| step).collect();
            let result = json!({format!("{kind}_steps"): {"M": steps}, "hardware_manager_version": {"m": version}});
            memory.records.push(record("SUCCEEDED", result));
        } else if short.starts_with("execute_") {
            let mut running = record("RUNNING", Value::Null);
            running["progress"] = json!({"phase": "write", "done_bytes": 5, "total_bytes": 10, "rate": 1, "eta": 5});
            self.memory().records.push(running.clone());
            let (other, params) = (self.clone(), params.clone());
            thread::spawn(move || other.end_step(&kind, &params));
            return running;
        } else if short == "power_off" {
            self.off.store(true, Ordering::SeqCst);
            self.memory().records.push(record("RUNNING", Value::Null));
        } else if short == "collect_system_logs" {
            self.memory().records.push(record("SUCCEEDED", json!({"system_logs": "bG9ncw=="})));
        } else if short == "get_partition_uuids" {
            self.memory().records.push(record("SUCCEEDED", json!({"root uuid": "0x1234"})));
        } else {
            self.memory().records.push(record("SUCCEEDED", Value::Null));
        }
        self.memory().records.last().unwrap().clone()
    }

    fn end_step(self: &Arc<Self>, kind: &str, params: &Value) {
        thread::sleep(self.nature.step_time);
        let step = &params["step"];
        let known = self.nature.steps.iter().find(|(known, _)| known["step"] == step["step"]);
        let mut memory = self.memory();
        let current = self.nature.versions[(memory.asks_for_steps).min(self.nature.versions.len() - 1)];
        let record = memory.records.last_mut().unwrap();
        record.as_object_mut().unwrap().remove("progress");
        let mismatch = params[format!("{kind}_version")]["m"] != current;
        match known.map(|(_, result)| result) {
            _ if mismatch => {
                record["command_status"] = json!("CLEAN_VERSION_MISMATCH");
            }
            Some(Ok(result)) => {
                record["command_status"] = json!("SUCCEEDED");
                let echo = if self.nature.no_echo { Value::Null } else { step.clone() };
                record["command_result"] = json!({format!("{kind}_result"): result, format!("{kind}_step"): echo});
            }
            Some(Err(text)) => {
                record["command_status"] = json!("FAILED");
                record["command_error"] =
                    json!({"type": "CleaningError", "code": 500, "message": "m", "details": text});
            }
            None => record["command_status"] = json!("STRANGE"),
        }
        drop(memory);
        self.beat_later(Duration::from_millis(30));
    }

    fn beat_later(&self, time: Duration) {
        thread::sleep(time);
        if !self.stop.load(Ordering::SeqCst) {
            self.beat();
        }
    }
}

/// A machine whose ramdisk is the agent above.
struct Machine {
    url: String,
    nature: Nature,
    running: Option<Agent>,
    parts: Vec<Arc<AgentParts>>,
    boots: Vec<BootTarget>,
    off: Arc<AtomicBool>,
}

impl Machine {
    fn boot(&mut self) {
        let conductor = AgentClient::new(&self.url, None, None).unwrap();
        if self.nature.inspects {
            let data = json!({"inventory": {"interfaces": [{"mac_address": MAC}]}, "error": null}).to_string();
            assert_eq!(
                conductor.raw(&RawRequest::new("POST", "/v1/continue_inspection").body(data)).unwrap().status,
                202
            );
        }
        let lookup = RawRequest::new("GET", &format!("/v1/lookup?addresses={MAC}")).header(VERSION_HEADER, "1.62");
        let answer = loop {
            let response = conductor.raw(&lookup).unwrap();
            if response.status == 200 {
                break response.json().unwrap();
            }
            if response.status == 404 {
                return; // not a node that keeps its ramdisk
            }
            thread::sleep(Duration::from_millis(20));
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let parts = Arc::new(AgentParts {
            nature: self.nature.clone(),
            memory: Mutex::default(),
            stop: stop.clone(),
            conductor,
            uuid: answer["node"]["uuid"].as_str().unwrap().to_owned(),
            token: answer["config"]["agent_token"].as_str().unwrap().to_owned(),
            url: format!("http://{}", listener.local_addr().unwrap()),
            off: self.off.clone(),
        });
        let (accepting, served) = (listener.try_clone().unwrap(), parts.clone());
        thread::spawn(move || {
            for tcp in accepting.incoming().map_while(Result::ok) {
                let parts = served.clone();
                thread::spawn(move || serve(&parts, tcp));
            }
        });
        self.parts.push(parts.clone());
        self.running = Some(Agent { stop, listener });
        thread::spawn(move || parts.beat_later(Duration::from_millis(30)));
    }

    fn commands(&self) -> Vec<String> {
        self.parts
            .iter()
            .flat_map(|p| p.memory().asked.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>())
            .collect()
    }

    fn asked(&self, command: &str) -> Value {
        let all: Vec<_> = self.parts.iter().flat_map(|p| p.memory().asked.clone()).collect();
        all.into_iter().find(|(name, _)| name == command).unwrap().1
    }
}

fn serve(parts: &Arc<AgentParts>, mut tcp: TcpStream) {
    let mut reader = MessageReader::default();
    while let Ok(head) = reader.request_head(&mut tcp) {
        if parts.stop.load(Ordering::SeqCst) {
            drop(tcp.shutdown(Shutdown::Both));
            return;
        }
        let body = reader.request_body(&mut tcp, &head.headers, 1 << 20).unwrap();
        let (status, body) = parts.answer(&head.method, &head.target, &body);
        let mut headers = Headers::default();
        headers.push("Content-Length", body.to_string().len().to_string());
        write_message(&mut tcp, &format!("HTTP/1.1 {status} X"), &headers, body.to_string().as_bytes()).unwrap();
    }
}

impl Power for Machine {
    fn is_on(&mut self) -> anyhow::Result<bool> {
        if self.off.load(Ordering::SeqCst) {
            self.off()?;
        }
        Ok(self.running.is_some())
    }

    fn off(&mut self) -> anyhow::Result<()> {
        self.off.store(false, Ordering::SeqCst);
        if let Some(agent) = self.running.take() {
            agent.stop.store(true, Ordering::SeqCst);
            drop(TcpStream::connect(agent.listener.local_addr()?));
        }
        Ok(())
    }

    fn on(&mut self, target: BootTarget) -> anyhow::Result<()> {
        self.boots.push(target);
        if target == BootTarget::Ramdisk {
            self.boot();
        }
        Ok(())
    }

    fn check(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}

struct Lab {
    conductor: Conductor,
    uuid: String,
    machine: Machine,
    events: Vec<FlowEvent>,
}

fn lab(state: ProvisionState, nature: Nature) -> Lab {
    let mut node = Node::new("node-1", &[MAC]);
    node.provision_state = state;
    let uuid = node.uuid.clone();
    let settings = Settings { require_tls: false, inspection_hooks: Duration::from_millis(50), ..Settings::default() };
    let conductor =
        Conductor::start(ConductorConfig { nodes: vec![node], settings, ..ConductorConfig::default() }).unwrap();
    let url = conductor.url();
    let off = Arc::default();
    let machine = Machine { url, nature, running: None, parts: Vec::new(), boots: Vec::new(), off };
    Lab { conductor, uuid, machine, events: Vec::new() }
}

impl Lab {
    fn run<T>(&mut self, act: impl FnOnce(&mut Flow<'_>) -> T) -> T {
        let events = &mut self.events;
        let limits = Limits {
            boot: Duration::from_secs(5),
            step: Duration::from_secs(5),
            progress: Some(Duration::from_millis(10)),
            boot_loader_poll: Duration::from_millis(10),
            power_off: Duration::from_secs(2),
        };
        let mut flow = Flow::new(&self.conductor, &self.uuid, &mut self.machine)
            .limits(limits)
            .observer(|event| events.push(event.clone()));
        act(&mut flow)
    }

    fn state(&self) -> ProvisionState {
        self.conductor.node(&self.uuid).unwrap().provision_state
    }
}

#[test]
fn automated_cleaning_runs_the_steps_in_order_and_makes_the_node_available() {
    let mut lab = lab(ProvisionState::Manageable, Nature::default());
    let report = lab.run(|flow| flow.clean(&BTreeMap::new())).unwrap();
    let ran: Vec<_> = report.steps.iter().map(|s| s.step.as_str()).collect();
    assert_eq!(ran, ["erase_devices_metadata", "erase_devices"]);
    assert_eq!(report.steps[1].result, json!({"/dev/vda": null}));
    let expected = ["clean.get_clean_steps", "clean.execute_clean_step", "clean.execute_clean_step"];
    assert_eq!(lab.machine.commands(), expected);
    let sent = lab.machine.asked("clean.execute_clean_step");
    assert_eq!(sent["step"]["requires_ramdisk"], true);
    assert_eq!(sent["clean_version"], json!({"m": "1.2"}));
    assert_eq!(sent["node"]["driver_internal_info"]["disk_erasure_concurrency"], 4);
    assert_eq!(sent["node"]["provision_state"], "cleaning");
    assert_eq!(sent["node"]["clean_step"]["step"], "erase_devices_metadata");
    assert_eq!(sent["ports"][0]["address"], MAC);
    assert_eq!(lab.state(), ProvisionState::Available);
    assert!(lab.machine.running.is_none(), "the machine is off");
    assert!(lab.events.iter().any(|e| matches!(e, FlowEvent::Progress { progress, .. } if progress.done_bytes == 5)));
}

#[test]
fn priorities_of_the_operator_override_those_of_the_agent() {
    let mut lab = lab(ProvisionState::Manageable, Nature::default());
    let priorities = BTreeMap::from([("erase_devices".to_owned(), 0)]);
    let report = lab.run(|flow| flow.clean(&priorities)).unwrap();
    assert_eq!(report.steps.len(), 1);
}

#[test]
fn a_priority_of_a_step_that_is_not_offered_is_refused_with_the_ones_that_are() {
    let mut lab = lab(ProvisionState::Manageable, Nature::default());
    let priorities = BTreeMap::from([("erase_devices".to_owned(), 0), ("nosuch".to_owned(), 5)]);
    let text = lab.run(|flow| flow.clean(&priorities)).unwrap_err().to_string();
    assert!(text.contains("given for nosuch, which the agent does not offer"), "{text}");
    assert!(text.contains("deploy.erase_devices (10), deploy.erase_devices_metadata (99)"), "{text}");
    assert_eq!(lab.machine.commands(), ["clean.get_clean_steps", "log.collect_system_logs"], "no step was run");
    assert_eq!(lab.state(), ProvisionState::CleanFail);
}

#[test]
fn a_failed_step_fails_the_node_and_collects_the_logs() {
    let mut nature = Nature::default();
    nature.steps[1].1 = Err("disk is on fire".to_owned());
    let mut lab = lab(ProvisionState::Manageable, nature);
    match lab.run(|flow| flow.clean(&BTreeMap::new())).unwrap_err() {
        FlowError::Failed { last_error, record, logs } => {
            assert!(last_error.starts_with("Clean step deploy.erase_devices_metadata failed on node"), "{last_error}");
            assert!(last_error.ends_with("disk is on fire"), "{last_error}");
            assert_eq!(record.unwrap().command_status, "FAILED");
            assert_eq!(logs.unwrap(), b"logs");
        }
        other => panic!("{other:?}"),
    }
    let node = lab.conductor.node(&lab.uuid).unwrap();
    assert_eq!((node.provision_state, node.maintenance), (ProvisionState::CleanFail, true));
}

#[test]
fn a_step_of_unknown_status_and_one_that_is_not_echoed_fail() {
    let mut strange = Nature::default();
    strange.steps[1].0["step"] = json!("erase_devices_metadata");
    let unknown_step = json!({"step": "nobody_knows", "interface": "deploy", "priority": 100});
    strange.steps.insert(0, (unknown_step, Ok(Value::Null)));
    strange.steps[0].1 = Err("x".to_owned());
    let mut lab1 = lab(ProvisionState::Manageable, strange);
    assert!(matches!(lab1.run(|flow| flow.clean(&BTreeMap::new())), Err(FlowError::Failed { .. })));

    let mut lab2 = lab(ProvisionState::Manageable, Nature { no_echo: true, ..Nature::default() });
    let result = lab2.run(|flow| {
        flow.limits.step = Duration::from_millis(700);
        flow.clean(&BTreeMap::new())
    });
    let text = result.unwrap_err().to_string();
    assert!(text.contains("no heartbeat"), "{text}");
    assert_eq!(lab2.state(), ProvisionState::CleanFail);
}

#[test]
fn a_busy_agent_gets_the_step_again_at_its_next_heartbeat() {
    let mut lab = lab(ProvisionState::Manageable, Nature { busy: 1, ..Nature::default() });
    let report = lab.run(|flow| flow.clean(&BTreeMap::new())).unwrap();
    assert_eq!(report.steps.len(), 2);
    assert_eq!(lab.machine.commands().iter().filter(|c| c.contains("execute")).count(), 3);
}

#[test]
fn a_version_mismatch_restarts_automated_cleaning() {
    // Asked once: "1"; the steps then run under "2".
    let nature = Nature { versions: vec!["1", "2", "2"], ..Nature::default() };
    let mut lab = lab(ProvisionState::Manageable, nature);
    let report = lab.run(|flow| flow.clean(&BTreeMap::new())).unwrap();
    assert_eq!((report.restarts, report.steps.len()), (1, 2));
}

#[test]
fn manual_cleaning_runs_what_is_asked_with_arguments_and_stays_on_its_step_after_a_mismatch() {
    let mut nature = Nature { versions: vec!["1", "2", "2"], ..Nature::default() };
    nature.steps[1].0["argsinfo"] = json!({"deep": {"required": true}});
    let mut lab = lab(ProvisionState::Manageable, nature);
    let step = json!({"interface": "deploy", "step": "erase_devices_metadata", "args": {"deep": 1}});
    let report = lab.run(|flow| flow.clean_manually(std::slice::from_ref(&step))).unwrap();
    assert_eq!((report.restarts, report.steps.len()), (1, 1));
    assert_eq!(lab.machine.asked("clean.execute_clean_step")["step"]["args"], json!({"deep": 1}));
    assert_eq!(lab.state(), ProvisionState::Manageable);
}

#[test]
fn a_step_that_asks_for_a_reboot_gets_one_and_cleaning_goes_on_with_a_new_agent() {
    let mut nature = Nature::default();
    nature.steps[1].0["reboot_requested"] = json!(true);
    let mut lab = lab(ProvisionState::Manageable, nature);
    let report = lab.run(|flow| flow.clean(&BTreeMap::new())).unwrap();
    assert_eq!(report.steps.len(), 2);
    assert_eq!(lab.machine.boots.len(), 2);
    assert_ne!(lab.machine.parts[0].token, lab.machine.parts[1].token);
}

fn request(uefi: bool) -> DeployRequest {
    DeployRequest {
        image: ImageSource {
            url: "http://10.0.2.2:8080/disk.raw".to_owned(),
            disk_format: "raw".to_owned(),
            hash: Some(("sha256".to_owned(), "00".repeat(32))),
            image_info_patch: json!({}),
        },
        partitions: None,
        configdrive: Some("H4sI".to_owned()),
        uefi,
        root_device: Some(json!({"serial": "x"})),
        collect_logs: true,
        boot_instance: true,
    }
}

#[test]
fn a_deploy_makes_the_calls_of_a_real_one() {
    for uefi in [false, true] {
        let mut lab = lab(ProvisionState::Available, Nature::default());
        // Of the agent's steps only write_image runs, because the conductor asks for it.
        lab.machine.nature.steps.iter_mut().for_each(|(step, _)| step["priority"] = json!(0));
        let report = lab.run(|flow| flow.deploy(&request(uefi))).unwrap();
        let mut expected = vec!["deploy.get_deploy_steps", "deploy.execute_deploy_step", "standby.get_partition_uuids"];
        expected.extend(uefi.then_some("image.install_bootloader"));
        expected.extend(["log.collect_system_logs", "standby.power_off"]);
        assert_eq!(lab.machine.commands(), expected, "uefi {uefi}");
        let sent = lab.machine.asked("deploy.execute_deploy_step");
        let info = &sent["step"]["args"]["image_info"];
        assert_eq!((&info["id"], &info["configdrive"]), (&json!("disk.raw"), &json!("H4sI")));
        assert_eq!(sent["step"]["args"]["configdrive"], "H4sI");
        assert_eq!(sent["node"]["instance_info"]["configdrive"], "H4sI", "readable in this command only");
        let asked = lab.machine.asked("deploy.get_deploy_steps");
        assert_eq!(asked["node"]["instance_info"]["configdrive"], "******");
        assert_eq!(asked["node"]["provision_state"], "wait call-back");
        if uefi {
            let sent = lab.machine.asked("image.install_bootloader");
            assert_eq!(sent["root_uuid"], "0x1234");
            assert_eq!((&sent["target_boot_mode"], &sent["efi_system_part_uuid"]), (&json!("uefi"), &Value::Null));
        }
        assert_eq!((report.powered_off_by_agent, report.logs.as_deref()), (true, Some(b"logs".as_slice())));
        assert_eq!(lab.machine.boots, [BootTarget::Ramdisk, BootTarget::Disk]);
        assert_eq!(lab.state(), ProvisionState::Active);
    }
}

#[test]
fn a_partition_image_comes_with_its_sizes_and_always_asks_for_a_boot_loader() {
    for uefi in [false, true] {
        let mut lab = lab(ProvisionState::Available, Nature::default());
        lab.machine.nature.steps.iter_mut().for_each(|(step, _)| step["priority"] = json!(0));
        let partitions = Partitions { root_mb: 1500, swap_mb: 64, ..Partitions::default() };
        let request = DeployRequest { partitions: Some(partitions), ..request(uefi) };
        lab.run(|flow| flow.deploy(&request)).unwrap();
        let sent = lab.machine.asked("deploy.execute_deploy_step");
        let mode = if uefi { "uefi" } else { "bios" };
        for members in [&sent["step"]["args"]["image_info"], &sent["node"]["instance_info"]] {
            assert_eq!((&members["image_type"], &members["root_gb"]), (&json!("partition"), &json!(2)));
            assert_eq!((&members["root_mb"], &members["swap_mb"]), (&json!(1500), &json!(64)));
            assert_eq!((&members["deploy_boot_mode"], &members["preserve_ephemeral"]), (&json!(mode), &json!(false)));
        }
        assert_eq!(sent["node"]["driver_internal_info"]["is_whole_disk_image"], false);
        assert_eq!(lab.machine.asked("image.install_bootloader")["target_boot_mode"], mode);
    }
}

#[test]
fn a_failed_deploy_step_leaves_the_node_in_deploy_failed_with_the_agents_words() {
    let mut nature = Nature::default();
    nature.steps[2].1 = Err("Image verification failed".to_owned());
    nature.steps.iter_mut().for_each(|(step, _)| step["priority"] = json!(0));
    let mut lab = lab(ProvisionState::Available, nature);
    let error = lab.run(|flow| flow.deploy(&request(false))).unwrap_err();
    assert!(error.to_string().starts_with("Deploy step deploy.write_image failed"), "{error}");
    assert_eq!(lab.state(), ProvisionState::DeployFail);
    assert_eq!(lab.machine.boots, [BootTarget::Ramdisk]);
}

#[test]
fn inspection_leads_to_manageable_and_power_off() {
    let mut lab = lab(ProvisionState::Manageable, Nature { inspects: true, ..Nature::default() });
    let data = lab.run(|flow| flow.inspect()).unwrap();
    assert_eq!(data.inventory["interfaces"][0]["mac_address"], MAC);
    assert_eq!(lab.state(), ProvisionState::Manageable);
    assert!(lab.machine.running.is_none());
}

#[test]
fn with_fast_track_one_boot_serves_inspection_cleaning_and_deploying() {
    let mut nature = Nature { inspects: true, ..Nature::default() };
    nature.steps[0].0["priority"] = json!(50);
    let mut lab = lab(ProvisionState::Manageable, nature);
    lab.conductor.update_node(&lab.uuid, |node| node.fast_track = true).unwrap();
    lab.run(|flow| {
        flow.inspect()?;
        flow.wait_until_announced()?;
        flow.clean(&BTreeMap::new())
    })
    .unwrap();
    lab.machine.parts[0].beat();
    let mut request = request(false);
    request.boot_instance = false;
    let report = lab.run(|flow| flow.deploy(&request)).unwrap();
    assert_eq!(lab.machine.boots, [BootTarget::Ramdisk]);
    // This agent offers its clean steps for deploys too, so they run between the conductor's.
    let ran: Vec<_> = report.steps.iter().map(|s| s.step.as_str()).collect();
    assert_eq!(ran, ["erase_devices_metadata", "write_image", "erase_devices"]);
    assert_eq!(lab.state(), ProvisionState::Active);
}

#[test]
fn rescue_needs_a_synchronous_success_and_falls_back_to_the_clear_password() {
    let mut hashed = lab(ProvisionState::Active, Nature::default());
    hashed.run(|flow| flow.rescue("$6$x", None)).unwrap();
    assert_eq!(hashed.machine.asked("rescue.finalize_rescue"), json!({"rescue_password": "$6$x", "hashed": true}));
    assert_eq!(hashed.state(), ProvisionState::Rescue);

    let nature = Nature { clear_rescue_only: true, ..Nature::default() };
    let mut clear = lab(ProvisionState::Active, nature.clone());
    clear.run(|flow| flow.rescue("$6$x", Some("secret"))).unwrap();
    assert_eq!(clear.machine.commands(), ["rescue.finalize_rescue", "rescue.finalize_rescue"]);

    let mut strict = lab(ProvisionState::Active, nature);
    assert!(strict.run(|flow| flow.rescue("$6$x", None)).is_err());
    assert_eq!(strict.state(), ProvisionState::RescueFail);
}

#[test]
fn servicing_runs_the_steps_and_boots_the_instance_again() {
    let mut lab = lab(ProvisionState::Active, Nature::default());
    let step = json!({"interface": "deploy", "step": "erase_devices_metadata"});
    let reports = lab.run(|flow| flow.service(std::slice::from_ref(&step))).unwrap();
    assert_eq!(reports.len(), 1);
    assert_eq!(lab.machine.asked("service.execute_service_step")["service_version"], json!({"m": "1.2"}));
    assert_eq!(lab.machine.boots, [BootTarget::Ramdisk, BootTarget::Disk]);
    assert_eq!(lab.state(), ProvisionState::Active);
}

#[test]
fn an_agent_that_never_comes_fails_the_operation() {
    let mut lab = lab(ProvisionState::Manageable, Nature::default());
    lab.conductor.script(crate::conductor::Endpoint::Lookup, [crate::conductor::Fault::Status(404)]);
    let result = lab.run(|flow| {
        flow.limits.boot = Duration::from_millis(300);
        flow.clean(&BTreeMap::new())
    });
    let text = result.unwrap_err().to_string();
    assert!(text.contains("no heartbeat from the agent within 300ms while booting to clean"), "{text}");
    assert_eq!(lab.state(), ProvisionState::CleanFail);
}

#[test]
fn an_operation_that_the_state_does_not_allow_is_refused_before_anything_happens() {
    let mut lab = lab(ProvisionState::Manageable, Nature::default());
    assert!(matches!(lab.run(|flow| flow.deploy(&request(false))), Err(FlowError::State(_))));
    assert_eq!(lab.machine.boots, []);
}
