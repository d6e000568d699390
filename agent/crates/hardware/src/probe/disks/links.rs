//! Names of a disk in `/dev/disk`: where it is plugged in (`by-path`) and what it is (`by-id`), as udev's `path_id` and
//! its persistent-storage rules form them. Own code, since there is no udev in our image: the init program makes these
//! links, and the inventory and the hints read the same names.

use std::collections::BTreeMap;
use std::path::Path;

use ferric_sys::{Root, attr};

use super::sysfs::{Chain, Hctl, is_numbered};
use super::{identity, vpd};

/// Links of a block device, whole disk or partition, below `/dev/disk`: `by-path/...` and `by-id/...`.
pub fn links(root: &Root, kname: &str) -> Vec<String> {
    let Some(chain) = Chain::of(root, kname) else { return Vec::new() };
    let dir = chain.device();
    if let Some(number) = attr::read_optional(&dir.join("partition")) {
        let disk = dir.parent().and_then(Path::file_name).and_then(|name| name.to_str());
        return disk
            .map(|disk| links(root, disk))
            .unwrap_or_default()
            .into_iter()
            .map(|link| format!("{link}-part{number}"))
            .collect();
    }
    let mut links: Vec<String> = by_path(root, &chain).into_iter().map(|name| format!("by-path/{name}")).collect();
    links.extend(identity::of(root, kname, &chain).by_id.into_iter().map(|name| format!("by-id/{name}")));
    for (attribute, prefix) in [("dm/name", "dm-name-"), ("dm/uuid", "dm-uuid-")] {
        let value = attr::read_optional(&dir.join(attribute));
        links.extend(value.map(|value| format!("by-id/{prefix}{}", vpd::replace_chars(&value))));
    }
    links
}

/// The links that somebody has made, udev or our own init, by the kernel name of the device they lead to.
#[derive(Debug, Default)]
pub(super) struct Made(BTreeMap<String, Vec<String>>);

impl Made {
    /// Reads `/dev/disk`, `/dev/md` and `/dev/mapper`, each once.
    pub(super) fn read(root: &Root) -> Self {
        let mut made = Self::default();
        let below_disk = attr::list(&root.path("dev/disk")).into_iter().map(|name| format!("dev/disk/{name}"));
        for directory in below_disk.chain(["dev/md", "dev/mapper"].map(str::to_owned)) {
            let path = root.path(&directory);
            for name in attr::list(&path) {
                if let Some(kname) = attr::link_name(&path.join(&name)) {
                    made.0.entry(kname).or_default().push(format!("/{directory}/{name}"));
                }
            }
        }
        made
    }

    /// Full paths of the links to a device: those in `by-path`, and all others.
    pub(super) fn to(&self, kname: &str) -> (Vec<String>, Vec<String>) {
        let links = self.0.get(kname).cloned().unwrap_or_default();
        links.into_iter().partition(|link| link.starts_with("/dev/disk/by-path/"))
    }
}

/// Links of what is on a block device: `by-label`, `by-uuid`, `by-partlabel`, `by-partuuid`. Empty texts make none.
pub fn content_links(
    label: Option<&str>,
    uuid: Option<&str>,
    part_label: Option<&str>,
    part_uuid: Option<&str>,
) -> Vec<String> {
    [("by-label", label), ("by-uuid", uuid), ("by-partlabel", part_label), ("by-partuuid", part_uuid)]
        .into_iter()
        .filter_map(|(directory, text)| Some(format!("{directory}/{}", encode(text.filter(|text| !text.is_empty())?))))
        .collect()
}

/// A text as part of a link's name: what udev does not keep becomes `\x` and two hexadecimal digits for each byte.
fn encode(text: &str) -> String {
    let mut name = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii_alphanumeric() || "#+-.:=@_".contains(c) || !c.is_ascii() {
            name.push(c);
        } else {
            let mut bytes = [0; 4];
            for byte in c.encode_utf8(&mut bytes).bytes() {
                name.push_str(&format!("\\x{byte:02x}"));
            }
        }
    }
    name
}

