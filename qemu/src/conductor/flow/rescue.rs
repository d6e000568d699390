//! Rescue (spec/conductor.md section 7).

use super::{BootTarget, Flow, FlowError, FlowEvent};
use crate::conductor::client::{AgentError, CommandRecord, Wait};
use crate::conductor::state::ProvisionState;
use serde_json::json;

impl Flow<'_> {
    /// Boots the rescue ramdisk on an active node and hands over the password, hashed as `crypt(3)` wants it. An agent
    /// that refuses the hash gets the clear password when there is one.
    pub fn rescue(&mut self, hashed_password: &str, clear_password: Option<&str>) -> Result<CommandRecord, FlowError> {
        self.go(ProvisionState::Rescuing)?;
        self.go(ProvisionState::RescueWait)?;
        self.power_cycle(BootTarget::Ramdisk)?;
        let result = self.finalize_rescue(hashed_password, clear_password);
        let record = self.failing_as(ProvisionState::RescueFail, result)?;
        if record.command_status != "SUCCEEDED" {
            let text = format!(
                "Agent returned bad result for command finalize_rescue: {} {}",
                record.command_status,
                record.error_text()
            );
            return Err(self.fail(ProvisionState::RescueFail, text, Some(record)));
        }
        self.go(ProvisionState::Rescuing)?;
        self.go(ProvisionState::Rescue)?;
        Ok(record)
    }

    fn finalize_rescue(&mut self, hashed: &str, clear: Option<&str>) -> Result<CommandRecord, FlowError> {
        self.first_heartbeat("booting the rescue ramdisk")?;
        let params = json!({"rescue_password": hashed, "hashed": true});
        match (self.command("rescue.finalize_rescue", &params, Wait::No), clear) {
            (Err(FlowError::Agent { source: AgentError::Api { fault, .. }, .. }), Some(clear)) => {
                self.tell(&FlowEvent::Note(format!("the agent refused the hashed password: {fault}")));
                self.command("rescue.finalize_rescue", &json!({"rescue_password": clear}), Wait::No)
            }
            (result, _) => result,
        }
    }
}
