//! Model, serial number and world-wide name of a disk, by the kind of disk it is.
//!
//! One defined precedence: the udev database where there is one (a ramdisk with udev), else what udev would have
//! stored there, from the same sources.

use std::collections::BTreeMap;
use std::path::Path;

use ferric_sys::{Root, attr};

use super::sysfs::Chain;
use super::vpd::{self, AtaIdentity, ScsiIdentity, Wwn, underscores};

/// What a disk is called by its maker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Identity {
    /// Model, blanks inside kept.
    pub(super) model: Option<String>,
    /// Vendor as the SCSI inquiry or the virtio device has it.
    pub(super) vendor: Option<String>,
    /// The serial number to show.
    pub(super) serial: Option<String>,
    /// `ID_SERIAL_SHORT`.
    pub(super) serial_short: Option<String>,
    /// `ID_SERIAL`.
    pub(super) serial_full: Option<String>,
    /// World-wide name.
    pub(super) wwn: Wwn,
    /// Links in `by-id`, without the directory.
    pub(super) by_id: Vec<String>,
}

/// Identity of a disk on its own bus; empty for stacked devices, whose callers use a member's.
pub(super) fn of(root: &Root, kname: &str, chain: &Chain) -> Identity {
    let dir = chain.device();
    let mut identity = if kname.starts_with("nvme") {
        nvme(dir)
    } else if kname.starts_with("vd") {
        virtio(dir)
    } else if kname.starts_with("mmcblk") {
        mmc(dir)
    } else if chain.hctl().is_some() {
        scsi(dir, chain)
    } else {
        Identity::default()
    };
    identity.vendor = attr::read_optional(&dir.join("device/vendor"));
    if let Some(properties) = udev_properties(root, dir) {
        apply_udev(&mut identity, &properties);
    }
    identity
}

fn nvme(dir: &Path) -> Identity {
    let model = attr::read_optional(&dir.join("device/model"));
    let serial = attr::read_optional(&dir.join("device/serial"));
    let wwid = attr::read_optional(&dir.join("wwid"));
    let full = model.as_ref().zip(serial.as_ref()).map(|(model, serial)| format!("{model}_{serial}"));
    let full = full.map(|full| replace_chars(&full));
    let mut by_id = Vec::new();
    if let Some(full) = &full {
        by_id.push(format!("nvme-{full}"));
        if let Some(nsid) = attr::read_optional(&dir.join("nsid")) {
            by_id.push(format!("nvme-{full}_{nsid}"));
        }
    }
    by_id.extend(wwid.as_ref().map(|wwid| format!("nvme-{}", replace_chars(wwid))));
    Identity {
        model,
        serial: serial.clone(),
        serial_short: serial,
        serial_full: full,
        wwn: Wwn { wwn: wwid, ..Wwn::default() },
        by_id,
        ..Identity::default()
    }
}

fn virtio(dir: &Path) -> Identity {
    let serial = attr::read_optional(&dir.join("serial"));
    Identity {
        by_id: serial.iter().map(|serial| format!("virtio-{}", replace_chars(serial))).collect(),
        serial_full: serial.clone(),
        serial,
        ..Identity::default()
    }
}

fn mmc(dir: &Path) -> Identity {
    let name = attr::read_optional(&dir.join("device/name"));
    let serial = attr::read_optional(&dir.join("device/serial"));
    let link = name.as_ref().zip(serial.as_ref()).map(|(name, serial)| replace_chars(&format!("mmc-{name}_{serial}")));
    Identity {
        model: name,
        serial_short: serial.clone(),
        serial_full: serial.clone(),
        serial,
        by_id: link.into_iter().collect(),
        ..Identity::default()
    }
}

