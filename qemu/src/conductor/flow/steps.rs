//! Steps: the list an agent offers, starting one, and what a heartbeat tells about it.
//!
//! One engine for clean, deploy and service, after `agent_base.py` (`refresh_steps`, `execute_step`,
//! `process_next_step`) and `conductor/steps.py`.

use super::{BootTarget, Flow, FlowError, FlowEvent};
use crate::conductor::client::{AgentError, CommandRecord, Wait};
use crate::conductor::node::{Node, timestamp};
use crate::conductor::state::ProvisionState;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Which of the three kinds of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    /// Cleaning.
    Clean,
    /// Deploying.
    Deploy,
    /// Servicing.
    Service,
}

impl StepKind {
    /// The name in commands and keys.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            StepKind::Clean => "clean",
            StepKind::Deploy => "deploy",
            StepKind::Service => "service",
        }
    }

    pub(super) fn working(self) -> ProvisionState {
        match self {
            StepKind::Clean => ProvisionState::Cleaning,
            StepKind::Deploy => ProvisionState::Deploying,
            StepKind::Service => ProvisionState::Servicing,
        }
    }

    pub(super) fn waiting(self) -> ProvisionState {
        match self {
            StepKind::Clean => ProvisionState::CleanWait,
            StepKind::Deploy => ProvisionState::DeployWait,
            StepKind::Service => ProvisionState::ServiceWait,
        }
    }

    pub(super) fn failed(self) -> ProvisionState {
        match self {
            StepKind::Clean => ProvisionState::CleanFail,
            StepKind::Deploy => ProvisionState::DeployFail,
            StepKind::Service => ProvisionState::ServiceFail,
        }
    }

    fn current(self, node: &mut Node) -> &mut Value {
        match self {
            StepKind::Clean => &mut node.clean_step,
            StepKind::Deploy => &mut node.deploy_step,
            StepKind::Service => &mut node.service_step,
        }
    }
}

/// A step that has ended well.
#[derive(Debug, Clone)]
pub struct StepReport {
    /// Its name.
    pub step: String,
    /// What it returned: the `clean_result`, `deploy_result` or `service_result`.
    pub result: Value,
    /// From its start to the heartbeat that told of its end.
    pub took: Duration,
    /// Whether the agent had no memory of it and Ironic went on to the next (after a reboot).
    pub forgotten: bool,
}

/// What the command list tells about the running step.
enum Verdict {
    /// The agent knows of no step: it has just booted.
    Fresh,
    Running,
    Succeeded(Value),
    Failed(CommandRecord),
    VersionMismatch,
    Unknown(CommandRecord),
}

/// How a step ended.
pub(super) enum Ended {
    Well(StepReport),
    /// The list of steps is out of date.
    VersionMismatch,
}

