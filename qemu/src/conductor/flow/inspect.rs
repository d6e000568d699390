//! In-band inspection (spec/conductor.md section 3).

use super::{BootTarget, Flow, FlowError, FlowEvent};
use crate::conductor::inspection::BMC_CACHE_KEY;
use crate::conductor::node::InspectionData;
use crate::conductor::state::ProvisionState;
use serde_json::json;
use std::time::{Duration, Instant};

impl Flow<'_> {
    /// Boots the ramdisk, waits for its inspection data and for the hooks. Without fast track the machine is off
    /// afterwards; with it the agent stays and will announce itself.
    pub fn inspect(&mut self) -> Result<InspectionData, FlowError> {
        self.go(ProvisionState::Inspecting)?;
        self.update(|node| {
            node.inspection = None;
            node.last_error = None;
            let address = node.driver_info.get("ipmi_address").cloned();
            node.set_internal(BMC_CACHE_KEY, json!(address.into_iter().collect::<Vec<_>>()));
        })?;
        // In this order, so that data sent right after power on finds the node waiting for it.
        self.go(ProvisionState::InspectWait)?;
        self.power_cycle(BootTarget::Ramdisk)?;
        let data = self.wait_for_data()?;
        self.tell(&FlowEvent::State(ProvisionState::Manageable));
        if !self.node()?.fast_track {
            self.power_off()?;
        }
        Ok(data)
    }

    fn wait_for_data(&mut self) -> Result<InspectionData, FlowError> {
        let limit = self.limits.boot;
        let end = Instant::now() + limit;
        loop {
            let slice = Duration::from_millis(500);
            let ended = |state| matches!(state, ProvisionState::Manageable | ProvisionState::InspectFail);
            let waited = self.conductor.wait_for_node(&self.uuid, slice, |n| ended(n.provision_state));
            match waited {
                Ok(node) if node.provision_state == ProvisionState::InspectFail => {
                    let last_error = node.last_error.unwrap_or_default();
                    return Err(FlowError::Failed { last_error, record: None, logs: None });
                }
                Ok(node) => {
                    let missing = || FlowError::NoInspectionData { limit };
                    return node.inspection.ok_or_else(missing);
                }
                Err(_) if Instant::now() >= end => {
                    self.update(|node| node.transition(ProvisionState::InspectFail))??;
                    return Err(FlowError::NoInspectionData { limit });
                }
                Err(_) => self.power.check().map_err(|source| FlowError::Machine { source })?,
            }
        }
    }
}
