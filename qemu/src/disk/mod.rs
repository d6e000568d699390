//! Disks as the guest sees them: bus, identity, sector size, and injected trouble.
//!
//! A disk is a chain of QEMU block nodes, outermost first: format (raw, qcow2), throttle, blkdebug, file. A raw disk has
//! a raw node too, so that node names do not depend on what is in the chain.

mod trouble;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

pub use trouble::{FaultyIo, IoFault, Throttle};

use trouble::{fault_rule, throttle_group, throttle_id};

/// How a disk is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskBus {
    /// virtio-blk: `/dev/vda`.
    VirtioBlk,
    /// A SCSI disk behind virtio-scsi: `/dev/sda`.
    VirtioScsi,
    /// SATA behind the chipset's AHCI: `/dev/sda`. At most six.
    Ahci,
    /// NVMe, one controller for each disk: `/dev/nvme0n1`.
    Nvme,
    /// USB mass storage behind xHCI: `/dev/sda`.
    Usb,
    /// A SCSI disk behind an LSI SAS1068 (Fusion-MPT).
    Sas,
    /// A SCSI disk behind a MegaRAID SAS controller.
    MegaRaid,
    /// A CD drive on AHCI: `/dev/sr0`; always read-only.
    Cdrom,
    /// An SD card behind an SDHCI controller: `/dev/mmcblk0`. One only, of a size that is a power of two; its identity
    /// cannot be set.
    SdCard,
    /// A disk in the floppy drive of an ISA controller: `/dev/fd0`, 1.44 MB. One only.
    Floppy,
}

/// Format of the file behind a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskFormat {
    /// Bytes as they are.
    Raw,
    /// qcow2.
    Qcow2,
}

impl DiskBus {
    /// Whether each disk is a PCI device of its own.
    pub fn is_pci(self) -> bool {
        matches!(self, Self::VirtioBlk | Self::Nvme)
    }
}

impl DiskFormat {
    /// QEMU's name for it.
    pub fn driver(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}

/// One disk of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    path: PathBuf,
    bus: DiskBus,
    format: DiskFormat,
    serial: Option<String>,
    wwn: Option<u64>,
    model: Option<String>,
    logical_block: u32,
    physical_block: u32,
    read_only: bool,
    removable: bool,
    discard: bool,
    durable: bool,
    loses_writes: bool,
    throttle: Option<Throttle>,
    faults: Vec<IoFault>,
}

