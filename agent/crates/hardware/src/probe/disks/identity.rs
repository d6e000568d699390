//! Model, serial number and world-wide name of a disk, by the kind of disk it is.
//!
//! One defined precedence: the udev database where there is one (a ramdisk with udev), else what udev would have
//! stored there, from the same sources.

use std::collections::BTreeMap;
use std::path::Path;

use ferric_sys::{Root, attr};

use super::pages::Pages;
use super::sysfs::Chain;
use super::vpd::{self, AtaIdentity, ScsiIdentity, Wwn, replace_chars, underscores};

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
    /// `ID_SERIAL` as some versions of udev have it.
    pub(super) serial_other: Option<String>,
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
        scsi(root, kname, chain)
    } else {
        Identity::default()
    };
    identity.vendor = attr::read_optional(&dir.join("device/vendor"));
    identity.with_udev(root, dir)
}

/// Identity of a multipath device: that of one of its paths, and what udev knows of the device itself.
pub(super) fn of_multipath(root: &Root, chain: &Chain, path: &str, path_chain: &Chain) -> Identity {
    of(root, path, path_chain).with_udev(root, chain.device())
}

impl Identity {
    fn with_udev(mut self, root: &Root, dir: &Path) -> Self {
        if let Some(properties) = udev_properties(root, dir) {
            apply_udev(&mut self, &properties);
        }
        self
    }
}

fn nvme(dir: &Path) -> Identity {
    let model = attr::read_optional(&dir.join("device/model"));
    let serial = attr::read_optional(&dir.join("device/serial"));
    let wwid = attr::read_optional(&dir.join("wwid")).or_else(|| nvme_name(dir));
    let full = model.as_ref().zip(serial.as_ref()).map(|(model, serial)| format!("{model}_{serial}"));
    let full = full.map(|full| replace_chars(&full));
    // Since version 253 the namespace is a part of it.
    let with_namespace = full.as_ref().zip(attr::read_optional(&dir.join("nsid")));
    let with_namespace = with_namespace.map(|(full, nsid)| format!("{full}_{nsid}"));
    let mut by_id: Vec<String> = full.iter().chain(&with_namespace).map(|full| format!("nvme-{full}")).collect();
    by_id.extend(wwid.as_ref().map(|wwid| format!("nvme-{}", replace_chars(wwid))));
    Identity {
        model,
        serial: serial.clone(),
        serial_short: serial,
        serial_full: full,
        serial_other: with_namespace,
        wwn: Wwn { wwn: wwid, ..Wwn::default() },
        by_id,
        ..Identity::default()
    }
}

