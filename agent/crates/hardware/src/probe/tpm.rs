//! Whether there is a trusted platform module, and of which version.

use ferric_sys::{Root, attr};
use ferric_types::inventory::Tpm;

use super::smbios::{Smbios, kind};

/// The module, or `None` when there is none: from its driver, or without one from the tables in which the firmware
/// announces it (ACPI `TPM2` and `TCPA`, SMBIOS type 43).
pub fn tpm(root: &Root, smbios: Option<&Smbios>) -> Option<Tpm> {
    let modules = root.path("sys/class/tpm");
    let acpi = |table: &str| root.path("sys/firmware/acpi/tables").join(table).exists();
    let announced = || match () {
        () if acpi("TPM2") => Some("2.0".to_owned()),
        () if acpi("TCPA") => Some("1.2".to_owned()),
        () => None,
    };
    let described = || {
        let module = smbios?.of(kind::TPM).next()?;
        Some(format!("{}.{}", module.byte(8), module.byte(9)))
    };
    if let Some(module) = attr::list(&modules).first() {
        // Kernels before 5.6 do not tell the version, and tell the capabilities of modules of the first version only.
        let version = match attr::read_optional(&modules.join(module).join("tpm_version_major")).as_deref() {
            Some("1") => Some("1.2".to_owned()),
            Some("2") => Some("2.0".to_owned()),
            _ => announced().or_else(described),
        };
        return Some(Tpm { version });
    }
    announced().or_else(described).map(|version| Tpm { version: Some(version) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::smbios::tests::{body, structure, table};
    use ferric_sys::testing::machine::MachineTree;

    #[test]
    fn the_module_is_found_by_its_driver_or_by_what_the_firmware_says() {
        let smbios = |major: u8, minor: u8| {
            let module = structure(kind::TPM, &body(0x1f, &[(4, b"STM "), (8, &[major, minor])]), &[]);
            Some(Smbios::new(table(&[module]), &[]))
        };
        /// Files; SMBIOS; version.
        type Case<'a> = (&'a [(&'a str, &'a str)], Option<Smbios>, Option<Option<&'a str>>);
        let driver = "sys/class/tpm/tpm0/tpm_version_major";
        let cases: [Case<'_>; 8] = [
            (&[], None, None),
            (&[], Some(Smbios::default()), None),
            (&[(driver, "2")], None, Some(Some("2.0"))),
            (&[(driver, "1")], smbios(2, 0), Some(Some("1.2"))),
            (&[("sys/class/tpm/tpm0/uevent", "MAJOR=10")], None, Some(None)),
            (&[("sys/class/tpm/tpm0/uevent", ""), ("sys/firmware/acpi/tables/TCPA", "")], None, Some(Some("1.2"))),
            (&[("sys/firmware/acpi/tables/TPM2", "TPM2")], None, Some(Some("2.0"))),
            (&[], smbios(2, 0), Some(Some("2.0"))),
        ];
        for (files, smbios, want) in cases {
            let tree = MachineTree::new().unwrap();
            for (path, text) in files {
                tree.file(path, text).unwrap();
            }
            let found = tpm(&tree.root(), smbios.as_ref());
            assert_eq!(found.as_ref().map(|tpm| tpm.version.as_deref()), want, "{files:?}");
        }
    }
}
