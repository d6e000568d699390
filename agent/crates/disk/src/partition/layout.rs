//! Which partitions a disk gets, where, and of which type: a pure plan.

use std::path::{Path, PathBuf};

use ferric_types::ErrorClass;

use crate::table::{Guid, PartitionType, Table, TableKind};

/// Bytes in a MiB, the unit of all sizes and places here.
const MIB: u64 = 1 << 20;
/// Where the first partition begins.
const FIRST_MIB: u64 = 1;
/// Sectors at the end of a GPT disk: the backup of 128 entries of 128 bytes, and its header.
const BACKUP_BYTES: u64 = 128 * 128;
/// An MBR counts sectors in 32 bits, and has four entries.
const MBR_SECTORS: u64 = u32::MAX as u64;
const MBR_ENTRIES: usize = 4;
/// Sizes beyond this are typing errors; sums of these do not overflow.
const MAX_MIB: u64 = 1 << 40;

/// What a partition is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// EFI system partition.
    Esp,
    /// Place for GRUB's core image on a GPT disk.
    BiosBoot,
    /// Place for the boot loader of POWER machines.
    Prep,
    /// The tenant's scratch space.
    Ephemeral,
    /// Swap space.
    Swap,
    /// Config drive.
    ConfigDrive,
    /// The image.
    Root,
}

/// Role, name for the operator, type on GPT, system id on MBR.
const ROLES: [(Role, &str, Guid, u8); 7] = [
    (Role::Esp, "EFI system partition", Guid::EFI_SYSTEM, 0xef),
    (Role::BiosBoot, "BIOS boot", Guid::BIOS_BOOT, 0x83),
    (Role::Prep, "PReP boot", Guid::PREP, 0x41),
    (Role::Ephemeral, "ephemeral", Guid::LINUX_DATA, 0x83),
    (Role::Swap, "swap", Guid::LINUX_SWAP, 0x82),
    (Role::ConfigDrive, "config drive", Guid::LINUX_DATA, 0x83),
    (Role::Root, "root", Guid::LINUX_DATA, 0x83),
];

impl Role {
    fn row(self) -> (&'static str, Guid, u8) {
        let row = ROLES.iter().find(|(role, ..)| *role == self);
        row.map_or(("", Guid::LINUX_DATA, 0x83), |(_, name, guid, id)| (name, *guid, *id))
    }
}

/// What a disk is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// GPT or MBR.
    pub kind: TableKind,
    /// Whether the machine boots by UEFI.
    pub uefi: bool,
    /// Whether it is a POWER machine.
    pub power: bool,
    /// Size of an EFI system partition in MiB.
    pub esp_mib: u64,
    /// Size of a BIOS boot partition in MiB.
    pub bios_boot_mib: u64,
    /// Size of the scratch space in MiB; 0 for none.
    pub ephemeral_mib: u64,
    /// Size of the swap space in MiB; 0 for none.
    pub swap_mib: u64,
    /// Room for the config drive in bytes; 0 for none.
    pub config_drive_bytes: u64,
    /// Size of the root partition in MiB.
    pub root_mib: u64,
}

/// A partition that is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    /// What it is for.
    pub role: Role,
    /// Number, from 1.
    pub number: u32,
    /// Where it begins.
    pub start_bytes: u64,
    /// Its size.
    pub size_bytes: u64,
    /// Its type.
    pub kind: PartitionType,
    /// Whether an MBR marks it as the one to boot.
    pub active: bool,
}

/// All partitions of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// GPT or MBR.
    pub kind: TableKind,
    /// By number.
    pub partitions: Vec<Planned>,
}

