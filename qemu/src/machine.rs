//! The description of a machine, and the QEMU command line it becomes.
//!
//! Building the command line is pure: everything that is found or created (firmware, sockets, log files) comes in as
//! [`Paths`]. PCI devices appear in a fixed order (network cards, then disks, then the rest), so a machine keeps its
//! addresses from boot to boot and boot entries in its NVRAM stay true.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::accel::Accel;
use crate::disk::{self, Disk, DiskBus, join};
use crate::net::{Cable, Nic};
use crate::pxe::PxeTree;

/// Firmware of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Firmware {
    /// SeaBIOS.
    #[default]
    Bios,
    /// OVMF with a variable store.
    Uefi {
        /// The variable store, made from OVMF's pristine one if it does not exist. `None` for a fresh one at each start;
        /// with a path, boot entries survive a restart.
        vars: Option<PathBuf>,
    },
}

impl Firmware {
    /// UEFI whose variables last as long as the machine.
    pub fn uefi() -> Self {
        Self::Uefi { vars: None }
    }

    /// Whether this is UEFI.
    pub fn is_uefi(&self) -> bool {
        matches!(self, Self::Uefi { .. })
    }
}

/// What a machine boots.
#[derive(Debug, Clone, Default)]
pub enum Boot {
    /// Its disks in the order given; the network cards have no boot ROM.
    #[default]
    Disk,
    /// The first network card on the user-mode network, then the disks. Under BIOS a script that ends with `exit 1` goes on to the
    /// disks at once; OVMF first tries HTTP boot for minutes, so to boot from disk afterwards start the machine anew with
    /// [`Boot::Disk`] (a machine with `no_reboot` ends when the guest resets itself).
    Network(Arc<PxeTree>),
    /// The first network card on a tap device, by what that network's DHCP server says, then the disks.
    Lan,
    /// A kernel that QEMU loads itself.
    Direct {
        /// Linux kernel (bzImage).
        kernel: PathBuf,
        /// Initramfs.
        initramfs: PathBuf,
        /// Kernel command line.
        cmdline: String,
    },
    /// Whatever the firmware has in its own boot order (UEFI: the `BootOrder` variable); QEMU says nothing.
    Firmware,
}

/// The management controller the guest sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bmc {
    /// QEMU's own simple one, on the KCS interface.
    Simulated,
    /// One outside of QEMU that listens for it on this TCP port of 127.0.0.1: a [`crate::bmc::FakeBmc`], or OpenIPMI's
    /// `ipmi_sim`.
    External {
        /// The port; of `ipmi_sim` the "serial" one for virtual machines.
        port: u16,
    },
}

/// All of a machine but where its files are.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Name in logs and QEMU's process title.
    pub name: String,
    /// Firmware.
    pub firmware: Firmware,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Virtual CPUs.
    pub cpus: u32,
    /// CPU model; `None` for the accelerator's default.
    pub cpu_model: Option<String>,
    /// What it boots.
    pub boot: Boot,
    /// Disks, in boot order.
    pub disks: Vec<Disk>,
    /// Network cards.
    pub nics: Vec<Nic>,
    /// Management controller.
    pub bmc: Option<Bmc>,
    /// virtio entropy source.
    pub rng: bool,
    /// System UUID.
    pub uuid: Option<String>,
    /// SMBIOS strings: structure type to `key=value` pairs as in QEMU's `-smbios`.
    pub smbios: BTreeMap<u8, Vec<(String, String)>>,
    /// Time of the real time clock at the start, `YYYY-MM-DDTHH:MM:SS`; the host's unless said.
    pub rtc_base: Option<String>,
    /// Serial ports, each with its log.
    pub serial_ports: usize,
    /// Whether text can be sent to the serial ports too.
    pub serial_input: bool,
    /// Empty PCI Express slots `hot0`, `hot1`, ... for disks plugged in later.
    pub hotplug_slots: usize,
    /// Whether a reset ends QEMU.
    pub no_reboot: bool,
    /// More arguments, as they are.
    pub extra: Vec<String>,
}

