//! Facts of a network interface that sysfs does not show: permanent address, fastest link mode and firmware by ethtool
//! ioctls (`linux/ethtool.h`), IP addresses by `getifaddrs`.
#![expect(unsafe_code, reason = "ioctls and getifaddrs")]

use std::ffi::{CStr, c_char, c_void};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;

use rustix::ioctl::{self, Opcode, Updater};
use rustix::net::{AddressFamily, SocketType};

const SIOCETHTOOL: Opcode = 0x8946;
const ETHTOOL_GSET: u32 = 0x01;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GPERMADDR: u32 = 0x20;
const ETHTOOL_GLINKSETTINGS: u32 = 0x4c;
const NAME_BYTES: usize = 16;
const ADDRESS_BYTES: usize = 32;
/// Words of a link mode mask that `i8` can count.
const MASK_WORDS: usize = 127;
/// `ETHTOOL_FWVERS_LEN`.
const VERSION_BYTES: usize = 32;

/// What the kernel tells of an interface through sockets rather than files. Everything may be unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NicFacts {
    /// Address burnt into the hardware: 6 bytes for Ethernet, 20 for InfiniBand. Never all zero.
    pub permanent_address: Option<Vec<u8>>,
    /// Fastest link mode the hardware supports, Mbit/s.
    pub max_speed_mbps: Option<u64>,
    /// Version of the card's firmware, as its driver writes it.
    pub firmware: Option<String>,
    /// First IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// First IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
}

/// Reads the facts of an interface; what cannot be read stays unknown.
pub fn facts(interface: &str) -> NicFacts {
    let addresses = addresses(interface).unwrap_or_default();
    let mut facts = NicFacts {
        ipv4: addresses.iter().find_map(|address| match address {
            IpAddr::V4(address) => Some(*address),
            IpAddr::V6(_) => None,
        }),
        ipv6: addresses.iter().find_map(|address| match address {
            IpAddr::V6(address) => Some(*address),
            IpAddr::V4(_) => None,
        }),
        ..NicFacts::default()
    };
    if let Ok(socket) = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None) {
        facts.permanent_address = permanent_address(&socket, interface).ok().flatten();
        // Kernels before 4.6 know the older question only.
        facts.max_speed_mbps =
            max_speed_mbps(&socket, interface).or_else(|_| old_speed_mbps(&socket, interface)).ok().flatten();
        facts.firmware = firmware(&socket, interface).ok().flatten();
    }
    facts
}

/// `struct ifreq` with a pointer as its value; the union in it is 24 bytes long on 64-bit machines.
#[repr(C)]
struct EthtoolRequest {
    name: [c_char; NAME_BYTES],
    data: *mut c_void,
    padding: [u8; 24 - size_of::<*mut c_void>()],
}

/// `struct ethtool_perm_addr` with room for the longest address.
#[repr(C)]
struct PermanentAddress {
    cmd: u32,
    size: u32,
    data: [u8; ADDRESS_BYTES],
}

