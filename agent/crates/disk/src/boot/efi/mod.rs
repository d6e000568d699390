//! Boot entries in the firmware for what is on a disk's EFI system partition (deploy section 9.2).

mod members;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use ferric_sys::block_dev::BlockDev;
use ferric_types::ErrorClass;
use ferric_types::error::chain;

use super::efivars::{EfiVarError, EfiVars};
use super::esp::{self, Loader};
use super::fallback::{self, Fallback};
use super::load_option::{self, Signature, Target};
use crate::partition::identity;
use crate::table::{self, Guid, Partition, PartitionType, Table, TableError, TableKind};

pub use members::install_members;

/// Why no boot entry was made.
#[derive(Debug, thiserror::Error)]
pub enum EfiError {
    /// The partition table is not usable.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The image is made for BIOS.
    #[error(
        "No EFI partition could be detected on device {} and EFI partition UUID has not been recorded during deployment \
         (which is often the case for whole disk images). The disk has an {kind:?} partition table with {partitions} \
         partition(s). Are you using a UEFI-compatible image?", path.display()
    )]
    NoEsp {
        /// Disk.
        path: PathBuf,
        /// Kind of its table.
        kind: TableKind,
        /// How many partitions it has.
        partitions: usize,
    },
    /// The partition holds no file system that firmware could read.
    #[error("reading the EFI system partition {number} of {}", path.display())]
    Unreadable {
        /// Disk.
        path: PathBuf,
        /// Partition.
        number: u32,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// A path is longer than a boot entry can hold.
    #[error("loader path {path:?} is too long for a boot entry")]
    PathTooLong {
        /// Path.
        path: String,
    },
    /// The loaders are for other machines.
    #[error(
        "the EFI system partition of {} has no boot loader for this machine's firmware ({wanted}), only for another \
         architecture: {found}", path.display()
    )]
    Architecture {
        /// Disk.
        path: PathBuf,
        /// What there is.
        found: String,
        /// Architecture of the firmware.
        wanted: String,
    },
    /// No entry could be made, and the loader could not be put where firmware looks without one.
    #[error(
        "Could not configure UEFI boot on device {}: {reason}, and no boot loader could be put into /EFI/BOOT of its EFI \
         system partition instead", path.display()
    )]
    Fallback {
        /// Disk.
        path: PathBuf,
        /// Why no entry was made.
        reason: String,
        /// Why that failed, too.
        #[source]
        source: io::Error,
    },
    /// A variable could not be used.
    #[error("Could not configure UEFI boot on device {}", path.display())]
    Variable {
        /// Disk.
        path: PathBuf,
        /// Reason.
        #[source]
        source: EfiVarError,
    },
}

impl EfiError {
    /// Error class for the conductor.
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::Table(error) => error.class(),
            Self::NoEsp { .. } => ErrorClass::DeviceNotFound,
            Self::Unreadable { .. } | Self::PathTooLong { .. } | Self::Architecture { .. } => ErrorClass::InvalidImage,
            Self::Fallback { .. } | Self::Variable { .. } => ErrorClass::CommandExecution,
        }
    }
}

/// The EFI system partition of a disk, if it has one: by type, on GPT and on MBR (system id 0xEF).
pub fn find_esp(table: &Table) -> Option<&Partition> {
    table
        .partitions
        .iter()
        .find(|partition| matches!(partition.kind, PartitionType::Gpt(Guid::EFI_SYSTEM) | PartitionType::Mbr(0xef)))
}

/// The firmware that is to boot a disk.
#[derive(Debug, Clone, Copy)]
pub struct Firmware<'a> {
    /// Its variables; `None` when they are out of reach.
    pub vars: Option<&'a EfiVars>,
    /// What it calls its architecture ([`super::arch::suffix`]); `None` when that is not known.
    pub suffix: Option<&'static str>,
}

/// How a disk will be booted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Installed {
    /// Not at all: its EFI system partition has no loader that the reference agent knows.
    Nothing,
    /// By boot entries with these labels, in front of all others.
    Entries(Vec<String>),
    /// By the loader in the place where firmware looks when it has no entry.
    Fallback {
        /// Its path and whether it was copied there.
        found: Fallback,
        /// Why no entry was made.
        reason: String,
    },
}

