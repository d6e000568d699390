//! Where the partitions of arrays go, and the arrays themselves: a pure plan.
//!
//! Places are those of the reference agent, so that both see each other's arrays in the same place: room for a boot
//! loader first, then the volumes in order, `MAX` last (pitfall D11). The first volume of a disk ends at its size counted
//! from the beginning of the disk, hence is smaller than that by the room before it; the next begins where it ends.

use std::path::PathBuf;

use super::{Array, Size, Volume};
use crate::table::{Guid, Partition, PartitionType, TableKind};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// What is left free at the end of a disk: the backup of a GPT is in there.
const TAIL_BYTES: u64 = MIB;
/// Backup of a GPT: 128 entries of 128 bytes, and its header.
const BACKUP_BYTES: u64 = 128 * 128;
/// An MBR counts sectors in 32 bits.
const MBR_SECTORS: u64 = u32::MAX as u64;
/// What the reference agent's tool calls partitions on a GPT.
const NAME: &str = "primary";
/// Size of an EFI system partition on each disk of an array.
pub const ESP_MIB: u64 = 550;
/// Metadata of volumes.
const METADATA: &str = "1";

/// A disk that arrays are made on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaidDisk {
    /// Device path, such as `/dev/sda`.
    pub name: String,
    /// Size.
    pub size_bytes: u64,
    /// Logical sector in bytes.
    pub sector: u32,
    /// Partitions that stay, because arrays on them are kept; empty for a disk that gets a new table.
    pub kept: Vec<Partition>,
}

/// What is wanted.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// GPT or MBR.
    pub kind: TableKind,
    /// Whether the machine boots by UEFI.
    pub uefi: bool,
    /// Volumes in the configuration's order, each with its disks by their index.
    pub volumes: &'a [(Volume, Vec<usize>)],
    /// The disks.
    pub disks: &'a [RaidDisk],
    /// Numbers of md devices in use.
    pub taken: &'a [u32],
}

/// What is to be done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// New partitions of each disk that gets any, by the disk's index.
    pub partitions: Vec<(usize, Vec<Partition>)>,
    /// Arrays in the order in which they are made.
    pub arrays: Vec<Array>,
}

/// There is no room for what is wanted. Nothing has been written.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PlanError {
    /// A partition does not fit.
    #[error(
        "Failed to create partitions on {disk}: the one of volume {volume} would be from {start_bytes} to {end_bytes}, of \
         the disk's {disk_bytes} bytes {usable_bytes} can be used"
    )]
    NoFit {
        /// Disk.
        disk: String,
        /// Volume.
        volume: String,
        /// Where it would begin.
        start_bytes: u64,
        /// Where it would end.
        end_bytes: u64,
        /// Size of the disk.
        disk_bytes: u64,
        /// Up to where there may be partitions.
        usable_bytes: u64,
    },
    /// A volume has too few disks.
    #[error("RAID level {level} of volume {volume} needs at least {wanted} disks, and there are {found}: {disks}")]
    TooFewDisks {
        /// Volume.
        volume: String,
        /// Level in Ironic's words.
        level: &'static str,
        /// How many it needs.
        wanted: usize,
        /// How many it has.
        found: usize,
        /// Which.
        disks: String,
    },
    /// There is no number left for a partition or an array.
    #[error("{object} has no number left for volume {volume}")]
    NoNumber {
        /// The disk, or the md driver.
        object: PathBuf,
        /// Volume.
        volume: String,
    },
}

/// Where partitions may begin: behind the room for a boot loader.
fn first_bytes(request: &Request<'_>) -> u64 {
    match (request.uefi, request.kind) {
        (true, _) => (ESP_MIB + 1) * MIB,
        (false, TableKind::Gpt) => 8 * MIB,
        (false, TableKind::Mbr) => MIB,
    }
}

fn usable_bytes(disk: &RaidDisk, kind: TableKind) -> u64 {
    match kind {
        TableKind::Gpt => disk.size_bytes.saturating_sub(BACKUP_BYTES + u64::from(disk.sector)),
        TableKind::Mbr => disk.size_bytes.min(MBR_SECTORS * u64::from(disk.sector)),
    }
}

/// The state of a disk while it fills.
struct Filling<'a> {
    disk: &'a RaidDisk,
    new: Vec<Partition>,
    /// Where the next partition begins.
    next_bytes: u64,
}

impl<'a> Filling<'a> {
    fn new(disk: &'a RaidDisk, first_bytes: u64) -> Self {
        // Behind all that stays.
        let end = disk.kept.iter().map(|kept| kept.start_bytes + kept.size_bytes).max().unwrap_or(0);
        Self { disk, new: Vec::new(), next_bytes: first_bytes.max(end.next_multiple_of(MIB)) }
    }

