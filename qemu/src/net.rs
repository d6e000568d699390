//! Network cards: one on QEMU's user-mode network or on a tap device, others with or without a cable.
//!
//! The user-mode network needs no rights: the guest is 10.0.2.15, the host 10.0.2.2, and there is DHCP and TFTP. The
//! agent's port is reached through a forwarded port of 127.0.0.1 which QEMU itself chooses, so that two tests never
//! race for one; [`parse_forwards`] reads it back from the monitor.

use std::path::PathBuf;

/// The host's address as guests on the user-mode network see it.
pub const HOST_ADDRESS: &str = "10.0.2.2";
/// The guest's address on the user-mode network.
pub const GUEST_ADDRESS: &str = "10.0.2.15";
/// The agent's port in the guest.
pub const AGENT_PORT: u16 = 9999;

/// Model of a network card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NicModel {
    /// virtio-net.
    #[default]
    Virtio,
    /// Intel 82574L, an ordinary gigabit card.
    E1000e,
    /// Intel 82540EM.
    E1000,
}

impl NicModel {
    pub(crate) fn driver(self) -> &'static str {
        match self {
            Self::Virtio => "virtio-net-pci",
            Self::E1000e => "e1000e",
            Self::E1000 => "e1000",
        }
    }

    /// The iPXE option ROM that QEMU gives the card; it has a BIOS and an EFI part.
    pub(crate) fn rom(self) -> &'static str {
        match self {
            Self::Virtio => "efi-virtio.rom",
            Self::E1000e => "efi-e1000e.rom",
            Self::E1000 => "efi-e1000.rom",
        }
    }
}

/// What a card is plugged into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cable {
    /// The user-mode network (DHCP, TFTP, the host).
    #[default]
    User,
    /// A switch with nobody on it: carrier, but no answer to anything.
    Silent,
    /// Nothing: no carrier from the start.
    Unplugged,
    /// A tap device of the host, made beforehand, on whatever network it is part of.
    Tap,
    /// A UDP port of 127.0.0.1: each datagram to it is a frame to the card. What the card sends goes nowhere.
    Frames {
        /// The port.
        port: u16,
    },
}

/// A port of the host's loopback that leads into the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forward {
    /// Port on 127.0.0.1; 0 lets QEMU choose a free one.
    pub host_port: u16,
    /// TCP port in the guest.
    pub guest_port: u16,
}

/// One network card of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    model: NicModel,
    cable: Cable,
    mac: Option<String>,
    forwards: Vec<Forward>,
    /// Name of the tap device.
    tap: String,
}

impl Nic {
    /// A card on the user-mode network, with the agent's port forwarded.
    pub fn user() -> Self {
        Self {
            model: NicModel::default(),
            cable: Cable::User,
            mac: None,
            forwards: vec![Forward { host_port: 0, guest_port: AGENT_PORT }],
            tap: String::new(),
        }
    }

    /// A card without carrier.
    pub fn unplugged() -> Self {
        Self { cable: Cable::Unplugged, forwards: Vec::new(), ..Self::user() }
    }

    /// A card with carrier on a network where nobody answers.
    pub fn silent() -> Self {
        Self { cable: Cable::Silent, forwards: Vec::new(), ..Self::user() }
    }

    /// A card that receives the frames sent to a UDP port of 127.0.0.1, one in each datagram.
    pub fn frames(port: u16) -> Self {
        Self { cable: Cable::Frames { port }, forwards: Vec::new(), ..Self::user() }
    }

    /// A card on the host's tap device of that name.
    pub fn tap(name: &str) -> Self {
        Self { cable: Cable::Tap, forwards: Vec::new(), tap: name.to_owned(), ..Self::user() }
    }

    /// Model; virtio unless said.
    #[must_use]
    pub fn model(mut self, model: NicModel) -> Self {
        self.model = model;
        self
    }

    /// MAC address; one from the card's place in the machine (`52:54:00:fe:00:NN`) unless said.
    #[must_use]
    pub fn mac(mut self, mac: &str) -> Self {
        self.mac = Some(mac.to_owned());
        self
    }

    /// Leads one more port of the host into the guest.
    #[must_use]
    pub fn forward(mut self, host_port: u16, guest_port: u16) -> Self {
        self.forwards.retain(|known| known.guest_port != guest_port);
        self.forwards.push(Forward { host_port, guest_port });
        self
    }

    /// What it is plugged into.
    pub fn cable(&self) -> Cable {
        self.cable
    }

    /// The MAC address of the card at place `index`.
    pub fn mac_at(&self, index: usize) -> String {
        self.mac.clone().unwrap_or_else(|| format!("52:54:00:fe:{:02x}:{:02x}", (index >> 8) & 0xff, index & 0xff))
    }

    pub(crate) fn model_kind(&self) -> NicModel {
        self.model
    }

    /// QEMU's name of the card at place `index`, for QMP `set_link`.
    pub fn id(index: usize) -> String {
        format!("nic{index}")
    }

