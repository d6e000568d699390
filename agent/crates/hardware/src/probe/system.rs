//! Maker, firmware, boot mode and host name (hardware section 2.4).

use ferric_sys::{Root, attr};
use ferric_types::inventory::{BootInfo, SystemFirmware, SystemVendor};

/// Maker and firmware from the kernel's DMI attributes; on machines with a device tree only, its model. What is not
/// known is empty.
pub fn vendor(root: &Root) -> SystemVendor {
    let dmi = |name: &str| attr::read_optional(&root.path("sys/class/dmi/id").join(name)).unwrap_or_default();
    let tree = |name: &str| attr::read_optional(&root.path("proc/device-tree").join(name));
    let product_name = Some(dmi("product_name")).filter(|text| !text.is_empty()).or_else(|| tree("model"));
    let serial_number = Some(dmi("product_serial")).filter(|text| !text.is_empty()).or_else(|| tree("serial-number"));
    SystemVendor {
        product_name: product_name.unwrap_or_default(),
        serial_number: serial_number.unwrap_or_default(),
        manufacturer: dmi("sys_vendor"),
        firmware: SystemFirmware {
            vendor: dmi("bios_vendor"),
            version: dmi("bios_version"),
            build_date: dmi("bios_date"),
        },
    }
}

/// Boot mode, and the raw `BOOTIF` parameter passed on.
pub fn boot(root: &Root, pxe_interface: Option<&str>) -> BootInfo {
    BootInfo {
        current_boot_mode: if is_uefi(root) { "uefi" } else { "bios" }.to_owned(),
        pxe_interface: pxe_interface.map(str::to_owned),
        secure_boot: secure_boot(root),
    }
}

/// The variable `SecureBoot` of the firmware (UEFI section 3.3): four bytes of attributes, then 1 when only signed
/// programs are started.
const SECURE_BOOT: &str = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";

/// Whether the firmware starts signed programs only; `None` when it does not say.
pub fn secure_boot(root: &Root) -> Option<bool> {
    match std::fs::read(root.path(SECURE_BOOT)).ok()?.as_slice() {
        [_, _, _, _, value] => Some(*value == 1),
        _ => None,
    }
}

/// Whether the machine was started by UEFI firmware.
pub fn is_uefi(root: &Root) -> bool {
    root.path("sys/firmware/efi").is_dir()
}

/// Host name of the running system.
pub fn hostname(root: &Root) -> String {
    attr::read_trimmed(&root.path("proc/sys/kernel/hostname")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_sys::testing::machine::MachineTree;

    #[test]
    fn a_machine_that_says_nothing_has_empty_texts_and_boots_by_bios() {
        let tree = MachineTree::new().unwrap();
        assert_eq!(vendor(&tree.root()), SystemVendor::default());
        assert_eq!(boot(&tree.root(), None).current_boot_mode, "bios");
        assert_eq!(hostname(&tree.root()), "");
    }

    #[test]
    fn three_kinds_of_machine_say_who_made_them_and_how_they_were_started() {
        let server: &[(&str, &str)] = &[
            ("sys/class/dmi/id/product_name", "PowerEdge R640"),
            ("sys/class/dmi/id/product_serial", "ABC123 "),
            ("sys/class/dmi/id/sys_vendor", "Dell Inc."),
            ("sys/class/dmi/id/bios_vendor", "Dell Inc."),
            ("sys/class/dmi/id/bios_version", "2.10.2"),
            ("sys/class/dmi/id/bios_date", "02/24/2021"),
            ("sys/firmware/efi/fw_platform_size", "64"),
            ("proc/sys/kernel/hostname", "node-7"),
        ];
        let virtual_machine: &[(&str, &str)] = &[
            ("sys/class/dmi/id/product_name", "Standard PC (i440FX + PIIX, 1996)"),
            ("sys/class/dmi/id/product_serial", ""),
            ("sys/class/dmi/id/sys_vendor", "QEMU"),
            ("sys/class/dmi/id/bios_vendor", "SeaBIOS"),
            ("proc/sys/kernel/hostname", "localhost.localdomain"),
        ];
        let board: &[(&str, &str)] = &[
            ("proc/device-tree/model", "Raspberry Pi 4 Model B Rev 1.4\0"),
            ("proc/device-tree/serial-number", "10000000c0ffee00\0"),
            ("sys/firmware/efi/fw_platform_size", "64"),
        ];
        let texts = |vendor: &SystemVendor| {
            let SystemFirmware { vendor: maker, version, build_date } = vendor.firmware.clone();
            let all = [vendor.product_name.clone(), vendor.serial_number.clone(), vendor.manufacturer.clone()];
            all.into_iter().chain([maker, version, build_date]).collect::<Vec<_>>().join("|")
        };
        for (files, want, mode, name) in [
            (server, "PowerEdge R640|ABC123|Dell Inc.|Dell Inc.|2.10.2|02/24/2021", "uefi", "node-7"),
            (virtual_machine, "Standard PC (i440FX + PIIX, 1996)||QEMU|SeaBIOS||", "bios", "localhost.localdomain"),
            (board, "Raspberry Pi 4 Model B Rev 1.4|10000000c0ffee00||||", "uefi", ""),
        ] {
            let tree = MachineTree::new().unwrap();
            for (path, text) in files {
                tree.file(path, text).unwrap();
            }
            assert_eq!(texts(&vendor(&tree.root())), want);
            let boot = boot(&tree.root(), Some("01-52-54-00-aa-bb-cc"));
            assert_eq!(
                (boot.current_boot_mode.as_str(), boot.pxe_interface.as_deref()),
                (mode, Some("01-52-54-00-aa-bb-cc")),
                "{want}"
            );
            assert_eq!(hostname(&tree.root()), name, "{want}");
        }
    }

    #[test]
    fn secure_boot_is_what_the_variable_says() {
        for (bytes, want) in [
            (&b"\x06\0\0\0\x01"[..], Some(true)),
            (b"\x06\0\0\0\0", Some(false)),
            (b"\x06\0\0\0", None),
            (b"", None),
            (b"\x06\0\0\0\x01\x01", None),
        ] {
            let tree = MachineTree::new().unwrap();
            tree.bytes(SECURE_BOOT, bytes).unwrap();
            assert_eq!(boot(&tree.root(), None).secure_boot, want, "{bytes:?}");
        }
        assert_eq!(secure_boot(&MachineTree::new().unwrap().root()), None);
    }
}
