//! The table of signatures: what identifies each format, and where.
//!
//! Names are those that `blkid` and `wipefs` show. Magics and places are facts of the formats; the list covers those of
//! libblkid 2.38, and copies and tables beyond it that other systems look for. Where libblkid also wants a checksum or a
//! version, the magic alone counts here: what is found is about to be wiped.

/// Where a magic is counted from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Bytes from the start.
    Start(u64),
    /// Bytes before the end.
    End(u64),
    /// md metadata 0.90: the last 64 KiB that are aligned to 64 KiB, and have as many behind them.
    Md090,
    /// md metadata 1.0: 8 KiB before the end, aligned to 4 KiB.
    Md10,
    /// The last whole block of 4 KiB, and bytes within it.
    LastBlock(u64),
}

impl Place {
    /// Bytes from the start of a device of this size; `None` where it does not have the place.
    pub(super) const fn of(self, size: u64) -> Option<u64> {
        match self {
            Self::Start(offset) => Some(offset),
            Self::End(back) => size.checked_sub(back),
            Self::Md090 => (size / 65536 * 65536).checked_sub(65536),
            Self::Md10 => match size.checked_sub(8192) {
                Some(offset) => Some(offset / 4096 * 4096),
                None => None,
            },
            Self::LastBlock(within) => match (size / 4096 * 4096).checked_sub(4096) {
                Some(offset) => Some(offset + within),
                None => None,
            },
        }
    }
}

/// A format: any of the magics at any of the places.
pub(super) struct Format {
    pub(super) name: &'static str,
    pub(super) places: &'static [Place],
    pub(super) magics: &'static [&'static [u8]],
}

const fn format(name: &'static str, places: &'static [Place], magics: &'static [&'static [u8]]) -> Format {
    Format { name, places, magics }
}

use Place::{End, LastBlock, Md10, Md090, Start};

const MD: &[u8] = &0xa92b_4efc_u32.to_le_bytes();
const MD_SWAPPED: &[u8] = &0xa92b_4efc_u32.to_be_bytes();
/// Superblocks of UFS in both byte orders: of version 1, with long names, secured, large, and of version 2.
const UFS: &[&[u8]] = &[
    &[0x54, 0x19, 0x01, 0x00],
    &[0x00, 0x01, 0x19, 0x54],
    &[0x14, 0x50, 0x09, 0x00],
    &[0x00, 0x09, 0x50, 0x14],
    &[0x95, 0x21, 0x61, 0x00],
    &[0x00, 0x61, 0x21, 0x95],
    &[0x12, 0x56, 0x19, 0x00],
    &[0x00, 0x19, 0x56, 0x12],
    &[0x94, 0x19, 0x23, 0x05],
    &[0x05, 0x23, 0x19, 0x94],
    &[0x19, 0x01, 0x54, 0x19],
    &[0x19, 0x54, 0x01, 0x19],
];

/// Where swap space has its signature: the end of the first page, for each size of pages.
const PAGE_ENDS: &[Place] = &[Start(4086), Start(8182), Start(16374), Start(32758), Start(65526)];

