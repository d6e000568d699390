//! Wire and domain types of the agent. No I/O, no async.
//!
//! Everything whose spelling Ironic decides lives here (serde names included), so that the rest of the code uses
//! Rust names only. References such as "protocol section 9" mean the agent protocol as an unmodified Ironic speaks
//! it; they are kept in the documentation of each type.

pub mod command;
pub mod error;
pub mod fault;
pub mod heartbeat;
pub mod image_info;
pub mod inventory;
pub mod lookup;
pub mod mac;
pub mod node;
pub mod progress;
pub mod secret;
pub mod step;

pub use command::{CommandRecord, CommandStatus};
pub use error::{CommandError, ErrorClass};
pub use image_info::ImageInfo;
pub use inventory::Inventory;
pub use mac::MacAddress;
pub use node::Node;
pub use progress::{DiskProgress, DiskReport, Progress, ProgressReport};
pub use secret::Secret;
