//! Requests that an agent must refuse, and how it must do it (spec/conductor.md section 13, spec/protocol.md section 12).
//!
//! Each probe gives `Ok(())` or says what was wrong, so that tests of an agent in a process and in a machine share them.

use crate::conductor::client::{AgentClient, AgentError, CommandRecord, RawRequest, Wait};
use crate::conductor::node::Node;
use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};
use std::thread;
use std::time::{Duration, Instant};

/// No token, a wrong one, and an empty one get 401 on the list and on commands; the open pages need none.
pub fn token_is_required(agent: &AgentClient) -> anyhow::Result<()> {
    for query in ["", "?agent_token=", "?agent_token=wrong", "?agent_token=%00%ff"] {
        for (method, body) in [("GET", Vec::new()), ("POST", br#"{"name":"standby.sync","params":{}}"#.to_vec())] {
            let response = agent.raw(&RawRequest::new(method, &format!("/v1/commands/{query}")).body(body))?;
            ensure!(response.status == 401, "{method} with {query:?}: status {}", response.status);
            let fault = response.json().unwrap_or_default();
            ensure!(fault["faultstring"].is_string(), "{method} with {query:?}: no faultstring: {fault}");
            ensure!(fault["faultcode"] == "Client", "{method} with {query:?}: {fault}");
        }
    }
    for path in ["/", "/v1/", "/v1/status"] {
        let response = agent.raw(&RawRequest::new("GET", path))?;
        ensure!(response.status == 200, "{path}: status {}", response.status);
    }
    Ok(())
}

/// Commands that do not exist: 404 for an unknown extension, 400 for an unknown command and for a name without a dot.
pub fn unknown_commands_are_refused(agent: &AgentClient) -> anyhow::Result<()> {
    for (name, expected, text) in [
        ("nope.sync", 404, "Not found: Extension with id nope not found."),
        ("standby.cache_image", 400, "Invalid command: Unknown command: cache_image"),
        ("sync", 400, "Invalid command: Command name must be of the form <extension>.<name>"),
    ] {
        match agent.command(name, &json!({}), Wait::ForResult) {
            Err(AgentError::Api { status, fault, .. }) => {
                ensure!(status == expected, "{name}: status {status}: {fault}");
                ensure!(fault == text, "{name}: faultstring {fault:?}, expected {text:?}");
            }
            other => bail!("{name}: expected a refusal, got {other:?}"),
        }
    }
    Ok(())
}

/// Bodies that are no command: 400 with a `faultstring`.
pub fn broken_bodies_are_refused(agent: &AgentClient, token: &str) -> anyhow::Result<()> {
    for body in ["", "{", "[]", r#"{"name":"standby.sync"}"#, r#"{"params":{}}"#, r#"{"name":1,"params":{}}"#] {
        let target = format!("/v1/commands/?wait=true&agent_token={token}");
        let response = agent.raw(&RawRequest::new("POST", &target).body(body))?;
        ensure!(response.status == 400, "{body:?}: status {}: {}", response.status, response.text());
        let fault = response.json().with_context(|| format!("{body:?}: the answer is no JSON"))?;
        ensure!(fault["faultstring"].is_string(), "{body:?}: no faultstring: {fault}");
    }
    Ok(())
}

/// A step with a version of the hardware managers that the agent does not have ends with `CLEAN_VERSION_MISMATCH`.
pub fn wrong_version_is_a_mismatch(agent: &AgentClient, node: &Node, limit: Duration) -> anyhow::Result<CommandRecord> {
    let params = json!({
        "step": {"interface": "deploy", "step": "erase_devices_metadata", "priority": 99},
        "node": node.as_dict(true), "ports": node.ports_list(),
        "clean_version": {"generic_hardware_manager": "0.0"},
    });
    let started = agent.command("clean.execute_clean_step", &params, Wait::No)?;
    let record = wait_for_end(agent, &started.id, limit)?;
    ensure!(record.command_status == "CLEAN_VERSION_MISMATCH", "status {}: {record:?}", record.command_status);
    ensure!(record.command_error["type"] == "VersionMismatch", "error {}", record.command_error);
    ensure!(record.command_error["code"] == 409, "error {}", record.command_error);
    Ok(record)
}

/// While an asynchronous command runs, another gets 409 `Agent is busy`, and the list is answered at once.
/// `running` is the record of a command that is known to run long enough.
pub fn busy_agent_refuses(agent: &AgentClient, running: &CommandRecord) -> anyhow::Result<()> {
    match agent.command("standby.sync", &json!({}), Wait::ForResult) {
        Err(AgentError::InProgress { fault }) => {
            let expected = format!("Agent is busy: executing command {}", running.command_name);
            ensure!(fault == expected, "faultstring {fault:?}, expected {expected:?}");
        }
        other => bail!("expected a busy agent, got {other:?}"),
    }
    list_answers_within(agent, Duration::from_secs(2)).map(drop)
}

/// While a synchronous command holds the command lock, reading the list does not wait for it. `slow_command` is
/// given on a thread of its own; `other` is a second client of the same agent.
pub fn list_answers_during_sync_command(
    agent: &AgentClient,
    other: &AgentClient,
    slow_command: &str,
    params: &Value,
) -> anyhow::Result<()> {
    thread::scope(|scope| {
        let running = scope.spawn(|| agent.command(slow_command, params, Wait::ForResult));
        while !running.is_finished() {
            list_answers_within(other, Duration::from_secs(2))?;
        }
        match running.join() {
            Ok(result) => result.map(drop).with_context(|| format!("giving {slow_command}")),
            Err(_) => bail!("the thread that gave {slow_command} panicked"),
        }
    })
}

/// A POST whose reply was lost is sent again by Ironic: an asynchronous command must not run twice, so the second
/// gets 409, and the list's last record is the running one, which Ironic then takes for the answer.
pub fn lost_reply_is_recognized(agent: &AgentClient, command: &str, params: &Value) -> anyhow::Result<CommandRecord> {
    let first = agent.command(command, params, Wait::No)?;
    match agent.command(command, params, Wait::No) {
        Err(AgentError::InProgress { .. }) => {}
        other => bail!("the command sent twice: {other:?}"),
    }
    let records = agent.commands()?;
    let last = records.last().context("the command list is empty")?;
    ensure!(last.id == first.id && last.is_running(), "the last record is not the running command: {last:?}");
    Ok(first)
}

/// Waits until the command with this id has ended.
pub fn wait_for_end(agent: &AgentClient, id: &str, limit: Duration) -> anyhow::Result<CommandRecord> {
    let end = Instant::now() + limit;
    loop {
        let records = agent.commands()?;
        let record = records.into_iter().find(|r| r.id == id).with_context(|| format!("command {id} is not listed"))?;
        if !record.is_running() {
            return Ok(record);
        }
        ensure!(Instant::now() < end, "command {id} runs longer than {limit:?}: {record:?}");
        thread::sleep(Duration::from_millis(100));
    }
}

fn list_answers_within(agent: &AgentClient, limit: Duration) -> anyhow::Result<Vec<CommandRecord>> {
    let began = Instant::now();
    let records = agent.commands()?;
    ensure!(began.elapsed() < limit, "reading the command list took {:?}", began.elapsed());
    Ok(records)
}
