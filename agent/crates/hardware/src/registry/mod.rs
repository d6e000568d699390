//! The managers that fit this machine, in order of support, and what is asked of all of them.

mod inventory;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Mutex;
use std::time::Instant;

use ferric_types::error::{CommandError, ErrorClass};
use ferric_types::step::{StepInfo, StepKind};
use serde_json::{Map, Value};

use crate::context::StepContext;
use crate::error::HardwareError;
use crate::machine::Machine;
use crate::manager::{BmcAddresses, HardwareManager, HardwareSupport, Step};
use crate::settings::Settings;

/// One manager in use.
#[derive(Debug, Clone, Copy)]
struct Entry {
    manager: &'static dyn HardwareManager,
    support: HardwareSupport,
}

/// The managers in use, best first.
#[derive(Debug)]
pub struct Registry {
    entries: Vec<Entry>,
    /// What the BMC said, and when. Locked while it is asked.
    bmc: Mutex<Option<(Instant, BmcAddresses)>>,
    began: Instant,
}

impl Registry {
    /// Asks each manager how well it fits, leaves out those that do not, and puts the best first; among equals the
    /// order of the list stays. Their names and steps are checked first, fitting or not, so that a mistake shows
    /// on every machine.
    ///
    /// # Errors
    /// [`HardwareError::DuplicateManager`] and [`HardwareError::DuplicateStep`] mean a mistake in the image;
    /// [`HardwareError::NoManager`] that the list has none for this machine.
    pub fn new(managers: &[&'static dyn HardwareManager], machine: &Machine) -> Result<Self, HardwareError> {
        check_names(managers)?;
        let mut entries: Vec<Entry> = managers
            .iter()
            .map(|manager| Entry { manager: *manager, support: manager.support(machine) })
            .filter(|entry| entry.support != HardwareSupport::None)
            .collect();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.support));
        if entries.is_empty() {
            return Err(HardwareError::NoManager);
        }
        for entry in &entries {
            tracing::info!(manager = entry.manager.name(), support = ?entry.support, "hardware manager in use");
        }
        Ok(Self { entries, bmc: Mutex::new(None), began: Instant::now() })
    }

    /// When this was made: about when the machine's drivers were asked for.
    pub const fn began(&self) -> Instant {
        self.began
    }

    /// Lets every manager prepare its hardware, best first. A manager that fails stays in use: the machine should
    /// reach the conductor, where the failure of a step is seen.
    pub fn initialize(&self, machine: &Machine) {
        for entry in &self.entries {
            if let Err(error) = entry.manager.initialize(machine) {
                let reason = ferric_types::error::chain(&error);
                tracing::error!(manager = entry.manager.name(), reason, "hardware manager could not be initialised");
            }
        }
    }

    /// `hardware_manager_version` of `get_*_steps`: name to version (commands section 3).
    pub fn versions(&self) -> Map<String, Value> {
        self.entries
            .iter()
            .map(|entry| (entry.manager.name().to_owned(), Value::from(entry.manager.version())))
            .collect()
    }

    /// Managers in use as `(name, version)`, best first, for the inspection data.
    pub fn managers(&self) -> Vec<(&'static str, &'static str)> {
        self.entries.iter().map(|entry| (entry.manager.name(), entry.manager.version())).collect()
    }

    /// Steps of a list by manager class, each step only once: the one of the manager with the highest support, then
    /// the highest priority, then the alphabetically first class (commands section 3). Managers left without a step
    /// are not listed.
    pub fn steps(&self, kind: StepKind, settings: &Settings) -> BTreeMap<&'static str, Vec<StepInfo>> {
        let offered: Vec<(&Entry, StepInfo)> = self
            .entries
            .iter()
            .flat_map(|entry| entry.manager.steps().iter().map(move |step| (entry, step)))
            .filter_map(|(entry, step)| Some((entry, step.info(kind, settings)?)))
            .collect();
        let rank = |entry: &Entry, info: &StepInfo| {
            (std::cmp::Reverse(entry.support), std::cmp::Reverse(info.priority), entry.manager.class_name())
        };
        let mut winners: HashMap<&str, &(&Entry, StepInfo)> = HashMap::new();
        for candidate in &offered {
            winners
                .entry(candidate.1.step.as_str())
                .and_modify(|winner| {
                    if rank(candidate.0, &candidate.1) < rank(winner.0, &winner.1) {
                        *winner = candidate;
                    }
                })
                .or_insert(candidate);
        }
        let mut steps: BTreeMap<&'static str, Vec<StepInfo>> = BTreeMap::new();
        for (entry, info) in &offered {
            let wins = winners
                .get(info.step.as_str())
                .is_some_and(|(winner, _)| winner.manager.class_name() == entry.manager.class_name());
            if wins {
                steps.entry(entry.manager.class_name()).or_default().push(info.clone());
            }
        }
        steps
    }

    /// Runs a step on the first manager, best first, that has it and does not answer that it is not compatible with
    /// the hardware. The list through which it was asked for does not matter: a conductor sends some service steps
    /// through the deploy command (commands section 6).
    ///
    /// # Errors
    /// The step's own, or `HardwareManagerMethodNotFound` when no manager takes it.
    pub fn execute(
        &self,
        kind: StepKind,
        name: &str,
        context: &StepContext<'_>,
        args: &Map<String, Value>,
    ) -> Result<Value, CommandError> {
        let mut refusals = Vec::new();
        for (manager, step) in self.entries.iter().filter_map(|entry| Some((entry.manager, find(entry.manager, name)?)))
        {
            tracing::info!(step = name, kind = kind.word(), manager = manager.name(), "step begins");
            match (step.run)(context, args) {
                Err(error) if error.class == ErrorClass::IncompatibleHardwareMethod => {
                    tracing::warn!(step = name, manager = manager.name(), reason = %error, "step left to other managers");
                    refusals.push(format!("{}: {}", manager.class_name(), error.details));
                }
                result => return result,
            }
        }
        let mut details = format!("Could not find method: {name}");
        if !refusals.is_empty() {
            details = format!("{details} ({})", refusals.join("; "));
        }
        Err(CommandError::new(ErrorClass::HardwareManagerMethodNotFound, details))
    }
}

fn find(manager: &'static dyn HardwareManager, name: &str) -> Option<&'static Step> {
    manager.steps().iter().find(|step| step.name == name)
}

fn check_names(managers: &[&'static dyn HardwareManager]) -> Result<(), HardwareError> {
    for (position, manager) in managers.iter().enumerate() {
        let same = |other: &&&dyn HardwareManager| {
            other.name() == manager.name() || other.class_name() == manager.class_name()
        };
        if let Some(first) = managers.iter().take(position).find(same) {
            return Err(HardwareError::DuplicateManager {
                name: manager.name(),
                first: first.class_name(),
                second: manager.class_name(),
            });
        }
        let mut names = HashSet::new();
        if let Some(step) = manager.steps().iter().find(|step| !names.insert(step.name)) {
            return Err(HardwareError::DuplicateStep { manager: manager.class_name(), step: step.name });
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
