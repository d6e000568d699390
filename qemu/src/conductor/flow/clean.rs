//! Cleaning, automated and manual (spec/conductor.md section 4).

use super::steps::{Ended, check_priorities, check_wanted, sorted_by_priority};
use super::{BootTarget, Flow, FlowError, StepKind, StepReport};
use crate::conductor::node::Node;
use crate::conductor::state::ProvisionState;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// How often a version mismatch may restart the steps before this is taken for a loop.
const MAX_RESTARTS: u32 = 5;

/// What a cleaning did.
#[derive(Debug, Clone, Default)]
pub struct CleanReport {
    /// All steps the agent offered.
    pub offered: Vec<Value>,
    /// The steps that ran, in order.
    pub steps: Vec<StepReport>,
    /// How often a version mismatch made the conductor begin again.
    pub restarts: u32,
}

impl Flow<'_> {
    /// Runs every clean step with a priority above 0, highest first, and makes the node available. `priorities`
    /// overrides the agent's, as `[deploy]erase_devices_priority` and its kin do; each must be of a step that is offered.
    pub fn clean(&mut self, priorities: &BTreeMap<String, u64>) -> Result<CleanReport, FlowError> {
        self.start_cleaning(ProvisionState::Available)?;
        let result = self.automated_steps(priorities);
        let report = self.failing_as(ProvisionState::CleanFail, result)?;
        self.finish_cleaning(ProvisionState::Available)?;
        Ok(report)
    }

    /// Runs these steps (objects with `interface`, `step` and maybe `args`) and makes the node manageable.
    pub fn clean_manually(&mut self, steps: &[Value]) -> Result<CleanReport, FlowError> {
        self.start_cleaning(ProvisionState::Manageable)?;
        let result = self.given_steps(steps);
        let report = self.failing_as(ProvisionState::CleanFail, result)?;
        self.finish_cleaning(ProvisionState::Manageable)?;
        Ok(report)
    }

    fn start_cleaning(&mut self, target: ProvisionState) -> Result<(), FlowError> {
        self.go(ProvisionState::Cleaning)?;
        self.update(|node| {
            node.target_provision_state = Some(target);
            node.last_error = None;
            node.clean_step = json!({});
            node.add_clean_parameters();
        })?;
        if self.can_fast_track()? {
            return Ok(());
        }
        self.go(ProvisionState::CleanWait)?;
        self.power_cycle(BootTarget::Ramdisk)?;
        let started = self.first_heartbeat("booting to clean");
        self.failing_as(ProvisionState::CleanFail, started)?;
        self.go(ProvisionState::Cleaning)
    }

    fn automated_steps(&mut self, priorities: &BTreeMap<String, u64>) -> Result<CleanReport, FlowError> {
        let mut report = CleanReport::default();
        'again: loop {
            report.offered = self.refresh_steps(StepKind::Clean)?;
            check_priorities(&report.offered, priorities).map_err(|what| FlowError::BadAnswer { what })?;
            let mut offered = report.offered.clone();
            for step in &mut offered {
                if let Some(priority) = step["step"].as_str().and_then(|name| priorities.get(name)) {
                    step["priority"] = json!(priority);
                }
            }
            report.steps.clear();
            for (index, step) in self.plan(sorted_by_priority(&offered))?.iter().enumerate() {
                self.update(|node| node.set_internal("clean_step_index", index))?;
                match self.run_step(StepKind::Clean, step)? {
                    Ended::Well(ended) => report.steps.push(ended),
                    Ended::VersionMismatch => {
                        count_restart(&mut report)?;
                        continue 'again;
                    }
                }
            }
            return Ok(report);
        }
    }

    fn given_steps(&mut self, wanted: &[Value]) -> Result<CleanReport, FlowError> {
        let mut report = CleanReport { offered: self.refresh_steps(StepKind::Clean)?, ..CleanReport::default() };
        let steps = check_wanted(&report.offered, wanted).map_err(|what| FlowError::BadAnswer { what })?;
        for (index, step) in self.plan(steps)?.iter().enumerate() {
            self.update(|node| node.set_internal("clean_step_index", index))?;
            // A manual cleaning goes on with the same step under the new version.
            let ended = loop {
                match self.run_step(StepKind::Clean, step)? {
                    Ended::Well(ended) => break ended,
                    Ended::VersionMismatch => {
                        count_restart(&mut report)?;
                        report.offered = self.refresh_steps(StepKind::Clean)?;
                    }
                }
            };
            report.steps.push(ended);
        }
        Ok(report)
    }

    fn plan(&mut self, steps: Vec<Value>) -> Result<Vec<Value>, FlowError> {
        self.update(|node| node.set_internal("clean_steps", steps.clone()))?;
        Ok(steps)
    }

    fn finish_cleaning(&mut self, target: ProvisionState) -> Result<(), FlowError> {
        if !self.node()?.fast_track {
            self.power_off()?;
        }
        self.update(|node: &mut Node| {
            node.clean_step = json!({});
            node.target_provision_state = None;
            for key in ["clean_steps", "clean_step_index", "agent_cached_clean_steps"] {
                node.driver_internal_info.remove(key);
            }
        })?;
        self.go(target)
    }
}

fn count_restart(report: &mut CleanReport) -> Result<(), FlowError> {
    report.restarts += 1;
    if report.restarts > MAX_RESTARTS {
        let what = format!("the agent answered {MAX_RESTARTS} times that its version is another one");
        return Err(FlowError::BadAnswer { what });
    }
    Ok(())
}
