//! Memory (hardware section 2.3): what the kernel has, and what is plugged in according to SMBIOS.

use std::collections::BTreeSet;
use std::path::Path;

use ferric_sys::{Root, attr};
use ferric_types::inventory::Memory;

use super::smbios::{Smbios, Structure, kind};

/// Memory of the machine. Where SMBIOS does not tell what is installed, the kernel's blocks of memory are counted, and
/// where it has none of these, its total stands in.
pub fn memory(root: &Root) -> Memory {
    let total = attr::read_trimmed(&root.path("proc/meminfo")).ok().and_then(|text| meminfo_bytes(&text, "MemTotal"));
    let installed = Smbios::read(root).and_then(|smbios| installed_mib(&smbios));
    let counted = || block_bytes(&root.path("sys/devices/system/memory")).or(total).map(|bytes| bytes >> 20);
    Memory { total, physical_mb: installed.or_else(counted) }
}

/// Memory that can be had without swapping, in bytes; `None` when the kernel does not say.
pub(crate) fn available_bytes(root: &Root) -> Option<u64> {
    attr::read_trimmed(&root.path("proc/meminfo")).ok().and_then(|text| meminfo_bytes(&text, "MemAvailable"))
}

/// A line of `/proc/meminfo` or a NUMA node's `meminfo`, in bytes.
pub(crate) fn meminfo_bytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.split_once(name)?.1.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Blocks of memory that the kernel could use, bytes; `None` when it does not count them.
fn block_bytes(folder: &Path) -> Option<u64> {
    let text = attr::read_optional(&folder.join("block_size_bytes"))?;
    let each = u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()?;
    let number = |name: &String| name.strip_prefix("memory").is_some_and(|number| number.parse::<u32>().is_ok());
    let blocks = attr::list(folder).iter().filter(|name| number(name)).count();
    each.checked_mul(u64::try_from(blocks).ok()?).filter(|bytes| *bytes > 0)
}

/// Whether an array of memory (SMBIOS type 16) holds what programs run in. Others are for video, flash chips, non-volatile
/// data and caches (DSP0134 section 7.17.2).
pub(crate) fn is_main(array: &Structure<'_>) -> bool {
    !matches!(array.byte(5), 4..=7)
}

/// Sum of the memory devices (SMBIOS type 17) in arrays that are main memory, MiB; `None` when there is none with a size.
fn installed_mib(smbios: &Smbios) -> Option<u64> {
    let others: BTreeSet<u16> =
        smbios.of(kind::MEMORY_ARRAY).filter(|array| !is_main(array)).map(|array| array.handle()).collect();
    let devices = smbios.of(kind::MEMORY_DEVICE).filter(|device| !others.contains(&device.word(4)));
    let kib = devices.filter_map(|device| device_kib(&device)).sum::<u64>();
    (kib > 0).then_some(kib >> 10)
}