impl Flow<'_> {
    /// Asks the agent for its steps and caches them and the version they belong to. A busy agent is a failure here:
    /// Ironic would go on with an empty list.
    pub(super) fn refresh_steps(&mut self, kind: StepKind) -> Result<Vec<Value>, FlowError> {
        let name = kind.name();
        let command = format!("{name}.get_{name}_steps");
        let node = self.node()?;
        let params = json!({"node": node.as_dict(true), "ports": node.ports_list()});
        let record = self.command(&command, &params, Wait::ForResult)?;
        let (steps, cache, version) = parse_steps(kind, &record)?;
        self.update(|node| {
            node.set_internal("hardware_manager_version", version);
            node.set_internal(&format!("agent_cached_{name}_steps"), cache);
            node.set_internal(&format!("agent_cached_{name}_steps_refreshed"), timestamp());
        })?;
        Ok(steps)
    }

    /// Runs one step to its end. The node must be in the working state, and is again afterwards.
    pub(super) fn run_step(&mut self, kind: StepKind, step: &Value) -> Result<Ended, FlowError> {
        let name = step["step"].as_str().unwrap_or_default().to_owned();
        let began = Instant::now();
        self.update(|node| *kind.current(node) = without_args(step))?;
        self.tell(&FlowEvent::StepStarted { step: name.clone() });
        self.start_step(kind, step)?;
        let limit = self.limits.step;
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            self.next_heartbeat(left, Some(&name), &format!("running {} step {name}", kind.name()))?;
            let (result, forgotten) = match self.verdict(kind, step)? {
                Verdict::Running => continue,
                Verdict::Fresh => (Value::Null, true),
                Verdict::Succeeded(result) => (result, false),
                Verdict::VersionMismatch => {
                    self.go(kind.working())?;
                    return Ok(Ended::VersionMismatch);
                }
                Verdict::Failed(record) => return Err(self.step_failed(kind, step, record.error_text(), record)),
                Verdict::Unknown(record) => {
                    let text = format!("Agent returned unknown status {}", record.command_status);
                    return Err(self.step_failed(kind, step, text, record));
                }
            };
            check_result(kind, step, &result, forgotten).map_err(|what| FlowError::BadAnswer { what })?;
            if step["reboot_requested"] == json!(true) && !forgotten {
                self.tell(&FlowEvent::Note(format!("step {name} asked for a reboot")));
                self.power_cycle(BootTarget::Ramdisk)?;
                self.first_heartbeat(&format!("rebooting after {} step {name}", kind.name()))?;
                // Ironic reads the list here to see that the agent is a new one.
                let records = self.commands()?;
                if !records.is_empty() {
                    let what = format!("the agent has records of before its reboot: {records:?}");
                    return Err(FlowError::BadAnswer { what });
                }
            }
            self.go(kind.working())?;
            let report = StepReport { step: name.clone(), result, took: began.elapsed(), forgotten };
            self.tell(&FlowEvent::StepEnded { step: name, took: report.took });
            return Ok(Ended::Well(report));
        }
    }

    /// Gives the command, and goes to the waiting state. A busy agent gets it again at the next heartbeat.
    fn start_step(&mut self, kind: StepKind, step: &Value) -> Result<(), FlowError> {
        let name = kind.name();
        let command = format!("{name}.execute_{name}_step");
        loop {
            let node = self.node()?;
            let params = json!({
                "step": step,
                "node": node.as_dict(kind != StepKind::Deploy),
                "ports": node.ports_list(),
                format!("{name}_version"): node.driver_internal_info.get("hardware_manager_version"),
            });
            let started = self.agent()?.command(&command, &params, Wait::No);
            self.go(kind.waiting())?;
            match started {
                Ok(record) if record.command_status.is_empty() => {
                    let what = format!("agent returned bad command result: {record:?}");
                    return Err(FlowError::BadAnswer { what });
                }
                Ok(_) => return Ok(()),
                Err(AgentError::InProgress { fault }) => {
                    self.tell(&FlowEvent::Note(format!("the agent is busy, trying at the next heartbeat: {fault}")));
                    self.next_heartbeat(
                        self.limits.step,
                        None,
                        &format!("waiting for a busy agent to start a {name} step"),
                    )?;
                    self.go(kind.working())?;
                }
                Err(source) => return Err(FlowError::Agent { doing: format!("calling {command}"), source }),
            }
        }
    }

    fn commands(&self) -> Result<Vec<CommandRecord>, FlowError> {
        let doing = || format!("reading the commands of node {}", self.uuid);
        self.agent()?.commands().map_err(|source| FlowError::Agent { doing: doing(), source })
    }

    /// The rules of `process_next_step`.
    fn verdict(&mut self, kind: StepKind, step: &Value) -> Result<Verdict, FlowError> {
        let records = self.commands()?;
        let getter = format!("get_{}_steps", kind.name());
        if records.iter().all(|record| record.command_name == getter) {
            return Ok(Verdict::Fresh);
        }
        let Some(last) = records.into_iter().last() else { return Ok(Verdict::Fresh) };
        if last.command_name != format!("execute_{}_step", kind.name()) {
            return Ok(Verdict::Running);
        }
        let echo = &last.command_result[format!("{}_step", kind.name())];
        Ok(match last.command_status.as_str() {
            "RUNNING" => Verdict::Running,
            "SUCCEEDED" if !is_same_step(echo, step) => Verdict::Running,
            "SUCCEEDED" => Verdict::Succeeded(last.command_result[format!("{}_result", kind.name())].clone()),
            "FAILED" => Verdict::Failed(last),
            "CLEAN_VERSION_MISMATCH" | "VERSION_MISMATCH" => Verdict::VersionMismatch,
            _ => Verdict::Unknown(last),
        })
    }

    fn step_failed(&mut self, kind: StepKind, step: &Value, why: String, record: CommandRecord) -> FlowError {
        let mut title = kind.name().to_owned();
        title[..1].make_ascii_uppercase();
        let id = format!("{}.{}", step["interface"].as_str().unwrap_or("?"), step["step"].as_str().unwrap_or("?"));
        let last_error = format!("{title} step {id} failed on node {}. {why}", self.uuid);
        self.fail(kind.failed(), last_error, Some(record))
    }
}

