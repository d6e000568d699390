//! Processors (hardware section 2.2): `/proc/cpuinfo` and the CPU topology of sysfs, with the meaning that `lscpu`
//! gives them.

use std::collections::BTreeSet;

use ferric_sys::{Root, attr};
use ferric_types::inventory::Cpu;

use super::smbios::{Smbios, kind};
use crate::replay;

/// The machine's processors; those that are offline count too, as with `lscpu`. `architecture` is the machine name of `uname`, see [`architecture`].
pub fn cpu(root: &Root, architecture: &str) -> Cpu {
    let text = attr::read_trimmed(&root.path("proc/cpuinfo")).unwrap_or_default();
    let info = first_processor(&text);
    let system = root.path("sys/devices/system/cpu");
    let listed = attr::read_optional(&system.join("present")).map(|list| parse_list(&list)).unwrap_or_default();
    let counted = text.lines().filter(|line| key(line) == "processor").count();
    let count = if listed.is_empty() { counted } else { listed.len() };
    Cpu {
        model_name: model_name(root, &info),
        frequency: frequency(root, &listed, &info),
        count: u32::try_from(count).unwrap_or(u32::MAX),
        architecture: architecture.to_owned(),
        flags: info.flags.split_whitespace().map(str::to_owned).collect(),
        socket_count: sockets(root, &listed).max(u32::from(count > 0)),
    }
}

/// Machine name of the kernel, such as `x86_64` or `aarch64`: from its own file, which a captured machine has too, and
/// for kernels before 6.1 from `uname`.
pub fn architecture(root: &Root) -> String {
    attr::read_optional(&root.path(replay::ARCHITECTURE)).unwrap_or_else(sysinfo::System::cpu_arch)
}

/// What the first processor of `/proc/cpuinfo` says of itself.
#[derive(Debug, Default)]
struct Info<'a> {
    model_name: &'a str,
    mhz: &'a str,
    flags: &'a str,
    implementer: &'a str,
    part: &'a str,
}

fn key(line: &str) -> &str {
    line.split_once(':').map_or(line, |(key, _)| key).trim()
}

fn first_processor(text: &str) -> Info<'_> {
    let mut info = Info::default();
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        let field = match key.trim() {
            "model name" => &mut info.model_name,
            "cpu MHz" => &mut info.mhz,
            // `Features` is what ARM calls them.
            "flags" | "Features" => &mut info.flags,
            "CPU implementer" => &mut info.implementer,
            "CPU part" => &mut info.part,
            _ => continue,
        };
        if field.is_empty() {
            *field = value;
        }
    }
    info
}

/// ARM processors give numbers instead of a name; these are the cores of servers and of boards that serve as such (Main
/// ID Register: implementer and part number).
const ARM_CORES: &[(&str, &str)] = &[
    (
        "0x41",
        "0xd03 Cortex-A53|0xd04 Cortex-A35|0xd05 Cortex-A55|0xd07 Cortex-A57|0xd08 Cortex-A72|0xd09 Cortex-A73|\
         0xd0a Cortex-A75|0xd0b Cortex-A76|0xd0c Neoverse-N1|0xd0d Cortex-A77|0xd40 Neoverse-V1|0xd41 Cortex-A78|\
         0xd49 Neoverse-N2|0xd4a Neoverse-E1|0xd4f Neoverse-V2|0xd84 Neoverse-V3|0xd8e Neoverse-N3",
    ),
    ("0x42", "0x516 ThunderX2"),
    ("0x43", "0x0a1 ThunderX-88XX|0x0af ThunderX2-99xx"),
    ("0x46", "0x001 A64FX"),
    ("0x48", "0xd01 Kunpeng-920"),
    ("0x4e", "0x004 Carmel"),
    ("0x51", "0xc00 Falkor"),
    ("0x70", "0x662 FTC662|0x663 FTC663"),
    ("0xc0", "0xac3 Ampere-1|0xac4 Ampere-1a"),
];

