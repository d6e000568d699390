//! Provision states of a node, and which of them Ironic lets do what.
//!
//! Spelling and sets follow `ironic/common/states.py` and `ironic/drivers/modules/agent_base.py`; the moves between
//! states are those of the flows in spec/conductor.md sections 3 to 9.

use std::fmt;

macro_rules! states {
    ($($name:ident = $wire:literal, $doc:literal;)*) => {
        /// Where a node is in its life.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ProvisionState { $(#[doc = $doc] $name,)* }

        impl ProvisionState {
            /// The spelling in the API and in the node object.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $wire,)* }
            }
        }
    };
}

states! {
    Enroll = "enroll", "Known, not verified yet.";
    Manageable = "manageable", "Under management, not offered.";
    Inspecting = "inspecting", "The conductor works on inspection data.";
    InspectWait = "inspect wait", "Waiting for the ramdisk's inspection data.";
    InspectFail = "inspect failed", "Inspection failed.";
    Cleaning = "cleaning", "The conductor runs a clean step.";
    CleanWait = "clean wait", "Waiting for the ramdisk while cleaning.";
    CleanFail = "clean failed", "Cleaning failed.";
    CleanHold = "clean hold", "Cleaning is held by the operator.";
    Available = "available", "Ready to be deployed.";
    Deploying = "deploying", "The conductor runs a deploy step.";
    DeployWait = "wait call-back", "Waiting for the ramdisk while deploying.";
    DeployFail = "deploy failed", "Deploying failed.";
    DeployHold = "deploy hold", "Deploying is held by the operator.";
    Active = "active", "An instance runs on it.";
    Rescuing = "rescuing", "The conductor prepares the rescue ramdisk.";
    RescueWait = "rescue wait", "Waiting for the rescue ramdisk.";
    RescueFail = "rescue failed", "Rescuing failed.";
    Rescue = "rescue", "The rescue ramdisk runs.";
    Servicing = "servicing", "The conductor runs a service step.";
    ServiceWait = "service wait", "Waiting for the ramdisk while servicing.";
    ServiceFail = "service failed", "Servicing failed.";
    ServiceHold = "service hold", "Servicing is held by the operator.";
}

impl fmt::Display for ProvisionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

use ProvisionState as S;

impl ProvisionState {
    /// Whether `GET /v1/lookup` may reveal a node in this state.
    #[must_use]
    pub fn allows_lookup(self, fast_track: bool) -> bool {
        match self {
            S::Deploying | S::DeployWait | S::Cleaning | S::CleanWait => true,
            S::Inspecting | S::InspectWait | S::Rescuing | S::RescueWait | S::ServiceWait => true,
            S::Enroll | S::Manageable | S::Available | S::Servicing | S::ServiceHold => fast_track,
            _ => false,
        }
    }

    /// Whether a heartbeat in this state is looked at at all (it is answered 202 in any case).
    #[must_use]
    pub fn allows_heartbeat(self, fast_track: bool) -> bool {
        match self {
            S::DeployWait | S::CleanWait | S::RescueWait | S::ServiceWait => true,
            S::Deploying | S::Cleaning | S::Rescuing | S::Servicing => true,
            S::DeployHold | S::CleanHold | S::ServiceHold => true,
            S::Enroll | S::Manageable | S::Available => fast_track,
            _ => false,
        }
    }

    /// Whether a heartbeat in this state makes the conductor go on with its work.
    #[must_use]
    pub fn is_waiting_for_agent(self) -> bool {
        matches!(self, S::DeployWait | S::CleanWait | S::RescueWait | S::ServiceWait)
    }

    /// Whether Ironic moves a node from this state to `to`.
    #[must_use]
    pub fn can_become(self, to: ProvisionState) -> bool {
        let targets: &[ProvisionState] = match self {
            S::Enroll => &[S::Manageable],
            S::Manageable => &[S::Inspecting, S::Cleaning, S::Available],
            S::Inspecting => &[S::InspectWait, S::Manageable, S::InspectFail],
            S::InspectWait => &[S::Inspecting, S::InspectFail],
            S::InspectFail => &[S::Inspecting, S::Manageable],
            S::Cleaning => &[S::CleanWait, S::Available, S::Manageable, S::CleanFail, S::CleanHold],
            S::CleanWait => &[S::Cleaning, S::CleanFail, S::CleanHold],
            S::CleanHold => &[S::Cleaning, S::CleanFail],
            S::CleanFail => &[S::Manageable],
            S::Available => &[S::Deploying, S::Manageable],
            S::Deploying => &[S::DeployWait, S::Active, S::DeployFail, S::DeployHold],
            S::DeployWait => &[S::Deploying, S::DeployFail, S::DeployHold],
            S::DeployHold => &[S::Deploying, S::DeployFail],
            // Deleting an instance goes straight to cleaning here; `deleting` is never seen by an agent.
            S::DeployFail | S::Active => &[S::Deploying, S::Cleaning, S::Rescuing, S::Servicing],
            S::Rescuing => &[S::RescueWait, S::Rescue, S::RescueFail],
            S::RescueWait => &[S::Rescuing, S::RescueFail],
            S::RescueFail | S::Rescue => &[S::Rescuing, S::Active, S::Cleaning],
            S::Servicing => &[S::ServiceWait, S::Active, S::ServiceFail, S::ServiceHold],
            S::ServiceWait => &[S::Servicing, S::ServiceFail, S::ServiceHold],
            S::ServiceHold => &[S::Servicing, S::ServiceFail],
            S::ServiceFail => &[S::Servicing, S::Active, S::Rescuing, S::Cleaning],
        };
        targets.contains(&to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookup_and_heartbeat_follow_ironics_sets() {
        for (state, lookup, lookup_fast, beat, beat_fast) in [
            (S::Manageable, false, true, false, true),
            (S::Available, false, true, false, true),
            (S::InspectWait, true, true, false, false),
            (S::CleanWait, true, true, true, true),
            (S::DeployWait, true, true, true, true),
            (S::Servicing, false, true, true, true),
            (S::ServiceWait, true, true, true, true),
            (S::Active, false, false, false, false),
            (S::CleanHold, false, false, true, true),
        ] {
            assert_eq!(state.allows_lookup(false), lookup, "{state} lookup");
            assert_eq!(state.allows_lookup(true), lookup_fast, "{state} lookup, fast track");
            assert_eq!(state.allows_heartbeat(false), beat, "{state} heartbeat");
            assert_eq!(state.allows_heartbeat(true), beat_fast, "{state} heartbeat, fast track");
        }
    }

    #[test]
    fn a_node_cannot_skip_cleaning_on_its_way_out_of_a_deploy() {
        assert!(S::Available.can_become(S::Deploying));
        assert!(!S::Manageable.can_become(S::Deploying));
        assert!(!S::Active.can_become(S::Available));
    }
}