    fn is_fresh(&self) -> bool {
        self.disk.kept.is_empty() && self.new.is_empty()
    }

    /// The path of a new partition for a volume.
    fn add(&mut self, volume: &str, size: Size, kind: TableKind) -> Result<String, PlanError> {
        let disk = self.disk;
        let usable_bytes = usable_bytes(disk, kind);
        let start_bytes = self.next_bytes;
        let end_bytes = match size {
            Size::Max => disk.size_bytes.saturating_sub(TAIL_BYTES).min(usable_bytes) / MIB * MIB,
            Size::Gib(gib) if self.is_fresh() => gib.saturating_mul(GIB),
            Size::Gib(gib) => start_bytes.saturating_add(gib.saturating_mul(GIB)),
        };
        if end_bytes <= start_bytes || end_bytes > usable_bytes {
            let (disk_bytes, volume) = (disk.size_bytes, volume.to_owned());
            return Err(PlanError::NoFit {
                disk: disk.name.clone(),
                volume,
                start_bytes,
                end_bytes,
                disk_bytes,
                usable_bytes,
            });
        }
        let is_free = |number: &u32| disk.kept.iter().chain(&self.new).all(|taken| taken.number != *number);
        let last = if kind == TableKind::Mbr { 4 } else { 128 };
        let number = (1..=last)
            .find(is_free)
            .ok_or_else(|| PlanError::NoNumber { object: PathBuf::from(&disk.name), volume: volume.to_owned() })?;
        let kind = match kind {
            TableKind::Gpt => PartitionType::Gpt(Guid::LINUX_DATA),
            TableKind::Mbr => PartitionType::Mbr(0x83),
        };
        let size_bytes = end_bytes - start_bytes;
        self.new.push(Partition { number, start_bytes, size_bytes, kind, guid: None, name: NAME.to_owned() });
        self.next_bytes = end_bytes;
        Ok(partition_name(&disk.name, number))
    }
}

/// Device path of a partition.
pub fn partition_name(disk: &str, number: u32) -> String {
    crate::table::partition_path(std::path::Path::new(disk), number).to_string_lossy().into_owned()
}

impl Plan {
    /// Plans partitions and arrays.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn of(request: &Request<'_>) -> Result<Self, PlanError> {
        let first = first_bytes(request);
        let mut disks: Vec<Filling<'_>> = request.disks.iter().map(|disk| Filling::new(disk, first)).collect();
        let (last, sized): (Vec<_>, Vec<_>) = request.volumes.iter().partition(|(volume, _)| volume.size == Size::Max);
        let mut numbers = (0..128_u32).filter(|number| !request.taken.contains(number));
        let mut arrays = Vec::new();
        for (index, (volume, indices)) in sized.into_iter().chain(last).enumerate() {
            let name = volume.name.clone().unwrap_or_else(|| format!("md{index}"));
            let wanted = volume.level.fewest_disks();
            if indices.len() < wanted {
                let used: Vec<&str> =
                    indices.iter().filter_map(|index| Some(&*request.disks.get(*index)?.name)).collect();
                let (level, found, disks) = (volume.level.ironic(), indices.len(), used.join(", "));
                return Err(PlanError::TooFewDisks { volume: name, level, wanted, found, disks });
            }
            let mut members = Vec::new();
            for index in indices {
                let Some(disk) = disks.get_mut(*index) else { continue };
                members.push(disk.add(&name, volume.size, request.kind)?);
            }
            let number = numbers.next();
            let number =
                number.ok_or_else(|| PlanError::NoNumber { object: "/dev/md".into(), volume: name.clone() })?;
            let device = format!("/dev/md{number}");
            arrays.push(Array { device, name, level: volume.level, metadata: METADATA, members });
        }
        let partitions = disks.into_iter().map(|disk| disk.new).enumerate().filter(|(_, new)| !new.is_empty());
        Ok(Self { partitions: partitions.collect(), arrays })
    }
}