/// `struct ethtool_cmd`.
#[repr(C)]
struct OldSettings {
    cmd: u32,
    supported: u32,
    others: [u32; 9],
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DriverInfo {
    cmd: u32,
    driver: [u8; 32],
    version: [u8; 32],
    firmware: [u8; VERSION_BYTES],
    others: [u8; 32 + 32 + 12],
    counts: [u32; 5],
}

/// `struct ethtool_link_settings` with room for three masks of the greatest length.
#[repr(C)]
struct LinkSettings {
    cmd: u32,
    speed: u32,
    duplex: u8,
    port: u8,
    phy_address: u8,
    autoneg: u8,
    mdio_support: u8,
    eth_tp_mdix: u8,
    eth_tp_mdix_ctrl: u8,
    mask_words: i8,
    transceiver: u8,
    master_slave_cfg: u8,
    master_slave_state: u8,
    rate_matching: u8,
    reserved: [u32; 7],
    masks: [u32; 3 * MASK_WORDS],
}

const _: () = assert!(size_of::<EthtoolRequest>() == 40);
const _: () = assert!(size_of::<PermanentAddress>() == 8 + ADDRESS_BYTES);
const _: () = assert!(size_of::<OldSettings>() == 44);
const _: () = assert!(size_of::<DriverInfo>() == 196);
const _: () = assert!(size_of::<LinkSettings>() == 48 + 12 * MASK_WORDS);

fn ethtool<T>(socket: impl AsFd, interface: &str, command: &mut T) -> io::Result<()> {
    let mut name: [c_char; NAME_BYTES] = [0; NAME_BYTES];
    if interface.len() >= NAME_BYTES {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in name.iter_mut().zip(interface.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    let data = std::ptr::from_mut(command).cast();
    let mut request = EthtoolRequest { name, data, padding: [0; 24 - size_of::<*mut c_void>()] };
    // SAFETY: `request` has the layout of struct ifreq, and its pointer leads to a command structure with room for
    // everything the kernel stores for that command (all callers size their arrays to the protocol's maximum).
    unsafe { ioctl::ioctl(socket, Updater::<SIOCETHTOOL, EthtoolRequest>::new(&mut request)) }?;
    Ok(())
}

/// Address burnt into the hardware, `None` when the driver reports none.
fn permanent_address(socket: impl AsFd, interface: &str) -> io::Result<Option<Vec<u8>>> {
    let size = u32::try_from(ADDRESS_BYTES).unwrap_or(0);
    let mut command = PermanentAddress { cmd: ETHTOOL_GPERMADDR, size, data: [0; ADDRESS_BYTES] };
    ethtool(socket, interface, &mut command)?;
    let length = usize::try_from(command.size).unwrap_or(0).min(ADDRESS_BYTES);
    let address = command.data.get(..length).unwrap_or_default();
    Ok(address.iter().any(|byte| *byte != 0).then(|| address.to_vec()))
}

/// Fastest link mode the hardware supports, `None` when it names none (virtual interfaces).
fn max_speed_mbps(socket: impl AsFd, interface: &str) -> io::Result<Option<u64>> {
    let new = |mask_words| LinkSettings {
        cmd: ETHTOOL_GLINKSETTINGS,
        speed: 0,
        duplex: 0,
        port: 0,
        phy_address: 0,
        autoneg: 0,
        mdio_support: 0,
        eth_tp_mdix: 0,
        eth_tp_mdix_ctrl: 0,
        mask_words,
        transceiver: 0,
        master_slave_cfg: 0,
        master_slave_state: 0,
        rate_matching: 0,
        reserved: [0; 7],
        masks: [0; 3 * MASK_WORDS],
    };
    // Asked with no words the kernel answers with minus the number it has.
    let mut question = new(0);
    ethtool(&socket, interface, &mut question)?;
    let mut settings = new(question.mask_words.saturating_neg());
    ethtool(&socket, interface, &mut settings)?;
    let words = usize::try_from(settings.mask_words).unwrap_or(0);
    Ok(fastest(settings.masks.get(..words).unwrap_or_default()))
}

/// The same by `ETHTOOL_GSET`, whose mask has the first 32 modes.
fn old_speed_mbps(socket: impl AsFd, interface: &str) -> io::Result<Option<u64>> {
    let mut settings = OldSettings { cmd: ETHTOOL_GSET, supported: 0, others: [0; 9] };
    ethtool(socket, interface, &mut settings)?;
    Ok(fastest(&[settings.supported]))
}

/// What the driver says of the card's firmware; `None` when it says nothing.
fn firmware(socket: impl AsFd, interface: &str) -> io::Result<Option<String>> {
    let mut info = DriverInfo {
        cmd: ETHTOOL_GDRVINFO,
        driver: [0; 32],
        version: [0; 32],
        firmware: [0; VERSION_BYTES],
        others: [0; 32 + 32 + 12],
        counts: [0; 5],
    };
    ethtool(socket, interface, &mut info)?;
    Ok(version(&info.firmware))
}

/// The text of a version field; some drivers fill it with blanks, some with `N/A`.
fn version(field: &[u8]) -> Option<String> {
    let text = field.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(text).trim().to_owned();
    (!text.is_empty() && text != "N/A").then_some(text)
}

/// Speed of the fastest link mode in a mask, Mbit/s.
fn fastest(supported: &[u32]) -> Option<u64> {
    let has = |bit: usize| supported.get(bit / 32).is_some_and(|word| word & (1 << (bit % 32)) != 0);
    LINK_MODES.iter().filter(|(first, last, _)| (*first..=*last).any(has)).map(|(_, _, speed)| *speed).max()
}

/// `enum ethtool_link_mode_bit_indices` as ranges: first bit, last bit, Mbit/s. Bits that are no speed (ports, pause,
/// FEC) are left out.
const LINK_MODES: &[(usize, usize, u64)] = &[
    (0, 1, 10),
    (2, 3, 100),
    (4, 5, 1_000),
    (12, 12, 10_000),
    (15, 15, 2_500),
    (17, 17, 1_000),
    (18, 20, 10_000),
    (21, 22, 20_000),
    (23, 26, 40_000),
    (27, 30, 56_000),
    (31, 33, 25_000),
    (34, 35, 50_000),
    (36, 39, 100_000),
    (40, 40, 50_000),
    (41, 41, 1_000),
    (42, 46, 10_000),
    (47, 47, 2_500),
    (48, 48, 5_000),
    (52, 56, 50_000),
    (57, 61, 100_000),
    (62, 66, 200_000),
    (67, 67, 100),
    (68, 68, 1_000),
    (69, 73, 400_000),
    (75, 79, 100_000),
    (80, 84, 200_000),
    (85, 89, 400_000),
    (90, 91, 100),
    (92, 92, 10),
    (93, 98, 800_000),
    (99, 102, 10),
    (103, 108, 200_000),
    (109, 114, 400_000),
    (115, 120, 800_000),
    (121, 124, 1_600_000),
];

/// Addresses of an interface in the kernel's order.
///
/// # Errors
/// The kernel's answer could not be had.
pub fn addresses(interface: &str) -> io::Result<Vec<IpAddr>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs stores a list in `first`, or fails and stores nothing.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut entry = first;
    while !entry.is_null() {
        // SAFETY: `entry` is a member of the list, which lives until freeifaddrs.
        let current = unsafe { &*entry };
        // SAFETY: ifa_name is a NUL-terminated string of the list.
        let name = unsafe { CStr::from_ptr(current.ifa_name) };
        if name.to_bytes() == interface.as_bytes() && !current.ifa_addr.is_null() {
            // SAFETY: ifa_addr points to a socket address whose family says how long it is.
            found.extend(unsafe { ip_of(current.ifa_addr) });
        }
        entry = current.ifa_next;
    }
    // SAFETY: `first` came from getifaddrs and is freed once.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// # Safety
/// `address` points to a socket address that is as long as its family says.
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: every socket address begins with its family.
    match i32::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family is AF_INET, so this is a sockaddr_in; read_unaligned needs no alignment.
            let address = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr))))
        }
        libc::AF_INET6 => {
            // SAFETY: the family is AF_INET6, so this is a sockaddr_in6; read_unaligned needs no alignment.
            let address = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(IpAddr::V6(Ipv6Addr::from(address.sin6_addr.s6_addr)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_its_address_and_no_hardware() {
        let facts = facts("lo");
        assert_eq!(facts.ipv4, Some(Ipv4Addr::LOCALHOST));
        assert_eq!((facts.permanent_address, facts.max_speed_mbps, facts.firmware), (None, None, None));
    }

    #[test]
    fn unknown_interfaces_have_no_facts() {
        assert_eq!(facts("ferric-none"), NicFacts::default());
        assert_eq!(facts("a-name-that-is-too-long-for-linux"), NicFacts::default());
    }

    #[test]
    fn the_fastest_supported_mode_counts() {
        let mode = |bit: usize| {
            let mut mask = vec![0; bit / 32 + 1];
            mask[bit / 32] = 1 << (bit % 32);
            mask
        };
        let cases: &[(Vec<u32>, Option<u64>)] = &[
            (vec![], None),
            // Autonegotiation, twisted pair and pause only; FEC and backplane.
            (vec![0x20c0], None),
            (vec![1 << 16, 3 << 17, 1 << 10], None),
            // What an e1000e says: 10 to 1000 Mbit/s, twisted pair, autonegotiation.
            (vec![0x2ef], Some(1_000)),
            (vec![0x2ef, 0x8000], Some(2_500)),
            (vec![0x2ef, 1 << 16], Some(5_000)),
            (vec![1 << 12, 1 << 6], Some(100_000)),
            (vec![1 << 6], None),
            // Of each speed its first and last mode.
            (mode(0), Some(10)),
            (mode(3), Some(100)),
            (mode(5), Some(1_000)),
            (mode(17), Some(1_000)),
            (mode(15), Some(2_500)),
            (mode(47), Some(2_500)),
            (mode(48), Some(5_000)),
            (mode(12), Some(10_000)),
            (mode(46), Some(10_000)),
            (mode(22), Some(20_000)),
            (mode(31), Some(25_000)),
            (mode(33), Some(25_000)),
            (mode(26), Some(40_000)),
            (mode(34), Some(50_000)),
            (mode(56), Some(50_000)),
            (mode(30), Some(56_000)),
            (mode(36), Some(100_000)),
            (mode(79), Some(100_000)),
            (mode(62), Some(200_000)),
            (mode(108), Some(200_000)),
            (mode(69), Some(400_000)),
            (mode(114), Some(400_000)),
            (mode(93), Some(800_000)),
            (mode(120), Some(800_000)),
            (mode(124), Some(1_600_000)),
            (mode(125), None),
        ];
        for (mask, want) in cases {
            assert_eq!(fastest(mask), *want, "{mask:x?}");
        }
    }

    #[test]
    fn firmware_versions_are_texts_or_nothing() {
        let field = |text: &[u8]| {
            let mut field = [0; VERSION_BYTES];
            field[..text.len()].copy_from_slice(text);
            version(&field)
        };
        for (text, want) in [
            (&b"9.20 0x8000d8c5 22.5.7"[..], Some("9.20 0x8000d8c5 22.5.7")),
            (b"", None),
            (b"N/A", None),
            (b"   ", None),
            (b"14.2\xff", Some("14.2\u{fffd}")),
        ] {
            assert_eq!(field(text).as_deref(), want, "{text:?}");
        }
        // A driver that fills the field leaves no room for its end.
        assert_eq!(version(&[b'x'; VERSION_BYTES]).unwrap().len(), VERSION_BYTES);
    }

    #[test]
    fn link_mode_ranges_do_not_overlap() {
        for pair in LINK_MODES.windows(2) {
            assert!(pair[0].1 < pair[1].0, "{pair:?}");
        }
    }
}
