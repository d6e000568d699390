//! `create_configuration`.

use std::time::Duration;

use ferric_disk::raid::config::{self, Facts};
use ferric_disk::raid::{Array, Plan, RaidDisk, Request, Volume, mdadm};
use ferric_disk::table::{self, Partition, TableKind};
use ferric_disk::wipe;
use ferric_sys::attr;
use ferric_sys::block_dev::{Access, BlockDev};
use ferric_types::error::{CommandError, ErrorClass, chain};
use serde_json::{Map, Value, json};

use super::arrays::{self, MdArray};
use super::delete::{Action, ESP, decide, is_protected, skipped_disks};
use super::{failed, skipped_names};
use crate::context::StepContext;
use crate::generic::partition::{boots_by_uefi, label};
use crate::guard;
use crate::hints::{RootDeviceHints, Shown};
use crate::probe::disks::{self, Disk, DiskKind};
use crate::probe::system;

const SETTLE_LIMIT: Duration = Duration::from_secs(10);
pub(super) const BUSY_PAUSE: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 1000 });
/// How long is waited for nodes of new partitions and arrays, and for members to be in their array.
const TRIES: u32 = if cfg!(test) { 2 } else { 40 };
const PAUSE: Duration = Duration::from_millis(100);
/// How often a member that an array has lost is put back.
const ADD_TRIES: u32 = 3;
/// What is cleared at both ends of a new partition: every superblock that a former array may have left there.
const CLEARED_BYTES: u64 = 1 << 20;

/// The volumes of a configuration that keeps the rules.
///
/// # Errors
/// `SoftwareRAIDError` with all that is wrong.
pub(super) fn check(context: &StepContext<'_>, raid_config: &Value) -> Result<Vec<Volume>, CommandError> {
    let devices = context.registry.disks(context.machine, context.settings)?.len();
    let names_required = !skipped_names(context.node).is_empty();
    let facts = Facts { node: context.node.uuid().unwrap_or_default(), devices, names_required };
    config::parse(raid_config, &facts).map_err(|error| CommandError::from_chain(ErrorClass::SoftwareRaid, &error))
}

/// Makes the arrays of a configuration and answers with it; with an empty object when it wants none of software.
///
/// # Errors
/// `SoftwareRAIDError`; whatever can be refused is refused before a disk is touched.
pub(super) fn create(context: &StepContext<'_>, raid_config: &Value) -> Result<Value, CommandError> {
    if !config::is_software(raid_config) {
        tracing::info!("no software RAID is wanted");
        return Ok(json!({}));
    }
    disks::settle(&context.machine.root, SETTLE_LIMIT);
    let volumes = check(context, raid_config)?;
    let existing = arrays::list(&context.machine.root);
    let volumes = missing_volumes(context, volumes, &existing)?;
    if volumes.is_empty() {
        tracing::info!("all volumes are there already");
        return Ok(raid_config.clone());
    }
    let usable = usable_disks(context)?;
    let (volumes, used) = with_disks(volumes, &usable)?;
    let keeps = !existing.is_empty();
    let raid_disks = raid_disks(context, &used, &existing, keeps)?;
    let uefi = boots_by_uefi(context.node, system::is_uefi(&context.machine.root));
    let kind = label(context.node, uefi);
    let taken: Vec<u32> = existing.iter().filter_map(|array| array.kname.get(2..)?.parse().ok()).collect();
    let request = Request { kind, uefi, volumes: &volumes, disks: &raid_disks, taken: &taken };
    let plan = Plan::of(&request).map_err(|error| CommandError::from_chain(ErrorClass::SoftwareRaid, &error))?;
    // A disk without partitions is worth more than one with partitions for arrays that cannot be made.
    super::mdadm(context, &ferric_sys::Cmd::new("mdadm").arg("--version"))?;
    tracing::info!(?plan, "making software RAID");
    for (index, partitions) in &plan.partitions {
        let Some(disk) = raid_disks.get(*index) else { continue };
        context.progress.phase(format!("partition {}", disk.name), None);
        make_partitions(context, disk, kind, partitions)
            .map_err(|reason| failed(format!("Failed to create partitions on {}: {reason}", disk.name)))?;
    }
    for array in &plan.arrays {
        make_array(context, array)?;
    }
    Ok(raid_config.clone())
}

