//! The part of the agent's configuration that probes and steps read.

use std::time::Duration;

use ferric_disk::image::{RetryPolicy, ServerAuth};

/// Built by the agent from its configuration, after the lookup answer was merged into it.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "one field for each option of the configuration")]
pub struct Settings {
    /// Whether an MD5 checksum is good enough for an image.
    pub md5_enabled: bool,
    /// Image formats that may be written.
    pub permitted_image_formats: Vec<String>,
    /// Trust the declared image format instead of reading the header.
    pub disable_deep_image_inspection: bool,
    /// Refuse to erase cluster file systems.
    pub guard_special_filesystems: bool,
    /// Always rebuild the config drive as a FAT file system.
    pub config_drive_rebuild: bool,
    /// Size of the EFI system partition made for partition images.
    pub efi_system_partition_mib: u32,
    /// Size of the partition for GRUB's core image made for partition images.
    pub bios_boot_partition_mib: u32,
    /// How often to look for the root device before giving up.
    pub disk_wait_attempts: u32,
    /// Pause between two looks.
    pub disk_wait_delay: Duration,
    /// Whether LLDP frames are part of the inventory.
    pub collect_lldp: bool,
    /// How long to wait for LLDP frames.
    pub lldp_timeout: Duration,
    /// VLAN interfaces to make ([`crate::probe::vlan`]).
    pub enable_vlan_interfaces: Vec<String>,
    /// Do not ask the BMC for its addresses.
    pub skip_bmc_detect: bool,
    /// Whether a failing boot loader installation is only logged.
    pub ignore_bootloader_failure: bool,
    /// Priority of the `inject_files` step.
    pub inject_files_priority: u32,
    /// Whether GRUB of the image may be run to install a BIOS boot loader.
    pub enable_bios_bootloader_install: bool,
    /// Whether bootable containers are refused even where podman is there.
    pub disable_bootc_deploy: bool,
    /// Raw value of the `BOOTIF` kernel parameter.
    pub pxe_interface: Option<String>,
    /// Log-in to the image server, for images that bring none of their own.
    pub image_server_auth: ServerAuth,
    /// How often a whole image download is tried.
    pub image_retry: RetryPolicy,
    /// Whether an image is read back from the disk and compared.
    pub image_read_back: bool,
}

impl Default for Settings {
    /// The reference agent's defaults (protocol section 2).
    fn default() -> Self {
        Self {
            md5_enabled: false,
            permitted_image_formats: ["raw", "gpt", "qcow2"].map(str::to_owned).to_vec(),
            disable_deep_image_inspection: false,
            guard_special_filesystems: true,
            config_drive_rebuild: false,
            efi_system_partition_mib: 550,
            bios_boot_partition_mib: 1,
            disk_wait_attempts: 10,
            disk_wait_delay: Duration::from_secs(3),
            collect_lldp: false,
            lldp_timeout: Duration::from_secs(30),
            enable_vlan_interfaces: Vec::new(),
            skip_bmc_detect: false,
            ignore_bootloader_failure: false,
            inject_files_priority: 0,
            enable_bios_bootloader_install: false,
            disable_bootc_deploy: false,
            pxe_interface: None,
            image_server_auth: ServerAuth::default(),
            image_retry: RetryPolicy::default(),
            image_read_back: false,
        }
    }
}