impl Machine {
    /// A machine with one CPU, 512 MiB, BIOS, no disk and no network.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            firmware: Firmware::Bios,
            memory_mib: 512,
            cpus: 1,
            cpu_model: None,
            boot: Boot::Disk,
            disks: Vec::new(),
            nics: Vec::new(),
            bmc: None,
            rng: true,
            uuid: None,
            smbios: BTreeMap::new(),
            rtc_base: None,
            serial_ports: 1,
            serial_input: false,
            hotplug_slots: 0,
            no_reboot: false,
            extra: Vec::new(),
        }
    }

    /// Whether the machine must start paused so that links can be cut first.
    pub(crate) fn has_unplugged_nic(&self) -> bool {
        self.nics.iter().any(|nic| nic.cable() == Cable::Unplugged)
    }

    /// The card that boots the machine from the network.
    fn boot_nic(&self) -> Option<usize> {
        let cable = if matches!(self.boot, Boot::Lan) { Cable::Tap } else { Cable::User };
        self.nics.iter().position(|nic| nic.cable() == cable)
    }

    /// Option ROMs that must be installed for this machine.
    pub(crate) fn boot_rom(&self) -> Option<&'static str> {
        let nic = self.boot_nic().filter(|_| matches!(self.boot, Boot::Network(_) | Boot::Lan | Boot::Firmware))?;
        Some(self.nics.get(nic)?.model_kind().rom())
    }

    /// The whole QEMU command line after the program's name.
    pub fn argv(&self, accel: &Accel, paths: &Paths) -> Vec<String> {
        let mut args = self.base_args(accel);
        args.extend(self.firmware_args(paths));
        args.extend(self.console_args(paths));
        args.extend(self.nic_args());
        args.extend(self.disk_args());
        args.extend(self.device_args());
        if let Boot::Direct { kernel, initramfs, cmdline } = &self.boot {
            args.extend(strings([
                "-kernel",
                &kernel.display().to_string(),
                "-initrd",
                &initramfs.display().to_string(),
            ]));
            args.extend(strings(["-append", cmdline]));
        }
        args.extend(self.extra.iter().cloned());
        args
    }

    fn base_args(&self, accel: &Accel) -> Vec<String> {
        let mut machine = "q35".to_owned();
        // SeaBIOS and iPXE then talk on the serial port, so a failed network boot is seen in the log.
        if !self.firmware.is_uefi() {
            machine.push_str(",graphics=off");
        }
        let mut args = strings(["-name", &self.name, "-machine", &machine, "-accel", accel.option()]);
        let cpu = self.cpu_model.clone().or_else(|| accel.cpu_model().map(str::to_owned));
        args.extend(cpu.into_iter().flat_map(|model| ["-cpu".to_owned(), model]));
        args.extend(strings(["-m", &self.memory_mib.to_string(), "-smp", &self.cpus.to_string()]));
        args.extend(strings(["-display", "none", "-nodefaults", "-no-user-config"]));
        if self.no_reboot {
            args.push("-no-reboot".into());
        }
        if self.has_unplugged_nic() {
            args.push("-S".into());
        }
        if let Some(uuid) = &self.uuid {
            args.extend(strings(["-uuid", uuid]));
        }
        for (kind, values) in &self.smbios {
            let kind = kind.to_string();
            let mut options = vec![("", format!("type={kind}"))];
            options.extend(values.iter().map(|(key, value)| (key.as_str(), value.clone())));
            args.extend(["-smbios".to_owned(), join(&options)]);
        }
        if let Some(base) = &self.rtc_base {
            args.extend(strings(["-rtc", &format!("base={base}")]));
        }
        args
    }

    fn firmware_args(&self, paths: &Paths) -> Vec<String> {
        let mut args = Vec::new();
        if let Some(firmware) = &paths.firmware {
            for (path, read_only) in [(&firmware.code, "on"), (&firmware.vars, "off")] {
                let options = [
                    ("", "if=pflash".to_owned()),
                    ("format", "raw".into()),
                    ("readonly", read_only.into()),
                    ("file", path.display().to_string()),
                ];
                args.extend(["-drive".to_owned(), join(&options)]);
            }
            // iPXE does the network boot. The firmware's own attempts, on IPv4 and IPv6, would only delay what comes next.
            if matches!(self.boot, Boot::Network(_) | Boot::Lan) {
                for family in ["IPv4", "IPv6"] {
                    args.extend(strings(["-fw_cfg", &format!("name=opt/org.tianocore/{family}PXESupport,string=n")]));
                }
            }
        }
        args
    }

    fn console_args(&self, paths: &Paths) -> Vec<String> {
        let mut args = Vec::new();
        for (index, log) in paths.consoles.iter().enumerate() {
            let log = log.display().to_string();
            let mut options = vec![("", if self.serial_input { "socket" } else { "file" }.to_owned())];
            options.push(("id", format!("serial{index}")));
            if self.serial_input {
                options.push(("path", paths.serial_socket(index).display().to_string()));
                options.extend([("server", "on".to_owned()), ("wait", "off".to_owned())]);
                options.extend([("logfile", log), ("logappend", "on".to_owned())]);
            } else {
                options.extend([("path", log), ("append", "on".to_owned())]);
            }
            args.extend(["-chardev".to_owned(), join(&options), "-serial".into(), format!("chardev:serial{index}")]);
        }
        let control = [
            ("", "socket".to_owned()),
            ("id", "qmp".into()),
            ("path", paths.qmp_socket().display().to_string()),
            ("server", "on".into()),
            ("wait", "off".into()),
        ];
        args.extend(strings(["-chardev", &join(&control), "-mon", "chardev=qmp,mode=control"]));
        args
    }

    fn nic_args(&self) -> Vec<String> {
        let tftp = match &self.boot {
            Boot::Network(tree) => Some(tree.tftp()),
            _ => None,
        };
        let boot_nic = self.boot_nic();
        let mut args = Vec::new();
        for (index, nic) in self.nics.iter().enumerate() {
            let boots = matches!(self.boot, Boot::Network(_) | Boot::Lan) && boot_nic == Some(index);
            args.extend(nic.args(index, tftp.as_ref().filter(|_| boots), boots.then_some(0)));
        }
        args
    }

    fn disk_args(&self) -> Vec<String> {
        let mut args = Vec::new();
        let mut on_bus: Vec<(DiskBus, usize)> = Vec::new();
        for (index, disk) in self.disks.iter().enumerate() {
            // CD drives share the chipset's AHCI ports with disks.
            let bus = if disk.bus() == DiskBus::Cdrom { DiskBus::Ahci } else { disk.bus() };
            let port = match on_bus.iter_mut().find(|(known, _)| *known == bus) {
                Some((_, count)) => {
                    *count += 1;
                    *count - 1
                }
                None => {
                    on_bus.push((bus, 1));
                    args.extend(disk::controller(bus).into_iter().flat_map(|device| strings(["-device", device])));
                    0
                }
            };
            let bootindex = match self.boot {
                Boot::Disk | Boot::Network(_) | Boot::Lan => Some(index + 1),
                Boot::Direct { .. } | Boot::Firmware => None,
            };
            args.extend(disk.backend_args(index));
            args.extend(disk.device_args(index, port, bootindex));
        }
        args
    }

    fn device_args(&self) -> Vec<String> {
        let mut args = Vec::new();
        if self.rng {
            args.extend(strings(["-object", "rng-random,id=rng0,filename=/dev/urandom"]));
            args.extend(strings(["-device", "virtio-rng-pci,rng=rng0"]));
        }
        for slot in 0..self.hotplug_slots {
            args.extend(strings(["-device", &format!("pcie-root-port,id=hot{slot},chassis={}", slot + 1)]));
        }
        match &self.bmc {
            None => {}
            Some(Bmc::Simulated) => args.extend(strings(["-device", "ipmi-bmc-sim,id=bmc0"])),
            Some(Bmc::External { port }) => {
                let chardev = format!("socket,id=ipmi0,host=127.0.0.1,port={port},reconnect=5");
                args.extend(strings(["-chardev", &chardev, "-device", "ipmi-bmc-extern,id=bmc0,chardev=ipmi0"]));
            }
        }
        if self.bmc.is_some() {
            args.extend(strings(["-device", "isa-ipmi-kcs,bmc=bmc0"]));
        }
        args
    }
}

