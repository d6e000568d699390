//! A hardware manager for tests that is what its fields say.

use crate::error::HardwareError;
use crate::machine::Machine;
use crate::manager::{HardwareManager, HardwareSupport, Probes, Step};

/// The manager.
#[derive(Debug)]
pub(crate) struct Fake {
    pub(crate) name: &'static str,
    pub(crate) class: &'static str,
    pub(crate) support: HardwareSupport,
    pub(crate) steps: &'static [Step],
    pub(crate) probes: &'static Probes,
}

impl Fake {
    /// One that fits any machine and does nothing.
    pub(crate) const PLAIN: Self = Self {
        name: "fake",
        class: "Fake",
        support: HardwareSupport::Generic,
        steps: &[],
        probes: const { &Probes::NONE },
    };
}

impl HardwareManager for Fake {
    fn name(&self) -> &'static str {
        self.name
    }
    fn class_name(&self) -> &'static str {
        self.class
    }
    fn version(&self) -> &'static str {
        "7"
    }
    fn support(&self, _: &Machine) -> HardwareSupport {
        self.support
    }
    fn initialize(&self, _: &Machine) -> Result<(), HardwareError> {
        Ok(())
    }
    fn steps(&self) -> &'static [Step] {
        self.steps
    }
    fn probes(&self) -> &'static Probes {
        self.probes
    }
}
