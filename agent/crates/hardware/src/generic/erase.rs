//! `erase_devices` and `erase_devices_express` (hardware sections 5.1 to 5.3 and 5.5).
//!
//! Disks are erased side by side, as many as `disk_erasure_concurrency` says, those on different controllers first. The
//! namespaces of an NVMe controller are one piece of work, since some of its commands hit all of them. What became of each
//! disk is in the answer, in the progress while it goes on, and in a [`certificate`] among the logs.

use std::time::{Duration, SystemTime};

use ferric_disk::erase::{self, Bus, Passes, Policy, Target};
use ferric_disk::wipe;
use ferric_sys::block_dev::{Access, BlockDev};
use ferric_types::error::{CommandError, chain};
use ferric_types::{DiskProgress, Node};
use serde_json::{Value, json};

use super::targets::{Outcomes, Targets, answer, arrays_of, checked, for_each_group, reason_to_skip};
use super::{certificate, metadata};
use crate::context::StepContext;
use crate::probe::disks::{self, Disk, DiskKind};
use crate::skip_list;

/// Pause between two tries to get a disk for oneself.
const BUSY_PAUSE: Duration = Duration::from_secs(1);
/// Passes beyond this are a mistake, not a policy.
const MAX_ITERATIONS: u64 = 100;

/// Erases every disk that may be erased, and answers with what became of each.
pub(super) fn erase_devices(context: &StepContext<'_>) -> Result<Value, CommandError> {
    let policy = policy(context.node);
    if policy.ata {
        open_locked(context)?;
    }
    let targets = checked(context)?;
    let began = SystemTime::now();
    let mut outcomes = targets.failed();
    outcomes.extend(Work::new(context, &targets.disks, &targets.kept_arrays, policy).run());
    let unreadable = targets.unreadable.iter().map(|(disk, _)| disk);
    certificate::write(context, targets.disks.iter().chain(unreadable), &outcomes, began);
    answer("Erasing", outcomes)
}

/// Unlocks ATA disks that an interrupted erasure has left locked: nothing could be read of them, to see whether they are to be
/// spared. Whatever else is the matter with a disk shows later.
fn open_locked(context: &StepContext<'_>) -> Result<(), CommandError> {
    let disks = context.registry.disks(context.machine, context.settings)?;
    let disks = skip_list::without_skipped(&context.machine.root, context.node, disks)?;
    for disk in disks.iter().filter(|disk| bus_of(disk) == Bus::Ata) {
        let dev = BlockDev::open(context.machine.root.path(&disk.info.name), Access::Read);
        if let Ok(dev) = dev
            && erase::unlock(&dev)
        {
            tracing::info!(disk = disk.info.name, "unlocked after an interrupted erasure");
        }
    }
    Ok(())
}

/// Has NVMe disks erase themselves, and wipes the metadata of all others and of those that do not.
pub(super) fn erase_devices_express(context: &StepContext<'_>) -> Result<Value, CommandError> {
    let targets = checked(context)?;
    let mut all = targets.failed();
    let Targets { disks, kept_arrays, .. } = targets;
    let began = SystemTime::now();
    let policy = Policy { go_on: false, sanitize: false, ..policy(context.node) };
    let erases_itself = |disk: &Disk| {
        policy.nvme && bus_of(disk) == Bus::Nvme && !disk.read_only && arrays_of(context, disk).is_empty()
    };
    let (quick, mut rest): (Vec<Disk>, Vec<Disk>) = disks.into_iter().partition(erases_itself);
    let outcomes = Work::new(context, &quick, &kept_arrays, policy).run();
    certificate::write(context, &quick, &outcomes, began);
    rest.extend(quick.into_iter().filter(|disk| !matches!(outcomes.get(&disk.info.name), Some(Ok(_)))));
    context.progress.phase("erase metadata", None);
    all.extend(outcomes.into_iter().filter(|(_, outcome)| outcome.is_ok()));
    all.extend(metadata::wipe_disks(context, rest, kept_arrays));
    // The reference agent answers null; what became of each disk is in the log.
    answer("Express erasing", all).map(|_| Value::Null)
}

