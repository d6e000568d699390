//! What a real Ironic does with a node, from its heartbeats: inspect, clean, deploy, rescue, service.
//!
//! A [`Flow`] takes one node through one operation after the other, strictly by the rules of spec/conductor.md
//! sections 2 to 10: the conductor acts when a heartbeat arrives in a waiting state with the node unlocked, looks at the
//! command list, and starts the next step or waits for the next heartbeat. Heartbeats that arrive while the conductor
//! works are answered and skipped, as in Ironic, so an agent that forgets its forced heartbeat is found out here.
//!
//! The machine's power belongs to the caller ([`Power`]); everything that happens is told to an observer
//! ([`FlowEvent`]), live progress included.

mod clean;
mod deploy;
mod inspect;
mod power;
pub mod probe;
mod rescue;
mod service;
mod steps;

pub use clean::CleanReport;
pub use deploy::{DeployReport, DeployRequest, ImageSource, Partitions};
pub use power::{BootTarget, NoPower, Power};
pub use steps::{StepKind, StepReport};

use super::Conductor;
use super::client::{AgentClient, AgentError, CommandRecord, Wait};
use super::node::{Node, StateError};
use super::record::{Heartbeat, HeartbeatEffect};
use super::state::ProvisionState;
use base64::Engine as _;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Who holds a node's lock while a flow works on it.
const LOCK_HOLDER: &str = "stand-in-conductor";

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum FlowError {
    /// Nothing came from the agent for too long.
    #[error("no heartbeat from the agent within {limit:?} while {doing}")]
    NoHeartbeat {
        /// The time allowed.
        limit: Duration,
        /// What was going on.
        doing: String,
    },
    /// No inspection data came.
    #[error("no inspection data within {limit:?}")]
    NoInspectionData {
        /// The time allowed.
        limit: Duration,
    },
    /// The operation failed; this is the node's `last_error`.
    #[error("{last_error}")]
    Failed {
        /// What Ironic would show to its user.
        last_error: String,
        /// The record of the command that failed.
        record: Option<Box<CommandRecord>>,
        /// The agent's logs (tar.gz), where it could give them.
        logs: Option<Vec<u8>>,
    },
    /// The agent could not be told what to do.
    #[error("{doing}")]
    Agent {
        /// What was going on.
        doing: String,
        /// The agent client's error.
        #[source]
        source: AgentError,
    },
    /// The agent answered something that Ironic cannot use.
    #[error("{what}")]
    BadAnswer {
        /// What is wrong with it.
        what: String,
    },
    /// The operation is not possible in the node's state.
    #[error(transparent)]
    State(#[from] StateError),
    /// The machine's power could not be controlled, or the machine is broken.
    #[error("controlling the machine")]
    Machine {
        /// The cause.
        #[source]
        source: anyhow::Error,
    },
    /// The conductor itself: an unknown node.
    #[error("using the node's record")]
    Record {
        /// The cause.
        #[source]
        source: anyhow::Error,
    },
}

/// Progress of a long command, as the agent shows it in the command's record.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Progress {
    /// What is being done.
    pub phase: String,
    /// Bytes done in this phase.
    #[serde(default)]
    pub done_bytes: u64,
    /// Bytes to do, when known.
    #[serde(default)]
    pub total_bytes: Option<u64>,
    /// Bytes per second.
    #[serde(default)]
    pub rate: Option<f64>,
    /// Seconds left, when known.
    #[serde(default)]
    pub eta: Option<f64>,
}

/// Something that happened.
#[derive(Debug, Clone)]
pub enum FlowEvent {
    /// The node's provision state changed.
    State(ProvisionState),
    /// The machine is switched on to boot this.
    Booting(BootTarget),
    /// The agent's first heartbeat of this boot was accepted.
    AgentReady {
        /// Its callback URL.
        url: String,
        /// Its version.
        version: String,
        /// Time since the machine was switched on, or since the operation began.
        after: Duration,
    },
    /// A step was started.
    StepStarted {
        /// Its name.
        step: String,
    },
    /// A step goes on.
    Progress {
        /// Its name.
        step: String,
        /// How far it is.
        progress: Progress,
    },
    /// A step has ended well.
    StepEnded {
        /// Its name.
        step: String,
        /// How long it took, the wait for the heartbeat included.
        took: Duration,
    },
    /// Something worth a line.
    Note(String),
}

/// How long to wait for what.
#[derive(Debug, Clone)]
pub struct Limits {
    /// From power on to the first heartbeat or the inspection data.
    pub boot: Duration,
    /// For one step.
    pub step: Duration,
    /// How often the command list is read for the sake of the observer; `None` reads it only when Ironic would.
    pub progress: Option<Duration>,
    /// Ironic's interval for `image.install_bootloader`, 6 s.
    pub boot_loader_poll: Duration,
    /// How long a soft power-off may take before the power is cut; Ironic looks 7 times, 5 s apart.
    pub power_off: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            boot: Duration::from_secs(300),
            step: Duration::from_secs(1800),
            progress: None,
            boot_loader_poll: Duration::from_secs(6),
            power_off: Duration::from_secs(35),
        }
    }
}