/// A disk cannot be laid out as wanted. Nothing has been written.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// There is no root partition.
    #[error("a root partition of {root_mib} MiB was asked for")]
    Root {
        /// Size.
        root_mib: u64,
    },
    /// The disk is too small.
    #[error(
        "the partitions do not fit on {}: they end at {end_mib} MiB ({parts}), of which the table leaves {} MiB of the \
         disk's {disk_bytes} bytes", path.display(), usable_bytes / MIB
    )]
    NoFit {
        /// Disk.
        path: PathBuf,
        /// Where the last one would end.
        end_mib: u64,
        /// What they are.
        parts: String,
        /// Up to where there may be partitions.
        usable_bytes: u64,
        /// Size of the disk.
        disk_bytes: u64,
    },
    /// An MBR has too few entries.
    #[error("{} partitions are needed ({parts}), but the MBR of {} has room for {MBR_ENTRIES}", count, path.display())]
    TooMany {
        /// Disk.
        path: PathBuf,
        /// How many are needed.
        count: usize,
        /// What they are.
        parts: String,
    },
    /// The partitions on the disk are not those that would be made, so that what is in them cannot be kept.
    #[error(
        "the partitions of {} cannot be kept, as preserve_ephemeral asks for: {reason}. Deploy with the sizes and the \
         config drive that it was deployed with, or without preserve_ephemeral", path.display()
    )]
    Differs {
        /// Disk.
        path: PathBuf,
        /// What differs.
        reason: String,
    },
}

impl LayoutError {
    /// Error class for the conductor.
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::Root { .. } => ErrorClass::InvalidCommandParams,
            _ => ErrorClass::Deployment,
        }
    }
}

impl Layout {
    /// Plans a disk.
    ///
    /// # Errors
    /// Any [`LayoutError`] but [`LayoutError::Differs`].
    pub fn plan(wanted: &Wanted, path: &Path, disk_bytes: u64, sector: u32) -> Result<Self, LayoutError> {
        let Wanted { kind, uefi, power, root_mib, .. } = *wanted;
        if root_mib == 0 {
            return Err(LayoutError::Root { root_mib });
        }
        let is_gpt = kind == TableKind::Gpt;
        let sizes = [
            (Role::Esp, if uefi { wanted.esp_mib.max(1) } else { 0 }),
            (Role::BiosBoot, if !uefi && is_gpt && !power { wanted.bios_boot_mib.max(1) } else { 0 }),
            (Role::Prep, if !uefi && power { 8 } else { 0 }),
            (Role::Ephemeral, wanted.ephemeral_mib),
            (Role::Swap, wanted.swap_mib),
            (Role::ConfigDrive, wanted.config_drive_bytes.div_ceil(MIB)),
            (Role::Root, root_mib),
        ];
        let sizes = || sizes.iter().map(|(role, mib)| (*role, (*mib).min(MAX_MIB))).filter(|(_, mib)| *mib > 0);
        let end_mib = FIRST_MIB + sizes().map(|(_, mib)| mib).sum::<u64>();
        let parts = || sizes().map(|(role, mib)| format!("{} {mib}", role.row().0)).collect::<Vec<_>>().join(", ");
        let sector = u64::from(sector);
        let usable_bytes = match kind {
            TableKind::Gpt => disk_bytes.saturating_sub(BACKUP_BYTES + sector),
            TableKind::Mbr => disk_bytes.min(MBR_SECTORS * sector),
        };
        let path = || path.to_owned();
        if end_mib > usable_bytes / MIB {
            return Err(LayoutError::NoFit { path: path(), end_mib, parts: parts(), usable_bytes, disk_bytes });
        }
        let count = sizes().count();
        if !is_gpt && count > MBR_ENTRIES {
            return Err(LayoutError::TooMany { path: path(), count, parts: parts() });
        }
        let mut next = FIRST_MIB * MIB;
        let partitions = (1..).zip(sizes()).map(|(number, (role, mib))| {
            let start_bytes = next;
            next += mib * MIB;
            let (_, guid, id) = role.row();
            let active = !is_gpt && (role == Role::Prep || role == Role::Root && !uefi && !power);
            let kind = if is_gpt { PartitionType::Gpt(guid) } else { PartitionType::Mbr(id) };
            Planned { role, number, start_bytes, size_bytes: mib * MIB, kind, active }
        });
        Ok(Self { kind, partitions: partitions.collect() })
    }

    /// The partition with that role.
    pub fn get(&self, role: Role) -> Option<&Planned> {
        self.partitions.iter().find(|partition| partition.role == role)
    }