/// Names in `by-path`, the one for the inventory first. Empty when the bus does not say where the disk is.
pub(super) fn by_path(root: &Root, chain: &Chain) -> Vec<String> {
    if let Some((_, subsystem)) = chain.find(|name| is_numbered(name, "nvme-subsys")) {
        return shared_nvme(root, chain, subsystem);
    }
    let Some(device) = device_part(root, chain) else { return Vec::new() };
    let Some(bus) = bus_part(root, chain) else { return Vec::new() };
    let join = |device: String| {
        let parts: Vec<&str> = [bus.as_str(), device.as_str()].into_iter().filter(|part| !part.is_empty()).collect();
        // What a target calls itself must not lead out of the folder of links.
        parts.join("-").replace('/', "_")
    };
    let mut names: Vec<String> = device.into_iter().map(join).collect();
    // The name that virtio disks had before they were named like all others, which udev keeps.
    let old = names.first().filter(|name| chain.is_virtio_blk() && name.starts_with("pci-"));
    names.extend(old.map(|name| format!("virtio-{name}")));
    names
}

/// Names of a namespace for which several controllers may stand, one for each; udev's is that of the controller with the
/// namespace's own number.
fn shared_nvme(root: &Root, chain: &Chain, subsystem: &Path) -> Vec<String> {
    let Some(nsid) = attr::read_optional(&chain.device().join("nsid")) else { return Vec::new() };
    let head = chain.device().file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let mut controllers: Vec<String> =
        attr::list(subsystem).into_iter().filter(|name| is_numbered(name, "nvme")).collect();
    controllers.sort_by_key(|name| !head.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('n')));
    let bus = |name: &String| bus_part(root, &Chain::at(root, &subsystem.join(name))?);
    controllers.iter().filter_map(bus).map(|bus| format!("{bus}-nvme-{nsid}")).collect()
}

/// The host side, from the outermost in: the platform device, the PCI function, the USB port behind it.
fn bus_part(root: &Root, chain: &Chain) -> Option<String> {
    let mut parts = Vec::new();
    let mut before = None;
    for (name, dir) in chain.iter() {
        let bus = bus(name, dir);
        match &bus {
            // Of a row of devices on one bus only the innermost: the bridges right above a PCI function say nothing more.
            // Behind a volume management device (VMD) there is a PCI domain of its own, and the device is named too.
            Some(bus) if before.as_ref() != Some(bus) => parts.push(format!("{bus}-{name}")),
            Some(_) => {}
            None => parts.extend(usb_port(name).map(|port| format!("usb-0:{port}"))),
        }
        before = bus;
    }
    if parts.iter().any(|part| !part.starts_with("usb-")) {
        parts.reverse();
        return Some(parts.join("-"));
    }
    // A network disk may have no bus of the host: its target names it.
    (iscsi(root, chain).is_some() || fibre_channel(root, chain).is_some()).then(String::new)
}

/// The bus that a device is on, of those that name devices.
fn bus(name: &str, dir: &Path) -> Option<String> {
    if is_pci_address(name) {
        return Some("pci".to_owned());
    }
    attr::link_name(&dir.join("subsystem")).filter(|bus| ["platform", "acpi", "xen"].contains(&bus.as_str()))
}

