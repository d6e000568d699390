//! What firmware of an architecture calls its loaders (UEFI specification 2.10, section 3.5.1.1).

/// The part of a loader's name that stands for the architecture of the firmware, as in `BOOTX64.EFI`; `None` for machines
/// that UEFI does not know. `machine` is what the kernel calls it, `firmware_bits` the content of
/// `/sys/firmware/efi/fw_platform_size`: the firmware of some 64-bit machines is a 32-bit one.
pub fn suffix(machine: &str, firmware_bits: Option<u64>) -> Option<&'static str> {
    Some(match machine {
        "x86_64" if firmware_bits == Some(32) => "ia32",
        "x86_64" => "x64",
        "i386" | "i486" | "i586" | "i686" => "ia32",
        "aarch64" => "aa64",
        "riscv32" => "riscv32",
        "riscv64" => "riscv64",
        "loongarch64" => "loongarch64",
        "ia64" => "ia64",
        _ if machine.starts_with("arm") => "arm",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_machine_has_its_own_name() {
        for (machine, bits, want) in [
            ("x86_64", Some(64), Some("x64")),
            ("x86_64", None, Some("x64")),
            ("x86_64", Some(32), Some("ia32")),
            ("i686", Some(32), Some("ia32")),
            ("aarch64", Some(64), Some("aa64")),
            ("armv7l", None, Some("arm")),
            ("riscv64", None, Some("riscv64")),
            ("ppc64le", None, None),
            ("s390x", None, None),
        ] {
            assert_eq!(suffix(machine, bits), want, "{machine} {bits:?}");
        }
    }
}
