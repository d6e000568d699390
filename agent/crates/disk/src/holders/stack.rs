//! What is on top of what, from sysfs, and in which order it goes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use ferric_sys::{Root, attr};

use super::HolderError;

/// File systems that are in memory.
const IN_MEMORY: [&str; 3] = ["rootfs", "ramfs", "tmpfs"];
/// Mappings that stand for a disk: paths to one, and the RAID of firmware.
const DISKS: [&str; 2] = ["mpath-", "DMRAID-"];

/// A step of taking down what is on a disk; prints what is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Unmount a file system.
    Unmount {
        /// Device path.
        device: String,
        /// Where it is mounted.
        target: PathBuf,
    },
    /// Stop swapping to a device.
    SwapOff {
        /// Its node.
        node: PathBuf,
    },
    /// Wipe the signatures of what is taken down next.
    Wipe {
        /// Its node.
        node: PathBuf,
        /// Its name, if it is a mapping.
        mapping: Option<String>,
    },
    /// Take a mapping of the device mapper away.
    RemoveMapping {
        /// Device path.
        device: String,
        /// Its name.
        name: String,
    },
    /// Stop an md array.
    StopArray {
        /// Device path.
        device: String,
        /// File of its state.
        file: PathBuf,
    },
    /// Have bcache let go of a disk, or of all disks of a cache.
    StopCache {
        /// Device path.
        device: String,
        /// File to write to.
        file: PathBuf,
    },
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unmount { device, target } => write!(f, "unmounting {device} from {}", target.display()),
            Self::SwapOff { node } => write!(f, "stopping to swap to {}", node.display()),
            Self::Wipe { node, .. } => write!(f, "wiping {}", node.display()),
            Self::RemoveMapping { device, name } => write!(f, "removing the mapping {name} ({device})"),
            Self::StopArray { device, .. } => write!(f, "stopping the array {device}"),
            Self::StopCache { device, .. } => write!(f, "taking {device} away from bcache"),
        }
    }
}

/// What to do, in order, and what stays for a reason.
#[derive(Debug, Default)]
pub struct Plan {
    /// Steps.
    pub actions: Vec<Action>,
    /// What cannot be taken down.
    pub stuck: Vec<HolderError>,
}

/// What the kernel holds of the machine's disks.
#[derive(Debug)]
pub struct Stack<'a> {
    root: &'a Root,
    /// Where file systems are mounted, by kernel name of the device, in the order of mounting.
    mounts: Vec<(String, PathBuf)>,
    /// Swap space: kernel name and node.
    swaps: Vec<(String, PathBuf)>,
    /// Whether the agent's own root is in memory.
    in_memory: bool,
}

impl<'a> Stack<'a> {
    /// Looks at the mounts and swap space of the machine; sysfs is read when it is asked for.
    pub fn read(root: &'a Root) -> Self {
        let text = attr::read_optional(&root.path("proc/self/mountinfo")).unwrap_or_default();
        let lines: Vec<Mount> = text.lines().filter_map(Mount::parse).collect();
        let in_memory = lines.iter().all(|mount| {
            mount.target != Path::new("/") || IN_MEMORY.contains(&mount.kind.as_str()) && mount.number.starts_with("0:")
        });
        let mounts = lines
            .into_iter()
            .filter_map(|mount| {
                let by_number = attr::link_name(&root.path("sys/dev/block").join(&mount.number));
                // Btrfs has numbers of its own.
                Some((by_number.or_else(|| kname_of(root, &mount.source))?, mount.target))
            })
            .collect();
        let text = attr::read_optional(&root.path("proc/swaps")).unwrap_or_default();
        let nodes = text.lines().filter_map(|line| line.split_whitespace().next()).filter(|name| name.starts_with('/'));
        let swaps =
            nodes.map(unescaped).filter_map(|node| Some((kname_of(root, &node.to_string_lossy())?, node))).collect();
        Self { root, mounts, swaps, in_memory }
    }

    /// How everything on top of the devices is taken down, but what is in `keep`.
    pub fn plan(&self, targets: &[String], keep: &[String]) -> Plan {
        let mut ours = BTreeSet::new();
        let mut waiting: Vec<String> = targets.to_vec();
        while let Some(kname) = waiting.pop() {
            if ours.insert(kname.clone()) {
                let above = self.partitions(&kname).into_iter().chain(self.holders(&kname));
                waiting.extend(above.filter(|name| !keep.contains(name)));
            }
        }
        let mut planner = Planner {
            stack: self,
            keep,
            ours,
            seen: BTreeMap::new(),
            taken: BTreeMap::new(),
            path: Vec::new(),
            plan: Plan::default(),
        };
        for target in targets {
            planner.clear(target);
        }
        planner.plan
    }

