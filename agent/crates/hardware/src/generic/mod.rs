//! The manager that every machine has.

use std::time::Duration;

use ferric_sys::{Cmd, ExecError};

use crate::error::HardwareError;
use crate::machine::Machine;
use crate::manager::{HardwareManager, HardwareSupport, Probes, Step};
use crate::probe::{bmc, cpu, disks, memory, nics, system};

pub mod bootc;
mod certificate;
pub mod deploy;
mod erase;
mod grub;
mod inject;
mod metadata;
mod nvram;
mod partition;
mod pstore;
pub(crate) mod raid;
mod steps;
mod targets;

/// `GenericHardwareManager` of the reference agent: the generic probes, and the steps that work on any machine.
#[derive(Debug)]
pub struct GenericHardwareManager;

/// The one instance.
pub const GENERIC: GenericHardwareManager = GenericHardwareManager;

const PROBES: Probes = Probes {
    interfaces: Some(|machine, _| Ok(nics::interfaces(&machine.root, &|name| machine.net.facts(name)))),
    cpu: Some(|machine, _| Ok(cpu::cpu(&machine.root, &cpu::architecture(&machine.root)))),
    memory: Some(|machine, _| Ok(memory::memory(&machine.root))),
    disks: Some(|machine, _| disks::disks(&machine.root)),
    system_vendor: Some(|machine, _| Ok(system::vendor(&machine.root))),
    boot: Some(|machine, settings| Ok(system::boot(&machine.root, settings.pxe_interface.as_deref()))),
    bmc: Some(|machine, _| Ok(bmc::addresses(&machine.root))),
    ..Probes::NONE
};

impl HardwareManager for GenericHardwareManager {
    fn name(&self) -> &'static str {
        "generic_hardware_manager"
    }

    fn class_name(&self) -> &'static str {
        "GenericHardwareManager"
    }

    fn version(&self) -> &'static str {
        "1.2"
    }

    fn support(&self, _machine: &Machine) -> HardwareSupport {
        HardwareSupport::Generic
    }

    /// Loads the IPMI drivers, which no device announces, and starts md arrays that are whole (hardware section 1).
    /// Both need a program that a small image may not have; there PID 1 has loaded the drivers.
    fn initialize(&self, machine: &Machine) -> Result<(), HardwareError> {
        if bmc::device(&machine.root).is_none() {
            for module in ["ipmi_msghandler", "ipmi_devintf", "ipmi_si"] {
                try_program(machine, &Cmd::new("modprobe").arg(module).timeout(Duration::from_secs(20)))?;
            }
        }
        try_program(machine, &Cmd::new("mdadm").args(["--assemble", "--scan", "--verbose"]))
    }

    fn steps(&self) -> &'static [Step] {
        steps::STEPS
    }

    fn probes(&self) -> &'static Probes {
        &PROBES
    }
}

/// Runs a program whose absence and whose failure are ordinary: no BMC, no arrays.
fn try_program(machine: &Machine, cmd: &Cmd) -> Result<(), HardwareError> {
    match machine.exec.run(cmd) {
        Ok(output) if output.code == 0 => Ok(()),
        Ok(output) => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            tracing::debug!(%cmd, code = output.code, stderr = stderr.trim(), "optional program failed");
            Ok(())
        }
        Err(ExecError::NotFound { program }) => {
            tracing::debug!(program, "not in this image");
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests;