/// The disk behind the host side; several where udev made compatible names. An empty one for disks that are alone
/// there, `None` for buses without a predictable name.
fn device_part(root: &Root, chain: &Chain) -> Option<Vec<String>> {
    if chain.is_virtio_blk() {
        return Some(vec![String::new()]);
    }
    if chain.find(|name| is_numbered(name, "nvme")).is_some() {
        let nsid = attr::read_optional(&chain.device().join("nsid"))?;
        return Some(vec![format!("nvme-{nsid}")]);
    }
    let Some(hctl) = chain.hctl() else {
        // Platform devices such as an SD card controller hold one disk; on PCI, udev does not name such a disk.
        return chain.has_platform().then(|| vec![String::new()]);
    };
    let lun = lun(hctl.lun);
    if chain.find(|name| name.starts_with("rport-")).is_some() {
        return Some(vec![format!("fc-{}-{lun}", fibre_channel(root, chain)?)]);
    }
    if let Some((end_device, _)) = chain.find(|name| name.starts_with("end_device-")) {
        return sas(root, chain, end_device, &lun).map(|name| vec![name]);
    }
    if let Some((port, dir)) = chain.numbered("ata") {
        return ata(port, dir, hctl);
    }
    if let Some(name) = iscsi(root, chain) {
        return Some(vec![format!("{name}-{lun}")]);
    }
    if let Some(guid) = vmbus(chain) {
        return Some(vec![format!("vmbus-{guid}-{lun}")]);
    }
    let host = hctl.host.saturating_sub(first_host(chain));
    Some(vec![format!("scsi-{host}:{}:{}:{}", hctl.channel, hctl.target, hctl.lun)])
}

/// A logical unit number: small ones as they are, those of other addressing methods in the order of their bytes
/// (SAM-5 section 4.7).
fn lun(number: u64) -> String {
    if number < 256 {
        return format!("lun-{number}");
    }
    format!("lun-0x{:04x}{:04x}00000000", number & 0xffff, number >> 16 & 0xffff)
}

/// World-wide name of the array's port.
fn fibre_channel(root: &Root, chain: &Chain) -> Option<String> {
    let (port, _) = chain.find(|name| name.starts_with("rport-"))?;
    attr::read_optional(&root.path("sys/class/fc_remote_ports").join(port).join("port_name"))
}

/// Identifier of the virtual adapter under Hyper-V.
fn vmbus(chain: &Chain) -> Option<String> {
    let (_, host) = chain.numbered("host")?;
    let id = attr::read_optional(&host.parent()?.join("device_id"))?;
    Some(id.chars().filter(|c| !"{}-".contains(*c)).collect())
}

/// ATA: the port, counted within the controller. Disks behind a port multiplier or on a shared cable are told apart.
fn ata(port: &str, dir: &Path, hctl: Hctl) -> Option<Vec<String>> {
    let number = attr::read_optional(&dir.join("ata_port").join(port).join("port_no"))?;
    if hctl.channel != 0 {
        return Some(vec![format!("ata-{number}.{}.0", hctl.channel)]);
    }
    let full = format!("ata-{number}.{}", hctl.target);
    Some(if hctl.target == 0 { vec![format!("ata-{number}"), full] } else { vec![full] })
}

fn sas(root: &Root, chain: &Chain, end_device: &str, lun: &str) -> Option<String> {
    let device = root.path("sys/class/sas_device").join(end_device);
    let (port, _) = chain.find(|name| name.starts_with("port-"))?;
    let phys = attr::read_u64(&root.path("sys/class/sas_port").join(port).join("num_phys")).unwrap_or(1);
    if phys != 1 {
        let address = attr::read_optional(&device.join("sas_address"))?;
        return Some(format!("sas-{address}-{lun}"));
    }
    let phy = attr::read_optional(&device.join("phy_identifier"))?;
    match chain.find(|name| name.starts_with("expander-")) {
        Some((expander, _)) => {
            let address = attr::read_optional(&root.path("sys/class/sas_device").join(expander).join("sas_address"))?;
            Some(format!("sas-exp{address}-phy{phy}-{lun}"))
        }
        None => Some(format!("sas-phy{phy}-{lun}")),
    }
}

