//! A hardware manager: support level, steps, and probes it does better than the generic ones.

use std::fmt::Debug;

use ferric_types::CommandError;
use ferric_types::inventory::{BootInfo, Cpu, Memory, NetworkInterface, SystemVendor};
use ferric_types::step::{StepInfo, StepKind};
use serde_json::{Map, Value, json};

use crate::context::StepContext;
use crate::error::HardwareError;
use crate::machine::Machine;
use crate::probe::disks::Disk;
use crate::probe::usb::UsbDevice;
use crate::settings::Settings;

/// How well a manager fits this machine. A manager with [`HardwareSupport::None`] is not used at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HardwareSupport {
    /// Not this machine.
    None = 0,
    /// Any machine.
    Generic = 1,
    /// This kind of machine.
    Mainline = 2,
    /// This operator's own machine.
    ServiceProvider = 3,
}

/// Provider of probes and steps for some hardware.
///
/// Every method must be written: a manager that offers nothing extra returns an empty table and [`Probes::NONE`].
pub trait HardwareManager: Sync + Debug {
    /// Name in `hardware_manager_version`, such as `generic_hardware_manager`.
    fn name(&self) -> &'static str;

    /// Key of this manager's steps in `get_*_steps`, such as `GenericHardwareManager`.
    fn class_name(&self) -> &'static str;

    /// Version in `hardware_manager_version`: must change when the steps do.
    fn version(&self) -> &'static str;

    /// How well it fits. Must be quick and change nothing.
    fn support(&self, machine: &Machine) -> HardwareSupport;

    /// Prepares the hardware once, before the first probe.
    ///
    /// # Errors
    /// Any; it is logged, and the manager stays in use.
    fn initialize(&self, machine: &Machine) -> Result<(), HardwareError>;

    /// Steps it offers.
    fn steps(&self) -> &'static [Step];

    /// Probes it does itself.
    fn probes(&self) -> &'static Probes;
}

/// Where a step's priority comes from.
#[derive(Debug, Clone, Copy)]
pub enum Priority {
    /// Always this one.
    Fixed(u32),
    /// An option of the agent.
    Setting(fn(&Settings) -> u32),
}

impl Priority {
    /// The number.
    pub fn value(self, settings: &Settings) -> u32 {
        match self {
            Self::Fixed(value) => value,
            Self::Setting(read) => read(settings),
        }
    }
}

/// Priority of a step in each list; `None` keeps it out of that list.
#[derive(Debug, Clone, Copy)]
pub struct Priorities {
    /// In `clean.get_clean_steps`.
    pub clean: Option<Priority>,
    /// In `deploy.get_deploy_steps`.
    pub deploy: Option<Priority>,
    /// In `service.get_service_steps`.
    pub service: Option<Priority>,
}

impl Priorities {
    /// In no list: the start for `Priorities { clean: .., ..Priorities::NONE }`.
    pub const NONE: Self = Self { clean: None, deploy: None, service: None };

    /// The one for a list.
    pub const fn of(&self, kind: StepKind) -> Option<Priority> {
        match kind {
            StepKind::Clean => self.clean,
            StepKind::Deploy => self.deploy,
            StepKind::Service => self.service,
        }
    }
}

/// An argument that an operator may give to a step. The conductor refuses arguments that are not announced.
#[derive(Debug, Clone, Copy)]
pub struct ArgInfo {
    /// Name.
    pub name: &'static str,
    /// One sentence for the operator.
    pub description: &'static str,
    /// Whether it must be given.
    pub required: bool,
}

/// What a step does. The arguments are those of the step as the conductor sent them.
pub type StepFn = fn(&StepContext<'_>, &Map<String, Value>) -> Result<Value, CommandError>;

/// A unit of work that a conductor can ask for.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Name.
    pub name: &'static str,
    /// Driver interface of the conductor: `deploy`, `raid`, `management`, ... An unknown one breaks its sorting.
    pub interface: &'static str,
    /// Lists it is in.
    pub priorities: Priorities,
    /// Whether the machine must be rebooted after it.
    pub reboot_requested: bool,
    /// Whether the operator may abort it; `None` says nothing. Never announced for deploy steps.
    pub abortable: Option<bool>,
    /// Arguments an operator may give.
    pub args: &'static [ArgInfo],
    /// The work.
    pub run: StepFn,
}

impl Step {
    /// The step as `get_*_steps` announces it, or `None` when it is not in that list.
    pub fn info(&self, kind: StepKind, settings: &Settings) -> Option<StepInfo> {
        let priority = self.priorities.of(kind)?.value(settings);
        let args: Map<String, Value> = self
            .args
            .iter()
            .map(|arg| (arg.name.to_owned(), json!({"description": arg.description, "required": arg.required})))
            .collect();
        Some(StepInfo {
            step: self.name.to_owned(),
            priority,
            interface: self.interface.to_owned(),
            reboot_requested: self.reboot_requested,
            abortable: if kind == StepKind::Deploy { None } else { self.abortable },
            argsinfo: (!args.is_empty()).then_some(args),
        })
    }
}

/// A probe that replaces a generic one.
pub type ProbeFn<T> = fn(&Machine, &Settings) -> Result<T, HardwareError>;

/// Probes that a manager does itself. The first manager, in order of support, that has one and does not answer
/// [`HardwareError::Incompatible`] decides; a filter of any manager can hide a device from everything, cleaning
/// included (hardware section 1).
#[derive(Debug, Clone, Copy)]
pub struct Probes {
    /// Network interfaces.
    pub interfaces: Option<ProbeFn<Vec<NetworkInterface>>>,
    /// Processors.
    pub cpu: Option<ProbeFn<Cpu>>,
    /// Memory.
    pub memory: Option<ProbeFn<Memory>>,
    /// Disks.
    pub disks: Option<ProbeFn<Vec<Disk>>>,
    /// Maker and firmware.
    pub system_vendor: Option<ProbeFn<SystemVendor>>,
    /// Boot mode and boot NIC.
    pub boot: Option<ProbeFn<BootInfo>>,
    /// Addresses of the BMC.
    pub bmc: Option<ProbeFn<BmcAddresses>>,
    /// Whether a network interface is to be seen.
    pub keeps_interface: Option<fn(&NetworkInterface) -> bool>,
    /// Whether a disk is to be seen.
    pub keeps_disk: Option<fn(&Disk) -> bool>,
    /// Whether a USB device is to be seen.
    pub keeps_usb: Option<fn(&UsbDevice) -> bool>,
}

impl Probes {
    /// Nothing of its own.
    pub const NONE: Self = Self {
        interfaces: None,
        cpu: None,
        memory: None,
        disks: None,
        system_vendor: None,
        boot: None,
        bmc: None,
        keeps_interface: None,
        keeps_disk: None,
        keeps_usb: None,
    };
}

/// Addresses of the BMC in the inventory's form (hardware section 2.5).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BmcAddresses {
    /// IPv4; `0.0.0.0` when the BMC has none, `None` when there is no BMC or it did not answer.
    pub v4: Option<String>,
    /// IPv6; `::/0` when the BMC has none, `None` when there is no BMC or it did not answer.
    pub v6: Option<String>,
    /// Ethernet address, when one belongs to a configured channel.
    pub mac: Option<String>,
}