/// Same interface and step: all that Ironic compares.
fn is_same_step(a: &Value, b: &Value) -> bool {
    a.is_object() && a["interface"] == b["interface"] && a["step"] == b["step"]
}

fn without_args(step: &Value) -> Value {
    let mut step = step.clone();
    if let Some(members) = step.as_object_mut() {
        members.remove("args");
    }
    step
}

/// What the hooks after a step insist on: RAID steps must return the configuration.
fn check_result(kind: StepKind, step: &Value, result: &Value, forgotten: bool) -> Result<(), String> {
    let name = step["step"].as_str().unwrap_or_default();
    let is_raid = step["interface"] == "raid";
    let returns_config = match kind {
        StepKind::Clean | StepKind::Service => name == "create_configuration",
        StepKind::Deploy => name == "apply_configuration",
    };
    let empty = result.as_object().is_none_or(Map::is_empty);
    if is_raid && returns_config && empty && !forgotten {
        return Err(format!("step {name} didn't return a proper command result: {result}"));
    }
    Ok(())
}

/// The steps of all managers, the cache entry, and the version of the managers.
fn parse_steps(kind: StepKind, record: &CommandRecord) -> Result<(Vec<Value>, Value, Value), FlowError> {
    let bad = |what: String| FlowError::BadAnswer { what };
    let key = format!("{}_steps", kind.name());
    let result = &record.command_result;
    let managers = result[&key].as_object();
    let version = result.get("hardware_manager_version");
    let (Some(managers), Some(version)) = (managers, version) else {
        return Err(bad(format!("agent get_{key} returned an invalid result: {record:?}")));
    };
    let mut steps = Vec::new();
    let mut cache = Map::new();
    for list in managers.values() {
        let list = list.as_array().ok_or_else(|| bad(format!("agent get_{key} returned no list of steps: {list}")))?;
        for step in list {
            let complete = step["interface"].is_string() && step["step"].is_string() && step["priority"].is_u64();
            if !complete {
                return Err(bad(format!("agent get_{key} returned an invalid step: {step}")));
            }
            let mut step = step.clone();
            if kind == StepKind::Clean {
                step["requires_ramdisk"] = json!(true);
            }
            let interface = step["interface"].as_str().unwrap_or_default().to_owned();
            if interface_rank(&interface).is_none() {
                return Err(bad(format!("interface {interface:?} of a step is none that Ironic can sort: {step}")));
            }
            let of_interface = cache.entry(interface).or_insert_with(|| json!([]));
            if let Some(list) = of_interface.as_array_mut() {
                list.push(step.clone());
            }
            steps.push(step);
        }
    }
    Ok((steps, Value::Object(cache), version.clone()))
}

/// Which interface goes first at equal priority (`CLEANING_INTERFACE_PRIORITY`).
fn interface_rank(interface: &str) -> Option<u64> {
    ["raid", "bios", "deploy", "firmware", "management", "power", "vendor"]
        .iter()
        .position(|known| *known == interface)
        .map(|place| crate::conductor::to_u64(place) + 1)
}

/// The steps that run by themselves, highest priority first.
pub(super) fn sorted_by_priority(steps: &[Value]) -> Vec<Value> {
    let rank = |step: &Value| {
        (step["priority"].as_u64().unwrap_or(0), interface_rank(step["interface"].as_str().unwrap_or_default()))
    };
    let mut wanted: Vec<Value> = steps.iter().filter(|s| rank(s).0 > 0).cloned().collect();
    wanted.sort_by_key(|step| std::cmp::Reverse(rank(step)));
    wanted
}

