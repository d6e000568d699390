//! What is left out of the tables of SMBIOS (DSP0134) before they are taken: structures that only their maker can read,
//! texts of dealers, and IP addresses.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use crate::probe::smbios::kind;

/// First type that each maker gives a meaning of its own.
const FIRST_OEM: u8 = 128;
/// Types that hold nothing but texts of makers and dealers: OEM strings, configuration options.
const TEXTS_ONLY: [u8; 2] = [11, 12];
/// Type that ends the table.
const END: u8 = 127;
/// Type and offset of texts that no probe reads and that may hold names: a board's place, when a battery was made, what a
/// device on the board and a property are called (SMBIOS 3.7 sections 7.3, 7.23, 7.42, 7.47).
const FREE_TEXTS: &[(u8, usize)] = &[(2, 0x0a), (22, 6), (41, 4), (46, 6)];
/// A battery, and where it has its number and date in binary.
const BATTERY: u8 = 22;
const BATTERY_NUMBERS: Range<usize> = 0x10..0x14;
/// Bytes of type, length and handle.
const HEAD: usize = 4;
/// Where a protocol record (DSP0270 section 9) has the form of an address and its 16 bytes: the host's, the service's.
const ADDRESSES: [(usize, usize); 2] = [(17, 18), (51, 52)];

/// The table with such bytes overwritten, and all behind its end or what cannot be read; its structures stay where they are.
pub(super) fn scrubbed(mut table: Vec<u8>) -> Vec<u8> {
    for range in texts(&table, FREE_TEXTS) {
        fill(&mut table, range, |_| b'x');
    }
    let mut place = 0;
    while let Some((fields, texts)) = structure(&table, place) {
        let kind = table.get(place).copied().unwrap_or_default();
        place = texts.end + 1;
        if kind == END {
            break;
        }
        if kind == BATTERY {
            let end = fields.end.min(fields.start + BATTERY_NUMBERS.end);
            fill(&mut table, fields.start + BATTERY_NUMBERS.start..end, |_| 0);
        }
        if kind >= FIRST_OEM {
            fill(&mut table, fields.start + HEAD..fields.end, |_| 0);
        }
        if kind >= FIRST_OEM || TEXTS_ONLY.contains(&kind) {
            fill(&mut table, texts, |byte| if byte == 0 { 0 } else { b'x' });
        } else if kind == kind::HOST_INTERFACE {
            hide_addresses(table.get_mut(fields).unwrap_or_default());
        }
    }
    let end = table.len();
    fill(&mut table, place.min(end)..end, |_| 0);
    table
}

/// Where the table has the texts that such types refer to at such offsets.
pub(super) fn texts(table: &[u8], places: &[(u8, usize)]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut place = 0;
    while let Some((fields, texts)) = structure(table, place) {
        let kind = table.get(place).copied().unwrap_or_default();
        place = texts.end + 1;
        if kind == END {
            break;
        }
        let bytes = table.get(texts.clone()).unwrap_or_default();
        for (_, offset) in places.iter().filter(|(of, _)| *of == kind) {
            let number = table.get(fields.clone()).and_then(|fields| fields.get(*offset)).copied().unwrap_or_default();
            let Some(before) = usize::from(number).checked_sub(1) else { continue };
            let start: usize = bytes.split(|byte| *byte == 0).take(before).map(|text| text.len() + 1).sum();
            let text = bytes.split(|byte| *byte == 0).nth(before).unwrap_or_default();
            if !text.is_empty() {
                found.push(texts.start + start..texts.start + start + text.len());
            }
        }
    }
    found
}

/// Where the structure at a place has its fields and its texts, without the last zero; `None` at the end and when it is
/// cut off.
fn structure(table: &[u8], place: usize) -> Option<(Range<usize>, Range<usize>)> {
    let length = usize::from(*table.get(place + 1)?);
    let texts = table.get(place + length..).filter(|_| length >= HEAD)?;
    let end = texts.windows(2).position(|pair| pair == [0, 0])?;
    Some((place..place + length, place + length..place + length + end + 1))
}

fn fill(table: &mut [u8], range: Range<usize>, with: impl Fn(u8) -> u8) {
    for byte in table.get_mut(range).unwrap_or_default() {
        *byte = with(*byte);
    }
}

/// Puts addresses for documentation in the place of those of a host interface, but for link-local ones.
fn hide_addresses(fields: &mut [u8]) {
    let Some(device) = fields.get(5).copied() else { return };
    // Behind the device comes the number of records.
    let mut place = 7 + usize::from(device);
    while let Some(length) = fields.get(place + 1).copied().map(usize::from) {
        if let Some(record) = fields.get_mut(place + 2..place + 2 + length) {
            for (form, address) in ADDRESSES {
                let form = record.get(form).copied();
                match (form, record.get_mut(address..address + 16)) {
                    (Some(1), Some(bytes)) => hide_v4(bytes),
                    (Some(2), Some(bytes)) => hide_v6(bytes),
                    _ => {}
                }
            }
        }
        place += 2 + length;
    }
}