impl Disk {
    /// A raw file of `path` on `bus`, 512-byte sectors.
    pub fn new(bus: DiskBus, path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_owned(),
            bus,
            format: DiskFormat::Raw,
            serial: None,
            wwn: None,
            model: None,
            logical_block: 512,
            physical_block: 512,
            read_only: bus == DiskBus::Cdrom,
            removable: false,
            discard: true,
            durable: false,
            loses_writes: false,
            throttle: None,
            faults: Vec::new(),
        }
    }

    /// Format of the file; raw unless said.
    #[must_use]
    pub fn format(mut self, format: DiskFormat) -> Self {
        self.format = format;
        self
    }

    /// Serial number: at most 20 characters for the guest to see all of it.
    #[must_use]
    pub fn serial(mut self, serial: &str) -> Self {
        self.serial = Some(serial.to_owned());
        self
    }

    /// World wide name (NAA, 64 bits); for NVMe the namespace's EUI-64, which Linux does
    /// not believe of QEMU and replaces. virtio-blk and USB have none.
    #[must_use]
    pub fn wwn(mut self, wwn: u64) -> Self {
        self.wwn = Some(wwn);
        self
    }

    /// Model name, where the bus has one that can be set: AHCI (40 characters) and SCSI (16).
    #[must_use]
    pub fn model(mut self, model: &str) -> Self {
        self.model = Some(model.to_owned());
        self
    }

    /// Logical and physical sector size in bytes: (512, 512), (512, 4096) or (4096, 4096). QEMU's AHCI and USB
    /// disks are always 512 logical.
    #[must_use]
    pub fn block_size(mut self, logical: u32, physical: u32) -> Self {
        self.logical_block = logical;
        self.physical_block = physical;
        self
    }

    /// Write-protected, as the guest sees it too. QEMU refuses it for AHCI and NVMe.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Reported as removable (SCSI and USB).
    #[must_use]
    pub fn removable(mut self) -> Self {
        self.removable = true;
        self
    }

    /// Refuses discard, as an old disk does.
    #[must_use]
    pub fn no_discard(mut self) -> Self {
        self.discard = false;
        self
    }

    /// Flushes of the guest reach the host's disk. Left out by default: the file outlives QEMU, not the host.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Takes every write, and reads as zeroes all the same; only the file's size matters.
    #[must_use]
    pub fn loses_writes(mut self) -> Self {
        self.loses_writes = true;
        self
    }

    /// Limits the speed.
    #[must_use]
    pub fn throttle(mut self, throttle: Throttle) -> Self {
        self.throttle = Some(throttle);
        self
    }

    /// Makes requests fail.
    #[must_use]
    pub fn fault(mut self, fault: IoFault) -> Self {
        self.faults.push(fault);
        self
    }

    /// The file behind the disk.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The bus it is on.
    pub fn bus(&self) -> DiskBus {
        self.bus
    }

    /// Name of the block node the device uses.
    pub fn node_name(index: usize) -> String {
        format!("disk{index}")
    }

    /// Arguments for the block nodes.
    pub(crate) fn backend_args(&self, index: usize) -> Vec<String> {
        let mut args = Vec::new();
        args.extend(self.throttle_group(index).into_iter().flat_map(|group| ["-object".to_owned(), group.to_string()]));
        args.extend(["-blockdev".to_owned(), self.blockdev(index).to_string()]);
        args
    }

    /// The chain of block nodes, for `-blockdev` and QMP `blockdev-add`.
    pub fn blockdev(&self, index: usize) -> Value {
        let discard = if self.discard { "unmap" } else { "ignore" };
        let cache = json!({"direct": false, "no-flush": !self.durable});
        let mut node = json!({
            "driver": "file", "filename": self.path, "discard": discard, "read-only": self.read_only,
            "auto-read-only": false, "cache": cache.clone(),
        });
        if self.loses_writes {
            let size_bytes = std::fs::metadata(&self.path).map(|file| file.len()).unwrap_or_default();
            node = json!({"driver": "null-co", "size": size_bytes, "read-zeroes": true});
        }
        if !self.faults.is_empty() {
            let rules: Vec<Value> = self.faults.iter().map(fault_rule).collect();
            node = json!({"driver": "blkdebug", "image": node, "inject-error": rules, "discard": discard, "cache": cache.clone()});
        }
        if self.throttle.is_some() {
            node = json!({
                "driver": "throttle", "throttle-group": throttle_id(index), "file": node, "discard": discard, "cache": cache.clone(),
                "read-only": self.read_only,
            });
        }
        json!({
            "driver": self.format.driver(), "node-name": Self::node_name(index), "file": node, "discard": discard,
            "read-only": self.read_only, "cache": cache,
        })
    }

    /// The throttle group of a disk with speed limits, for `-object` and QMP `object-add`.
    pub(crate) fn throttle_group(&self, index: usize) -> Option<Value> {
        self.throttle.map(|limits| throttle_group(index, limits))
    }

    /// QEMU's name of the device.
    pub fn device_id(index: usize) -> String {
        format!("dev{index}")
    }

    /// Arguments for the device; see [`devices`](Self::devices).
    pub(crate) fn device_args(&self, index: usize, port: usize, bootindex: Option<usize>) -> Vec<String> {
        self.devices(index, port, bootindex, None)
            .into_iter()
            .flat_map(|device| ["-device".to_owned(), device])
            .collect()
    }

    /// The devices (most often one) that make the disk. `port` counts the disks on the same bus; `bootindex` is its place in the boot
    /// order; `slot` the hot-plug slot of a PCI disk.
    pub(crate) fn devices(
        &self,
        index: usize,
        port: usize,
        bootindex: Option<usize>,
        slot: Option<usize>,
    ) -> Vec<String> {
        let mut device = vec![("driver", self.driver().to_owned())];
        match self.bus {
            DiskBus::Ahci | DiskBus::Cdrom => device.push(("bus", format!("ide.{port}"))),
            DiskBus::VirtioScsi => device.push(("bus", "vscsi0.0".into())),
            DiskBus::Sas => device.push(("bus", "sas0.0".into())),
            DiskBus::MegaRaid => device.push(("bus", "megaraid0.0".into())),
            DiskBus::Usb => device.push(("bus", "xhci0.0".into())),
            DiskBus::VirtioBlk | DiskBus::Nvme => device.extend(slot.map(|slot| ("bus", format!("hot{slot}")))),
            DiskBus::SdCard | DiskBus::Floppy => {
                device.extend([("id", Self::device_id(index)), ("drive", Self::node_name(index))]);
                device.extend((self.bus == DiskBus::Floppy).then(|| ("drive-type", "144".to_owned())));
                return vec![join(&device)];
            }
        }
        // QEMU wants a serial for NVMe.
        let serial = match (&self.serial, self.bus) {
            (None, DiskBus::Nvme) => Some(format!("NVME{index}")),
            (serial, _) => serial.clone(),
        };
        device.extend(serial.map(|serial| ("serial", serial)));
        device.push(("id", Self::device_id(index)));
        if self.bus == DiskBus::Nvme && self.wwn.is_some() {
            // The identity belongs to the namespace then, and boot order to the controller.
            device.extend(bootindex.map(|place| ("bootindex", place.to_string())));
            let namespace = self.nvme_namespace(index);
            return vec![join(&device), join(&namespace)];
        }
        device.push(("drive", Self::node_name(index)));
        device.extend(self.sizes());
        let scsi = matches!(self.bus, DiskBus::VirtioScsi | DiskBus::Sas | DiskBus::MegaRaid);
        if let Some(wwn) = self.wwn.filter(|_| scsi || self.bus == DiskBus::Ahci) {
            device.push(("wwn", format!("{wwn:#x}")));
        }
        if let Some(model) = self.model.as_ref().filter(|_| scsi || self.bus == DiskBus::Ahci) {
            device.push((if scsi { "product" } else { "model" }, model.clone()));
        }
        if self.removable && (scsi || self.bus == DiskBus::Usb) {
            device.push(("removable", "on".into()));
        }
        device.extend(bootindex.map(|place| ("bootindex", place.to_string())));
        vec![join(&device)]
    }

    fn driver(&self) -> &'static str {
        match self.bus {
            DiskBus::VirtioBlk => "virtio-blk-pci",
            DiskBus::VirtioScsi | DiskBus::Sas | DiskBus::MegaRaid => "scsi-hd",
            DiskBus::Ahci => "ide-hd",
            DiskBus::Nvme => "nvme",
            DiskBus::Usb => "usb-storage",
            DiskBus::Cdrom => "ide-cd",
            DiskBus::SdCard => "sd-card",
            DiskBus::Floppy => "floppy",
        }
    }

    fn sizes(&self) -> Vec<(&'static str, String)> {
        if self.bus == DiskBus::Cdrom {
            return Vec::new();
        }
        vec![
            ("logical_block_size", self.logical_block.to_string()),
            ("physical_block_size", self.physical_block.to_string()),
        ]
    }

    fn nvme_namespace(&self, index: usize) -> Vec<(&'static str, String)> {
        let mut namespace =
            vec![("driver", "nvme-ns".to_owned()), ("bus", Self::device_id(index)), ("drive", Self::node_name(index))];
        namespace.extend(self.wwn.map(|wwn| ("eui64", format!("{wwn:#x}"))));
        namespace.extend(self.sizes());
        namespace
    }

    /// Bytes in a logical sector.
    pub fn logical_block_bytes(&self) -> u32 {
        self.logical_block
    }
}

