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
