//! The command line of `lab`.

use super::image::Checksum;
use crate::disk::{Disk, DiskBus};
use crate::net::{Nic, NicModel};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::str::FromStr;

/// Drives a bootable image in QEMU with a stand-in Ironic conductor.
#[derive(Debug, Parser)]
#[command(name = "lab", version, max_term_width = 110)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Action,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Boot the image, wait for the agent, and leave it running to be played with.
    Boot {
        /// The machine.
        #[command(flatten)]
        machine: MachineOptions,
        /// End as soon as the agent has announced itself.
        #[arg(long)]
        once: bool,
        /// Send the agent requests it must refuse, and check how it does.
        #[arg(long)]
        probe: bool,
    },
    /// Boot the image and have it inspect the machine; prints a summary, or the data as JSON with `--json`.
    Inspect {
        /// The machine.
        #[command(flatten)]
        machine: MachineOptions,
        /// Print everything that was sent, not only a summary.
        #[arg(long)]
        json: bool,
    },
    /// Boot the image and run clean steps.
    Clean {
        /// The machine.
        #[command(flatten)]
        machine: MachineOptions,
        /// Run these steps in place of automated cleaning: INTERFACE.STEP, with arguments as JSON after a colon, for
        /// instance `deploy.clean_uefi_nvram:{"match_patterns":["^HD"]}`.
        #[arg(long = "step", value_name = "STEP")]
        steps: Vec<StepSpec>,
        /// Give a step of automated cleaning another priority, 0 to leave it out: `erase_devices=0`.
        #[arg(long = "priority", value_name = "STEP=N")]
        priorities: Vec<PrioritySpec>,
    },
    /// Boot the image and have it write an operating system image to the machine's disk.
    Deploy(DeployOptions),
    /// The whole life: PXE boot, inspect, clean, deploy a small Debian made on the spot, boot it from its disk.
    Demo {
        /// The machine.
        #[command(flatten)]
        machine: MachineOptions,
        /// Overwrite the disks while cleaning, in place of wiping their metadata only.
        #[arg(long)]
        erase: bool,
    },
}

/// `lab deploy`.
#[derive(Debug, Args)]
pub struct DeployOptions {
    /// Image file (raw, also packed by gzip, zstd or xz, or qcow2), served by the lab; or an http(s) URL that the machine can
    /// reach. Files are looked at and URLs are tried before the machine is booted.
    pub image: String,
    /// The machine.
    #[command(flatten)]
    pub machine: MachineOptions,
    /// Checksum of the image: `sha256:HEX`, or sha512, sha384, sha224. A URL needs one, and the agent checks it while it
    /// writes; a file is checked before the machine is booted, and again by the agent. Without it a file's is computed.
    #[arg(long, value_name = "ALGORITHM:HEX")]
    pub checksum: Option<Checksum>,
    /// Format of the image. Without it a file's first bytes tell it, and a URL is qcow2 if it ends so, else raw; the
    /// agent compares it with the content before it writes.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub format: Option<ImageFormat>,
    /// Root device hint, as `serial=disk1` or `size=>= 10`; several must all match.
    #[arg(long = "hint", value_name = "NAME=VALUE")]
    pub hints: Vec<String>,
    /// Host name in the config drive.
    #[arg(long, default_value = "lab-node")]
    pub hostname: String,
    /// File with the user data for the config drive.
    #[arg(long, value_name = "FILE")]
    pub user_data: Option<PathBuf>,
    /// Deploy without a config drive.
    #[arg(long)]
    pub no_configdrive: bool,
    /// Boot the machine from its disk afterwards, and wait for this text on its console.
    #[arg(long, value_name = "TEXT")]
    pub boot_until: Option<String>,
}

