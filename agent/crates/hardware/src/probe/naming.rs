//! Names that other systems would give a network interface: those of udev's `net_id` (`systemd.net-naming-scheme(7)`),
//! and that of `biosdevname`. All come from the place on the PCI bus and from what firmware says of that place.

use std::path::Path;

use ferric_sys::{Root, attr};
use ferric_types::inventory::PredictableNames;

use super::smbios::{Smbios, Structure};

/// Firmware numbers beyond this are mistakes to udev.
const MAX_ONBOARD: u64 = (1 << 14) - 1;
/// Type of a structure of SMBIOS.
const SYSTEM_SLOT: u8 = 9;
/// `ARPHRD_INFINIBAND`.
const INFINIBAND: u64 = 32;

/// A PCI function: domain, bus, device, function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Address {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl Address {
    /// `0000:18:00.1`.
    fn parse(text: &str) -> Option<Self> {
        let (place, function) = text.split_once('.')?;
        Self::place(place, u8::from_str_radix(function, 16).ok()?)
    }

    /// `0000:18:00`, as slots are given.
    fn place(text: &str, function: u8) -> Option<Self> {
        let mut parts = text.splitn(3, ':');
        let mut next = || u32::from_str_radix(parts.next()?, 16).ok();
        let (domain, bus, device) = (next()?, next()?, next()?);
        Some(Self { domain, bus: u8::try_from(bus).ok()?, device: u8::try_from(device).ok()?, function })
    }

    fn same_place(self, other: Self) -> bool {
        Self { function: other.function, ..self } == other
    }
}

/// The PCI function of an interface, and above it the bridges to the processor.
#[derive(Debug, Clone)]
struct Card {
    /// The card first.
    chain: Vec<Address>,
    /// Its number among the ports of the function.
    port: u64,
    is_virtio: bool,
    /// Its number among the virtual functions of a card, by whose place it then goes.
    virtual_function: Option<String>,
}

impl Card {
    /// `None` for devices on other buses.
    fn of(interface: &Path) -> Option<Self> {
        let device = interface.join("device").canonicalize().ok()?;
        let physical = device.join("physfn").canonicalize().ok();
        let virtual_function = physical.as_ref().and_then(|card| {
            let is_this = |name: &String| card.join(name).canonicalize().is_ok_and(|found| found == device);
            let name = attr::list(card).into_iter().find(is_this)?;
            name.strip_prefix("virtfn").map(str::to_owned)
        });
        let device = physical.unwrap_or(device);
        let mut names = device.iter().rev().filter_map(|name| name.to_str()).peekable();
        let is_virtio = names.next_if(|name| name.starts_with("virtio")).is_some();
        let chain: Vec<Address> = names.map_while(Address::parse).collect();
        let port = attr::read_u64(&interface.join("dev_port")).unwrap_or(0);
        (!chain.is_empty()).then_some(Self { chain, port, is_virtio, virtual_function })
    }

    fn place(&self) -> Option<(Address, u64)> {
        Some((*self.chain.first()?, self.port))
    }
}

/// What the names of all interfaces of a machine depend on.
#[derive(Debug)]
pub struct Namer {
    /// Hotplug slots by the place that they hold.
    hotplug: Vec<(Address, u32)>,
    /// Slots of SMBIOS by the function in them, or the bridge before them.
    slots: Vec<(Address, u32)>,
    cards: Vec<Card>,
    /// A PC that is no virtual machine; `biosdevname` names nothing elsewhere.
    is_real_pc: bool,
}

impl Namer {
    /// Reads slots and cards of a machine; `interfaces` are all of its network interfaces.
    pub fn new(root: &Root, interfaces: &[String]) -> Self {
        let folder = root.path("sys/bus/pci/slots");
        let hotplug = attr::list(&folder).into_iter().filter_map(|name| {
            let place = attr::read_optional(&folder.join(&name).join("address"))?;
            let number = name.split('-').next()?.parse().ok().filter(|number| *number > 0)?;
            Some((Address::place(&place, 0)?, number))
        });
        let cpuinfo = attr::read_trimmed(&root.path("proc/cpuinfo")).unwrap_or_default();
        let flags = cpuinfo.lines().find_map(|line| line.strip_prefix("flags")?.trim_start().strip_prefix(':'));
        let class = root.path("sys/class/net");
        Self {
            hotplug: hotplug.collect(),
            slots: Smbios::read(root).as_ref().map(slots).unwrap_or_default(),
            cards: interfaces.iter().filter_map(|name| Card::of(&class.join(name))).collect(),
            is_real_pc: flags.is_some_and(|flags| !flags.split(' ').any(|flag| flag == "hypervisor")),
        }
    }