/// The files of one run of a machine.
#[derive(Debug, Clone)]
pub struct Paths {
    /// UEFI firmware, if the machine has it.
    pub firmware: Option<crate::artifacts::Ovmf>,
    /// One log for each serial port.
    pub consoles: Vec<PathBuf>,
    /// Folder of the sockets.
    pub sockets: PathBuf,
}

impl Paths {
    /// The control socket.
    pub(crate) fn qmp_socket(&self) -> PathBuf {
        self.sockets.join("qmp.sock")
    }

    /// The socket that takes input for a serial port.
    pub(crate) fn serial_socket(&self, index: usize) -> PathBuf {
        self.sockets.join(format!("serial{index}.sock"))
    }
}

fn strings<const N: usize>(items: [&str; N]) -> Vec<String> {
    items.map(str::to_owned).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifacts::Ovmf;

    fn paths() -> Paths {
        Paths { firmware: None, consoles: vec!["/l/console0.log".into()], sockets: "/s".into() }
    }

    fn argv(machine: &Machine) -> String {
        machine.argv(&Accel::tcg(), &paths()).join(" ")
    }

    #[test]
    fn plain_machine_has_exactly_this_command_line() {
        assert_eq!(
            argv(&Machine::new("m1")),
            "-name m1 -machine q35,graphics=off -accel tcg,thread=multi -m 512 -smp 1 -display none -nodefaults \
             -no-user-config -chardev file,id=serial0,path=/l/console0.log,append=on -serial chardev:serial0 \
             -chardev socket,id=qmp,path=/s/qmp.sock,server=on,wait=off -mon chardev=qmp,mode=control \
             -object rng-random,id=rng0,filename=/dev/urandom -device virtio-rng-pci,rng=rng0"
        );
    }

    #[test]
    fn serial_port_with_input_is_a_socket_that_is_logged() {
        let mut machine = Machine::new("m");
        machine.serial_input = true;
        let part = "socket,id=serial0,path=/s/serial0.sock,server=on,wait=off,logfile=/l/console0.log,logappend=on";
        assert!(argv(&machine).contains(part), "{}", argv(&machine));
    }

    #[test]
    fn network_boot_puts_the_card_before_the_disks() {
        let tree = PxeTree::with_script("#!ipxe\n").unwrap();
        let mut machine = Machine::new("m");
        machine.nics = vec![Nic::unplugged(), Nic::user()];
        machine.disks = vec![Disk::new(DiskBus::VirtioBlk, "/a"), Disk::new(DiskBus::Nvme, "/b")];
        machine.boot = Boot::Network(Arc::new(tree));
        let text = argv(&machine);
        assert!(text.contains("id=nic0,netdev=net0,mac=52:54:00:fe:00:00,romfile= "), "{text}");
        assert!(text.contains("id=nic1,netdev=net1,mac=52:54:00:fe:00:01,bootindex=0 "), "{text}");
        assert!(text.contains("bootfile=boot.ipxe"), "{text}");
        assert!(text.contains("drive=disk0,logical_block_size=512,physical_block_size=512,bootindex=1"), "{text}");
        assert!(text.contains("drive=disk1,logical_block_size=512,physical_block_size=512,bootindex=2"), "{text}");
        assert!(text.contains(" -S "), "starts paused to cut the link: {text}");
        assert_eq!(machine.boot_rom(), Some("efi-virtio.rom"));
    }

    #[test]
    fn boot_from_the_lan_takes_the_card_on_the_tap_device() {
        let mut machine = Machine::new("m");
        machine.nics = vec![Nic::silent(), Nic::tap("tap0")];
        machine.disks = vec![Disk::new(DiskBus::VirtioBlk, "/a")];
        machine.boot = Boot::Lan;
        let text = argv(&machine);
        assert!(text.contains("id=nic0,netdev=net0,mac=52:54:00:fe:00:00,romfile= "), "{text}");
        assert!(text.contains("ifname=tap0") && text.contains("mac=52:54:00:fe:00:01,bootindex=0 "), "{text}");
        assert!(text.contains("physical_block_size=512,bootindex=1"), "{text}");
        assert_eq!(machine.boot_rom(), Some("efi-virtio.rom"));
    }

    #[test]
    fn disk_boot_leaves_cards_without_rom_and_firmware_boot_leaves_the_order_alone() {
        let mut machine = Machine::new("m");
        machine.nics = vec![Nic::user()];
        machine.disks = vec![Disk::new(DiskBus::VirtioBlk, "/a")];
        let text = argv(&machine);
        assert!(text.contains("romfile=") && text.contains("bootindex=1"), "{text}");
        machine.boot = Boot::Firmware;
        assert!(!argv(&machine).contains("bootindex"), "{}", argv(&machine));
    }

    #[test]
    fn a_bus_gets_one_controller_and_counts_its_ports() {
        let mut machine = Machine::new("m");
        machine.disks = [DiskBus::VirtioScsi, DiskBus::Ahci, DiskBus::VirtioScsi, DiskBus::Cdrom]
            .map(|bus| Disk::new(bus, "/d"))
            .to_vec();
        let text = argv(&machine);
        assert_eq!(text.matches("virtio-scsi-pci").count(), 1, "{text}");
        assert!(text.contains("ide-hd,bus=ide.0,") && text.contains("ide-cd,bus=ide.1,"), "{text}");
    }

    #[test]
    fn direct_boot_uefi_bmc_and_identity() {
        let mut machine = Machine::new("m");
        machine.firmware = Firmware::uefi();
        machine.boot = Boot::Direct { kernel: "/k".into(), initramfs: "/i".into(), cmdline: "console=ttyS0 x".into() };
        machine.bmc = Some(Bmc::External { port: 9002 });
        machine.uuid = Some("u".into());
        machine.smbios.insert(1, vec![("manufacturer".into(), "A, Inc".into()), ("serial".into(), "S".into())]);
        machine.rtc_base = Some("2020-01-02T03:04:05".into());
        machine.no_reboot = true;
        let mut paths = paths();
        paths.firmware = Some(Ovmf { code: "/c.fd".into(), vars: "/v.fd".into() });
        let args = machine.argv(&Accel::kvm(), &paths);
        let text = args.join(" ");
        for part in [
            "-machine q35 -accel kvm -cpu host ",
            "-drive if=pflash,format=raw,readonly=on,file=/c.fd -drive if=pflash,format=raw,readonly=off,file=/v.fd",
            "-uuid u",
            "-smbios type=1,manufacturer=A,, Inc,serial=S",
            "-rtc base=2020-01-02T03:04:05",
            "-no-reboot",
            "-kernel /k -initrd /i -append console=ttyS0 x",
            "socket,id=ipmi0,host=127.0.0.1,port=9002,reconnect=5 -device ipmi-bmc-extern,id=bmc0,chardev=ipmi0 -device isa-ipmi-kcs,bmc=bmc0",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(args.contains(&"console=ttyS0 x".to_owned()), "the command line is one argument");
    }
}