/// The machine and how the lab shows what happens.
#[derive(Debug, Clone, Args)]
pub struct MachineOptions {
    /// Firmware of the machine.
    #[arg(long, value_enum, default_value_t = FirmwareKind::Bios, help_heading = "Machine")]
    pub firmware: FirmwareKind,
    /// Memory in MiB, 104 at least; all that the agent does is made for 128.
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = memory_mib, help_heading = "Machine")]
    pub memory: u32,
    /// Virtual CPUs, 1 to 255.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = cpu_count, help_heading = "Machine")]
    pub cpus: u32,
    /// Disk: BUS:SIZE, BUS one of virtio, nvme, ahci, scsi, usb, sas, megaraid, SIZE as 5G or 800M; `:4k` after it for
    /// 4096-byte sectors. May be given several times. [default: virtio:5G]
    #[arg(long = "disk", value_name = "BUS:SIZE[:4k]", help_heading = "Machine")]
    pub disks: Vec<DiskSpec>,
    /// Network card: virtio, e1000, e1000e; `:unplugged` or `:silent` after it for one without cable or without anybody
    /// on it. May be given several times. [default: virtio]
    #[arg(long = "nic", value_name = "MODEL[:CABLE]", help_heading = "Machine")]
    pub nics: Vec<NicSpec>,
    /// Give the machine a management controller (IPMI over KCS).
    #[arg(long, help_heading = "Machine")]
    pub bmc: bool,
    /// Boot over the network with iPXE (the default).
    #[arg(long, conflicts_with = "direct", help_heading = "Boot")]
    pub pxe: bool,
    /// Have QEMU load kernel and initramfs itself: quicker.
    #[arg(long, help_heading = "Boot")]
    pub direct: bool,
    /// Ramdisk to boot: a profile built by `make image`, or a folder with vmlinuz and initramfs.img.
    #[arg(long, value_name = "PROFILE|DIR", default_value = "virt", help_heading = "Boot")]
    pub ramdisk: String,
    /// More kernel parameters.
    #[arg(long, value_name = "PARAMETERS", default_value = "", help_heading = "Boot")]
    pub append: String,
    /// Keep the agent between operations, as `[deploy]fast_track` does.
    #[arg(long, help_heading = "Boot")]
    pub fast_track: bool,
    /// Serve the conductor over HTTPS with a self-made CA; the agent is told `ipa-insecure=1`.
    #[arg(long, help_heading = "Boot")]
    pub https: bool,
    /// Show the machine's console.
    #[arg(long, help_heading = "Display")]
    pub console: bool,
    /// Keep the machine's disks in this folder; disks that are there already are used again.
    #[arg(long, value_name = "DIR", help_heading = "Display")]
    pub keep: Option<PathBuf>,
    /// Copy all logs here at the end: console, QEMU, what the conductor saw, the agent's own.
    #[arg(long, value_name = "DIR", help_heading = "Display")]
    pub log_dir: Option<PathBuf>,
}

/// Firmware of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FirmwareKind {
    /// SeaBIOS.
    Bios,
    /// OVMF.
    Uefi,
}

/// Format of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ImageFormat {
    /// The bytes of the disk as they are, or packed as a whole by gzip, zstd or xz.
    Raw,
    /// QEMU's format, compressed or not.
    Qcow2,
}

impl ImageFormat {
    /// Ironic's name of it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ImageFormat::Raw => "raw",
            ImageFormat::Qcow2 => "qcow2",
        }
    }
}

/// Least memory of a machine, in MiB. With less the kernel may not even unpack the ramdisk, and says nothing.
const LEAST_MEMORY_MIB: u32 = 104;
/// Most memory, in MiB: 1 TiB.
const MOST_MEMORY_MIB: u32 = 1 << 20;
/// Most CPUs that QEMU's PC has without an interrupt remapper.
const MOST_CPUS: u32 = 255;

fn memory_mib(text: &str) -> Result<u32, String> {
    let mib: u32 = text.parse().map_err(|e| format!("{e}; {LEAST_MEMORY_MIB} to {MOST_MEMORY_MIB} MiB"))?;
    match mib {
        LEAST_MEMORY_MIB..=MOST_MEMORY_MIB => Ok(mib),
        0..LEAST_MEMORY_MIB => Err(format!(
            "kernel and ramdisk do not fit, and the machine would hang without a word; {LEAST_MEMORY_MIB} to \
             {MOST_MEMORY_MIB} MiB (128 for all that the agent does)"
        )),
        _ => Err(format!("{LEAST_MEMORY_MIB} to {MOST_MEMORY_MIB} MiB")),
    }
}

fn cpu_count(text: &str) -> Result<u32, String> {
    let count = text.parse().map_err(|e| format!("{e}; 1 to {MOST_CPUS}"))?;
    if (1..=MOST_CPUS).contains(&count) { Ok(count) } else { Err(format!("1 to {MOST_CPUS}")) }
}

