//! Memory (hardware section 2.3): what the kernel has, and what is plugged in according to SMBIOS.

use ferric_sys::{Root, attr};
use ferric_types::inventory::Memory;
use smbioslib::{MemorySize, MemorySizeExtended, SMBiosData, SMBiosMemoryDevice};

/// Memory of the machine. Without usable SMBIOS data the kernel's own total stands in for what is installed.
pub fn memory(root: &Root) -> Memory {
    let total = attr::read_trimmed(&root.path("proc/meminfo")).ok().and_then(|text| meminfo_bytes(&text, "MemTotal"));
    let installed = std::fs::read(root.path("sys/firmware/dmi/tables/DMI")).ok().and_then(installed_mib);
    Memory { total, physical_mb: installed.or_else(|| total.map(|bytes| bytes >> 20)) }
}

/// A line of `/proc/meminfo` or a NUMA node's `meminfo`, in bytes.
pub(crate) fn meminfo_bytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.split_once(name)?.1.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Sum of all memory devices (SMBIOS type 17) of a raw table, MiB; `None` when it has none with a size.
fn installed_mib(table: Vec<u8>) -> Option<u64> {
    let data = SMBiosData::from_vec_and_version(table, None);
    let kib = data.defined_struct_iter::<SMBiosMemoryDevice<'_>>().map(|device| device_kib(&device)).sum::<u64>();
    (kib > 0).then_some(kib >> 10)
}

fn device_kib(device: &SMBiosMemoryDevice<'_>) -> u64 {
    match device.size() {
        Some(MemorySize::Kilobytes(kib)) => u64::from(kib),
        Some(MemorySize::Megabytes(mib)) => u64::from(mib) << 10,
        Some(MemorySize::SeeExtendedSize) => match device.extended_size() {
            Some(MemorySizeExtended::Megabytes(mib)) => u64::from(mib) << 10,
            _ => 0,
        },
        Some(MemorySize::NotInstalled | MemorySize::Unknown) | None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A type 17 structure of SMBIOS 2.7 with the two size fields given, and the end-of-table structure.
    fn device(size: u16, extended: u32) -> Vec<u8> {
        let mut bytes = vec![0_u8; 0x22];
        bytes[0] = 17;
        bytes[1] = 0x22;
        bytes[0x0c..0x0e].copy_from_slice(&size.to_le_bytes());
        bytes[0x1c..0x20].copy_from_slice(&extended.to_le_bytes());
        bytes.extend([0, 0]);
        bytes
    }

    fn table(devices: &[(u16, u32)]) -> Vec<u8> {
        let mut bytes: Vec<u8> = devices.iter().flat_map(|(size, extended)| device(*size, *extended)).collect();
        bytes.extend([127, 4, 0, 0, 0, 0]);
        bytes
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
            assert_eq!(installed_mib(table(devices)), want, "{devices:?}");
        }
    }

    #[test]
    fn a_table_cut_short_counts_what_is_whole() {
        let mut bytes = table(&[(1024, 0), (2048, 0)]);
        bytes.truncate(0x24 + 10);
        assert_eq!(installed_mib(bytes), Some(1024));
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
        fn any_table_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            installed_mib(bytes);
        }

        #[test]
        fn any_memory_device_is_survived(
            length in 0_u8..40,
            body in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let mut bytes = vec![17, length, 0, 0];
            bytes.extend(body);
            installed_mib(bytes);
        }
    }
}
