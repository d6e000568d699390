//! Ways from the host to its management controller (SMBIOS type 42, DSP0134 section 7.43) that speak Redfish over IP
//! (DMTF DSP0270 sections 8 and 9).

use std::net::{Ipv4Addr, Ipv6Addr};

use ferric_types::inventory::HostInterface;

use super::{Smbios, Structure, kind, uuid};
use crate::probe::text::with_colons;

/// Interface type of a network.
const NETWORK: u8 = 0x40;
/// Protocol type of Redfish over IP.
const REDFISH: u8 = 4;
/// Most interfaces that are told of.
const MAX_INTERFACES: usize = 16;

/// Every Redfish service that the tables tell of. The form is that of SMBIOS 3.2; firmware that claims to be older has it
/// too, so what decides is whether lengths and records fit.
pub fn host_interfaces(smbios: &Smbios) -> Vec<HostInterface> {
    let structures = smbios.of(kind::HOST_INTERFACE).filter(|structure| structure.byte(4) == NETWORK);
    structures.flat_map(|structure| services(&structure)).take(MAX_INTERFACES).collect()
}

fn services(structure: &Structure<'_>) -> Vec<HostInterface> {
    let rest = structure.bytes(5);
    let Some((device, rest)) = sized(rest) else { return Vec::new() };
    let Some((count, mut rest)) = rest.split_first() else { return Vec::new() };
    let mut found = Vec::new();
    for _ in 0..*count {
        let Some((protocol, after)) = rest.split_first() else { break };
        let Some((record, after)) = sized(after) else { break };
        rest = after;
        if *protocol == REDFISH
            && let Some(mut interface) = service(record)
        {
            describe(&mut interface, device);
            found.push(interface);
        }
    }
    found
}

/// What a byte of length stands before, and what follows.
fn sized(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*length))
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes))
}

/// A protocol record, DSP0270 section 9.
fn service(record: &[u8]) -> Option<HostInterface> {
    let at = |place: usize| record.get(place).copied();
    let (host, found) = (at(17)?, at(51)?);
    let name = record.get(91..)?.get(..usize::from(at(90)?))?;
    let name = String::from_utf8_lossy(name).trim_matches(|c: char| c.is_whitespace() || c == '\0').to_owned();
    Some(HostInterface {
        service_uuid: record.first_chunk().map(uuid).unwrap_or_default(),
        host_ip_assignment: assignment(at(16)?),
        host_address: address(host, record.get(18..34)?),
        host_mask: address(host, record.get(34..50)?),
        service_ip_discovery: assignment(at(50)?),
        service_address: address(found, record.get(52..68)?),
        service_mask: address(found, record.get(68..84)?),
        service_port: word(record, 84)?,
        service_vlan: record.get(86..90)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))?,
        service_hostname: Some(name).filter(|name| !name.is_empty()),
        ..HostInterface::default()
    })
}

/// How an address is come by.
fn assignment(number: u8) -> Option<String> {
    let place = usize::from(number).checked_sub(1)?;
    ["static", "dhcp", "autoconf", "host_selected"].get(place).map(|name| (*name).to_owned())
}

/// An address or mask of 16 bytes, of which IPv4 uses the first four.
fn address(format: u8, bytes: &[u8]) -> Option<String> {
    match format {
        1 => bytes.first_chunk::<4>().map(|bytes| Ipv4Addr::from(*bytes).to_string()),
        2 => bytes.first_chunk::<16>().map(|bytes| Ipv6Addr::from(*bytes).to_string()),
        _ => None,
    }
}