    /// Who is on a device itself, in words.
    pub(super) fn on(&self, kname: &str) -> Vec<String> {
        let holders = self.holders(kname).into_iter().map(|holder| match self.mapping(&holder) {
            Some((name, _)) => format!("{} ({name})", device(&holder)),
            None => device(&holder),
        });
        let partitions = self.partitions(kname).into_iter().chain([kname.to_owned()]);
        holders.chain(partitions.flat_map(|kname| self.uses(&kname))).collect()
    }

    fn uses(&self, kname: &str) -> Vec<String> {
        let mounts = self.mounts.iter().filter(|(name, _)| name == kname);
        let mut uses: Vec<String> = mounts.map(|(_, target)| format!("mounted at {}", target.display())).collect();
        uses.extend(self.swaps.iter().filter(|(name, _)| name == kname).map(|_| "swap space".to_owned()));
        uses
    }

    fn dir(&self, kname: &str) -> PathBuf {
        self.root.path("sys/class/block").join(kname)
    }

    fn partitions(&self, kname: &str) -> Vec<String> {
        let dir = self.dir(kname);
        let mut names = attr::list(&dir);
        names.retain(|name| name.starts_with(kname) && dir.join(name).join("partition").exists());
        // The last one first: logical partitions lie in an extended one.
        names.reverse();
        names
    }

    /// Devices that the kernel has put on one. Of a disk that is a cache, those that it is the cache of.
    fn holders(&self, kname: &str) -> Vec<String> {
        let dir = self.dir(kname);
        let mut names = attr::list(&dir.join("holders"));
        let set = dir.join("bcache/set");
        let cached = attr::list(&set).into_iter().filter(|name| name.starts_with("bdev"));
        names.extend(cached.filter_map(|name| attr::link_name(&set.join(name).join("dev"))));
        names
    }

    /// Name and owner's identifier of a mapping.
    fn mapping(&self, kname: &str) -> Option<(String, String)> {
        let dir = self.dir(kname).join("dm");
        let name = attr::read_optional(&dir.join("name"))?;
        Some((name, attr::read_optional(&dir.join("uuid")).unwrap_or_default()))
    }

    fn node(&self, kname: &str) -> PathBuf {
        self.root.path(device(kname))
    }
}

struct Planner<'a> {
    stack: &'a Stack<'a>,
    keep: &'a [String],
    /// Everything that may be touched.
    ours: BTreeSet<String>,
    /// Devices that were looked at, and whether nothing stays on them.
    seen: BTreeMap<String, bool>,
    /// Holders, and whether they are taken down.
    taken: BTreeMap<String, bool>,
    /// From the target to where we are.
    path: Vec<String>,
    plan: Plan,
}