/// The host controller a bus needs beside what the chipset has: its `-device` value.
pub(crate) fn controller(bus: DiskBus) -> Option<&'static str> {
    match bus {
        DiskBus::VirtioScsi => Some("virtio-scsi-pci,id=vscsi0"),
        DiskBus::Sas => Some("mptsas1068,id=sas0"),
        DiskBus::MegaRaid => Some("megasas,id=megaraid0"),
        DiskBus::Usb => Some("qemu-xhci,id=xhci0"),
        DiskBus::SdCard => Some("sdhci-pci,id=sdhci0"),
        DiskBus::Floppy => Some("isa-fdc,id=fdc0"),
        DiskBus::VirtioBlk | DiskBus::Ahci | DiskBus::Nvme | DiskBus::Cdrom => None,
    }
}

/// `driver,key=value,...` with the commas inside values doubled, as QEMU's option syntax wants.
pub(crate) fn join(options: &[(&str, String)]) -> String {
    let mut text = String::new();
    for (key, value) in options {
        if !text.is_empty() {
            text.push(',');
            text.push_str(key);
            text.push('=');
        }
        text.push_str(&value.replace(',', ",,"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bus_gives_its_device() {
        let wwn = 0x5000_c500_1234_5678;
        let plain = |bus| Disk::new(bus, "/d").serial("S1").model("A, B").wwn(wwn);
        let cases = [
            (
                DiskBus::VirtioBlk,
                "virtio-blk-pci,serial=S1,id=dev0,drive=disk0,logical_block_size=512,physical_block_size=512,bootindex=1",
            ),
            (
                DiskBus::VirtioScsi,
                "scsi-hd,bus=vscsi0.0,serial=S1,id=dev0,drive=disk0,logical_block_size=512,physical_block_size=512,wwn=0x5000c50012345678,product=A,, B,bootindex=1",
            ),
            (
                DiskBus::Ahci,
                "ide-hd,bus=ide.2,serial=S1,id=dev0,drive=disk0,logical_block_size=512,physical_block_size=512,wwn=0x5000c50012345678,model=A,, B,bootindex=1",
            ),
            (
                DiskBus::Usb,
                "usb-storage,bus=xhci0.0,serial=S1,id=dev0,drive=disk0,logical_block_size=512,physical_block_size=512,bootindex=1",
            ),
            (DiskBus::Cdrom, "ide-cd,bus=ide.2,serial=S1,id=dev0,drive=disk0,bootindex=1"),
            (DiskBus::SdCard, "sd-card,id=dev0,drive=disk0"),
            (DiskBus::Floppy, "floppy,id=dev0,drive=disk0,drive-type=144"),
        ];
        for (bus, expected) in cases {
            assert_eq!(plain(bus).device_args(0, 2, Some(1)), ["-device", expected], "{bus:?}");
        }
    }

    #[test]
    fn nvme_always_has_a_serial_and_an_identity_goes_to_a_namespace() {
        let args = Disk::new(DiskBus::Nvme, "/d").block_size(4096, 4096).device_args(3, 0, None);
        assert_eq!(
            args,
            ["-device", "nvme,serial=NVME3,id=dev3,drive=disk3,logical_block_size=4096,physical_block_size=4096"]
        );
        let args = Disk::new(DiskBus::Nvme, "/d").wwn(1).device_args(3, 0, Some(0));
        assert_eq!(args[1], "nvme,serial=NVME3,id=dev3,bootindex=0");
        assert_eq!(args[3], "nvme-ns,bus=dev3,drive=disk3,eui64=0x1,logical_block_size=512,physical_block_size=512");
    }

    #[test]
    fn faults_and_limits_are_nodes_between_format_and_file() {
        let disk = Disk::new(DiskBus::VirtioBlk, "/tmp/a,b")
            .format(DiskFormat::Qcow2)
            .throttle(Throttle { write_bytes: Some(1000), ..Throttle::default() })
            .fault(IoFault { io: FaultyIo::Write, sector: Some(7), errno: 5, once: true });
        let args = disk.backend_args(1);
        assert_eq!(args[0], "-object");
        let group: Value = serde_json::from_str(&args[1]).unwrap();
        assert_eq!(group["limits"], json!({"bps-write": 1000}));
        let node: Value = serde_json::from_str(&args[3]).unwrap();
        assert_eq!(node["driver"], "qcow2");
        assert_eq!(node["file"]["driver"], "throttle");
        assert_eq!(node["file"]["file"]["driver"], "blkdebug");
        assert_eq!(node["file"]["file"]["inject-error"][0]["sector"], 7);
        assert_eq!(node["file"]["file"]["image"]["filename"], "/tmp/a,b");
    }
}