/// The network device, DSP0270 section 8: type, for the second forms a length, then maker, model and address.
fn describe(interface: &mut HostInterface, device: &[u8]) {
    let Some((kind, rest)) = device.split_first() else { return };
    let (name, ids, address) = match kind {
        2 => ("usb", 0, None),
        3 => ("pci", 0, None),
        4 => ("usb", 1, Some(6)),
        5 => ("pci", 1, Some(9)),
        _ => return,
    };
    let id = |at: usize| word(rest, at).map(|id| format!("0x{id:04x}"));
    interface.device_type = Some(name.to_owned());
    interface.vendor = id(ids);
    interface.product = id(ids + 2);
    let address = address.and_then(|at| rest.get(at..)?.first_chunk::<6>());
    interface.mac_address = address.filter(|address| **address != [0; 6]).map(|address| with_colons(address));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::smbios::tests::{entry_point, structure, table};
    use proptest::prelude::*;

    /// A record of a service at 169.254.0.1, or at fe80::2.
    fn record(v6: bool, name: &[u8]) -> Vec<u8> {
        let address = |v4: [u8; 4], last: u8| {
            let mut bytes = [0; 16];
            if v6 {
                bytes = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last.into()).octets();
            } else {
                bytes[..4].copy_from_slice(&v4);
            }
            bytes
        };
        let format = if v6 { 2 } else { 1 };
        let mut data: Vec<u8> = (0..16).collect();
        data.extend([1, format]);
        data.extend(address([169, 254, 0, 2], 1));
        data.extend(address([255, 255, 0, 0], 0));
        data.extend([2, format]);
        data.extend(address([169, 254, 0, 1], 2));
        data.extend(address([255, 255, 255, 0], 0));
        data.extend(443_u16.to_le_bytes());
        data.extend(7_u32.to_le_bytes());
        data.push(u8::try_from(name.len()).unwrap());
        data.extend(name);
        [&[REDFISH, u8::try_from(data.len()).unwrap()][..], &data].concat()
    }

    fn interface(device: &[u8], records: &[Vec<u8>]) -> Vec<u8> {
        let count = [u8::try_from(records.len()).unwrap()];
        let length = [NETWORK, u8::try_from(device.len()).unwrap()];
        structure(kind::HOST_INTERFACE, &[&length[..], device, &count, &records.concat()].concat(), &["SN"])
    }

    fn found(version: (u8, u8), structures: &[Vec<u8>]) -> Vec<HostInterface> {
        host_interfaces(&Smbios::new(table(structures), &entry_point(version.0, version.1)))
    }

    #[test]
    fn a_service_is_told_with_its_address_and_its_device() {
        /// Bytes of the device; type, maker, model and address of it.
        type Case<'a> = (&'a [u8], Option<&'a str>, Option<&'a str>, Option<&'a str>, Option<&'a str>);
        let cases: [Case<'_>; 6] = [
            (b"\x02\x6b\x04\xb0\xff\x04\x03S\0", Some("usb"), Some("0x046b"), Some("0xffb0"), None),
            (b"\x03\x86\x80\x22\x15\0\0\0\0", Some("pci"), Some("0x8086"), Some("0x1522"), None),
            (
                b"\x04\x0d\x6b\x04\xb0\xff\x01\x0a\x0b\x0c\x0d\x0e\x0f",
                Some("usb"),
                Some("0x046b"),
                Some("0xffb0"),
                Some("0a:0b:0c:0d:0e:0f"),
            ),
            (
                b"\x05\x14\x86\x80\x22\x15\0\0\0\0\x0a\x0b\x0c\x0d\x0e\x0f\0\0\0\0",
                Some("pci"),
                Some("0x8086"),
                Some("0x1522"),
                Some("0a:0b:0c:0d:0e:0f"),
            ),
            (b"\x02\x6b", Some("usb"), None, None, None),
            (b"\x80\x01\x02\x03", None, None, None, None),
        ];
        for (device, kind, vendor, product, mac) in cases {
            let all = found((3, 3), &[interface(device, &[record(false, b"bmc.example\0")])]);
            let [one] = all.as_slice() else { panic!("{device:?}: {all:?}") };
            let options = [&one.device_type, &one.vendor, &one.product, &one.mac_address].map(Option::as_deref);
            assert_eq!(options, [kind, vendor, product, mac], "{device:?}");
            assert_eq!(one.service_uuid, "03020100-0504-0706-0809-0a0b0c0d0e0f");
            assert_eq!(one.host_ip_assignment.as_deref(), Some("static"));
            assert_eq!(one.service_ip_discovery.as_deref(), Some("dhcp"));
            let addresses = [&one.host_address, &one.host_mask, &one.service_address, &one.service_mask];
            let want = ["169.254.0.2", "255.255.0.0", "169.254.0.1", "255.255.255.0"].map(Some);
            assert_eq!(addresses.map(Option::as_deref), want);
            assert_eq!((one.service_port, one.service_vlan), (443, 7));
            assert_eq!(one.service_hostname.as_deref(), Some("bmc.example"));
        }
    }

    #[test]
    fn several_records_are_several_services_and_other_protocols_and_forms_are_none() {
        let usb = b"\x02\x6b\x04\xb0\xff";
        let ipmi = vec![2, 3, 1, 2, 3];
        let all = found((3, 2), &[interface(usb, &[ipmi.clone(), record(true, b""), record(false, b"b")])]);
        let services: Vec<_> = all.iter().map(|one| one.service_address.as_deref().unwrap()).collect();
        assert_eq!(services, ["fe80::2", "169.254.0.1"]);
        assert_eq!(all[0].service_hostname, None);
        assert_eq!(found((3, 2), &[interface(usb, &[ipmi])]), []);
        assert_eq!(found((2, 8), &[interface(usb, &[record(false, b"")])]).len(), 1, "the version does not matter");
        // Before SMBIOS 3.2 the type of the interface was followed by the data itself, such as registers of a KCS.
        let old = structure(kind::HOST_INTERFACE, &[NETWORK, 0xa2, 0x0c, 1, 0, 0, 0, 0, 0, 0], &[]);
        assert_eq!(found((3, 1), &[old]), [], "an older form");
        let mut short = record(false, b"");
        short.truncate(40);
        short[1] = 38;
        assert_eq!(found((3, 2), &[interface(usb, &[short])]), [], "a record that is too short");
        let mut long = interface(usb, &[record(false, b"")]);
        long[5] = 0xff;
        assert_eq!(found((3, 2), &[long]), [], "a device longer than its structure");
    }

    proptest! {
        #[test]
        fn any_interface_is_survived(body in proptest::collection::vec(any::<u8>(), 0..250)) {
            let all = found((3, 4), &[structure(kind::HOST_INTERFACE, &[&[NETWORK][..], &body].concat(), &[])]);
            prop_assert!(all.len() <= MAX_INTERFACES);
        }
    }
}