/// Volumes that are not there. With a volume on the node's skip list, others may be left over beside it; without one,
/// arrays on the disks to be used are refused later.
fn missing_volumes(
    context: &StepContext<'_>,
    volumes: Vec<Volume>,
    existing: &[MdArray],
) -> Result<Vec<Volume>, CommandError> {
    let names = skipped_names(context.node);
    if names.is_empty() || existing.is_empty() {
        return Ok(volumes);
    }
    if existing.iter().any(|array| array.name.is_none()) {
        return Err(failed(
            "A Software RAID device detected that does not have a volume name. This is not allowed because there is a \
             volume_name hint in the property 'skip_block_devices'.",
        ));
    }
    let skipped = skipped_disks(context)?;
    let actions = decide(existing, |array| is_protected(array, &names, &skipped));
    let wanted = |array: &MdArray| volumes.iter().any(|volume| volume.name == array.name);
    for (array, action) in existing.iter().zip(&actions) {
        let is_right = match action {
            Action::Keep => wanted(array) || array.name.as_deref() == Some(ESP),
            Action::Wipe => wanted(array),
            Action::Delete => false,
        };
        if !is_right {
            return Err(unexpected(array));
        }
    }
    let is_missing = |volume: &Volume| existing.iter().all(|array| array.name != volume.name);
    Ok(volumes.into_iter().filter(is_missing).collect())
}

fn unexpected(array: &MdArray) -> CommandError {
    let name = array.name.as_deref().unwrap_or("without a name");
    failed(format!(
        "Existing Software RAID device detected that should not: {} ({name}) on {}",
        array.device(),
        array.disks.join(", ")
    ))
}

/// Disks that arrays may be made on.
fn usable_disks(context: &StepContext<'_>) -> Result<Vec<Disk>, CommandError> {
    let skipped = skipped_disks(context)?;
    let mut disks = context.registry.disks(context.machine, context.settings)?;
    let root = &context.machine.root;
    disks.retain(|disk| disk.kind != DiskKind::Raid && !disk.read_only && !skipped.contains(&disk.kname));
    disks.retain(|disk| !disks::is_virtual_media(root, &disk.kname));
    Ok(disks)
}

/// A volume with its disks, by their index.
type Placed = (Volume, Vec<usize>);

/// Each volume with its disks, and the disks that are used at all.
fn with_disks(volumes: Vec<Volume>, usable: &[Disk]) -> Result<(Vec<Placed>, Vec<&Disk>), CommandError> {
    let mut used: Vec<&Disk> = Vec::new();
    let mut placed = Vec::new();
    for volume in volumes {
        let chosen: Vec<&Disk> = match &volume.physical_disks {
            None => usable.iter().collect(),
            Some(hints) => choose(hints, usable)?,
        };
        let mut indices = Vec::new();
        for disk in chosen {
            let index = used.iter().position(|other| other.kname == disk.kname).unwrap_or(used.len());
            if index == used.len() {
                used.push(disk);
            }
            indices.push(index);
        }
        placed.push((volume, indices));
    }
    Ok((placed, used))
}

/// One disk for each of the hints, each another one.
fn choose<'a>(hints: &[Map<String, Value>], usable: &'a [Disk]) -> Result<Vec<&'a Disk>, CommandError> {
    let names = |disks: &[&Disk]| disks.iter().map(|disk| disk.info.name.as_str()).collect::<Vec<_>>().join(", ");
    let mut chosen: Vec<&Disk> = Vec::new();
    for hint in hints {
        let shown = Shown(hint);
        let rules = RootDeviceHints::parse(hint)
            .map_err(|error| failed(format!("The hints {shown} for a physical disk failed to validate: {error}")))?;
        let candidates: Vec<&Disk> = usable.iter().filter(|disk| rules.matches(disk)).collect();
        if candidates.is_empty() {
            let all = names(&usable.iter().collect::<Vec<_>>());
            return Err(failed(format!("No candidates for physical disk {shown} from the list {all}")));
        }
        let is_new = |disk: &&&Disk| chosen.iter().all(|other| other.kname != disk.kname);
        let Some(disk) = candidates.iter().find(is_new) else {
            let (candidates, matching) = (names(&candidates), names(&chosen));
            return Err(failed(format!(
                "No candidates left for physical disk {shown} from the list {candidates} after picking {matching} for \
                 previous volumes"
            )));
        };
        chosen.push(disk);
    }
    Ok(chosen)
}

/// The disks as the plan needs them. With arrays that stay, the partitions of those stay; else there must be none.
fn raid_disks(
    context: &StepContext<'_>,
    used: &[&Disk],
    existing: &[MdArray],
    keeps: bool,
) -> Result<Vec<RaidDisk>, CommandError> {
    let may_keep = keeps && !skipped_names(context.node).is_empty();
    let on = |disk: &Disk| existing.iter().find(|array| array.disks.contains(&disk.kname));
    if let Some(array) = used.iter().filter(|_| !may_keep).find_map(|disk| on(disk)) {
        return Err(unexpected(array));
    }
    let (mut found, mut with_partitions) = (Vec::new(), Vec::new());
    for disk in used {
        guard::check(context.machine, context.settings, context.node, disk)?;
        let path = context.machine.root.path(&disk.info.name);
        let dev = BlockDev::open(&path, Access::Read)
            .map_err(|error| CommandError::from_chain(ErrorClass::BlockDevice, &error))?;
        // A table that cannot be read has no partitions that anybody uses.
        let table = table::read(&dev).ok().flatten().map(|table| table.partitions).unwrap_or_default();
        let stays = may_keep && on(disk).is_some();
        if !stays && (!table.is_empty() || !disk.partitions.is_empty()) {
            with_partitions.push(disk.info.name.as_str());
        }
        found.push(RaidDisk {
            name: disk.info.name.clone(),
            size_bytes: dev.size_bytes(),
            sector: dev.logical_sector(),
            kept: if stays { table } else { Vec::new() },
        });
    }
    if with_partitions.is_empty() {
        return Ok(found);
    }
    Err(failed(format!("Partitions detected on devices {} during RAID config", with_partitions.join(", "))))
}