    /// Makes sure that this is what is on a disk already: the same partitions of the same type in the same places.
    ///
    /// # Errors
    /// [`LayoutError::Differs`].
    pub fn check_same(&self, path: &Path, table: Option<&Table>) -> Result<(), LayoutError> {
        let differs = |reason| Err(LayoutError::Differs { path: path.to_owned(), reason });
        let Some(table) = table else { return differs("it has no partition table".to_owned()) };
        if table.kind != self.kind {
            return differs(format!("it has an {:?} table where {:?} is wanted", table.kind, self.kind));
        }
        for planned in &self.partitions {
            let Planned { number, start_bytes, size_bytes, kind, .. } = *planned;
            let name = planned.role.row().0;
            let Some(found) = table.partitions.iter().find(|partition| partition.number == number) else {
                return differs(format!("it has no partition {number} for {name}"));
            };
            if (found.start_bytes, found.size_bytes) != (start_bytes, size_bytes) {
                return differs(format!(
                    "partition {number} has {} bytes at {} where {name} is to have {size_bytes} at {start_bytes}",
                    found.size_bytes, found.start_bytes
                ));
            }
            if found.kind != kind {
                return differs(format!("partition {number} is of type {:?}, not {kind:?} for {name}", found.kind));
            }
        }
        if table.partitions.len() != self.partitions.len() {
            let (has, wanted) = (table.partitions.len(), self.partitions.len());
            return differs(format!("it has {has} partitions where {wanted} are wanted"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Partition;

    const GIB: u64 = 1 << 30;

    fn wanted(kind: TableKind, uefi: bool) -> Wanted {
        let config_drive_bytes = 3 * MIB + 1;
        Wanted {
            kind,
            uefi,
            power: false,
            esp_mib: 550,
            bios_boot_mib: 1,
            ephemeral_mib: 100,
            swap_mib: 50,
            config_drive_bytes,
            root_mib: 1000,
        }
    }

    fn plan(wanted: &Wanted, disk_bytes: u64, sector: u32) -> Result<Layout, LayoutError> {
        Layout::plan(wanted, Path::new("/dev/nvme0n1"), disk_bytes, sector)
    }

    #[test]
    fn each_firmware_gets_its_partitions_in_order() {
        use Role::{BiosBoot, ConfigDrive, Ephemeral, Esp, Prep, Root, Swap};
        use TableKind::{Gpt, Mbr};
        let rest = |first: u64| {
            vec![
                (Ephemeral, first, 100),
                (Swap, first + 100, 50),
                (ConfigDrive, first + 150, 4),
                (Root, first + 154, 1000),
            ]
        };
        let with = |role, size: u64| [vec![(role, 1, size)], rest(1 + size)].concat();
        let power = |kind| Wanted { power: true, ..wanted(kind, false) };
        let few = Wanted { ephemeral_mib: 0, swap_mib: 0, config_drive_bytes: 0, ..wanted(Mbr, false) };
        for (wanted, want) in [
            (wanted(Gpt, true), with(Esp, 550)),
            (wanted(Gpt, false), with(BiosBoot, 1)),
            (wanted(Mbr, false), rest(1)),
            (power(Gpt), with(Prep, 8)),
            (few, vec![(Root, 1, 1000)]),
            (Wanted { esp_mib: 200, ..wanted(Gpt, true) }, with(Esp, 200)),
            (Wanted { bios_boot_mib: 0, ..wanted(Gpt, false) }, with(BiosBoot, 1)),
        ] {
            for sector in [512, 4096] {
                let layout = plan(&wanted, 8 * GIB, sector).unwrap();
                let got: Vec<_> = layout
                    .partitions
                    .iter()
                    .map(|part| (part.role, part.start_bytes / MIB, part.size_bytes / MIB))
                    .collect();
                assert_eq!(got, want, "{wanted:?}");
                assert!(layout.partitions.iter().all(|part| part.start_bytes % MIB == 0));
                let numbers: Vec<u32> = layout.partitions.iter().map(|part| part.number).collect();
                assert_eq!(numbers, (1..=u32::try_from(want.len()).unwrap()).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn types_and_boot_flags_are_those_of_the_label() {
        let gpt = plan(&wanted(TableKind::Gpt, true), 8 * GIB, 512).unwrap();
        let types: Vec<PartitionType> = gpt.partitions.iter().map(|part| part.kind).collect();
        let (esp, swap, data) = (Guid::EFI_SYSTEM, Guid::LINUX_SWAP, Guid::LINUX_DATA);
        assert_eq!(types, [esp, data, swap, data, data].map(PartitionType::Gpt));
        assert!(gpt.partitions.iter().all(|part| !part.active));
        let bios = plan(&wanted(TableKind::Gpt, false), 8 * GIB, 512).unwrap();
        assert_eq!(bios.partitions[0].kind, PartitionType::Gpt(Guid::BIOS_BOOT));
        let mbr = plan(&wanted(TableKind::Mbr, false), 8 * GIB, 512).unwrap();
        let types: Vec<PartitionType> = mbr.partitions.iter().map(|part| part.kind).collect();
        assert_eq!(types, [0x83, 0x82, 0x83, 0x83].map(PartitionType::Mbr));
        let active: Vec<bool> = mbr.partitions.iter().map(|part| part.active).collect();
        assert_eq!(active, [false, false, false, true]);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_numbers() {
        let gpt = wanted(TableKind::Gpt, true);
        // 1 + 550 + 100 + 50 + 4 + 1000 MiB, and the backup table.
        for (disk_bytes, sector, fits) in [
            (1705 * MIB, 512, false),
            (1705 * MIB + 33 * 512 - 1, 512, false),
            (1705 * MIB + 33 * 512, 512, true),
            (1705 * MIB + 16384 + 4096, 4096, true),
            (1705 * MIB + 33 * 512, 4096, false),
        ] {
            match plan(&gpt, disk_bytes, sector) {
                Ok(_) => assert!(fits, "{disk_bytes} {sector}"),
                Err(error) => {
                    assert!(!fits, "{error}");
                    let text = error.to_string();
                    for word in ["/dev/nvme0n1", "1705 MiB", "EFI system partition 550", "root 1000", "1704 MiB"] {
                        assert!(text.contains(word), "no {word} in {text}");
                    }
                }
            }
        }
        let mbr = wanted(TableKind::Mbr, false);
        assert!(plan(&mbr, 1155 * MIB, 512).is_ok());
        let huge = Wanted { root_mib: 2 << 20, ..mbr };
        assert!(plan(&huge, 8 << 40, 512).unwrap_err().to_string().contains("2097151 MiB of the disk"));
        assert!(plan(&huge, 8 << 40, 4096).is_ok());
        let absurd = Wanted { root_mib: u64::MAX, swap_mib: u64::MAX, ..gpt };
        assert!(matches!(plan(&absurd, 8 * GIB, 512), Err(LayoutError::NoFit { .. })));
        assert!(matches!(plan(&Wanted { root_mib: 0, ..gpt }, 8 * GIB, 512), Err(LayoutError::Root { .. })));
        let five = Wanted { power: true, ..mbr };
        assert!(plan(&five, 8 * GIB, 512).unwrap_err().to_string().contains("5 partitions are needed (PReP boot 8"));
    }

    #[test]
    fn only_the_same_partitions_are_kept() {
        let layout = plan(&wanted(TableKind::Gpt, true), 8 * GIB, 512).unwrap();
        let partition = |part: &Planned| Partition {
            number: part.number,
            start_bytes: part.start_bytes,
            size_bytes: part.size_bytes,
            kind: part.kind,
            guid: None,
            name: "primary".to_owned(),
        };
        let same = Table { kind: TableKind::Gpt, partitions: layout.partitions.iter().map(partition).collect() };
        let check = |table: Option<&Table>| layout.check_same(Path::new("/dev/sda"), table);
        check(Some(&same)).unwrap();
        let changed = |change: &dyn Fn(&mut Table)| {
            let mut table = same.clone();
            change(&mut table);
            check(Some(&table)).unwrap_err().to_string()
        };
        for (error, want) in [
            (check(None).unwrap_err().to_string(), "it has no partition table"),
            (changed(&|table| table.kind = TableKind::Mbr), "an Mbr table where Gpt is wanted"),
            (changed(&|table| drop(table.partitions.pop())), "no partition 5 for root"),
            (changed(&|table| table.partitions[1].size_bytes += MIB), "partition 2 has 105906176 bytes at 577765376"),
            (changed(&|table| table.partitions[2].start_bytes -= 512), "where swap is to have 52428800 at 682622976"),
            (changed(&|table| table.partitions[2].kind = table.partitions[1].kind), "partition 3 is of type"),
            (changed(&|table| table.partitions.push(partition(&layout.partitions[0]))), "6 partitions where 5"),
        ] {
            assert!(error.contains(want), "no {want:?} in {error}");
        }
    }
}
