//! What makes a machine boot from an array (deploy section 9.4).
//!
//! Firmware knows nothing of arrays. So each disk below the array gets an EFI system partition of its own in the room that
//! was left for it; together they are an array of mirrors with its superblocks at the ends, where firmware does not see them.
//! The files of the image's own EFI system partition, which lies on the array where firmware cannot read it, go there.
//!
//! BIOS machines need GRUB on each disk, which only the image's own installer can put there; on arrays it is not run.

use ferric_disk::boot::efi::{self, Firmware, Installed};
use ferric_disk::raid::{Array, Level, esp, plan};
use ferric_disk::table::{self, Guid, Partition, PartitionType};
use ferric_disk::wipe;
use ferric_sys::block_dev::{Access, BlockDev};
use ferric_types::error::{CommandError, ErrorClass, chain};

use super::arrays::{self, Device, MdArray};
use super::create::{make_array, show_partitions, wait_until};
use super::delete::ESP;
use super::failed;
use crate::context::StepContext;
use crate::probe::disks::{self, Disk, DiskKind};

const MIB: u64 = 1 << 20;

/// The array under a disk that is one; `None` for a disk of its own.
pub(in crate::generic) fn array_of(context: &StepContext<'_>, disk: &Disk) -> Option<MdArray> {
    let is_array = disk.kind == DiskKind::Raid && disk.kname.starts_with("md");
    let mut arrays = if is_array { arrays::list(&context.machine.root) } else { Vec::new() };
    arrays.retain(|array| array.kname == disk.kname);
    arrays.pop()
}

/// Has UEFI firmware boot the image on an array: from an EFI system partition on each of its disks.
///
/// # Errors
/// `SoftwareRAIDError` when that cannot be made; errors of [`efi::install_members`].
pub(in crate::generic) fn by_uefi(
    context: &StepContext<'_>,
    array: &MdArray,
    firmware: &Firmware<'_>,
) -> Result<Installed, CommandError> {
    context.progress.phase("EFI system partitions of the array", None);
    let root = &context.machine.root;
    let esp_array = match existing_esp(context, array) {
        Some(found) => found,
        None => make_esp(context, array)?,
    };
    let path = root.path(format!("/dev/{esp_array}"));
    let blamed = |what: &str, reason: String| failed(format!("{what} {}: {reason}", path.display()));
    let target =
        wipe::open_exclusive(&path, super::create::BUSY_PAUSE).map_err(|error| blamed("opening", chain(&error)))?;
    fill(context, array, &target)
        .map_err(|reason| blamed("copying the EFI system partition of the image to", reason))?;
    target.flush().map_err(|error| blamed("writing", chain(&error)))?;
    let members = members(context, &esp_array)?;
    let installed = efi::install_members(&target, &members, firmware)
        .map_err(|error| CommandError::from_chain(error.class(), &error))?;
    tracing::info!(array = array.device(), esp = esp_array, ?installed, "boot entries for software RAID");
    Ok(installed)
}

/// Kernel name of an array of EFI system partitions on the same disks that is there already, as after a rebuild.
fn existing_esp(context: &StepContext<'_>, array: &MdArray) -> Option<String> {
    let shares = |other: &MdArray| other.disks.iter().any(|disk| array.disks.contains(disk));
    let found = arrays::list(&context.machine.root).into_iter().find(|other| {
        other.kname != array.kname && other.name.as_deref() == Some(ESP) && other.level == "raid1" && shares(other)
    })?;
    tracing::info!(array = found.device(), "there is an array of EFI system partitions already");
    Some(found.kname)
}

/// Makes an EFI system partition on each disk, and an array of them.
fn make_esp(context: &StepContext<'_>, array: &MdArray) -> Result<String, CommandError> {
    let mut members = Vec::new();
    for (index, kname) in array.disks.iter().enumerate() {
        let dev = open_disk(context, kname)?;
        let partition = add_partition(&dev, (Guid::EFI_SYSTEM, format!("uefi-holder-{index}")), plan::ESP_MIB)?;
        dev.zero_range(partition.start_bytes, MIB)
            .and_then(|()| dev.zero_range(partition.start_bytes + partition.size_bytes - MIB, MIB))
            .and_then(|()| dev.flush())
            .map_err(|error| failed(format!("preparing the EFI system partition of {kname}: {}", chain(&error))))?;
        let device = disks::device_path(kname);
        let node = plan::partition_name(&device, partition.number);
        wait_until(|| context.machine.root.path(&node).exists())
            .map_err(|()| failed(format!("{node} does not come up")))?;
        members.push(node);
    }
    let taken: Vec<String> = arrays::list(&context.machine.root).into_iter().map(|array| array.device()).collect();
    let device = (0..128).map(|number| format!("/dev/md{number}")).find(|device| !taken.contains(device));
    let device = device.ok_or_else(|| failed("No free md (RAID) devices are left"))?;
    let esp = Array { device, name: ESP.to_owned(), level: Level::Raid1, metadata: "1.0", members };
    make_array(context, &esp)?;
    Ok(esp.device.trim_start_matches("/dev/").to_owned())
}