    /// Names of the interface with this folder in `/sys/class/net`: udev's, and `biosdevname`'s.
    pub fn names(&self, interface: &Path) -> (PredictableNames, Option<String>) {
        let Some(card) = Card::of(interface) else { return Default::default() };
        let [address, ..] = *card.chain else { return Default::default() };
        let is_infiniband = attr::read_u64(&interface.join("type")).is_ok_and(|kind| kind == INFINIBAND);
        let prefix = if is_infiniband { "ib" } else { "en" };
        let domain = if address.domain == 0 { String::new() } else { format!("P{}", address.domain) };
        let port = match attr::read_optional(&interface.join("phys_port_name")) {
            Some(name) => format!("n{name}"),
            None if card.port > 0 => format!("d{}", card.port),
            None => String::new(),
        };
        let port = match &card.virtual_function {
            Some(number) => format!("{port}v{number}"),
            None => port,
        };
        let Address { bus, device, .. } = address;
        let siblings = || {
            self.cards.iter().filter_map(Card::place).any(|(other, _)| other != address && other.same_place(address))
        };
        let function =
            if address.function > 0 || siblings() { format!("f{}", address.function) } else { String::new() };
        // A virtio device has its PCI function above it.
        let up = match card {
            Card { is_virtio: true, .. } => "device/..",
            Card { virtual_function: Some(_), .. } => "device/physfn",
            _ => "device",
        };
        let number = |name: &str| attr::read_u64(&interface.join(up).join(name)).ok();
        let onboard =
            number("acpi_index").or_else(|| number("index")).filter(|number| (1..=MAX_ONBOARD).contains(number));
        let slot = self.hotplug.iter().find(|(place, _)| place.same_place(address)).map(|(_, number)| *number);
        let names = PredictableNames {
            onboard: onboard.map(|number| format!("{prefix}o{number}{port}")),
            slot: slot.map(|number| format!("{prefix}{domain}s{number}{function}{port}")),
            path: Some(format!("{prefix}{domain}p{bus}s{device}{function}{port}")),
        };
        let is_plain = !is_infiniband && !card.is_virtio && card.virtual_function.is_none();
        (names, self.biosdevname(&card, onboard).filter(|_| is_plain))
    }

    /// `em1` for the first onboard device, `p3p2` for the second port in slot 3.
    fn biosdevname(&self, card: &Card, onboard: Option<u64>) -> Option<String> {
        if !self.is_real_pc {
            return None;
        }
        if let Some(number) = onboard {
            return Some(format!("em{number}"));
        }
        let slot = self.slot(card)?;
        let real = self.cards.iter().filter(|other| other.virtual_function.is_none());
        let before = real.filter(|other| other.place() < card.place() && self.slot(other) == Some(slot));
        Some(format!("p{slot}p{}", before.count() + 1))
    }

    /// The slot that a card is in, by SMBIOS, else by the hotplug controller.
    fn slot(&self, card: &Card) -> Option<u32> {
        let first = *card.chain.first()?;
        // Several functions share the place; of bridges each has its own slot.
        let holds = |(at, _): &&(Address, u32)| at.same_place(first) || card.chain.contains(at);
        let found = self.slots.iter().find(holds).or_else(|| self.hotplug.iter().find(holds));
        found.map(|(_, number)| *number)
    }
}