fn scsi(dir: &Path, chain: &Chain) -> Identity {
    let page = |name: &str| std::fs::read(dir.join("device").join(name)).ok();
    let vendor = attr::read_optional(&dir.join("device/vendor")).unwrap_or_default();
    let model = attr::read_optional(&dir.join("device/model"));
    let unit_serial = page("vpd_pg80").and_then(|page| vpd::unit_serial(&page));
    let scsi = page("vpd_pg83").and_then(|page| vpd::scsi_identity(&page, &vendor, model.as_deref().unwrap_or("")));
    let ata = page("vpd_pg89").and_then(|page| vpd::ata_identity(&page));
    if let Some(serial) = chain.usb("serial").filter(|_| chain.numbered("usb").is_some()) {
        return usb(&vendor, model, serial, chain, scsi);
    }
    if vendor == "ATA" {
        return ata_disk(model, unit_serial, ata.unwrap_or_default(), scsi);
    }
    let identity = scsi.unwrap_or_else(|| match &unit_serial {
        // What scsi_id falls back to.
        Some(serial) => ScsiIdentity {
            serial: underscores(&format!("S{vendor:<8}{:<16}{serial}", model.as_deref().unwrap_or(""))),
            serial_short: underscores(serial),
            wwn: Wwn::default(),
        },
        None => ScsiIdentity::default(),
    });
    let some = |text: String| Some(text).filter(|text| !text.is_empty());
    let short = some(identity.serial_short);
    let full = some(identity.serial);
    let mut by_id: Vec<String> = full.iter().map(|full| format!("scsi-{}", replace_chars(full))).collect();
    by_id.extend(identity.wwn.with_extension.iter().map(|wwn| format!("wwn-{wwn}")));
    Identity {
        model,
        serial: unit_serial.or_else(|| short.clone()),
        serial_short: short,
        serial_full: full,
        wwn: identity.wwn,
        by_id,
        ..Identity::default()
    }
}

fn ata_disk(
    inquiry_model: Option<String>,
    unit_serial: Option<String>,
    ata: AtaIdentity,
    scsi: Option<ScsiIdentity>,
) -> Identity {
    let model = ata.model.or(inquiry_model);
    let serial = ata.serial.or(unit_serial);
    let wwn = match ata.wwn {
        Some(wwn) => Wwn::of_ata(wwn),
        None => scsi.map(|identity| identity.wwn).unwrap_or_default(),
    };
    let full = match (&model, &serial) {
        (Some(model), Some(serial)) => Some(underscores(&format!("{model}_{serial}"))),
        (Some(model), None) => Some(underscores(model)),
        (None, _) => serial.clone(),
    };
    let mut by_id: Vec<String> = full.iter().map(|full| format!("ata-{}", replace_chars(full))).collect();
    by_id.extend(wwn.with_extension.iter().map(|wwn| format!("wwn-{wwn}")));
    Identity { model, serial_short: serial.clone(), serial, serial_full: full, wwn, by_id, ..Identity::default() }
}

fn usb(vendor: &str, model: Option<String>, serial: String, chain: &Chain, scsi: Option<ScsiIdentity>) -> Identity {
    let full = replace_chars(&underscores(&format!("{vendor}_{}_{serial}", model.as_deref().unwrap_or(""))));
    let instance = chain.hctl().map(|hctl| format!("-{}:{}", hctl.target, hctl.lun)).unwrap_or_default();
    Identity {
        model,
        by_id: vec![format!("usb-{full}{instance}")],
        serial: Some(serial.clone()),
        serial_short: Some(serial),
        serial_full: Some(full),
        wwn: scsi.map(|identity| identity.wwn).unwrap_or_default(),
        ..Identity::default()
    }
}

/// Characters that udev keeps in the names of links; others become underscores.
pub(super) fn replace_chars(text: &str) -> String {
    text.trim().chars().map(|c| if c.is_ascii_alphanumeric() || "#+-.:=@_/".contains(c) { c } else { '_' }).collect()
}

/// Properties of a block device in udev's database; `None` where no udev runs or does not know it.
fn udev_properties(root: &Root, dir: &Path) -> Option<BTreeMap<String, String>> {
    let devno = attr::read_optional(&dir.join("dev"))?;
    let text = attr::read_trimmed(&root.path("run/udev/data").join(format!("b{devno}"))).ok()?;
    let property = |line: &str| {
        let (key, value) = line.strip_prefix("E:")?.split_once('=')?;
        (!value.is_empty()).then(|| (key.to_owned(), value.to_owned()))
    };
    Some(text.lines().filter_map(property).collect())
}