/// A whole number of `driver_internal_info`, given as a number or as text.
fn internal_number(node: &Node, key: &str) -> Option<u64> {
    match node.lookup("driver_internal_info", key)? {
        Value::String(text) => text.trim().parse().ok(),
        value => value.as_u64(),
    }
}

/// How the conductor wants disks to be erased, and what the operator has set in the node's `driver_info`.
fn policy(node: &Node) -> Policy {
    let iterations = internal_number(node, "agent_erase_devices_iterations").unwrap_or(1).min(MAX_ITERATIONS);
    let older = node.internal_flag("agent_continue_if_ata_erase_failed", false);
    Policy {
        passes: Passes {
            iterations: u32::try_from(iterations).unwrap_or(1),
            zeroize: node.internal_flag("agent_erase_devices_zeroize", true),
        },
        nvme: node.internal_flag("agent_enable_nvme_secure_erase", true),
        ata: node.internal_flag("agent_enable_ata_secure_erase", true),
        sanitize: node.lookup("driver_info", "agent_enable_sanitize").is_some_and(is_yes),
        go_on: node.internal_flag("agent_continue_if_secure_erase_failed", older),
    }
}

fn is_yes(value: &Value) -> bool {
    match value {
        Value::String(text) => matches!(text.to_lowercase().as_str(), "true" | "1" | "on" | "yes"),
        other => *other == Value::Bool(true),
    }
}

/// What a disk can be asked. Bridges and RAID controllers hang on commands that they do not know (pitfall B12): ATA
/// commands go only to what calls itself `ATA`, as libata and the SAS adapters have it, and none to USB.
fn bus_of(disk: &Disk) -> Bus {
    let is_usb = disk.info.tran.as_deref() == Some("usb");
    match disk.info.vendor.as_deref() {
        _ if disk.kind != DiskKind::Physical || is_usb => Bus::Other,
        _ if disk.kname.starts_with("nvme") => Bus::Nvme,
        Some("ATA") => Bus::Ata,
        _ if disk.info.hctl.is_some() => Bus::Scsi,
        _ => Bus::Other,
    }
}

/// The disks of a step, and what is needed to work on them.
struct Work<'a> {
    context: &'a StepContext<'a>,
    disks: &'a [Disk],
    parts: Vec<DiskProgress>,
    kept_arrays: &'a [String],
    policy: Policy,
}

impl<'a> Work<'a> {
    fn new(context: &'a StepContext<'a>, disks: &'a [Disk], kept_arrays: &'a [String], policy: Policy) -> Self {
        let names: Vec<&str> = disks.iter().map(|disk| disk.info.name.as_str()).collect();
        context.progress.phase(format!("erase {}", names.join(", ")), None);
        let sizes = disks.iter().map(|disk| (disk.info.name.clone(), policy.passes.work_bytes(disk.info.size)));
        let parts = context.progress.disks(sizes);
        Self { context, disks, parts, kept_arrays, policy }
    }

    fn run(&self) -> Outcomes {
        let places: Vec<String> = self.disks.iter().map(|disk| self.place(disk)).collect();
        let groups = grouped(self.disks, &places);
        let concurrency = internal_number(self.context.node, "disk_erasure_concurrency").unwrap_or(1);
        for_each_group(self.disks, &groups, usize::try_from(concurrency).unwrap_or(1), |group, tell| {
            self.erase_group(group, tell);
        })
    }

    /// What a disk hangs on.
    fn place(&self, disk: &Disk) -> String {
        let place = disks::controller(&self.context.machine.root, &disk.kname);
        place.map_or_else(|| disk.kname.clone(), |place| place.display().to_string())
    }