/// A place for a partition of `size_bytes` between others, as near to the beginning of the disk as can be; `None` when
/// there is no such gap.
pub fn gap(disk_bytes: u64, sector: u32, taken: &[Partition], size_bytes: u64) -> Option<u64> {
    let usable = disk_bytes.saturating_sub(BACKUP_BYTES + u64::from(sector));
    let ends = taken.iter().map(|partition| (partition.start_bytes + partition.size_bytes).next_multiple_of(MIB));
    let mut starts: Vec<u64> = ends.chain([MIB]).filter(|start| *start >= MIB).collect();
    starts.sort_unstable();
    starts.into_iter().find(|start| {
        let end = start.saturating_add(size_bytes);
        let is_clear = |other: &Partition| {
            other.start_bytes >= end || other.start_bytes.saturating_add(other.size_bytes) <= *start
        };
        end <= usable && taken.iter().all(is_clear)
    })
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    fn disk(name: &str, gib: u64) -> RaidDisk {
        RaidDisk { name: name.to_owned(), size_bytes: gib * GIB, sector: 512, kept: Vec::new() }
    }

    fn volume(level: Level, size: Size, name: Option<&str>) -> Volume {
        Volume { level, size, name: name.map(str::to_owned), is_root: None, physical_disks: None }
    }

    fn part(number: u32, start_mib: u64, end_mib: u64) -> Partition {
        Partition {
            number,
            start_bytes: start_mib * MIB,
            size_bytes: (end_mib - start_mib) * MIB,
            kind: PartitionType::Gpt(Guid::LINUX_DATA),
            guid: None,
            name: "primary".to_owned(),
        }
    }

    /// Number, first and last MiB of a disk's new partitions.
    type Places = Vec<(u32, u64, u64)>;

    fn places(plan: &Plan, disk: usize) -> Places {
        let parts = plan.partitions.iter().find(|(index, _)| *index == disk).map(|(_, parts)| parts.as_slice());
        let place = |part: &Partition| {
            assert_eq!((part.start_bytes % MIB, part.size_bytes % MIB), (0, 0), "{part:?}");
            (part.number, part.start_bytes / MIB, (part.start_bytes + part.size_bytes) / MIB)
        };
        parts.unwrap_or_default().iter().map(place).collect()
    }

    #[test]
    fn each_firmware_and_table_has_its_places_and_calls() {
        use TableKind::{Gpt, Mbr};
        let disks = [disk("/dev/sda", 10), disk("/dev/nvme0n1", 12)];
        let all = vec![0, 1];
        let root = (volume(Level::Raid1, Size::Gib(4), Some("root")), all.clone());
        let data = (volume(Level::Raid0, Size::Max, None), all.clone());
        let small = (volume(Level::Raid0, Size::Gib(3), None), all);
        let create = |number, level, name: &str, part| {
            format!(
                "mdadm --create /dev/md{number} --force --run --metadata=1 --level {level} --name {name} --raid-devices 2 \
                 /dev/sda{part} /dev/nvme0n1p{part}"
            )
        };
        let root_call = create(0, "1", "root", 1);
        let both = vec![root_call.clone(), create(1, "0", "md1", 2)];
        // MAX comes last, whatever the order in the configuration.
        let turned = vec![create(0, "0", "md0", 1), create(1, "1", "root", 2)];
        let max_root = (Volume { size: Size::Max, ..root.0.clone() }, root.1.clone());
        for (kind, uefi, volumes, sda, nvme, calls) in [
            (Gpt, true, vec![root.clone()], vec![(1, 551, 4096)], vec![(1, 551, 4096)], vec![root_call.clone()]),
            (Gpt, false, vec![root.clone()], vec![(1, 8, 4096)], vec![(1, 8, 4096)], vec![root_call.clone()]),
            (Mbr, false, vec![root.clone()], vec![(1, 1, 4096)], vec![(1, 1, 4096)], vec![root_call]),
            (
                Gpt,
                true,
                vec![root.clone(), data],
                vec![(1, 551, 4096), (2, 4096, 10239)],
                vec![(1, 551, 4096), (2, 4096, 12287)],
                both.clone(),
            ),
            (
                Gpt,
                true,
                vec![root, small.clone()],
                vec![(1, 551, 4096), (2, 4096, 7168)],
                vec![(1, 551, 4096), (2, 4096, 7168)],
                both,
            ),
            (
                Gpt,
                true,
                vec![max_root, small],
                vec![(1, 551, 3072), (2, 3072, 10239)],
                vec![(1, 551, 3072), (2, 3072, 12287)],
                turned,
            ),
        ] {
            let request = Request { kind, uefi, volumes: &volumes, disks: &disks, taken: &[] };
            let plan = Plan::of(&request).unwrap();
            assert_eq!((places(&plan, 0), places(&plan, 1)), (sda, nvme), "{request:?}");
            let made: Vec<String> = plan.arrays.iter().map(|array| array.create().to_string()).collect();
            assert_eq!(made, calls, "{request:?}");
        }
    }

    #[test]
    fn volumes_on_different_disks_each_begin_at_the_beginning() {
        let disks = [disk("/dev/sda", 10), disk("/dev/sdb", 10), disk("/dev/sdc", 10), disk("/dev/sdd", 10)];
        let volumes = [
            (volume(Level::Raid1, Size::Gib(4), Some("root")), vec![0, 1]),
            (volume(Level::Raid10, Size::Gib(2), Some("data")), vec![2, 3]),
        ];
        let request = Request { kind: TableKind::Gpt, uefi: true, volumes: &volumes, disks: &disks, taken: &[0, 2] };
        let plan = Plan::of(&request).unwrap();
        assert_eq!((places(&plan, 1), places(&plan, 3)), (vec![(1, 551, 4096)], vec![(1, 551, 2048)]));
        let arrays: Vec<_> = plan.arrays.iter().map(|array| (array.device.as_str(), array.members.join(" "))).collect();
        let want = [("/dev/md1", "/dev/sda1 /dev/sdb1".to_owned()), ("/dev/md3", "/dev/sdc1 /dev/sdd1".to_owned())];
        assert_eq!(arrays, want);
    }

    #[test]
    fn partitions_that_stay_are_gone_around() {
        let mut disks = [disk("/dev/sda", 10), disk("/dev/sdb", 10)];
        for disk in &mut disks {
            disk.kept = vec![part(1, 551, 4096), part(3, 1, 551)];
        }
        let volumes = [(volume(Level::Raid1, Size::Gib(2), Some("data")), vec![0, 1])];
        let request = Request { kind: TableKind::Gpt, uefi: true, volumes: &volumes, disks: &disks, taken: &[127] };
        let plan = Plan::of(&request).unwrap();
        assert_eq!(places(&plan, 0), [(2, 4096, 6144)]);
        assert_eq!(plan.arrays[0].members, ["/dev/sda2", "/dev/sdb2"]);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_numbers() {
        let large = RaidDisk { size_bytes: 3 << 40, ..disk("/dev/sda", 0) };
        let two = |level, size| [(volume(level, size, Some("root")), vec![0, 1])];
        let (ten, one) = ([disk("/dev/sda", 10), disk("/dev/sdb", 10)], [disk("/dev/sda", 10)]);
        let huge = [large.clone(), RaidDisk { name: "/dev/sdb".into(), ..large }];
        for (disks, volumes, kind, want) in [
            (
                &ten[..],
                two(Level::Raid1, Size::Gib(10)),
                TableKind::Gpt,
                "Failed to create partitions on /dev/sda: the one of volume root would be from 577765376 to 10737418240, of \
                 the disk's 10737418240 bytes 10737401344 can be used",
            ),
            (&huge, two(Level::Raid1, Size::Gib(2048)), TableKind::Mbr, "to 2199023255552"),
            (&ten, two(Level::Raid6, Size::Max), TableKind::Gpt, "RAID level 6 of volume root needs at least 4 disks"),
            (
                &one,
                [(volume(Level::Raid1, Size::Max, Some("root")), vec![0])],
                TableKind::Gpt,
                "needs at least 2 disks, and there are 1: /dev/sda",
            ),
        ] {
            let request = Request { kind, uefi: kind == TableKind::Gpt, volumes: &volumes, disks, taken: &[] };
            let error = Plan::of(&request).unwrap_err().to_string();
            assert!(error.contains(want), "{want:?} not in {error:?}");
        }
        let tiny = [RaidDisk { size_bytes: 551 * MIB, ..disk("/dev/sda", 0) }; 1];
        let volumes = [(volume(Level::Raid1, Size::Max, None), vec![0, 0])];
        let request = Request { kind: TableKind::Gpt, uefi: true, volumes: &volumes, disks: &tiny, taken: &[] };
        assert!(matches!(Plan::of(&request), Err(PlanError::NoFit { .. })));
        let taken: Vec<u32> = (0..128).collect();
        let volumes = two(Level::Raid1, Size::Max);
        let request = Request { kind: TableKind::Gpt, uefi: true, volumes: &volumes, disks: &ten, taken: &taken };
        assert!(matches!(Plan::of(&request), Err(PlanError::NoNumber { .. })));
    }

    #[test]
    fn a_gap_is_found_where_there_is_one() {
        for (taken, size, want) in [
            (vec![], 550, Some(1)),
            (vec![part(1, 551, 4096)], 550, Some(1)),
            (vec![part(1, 551, 4096)], 551, Some(4096)),
            (vec![part(1, 551, 4096), part(3, 1, 551)], 550, Some(4096)),
            (vec![part(1, 1, 551), part(2, 552, 10239)], 2, None),
            (vec![part(1, 1, 10239)], 1, None),
        ] {
            let found = gap(10 * GIB, 512, &taken, size * MIB).map(|start| start / MIB);
            assert_eq!(found, want, "{taken:?} {size}");
        }
    }
}