/// What udev knows wins; the order of keys is `lsblk`'s, then the reference agent's (hardware section 3).
fn apply_udev(identity: &mut Identity, properties: &BTreeMap<String, String>) {
    let first = |keys: &[&str]| keys.iter().find_map(|key| properties.get(*key).cloned());
    let lsblk_serial =
        ["SCSI_IDENT_SERIAL", "ID_SCSI_SERIAL", "ID_SERIAL_SHORT", "DM_SERIAL_SHORT", "ID_SERIAL", "DM_SERIAL"];
    let set = |field: &mut Option<String>, value: Option<String>| {
        if value.is_some() {
            *field = value;
        }
    };
    set(&mut identity.serial, first(&lsblk_serial));
    set(&mut identity.serial_short, first(&["ID_SERIAL_SHORT", "DM_SERIAL_SHORT"]));
    set(&mut identity.serial_full, first(&["ID_SERIAL", "DM_SERIAL"]));
    set(&mut identity.wwn.wwn, first(&["ID_WWN", "DM_WWN"]));
    set(&mut identity.wwn.with_extension, first(&["ID_WWN_WITH_EXTENSION", "DM_WWN_WITH_EXTENSION"]));
    set(&mut identity.wwn.vendor_extension, first(&["ID_WWN_VENDOR_EXTENSION", "DM_WWN_VENDOR_EXTENSION"]));
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_sys::testing::machine::MachineTree;

    const SCSI: &str = "pci0000:00/0000:00:05.0/virtio1/host2/target2:0:0/2:0:0:0";

    fn identity(tree: &MachineTree, kname: &str) -> Identity {
        of(&tree.root(), kname, &Chain::of(&tree.root(), kname).unwrap())
    }

    #[test]
    fn scsi_serials_come_from_page_80_and_names_from_page_83() {
        let tree = MachineTree::new().unwrap();
        tree.disk("sda", SCSI, "8:0", &[("device/vendor", "QEMU    "), ("device/model", "QEMU HARDDISK   ")]).unwrap();
        tree.bytes(&format!("sys/devices/{SCSI}/vpd_pg80"), b"\0\x80\0\x05a b c").unwrap();
        tree.bytes(
            &format!("sys/devices/{SCSI}/vpd_pg83"),
            b"\0\x83\0\x0c\x01\x03\0\x08\x50\x00\xc5\x00\x11\x22\x33\x44",
        )
        .unwrap();
        let found = identity(&tree, "sda");
        assert_eq!(found.serial.as_deref(), Some("a b c"));
        assert_eq!(found.serial_short.as_deref(), Some("5000c50011223344"));
        assert_eq!(found.serial_full.as_deref(), Some("35000c50011223344"));
        assert_eq!((found.vendor.as_deref(), found.model.as_deref()), (Some("QEMU"), Some("QEMU HARDDISK")));
        assert_eq!(found.by_id, ["scsi-35000c50011223344", "wwn-0x5000c50011223344"]);
    }

    #[test]
    fn a_scsi_disk_that_tells_nothing_has_no_identity() {
        let tree = MachineTree::new().unwrap();
        tree.disk("sda", SCSI, "8:0", &[]).unwrap();
        assert_eq!(identity(&tree, "sda"), Identity::default());
    }

    #[test]
    fn without_page_83_the_unit_serial_is_all_there_is() {
        let tree = MachineTree::new().unwrap();
        tree.disk("sda", SCSI, "8:0", &[("device/vendor", "DELL"), ("device/model", "PERC H740P")]).unwrap();
        tree.bytes(&format!("sys/devices/{SCSI}/vpd_pg80"), b"\0\x80\0\x04A1B2").unwrap();
        let found = identity(&tree, "sda");
        assert_eq!(found.serial_full.as_deref(), Some("SDELL_PERC_H740P_A1B2"));
        assert_eq!((found.serial.as_deref(), found.serial_short.as_deref()), (Some("A1B2"), Some("A1B2")));
    }

    #[test]
    fn the_udev_database_wins_where_there_is_one() {
        let tree = MachineTree::new().unwrap();
        tree.disk("sda", SCSI, "8:0", &[("device/vendor", "X")]).unwrap();
        tree.bytes(&format!("sys/devices/{SCSI}/vpd_pg80"), b"\0\x80\0\x04page").unwrap();
        tree.file(
            "run/udev/data/b8:0",
            "S:disk/by-id/x\nE:ID_SERIAL_SHORT=udev\nE:ID_SERIAL=Xudev\nE:ID_WWN=0x5\nE:ID_MODEL=",
        )
        .unwrap();
        let found = identity(&tree, "sda");
        assert_eq!((found.serial.as_deref(), found.serial_full.as_deref()), (Some("udev"), Some("Xudev")));
        assert_eq!(found.wwn.wwn.as_deref(), Some("0x5"));
    }

    #[test]
    fn a_usb_stick_is_known_by_the_serial_of_its_usb_device() {
        let tree = MachineTree::new().unwrap();
        let usb = "pci0000:00/0000:00:1d.7/usb1/1-1/1-1:1.0/host6/target6:0:0/6:0:0:0";
        tree.disk("sdb", usb, "8:16", &[("device/vendor", "QEMU"), ("device/model", "QEMU HARDDISK")]).unwrap();
        let device = "sys/devices/pci0000:00/0000:00:1d.7/usb1/1-1";
        tree.file(&format!("{device}/idVendor"), "46f4").unwrap();
        tree.file(&format!("{device}/serial"), "1-0000:00:1d.7-1").unwrap();
        let found = identity(&tree, "sdb");
        assert_eq!(found.serial.as_deref(), Some("1-0000:00:1d.7-1"));
        assert_eq!(found.by_id, ["usb-QEMU_QEMU_HARDDISK_1-0000:00:1d.7-1-0:0"]);
    }

    #[test]
    fn nvme_and_virtio_and_mmc_have_their_own_files() {
        let tree = MachineTree::new().unwrap();
        let nvme = "pci0000:00/0000:00:04.0/nvme/nvme0";
        let attributes = [
            ("device/model", "QEMU NVMe Ctrl   "),
            ("device/serial", "nv1 "),
            ("wwid", "eui.0025388b71b5e6a3"),
            ("nsid", "1"),
        ];
        tree.disk("nvme0n1", nvme, "259:0", &attributes).unwrap();
        let found = identity(&tree, "nvme0n1");
        assert_eq!((found.serial.as_deref(), found.wwn.wwn.as_deref()), (Some("nv1"), Some("eui.0025388b71b5e6a3")));
        let want = ["nvme-QEMU_NVMe_Ctrl_nv1", "nvme-QEMU_NVMe_Ctrl_nv1_1", "nvme-eui.0025388b71b5e6a3"];
        assert_eq!((found.by_id, found.wwn.with_extension), (want.map(str::to_owned).to_vec(), None));

        tree.disk("vda", "pci0000:00/0000:00:03.0/virtio0", "254:0", &[("serial", "v1"), ("device/vendor", "0x1af4")])
            .unwrap();
        let found = identity(&tree, "vda");
        assert_eq!((found.serial.as_deref(), found.vendor.as_deref(), found.model), (Some("v1"), Some("0x1af4"), None));
        assert_eq!(found.by_id, ["virtio-v1"]);

        let mmc = "platform/fe340000.mmc/mmc_host/mmc0/mmc0:0001";
        tree.disk("mmcblk0", mmc, "179:0", &[("device/name", "SC16G"), ("device/serial", "0x1234")]).unwrap();
        assert_eq!(identity(&tree, "mmcblk0").by_id, ["mmc-SC16G_0x1234"]);
    }
}