impl Planner<'_> {
    /// Plans to take down all that is on a device; says whether nothing stays.
    fn clear(&mut self, kname: &str) -> bool {
        if let Some(from) = self.path.iter().position(|name| name == kname) {
            let devices = self.path.iter().skip(from).cloned().collect();
            self.plan.stuck.push(HolderError::Cycle { devices });
            return false;
        }
        if let Some(known) = self.seen.get(kname) {
            return *known;
        }
        self.path.push(kname.to_owned());
        let mut is_free = true;
        for partition in self.stack.partitions(kname) {
            is_free &= self.clear(&partition);
        }
        for holder in self.stack.holders(kname) {
            is_free &= !self.keep.contains(&holder) && self.take(kname, &holder);
        }
        is_free &= self.end_uses(kname) && (!is_free || self.uncache(kname));
        let _last = self.path.pop();
        let _new = self.seen.insert(kname.to_owned(), is_free);
        is_free
    }

    /// Unmounts file systems and ends swapping.
    fn end_uses(&mut self, kname: &str) -> bool {
        let uses = self.stack.uses(kname);
        if uses.is_empty() {
            return true;
        }
        if !self.stack.in_memory {
            self.plan.stuck.push(HolderError::InUse { device: device(kname), usage: uses.join(", ") });
            return false;
        }
        // What was mounted last may be in what was mounted before.
        let mounts = self.stack.mounts.iter().rev().filter(|(name, _)| name == kname);
        let unmounts = mounts.map(|(_, target)| Action::Unmount { device: device(kname), target: target.clone() });
        self.plan.actions.extend(unmounts);
        let swaps = self.stack.swaps.iter().filter(|(name, _)| name == kname);
        self.plan.actions.extend(swaps.map(|(_, node)| Action::SwapOff { node: node.clone() }));
        true
    }

    /// Takes a device away from bcache, be it cached or a cache; one waits for the other.
    fn uncache(&mut self, kname: &str) -> bool {
        let dir = self.stack.dir(kname).join("bcache");
        // What it makes of a disk has a link of that name, too.
        if dir.is_dir() && !kname.starts_with("bcache") {
            let file = if dir.join("set").is_dir() { dir.join("set/stop") } else { dir.join("stop") };
            self.plan.actions.push(Action::StopCache { device: device(kname), file });
        }
        true
    }

    /// Plans to take down one holder of a device, and all on top of it. Says whether it goes.
    fn take(&mut self, kname: &str, holder: &str) -> bool {
        if let Some(known) = self.taken.get(holder) {
            return *known;
        }
        // What is on a disk that must be left alone is not to be wiped either.
        let below = attr::list(&self.stack.dir(holder).join("slaves"));
        let other = below.iter().find(|name| !self.ours.contains(*name));
        let taking = match other {
            Some(other) => Err(HolderError::Shared { holder: device(holder), other: device(other) }),
            None if self.clear(holder) => self.taking(kname, holder),
            None => Ok(Vec::new()),
        };
        let is_taken = taking.as_ref().is_ok_and(|actions| !actions.is_empty());
        match taking {
            Ok(actions) => self.plan.actions.extend(actions),
            Err(error) => self.plan.stuck.push(error),
        }
        // A circle leads here again before this is known.
        let _new = self.taken.insert(holder.to_owned(), is_taken);
        is_taken
    }

    fn taking(&self, kname: &str, holder: &str) -> Result<Vec<Action>, HolderError> {
        let dir = self.stack.dir(holder);
        let unknown = || HolderError::Unknown { holder: device(holder), device: device(kname) };
        let node = self.stack.node(holder);
        if let Some((name, owner)) = self.stack.mapping(holder) {
            if DISKS.iter().any(|start| owner.starts_with(start)) {
                return Err(unknown());
            }
            let is_suspended = attr::read_optional(&dir.join("dm/suspended")).is_some_and(|flag| flag == "1");
            // What is written to a suspended mapping waits for ever.
            let wipe = (!is_suspended).then(|| Action::Wipe { node, mapping: Some(name.clone()) });
            return Ok(wipe.into_iter().chain([Action::RemoveMapping { device: device(holder), name }]).collect());
        }
        let wipe = Action::Wipe { node, mapping: None };
        let file = dir.join("md/array_state");
        if dir.join("md").is_dir() {
            return Ok(vec![wipe, Action::StopArray { device: device(holder), file }]);
        }
        // It goes with the disk that it is on.
        if holder.starts_with("bcache") { Ok(vec![wipe]) } else { Err(unknown()) }
    }
}

struct Mount {
    number: String,
    target: PathBuf,
    kind: String,
    source: String,
}

impl Mount {
    /// A line of `/proc/self/mountinfo` (proc(5)).
    fn parse(line: &str) -> Option<Self> {
        let (mount, system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ');
        let (number, target) = (mount.nth(2)?.to_owned(), unescaped(mount.nth(1)?));
        let mut system = system.split(' ');
        let (kind, source) = (system.next()?.to_owned(), unescaped(system.next()?).to_string_lossy().into_owned());
        Some(Self { number, target, kind, source })
    }
}

/// A path of a table in `/proc`, which has blanks and the like as three octal digits.
fn unescaped(text: &str) -> PathBuf {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => plain.extend([char::from(byte).to_string().as_str(), part.get(3..).unwrap_or_default()]),
            None => plain.extend(["\\", part]),
        }
    }
    PathBuf::from(plain)
}

/// Kernel name of the device at a path.
fn kname_of(root: &Root, path: &str) -> Option<String> {
    let path = path.strip_prefix('/')?;
    let node = std::fs::canonicalize(root.path(path)).ok()?;
    let name = node.strip_prefix(std::fs::canonicalize(root.path("dev")).ok()?).ok()?.to_str()?.replace('/', "!");
    root.path("sys/class/block").join(&name).exists().then_some(name)
}

fn device(kname: &str) -> String {
    format!("/dev/{}", kname.replace('!', "/"))
}
