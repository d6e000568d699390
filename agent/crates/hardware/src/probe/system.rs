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
    }

    #[test]
    fn a_device_tree_stands_in_for_dmi() {
        let tree = MachineTree::new().unwrap();
        tree.bytes("proc/device-tree/model", b"Raspberry Pi 4 Model B Rev 1.4\0").unwrap();
        tree.file("sys/firmware/efi/fw_platform_size", "64").unwrap();
        assert_eq!(vendor(&tree.root()).product_name, "Raspberry Pi 4 Model B Rev 1.4");
        let boot = boot(&tree.root(), Some("01-52-54-00-aa-bb-cc"));
        assert_eq!(
            (boot.current_boot_mode.as_str(), boot.pxe_interface.as_deref()),
            ("uefi", Some("01-52-54-00-aa-bb-cc"))
        );
    }
}
