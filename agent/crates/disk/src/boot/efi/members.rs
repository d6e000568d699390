//! Boot entries for an EFI system partition that is an array: firmware knows nothing of arrays and reads one member of it.

use ferric_sys::block_dev::BlockDev;

use super::{EfiError, Firmware, Installed, WriteError, entry, esp, fall_back, write};
use crate::table::{Partition, PartitionType};

/// Makes boot entries for the loaders on `esp`, an array of the members, which are partitions of disks: for each member its
/// own, with its index in the label, so that the machine boots whichever disk it has lost (deploy section 9.4).
///
/// # Errors
/// Any [`EfiError`] but [`EfiError::NoEsp`].
pub fn install_members(
    esp_array: &BlockDev,
    members: &[(BlockDev, Partition)],
    firmware: &Firmware<'_>,
) -> Result<Installed, EfiError> {
    let path = || esp_array.path().to_owned();
    let whole = Partition {
        number: 0,
        start_bytes: 0,
        size_bytes: esp_array.size_bytes(),
        kind: PartitionType::Mbr(0),
        guid: None,
        name: String::new(),
    };
    let found = esp::loaders(esp_array, 0, esp_array.size_bytes(), firmware.suffix)
        .map_err(|source| EfiError::Unreadable { path: path(), number: 0, source })?;
    let Some(first) = found.loaders.first() else {
        tracing::warn!(device = %path().display(), "the EFI system partition holds no known boot loader");
        return Ok(Installed::Nothing);
    };
    let Some(vars) = firmware.vars else {
        return fall_back(esp_array, &whole, first, firmware, "the firmware's variables cannot be reached".to_owned());
    };
    let mut entries = Vec::new();
    for (member, (disk, partition)) in members.iter().enumerate() {
        for (index, loader) in found.loaders.iter().enumerate() {
            let label = loader.label.clone().unwrap_or_else(|| format!("ironic{}", index + 1));
            let mut loader = loader.clone();
            loader.label = Some(format!("{label} (RAID, part{member})"));
            entries.push(entry(disk, partition, index, &loader)?);
        }
    }
    match write(vars, &entries) {
        Ok(()) => Ok(Installed::Entries(entries.into_iter().map(|(label, _)| label).collect())),
        Err(WriteError::Variable(source)) if !source.is_refusal() => Err(EfiError::Variable { path: path(), source }),
        Err(error) => {
            let reason = match error {
                WriteError::NoNumber => "all numbers of boot entries are taken".to_owned(),
                WriteError::NoRoom { .. } => "the firmware's store of variables is full".to_owned(),
                WriteError::Variable(source) => {
                    format!("the firmware does not take the boot entry: {}", ferric_types::error::chain(&source))
                }
            };
            fall_back(esp_array, &whole, first, firmware, reason)
        }
    }
}
