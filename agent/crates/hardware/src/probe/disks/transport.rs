//! Which bus a disk is on: the `TRAN` column of `lsblk`, by the same attributes of sysfs.

use ferric_sys::{Root, attr};

use super::sysfs::Chain;

/// `sata`, `sas`, `usb`, `nvme`, `virtio`, ... or `None` when the driver does not say.
pub(super) fn transport(root: &Root, kname: &str, chain: &Chain) -> Option<String> {
    let by_name = [("nvme", "nvme"), ("vd", "virtio"), ("mmcblk", "mmc")];
    if let Some((_, transport)) = by_name.iter().find(|(prefix, _)| kname.starts_with(prefix)) {
        return Some((*transport).to_owned());
    }
    let (host, _) = chain.numbered("host")?;
    let class = |name: &str| root.path("sys/class").join(name).join(host);
    if class("spi_host").exists() {
        return Some("spi".to_owned());
    }
    if class("fc_host").exists() {
        let over_ethernet = attr::read_optional(&class("fc_host").join("symbolic_name"));
        let transport = if over_ethernet.is_some_and(|name| name.contains(" over ")) { "fcoe" } else { "fc" };
        return Some(transport.to_owned());
    }
    if class("sas_host").exists() || chain.find(|name| name.starts_with("end_device-")).is_some() {
        return Some("sas".to_owned());
    }
    if chain.iter().any(|(_, dir)| dir.join("ieee1394_id").exists()) {
        return Some("sbp".to_owned());
    }
    if class("iscsi_host").exists() {
        return Some("iscsi".to_owned());
    }
    if chain.numbered("usb").is_some() {
        return Some("usb".to_owned());
    }
    let driver = attr::read_optional(&class("scsi_host").join("proc_name"))?;
    if driver.starts_with("ahci") || driver.starts_with("sata") {
        Some("sata".to_owned())
    } else if driver.contains("ata") {
        Some("ata".to_owned())
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_sys::testing::machine::MachineTree;

    #[test]
    fn the_bus_is_told_by_what_the_adapter_has() {
        const PCI: &str = "pci0000:00/0000:00:05.0";
        let class = |name: &str| format!("sys/class/{name}/host1");
        let driver = || "sys/class/scsi_host/host1/proc_name".to_owned();
        // Place above the SCSI host, or below it; a file and its text; what it means.
        let cases = [
            ("", "", class("spi_host") + "/uevent", "", Some("spi")),
            ("", "", class("fc_host") + "/symbolic_name", "ACME HBA", Some("fc")),
            ("", "", class("fc_host") + "/symbolic_name", "fnic over eth0", Some("fcoe")),
            ("", "", class("sas_host") + "/uevent", "", Some("sas")),
            ("", "/port-1:0/end_device-1:0", driver(), "hisi", Some("sas")),
            ("", "/port-1:0", driver(), "hisi", None),
            ("", "", format!("sys/devices/{PCI}/ieee1394_id"), "1", Some("sbp")),
            ("", "", class("iscsi_host") + "/uevent", "", Some("iscsi")),
            ("/usb1/1-1/1-1:1.0", "", driver(), "usb-storage", Some("usb")),
            ("", "", driver(), "ahci", Some("sata")),
            ("", "", driver(), "sata_nv", Some("sata")),
            ("", "", driver(), "ata_piix", Some("ata")),
            ("", "", driver(), "pata_via", Some("ata")),
            ("", "", driver(), "mptspi", None),
        ];
        for (above, below, file, text, want) in cases {
            let tree = MachineTree::new().unwrap();
            let place = format!("{PCI}{above}/host1{below}/target1:0:0/1:0:0:0");
            tree.disk("sda", &place, "8:0", &[("size", "8")]).unwrap();
            tree.file(&file, text).unwrap();
            let chain = Chain::of(&tree.root(), "sda").unwrap();
            assert_eq!(transport(&tree.root(), "sda", &chain).as_deref(), want, "{above}{below} {file} {text}");
        }
    }
}