/// Name, places and magics of each format.
pub(super) const FORMATS: &[Format] = &[
    // Partition tables.
    format("gpt", &[Start(512), Start(2048), Start(4096), End(512), End(2048), End(4096)], &[b"EFI PART"]),
    format("dos", &[Start(510)], &[&[0x55, 0xaa]]),
    format("aix", &[Start(0)], &[&[0xc9, 0xc2, 0xd4, 0xc1]]),
    format("amiga", &[Start(0), Start(512), Start(1024)], &[b"RDSK"]),
    format("bsd", &[Start(64), Start(128), Start(512), Start(512 + 64)], &[b"WEV\x82", b"\x82VEW"]),
    format("ldm", &[Start(3072), End(512)], &[b"PRIVHEAD"]),
    format("mac", &[Start(0)], &[b"ER"]),
    format("mac", &[Start(512), Start(2048)], &[b"PM\0\0"]),
    format("sgi", &[Start(0)], &[&[0x0b, 0xe5, 0xa9, 0x41]]),
    format("solaris", &[Start(524)], &[&[0xee, 0xde, 0x0d, 0x60]]),
    format("sun", &[Start(508)], &[&[0xda, 0xbe]]),
    format("ultrix", &[Start(16312)], &[&[0x57, 0x29, 0x02, 0x00]]),
    format("unixware", &[Start(14852), Start(29174)], &[&[0x0d, 0x60, 0xe5, 0xca]]),
    // RAID.
    format("linux_raid_member", &[Start(0), Start(4096), Md10], &[MD]),
    format("linux_raid_member", &[Md090], &[MD, MD_SWAPPED]),
    format("adaptec_raid_member", &[End(512)], &[&[0x37, 0xfc, 0x4d, 0x1e]]),
    format("ddf_raid_member", &[End(512), End(257 * 512)], &[&[0xde, 0x11, 0xde, 0x11]]),
    format(
        "drbd",
        &[LastBlock(60)],
        &[&[0x83, 0x74, 0x02, 0x6b], &[0x83, 0x74, 0x02, 0x6c], &[0x83, 0x74, 0x02, 0x6d]],
    ),
    format("drbd", &[LastBlock(52), LastBlock(60), LastBlock(64)], &[&[0x83, 0x74, 0x02, 0x6d]]),
    format("drbdmanage_control_volume", &[Start(0)], &[b"$DRBDmgr=q"]),
    format("drbdproxy_datalog", &[Start(0)], &[b"DRBDdlh*"]),
    format("hpt37x_raid_member", &[Start(4640)], &[&[0xf0, 0x16, 0x78, 0x5a], &[0xfd, 0x16, 0x78, 0x5a]]),
    format("hpt45x_raid_member", &[End(11 * 512)], &[&[0xf3, 0x16, 0x78, 0x5a], &[0xfd, 0x16, 0x78, 0x5a]]),
    format("isw_raid_member", &[End(1024), End(8192)], &[b"Intel Raid ISM"]),
    format("jmicron_raid_member", &[End(512)], &[b"JM"]),
    format("lsi_mega_raid_member", &[End(512)], &[b"$XIDE$"]),
    format("nvidia_raid_member", &[End(1024)], &[b"NVIDIA"]),
    format(
        "promise_fasttrack_raid_member",
        &[
            End(16 * 512),
            End(63 * 512),
            End(255 * 512),
            End(256 * 512),
            End(399 * 512),
            End(591 * 512),
            End(675 * 512),
            End(735 * 512),
            End(911 * 512),
            End(951 * 512),
            End(974 * 512),
            End(991 * 512),
            End(3087 * 512),
        ],
        &[b"Promise Technology, Inc."],
    ),
    format("silicon_medley_raid_member", &[End(512 - 0x60)], &[&[0, 0, 0, 0x2f]]),
    format("via_raid_member", &[End(512)], &[&[0x55, 0xaa]]),
    // Volume managers, caches, encryption.
    format("LVM2_member", &[Start(24), Start(536), Start(1048), Start(1560)], &[b"LVM2 001"]),
    format("LVM1_member", &[Start(0)], &[b"HM\x01\0", b"HM\x02\0"]),
    format("DM_integrity", &[Start(0)], &[b"integrt\0"]),
    format("DM_snapshot_cow", &[Start(0)], &[b"SnAp"]),
    format("DM_verity_hash", &[Start(0)], &[b"verity\0\0"]),
    format("stratis", &[Start(516), Start(4612)], &[b"!Stra0tis\x86\xff\x02^\x41rh"]),
    format("vdo", &[Start(0)], &[b"dmvdo001"]),
    format("bcache", &[Start(4120)], &[&[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca]]),
    format("bcachefs", &[Start(4120)], &[&[0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9]]),
    format("crypto_LUKS", &[Start(0)], &[b"LUKS\xba\xbe"]),
    format(
        "crypto_LUKS",
        &[
            Start(0x4000),
            Start(0x8000),
            Start(0x1_0000),
            Start(0x2_0000),
            Start(0x4_0000),
            Start(0x8_0000),
            Start(0x10_0000),
            Start(0x20_0000),
            Start(0x40_0000),
        ],
        &[b"SKUL\xba\xbe"],
    ),
    format("BitLocker", &[Start(3)], &[b"-FVE-FS-"]),
    format("cs_fvault2", &[Start(88)], &[b"CS\x01\0", b"CS\x02\0"]),
    // File systems.
    format("apfs", &[Start(32)], &[b"NXSB"]),
    format("befs", &[Start(32), Start(544)], &[b"BFS1", b"1SFB"]),
    format("bfs", &[Start(0)], &[&[0xce, 0xfa, 0xad, 0x1b]]),
    format("btrfs", &[Start(0x1_0040), Start(0x400_0040), Start(0x40_0000_0040)], &[b"_BHRfS_M"]),
    format("btrfs", &[Start(64)], &[b"_BHRfS_M"]),
    format("ceph_bluestore", &[Start(0)], &[b"bluestore block device"]),
    format("cramfs", &[Start(0), Start(512)], &[&[0x45, 0x3d, 0xcd, 0x28], &[0x28, 0xcd, 0x3d, 0x45]]),
    format("erofs", &[Start(1024)], &[&[0xe2, 0xe1, 0xf5, 0xe0]]),
    format("exfat", &[Start(3)], &[b"EXFAT   "]),
    format("exfs", &[Start(0)], &[b"EXFS"]),
    format("ext", &[Start(1080)], &[&[0x53, 0xef]]),
    format("f2fs", &[Start(1024), Start(5120)], &[&[0x10, 0x20, 0xf5, 0xf2]]),
    format("gfs2", &[Start(0x1_0000)], &[&[0x01, 0x16, 0x19, 0x70]]),
    format("hfsplus", &[Start(1024), End(1024)], &[b"H+\0\x04", b"HX\0\x05"]),
    format("hfs", &[Start(1024), End(1024)], &[b"BD"]),
    format("hpfs", &[Start(8192)], &[&[0x49, 0xe8, 0x95, 0xf9]]),
    format("iso9660", &[Start(32769)], &[b"CD001"]),
    format("iso9660", &[Start(32777)], &[b"CDROM"]),
    format("jfs", &[Start(0x8000), Start(0xf000)], &[b"JFS1"]),
    format(
        "minix",
        &[Start(1040)],
        &[
            &[0x7f, 0x13],
            &[0x13, 0x7f],
            &[0x8f, 0x13],
            &[0x13, 0x8f],
            &[0x68, 0x24],
            &[0x24, 0x68],
            &[0x78, 0x24],
            &[0x24, 0x78],
        ],
    ),
    format("minix", &[Start(1048)], &[b"ZM", b"MZ"]),
    format("mpool", &[Start(0)], &[b"mpoolDev"]),
    format("nilfs2", &[Start(1030), End(4090)], &[&[0x34, 0x34]]),
    format("nss", &[Start(4096)], &[b"SPB5"]),
    format("ntfs", &[Start(3), End(509)], &[b"NTFS    "]),
    format("ocfs", &[Start(8192)], &[b"OracleCFS"]),
    format("ocfs2", &[Start(1024), Start(2048), Start(4096), Start(8192)], &[b"OCFSV2"]),
    format("oracleasm", &[Start(32)], &[b"ORCLDISK"]),
    format("ReFS", &[Start(0)], &[b"\0\0\0ReFS\0"]),
    format("reiser4", &[Start(0x1_0000)], &[b"ReIsEr4"]),
    format("reiserfs", &[Start(8212), Start(8244)], &[b"ReIsErFs"]),
    format("reiserfs", &[Start(65588)], &[b"ReIsErFs", b"ReIsEr2Fs", b"ReIsEr3Fs"]),
    format("romfs", &[Start(0)], &[b"-rom1fs-"]),
    format("squashfs", &[Start(0)], &[b"hsqs", b"sqsh"]),
    format("swap", PAGE_ENDS, &[b"SWAP-SPACE", b"SWAPSPACE2"]),
    format("swsuspend", PAGE_ENDS, &[b"S1SUSPEND", b"S2SUSPEND", b"ULSUSPEND", b"LINHIB0001"]),
    format("swsuspend", &[Start(0)], &[&[0xed, 0xc3, 0x02, 0xe9, 0x98, 0x56, 0xe5, 0x0c]]),
    format(
        "sysv",
        &[Start(0x1f8), Start(0x3f8), Start(0x13f8), Start(0x21f8), Start(0x25f8), Start(0x49f8)],
        &[&[0x20, 0x7e, 0x18, 0xfd], &[0xfd, 0x18, 0x7e, 0x20]],
    ),
    format("xenix", &[Start(2048)], &[b"+UD\0", b"\0DU+"]),
    format("ubi", &[Start(0)], &[b"UBI#"]),
    format("ubifs", &[Start(0)], &[&[0x31, 0x18, 0x10, 0x06]]),
    format("udf", &[Start(32769), Start(0x9001)], &[b"BEA01", b"BOOT2", b"CDW02", b"NSR02", b"NSR03", b"TEA01"]),
    format("ufs", &[Start(0x55c), Start(0x255c), Start(0x1_055c), Start(0x4_055c)], UFS),
    format("vfat", &[Start(54)], &[b"FAT1", b"FAT  ", b"MSDOS"]),
    format("vfat", &[Start(82)], &[b"FAT32", b"MSWIN"]),
    format("VMFS_volume_member", &[Start(0x10_0000)], &[&[0x0d, 0xd0, 0x01, 0xc0]]),
    format("VMFS", &[Start(0x20_0000)], &[&[0x5e, 0xf1, 0xab, 0x2f]]),
    format("vxfs", &[Start(1024)], &[&[0xf5, 0xfc, 0x01, 0xa5]]),
    format("vxfs", &[Start(8192)], &[&[0xa5, 0x01, 0xfc, 0xf5]]),
    format("xfs", &[Start(0)], &[b"XFSB"]),
    format("xfs_external_log", &[Start(0)], &[&[0xfe, 0xed, 0xba, 0xbe]]),
    // The first of the uberblocks of each of its four labels, and the name of the first value of the lists before them.
    format(
        "zfs_member",
        &[Start(0x2_0000), Start(0x6_0000), End(0x6_0000), End(0x2_0000)],
        &[&0x00ba_b10c_u64.to_le_bytes(), &0x00ba_b10c_u64.to_be_bytes()],
    ),
    format(
        "zfs_member",
        &[Start(0x4018), Start(0x4_4018), End(0x8_0000 - 0x4018), End(0x4_0000 - 0x4018)],
        &[b"version\0"],
    ),
    format("zonefs", &[Start(0)], &[b"SFOZ"]),
];

/// The longest of the magics.
pub(super) const LONGEST: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_magic_is_longer_than_what_is_read_or_nothing_but_zeroes() {
        for format in FORMATS {
            for magic in format.magics {
                assert!(magic.len() <= LONGEST, "{}", format.name);
                assert!(magic.iter().any(|byte| *byte != 0), "{}", format.name);
            }
        }
    }

    #[test]
    fn places_at_the_end_are_those_of_their_formats() {
        let size = 16 << 20;
        for (place, size, want) in [
            (Place::End(512), size, Some(size - 512)),
            (Place::End(512), 511, None),
            (Place::Md090, size + 512, Some(size - 65536)),
            (Place::Md090, 65535, None),
            (Place::Md10, size + 4096 + 512, Some(size - 4096)),
            (Place::Md10, 4096, None),
            (Place::LastBlock(60), size + 512, Some(size - 4096 + 60)),
            (Place::LastBlock(60), 512, None),
        ] {
            assert_eq!(place.of(size), want, "{place:?} of {size}");
        }
    }
}