/// Whether every priority belongs to a step that the agent offers. Ironic passes over the others; here they are taken for
/// misspelt.
pub(super) fn check_priorities(offered: &[Value], priorities: &BTreeMap<String, u64>) -> Result<(), String> {
    let is_offered = |name: &str| offered.iter().any(|step| step["step"] == name);
    let unknown: Vec<&str> = priorities.keys().map(String::as_str).filter(|name| !is_offered(name)).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    Err(format!("a priority is given for {}, which the agent does not offer; {}", unknown.join(", "), list(offered)))
}

/// `its steps are deploy.erase_devices (10), ...`, with priorities.
fn list(offered: &[Value]) -> String {
    let word = |step: &Value, key: &str| step[key].as_str().unwrap_or("?").to_owned();
    let shown = |step: &Value| format!("{}.{} ({})", word(step, "interface"), word(step, "step"), step["priority"]);
    format!("its steps are {}", offered.iter().map(shown).collect::<Vec<_>>().join(", "))
}

/// The steps an operator asked for, completed from what the agent offers, or why Ironic would refuse them.
pub(super) fn check_wanted(offered: &[Value], wanted: &[Value]) -> Result<Vec<Value>, String> {
    wanted.iter().map(|step| complete_step(offered, step)).collect()
}

fn complete_step(offered: &[Value], wanted: &Value) -> Result<Value, String> {
    let found = offered.iter().find(|step| is_same_step(step, wanted));
    let found = found.ok_or_else(|| format!("node does not support this step: {wanted}; {}", list(offered)))?;
    let arguments = found["argsinfo"].as_object();
    let given = wanted["args"].as_object();
    let unknown: Vec<&String> = given
        .into_iter()
        .flat_map(Map::keys)
        .filter(|name| !arguments.is_some_and(|known| known.contains_key(*name)))
        .collect();
    if !unknown.is_empty() {
        return Err(format!("step has these unexpected arguments {unknown:?}: {wanted}"));
    }
    for (name, info) in arguments.into_iter().flatten() {
        if info["required"] == json!(true) && !given.is_some_and(|given| given.contains_key(name)) {
            return Err(format!("step is missing the required argument {name}: {wanted}"));
        }
    }
    let mut step = wanted.clone();
    for key in ["abortable", "requires_ramdisk", "reboot_requested", "priority"] {
        if let (Some(value), None) = (found.get(key), wanted.get(key)) {
            step[key] = value.clone();
        }
    }
    Ok(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_run_by_priority_and_then_by_interface() {
        let step = |name: &str, interface: &str, priority: u64| json!({"step": name, "interface": interface, "priority": priority});
        let steps = [step("off", "deploy", 0), step("b", "raid", 10), step("a", "deploy", 10), step("c", "deploy", 99)];
        let order: Vec<_> = sorted_by_priority(&steps).iter().map(|s| s["step"].clone()).collect();
        assert_eq!(order, ["c", "a", "b"]);
    }

    #[test]
    fn steps_an_operator_asks_for_are_checked_against_what_is_offered() {
        let offered =
            [json!({"step": "x", "interface": "deploy", "priority": 0, "abortable": true, "reboot_requested": true,
            "argsinfo": {"must": {"required": true}, "may": {"required": false}}})];
        let ask = |step: Value| check_wanted(&offered, &[step]).map(|mut s| s.remove(0));
        let good = ask(json!({"step": "x", "interface": "deploy", "args": {"must": 1}})).unwrap();
        assert_eq!((&good["reboot_requested"], &good["args"]), (&json!(true), &json!({"must": 1})));
        for (case, step, text) in [
            ("unknown step", json!({"step": "y", "interface": "deploy"}), "does not support"),
            ("other interface", json!({"step": "x", "interface": "raid"}), "does not support"),
            ("missing argument", json!({"step": "x", "interface": "deploy"}), "required argument must"),
            (
                "unknown argument",
                json!({"step": "x", "interface": "deploy", "args": {"must": 1, "z": 1}}),
                "unexpected",
            ),
        ] {
            assert!(ask(step).unwrap_err().contains(text), "{case}");
        }
        assert!(ask(json!({"step": "y", "interface": "deploy"})).unwrap_err().ends_with("its steps are deploy.x (0)"));
    }
}