/// Name of the processor; of an ARM core that has none here, what the firmware calls it.
fn model_name(root: &Root, info: &Info<'_>) -> String {
    if !info.model_name.is_empty() {
        return info.model_name.to_owned();
    }
    let cores = ARM_CORES.iter().find(|(implementer, _)| *implementer == info.implementer);
    let mut named = cores.into_iter().flat_map(|(_, cores)| cores.split('|'));
    if let Some(name) = named.find_map(|core| core.strip_prefix(info.part)?.strip_prefix(' ')) {
        return name.to_owned();
    }
    // SMBIOS type 4: its version is the name (DSP0134 section 7.5).
    let firmware = Smbios::read(root).and_then(|smbios| smbios.of(kind::PROCESSOR).find_map(|one| one.string(0x10)));
    firmware.unwrap_or_default()
}

/// MHz as text: the highest that any processor can do, else the current one, else empty.
fn frequency(root: &Root, cpus: &[u32], info: &Info<'_>) -> String {
    let highest_khz = cpus
        .iter()
        .filter_map(|cpu| {
            let path = format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq");
            attr::read_u64(&root.path(path)).ok()
        })
        .max();
    match highest_khz {
        Some(khz) => format!("{}.{:03}0", khz / 1000, khz % 1000),
        None => info.mhz.to_owned(),
    }
}

fn sockets(root: &Root, cpus: &[u32]) -> u32 {
    let packages: BTreeSet<u64> = cpus
        .iter()
        .filter_map(|cpu| {
            let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id");
            // Offline processors have no topology; firmware without one reports -1, which is no number here.
            attr::read_u64(&root.path(path)).ok()
        })
        .collect();
    u32::try_from(packages.len()).unwrap_or(u32::MAX)
}

/// Highest number of processors that a kernel can be made for (`NR_CPUS`).
pub(crate) const MAX_CPUS: u32 = 8192;

