//! What is on top of disks, and taking it down so that they can be erased: mounted file systems, swap space, volumes of
//! LVM and LUKS and other mappings, md arrays, bcache.
//!
//! `stack` reads sysfs and plans: what is on top goes first, each layer is wiped before it is taken away, and what lies on a
//! disk that is to be left alone stays. Here the plan is carried out, until nothing is left of it. Nothing is taken down that
//! the agent itself may run from: where its root is on a disk, file systems stay mounted and swap space stays in use.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ferric_sys::block_dev::{Access, BlockDev};
use ferric_sys::ioctl::dm;
use ferric_sys::{Root, attr, mount, swap};
use ferric_types::error::chain;

use crate::wipe;

mod stack;

pub use stack::{Action, Plan, Stack};

/// How often a holder that does not go is tried: whoever looks at a new device keeps it for a moment, and bcache takes its
/// time.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_secs(1);
/// Mappings that only pass on what is written; others could hang or ask for space.
const PLAIN_TARGETS: &[&str] = &["linear", "striped", "crypt", "mirror", "raid", "integrity", "writecache", "cache"];

/// Something stays on top of a device that was to be erased.
#[derive(Debug, thiserror::Error)]
pub enum HolderError {
    /// A file system or swap space that the agent may need itself.
    #[error("{device} is in use ({usage}), and the agent takes nothing away there since it does not run from memory")]
    InUse {
        /// Device path.
        device: String,
        /// What for.
        usage: String,
    },
    /// It is also on a device that must be left alone.
    #[error("{holder} is also on {other}, which is to be left alone")]
    Shared {
        /// Device path.
        holder: String,
        /// Device path.
        other: String,
    },
    /// The kernel has put something on it of which nothing is known here.
    #[error("{holder} is on {device}, and there is no way known to take it down")]
    Unknown {
        /// Device path.
        holder: String,
        /// Device path.
        device: String,
    },
    /// Sysfs leads in a circle.
    #[error("{} are on top of each other in a circle", devices.join(", "))]
    Cycle {
        /// Kernel names.
        devices: Vec<String>,
    },
    /// The kernel refuses.
    #[error("{action}")]
    Refused {
        /// What was to be done.
        action: String,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// The kernel did as it was told, and it is there still.
    #[error("{action} had no effect")]
    Remains {
        /// What was to be done.
        action: String,
    },
}

/// Takes down all that is on top of devices, given by kernel name, but what is in `keep` and what is on top of that only.
/// Returns whether anything was there, and what is there still.
pub fn release(root: &Root, targets: &[String], keep: &[String]) -> (bool, Vec<HolderError>) {
    let mut wiped: Vec<PathBuf> = Vec::new();
    let mut found = false;
    let mut errors: Vec<HolderError> = Vec::new();
    for attempt in 1..=TRIES {
        let Plan { actions, stuck } = Stack::read(root).plan(targets, keep);
        if actions.is_empty() {
            return (found, stuck);
        }
        // A tree of files does not change by itself.
        if attempt > 1 && root.is_host() {
            std::thread::sleep(PAUSE);
        }
        found = true;
        errors.clear();
        for action in actions {
            let what = action.to_string();
            let result = match &action {
                Action::Wipe { node, .. } if wiped.contains(node) => continue,
                Action::Wipe { node, mapping } => {
                    wiped.push(node.clone());
                    wipe_quietly(node, mapping.as_deref());
                    continue;
                }
                _ => carry_out(root, action),
            };
            match result {
                Ok(()) => tracing::info!(attempt, "{what}"),
                Err(source) => errors.push(HolderError::Refused { action: what, source }),
            }
        }
        errors.extend(stuck);
    }
    let remains = Stack::read(root).plan(targets, keep);
    if errors.is_empty() {
        let taken = remains.actions.iter().filter(|action| !matches!(action, Action::Wipe { .. }));
        errors.extend(taken.map(|action| HolderError::Remains { action: action.to_string() }));
    }
    (found, errors)
}

/// Wipes what is about to be taken down. A failure shows, if it matters, when the disk below is wiped.
fn wipe_quietly(node: &Path, mapping: Option<&str>) {
    let kinds = mapping.map(dm::target_types);
    let is_plain = |kinds: &Vec<String>| kinds.iter().all(|kind| PLAIN_TARGETS.contains(&kind.as_str()));
    if let Some(kinds) = kinds.filter(|kinds| !kinds.as_ref().is_ok_and(is_plain)) {
        tracing::info!(device = %node.display(), ?kinds, "not wiped by itself");
        return;
    }
    let wiped = BlockDev::open(node, Access::Exclusive).map_err(|error| chain(&error));
    let wiped = wiped.and_then(|dev| wipe::destroy_metadata(&dev).map_err(|error| chain(&error)));
    if let Err(reason) = wiped {
        tracing::warn!(device = %node.display(), reason, "not wiped before it is taken down");
    }
}

fn carry_out(root: &Root, action: Action) -> io::Result<()> {
    let write = |file: &Path, text: &str| attr::write(file, text).map_err(io::Error::other);
    match action {
        Action::StopArray { file, .. } => write(&file, "clear"),
        Action::StopCache { file, .. } => write(&file, "1"),
        // The others are calls to the kernel, not to a tree of files.
        _ if !root.is_host() => Err(io::ErrorKind::Unsupported.into()),
        Action::Unmount { target, .. } => mount::unmount_from(&target, false),
        Action::SwapOff { node } => swap::swap_off(&node),
        Action::RemoveMapping { name, .. } => dm::remove(&name),
        Action::Wipe { .. } => Ok(()),
    }
}

/// Who is known to hold a device, by its node, as the operator reads it: what the kernel has put on it, and programs.
pub fn of_node(root: &Root, node: &Path) -> Vec<String> {
    let kname = std::fs::canonicalize(node).ok().and_then(|node| node.file_name()?.to_str().map(str::to_owned));
    let mut found = kname.map(|kname| Stack::read(root).on(&kname)).unwrap_or_default();
    for process in attr::list(&root.path("proc")).into_iter().filter(|name| name.parse::<u32>().is_ok()) {
        let dir = root.path("proc").join(&process);
        let opens = |fd: &String| std::fs::read_link(dir.join("fd").join(fd)).is_ok_and(|target| target == node);
        if process != std::process::id().to_string() && attr::list(&dir.join("fd")).iter().any(opens) {
            let name = attr::read_optional(&dir.join("comm")).unwrap_or_default();
            found.push(format!("process {process} ({name})"));
        }
    }
    found
}

#[cfg(test)]
mod tests;
