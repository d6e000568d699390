//! The array that the operating system goes to (hardware section 4, rule 3).
//!
//! The reference agent remembers which arrays it made; here the node's own record of its configuration is asked, together
//! with the names in the arrays' superblocks, so that it still holds after the machine was started anew.

use ferric_disk::raid::Size;
use ferric_disk::raid::config::{self, Facts};
use ferric_sys::Root;
use ferric_types::Node;

use super::arrays;
use crate::probe::disks::Disk;

/// What the node's configuration says of the disks of the machine.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Volumes {
    /// Kernel name of the array for the operating system.
    root: Option<String>,
    /// Kernel names of arrays that are not for it, and of the disks below them.
    others: Vec<String>,
}

impl Volumes {
    /// Looks at the arrays of the machine, if the node has a configuration of software RAID that says what is the root.
    pub(crate) fn of(root: &Root, node: &Node) -> Self {
        let said = said_of_roots(node);
        if said.is_empty() {
            return Self::default();
        }
        let mut found = Self::default();
        for array in arrays::list(root) {
            match said.iter().find(|(name, _)| Some(name) == array.name.as_ref()) {
                Some((_, true)) => found.root = Some(array.kname),
                Some((_, false)) => found.others.extend(array.disks.into_iter().chain([array.kname])),
                None => {}
            }
        }
        found
    }

    /// The array for the operating system, where it is one of `disks`.
    pub(crate) fn root<'a>(&self, disks: &'a [Disk]) -> Option<&'a Disk> {
        disks.iter().find(|disk| Some(&disk.kname) == self.root.as_ref())
    }

    /// Whether a disk is not for the operating system.
    pub(crate) fn excludes(&self, disk: &Disk) -> bool {
        self.others.contains(&disk.kname)
    }
}

/// Whether the node's configuration says which volume the operating system goes to.
pub(in crate::generic) fn is_said(node: &Node) -> bool {
    said_of_roots(node).iter().any(|(_, is_root)| *is_root)
}

/// Names of volumes with what the configuration says of them; those of which it says nothing are left out.
fn said_of_roots(node: &Node) -> Vec<(String, bool)> {
    let facts = Facts { node: "", devices: usize::MAX, names_required: false };
    let volumes = ["raid_config", "target_raid_config"]
        .into_iter()
        .filter_map(|key| node.get(key).filter(|config| config::is_software(config)))
        .find_map(|config| config::parse(config, &facts).ok());
    // As they were numbered when they were made.
    let (last, sized): (Vec<_>, Vec<_>) =
        volumes.unwrap_or_default().into_iter().partition(|volume| volume.size == Size::Max);
    let named = sized.into_iter().chain(last).enumerate();
    named
        .filter_map(|(index, volume)| Some((volume.name.unwrap_or_else(|| format!("md{index}")), volume.is_root?)))
        .collect()
}