    /// Erases one disk, or the namespaces of one controller, and tells what became of each.
    fn erase_group(&self, group: &[usize], tell: &dyn Fn(usize, Result<Value, String>)) {
        let end = |index: usize, outcome: Result<Value, String>| {
            let state = match &outcome {
                Ok(value) if value.get("skipped").is_some() => "skipped",
                Ok(_) => "done",
                Err(_) => "failed",
            };
            if let Some(part) = self.parts.get(index) {
                part.end(state);
            }
            tell(index, outcome);
        };
        let mut open: Vec<(usize, &Disk, BlockDev)> = Vec::new();
        let mut spared = Vec::new();
        for (index, disk) in group.iter().filter_map(|index| Some((*index, self.disks.get(*index)?))) {
            let outcome = match self.open(disk) {
                Ready::Open(dev) => {
                    open.push((index, disk, dev));
                    continue;
                }
                Ready::Skip(reason) => {
                    tracing::warn!(disk = disk.info.name, reason, "not erased");
                    Ok(json!({"skipped": reason}))
                }
                Ready::Fail(reason) => Err(reason),
            };
            spared.push(disk.info.name.clone());
            end(index, outcome);
        }
        let Some(bus) = open.first().map(|(_, disk, _)| bus_of(disk)) else { return };
        let targets: Vec<Target<'_>> = open
            .iter()
            .filter_map(|(index, disk, dev)| {
                let progress = self.parts.get(*index)?;
                Some(Target { dev, firmware: dev, progress, rotational: disk.info.rotational })
            })
            .collect();
        let verdicts = erase::erase(&targets, bus, &spared, &self.policy);
        for ((index, disk, dev), verdict) in open.iter().zip(verdicts) {
            let verdict = verdict.map_err(|error| chain(&error)).and_then(|verdict| {
                if let Err(error) = dev.reread_table() {
                    tracing::warn!(
                        disk = disk.info.name,
                        reason = chain(&error),
                        "the kernel keeps the old partitions"
                    );
                }
                tracing::info!(disk = disk.info.name, ?verdict, "erased");
                serde_json::to_value(&verdict).map_err(|error| error.to_string())
            });
            end(*index, verdict);
        }
    }

    /// Opens a disk that may be erased.
    fn open(&self, disk: &Disk) -> Ready {
        if let Some(reason) = reason_to_skip(self.context, disk) {
            return Ready::Skip(reason.to_owned());
        }
        let arrays = arrays_of(self.context, disk);
        if let Some(array) = arrays.iter().find(|array| !self.kept_arrays.contains(array)) {
            // Erasing the array does not reach what lies beside it on its members.
            return Ready::Fail(format!(
                "it is a member of the assembled array /dev/{array}; stop the array to have it erased"
            ));
        }
        if let Some(array) = arrays.first() {
            return Ready::Skip(format!("member of the software RAID array /dev/{array}, which is on the skip list"));
        }
        if disk.read_only {
            return if self.context.node.internal_flag("agent_erase_skip_read_only", false) {
                Ready::Skip("read-only".to_owned())
            } else {
                Ready::Fail("it is read-only, so that it cannot be erased".to_owned())
            };
        }
        let path = self.context.machine.root.path(&disk.info.name);
        match wipe::open_exclusive(&path, BUSY_PAUSE) {
            Ok(dev) => Ready::Open(dev),
            Err(error) => Ready::Fail(chain(&error)),
        }
    }
}

/// What became of opening a disk.
enum Ready {
    Open(BlockDev),
    Skip(String),
    Fail(String),
}