/// World wide name of the first disk; the others count on. NAA 3: locally assigned (SPC-4, NAA designator format).
const FIRST_WWN: u64 = 0x3000_0000_0000_0001;

/// A disk on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskSpec {
    /// How it is attached.
    pub bus: DiskBus,
    /// Its size.
    pub size_bytes: u64,
    /// 512 or 4096.
    pub sector_bytes: u32,
}

impl DiskSpec {
    /// The disk backed by `path`, with a serial number made of its place; a SAS disk has a world wide name too, without
    /// which Linux's mptsas does not look at it.
    #[must_use]
    pub fn disk(&self, path: &std::path::Path, index: usize) -> Disk {
        let disk =
            Disk::new(self.bus, path).serial(&format!("LAB{index}")).block_size(self.sector_bytes, self.sector_bytes);
        match u64::try_from(index) {
            Ok(place) if self.bus == DiskBus::Sas => disk.wwn(FIRST_WWN + place),
            _ => disk,
        }
    }
}

impl FromStr for DiskSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(':');
        let bus = match parts.next().unwrap_or_default() {
            "virtio" => DiskBus::VirtioBlk,
            "nvme" => DiskBus::Nvme,
            "ahci" | "sata" => DiskBus::Ahci,
            "scsi" => DiskBus::VirtioScsi,
            "usb" => DiskBus::Usb,
            "sas" => DiskBus::Sas,
            "megaraid" => DiskBus::MegaRaid,
            other => return Err(format!("{other:?} is no bus: virtio, nvme, ahci, scsi, usb, sas or megaraid")),
        };
        let size_bytes = parse_size(parts.next().unwrap_or("5G"))?;
        let sector_bytes = match parts.next() {
            None => 512,
            Some("4k" | "4K" | "4096") => 4096,
            Some("512") => 512,
            Some(other) => return Err(format!("{other:?} is no sector size: 512 or 4k")),
        };
        if sector_bytes == 4096 && matches!(bus, DiskBus::Ahci | DiskBus::Usb) {
            return Err("QEMU's AHCI and USB disks have 512-byte sectors only".to_owned());
        }
        match parts.next() {
            None => Ok(DiskSpec { bus, size_bytes, sector_bytes }),
            Some(rest) => Err(format!("{rest:?} is too much: BUS:SIZE[:4k]")),
        }
    }
}

/// `5G`, `800M`, `1T`, or plain bytes; powers of 1024.
fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match &text[digits.len()..].to_ascii_uppercase()[..] {
        "" | "B" => 1,
        "K" | "KIB" => 1 << 10,
        "M" | "MIB" => 1 << 20,
        "G" | "GIB" => 1 << 30,
        "T" | "TIB" => 1 << 40,
        other => return Err(format!("{other:?} is no unit: K, M, G or T")),
    };
    let number: u64 = digits.parse().map_err(|e| format!("{text:?} is no size: {e}"))?;
    let bytes = number.checked_mul(unit).ok_or_else(|| format!("{text:?} is too large"))?;
    if bytes == 0 || bytes % 4096 != 0 {
        return Err(format!("{text:?} is no whole number of 4096-byte sectors"));
    }
    Ok(bytes)
}

/// A network card on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicSpec(pub Nic);

impl FromStr for NicSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (model, cable) = text.split_once(':').unwrap_or((text, "user"));
        let model = match model {
            "virtio" => NicModel::Virtio,
            "e1000" => NicModel::E1000,
            "e1000e" => NicModel::E1000e,
            other => return Err(format!("{other:?} is no card: virtio, e1000 or e1000e")),
        };
        let nic = match cable {
            "user" => Nic::user(),
            "unplugged" => Nic::unplugged(),
            "silent" => Nic::silent(),
            other => return Err(format!("{other:?} is no cable: user, unplugged or silent")),
        };
        Ok(NicSpec(nic.model(model)))
    }
}

/// A step on the command line.
#[derive(Debug, Clone, PartialEq)]
pub struct StepSpec(pub serde_json::Value);

impl FromStr for StepSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, args) = text.split_once(':').unwrap_or((text, "{}"));
        let (interface, step) = name.split_once('.').ok_or_else(|| format!("{name:?} is not INTERFACE.STEP"))?;
        let args: serde_json::Value = serde_json::from_str(args).map_err(|e| format!("{args:?} is not JSON: {e}"))?;
        if !args.is_object() {
            return Err(format!("arguments must be a JSON object, not {args}"));
        }
        Ok(StepSpec(serde_json::json!({"interface": interface, "step": step, "args": args})))
    }
}

