//! Where things lie on the disk: a pure plan, and writing it as a GPT (UEFI specification 2.10, section 5.3) or an MBR.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};

use anyhow::{Context as _, Result, anyhow, bail};
use uuid::Uuid;

/// Bytes in a MiB.
pub(super) const MIB: u64 = 1 << 20;
const ESP_BYTES: u64 = 48 * MIB;
const SMALLEST_ROOT_BYTES: u64 = 80 * MIB;
/// Left free at the end, so that a 64 MiB configdrive partition and the backup GPT fit even on a disk no larger than the image.
const TAIL_BYTES: u64 = 66 * MIB;

const DISK_GUID: Uuid = Uuid::from_u128(0xfe44_1c00_0000_4000_8000_0000_0000_0001);
const MBR_DISK_SIGNATURE: [u8; 4] = [0x1c, 0x41, 0xfe, 0x01];
/// Linux root file system type in an MBR.
const MBR_TYPE_LINUX: u8 = 0x83;

/// How the disk is labelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskLabel {
    /// GPT with an ESP and a BIOS boot partition: starts under UEFI and under BIOS.
    Gpt,
    /// MBR: starts under BIOS only.
    Mbr,
}

/// What a partition is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// GRUB's core image.
    BiosBoot,
    /// EFI system partition.
    Esp,
    /// Root file system.
    Root,
}

impl Role {
    fn type_guid(self) -> Uuid {
        match self {
            Self::BiosBoot => Uuid::from_u128(0x2168_6148_6449_6e6f_744e_6565_6445_4649),
            Self::Esp => Uuid::from_u128(0xc12a_7328_f81f_11d2_ba4b_00a0_c93e_c93b),
            // Linux root (x86-64) of the Discoverable Partitions Specification.
            Self::Root => Uuid::from_u128(0x4f68_bce3_e8cd_4db1_96e7_fbca_f984_b709),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::BiosBoot => "bios-boot",
            Self::Esp => "esp",
            Self::Root => "root",
        }
    }
}

/// One partition. Its number is its place in [`Layout::partitions`], from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Partition {
    pub(super) role: Role,
    pub(super) start_bytes: u64,
    pub(super) size_bytes: u64,
}

/// The plan of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) label: DiskLabel,
    pub(super) disk_bytes: u64,
    pub(super) sector_bytes: u32,
    pub(super) partitions: Vec<Partition>,
}

impl Layout {
    /// Plans a disk of `disk_bytes` with sectors of `sector_bytes` (512 or 4096; BIOS starts from 512 only).
    pub(super) fn plan(label: DiskLabel, disk_bytes: u64, sector_bytes: u32) -> Result<Self> {
        if !matches!(sector_bytes, 512 | 4096) {
            bail!("sectors of {sector_bytes} bytes: only 512 and 4096 exist");
        }
        if label == DiskLabel::Mbr && sector_bytes != 512 {
            bail!("an MBR image is for BIOS, which starts from disks with 512 byte sectors only");
        }
        if !disk_bytes.is_multiple_of(MIB) {
            bail!("a virtual size of {disk_bytes} bytes is no whole number of MiB");
        }
        let mut partitions = Vec::new();
        let mut next = MIB;
        let mut add = |role, size_bytes| {
            partitions.push(Partition { role, start_bytes: next, size_bytes });
            next += size_bytes;
        };
        if label == DiskLabel::Gpt {
            if sector_bytes == 512 {
                add(Role::BiosBoot, MIB);
            }
            add(Role::Esp, ESP_BYTES);
        }
        let root_bytes = disk_bytes.saturating_sub(TAIL_BYTES).saturating_sub(next);
        if root_bytes < SMALLEST_ROOT_BYTES {
            bail!(
                "a virtual size of {disk_bytes} bytes is too small: {} are needed",
                next + SMALLEST_ROOT_BYTES + TAIL_BYTES
            );
        }
        partitions.push(Partition { role: Role::Root, start_bytes: next, size_bytes: root_bytes });
        Ok(Self { label, disk_bytes, sector_bytes, partitions })
    }

    /// The partition of that role with its number.
    pub(super) fn partition(&self, role: Role) -> Option<(u32, &Partition)> {
        (1u32..).zip(&self.partitions).find(|(_, partition)| partition.role == role)
    }

    /// The root partition with its number.
    pub(super) fn root(&self) -> Result<(u32, &Partition)> {
        self.partition(Role::Root).ok_or_else(|| anyhow!("the layout has no root partition"))
    }

    /// Writes the partition table into a file of `disk_bytes`. `boot_code` (at most 440 bytes) goes to the first sector.
    pub(super) fn write_table(&self, disk: &mut File, boot_code: &[u8]) -> Result<()> {
        match self.label {
            DiskLabel::Gpt => self.write_gpt(disk).context("writing the GPT")?,
            DiskLabel::Mbr => self.write_mbr(disk).context("writing the MBR")?,
        }
        if boot_code.len() > 440 {
            bail!("boot code of {} bytes does not fit the first sector", boot_code.len());
        }
        disk.seek(SeekFrom::Start(0)).and_then(|_| disk.write_all(boot_code)).context("writing the boot code")
    }