/// The files of the image's EFI system partition; an empty file system where the image has none. Where they have been
/// copied before, they stay.
fn fill(context: &StepContext<'_>, array: &MdArray, target: &BlockDev) -> Result<(), String> {
    let path = context.machine.root.path(array.device());
    let image = BlockDev::open(&path, Access::Write).map_err(|error| chain(&error))?;
    let table = table::read(&image).map_err(|error| chain(&error))?;
    let own = table.as_ref().and_then(efi::find_esp);
    let is_fat = |dev: &BlockDev, start, size| ferric_disk::filesystem::fat(dev, start, size).is_ok();
    let Some(own) = own.filter(|own| is_fat(&image, own.start_bytes, own.size_bytes)) else {
        if is_fat(target, 0, target.size_bytes()) {
            return Ok(());
        }
        return esp::format(target, esp::EMPTY_LABEL, None).map_err(|error| error.to_string());
    };
    let files = esp::copy(&image, own.start_bytes, own.size_bytes, target).map_err(|error| error.to_string())?;
    target.flush().map_err(|error| chain(&error))?;
    // A second one of the same serial number would be mounted in place of it at random.
    image
        .zero_range(own.start_bytes, MIB.min(own.size_bytes))
        .and_then(|()| image.flush())
        .map_err(|error| chain(&error))?;
    tracing::info!(array = array.device(), files, "EFI system partition of the image moved to an array of its own");
    Ok(())
}

/// Disks and partitions below an array.
fn members(context: &StepContext<'_>, esp_array: &str) -> Result<Vec<(BlockDev, Partition)>, CommandError> {
    let devices = arrays::devices(&context.machine.root);
    let found = arrays::list_among(&context.machine.root, &devices).into_iter().find(|array| array.kname == esp_array);
    let mut members = Vec::new();
    for kname in found.map(|array| array.members).unwrap_or_default() {
        let Some(Device { disk, partition: Some(number), .. }) = devices.iter().find(|device| device.kname == kname)
        else {
            continue;
        };
        let dev = open_disk(context, disk)?;
        let table = read_table(&dev)?.map(|table| table.partitions).unwrap_or_default();
        if let Some(partition) = table.into_iter().find(|partition| partition.number == *number) {
            members.push((dev, partition));
        }
    }
    // In the order of the disks: that of the kernel's list is by name, too, but of partitions.
    members.sort_by(|(a, _), (b, _)| a.path().cmp(b.path()));
    Ok(members)
}

fn open_disk(context: &StepContext<'_>, kname: &str) -> Result<BlockDev, CommandError> {
    BlockDev::open(context.machine.root.path(disks::device_path(kname)), Access::Write)
        .map_err(|error| CommandError::from_chain(ErrorClass::BlockDevice, &error))
}

fn read_table(dev: &BlockDev) -> Result<Option<table::Table>, CommandError> {
    table::read(dev).map_err(|error| CommandError::from_chain(error.class(), &error))
}

/// Adds a partition to a disk whose others are in use.
fn add_partition(dev: &BlockDev, (kind, name): (Guid, String), size_mib: u64) -> Result<Partition, CommandError> {
    let blamed = |reason: String| failed(format!("adding the partition {name} to {}: {reason}", dev.path().display()));
    let taken = read_table(dev)?.map(|table| table.partitions).unwrap_or_default();
    let start_bytes = plan::gap(dev.size_bytes(), dev.logical_sector(), &taken, size_mib * MIB)
        .ok_or_else(|| blamed(format!("there is no room of {size_mib} MiB")))?;
    let number = (1..=128).find(|number| taken.iter().all(|partition| partition.number != *number)).unwrap_or(128);
    let kind = PartitionType::Gpt(kind);
    let partition = Partition { number, start_bytes, size_bytes: size_mib * MIB, kind, guid: None, name: name.clone() };
    table::edit(dev, &[], std::slice::from_ref(&partition)).map_err(|error| blamed(chain(&error)))?;
    show_partitions(dev, std::slice::from_ref(&partition)).map_err(&blamed)?;
    Ok(partition)
}