/// `ip-ADDRESS:PORT-iscsi-TARGET` of an iSCSI disk.
fn iscsi(root: &Root, chain: &Chain) -> Option<String> {
    let (session, _) = chain.numbered("session")?;
    let target = attr::read_optional(&root.path("sys/class/iscsi_session").join(session).join("targetname"))?;
    let connection =
        root.path("sys/class/iscsi_connection").join(format!("connection{}:0", session.strip_prefix("session")?));
    let address = attr::read_optional(&connection.join("persistent_address"))?;
    let port = attr::read_optional(&connection.join("persistent_port"))?;
    Some(format!("ip-{address}:{port}-iscsi-{target}"))
}

/// The lowest SCSI host number of the controller: host numbers depend on the order of probing, offsets do not.
fn first_host(chain: &Chain) -> u32 {
    let Some(base) = chain.numbered("host").and_then(|(_, dir)| dir.parent()) else { return 0 };
    let number = |name: &str| name.strip_prefix("host")?.parse::<u32>().ok();
    attr::list(base).iter().filter_map(|name| number(name)).min().unwrap_or(0)
}

/// `domain:bus:device.function`.
fn is_pci_address(name: &str) -> bool {
    let hex = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut parts = name.split(':');
    let (Some(domain), Some(bus), Some(rest), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    let Some((device, function)) = rest.split_once('.') else { return false };
    domain.len() >= 4 && hex(domain) && bus.len() == 2 && hex(bus) && device.len() == 2 && hex(device) && hex(function)
}

/// Port, configuration and interface of a USB interface: `1.2:1.0` of `1-1.2:1.0`, where the port is `1.2` behind hubs.
fn usb_port(name: &str) -> Option<&str> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let (bus, rest) = name.split_once('-')?;
    let (port, interface) = rest.split_once(':')?;
    (digits(bus) && digits(port) && digits(interface)).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_sys::testing::machine::MachineTree;

    fn names(tree: &MachineTree, kname: &str) -> Vec<String> {
        by_path(&tree.root(), &Chain::of(&tree.root(), kname).unwrap())
    }

    /// Kernel name, place below `sys/devices`, and names.
    type Case = (&'static str, &'static str, &'static [&'static str]);

    const CASES: &[Case] = &[
        ("vda", "pci0000:00/0000:00:03.0/virtio0", &["pci-0000:00:03.0", "virtio-pci-0000:00:03.0"]),
        ("sda", "pci0000:00/0000:00:05.0/virtio1/host2/target2:0:1/2:0:1:3", &["pci-0000:00:05.0-scsi-0:0:1:3"]),
        (
            "sdb",
            "pci0000:00/0000:00:1f.2/ata3/host3/target3:0:0/3:0:0:0",
            &["pci-0000:00:1f.2-ata-3", "pci-0000:00:1f.2-ata-3.0"],
        ),
        ("sdc", "pci0000:00/0000:00:01.1/ata1/host0/target0:0:1/0:0:1:0", &["pci-0000:00:01.1-ata-1.1"]),
        ("nvme0n1", "pci0000:00/0000:00:1c.0/0000:01:00.0/nvme/nvme0", &["pci-0000:01:00.0-nvme-1"]),
        (
            "sdd",
            "pci0000:00/0000:00:1d.7/usb1/1-1/1-1.2/1-1.2:1.0/host6/target6:0:0/6:0:0:0",
            &["pci-0000:00:1d.7-usb-0:1.2:1.0-scsi-0:0:0:0"],
        ),
        (
            "sde",
            "pci0000:00/0000:00:02.0/0000:03:00.0/host1/port-1:2/end_device-1:2/target1:0:2/1:0:2:0",
            &["pci-0000:03:00.0-sas-phy2-lun-0"],
        ),
        (
            "sdf",
            "pci0000:00/0000:00:02.0/0000:03:00.0/host1/port-1:0/expander-1:0/port-1:0:4/end_device-1:0:4/target1:0:9/1:0:9:0",
            &["pci-0000:03:00.0-sas-exp0x500056b31234abff-phy4-lun-0"],
        ),
        (
            "sdg",
            "platform/host8/session1/target8:0:0/8:0:0:1",
            &["ip-192.0.2.9:3260-iscsi-iqn.2026-01.org.example:t-lun-1"],
        ),
        // A drive that the system's volume management device has taken into a PCI domain of its own.
        (
            "nvme1n1",
            "pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0/10000:e1:00.0/nvme/nvme1",
            &["pci-0000:00:0e.0-pci-10000:e1:00.0-nvme-2"],
        ),
        // Through a switch, and a unit with a number of the flat kind.
        (
            "sdh",
            "pci0000:3a/0000:3a:00.0/0000:3b:00.1/host9/rport-9:0-2/target9:0:1/9:0:1:16640",
            &["pci-0000:3b:00.1-fc-0x500a0981894b8dc5-lun-0x4100000000000000"],
        ),
        // A wide port: several phys lead to the same end device, and none of them names it.
        (
            "sdi",
            "pci0000:00/0000:00:02.0/0000:04:00.0/host4/port-4:1/end_device-4:1/target4:0:0/4:0:0:0",
            &["pci-0000:04:00.0-sas-0x5000c500a1b2c3d5-lun-0"],
        ),
        // The second adapter of one card: its host number depends on what was found first, its place does not.
        ("sdj", "pci0000:00/0000:00:06.0/host11/target11:2:3/11:2:3:0", &["pci-0000:00:06.0-scsi-1:2:3:0"]),
        ("sdk", "pci0000:00/0000:00:1f.5/ata9/host12/target12:15:0/12:15:0:0", &["pci-0000:00:1f.5-ata-2.15.0"]),
        (
            "sdl",
            "LNXSYSTM:00/VMBUS:00/a0b1/host13/target13:0:0/13:0:0:1",
            &["acpi-VMBUS:00-vmbus-f8b3781a1e824818a1c363d806ec15bb-lun-1"],
        ),
        // An SD card reader on PCI is no bus that udev names disks by; on the platform bus it is.
        ("mmcblk0", "pci0000:00/0000:00:1e.6/mmc_host/mmc0/mmc0:aaaa", &[]),
        ("mmcblk1", "platform/fe340000.mmc/mmc_host/mmc1/mmc1:aaaa", &["platform-fe340000.mmc"]),
        ("dm-0", "virtual/dm", &[]),
        ("nvme2n1", "virtual/nvme-subsystem/nvme-subsys2", &[]),
    ];

    #[test]
    fn every_bus_names_its_disks_as_udev_does() {
        let tree = MachineTree::new().unwrap();
        for (number, (kname, device, _)) in CASES.iter().enumerate() {
            tree.disk(kname, device, &format!("8:{number}"), &[]).unwrap();
        }
        tree.file("sys/devices/pci0000:00/0000:00:1f.2/ata3/ata_port/ata3/port_no", "3").unwrap();
        tree.file("sys/devices/pci0000:00/0000:00:01.1/ata1/ata_port/ata1/port_no", "1").unwrap();
        tree.file("sys/block/nvme0n1/nsid", "1").unwrap();
        tree.file("sys/class/sas_device/end_device-1:2/phy_identifier", "2").unwrap();
        tree.file("sys/class/sas_port/port-1:2/num_phys", "1").unwrap();
        tree.file("sys/class/sas_device/end_device-1:0:4/phy_identifier", "4").unwrap();
        tree.file("sys/class/sas_device/expander-1:0/sas_address", "0x500056b31234abff").unwrap();
        tree.file("sys/class/iscsi_session/session1/targetname", "iqn.2026-01.org.example:t").unwrap();
        tree.file("sys/class/iscsi_connection/connection1:0/persistent_address", "192.0.2.9").unwrap();
        tree.file("sys/class/iscsi_connection/connection1:0/persistent_port", "3260").unwrap();
        tree.file("sys/block/nvme1n1/nsid", "2").unwrap();
        tree.file("sys/block/nvme2n1/nsid", "1").unwrap();
        tree.file("sys/class/fc_remote_ports/rport-9:0-2/port_name", "0x500a0981894b8dc5").unwrap();
        tree.file("sys/class/sas_port/port-4:1/num_phys", "4").unwrap();
        tree.file("sys/class/sas_device/end_device-4:1/sas_address", "0x5000c500a1b2c3d5").unwrap();
        tree.file("sys/devices/pci0000:00/0000:00:06.0/host10/uevent", "").unwrap();
        tree.file("sys/devices/pci0000:00/0000:00:1f.5/ata9/ata_port/ata9/port_no", "2").unwrap();
        tree.file("sys/devices/LNXSYSTM:00/VMBUS:00/a0b1/device_id", "{f8b3781a-1e82-4818-a1c3-63d806ec15bb}").unwrap();
        tree.link("sys/devices/LNXSYSTM:00/VMBUS:00/subsystem", "sys/bus/acpi").unwrap();
        tree.link("sys/devices/platform/fe340000.mmc/subsystem", "sys/bus/platform").unwrap();
        for (kname, device, want) in CASES {
            assert_eq!(names(&tree, kname), *want, "{device}");
        }
    }

    #[test]
    fn a_shared_namespace_has_the_places_of_its_controllers_that_of_its_own_number_first() {
        let tree = MachineTree::new().unwrap();
        tree.disk("nvme1n1", "virtual/nvme-subsystem/nvme-subsys1", "259:0", &[("nsid", "3")]).unwrap();
        assert!(names(&tree, "nvme1n1").is_empty(), "no controller is known");
        let subsystem = "sys/devices/virtual/nvme-subsystem/nvme-subsys1";
        for (name, place) in [
            ("nvme0", "pci0000:00/0000:00:12.0/nvme/nvme0"),
            ("nvme1", "pci0000:00/0000:00:13.0/nvme/nvme1"),
            ("nvme11", "virtual/nvme-fabrics/ctl/nvme11"),
        ] {
            tree.file(&format!("sys/devices/{place}/state"), "live").unwrap();
            tree.link(&format!("{subsystem}/{name}"), &format!("sys/devices/{place}")).unwrap();
        }
        assert_eq!(names(&tree, "nvme1n1"), ["pci-0000:00:13.0-nvme-3", "pci-0000:00:12.0-nvme-3"]);
    }

    #[test]
    fn partitions_have_the_links_of_their_disk_with_a_number() {
        let tree = MachineTree::new().unwrap();
        tree.disk("vda", "pci0000:00/0000:00:03.0/virtio0", "254:0", &[("serial", "s 1"), ("vda2/partition", "2")])
            .unwrap();
        tree.link("sys/class/block/vda2", "sys/devices/pci0000:00/0000:00:03.0/virtio0/block/vda/vda2").unwrap();
        let disk = ["by-path/pci-0000:00:03.0", "by-path/virtio-pci-0000:00:03.0", "by-id/virtio-s_1"];
        assert_eq!(links(&tree.root(), "vda"), disk);
        assert_eq!(links(&tree.root(), "vda2"), disk.map(|link| format!("{link}-part2")));
        assert!(links(&tree.root(), "gone").is_empty());
    }

    #[test]
    fn contents_are_encoded_as_udev_does() {
        assert_eq!(
            content_links(Some("my disk/1"), Some("F4BC-1234"), Some(""), None),
            ["by-label/my\\x20disk\\x2f1", "by-uuid/F4BC-1234"]
        );
        assert_eq!(encode("größe"), "größe");
    }

    #[test]
    fn pci_and_usb_names_are_told_apart() {
        for (name, pci, usb) in [
            ("0000:00:1f.2", true, false),
            ("10000:e1:00.0", true, false),
            ("0:0:0:0", false, false),
            ("pci0000:00", false, false),
            ("1-1.2:1.0", false, true),
            ("1-1", false, false),
            ("port-1:0", false, false),
        ] {
            assert_eq!((is_pci_address(name), usb_port(name).is_some()), (pci, usb), "{name}");
        }
    }
}