fn make_partitions(
    context: &StepContext<'_>,
    disk: &RaidDisk,
    kind: TableKind,
    partitions: &[Partition],
) -> Result<(), String> {
    let path = context.machine.root.path(&disk.name);
    let is_fresh = disk.kept.is_empty();
    let dev = if is_fresh {
        let dev = wipe::open_exclusive(&path, BUSY_PAUSE).map_err(|error| chain(&error))?;
        wipe::destroy_metadata(&dev).map_err(|error| chain(&error))?;
        table::create(&dev, kind, partitions, None).map_err(|error| chain(&error))?;
        dev
    } else {
        // The arrays that stay hold it.
        let dev = BlockDev::open(&path, Access::Write).map_err(|error| chain(&error))?;
        table::edit(&dev, &[], partitions).map_err(|error| chain(&error))?;
        dev
    };
    for partition in partitions {
        clear_ends(&dev, partition).map_err(|error| chain(&error))?;
    }
    dev.flush().map_err(|error| chain(&error))?;
    if is_fresh {
        dev.reread_table().map_err(|error| chain(&error))?;
    } else {
        show_partitions(&dev, partitions)?;
    }
    drop(dev);
    for partition in partitions {
        let node = table::partition_path(&path, partition.number);
        wait_until(|| node.exists()).map_err(|()| format!("{} does not come up", node.display()))?;
    }
    Ok(())
}

fn clear_ends(dev: &BlockDev, partition: &Partition) -> Result<(), ferric_sys::block_dev::BlockDevError> {
    let len = CLEARED_BYTES.min(partition.size_bytes);
    dev.zero_range(partition.start_bytes, len)?;
    dev.zero_range(partition.start_bytes + partition.size_bytes - len, len)
}

/// Tells the kernel of new partitions on a disk whose others are in use.
pub(super) fn show_partitions(dev: &BlockDev, partitions: &[Partition]) -> Result<(), String> {
    if !dev.is_block() {
        return Ok(());
    }
    let show = |new: &Partition| dev.add_partition(new.number, new.start_bytes, new.size_bytes);
    partitions.iter().try_for_each(show).map_err(|error| chain(&error))
}

pub(super) fn wait_until(is_so: impl Fn() -> bool) -> Result<(), ()> {
    for _ in 0..TRIES {
        if is_so() {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
    Err(())
}

/// Makes an array and sees to it that all members are in it (pitfall D10).
pub(super) fn make_array(context: &StepContext<'_>, array: &Array) -> Result<(), CommandError> {
    let Array { device, members, name, .. } = array;
    context.progress.phase(format!("create {device} ({name})"), None);
    super::mdadm(context, &array.create()).map_err(|error| {
        failed(format!("Failed to create md device {device} on {}: {}", members.join(" "), error.details))
    })?;
    let root = &context.machine.root;
    let kname = |path: &str| path.trim_start_matches("/dev/").to_owned();
    let slaves = root.path("sys/class/block").join(kname(device)).join("slaves");
    let missing = || -> Vec<&String> {
        let present = attr::list(&slaves);
        members.iter().filter(|member| !present.contains(&kname(member))).collect()
    };
    let complete = wait_until(|| missing().is_empty());
    if complete.is_err() {
        for member in missing() {
            tracing::warn!(array = device, member, "the array has lost a member, which is added again");
            add(context, device, member)?;
        }
    }
    let node = root.path(device);
    wait_until(|| node.exists()).map_err(|()| failed(format!("{device} was made, but it does not come up")))?;
    tracing::info!(array = device, name, ?members, "software RAID made");
    Ok(())
}

fn add(context: &StepContext<'_>, device: &str, member: &str) -> Result<(), CommandError> {
    let mut attempt = 1;
    loop {
        match super::mdadm(context, &mdadm::add(device, member)) {
            Ok(()) => return Ok(()),
            Err(error) if attempt == ADD_TRIES => {
                return Err(failed(format!("Failed re-add {member} to {device}: {}", error.details)));
            }
            Err(_) => std::thread::sleep(BUSY_PAUSE),
        }
        attempt += 1;
    }
}
