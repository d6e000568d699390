//! The hardware inventory (hardware section 2): key names, order and types as Ironic's hooks and rules read them.
//! Unset values are JSON null, never absent, except `bmc_mac`.

use serde::{Deserialize, Serialize};

/// Everything known of the machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Inventory {
    /// Network interfaces.
    pub interfaces: Vec<NetworkInterface>,
    /// Processors.
    pub cpu: Cpu,
    /// Disks.
    pub disks: Vec<BlockDevice>,
    /// Memory.
    pub memory: Memory,
    /// IPv4 address of the BMC; `0.0.0.0` when it has none, null when there is no BMC.
    pub bmc_address: Option<String>,
    /// IPv6 address of the BMC; `::/0` when it has none, null when there is no BMC.
    pub bmc_v6address: Option<String>,
    /// MAC of the BMC; absent when unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bmc_mac: Option<String>,
    /// Maker and firmware.
    pub system_vendor: SystemVendor,
    /// How the machine was booted.
    pub boot: BootInfo,
    /// Host name of the ramdisk.
    pub hostname: String,
    /// The trusted platform module; null when there is none. Not known to the reference agent.
    #[serde(default)]
    pub tpm: Option<Tpm>,
    /// Ways to the management controller that speak Redfish (SMBIOS type 42). Not known to the reference agent.
    #[serde(default)]
    pub host_interfaces: Vec<HostInterface>,
}

/// One network interface (hardware section 2.1).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkInterface {
    /// Kernel name.
    pub name: String,
    /// Permanent address, lower-case with colons.
    pub mac_address: String,
    /// First IPv4 address.
    pub ipv4_address: Option<String>,
    /// First IPv6 address; a link-local one has a `%scope`.
    pub ipv6_address: Option<String>,
    /// Whether there is a link.
    pub has_carrier: bool,
    /// LLDP TLVs as type and hex value, when collected here.
    pub lldp: Option<Vec<(u8, String)>>,
    /// PCI vendor, as `0x8086`.
    pub vendor: Option<String>,
    /// PCI device, as `0x1572`.
    pub product: Option<String>,
    /// InfiniBand DHCP client id.
    pub client_id: Option<String>,
    /// Name by `biosdevname`.
    pub biosdevname: Option<String>,
    /// Fastest speed the hardware supports, Mbit/s.
    pub speed_mbps: Option<u64>,
    /// Bus address, such as `0000:18:00.0` or `virtio0`.
    pub pci_address: Option<String>,
    /// Kernel driver.
    pub driver: Option<String>,
    /// Version of its firmware, as the driver writes it. Not known to the reference agent; absent when unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    /// Names that udev would give it. Not known to the reference agent; absent when there are none.
    #[serde(default, skip_serializing_if = "PredictableNames::is_empty")]
    pub predictable_names: PredictableNames,
}

/// Names of a network interface by the policies of systemd's `net_id` (`systemd.net-naming-scheme(7)`): the deployed
/// system takes the first there is, in this order. The one by address is `enx` and the digits of the address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PredictableNames {
    /// By the number that firmware gives an onboard device, `eno1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub onboard: Option<String>,
    /// By the number of the hotplug slot, `ens3f0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<String>,
    /// By the place on the PCI bus, `enp24s0f1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

impl PredictableNames {
    /// Whether there is no name.
    pub const fn is_empty(&self) -> bool {
        self.onboard.is_none() && self.slot.is_none() && self.path.is_none()
    }
}

/// Processors (hardware section 2.2).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// Model name.
    pub model_name: String,
    /// MHz as text, empty when unknown.
    pub frequency: String,
    /// Logical processors.
    pub count: u32,
    /// Machine name of uname, such as `x86_64`.
    pub architecture: String,
    /// Feature flags.
    pub flags: Vec<String>,
    /// Sockets.
    pub socket_count: u32,
}

/// Memory (hardware section 2.3).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Bytes the kernel can use.
    pub total: Option<u64>,
    /// MiB installed.
    pub physical_mb: Option<u64>,
}

/// One disk (hardware section 3).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockDevice {
    /// Device path.
    pub name: String,
    /// Model.
    pub model: Option<String>,
    /// Bytes.
    pub size: u64,
    /// Whether it spins.
    pub rotational: bool,
    /// World wide name.
    pub wwn: Option<String>,
    /// Serial number.
    pub serial: Option<String>,
    /// Vendor.
    pub vendor: Option<String>,
    /// World wide name with vendor extension.
    pub wwn_with_extension: Option<String>,
    /// Vendor extension of the world wide name.
    pub wwn_vendor_extension: Option<String>,
    /// SCSI address host:channel:target:lun.
    pub hctl: Option<String>,
    /// Link in /dev/disk/by-path.
    pub by_path: Option<String>,
    /// Logical sector size, bytes.
    pub logical_sectors: u32,
    /// Physical sector size, bytes.
    pub physical_sectors: u32,
    /// Transport: `sata`, `nvme`, `sas`, `usb`, ...
    pub tran: Option<String>,
}

/// Maker of the machine (hardware section 2.4).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemVendor {
    /// Product name.
    pub product_name: String,
    /// Serial number.
    pub serial_number: String,
    /// Maker.
    pub manufacturer: String,
    /// Firmware.
    pub firmware: SystemFirmware,
}

/// Firmware of the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemFirmware {
    /// Maker.
    pub vendor: String,
    /// Version.
    pub version: String,
    /// Build date.
    pub build_date: String,
}

/// How the machine was booted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootInfo {
    /// `uefi` or `bios`.
    pub current_boot_mode: String,
    /// Raw value of the `BOOTIF` kernel parameter.
    pub pxe_interface: Option<String>,
    /// Whether the firmware starts signed programs only; null when it does not say, as with BIOS. Not known to the
    /// reference agent.
    #[serde(default)]
    pub secure_boot: Option<bool>,
}

/// A trusted platform module.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tpm {
    /// `1.2` or `2.0`; null when it does not say.
    pub version: Option<String>,
}

/// A Redfish service of the management controller that the host can reach (DMTF DSP0270).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostInterface {
    /// `usb` or `pci`: what the network device between host and controller is.
    pub device_type: Option<String>,
    /// Its USB or PCI vendor, as `0x046b`.
    pub vendor: Option<String>,
    /// Its USB or PCI device, as `0xffb0`.
    pub product: Option<String>,
    /// Its address, when the firmware tells it.
    pub mac_address: Option<String>,
    /// UUID of the service.
    pub service_uuid: String,
    /// How the host gets its address: `static`, `dhcp`, `autoconf` or `host_selected`.
    pub host_ip_assignment: Option<String>,
    /// Address of the host, when it is a fixed one.
    pub host_address: Option<String>,
    /// Network mask of the host.
    pub host_mask: Option<String>,
    /// How the service gets its address, as above.
    pub service_ip_discovery: Option<String>,
    /// Address of the service.
    pub service_address: Option<String>,
    /// Network mask of the service.
    pub service_mask: Option<String>,
    /// Port of the service.
    pub service_port: u16,
    /// VLAN of the service; 0 for none.
    pub service_vlan: u32,
    /// Host name of the service.
    pub service_hostname: Option<String>,
}
