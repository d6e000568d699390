//! Hardware managers: what this machine is made of, and what can be done with it.
//!
//! [`registry::Registry`] is what the agent talks to. It holds the [`manager::HardwareManager`]s of the image in order
//! of their support level, answers with the inventory and the steps, and runs a step on the first manager that takes
//! it. [`generic`] is the manager that every machine has. [`probe`] reads the machine; [`hints`], [`skip_list`],
//! [`root_device`] and [`guard`] decide which disk may be touched.

pub mod capture;
pub mod context;
pub mod error;
pub mod extra;
pub mod generic;
pub mod guard;
pub mod hints;
pub mod machine;
pub mod manager;
pub mod probe;
pub mod registry;
pub mod replay;
pub mod root_device;
pub mod settings;
pub mod skip_list;
pub mod version;

pub use context::{Services, StepContext};
pub use error::HardwareError;
pub use machine::{Machine, NicQuery};
pub use manager::{ArgInfo, HardwareManager, HardwareSupport, Priorities, Priority, Probes, Step};
pub use registry::Registry;
pub use settings::Settings;

/// The managers of an ordinary image, highest support level not required: [`Registry::new`] sorts them.
pub const MANAGERS: &[&dyn HardwareManager] = &[&generic::GENERIC];