/// Makes a disk bootable: by boot entries for its loaders, or where the firmware does not take any, by making sure that a
/// loader is where firmware looks without one (pitfall D5). `given` is the UUID of the EFI system partition as the conductor
/// has it; it counts when none is found by its type.
///
/// Everything else must have been written before: firmware may act on its variables at once, and they wear out, so that each
/// is written once and they come last (pitfall D6). Entries of the same label are deleted first (pitfall D1). When a variable
/// cannot be written, entries made so far are deleted again.
///
/// # Errors
/// Any [`EfiError`].
pub fn install(dev: &BlockDev, given: Option<&str>, firmware: &Firmware<'_>) -> Result<Installed, EfiError> {
    let path = || dev.path().to_owned();
    let table = table::validate(dev)?;
    let esp = find_esp(&table)
        .or_else(|| identity::find(dev, &table, given.filter(|uuid| !uuid.is_empty())?))
        .ok_or_else(|| EfiError::NoEsp { path: path(), kind: table.kind, partitions: table.partitions.len() })?;
    let found = esp::loaders(dev, esp.start_bytes, esp.size_bytes, firmware.suffix)
        .map_err(|source| EfiError::Unreadable { path: path(), number: esp.number, source })?;
    let Some(first) = found.loaders.first() else {
        if let (false, Some(wanted)) = (found.foreign.is_empty(), firmware.suffix) {
            let found = found.foreign.join(", ");
            return Err(EfiError::Architecture { path: path(), found, wanted: wanted.to_owned() });
        }
        tracing::warn!(device = %dev.path().display(), "the EFI system partition holds no known boot loader");
        return Ok(Installed::Nothing);
    };
    let Some(vars) = firmware.vars else {
        return fall_back(dev, esp, first, firmware, "the firmware's variables cannot be reached".to_owned());
    };
    let loaders = found.loaders.iter().enumerate();
    let entries = loaders.map(|(index, loader)| entry(dev, esp, index, loader)).collect::<Result<Vec<_>, _>>()?;
    match write(vars, &entries) {
        Ok(()) => Ok(Installed::Entries(entries.into_iter().map(|(label, _)| label).collect())),
        Err(WriteError::NoNumber) => fall_back(dev, esp, first, firmware, NO_NUMBER.to_owned()),
        Err(WriteError::NoRoom { free_bytes, wanted_bytes }) => {
            let reason = format!(
                "the firmware's store of variables has {free_bytes} bytes left, of which boot entries need {wanted_bytes}"
            );
            fall_back(dev, esp, first, firmware, reason)
        }
        Err(WriteError::Variable(source)) if source.is_refusal() => {
            let reason = format!("the firmware does not take the boot entry: {}", chain(&source));
            fall_back(dev, esp, first, firmware, reason)
        }
        Err(WriteError::Variable(source)) => Err(EfiError::Variable { path: path(), source }),
    }
}

const NO_NUMBER: &str = "all numbers of boot entries are taken";

/// Has the disk boot without an entry.
fn fall_back(
    dev: &BlockDev,
    esp: &Partition,
    loader: &Loader,
    firmware: &Firmware<'_>,
    reason: String,
) -> Result<Installed, EfiError> {
    let failed =
        |reason: &str, source| EfiError::Fallback { path: dev.path().to_owned(), reason: reason.to_owned(), source };
    let Some(suffix) = firmware.suffix else {
        let unknown = io::Error::other("UEFI does not know the architecture of this machine");
        return Err(failed(&reason, unknown));
    };
    let place = (esp.start_bytes, esp.size_bytes);
    let found = fallback::ensure(dev.path(), place, loader, suffix).map_err(|source| failed(&reason, source))?;
    tracing::warn!(disk = %dev.path().display(), reason, path = found.path, copied = found.copied, "no boot entry was made");
    Ok(Installed::Fallback { found, reason })
}

fn entry(dev: &BlockDev, esp: &Partition, index: usize, loader: &Loader) -> Result<(String, Vec<u8>), EfiError> {
    let sector = u64::from(dev.logical_sector());
    let label = loader.label.clone().unwrap_or_else(|| format!("ironic{}", index + 1));
    let target = Target {
        partition: esp.number,
        start_lba: esp.start_bytes / sector,
        sectors: esp.size_bytes / sector,
        signature: signature(dev, esp)?,
        path: loader.path.clone(),
    };
    let bytes = load_option::encode(&label, &target).ok_or(EfiError::PathTooLong { path: target.path })?;
    Ok((label, bytes))
}

fn signature(dev: &BlockDev, esp: &Partition) -> Result<Signature, EfiError> {
    if let Some(guid) = esp.guid {
        return Ok(Signature::Gpt(guid));
    }
    Ok(Signature::Mbr(table::mbr::disk_signature(dev)?))
}

#[derive(Debug)]
enum WriteError {
    /// All 65,536 entry numbers are taken.
    NoNumber,
    /// The store is too full to try.
    NoRoom {
        free_bytes: u64,
        wanted_bytes: u64,
    },
    Variable(EfiVarError),
}