/// Size of a memory device, KiB (DSP0134 sections 7.18.4 and 7.18.5); `None` for an empty slot and an unknown size.
pub(crate) fn device_kib(device: &Structure<'_>) -> Option<u64> {
    match device.word(0x0c) {
        0 | u16::MAX => None,
        0x7fff if device.length() >= 0x20 => {
            Some(u64::from(device.dword(0x1c) & 0x7fff_ffff) << 10).filter(|kib| *kib > 0)
        }
        kib if kib & 0x8000 != 0 => Some(u64::from(kib & 0x7fff)),
        mib => Some(u64::from(mib) << 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::smbios::tests::{body, structure, table};
    use ferric_sys::testing::machine::MachineTree;
    use proptest::prelude::*;

    /// A type 17 structure of SMBIOS 2.7 with the two size fields given, in the array with this handle.
    fn device(array: u16, size: u16, extended: u32) -> Vec<u8> {
        let (array, size, extended) = (array.to_le_bytes(), size.to_le_bytes(), extended.to_le_bytes());
        structure(kind::MEMORY_DEVICE, &body(0x22, &[(4, &array), (0x0c, &size), (0x1c, &extended)]), &[])
    }

    fn sum(structures: &[Vec<u8>]) -> Option<u64> {
        installed_mib(&Smbios::new(table(structures), &[]))
    }

    #[test]
    fn every_way_to_write_a_size_is_summed() {
        /// Size and extended size of each device; the sum.
        type Case<'a> = (&'a [(u16, u32)], Option<u64>);
        let cases: [Case<'_>; 7] = [
            (&[(16384, 0), (16384, 0)], Some(32768)),
            // 512 KiB twice: the unit is KiB when bit 15 is set.
            (&[(0x8200, 0), (0x8200, 0)], Some(1)),
            (&[(0x7fff, 65536)], Some(65536)),
            (&[(0, 0), (0xffff, 0), (1024, 0)], Some(1024)),
            (&[(0, 0)], None),
            (&[(0x7fff, 0)], None),
            (&[], None),
        ];
        for (devices, want) in cases {
            let structures: Vec<_> = devices.iter().map(|(size, extended)| device(0x10, *size, *extended)).collect();
            assert_eq!(sum(&structures), want, "{devices:?}");
        }
    }

    #[test]
    fn structures_before_extended_sizes_have_none() {
        let short = structure(kind::MEMORY_DEVICE, &body(0x1b, &[(0x0c, &[0xff, 0x7f])]), &[]);
        assert_eq!(sum(&[short]), Some(0x7fff));
    }

    #[test]
    fn a_table_cut_short_counts_what_is_whole() {
        let mut bytes = table(&[device(0, 1024, 0), device(0, 2048, 0)]);
        bytes.truncate(0x24 + 10);
        assert_eq!(installed_mib(&Smbios::new(bytes, &[])), Some(1024));
    }

    #[test]
    fn a_flash_chip_is_no_memory() {
        // The handle of a structure made here is 0x1100 and its type.
        let array = |using: u8| structure(kind::MEMORY_ARRAY, &body(0x17, &[(4, &[3, using])]), &[]);
        for (using, want) in [(3, Some(1024)), (2, Some(1024)), (5, None), (6, None)] {
            assert_eq!(sum(&[array(using), device(0x1110, 1024, 0)]), want, "use {using}");
            assert!(
                sum(&[array(using), device(0x1110, 1024, 0), device(0x2000, 2048, 0)]) >= Some(2048),
                "use {using}"
            );
        }
    }

    #[test]
    fn three_kinds_of_machine_say_what_is_installed() {
        let server = [device(0x10, 0x7fff, 131_072), device(0x10, 0x7fff, 131_072), device(0x10, 0, 0)];
        let virtual_machine = [device(0x10, 4096, 0)];
        for (what, dmi, blocks, want) in [
            ("a server", Some(table(&server)), 0, Some(262_144)),
            ("a virtual machine", Some(table(&virtual_machine)), 30, Some(4096)),
            ("an ARM board without SMBIOS", None, 32, Some(4096)),
            ("a table without sizes", Some(table(&[])), 32, Some(4096)),
            ("a kernel that counts nothing", None, 0, Some(3944)),
        ] {
            let tree = MachineTree::new().unwrap();
            tree.file("proc/meminfo", "MemTotal:        4039240 kB").unwrap();
            if let Some(dmi) = dmi {
                tree.bytes("sys/firmware/dmi/tables/DMI", &dmi).unwrap();
            }
            if blocks > 0 {
                tree.file("sys/devices/system/memory/block_size_bytes", "8000000").unwrap();
                tree.file("sys/devices/system/memory/probe", "").unwrap();
            }
            for block in 0..blocks {
                tree.file(&format!("sys/devices/system/memory/memory{block}/state"), "online").unwrap();
            }
            let memory = memory(&tree.root());
            assert_eq!((memory.total, memory.physical_mb), (Some(4_136_181_760), want), "{what}");
        }
        assert_eq!(memory(&MachineTree::new().unwrap().root()), Memory::default());
    }

    #[test]
    fn meminfo_lines_are_kib() {
        let text = "MemTotal:        4039240 kB\nMemFree: 1 kB";
        assert_eq!(meminfo_bytes(text, "MemTotal"), Some(4_136_181_760));
        assert_eq!(meminfo_bytes("Node 0 MemTotal:       1024 kB", "MemTotal"), Some(1_048_576));
        for bad in ["", "MemTotal: x kB", "MemTotal: 18446744073709551615 kB", "MemTotal: 5"] {
            assert_eq!(meminfo_bytes(bad, "MemTotal"), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_memory_device_is_survived(
            length in 0_u8..40,
            fields in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let mut bytes = vec![17, length, 0, 0];
            bytes.extend(fields);
            installed_mib(&Smbios::new(bytes, &[]));
        }
    }
}