    /// Arguments for the card. `boot` carries the TFTP folder and boot file if it boots the machine.
    pub(crate) fn args(&self, index: usize, tftp: Option<&Tftp>, bootindex: Option<usize>) -> Vec<String> {
        let netdev = match self.cable {
            Cable::User => {
                let mut options = vec![("type", "user".to_owned()), ("id", format!("net{index}"))];
                for forward in &self.forwards {
                    let rule = format!("tcp:127.0.0.1:{}-:{}", forward.host_port, forward.guest_port);
                    options.push(("hostfwd", rule));
                }
                if let Some(tftp) = tftp {
                    options.push(("tftp", tftp.dir.display().to_string()));
                    options.push(("bootfile", tftp.boot_file.clone()));
                }
                crate::disk::join(&options)
            }
            // A hub with one port: the cheapest thing with carrier.
            Cable::Silent | Cable::Unplugged => format!("hubport,id=net{index},hubid={}", index + 1),
            // Port 9 (discard) for what the card sends.
            Cable::Frames { port } => {
                format!("socket,id=net{index},udp=127.0.0.1:9,localaddr=127.0.0.1:{port}")
            }
            Cable::Tap => crate::disk::join(&[
                ("type", "tap".to_owned()),
                ("id", format!("net{index}")),
                ("ifname", self.tap.clone()),
                ("script", "no".to_owned()),
                ("downscript", "no".to_owned()),
            ]),
        };
        let mut device = vec![
            ("driver", self.model.driver().to_owned()),
            ("id", Self::id(index)),
            ("netdev", format!("net{index}")),
            ("mac", self.mac_at(index)),
        ];
        match bootindex {
            Some(place) => device.push(("bootindex", place.to_string())),
            // Without its ROM a card is not in the boot order, and firmware starts sooner.
            None => device.push(("romfile", String::new())),
        }
        vec!["-netdev".into(), netdev, "-device".into(), crate::disk::join(&device)]
    }
}

/// What the user-mode network's TFTP server gives out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tftp {
    /// Folder served.
    pub(crate) dir: PathBuf,
    /// Boot file name in the DHCP answer.
    pub(crate) boot_file: String,
}

/// Host ports from the monitor's `info usernet`: (guest port, host port) of each forwarding rule.
pub fn parse_forwards(text: &str) -> Vec<(u16, u16)> {
    text.lines()
        .filter(|line| line.trim_start().starts_with("TCP[HOST_FORWARD]"))
        .filter_map(|line| {
            // TCP[HOST_FORWARD]  fd  source-address source-port  dest-address dest-port  recvq sendq
            let columns: Vec<&str> = line.split_whitespace().collect();
            Some((columns.get(5)?.parse().ok()?, columns.get(3)?.parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booting_card_has_tftp_rom_and_forwarded_port() {
        let tftp = Tftp { dir: "/t".into(), boot_file: "boot.ipxe".into() };
        let args = Nic::user().mac("52:54:00:00:00:01").args(0, Some(&tftp), Some(0));
        assert_eq!(
            args,
            [
                "-netdev",
                "user,id=net0,hostfwd=tcp:127.0.0.1:0-:9999,tftp=/t,bootfile=boot.ipxe",
                "-device",
                "virtio-net-pci,id=nic0,netdev=net0,mac=52:54:00:00:00:01,bootindex=0",
            ]
        );
    }

    #[test]
    fn cards_off_the_network_sit_on_hubs_of_their_own() {
        let args = Nic::unplugged().model(NicModel::E1000e).args(2, None, None);
        assert_eq!(args[1], "hubport,id=net2,hubid=3");
        assert_eq!(args[3], "e1000e,id=nic2,netdev=net2,mac=52:54:00:fe:00:02,romfile=");
    }

    #[test]
    fn card_on_a_tap_device_leaves_the_device_as_it_is() {
        let args = Nic::tap("tap7").args(1, None, Some(0));
        assert_eq!(args[1], "tap,id=net1,ifname=tap7,script=no,downscript=no");
        assert_eq!(args[3], "virtio-net-pci,id=nic1,netdev=net1,mac=52:54:00:fe:00:01,bootindex=0");
    }

    #[test]
    fn a_second_rule_for_a_guest_port_replaces_the_first() {
        let args = Nic::user().forward(8080, AGENT_PORT).forward(0, 22).args(0, None, None);
        assert_eq!(args[1], "user,id=net0,hostfwd=tcp:127.0.0.1:8080-:9999,hostfwd=tcp:127.0.0.1:0-:22");
    }

    #[test]
    fn forwarded_ports_are_read_from_the_monitor() {
        let text = "Hub -1 (net0):\r\n  Protocol[State]    FD  Source Address  Port   Dest. Address  Port RecvQ SendQ\r\n  \
                    TCP[HOST_FORWARD]   8       127.0.0.1 39199       10.0.2.15  9999     0     0\r\n  \
                    TCP[ESTABLISHED]   9       10.0.2.15 39200       10.0.2.2  80     0     0\r\n";
        assert_eq!(parse_forwards(text), [(9999, 39199)]);
        assert_eq!(parse_forwards("TCP[HOST_FORWARD] x"), []);
    }
}