fn hide_v4(bytes: &mut [u8]) {
    if let Some(bytes) = bytes.first_chunk_mut::<4>() {
        let address = Ipv4Addr::from(*bytes);
        if !address.is_unspecified() && !address.is_link_local() {
            *bytes = Ipv4Addr::new(192, 0, 2, 1).octets();
        }
    }
}

fn hide_v6(bytes: &mut [u8]) {
    if let Some(bytes) = bytes.first_chunk_mut::<16>() {
        let address = Ipv6Addr::from(*bytes);
        if address.is_unicast_link_local() {
            *bytes = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).octets();
        } else if !address.is_unspecified() {
            *bytes = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).octets();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn makers_structures_and_addresses_are_overwritten_and_nothing_moves() {
        let record = [
            &[9; 16][..],
            &[1, 1, 10, 1, 2, 3],
            &[0; 12],
            &[255, 255, 255, 0],
            &[0; 12],
            &[1, 2, 0x20, 1, 0x0d, 0xb9],
            &[7; 12],
        ]
        .concat();
        let fields = [&[0x40, 1, 2, 1, 4, u8::try_from(record.len()).unwrap()][..], &record].concat();
        let interface = [&[42, u8::try_from(fields.len() + 4).unwrap(), 1, 0][..], &fields, &[0, 0]].concat();
        let table = [
            &b"\x0b\x05\0\0\x02Tag 17\0owner\0\0"[..],
            b"\xdd\x06\x02\0\x01\x02SN1\0\0",
            &interface,
            b"\x01\x05\x03\0\x01PowerEdge\0\0",
            b"\x7f\x04\x04\0\0\0",
        ]
        .concat();
        let scrubbed = scrubbed(table.clone());
        assert_eq!(scrubbed.len(), table.len());
        let texts = String::from_utf8_lossy(&scrubbed).into_owned();
        assert!(texts.contains("xxxxxx\0xxxxx\0\0") && texts.contains("PowerEdge"), "{texts:?}");
        assert!(!texts.contains("SN1") && !texts.contains("owner"), "{texts:?}");
        let has = |bytes: &[u8]| scrubbed.windows(bytes.len()).any(|found| found == bytes);
        assert!(has(&[192, 0, 2, 1]) && has(&[0x20, 1, 0x0d, 0xb8]));
        assert!(!has(&[10, 1, 2, 3]) && !has(&[0x20, 1, 0x0d, 0xb9]));
        assert!(has(b"\xdd\x06\x02\0\0\0xxx\0\0"));
    }

    #[test]
    fn what_cannot_be_read_is_overwritten() {
        for (table, kept) in [
            (&b"\x7f\x04\x04\0\0\0\x01\x05\x03\0\x01SECRET\0\0"[..], 6),
            (b"\x7f\x04\x04\0\0\0SECRET", 6),
            (b"\x01\x05\x03\0\x01Maker\0\0\x01\x03\x03SECRET\0\0", 12),
            (b"\x01\x05\x03\0\x01SECRET", 0),
        ] {
            let want = [&table[..kept], &vec![0; table.len() - kept]].concat();
            assert_eq!(scrubbed(table.to_vec()), want, "{table:?}");
        }
    }

    #[test]
    fn free_texts_are_overwritten() {
        let structure = |kind: u8, fields: &[u8]| {
            let length = u8::try_from(fields.len() + 4).unwrap();
            [&[kind, length, 0, 0], fields, b"Maker\0SECRET7\0\0"].concat()
        };
        let battery = [&[1, 1, 2, 0][..], &[0; 8], &[0xab, 0xcd, 0xab, 0xcd]].concat();
        for table in [
            structure(2, &[1, 0, 0, 0, 0, 0, 2]),
            structure(22, &battery),
            structure(41, &[2, 0, 0]),
            structure(46, &[0, 0, 2, 0, 0]),
        ] {
            let scrubbed = scrubbed(table.clone());
            assert!(scrubbed.ends_with(b"Maker\0xxxxxxx\0\0"), "{scrubbed:?}");
            assert!(!scrubbed.contains(&0xab), "{scrubbed:?}");
        }
    }

    proptest! {
        #[test]
        fn any_table_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(scrubbed(bytes.clone()).len(), bytes.len());
        }

        #[test]
        fn any_host_interface_is_survived(length in 4_u8.., bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            scrubbed([&[42, length, 0, 0][..], &bytes, &[0, 0]].concat());
        }
    }
}