/// A priority on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrioritySpec {
    /// Name of the step.
    pub step: String,
    /// Its priority.
    pub priority: u64,
}

impl FromStr for PrioritySpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (step, priority) = text.split_once('=').ok_or_else(|| format!("{text:?} is not STEP=PRIORITY"))?;
        let priority = priority.parse().map_err(|e| format!("{priority:?} is no priority: {e}"))?;
        Ok(PrioritySpec { step: step.to_owned(), priority })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_consistent() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    #[test]
    fn machines_that_cannot_work_are_refused_with_what_can() {
        for (option, value, words) in [
            ("--memory", "0", &["hang", "104 to 1048576"][..]),
            ("--memory", "16", &["hang", "104 to 1048576"]),
            ("--memory", "95", &["do not fit"]),
            ("--memory", "1048577", &["104 to 1048576"]),
            ("--memory", "1G", &["invalid digit", "104 to 1048576"]),
            ("--cpus", "0", &["1 to 255"]),
            ("--cpus", "256", &["1 to 255"]),
            ("--cpus", "two", &["1 to 255"]),
        ] {
            let error = Cli::try_parse_from(["lab", "inspect", option, value]).unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{option} {value}: {error}");
        }
        for (option, value) in [("--memory", "104"), ("--memory", "1048576"), ("--cpus", "1"), ("--cpus", "255")] {
            assert!(Cli::try_parse_from(["lab", "inspect", option, value]).is_ok(), "{option} {value}");
        }
    }

    #[test]
    fn disks_are_understood_or_explained() {
        let good = |text: &str| text.parse::<DiskSpec>().unwrap();
        assert_eq!(good("nvme:5G").size_bytes, 5 << 30);
        assert_eq!((good("scsi:8G:4k").sector_bytes, good("scsi:8G:4k").bus), (4096, DiskBus::VirtioScsi));
        assert_eq!(good("virtio").size_bytes, 5 << 30);
        for (text, word) in [
            ("floppy:1M", "no bus"),
            ("virtio:big", "unit"),
            ("virtio:x5", "no size"),
            ("virtio:5X", "unit"),
            ("virtio:0G", "whole number"),
            ("virtio:100", "whole number"),
            ("virtio:99999999T", "too large"),
            ("virtio:5G:1k", "sector size"),
            ("ahci:5G:4k", "512-byte"),
            ("virtio:5G:4k:x", "too much"),
        ] {
            let error = text.parse::<DiskSpec>().unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn sas_disks_have_world_wide_names_of_their_own() {
        let devices = |text: &str, index| {
            text.parse::<DiskSpec>()
                .unwrap()
                .disk(std::path::Path::new("/d"), index)
                .devices(index, 0, None, None)
                .join(" ")
        };
        for (index, wwn) in [(0, "wwn=0x3000000000000001"), (1, "wwn=0x3000000000000002")] {
            let device = devices("sas:5G", index);
            assert!(device.contains(wwn) && device.contains(&format!("serial=LAB{index}")), "{index}: {device}");
        }
        for other in ["virtio:5G", "nvme:5G", "scsi:5G"] {
            assert!(!devices(other, 0).contains("wwn"), "{other}: {}", devices(other, 0));
        }
    }

    #[test]
    fn steps_cards_and_priorities_are_understood_or_explained() {
        let step = "deploy.x:{\"a\":[1]}".parse::<StepSpec>().unwrap().0;
        assert_eq!(step, serde_json::json!({"interface": "deploy", "step": "x", "args": {"a": [1]}}));
        assert!("x".parse::<StepSpec>().is_err() && "a.b:[".parse::<StepSpec>().is_err());
        assert!("a.b:[1]".parse::<StepSpec>().unwrap_err().contains("object"));
        assert_eq!("e1000:silent".parse::<NicSpec>().unwrap().0, Nic::silent().model(NicModel::E1000));
        assert!("token-ring".parse::<NicSpec>().is_err() && "virtio:glass".parse::<NicSpec>().is_err());
        assert_eq!("erase_devices=0".parse::<PrioritySpec>().unwrap().priority, 0);
        assert!("erase_devices".parse::<PrioritySpec>().is_err());
    }
}
