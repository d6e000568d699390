//! Servicing an active node (spec/conductor.md section 8).

use super::steps::{Ended, check_wanted};
use super::{BootTarget, Flow, FlowError, StepKind, StepReport};
use crate::conductor::state::ProvisionState;
use serde_json::{Value, json};

impl Flow<'_> {
    /// Boots the ramdisk, runs these steps (objects with `interface`, `step` and maybe `args`), and boots the
    /// instance again.
    pub fn service(&mut self, steps: &[Value]) -> Result<Vec<StepReport>, FlowError> {
        self.go(ProvisionState::Servicing)?;
        self.update(|node| {
            node.last_error = None;
            node.service_step = json!({});
        })?;
        self.go(ProvisionState::ServiceWait)?;
        self.power_cycle(BootTarget::Ramdisk)?;
        let result = self.service_steps(steps);
        let reports = self.failing_as(ProvisionState::ServiceFail, result)?;
        self.update(|node| node.service_step = json!({}))?;
        self.power_cycle(BootTarget::Disk)?;
        self.go(ProvisionState::Active)?;
        Ok(reports)
    }

    fn service_steps(&mut self, wanted: &[Value]) -> Result<Vec<StepReport>, FlowError> {
        self.first_heartbeat("booting to service")?;
        self.go(ProvisionState::Servicing)?;
        let offered = self.refresh_steps(StepKind::Service)?;
        let steps = check_wanted(&offered, wanted).map_err(|what| FlowError::BadAnswer { what })?;
        let mut reports = Vec::new();
        for step in &steps {
            match self.run_step(StepKind::Service, step)? {
                Ended::Well(ended) => reports.push(ended),
                Ended::VersionMismatch => {
                    let what = "the agent's hardware managers changed their version during the service".to_owned();
                    return Err(FlowError::BadAnswer { what });
                }
            }
        }
        Ok(reports)
    }
}