/// One node on its way.
pub struct Flow<'a> {
    conductor: &'a Conductor,
    uuid: String,
    power: &'a mut dyn Power,
    observer: Box<dyn FnMut(&FlowEvent) + 'a>,
    limits: Limits,
    /// The newest heartbeat that was acted upon.
    seen: u64,
    /// Since when the agent is waited for.
    waiting_since: Instant,
}

impl std::fmt::Debug for Flow<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flow").field("uuid", &self.uuid).field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl<'a> Flow<'a> {
    /// Operations on the node `uuid` of `conductor`, whose machine obeys `power`.
    pub fn new(conductor: &'a Conductor, uuid: &str, power: &'a mut dyn Power) -> Self {
        Flow {
            conductor,
            uuid: uuid.to_owned(),
            power,
            observer: Box::new(|_| ()),
            limits: Limits::default(),
            seen: conductor.last_heartbeat_sequence(),
            waiting_since: Instant::now(),
        }
    }

    /// Tells everything that happens to `observer`.
    #[must_use]
    pub fn observer(mut self, observer: impl FnMut(&FlowEvent) + 'a) -> Self {
        self.observer = Box::new(observer);
        self
    }

    /// Sets the time limits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The node's record.
    pub fn node(&self) -> Result<Node, FlowError> {
        self.conductor.node(&self.uuid).map_err(|source| FlowError::Record { source })
    }

    /// The machine's power switch.
    pub fn power(&mut self) -> &mut dyn Power {
        self.power
    }

    fn update<T>(&self, change: impl FnOnce(&mut Node) -> T) -> Result<T, FlowError> {
        self.conductor.update_node(&self.uuid, change).map_err(|source| FlowError::Record { source })
    }

    fn tell(&mut self, event: &FlowEvent) {
        (self.observer)(event);
    }

    /// Moves the node to another provision state; waiting states are entered unlocked, all others locked.
    fn go(&mut self, to: ProvisionState) -> Result<(), FlowError> {
        self.update(|node| {
            node.transition(to)?;
            node.reservation = is_working(to).then(|| LOCK_HOLDER.to_owned());
            Ok::<(), StateError>(())
        })??;
        self.tell(&FlowEvent::State(to));
        Ok(())
    }

    /// Switches the machine off and on to boot `target`, with everything Ironic forgets on the way.
    fn power_cycle(&mut self, target: BootTarget) -> Result<(), FlowError> {
        let machine = |source| FlowError::Machine { source };
        self.power.off().map_err(machine)?;
        self.update(Node::forget_agent)?;
        // Heartbeats of the boot before do not count for this one.
        self.seen = self.conductor.last_heartbeat_sequence();
        self.waiting_since = Instant::now();
        self.tell(&FlowEvent::Booting(target));
        self.power.on(target).map_err(machine)?;
        self.update(|node| node.powered_on = true)
    }

    /// Switches the machine off.
    fn power_off(&mut self) -> Result<(), FlowError> {
        self.power.off().map_err(|source| FlowError::Machine { source })?;
        self.update(|node| {
            node.powered_on = false;
            node.forget_agent();
        })
    }

    /// Whether the agent of an earlier operation can be used at once (`manager_utils.is_fast_track`).
    fn can_fast_track(&self) -> Result<bool, FlowError> {
        let node = self.node()?;
        let beat = self.conductor.heartbeats().into_iter().rev().find(|b| b.accepted() && self.is_ours(b));
        let now = self.conductor.shared.started.elapsed();
        let fresh = beat.is_some_and(|b| now.saturating_sub(b.since_start) < Duration::from_secs(300));
        Ok(node.fast_track && node.powered_on && node.agent_url().is_some() && fresh)
    }

    /// Waits until an agent has announced itself to a fast-track node.
    pub fn wait_until_announced(&mut self) -> Result<(), FlowError> {
        let end = Instant::now() + self.limits.boot;
        while self.node()?.agent_url().is_none() {
            self.power.check().map_err(|source| FlowError::Machine { source })?;
            if Instant::now() >= end {
                let limit = self.limits.boot;
                return Err(FlowError::NoHeartbeat {
                    limit,
                    doing: "waiting for the agent to announce itself".to_owned(),
                });
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let node = self.node()?;
        let event = ready(&node, self.waiting_since.elapsed());
        self.tell(&event);
        Ok(())
    }

    fn is_ours(&self, beat: &Heartbeat) -> bool {
        beat.node == self.uuid || self.node().is_ok_and(|node| node.name == beat.node)
    }

    /// Waits for the next heartbeat that makes the conductor act. Meanwhile the progress of `step` is told.
    fn next_heartbeat(&mut self, limit: Duration, step: Option<&str>, doing: &str) -> Result<(), FlowError> {
        let end = Instant::now() + limit;
        loop {
            let slice = self.limits.progress.unwrap_or(Duration::from_millis(500));
            let left = end.saturating_duration_since(Instant::now());
            let (seen, conductor) = (self.seen, self.conductor);
            let ours = |b: &Heartbeat| b.effect == HeartbeatEffect::Drives && self.is_ours_by_id(b);
            if let Ok(beat) = conductor.wait_for_heartbeat_after(seen, slice.min(left), ours) {
                self.seen = beat.sequence;
                return Ok(());
            }
            self.power.check().map_err(|source| FlowError::Machine { source })?;
            if left.is_zero() {
                return Err(FlowError::NoHeartbeat { limit, doing: doing.to_owned() });
            }
            if let (Some(step), Some(_)) = (step, self.limits.progress) {
                self.tell_progress(step);
            }
        }
    }

    /// As [`Self::is_ours`], without the conductor's lock, which the waiting holds.
    fn is_ours_by_id(&self, beat: &Heartbeat) -> bool {
        beat.node == self.uuid
    }

    /// Waits for the first heartbeat of a boot.
    fn first_heartbeat(&mut self, doing: &str) -> Result<(), FlowError> {
        self.next_heartbeat(self.limits.boot, None, doing)?;
        let node = self.node()?;
        let event = ready(&node, self.waiting_since.elapsed());
        self.tell(&event);
        Ok(())
    }

    fn tell_progress(&mut self, step: &str) {
        // A look for display only: whatever is wrong shows where it matters.
        let Ok(client) = self.conductor.agent(&self.uuid) else { return };
        let Ok(records) = client.with_timeout(Duration::from_secs(5)).commands() else { return };
        let progress = records.last().filter(|r| r.is_running()).and_then(|r| r.extra.get("progress").cloned());
        if let Some(progress) = progress.and_then(|p| serde_json::from_value(p).ok()) {
            self.tell(&FlowEvent::Progress { step: step.to_owned(), progress });
        }
    }

    /// A client for the node's agent.
    pub fn agent(&self) -> Result<AgentClient, FlowError> {
        self.conductor
            .agent(&self.uuid)
            .map_err(|source| FlowError::Agent { doing: "looking for the agent".to_owned(), source })
    }

    fn command(&self, command: &str, params: &Value, wait: Wait) -> Result<CommandRecord, FlowError> {
        self.agent()?
            .command(command, params, wait)
            .map_err(|source| FlowError::Agent { doing: format!("calling {command}"), source })
    }

    /// The agent's logs as a tar.gz, as Ironic fetches them after a failure: whatever goes wrong is only noted.
    pub fn collect_logs(&mut self) -> Option<Vec<u8>> {
        let record = match self.command("log.collect_system_logs", &json!({}), Wait::ForResult) {
            Ok(record) => record,
            Err(error) => {
                self.tell(&FlowEvent::Note(format!("no logs from the agent: {error}")));
                return None;
            }
        };
        let logs = record.command_result["system_logs"].as_str();
        let decoded = logs.and_then(|text| base64::engine::general_purpose::STANDARD.decode(text).ok());
        if decoded.is_none() {
            self.tell(&FlowEvent::Note(format!("the agent's logs are unusable: {}", record.command_status)));
        }
        decoded
    }

    /// The failure of an operation: logs are collected, the node goes to its failed state.
    fn fail(&mut self, to: ProvisionState, last_error: String, record: Option<CommandRecord>) -> FlowError {
        let logs = self.collect_logs();
        let noted = self.update(|node| {
            node.last_error = Some(last_error.clone());
            node.maintenance = to == ProvisionState::CleanFail;
            node.reservation = None;
            node.transition(to)
        });
        match noted {
            Ok(Ok(())) => self.tell(&FlowEvent::State(to)),
            Ok(Err(e)) => self.tell(&FlowEvent::Note(e.to_string())),
            Err(e) => self.tell(&FlowEvent::Note(e.to_string())),
        }
        FlowError::Failed { last_error, record: record.map(Box::new), logs }
    }

    /// Turns any error inside of an operation into the node's failure, as Ironic's handlers do.
    fn failing_as<T>(&mut self, to: ProvisionState, result: Result<T, FlowError>) -> Result<T, FlowError> {
        result.map_err(|error| match error {
            FlowError::Agent { .. } | FlowError::BadAnswer { .. } | FlowError::NoHeartbeat { .. } => {
                let text = chain(&error);
                self.fail(to, text, None)
            }
            other => other,
        })
    }
}

fn ready(node: &Node, after: Duration) -> FlowEvent {
    FlowEvent::AgentReady {
        url: node.agent_url().unwrap_or_default().to_owned(),
        version: node.internal_text("agent_version").unwrap_or_default().to_owned(),
        after,
    }
}

/// States in which the conductor itself is at work.
fn is_working(state: ProvisionState) -> bool {
    use ProvisionState as S;
    matches!(state, S::Inspecting | S::Cleaning | S::Deploying | S::Rescuing | S::Servicing)
}

/// An error and its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests;