/// The namespace's name, as newer kernels put it together in `wwid`, from its parts: the NGUID, else the EUI-64.
fn nvme_name(dir: &Path) -> Option<String> {
    let name = |attribute: &str| {
        let text = attr::read_optional(&dir.join(attribute))?;
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        digits.bytes().any(|digit| digit != b'0').then(|| format!("eui.{}", digits.to_lowercase()))
    };
    name("nguid").or_else(|| name("eui"))
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

fn scsi(root: &Root, kname: &str, chain: &Chain) -> Identity {
    let dir = chain.device();
    let vendor = attr::read_optional(&dir.join("device/vendor")).unwrap_or_default();
    let model = attr::read_optional(&dir.join("device/model"));
    let Pages { unit_serial, identification, ata } = Pages::of(root, kname, chain, &vendor);
    let unit_serial = unit_serial.and_then(|page| vpd::unit_serial(&page));
    let scsi = identification.and_then(|page| vpd::scsi_identity(&page, &vendor, model.as_deref().unwrap_or("")));
    if chain.numbered("usb").is_some() {
        // A disk in an enclosure is what it is in there, when the bridge tells (USB attached SCSI); a stick is not asked.
        let is_fixed = attr::read_optional(&dir.join("removable")).is_some_and(|flag| flag == "0");
        return match ata.filter(|_| is_fixed) {
            Some(ata) => ata_disk(model, unit_serial, ata, scsi),
            None => usb(&vendor, model, chain, scsi),
        };
    }
    if vendor == "ATA" {
        return ata_disk(model, unit_serial, ata.unwrap_or_default(), scsi);
    }
    let identity = scsi.unwrap_or_else(|| match &unit_serial {
        // What scsi_id falls back to.
        Some(serial) => ScsiIdentity {
            serial: replace_chars(&underscores(&format!("S{vendor:<8}{:<16}{serial}", model.as_deref().unwrap_or("")))),
            serial_short: replace_chars(&underscores(serial)),
            wwn: Wwn::default(),
        },
        None => ScsiIdentity::default(),
    });
    let some = |text: String| Some(text).filter(|text| !text.is_empty());
    let short = some(identity.serial_short);
    let full = some(identity.serial);
    let mut by_id: Vec<String> = full.iter().map(|full| format!("scsi-{full}")).collect();
    by_id.extend(identity.wwn.with_extension.iter().map(|wwn| format!("wwn-{}", replace_chars(wwn))));
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
    // Blanks inside are legal in a serial number, and udev's `ata_id` keeps none.
    let serial = ata.serial.or(unit_serial).map(|serial| replace_chars(&underscores(&serial)));
    let wwn = match ata.wwn {
        Some(wwn) => Wwn::of_ata(wwn),
        None => scsi.map(|identity| identity.wwn).unwrap_or_default(),
    };
    let parts: Vec<&str> = [&model, &serial].into_iter().flatten().map(String::as_str).collect();
    let full = Some(replace_chars(&underscores(&parts.join("_")))).filter(|full| !full.is_empty());
    let mut by_id: Vec<String> = full.iter().map(|full| format!("ata-{full}")).collect();
    by_id.extend(wwn.with_extension.iter().map(|wwn| format!("wwn-{wwn}")));
    Identity { model, serial_short: serial.clone(), serial, serial_full: full, wwn, by_id, ..Identity::default() }
}

fn usb(vendor: &str, model: Option<String>, chain: &Chain, scsi: Option<ScsiIdentity>) -> Identity {
    // The USB mass storage specification wants hexadecimal digits; what does not even print is not believed.
    let is_sound = |serial: &String| serial.bytes().all(|byte| (0x20..0x7f).contains(&byte) && byte != b',');
    let serial = chain.usb("serial").filter(is_sound).map(|serial| replace_chars(&underscores(&serial)));
    // What the disk does not say, the USB device does.
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let vendor = some(vendor).or_else(|| chain.usb("manufacturer")).or_else(|| chain.usb("idVendor"));
    let product = model.clone().or_else(|| chain.usb("product")).or_else(|| chain.usb("idProduct"));
    let names: Vec<String> = [vendor, product].into_iter().flatten().collect();
    if names.is_empty() && serial.is_none() {
        return Identity::default();
    }
    let mut full = underscores(&names.join("_"));
    if let Some(serial) = &serial {
        full = format!("{full}_{serial}");
    }
    // The units of a card reader are told apart.
    if let Some(hctl) = chain.hctl() {
        full = format!("{full}-{}:{}", hctl.target, hctl.lun);
    }
    let full = replace_chars(&full);
    Identity {
        model,
        by_id: vec![format!("usb-{full}")],
        serial: Some(serial.clone().unwrap_or_else(|| full.clone())),
        serial_short: serial,
        serial_full: Some(full),
        wwn: scsi.map(|identity| identity.wwn).unwrap_or_default(),
        ..Identity::default()
    }
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
        assert_eq!(found.serial_full.as_deref(), Some("QEMU_QEMU_HARDDISK_1-0000:00:1d.7-1-0:0"));
        // What does not print is no serial number: the maker left the memory as it was.
        tree.file(&format!("{device}/serial"), "\u{7f}\u{7f}").unwrap();
        let nameless = identity(&tree, "sdb");
        assert_eq!((nameless.serial.as_deref(), nameless.serial_short), (Some("QEMU_QEMU_HARDDISK-0:0"), None));
    }

    #[test]
    fn a_disk_in_a_usb_enclosure_is_known_by_its_own_name() {
        let tree = MachineTree::new().unwrap();
        let usb = "pci0000:00/0000:00:14.0/usb2/2-3/2-3:1.0/host7/target7:0:0/7:0:0:0";
        tree.disk("sdc", usb, "8:32", &[("removable", "0"), ("device/vendor", "JMicron"), ("device/model", "Tech")])
            .unwrap();
        tree.file("sys/devices/pci0000:00/0000:00:14.0/usb2/2-3/idVendor", "152d").unwrap();
        tree.file("sys/devices/pci0000:00/0000:00:14.0/usb2/2-3/serial", "0123456789ABCDEF").unwrap();
        let mut page = vec![0; 572];
        page[1] = 0x89;
        page[60 + 20..60 + 24].copy_from_slice(b"1S 2");
        page[60 + 54..60 + 58].copy_from_slice(b"oMed");
        tree.bytes(&format!("sys/devices/{usb}/vpd_pg89"), &page).unwrap();
        let found = identity(&tree, "sdc");
        assert_eq!((found.model.as_deref(), found.serial.as_deref()), (Some("Mode"), Some("S12")));
        assert_eq!(found.by_id, ["ata-Mode_S12"]);
        tree.file("sys/block/sdc/removable", "1").unwrap();
        assert_eq!(identity(&tree, "sdc").serial.as_deref(), Some("0123456789ABCDEF"));
    }

    #[test]
    fn nvme_namespaces_of_old_kernels_are_named_by_their_parts() {
        let tree = MachineTree::new().unwrap();
        let nvme = "pci0000:00/0000:00:04.0/nvme/nvme0";
        tree.disk("nvme0n1", nvme, "259:0", &[("eui", "00 25 38 8b 71 b5 e6 a3")]).unwrap();
        assert_eq!(identity(&tree, "nvme0n1").wwn.wwn.as_deref(), Some("eui.0025388b71b5e6a3"));
        tree.file("sys/block/nvme0n1/nguid", "00000000-0000-0000-0000-000000000000").unwrap();
        assert_eq!(identity(&tree, "nvme0n1").wwn.wwn.as_deref(), Some("eui.0025388b71b5e6a3"));
        tree.file("sys/block/nvme0n1/nguid", "01000000-0000-0000-5CD2-E4A1B2C3D401").unwrap();
        assert_eq!(identity(&tree, "nvme0n1").wwn.wwn.as_deref(), Some("eui.01000000000000005cd2e4a1b2c3d401"));
    }

    #[test]
    fn no_name_leads_out_of_the_folder_of_links() {
        let tree = MachineTree::new().unwrap();
        let hostile = "../../../../etc/x";
        tree.disk("vda", "pci0000:00/0000:00:03.0/virtio0", "254:0", &[("serial", hostile)]).unwrap();
        let nvme = [("device/model", hostile), ("device/serial", hostile), ("wwid", hostile), ("nsid", "1")];
        tree.disk("nvme0n1", "pci0000:00/0000:00:04.0/nvme/nvme0", "259:0", &nvme).unwrap();
        let mmc = [("device/name", hostile), ("device/serial", hostile)];
        tree.disk("mmcblk0", "platform/mmc_host/mmc0/mmc0:0001", "179:0", &mmc).unwrap();
        tree.disk("sda", SCSI, "8:0", &[("device/vendor", hostile), ("device/model", hostile)]).unwrap();
        let text = [&b"\x02\x03\0\x11"[..], hostile.as_bytes()].concat();
        tree.bytes(&format!("sys/devices/{SCSI}/vpd_pg83"), &[b"\0\x83\0\x15", &text[..]].concat()).unwrap();
        for kname in ["vda", "nvme0n1", "mmcblk0", "sda"] {
            let names = identity(&tree, kname).by_id;
            assert!(!names.is_empty() && names.iter().all(|name| !name.contains('/')), "{kname}: {names:?}");
        }
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