/// Pieces of work, by index of the disks: the namespaces of an NVMe controller together, all other disks alone. First one
/// of each controller, then the second of each, and so on: disks that go on at the same time share no cable as far as
/// possible.
fn grouped(disks: &[Disk], places: &[String]) -> Vec<Vec<usize>> {
    let mut groups: Vec<(usize, &str, Vec<usize>)> = Vec::new();
    for (index, (disk, place)) in disks.iter().zip(places).enumerate() {
        let place = place.as_str();
        let same = groups.iter_mut().rev().find(|(_, known, _)| *known == place);
        match same {
            Some((_, _, group)) if bus_of(disk) == Bus::Nvme => group.push(index),
            Some((rank, _, _)) => {
                let rank = *rank + 1;
                groups.push((rank, place, vec![index]));
            }
            None => groups.push((0, place, vec![index])),
        }
    }
    groups.sort_by_key(|(rank, _, _)| *rank);
    groups.into_iter().map(|(_, _, group)| group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_types::inventory::BlockDevice;

    /// A disk by name, vendor, transport and SCSI address.
    fn disk(name: &str, vendor: Option<&str>, tran: Option<&str>, hctl: Option<&str>) -> Disk {
        let text = |value: Option<&str>| value.map(str::to_owned);
        let name = format!("/dev/{name}");
        Disk::plain(BlockDevice {
            name,
            vendor: text(vendor),
            tran: text(tran),
            hctl: text(hctl),
            ..BlockDevice::default()
        })
    }

    #[test]
    fn only_what_cannot_hang_on_it_is_asked() {
        let hctl = Some("0:0:0:0");
        for (disk, want) in [
            (disk("nvme0n1", None, Some("nvme"), None), Bus::Nvme),
            (disk("sda", Some("ATA"), Some("sata"), hctl), Bus::Ata),
            (disk("sda", Some("ATA"), Some("sas"), hctl), Bus::Ata),
            (disk("sda", Some("ATA"), Some("usb"), hctl), Bus::Other),
            (disk("sda", Some("SEAGATE"), Some("usb"), hctl), Bus::Other),
            (disk("sda", Some("SEAGATE"), Some("sas"), hctl), Bus::Scsi),
            (disk("sda", Some("DELL"), None, hctl), Bus::Scsi),
            (disk("vda", None, None, None), Bus::Other),
            (disk("mmcblk0", None, Some("mmc"), None), Bus::Other),
            (Disk { kind: DiskKind::Raid, ..disk("md0", None, None, None) }, Bus::Other),
            (Disk { kind: DiskKind::Multipath, ..disk("dm-0", Some("ATA"), None, hctl) }, Bus::Other),
        ] {
            assert_eq!(bus_of(&disk), want, "{disk:?}");
        }
    }

    #[test]
    fn namespaces_go_together_and_controllers_take_turns() {
        let named = |name: &str| disk(name, None, None, None);
        let places = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let names = ["sda", "sdb", "nvme0n1", "sdc", "nvme0n2", "nvme1n1", "sdd", "nvme0n3"];
        let disks: Vec<Disk> = names.iter().map(|name| named(name)).collect();
        let groups = grouped(&disks, &places("h0 h0 c0 h1 c0 c1 h0 c0"));
        assert_eq!(groups, [vec![0], vec![2, 4, 7], vec![3], vec![5], vec![1], vec![6]]);
        assert!(grouped(&[], &[]).is_empty());
    }

    #[test]
    fn settings_of_the_node_make_the_policy() {
        let node = |value: Value| serde_json::from_value::<Node>(value).unwrap();
        let plain = policy(&node(json!({})));
        let passes = Passes { iterations: 1, zeroize: true };
        assert_eq!(plain, Policy { passes, nvme: true, ata: true, sanitize: false, go_on: false });
        let set = policy(&node(json!({
            "driver_internal_info": {
                "agent_erase_devices_iterations": "3", "agent_erase_devices_zeroize": false,
                "agent_enable_nvme_secure_erase": false, "agent_enable_ata_secure_erase": "no",
                "agent_continue_if_ata_erase_failed": true,
            },
            "driver_info": {"agent_enable_sanitize": "yes"},
        })));
        let passes = Passes { iterations: 3, zeroize: false };
        assert_eq!(set, Policy { passes, nvme: false, ata: false, sanitize: true, go_on: true });
        // The newer name wins.
        let both = json!({"driver_internal_info": {
            "agent_continue_if_ata_erase_failed": true, "agent_continue_if_secure_erase_failed": false,
        }});
        assert!(!policy(&node(both)).go_on);
    }
}