/// Reads a CPU list such as `0-3,8,10-11`, which the kernel writes in ascending order; what is malformed, out of order or
/// beyond any kernel is left out.
pub(crate) fn parse_list(text: &str) -> Vec<u32> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>())
            && last < MAX_CPUS
            && cpus.last().is_none_or(|before| *before < first)
        {
            cpus.extend(first..=last);
        }
    }
    cpus
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::smbios::tests::{body, structure, table};
    use ferric_sys::testing::machine::MachineTree;
    use proptest::prelude::*;

    const X86: &str = "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Gold 6130\ncpu MHz\t\t: 2095.078\nflags\t\t: fpu \
        vme constant_tsc\n\nprocessor\t: 1\nmodel name\t: other\nflags\t\t: other\n";

    #[test]
    fn lists_are_ranges_and_numbers() {
        for (text, want) in [
            ("0-3", vec![0, 1, 2, 3]),
            ("0,2-3\n", vec![0, 2, 3]),
            ("", vec![]),
            ("x,5", vec![5]),
            ("0-4000000000", vec![]),
            ("0-8192", vec![]),
            ("5,8191", vec![5, 8191]),
            ("0-1,0-1,1,2", vec![0, 1, 2]),
        ] {
            assert_eq!(parse_list(text), want, "{text}");
        }
    }

    #[test]
    fn without_sysfs_cpuinfo_alone_counts() {
        let tree = MachineTree::new().unwrap();
        tree.file("proc/cpuinfo", X86).unwrap();
        let cpu = cpu(&tree.root(), "x86_64");
        assert_eq!((cpu.count, cpu.socket_count, cpu.frequency.as_str()), (2, 1, "2095.078"));
        assert_eq!(cpu.flags, ["fpu", "vme", "constant_tsc"]);
        assert_eq!(cpu.model_name, "Intel(R) Xeon(R) Gold 6130");
    }

    /// A processor of sysfs that is online: package and highest frequency.
    fn online(tree: &MachineTree, cpu: u32, package: &str, khz: Option<&str>) {
        let dir = format!("sys/devices/system/cpu/cpu{cpu}");
        tree.file(&format!("{dir}/topology/physical_package_id"), package).unwrap();
        if let Some(khz) = khz {
            tree.file(&format!("{dir}/cpufreq/cpuinfo_max_freq"), khz).unwrap();
        }
    }

    /// Model, frequency, count, sockets, architecture and flags in one line.
    fn shown(tree: &MachineTree, architecture: &str) -> String {
        let Cpu { model_name, frequency, count, architecture, flags, socket_count } = cpu(&tree.root(), architecture);
        format!("{model_name}|{frequency}|{count}|{socket_count}|{architecture}|{}", flags.join(" "))
    }

    #[test]
    fn a_server_with_a_processor_offline_counts_it_and_takes_the_highest_frequency() {
        let tree = MachineTree::new().unwrap();
        tree.file("proc/cpuinfo", X86).unwrap();
        tree.file("sys/devices/system/cpu/present", "0-3").unwrap();
        tree.file("sys/devices/system/cpu/online", "0-2").unwrap();
        for (cpu, package, khz) in [(0, "0", "3700000"), (1, "1", "3700500"), (2, "0", "1000000")] {
            online(&tree, cpu, package, Some(khz));
        }
        assert_eq!(shown(&tree, "x86_64"), "Intel(R) Xeon(R) Gold 6130|3700.5000|4|2|x86_64|fpu vme constant_tsc");
    }

    #[test]
    fn a_virtual_machine_has_no_frequency_but_that_of_now() {
        let tree = MachineTree::new().unwrap();
        tree.file("proc/cpuinfo", "processor\t: 0\nmodel name\t: QEMU Virtual CPU\ncpu MHz\t: 2400.000\nflags\t: fpu")
            .unwrap();
        tree.file("sys/devices/system/cpu/present", "0").unwrap();
        online(&tree, 0, "0", None);
        assert_eq!(shown(&tree, "x86_64"), "QEMU Virtual CPU|2400.000|1|1|x86_64|fpu");
    }

    #[test]
    fn arm_has_features_and_numbers_for_names() {
        for (implementer, part, want) in [
            ("0x41", "0xd0c", "Neoverse-N1"),
            ("0x41", "0xd8e", "Neoverse-N3"),
            ("0xc0", "0xac3", "Ampere-1"),
            ("0x48", "0xd01", "Kunpeng-920"),
            ("0x41", "0xfff", "Firmware's Name"),
            ("0x99", "0xd0c", "Firmware's Name"),
            ("0x41", "", "Firmware's Name"),
        ] {
            let tree = MachineTree::new().unwrap();
            let text = format!(
                "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd\nCPU implementer\t: {implementer}\nCPU part\t: {part}\n"
            );
            tree.file("proc/cpuinfo", &text).unwrap();
            tree.file("sys/devices/system/cpu/present", "0-1").unwrap();
            // Firmware that does not number its packages.
            online(&tree, 0, "-1", None);
            let processor = structure(kind::PROCESSOR, &body(0x30, &[(0x10, &[1])]), &["Firmware's Name"]);
            tree.bytes("sys/firmware/dmi/tables/DMI", &table(&[processor])).unwrap();
            assert_eq!(shown(&tree, "aarch64"), format!("{want}||2|1|aarch64|fp asimd"), "{implementer} {part}");
        }
    }

    #[test]
    fn a_machine_without_cpuinfo_has_no_processors() {
        let tree = MachineTree::new().unwrap();
        assert_eq!(cpu(&tree.root(), "x86_64").count, 0);
    }

    #[test]
    fn a_list_that_repeats_itself_counts_once() {
        for range in ["0-65535,", "0-8191,"] {
            let tree = MachineTree::new().unwrap();
            tree.file("proc/cpuinfo", X86).unwrap();
            tree.file("sys/devices/system/cpu/present", &range.repeat(500)).unwrap();
            let begun = std::time::Instant::now();
            let count = cpu(&tree.root(), "x86_64").count;
            assert_eq!(count, if range == "0-8191," { 8192 } else { 2 }, "{range}");
            assert!(begun.elapsed().as_secs() < 5, "{range}: {:?}", begun.elapsed());
        }
    }

    proptest! {
        #[test]
        fn any_list_is_bounded(text in "([0-9]{1,4}-[0-9]{1,4},|[0-9,\\- ]){0,40}") {
            prop_assert!(parse_list(&text).len() <= 8192);
        }
    }
}