impl From<EfiVarError> for WriteError {
    fn from(error: EfiVarError) -> Self {
        Self::Variable(error)
    }
}

/// What is done to the variables, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Change {
    /// An entry goes.
    Delete(u16),
    /// The entry at this index is written.
    Write(u16, usize),
    /// The order is written.
    Order(Vec<u16>),
}

/// Plans the change from entries and an order to those with new entries of these labels in front; `None` when there is no
/// number left for one.
fn plan(known: &[(u16, Option<String>)], order: &[u16], labels: &[&str]) -> Option<Vec<Change>> {
    let is_old = |label: &Option<String>| label.as_deref().is_some_and(|label| labels.contains(&label));
    let (old, kept): (Vec<_>, Vec<_>) = known.iter().partition(|(_, label)| is_old(label));
    let is_gone = |number: &u16| old.iter().any(|(other, _)| other == number);
    let mut new_order: Vec<u16> = Vec::with_capacity(order.len() + labels.len());
    for number in order.iter().filter(|number| !is_gone(number)) {
        if !new_order.contains(number) {
            new_order.push(*number);
        }
    }
    let mut changes: Vec<Change> = old.iter().map(|(number, _)| Change::Delete(*number)).collect();
    let mut taken: BTreeSet<u16> = kept.iter().map(|(number, _)| *number).chain(new_order.iter().copied()).collect();
    for index in 0..labels.len() {
        let number = (0..=u16::MAX).find(|number| taken.insert(*number))?;
        changes.push(Change::Write(number, index));
        // As with the reference agent's tool the last one ends up first.
        new_order.insert(0, number);
    }
    changes.push(Change::Order(new_order));
    Some(changes)
}

fn write(vars: &EfiVars, entries: &[(String, Vec<u8>)]) -> Result<(), WriteError> {
    let order = vars.boot_order()?;
    let mut known = Vec::new();
    for number in vars.boot_entries() {
        known.push((number, vars.read(&name(number))?.and_then(|bytes| load_option::label(&bytes))));
    }
    let labels: Vec<&str> = entries.iter().map(|(label, _)| label.as_str()).collect();
    let changes = plan(&known, &order, &labels).ok_or(WriteError::NoNumber)?;
    let mut made = Vec::new();
    let result = apply(vars, entries, &changes, &mut made);
    if result.is_err() {
        take_back(vars, &changes, &made, &order);
    }
    result
}

fn name(number: u16) -> String {
    format!("Boot{number:04X}")
}

fn apply(
    vars: &EfiVars,
    entries: &[(String, Vec<u8>)],
    changes: &[Change],
    made: &mut Vec<u16>,
) -> Result<(), WriteError> {
    let (delete, write): (Vec<&Change>, Vec<&Change>) =
        changes.iter().partition(|change| matches!(change, Change::Delete(_)));
    for change in delete {
        if let Change::Delete(number) = change {
            vars.delete(&name(*number))?;
            tracing::info!(entry = number, "boot entry of the same label deleted");
        }
    }
    // What was deleted has made room.
    let wanted_bytes = entries.iter().map(|(_, bytes)| bytes.len() + VARIABLE_BYTES).sum::<usize>();
    let wanted_bytes = u64::try_from(wanted_bytes).unwrap_or(u64::MAX);
    if let Some(free_bytes) = vars.free_bytes().filter(|free| *free < wanted_bytes) {
        return Err(WriteError::NoRoom { free_bytes, wanted_bytes });
    }
    for change in write {
        match change {
            Change::Delete(_) => {}
            Change::Write(number, index) => {
                let Some((label, bytes)) = entries.get(*index) else { continue };
                // A failed write may leave something, too.
                made.push(*number);
                vars.write(&name(*number), bytes)?;
                tracing::info!(entry = number, label, "boot entry made");
            }
            Change::Order(order) => vars.set_boot_order(order)?,
        }
    }
    Ok(())
}

/// What a variable takes besides its value: its header, and a name like `BootOrder`.
const VARIABLE_BYTES: usize = 96;

/// Deletes what was made, and takes entries that are gone out of the order where that can be.
fn take_back(vars: &EfiVars, changes: &[Change], made: &[u16], order: &[u16]) {
    let warn = |result: Result<(), EfiVarError>| {
        if let Err(error) = result {
            tracing::warn!(error = chain(&error), "taking back what was done to boot entries");
        }
    };
    for number in made {
        warn(vars.delete(&name(*number)));
    }
    let left: Vec<u16> = order.iter().copied().filter(|number| !changes.contains(&Change::Delete(*number))).collect();
    if left.len() < order.len() {
        warn(vars.set_boot_order(&left));
    }
}

#[cfg(test)]
mod tests;
