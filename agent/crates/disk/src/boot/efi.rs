//! Boot entries in the firmware for what is on a disk's EFI system partition (deploy section 9.2).

use std::io;
use std::path::PathBuf;

use ferric_sys::block_dev::BlockDev;
use ferric_types::ErrorClass;

use super::efivars::{EfiVarError, EfiVars};
use super::esp::{self, Loader};
use super::load_option::{self, Target};
use crate::table::{self, Guid, Partition, PartitionType, Table, TableError, TableKind};

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
    /// All 65,536 entry numbers are taken.
    #[error("the firmware has no free boot entry number")]
    NoFreeEntry,
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
            Self::Unreadable { .. } | Self::PathTooLong { .. } => ErrorClass::InvalidImage,
            Self::NoFreeEntry | Self::Variable { .. } => ErrorClass::CommandExecution,
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

/// Makes boot entries for the loaders on a disk, in front of all others, and returns their labels. None at all means
/// that the EFI system partition has no loader the reference agent knows.
///
/// Entries of the same label are deleted first (pitfall D1). When a variable cannot be written, entries made so far
/// are deleted again, so that nothing is left half done (pitfall D5).
///
/// # Errors
/// Any [`EfiError`].
pub fn install(dev: &BlockDev, vars: &EfiVars) -> Result<Vec<String>, EfiError> {
    let path = || dev.path().to_owned();
    let table = table::validate(dev)?;
    let esp = find_esp(&table).ok_or_else(|| EfiError::NoEsp {
        path: path(),
        kind: table.kind,
        partitions: table.partitions.len(),
    })?;
    let loaders = esp::loaders(dev, esp.start_bytes, esp.size_bytes).map_err(|source| EfiError::Unreadable {
        path: path(),
        number: esp.number,
        source,
    })?;
    let entries = loaders
        .into_iter()
        .enumerate()
        .map(|(index, loader)| entry(dev, esp, index, loader))
        .collect::<Result<Vec<_>, _>>()?;
    if entries.is_empty() {
        tracing::warn!(device = %dev.path().display(), "the EFI system partition holds no known boot loader");
        return Ok(Vec::new());
    }
    write(vars, &entries).map_err(|error| match error {
        WriteError::Full => EfiError::NoFreeEntry,
        WriteError::Variable(source) => EfiError::Variable { path: path(), source },
    })?;
    Ok(entries.into_iter().map(|(label, _)| label).collect())
}

fn entry(dev: &BlockDev, esp: &Partition, index: usize, loader: Loader) -> Result<(String, Vec<u8>), EfiError> {
    let sector = u64::from(dev.logical_sector());
    let label = loader.label.unwrap_or_else(|| format!("ironic{}", index + 1));
    let target = Target {
        partition: esp.number,
        start_lba: esp.start_bytes / sector,
        sectors: esp.size_bytes / sector,
        guid: esp.guid.unwrap_or(Guid::NIL),
        path: loader.path,
    };
    let bytes = load_option::encode(&label, &target).ok_or(EfiError::PathTooLong { path: target.path })?;
    Ok((label, bytes))
}

enum WriteError {
    Full,
    Variable(EfiVarError),
}

impl From<EfiVarError> for WriteError {
    fn from(error: EfiVarError) -> Self {
        Self::Variable(error)
    }
}

fn write(vars: &EfiVars, entries: &[(String, Vec<u8>)]) -> Result<(), WriteError> {
    let mut order = vars.boot_order()?;
    for number in vars.boot_entries() {
        let name = format!("Boot{number:04X}");
        let old = vars.read(&name)?.and_then(|bytes| load_option::label(&bytes));
        if old.is_some_and(|old| entries.iter().any(|(label, _)| *label == old)) {
            vars.delete(&name)?;
            order.retain(|other| *other != number);
        }
    }
    let mut made = Vec::new();
    let result = make(vars, entries, &mut order, &mut made);
    if result.is_err() {
        for number in made {
            if let Err(error) = vars.delete(&format!("Boot{number:04X}")) {
                tracing::warn!(error = ferric_types::error::chain(&error), "taking back a boot entry");
            }
        }
    }
    result
}

fn make(
    vars: &EfiVars,
    entries: &[(String, Vec<u8>)],
    order: &mut Vec<u16>,
    made: &mut Vec<u16>,
) -> Result<(), WriteError> {
    for (label, bytes) in entries {
        let taken = vars.boot_entries();
        let number = (0..=u16::MAX).find(|n| !taken.contains(n) && !order.contains(n)).ok_or(WriteError::Full)?;
        vars.write(&format!("Boot{number:04X}"), bytes)?;
        made.push(number);
        order.insert(0, number);
        tracing::info!(entry = number, label, "boot entry made");
    }
    Ok(vars.set_boot_order(order)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_sys::Root;

    const SUFFIX: &str = "-8be4df61-93ca-11d2-aa0d-00e098032b8c";

    fn machine(entries: &[(&str, &str)], order: &[u16]) -> (tempfile::TempDir, EfiVars) {
        let dir = tempfile::tempdir().unwrap();
        let efivars = dir.path().join("sys/firmware/efi/efivars");
        std::fs::create_dir_all(&efivars).unwrap();
        let target = Target { partition: 1, start_lba: 1, sectors: 1, guid: Guid::NIL, path: "\\x".into() };
        for (name, label) in entries {
            let mut bytes = vec![7, 0, 0, 0];
            bytes.extend(load_option::encode(label, &target).unwrap());
            std::fs::write(efivars.join(format!("{name}{SUFFIX}")), bytes).unwrap();
        }
        let bytes: Vec<u8> = [7, 0, 0, 0].into_iter().chain(order.iter().flat_map(|n| n.to_le_bytes())).collect();
        std::fs::write(efivars.join(format!("BootOrder{SUFFIX}")), bytes).unwrap();
        let vars = EfiVars::of(&Root::at(dir.path())).unwrap();
        (dir, vars)
    }

    #[test]
    fn duplicates_go_and_the_new_entry_comes_first() {
        let old = [("Boot0000", "UEFI PXE"), ("Boot0001", "debian"), ("Boot0003", "debian"), ("Boot0004", "Debian")];
        let (_dir, vars) = machine(&old, &[1, 0, 3, 1, 4]);
        write(&vars, &[("debian".to_owned(), vec![1, 0, 0, 0, 0, 0, 0, 0])]).unwrap_or_else(|_| panic!("written"));
        assert_eq!(vars.boot_entries(), [0, 1, 4]);
        // efivarfs replaces a value whole; the plain file of this fixture keeps its old tail.
        assert_eq!(vars.boot_order().unwrap()[..3], [1, 0, 4]);
    }

    #[test]
    fn a_failed_write_leaves_no_entry_behind() {
        let (dir, vars) = machine(&[("Boot0000", "UEFI PXE")], &[0]);
        let order = dir.path().join(format!("sys/firmware/efi/efivars/BootOrder{SUFFIX}"));
        let before = std::fs::read(&order).unwrap();
        std::fs::remove_file(&order).unwrap();
        std::fs::create_dir(&order).unwrap();
        assert!(write(&vars, &[("debian".to_owned(), vec![0; 8])]).is_err());
        std::fs::remove_dir(&order).unwrap();
        std::fs::write(&order, before).unwrap();
        assert_eq!(vars.boot_entries(), [0]);
        assert_eq!(vars.boot_order().unwrap(), [0]);
    }

    #[test]
    fn a_machine_without_efi_has_no_variables() {
        let dir = tempfile::tempdir().unwrap();
        assert!(EfiVars::of(&Root::at(dir.path())).is_none());
    }
}
