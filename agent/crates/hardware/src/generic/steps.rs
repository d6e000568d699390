//! Step table of the generic manager.

use crate::manager::Step;

/// Steps in the order in which they are announced.
pub(super) const STEPS: &[Step] = &[];