/// System slots (type 9, DSP0134 section 7.10) with a number and a place.
fn slots(smbios: &Smbios) -> Vec<(Address, u32)> {
    let of_slot = |slot: Structure<'_>| {
        let [id_low, id_high, _, _, domain_low, domain_high, bus, place] = *slot.bytes(9).first_chunk()?;
        let (id, domain) = (u16::from_le_bytes([id_low, id_high]), u16::from_le_bytes([domain_low, domain_high]));
        let address = Address { domain: domain.into(), bus, device: place >> 3, function: place & 7 };
        (id > 0 && domain != u16::MAX && (bus, place) != (0xff, 0xff)).then_some((address, id.into()))
    };
    smbios.of(SYSTEM_SLOT).filter_map(of_slot).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_sys::testing::machine::MachineTree;
    use proptest::prelude::*;

    /// Interfaces by name and the folder of their device.
    fn machine(cards: &[(&str, &str)], real: bool) -> MachineTree {
        let tree = MachineTree::new().unwrap();
        for (name, device) in cards {
            tree.file(&format!("sys/devices/{device}/vendor"), "0x8086").unwrap();
            tree.link(&format!("sys/class/net/{name}/device"), &format!("sys/devices/{device}")).unwrap();
        }
        let flags = if real { "fpu vme sse2" } else { "fpu vme sse2 hypervisor lahf_lm" };
        tree.file("proc/cpuinfo", &format!("processor\t: 0\nflags\t\t: {flags}\n")).unwrap();
        tree
    }

    fn named(tree: &MachineTree, cards: &[(&str, &str)], name: &str) -> [Option<String>; 4] {
        let all: Vec<String> = cards.iter().map(|(name, _)| (*name).to_owned()).collect();
        let (names, biosdevname) = Namer::new(&tree.root(), &all).names(&tree.path("sys/class/net").join(name));
        [names.onboard, names.slot, names.path, biosdevname]
    }

    fn some(names: [&str; 4]) -> [Option<String>; 4] {
        names.map(|name| (!name.is_empty()).then(|| name.to_owned()))
    }

    /// A type 9 structure with one string.
    fn slot(id: u16, domain: u16, bus: u8, place: u8) -> Vec<u8> {
        let mut bytes = vec![9, 0x11, 0, 0, 1, 0xa5, 8, 4, 4];
        bytes.extend(id.to_le_bytes());
        bytes.extend([0, 0]);
        bytes.extend(domain.to_le_bytes());
        bytes.extend([bus, place]);
        bytes.extend(b"SLOT\0\0");
        bytes
    }

    const SERVER: &[(&str, &str)] = &[
        ("onboard0", "pci0000:17/0000:17:00.0/0000:18:00.0"),
        ("onboard1", "pci0000:17/0000:17:00.0/0000:18:00.1"),
        ("slot0", "pci0000:3a/0000:3a:00.0/0000:3b:00.0"),
        ("slot1", "pci0000:3a/0000:3a:00.0/0000:3b:00.1"),
        ("hot", "pci0000:5d/0000:5d:02.0/0000:5e:00.0"),
        ("far", "pci0001:00/0001:00:01.0/0001:01:00.0"),
        ("vmd", "pci0000:00/0000:00:0e.0/pci10000:00/10000:00:02.0/10000:01:00.0"),
        ("usb", "pci0000:00/0000:00:14.0/usb1/1-14/1-14:1.0"),
        ("soc", "platform/fd580000.ethernet"),
    ];

    #[test]
    fn cards_of_a_server_are_named_by_their_place() {
        let tree = machine(SERVER, true);
        for (function, number) in [("0", "1"), ("1", "2")] {
            tree.file(&format!("sys/devices/pci0000:17/0000:17:00.0/0000:18:00.{function}/index"), number).unwrap();
        }
        tree.file("sys/bus/pci/slots/4/address", "0000:5e:00").unwrap();
        tree.file("sys/bus/pci/slots/0/address", "0000:3b:00").unwrap();
        tree.file("sys/bus/pci/slots/named/address", "0000:18:00").unwrap();
        // Slot 3 by the bridge before it, slot 6 by the function in it.
        let table = [slot(3, 0, 0x3a, 0), slot(6, 1, 1, 0), slot(0, 0, 0x18, 0), slot(9, 0, 0xff, 0xff)].concat();
        tree.bytes("sys/firmware/dmi/tables/DMI", &table).unwrap();
        for (name, want) in [
            ("onboard0", ["eno1", "", "enp24s0f0", "em1"]),
            ("onboard1", ["eno2", "", "enp24s0f1", "em2"]),
            ("slot0", ["", "", "enp59s0f0", "p3p1"]),
            ("slot1", ["", "", "enp59s0f1", "p3p2"]),
            ("hot", ["", "ens4", "enp94s0", "p4p1"]),
            ("far", ["", "", "enP1p1s0", "p6p1"]),
            ("vmd", ["", "", "enP65536p1s0", ""]),
            ("usb", [""; 4]),
            ("soc", [""; 4]),
            ("bond0", [""; 4]),
        ] {
            assert_eq!(named(&tree, SERVER, name), some(want), "{name}");
        }
    }

    #[test]
    fn the_number_of_acpi_comes_first_and_odd_ones_do_not_count() {
        for (acpi, smbios, want) in [
            ("7", "2", "eno7"),
            ("", "2", "eno2"),
            ("16383", "", "eno16383"),
            ("16384", "", ""),
            ("0", "", ""),
            ("x", "", ""),
        ] {
            let tree = machine(SERVER, true);
            let device = "sys/devices/pci0000:17/0000:17:00.0/0000:18:00.0";
            tree.file(&format!("{device}/acpi_index"), acpi).unwrap();
            tree.file(&format!("{device}/index"), smbios).unwrap();
            assert_eq!(named(&tree, SERVER, "onboard0")[0].as_deref().unwrap_or_default(), want, "{acpi} {smbios}");
        }
    }

    #[test]
    fn ports_of_one_function_are_told_apart() {
        let cards = &[("a", "pci0000:00/0000:00:03.0/0000:05:00.0"), ("b", "pci0000:00/0000:00:03.0/0000:05:00.0")];
        let tree = machine(cards, true);
        tree.file("sys/class/net/a/dev_port", "0").unwrap();
        tree.file("sys/class/net/b/dev_port", "1").unwrap();
        tree.bytes("sys/firmware/dmi/tables/DMI", &slot(2, 0, 5, 0)).unwrap();
        assert_eq!(named(&tree, cards, "a"), some(["", "", "enp5s0", "p2p1"]));
        assert_eq!(named(&tree, cards, "b"), some(["", "", "enp5s0d1", "p2p2"]));
        tree.file("sys/class/net/b/phys_port_name", "p1").unwrap();
        assert_eq!(named(&tree, cards, "b")[2].as_deref(), Some("enp5s0np1"));
        // The same card for InfiniBand.
        tree.file("sys/class/net/b/type", "32").unwrap();
        assert_eq!(named(&tree, cards, "b"), some(["", "", "ibp5s0np1", ""]));
    }

    #[test]
    fn virtual_functions_are_named_by_their_card() {
        let slot = "pci0000:3a/0000:3a:00.0";
        let devices = ["0000:3b:00.0", "0000:3b:00.1", "0000:3b:02.1"].map(|address| format!("{slot}/{address}"));
        let cards = &[("pf0", devices[0].as_str()), ("pf1", &devices[1]), ("vf", &devices[2])];
        let tree = machine(cards, true);
        tree.link(&format!("sys/devices/{}/physfn", devices[2]), &format!("sys/devices/{}", devices[0])).unwrap();
        tree.link(&format!("sys/devices/{}/virtfn5", devices[0]), &format!("sys/devices/{}", devices[2])).unwrap();
        tree.file("sys/bus/pci/slots/2/address", "0000:3b:00").unwrap();
        assert_eq!(named(&tree, cards, "pf0"), some(["", "ens2f0", "enp59s0f0", "p2p1"]));
        assert_eq!(named(&tree, cards, "pf1"), some(["", "ens2f1", "enp59s0f1", "p2p2"]));
        assert_eq!(named(&tree, cards, "vf"), some(["", "ens2f0v5", "enp59s0f0v5", ""]));
    }

    #[test]
    fn virtual_machines_have_no_name_by_biosdevname() {
        let cards = &[("eth0", "pci0000:00/0000:00:02.0/virtio0"), ("eth1", "pci0000:00/0000:00:1c.0/0000:01:00.0")];
        let tree = machine(cards, false);
        tree.file("sys/devices/pci0000:00/0000:00:02.0/acpi_index", "5").unwrap();
        tree.file("sys/bus/pci/slots/1/address", "0000:01:00").unwrap();
        assert_eq!(named(&tree, cards, "eth0"), some(["eno5", "", "enp0s2", ""]));
        assert_eq!(named(&tree, cards, "eth1"), some(["", "ens1", "enp1s0", ""]));
        // Nor have machines that are no PC.
        tree.file("proc/cpuinfo", "processor\t: 0\nFeatures\t: fp asimd").unwrap();
        assert_eq!(named(&tree, cards, "eth1")[3], None);
    }

    #[test]
    fn slots_without_a_place_are_none() {
        let address = Address { domain: 0, bus: 0x3a, device: 0, function: 0 };
        let good = slot(3, 0, 0x3a, 0);
        for (what, other) in [
            ("nothing", vec![]),
            ("no number", slot(0, 0, 0x3a, 0)),
            ("no place", slot(4, 0, 0xff, 0xff)),
            ("no domain", slot(4, 0xffff, 0x3a, 0)),
            // A structure of SMBIOS 2.4 does not say where its slot is.
            ("old", vec![9, 0x0d, 0, 0, 1, 5, 8, 4, 4, 7, 0, 0, 0, 0, 0]),
        ] {
            let smbios = Smbios::new([&other[..], &good].concat(), &[]);
            assert_eq!(slots(&smbios), [(address, 3)], "{what}");
        }
    }

    proptest! {
        #[test]
        fn any_table_is_read(table in proptest::collection::vec(any::<u8>(), 0..400)) {
            let count = table.len() / 17;
            prop_assert!(slots(&Smbios::new(table, &[])).len() <= count);
        }

        #[test]
        fn any_text_is_an_address_or_none(text in "\\PC{0,20}|[0-9a-f:.]{0,14}") {
            let _parsed = (Address::parse(&text), Address::place(&text, 0));
        }
    }
}