    fn write_gpt<D: Read + Write + Seek>(&self, disk: &mut D) -> Result<()> {
        let sector = u64::from(self.sector_bytes);
        let mut gpt = gptman::GPT::new_from(disk, sector, DISK_GUID.to_bytes_le())?;
        for (number, partition) in (1u32..).zip(&self.partitions) {
            gpt[number] = gptman::GPTPartitionEntry {
                partition_type_guid: partition.role.type_guid().to_bytes_le(),
                unique_partition_guid: Uuid::from_u128(DISK_GUID.as_u128() | u128::from(number) << 32).to_bytes_le(),
                starting_lba: partition.start_bytes / sector,
                ending_lba: (partition.start_bytes + partition.size_bytes) / sector - 1,
                attribute_bits: 0,
                partition_name: partition.role.name().into(),
            };
        }
        gptman::GPT::write_protective_mbr_into(disk, sector)?;
        gpt.write_into(disk)?;
        Ok(())
    }

    fn write_mbr<D: Read + Write + Seek>(&self, disk: &mut D) -> Result<()> {
        let mut mbr = mbrman::MBR::new_from(disk, self.sector_bytes, MBR_DISK_SIGNATURE)?;
        for (number, partition) in (1usize..).zip(&self.partitions) {
            let sectors = |bytes: u64| {
                u32::try_from(bytes / u64::from(self.sector_bytes)).context("the disk is too large for an MBR")
            };
            mbr[number] = mbrman::MBRPartitionEntry {
                boot: mbrman::BOOT_ACTIVE,
                first_chs: mbrman::CHS::empty(),
                sys: MBR_TYPE_LINUX,
                last_chs: mbrman::CHS::empty(),
                starting_lba: sectors(partition.start_bytes)?,
                sectors: sectors(partition.size_bytes)?,
            };
        }
        mbr.write_into(disk)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roles(layout: &Layout) -> Vec<(Role, u64, u64)> {
        layout.partitions.iter().map(|p| (p.role, p.start_bytes / MIB, p.size_bytes / MIB)).collect()
    }

    #[test]
    fn plans_have_the_partitions_their_firmware_needs() {
        let cases = [
            ((DiskLabel::Gpt, 512), vec![(Role::BiosBoot, 1, 1), (Role::Esp, 2, 48), (Role::Root, 50, 908)]),
            ((DiskLabel::Gpt, 4096), vec![(Role::Esp, 1, 48), (Role::Root, 49, 909)]),
            ((DiskLabel::Mbr, 512), vec![(Role::Root, 1, 957)]),
        ];
        for ((label, sector), expected) in cases {
            let layout = Layout::plan(label, 1024 * MIB, sector).unwrap();
            assert_eq!(roles(&layout), expected, "{label:?} {sector}");
        }
    }

    #[test]
    fn impossible_disks_are_refused_with_the_reason() {
        let cases = [
            (DiskLabel::Gpt, 1024 * MIB, 520, "520"),
            (DiskLabel::Mbr, 1024 * MIB, 4096, "BIOS"),
            (DiskLabel::Gpt, 1024 * MIB + 1, 512, "whole number"),
            (DiskLabel::Gpt, 100 * MIB, 512, "too small"),
            (DiskLabel::Gpt, 0, 512, "too small"),
        ];
        for (label, disk, sector, reason) in cases {
            let error = Layout::plan(label, disk, sector).unwrap_err().to_string();
            assert!(error.contains(reason), "{label:?} {disk} {sector}: {error}");
        }
    }

    #[test]
    fn written_gpt_reads_back_and_keeps_boot_code() {
        for sector in [512, 4096] {
            let layout = Layout::plan(DiskLabel::Gpt, 256 * MIB, sector).unwrap();
            let mut disk = tempfile::tempfile().unwrap();
            disk.set_len(layout.disk_bytes).unwrap();
            layout.write_table(&mut disk, &[0xEB; 440]).unwrap();
            let gpt = gptman::GPT::find_from(&mut disk).unwrap();
            assert_eq!(gpt.sector_size, u64::from(sector));
            let names: Vec<String> =
                gpt.iter().filter(|(_, p)| p.is_used()).map(|(_, p)| p.partition_name.to_string()).collect();
            let expected: Vec<&str> = layout.partitions.iter().map(|p| p.role.name()).collect();
            assert_eq!(names, expected, "sector {sector}");
            let mut first = [0; 512];
            disk.seek(SeekFrom::Start(0)).unwrap();
            disk.read_exact(&mut first).unwrap();
            assert_eq!(first[..440], [0xEB; 440]);
            assert_eq!((first[450], &first[510..]), (0xEE, &[0x55, 0xAA][..]), "protective MBR");
        }
    }

    #[test]
    fn written_mbr_has_one_active_linux_partition() {
        let layout = Layout::plan(DiskLabel::Mbr, 256 * MIB, 512).unwrap();
        let mut disk = tempfile::tempfile().unwrap();
        disk.set_len(layout.disk_bytes).unwrap();
        layout.write_table(&mut disk, &[]).unwrap();
        let mbr = mbrman::MBR::read_from(&mut disk, 512).unwrap();
        assert_eq!((mbr[1].sys, mbr[1].boot, mbr[1].starting_lba), (MBR_TYPE_LINUX, mbrman::BOOT_ACTIVE, 2048));
        assert!(mbr[2].is_unused());
    }
}
