//! Identity of SCSI and ATA disks from the vital product data pages that sysfs shows as files: 0x80 (unit serial
//! number), 0x83 (device identification) and 0x89 (ATA information); SPC-5 section 7.7, SAT-3 section 12.4.2, ACS-3
//! section 7.12. Own code: no kept crate reads these pages.
//!
//! The texts formed here are those of udev's `scsi_id` and `ata_id`, so that hints and by-id names written for a
//! machine with udev also hold here.

use crate::probe::text::hex;

/// Number by which a disk is known world-wide, as udev writes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Wwn {
    /// `ID_WWN`: `0x` and the first 16 digits.
    pub(super) wwn: Option<String>,
    /// `ID_WWN_VENDOR_EXTENSION`: `0x` and the digits after those.
    pub(super) vendor_extension: Option<String>,
    /// `ID_WWN_WITH_EXTENSION`: `0x` and all digits.
    pub(super) with_extension: Option<String>,
}

/// What `scsi_id` makes of page 0x83.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ScsiIdentity {
    /// `ID_SERIAL`: kind of the number as a digit, and the number.
    pub(super) serial: String,
    /// `ID_SERIAL_SHORT`: the number alone.
    pub(super) serial_short: String,
    /// World-wide number, if this is one.
    pub(super) wwn: Wwn,
}

/// What IDENTIFY DEVICE says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AtaIdentity {
    /// Full model; the SCSI inquiry cuts it to 16 characters.
    pub(super) model: Option<String>,
    /// Serial number.
    pub(super) serial: Option<String>,
    /// World-wide number.
    pub(super) wwn: Option<u64>,
}

/// Serial number of page 0x80.
pub(super) fn unit_serial(page: &[u8]) -> Option<String> {
    ascii(body(page, 0x80)?)
}

/// The identity that `scsi_id` prefers among the designators of page 0x83 that name the logical unit.
pub(super) fn scsi_identity(page: &[u8], vendor: &str, model: &str) -> Option<ScsiIdentity> {
    let designators = designators(body(page, 0x83)?);
    let best = designators.iter().filter_map(|d| Some((rank(d)?, d))).min_by_key(|(rank, _)| *rank)?.1;
    let number = if best.code_set == BINARY { hex(best.data) } else { ascii(best.data)? };
    let serial = if best.kind == VENDOR_SPECIFIC {
        format!("0{vendor:<8}{model:<16}{number}")
    } else {
        format!("{}{number}", best.kind)
    };
    let wwn = if best.kind == NAA { wwn_of(&number) } else { Wwn::default() };
    let name = |text: &str| replace_chars(&underscores(text));
    Some(ScsiIdentity { serial: name(&serial), serial_short: name(&number), wwn })
}

/// IDENTIFY DEVICE data in page 0x89.
pub(super) fn ata_identity(page: &[u8]) -> Option<AtaIdentity> {
    const IDENTIFY_OFFSET: usize = 60;
    if page.get(1) != Some(&0x89) {
        return None;
    }
    identify(page.get(IDENTIFY_OFFSET..)?)
}

/// The same from the data of IDENTIFY DEVICE.
pub(super) fn identify(data: &[u8]) -> Option<AtaIdentity> {
    let identify = data.get(..512)?;
    let word = |index: usize| identify.get(2 * index..2 * index + 2).map_or(0, |w| u16::from_le_bytes([w[0], w[1]]));
    // Words 84 and 87 are valid when their top bits are 01; bit 8 says that the world-wide name is there.
    let has_wwn = [84, 87].into_iter().any(|index| word(index) & 0xc100 == 0x4100);
    let wwn = (108..112).fold(0_u64, |wwn, index| wwn << 16 | u64::from(word(index)));
    Some(AtaIdentity {
        serial: swapped_ascii(identify.get(20..40)?),
        model: swapped_ascii(identify.get(54..94)?),
        wwn: (has_wwn && wwn != 0).then_some(wwn),
    })
}

impl Wwn {
    /// Of an ATA disk, which has no extension.
    pub(super) fn of_ata(wwn: u64) -> Self {
        let text = Some(format!("0x{wwn:016x}"));
        Self { wwn: text.clone(), vendor_extension: None, with_extension: text }
    }
}

const BINARY: u8 = 1;
const ASCII: u8 = 2;
const VENDOR_SPECIFIC: u8 = 0;
const T10_VENDOR: u8 = 1;
const EUI64: u8 = 2;
const NAA: u8 = 3;

struct Designator<'a> {
    code_set: u8,
    kind: u8,
    data: &'a [u8],
}

/// Payload of a page, as long as its header says and the bytes reach.
fn body(page: &[u8], code: u8) -> Option<&[u8]> {
    let [_, page_code, high, low, rest @ ..] = page else { return None };
    if *page_code != code {
        return None;
    }
    let length = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
    rest.get(..length)
}

fn designators(mut bytes: &[u8]) -> Vec<Designator<'_>> {
    let mut found = Vec::new();
    while let [code_set, kind, _, length, rest @ ..] = bytes {
        let length = usize::from(*length);
        let Some(data) = rest.get(..length) else { break };
        // Association 0: the logical unit, rather than the port or the target that it is reached through.
        if (kind >> 4) & 3 == 0 && !data.is_empty() {
            found.push(Designator { code_set: code_set & 0x0f, kind: kind & 0x0f, data });
        }
        bytes = rest.get(length..).unwrap_or_default();
    }
    found
}

/// Preference of `scsi_id`, smallest first: registered-extended, registered and other NAA names, EUI-64, T10 vendor
/// names, vendor-specific ones; binary before text.
fn rank(designator: &Designator<'_>) -> Option<(u8, bool)> {
    if ![BINARY, ASCII].contains(&designator.code_set) {
        return None;
    }
    // Of a name in text this is no digit of it, but that is what is looked at.
    let naa = designator.data.first().map(|first| first >> 4);
    let rank = match designator.kind {
        NAA if naa == Some(6) => 0,
        NAA if naa == Some(5) => 1,
        NAA => 2,
        EUI64 => 3,
        T10_VENDOR => 4,
        VENDOR_SPECIFIC => 5,
        _ => return None,
    };
    Some((rank, designator.code_set != BINARY))
}

fn wwn_of(digits: &str) -> Wwn {
    let (first, rest) = digits.split_at_checked(16).unwrap_or((digits, ""));
    Wwn {
        wwn: Some(format!("0x{first}")),
        vendor_extension: (!rest.is_empty()).then(|| format!("0x{rest}")),
        with_extension: Some(format!("0x{digits}")),
    }
}

/// Text of a fixed-width field: bytes that do not print are dropped, blanks around it too.
fn ascii(bytes: &[u8]) -> Option<String> {
    let text: String = bytes.iter().filter(|byte| (0x20..0x7f).contains(*byte)).map(|byte| char::from(*byte)).collect();
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// ATA strings have the two bytes of each word swapped.
fn swapped_ascii(bytes: &[u8]) -> Option<String> {
    let swapped: Vec<u8> = bytes.chunks_exact(2).flat_map(|pair| [pair[1], pair[0]]).collect();
    ascii(&swapped)
}

/// Characters that udev keeps in identifiers and in the names of links; others become underscores. A slash does too,
/// wherever udev would let it be: whoever made the disk's firmware must not choose the folder.
pub(super) fn replace_chars(text: &str) -> String {
    text.trim().chars().map(|c| if c.is_ascii_alphanumeric() || "#+-.:=@_".contains(c) { c } else { '_' }).collect()
}

/// Runs of white space become one underscore each, as udev does in its identifiers.
pub(super) fn underscores(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join("_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn page(code: u8, body: &[u8]) -> Vec<u8> {
        let length = u16::try_from(body.len()).unwrap().to_be_bytes();
        [&[0, code, length[0], length[1]], body].concat()
    }

    fn designator(code_set: u8, kind: u8, data: &[u8]) -> Vec<u8> {
        [&[code_set, kind, 0, u8::try_from(data.len()).unwrap()], data].concat()
    }

    #[test]
    fn unit_serials_are_trimmed() {
        assert_eq!(unit_serial(&page(0x80, b"  Z1E0ABCD\0\0 ")).as_deref(), Some("Z1E0ABCD"));
        assert_eq!(unit_serial(&page(0x80, b"        ")), None);
        assert_eq!(unit_serial(&page(0x83, b"abc")), None);
        // The header promises more than there is.
        assert_eq!(unit_serial(&[0, 0x80, 0xff, 0xff, b'x']).as_deref(), Some("x"));
    }

    #[test]
    fn the_most_specific_name_of_the_logical_unit_wins() {
        let naa5 = [0x50, 0x00, 0xc5, 0x00, 0x11, 0x22, 0x33, 0x44];
        let naa6 = [0x60, 0x00, 0xc5, 0x00, 0x11, 0x22, 0x33, 0x44, 1, 2, 3, 4, 5, 6, 7, 8];
        let target_port = designator(1, 0x93, &naa5);
        let cases = [
            (vec![designator(2, 1, b"QEMU    abc"), designator(1, 3, &naa5)], "35000c50011223344", "5000c50011223344"),
            (
                vec![designator(1, 3, &naa5), designator(1, 3, &naa6)],
                "36000c500112233440102030405060708",
                "6000c500112233440102030405060708",
            ),
            (vec![target_port, designator(2, 1, b"QEMU    abc")], "1QEMU_abc", "QEMU_abc"),
            (vec![designator(2, 0, b"my disk")], "0QEMU_QEMU_HARDDISK_my_disk", "my_disk"),
            // UTF-8 (code set 3) is passed over, and binary goes before text of the same kind.
            (vec![designator(3, 3, b"5000c50011223344"), designator(2, 1, b"V 1")], "1V_1", "V_1"),
            (
                vec![designator(2, 3, b"5000c50011223355"), designator(1, 3, &naa5)],
                "35000c50011223344",
                "5000c50011223344",
            ),
            // EUI-64 before what the maker has thought of, in either order.
            (vec![designator(2, 1, b"V 1"), designator(1, 2, &naa5)], "25000c50011223344", "5000c50011223344"),
            (vec![designator(1, 2, &naa5), designator(2, 1, b"V 1")], "25000c50011223344", "5000c50011223344"),
            (vec![designator(1, 2, &naa5)], "25000c50011223344", "5000c50011223344"),
            // A name by MD5 or SCSI text (kinds 7 and 8) alone is none.
            (vec![designator(3, 8, b"naa.5000c500"), designator(1, 1, b"AB")], "14142", "4142"),
        ];
        for (designators, serial, short) in cases {
            let identity = scsi_identity(&page(0x83, &designators.concat()), "QEMU", "QEMU HARDDISK").unwrap();
            assert_eq!((identity.serial.as_str(), identity.serial_short.as_str()), (serial, short));
        }
        assert_eq!(scsi_identity(&page(0x83, &[]), "", ""), None);
    }

    #[test]
    fn world_wide_numbers_are_split_as_udev_does() {
        let naa6 = page(0x83, &designator(1, 3, &[0x60, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]));
        let wwn = scsi_identity(&naa6, "", "").unwrap().wwn;
        assert_eq!(wwn.wwn.as_deref(), Some("0x6000000000000001"));
        assert_eq!(wwn.vendor_extension.as_deref(), Some("0x0000000000000002"));
        assert_eq!(wwn.with_extension.as_deref(), Some("0x60000000000000010000000000000002"));
        assert_eq!(wwn_of("5000c50011223344").vendor_extension, None);
    }

    /// Page 0x89 of a disk; texts are padded with blanks as ATA wants.
    fn ata_page(model: &str, serial: &str, word_84: u16, wwn: u64) -> Vec<u8> {
        let mut bytes = vec![0_u8; 572];
        bytes[1] = 0x89;
        bytes[2..4].copy_from_slice(&568_u16.to_be_bytes());
        let mut text = |offset: usize, length: usize, text: &str| {
            let padded = format!("{text:<length$}");
            for (index, pair) in padded.as_bytes().chunks_exact(2).enumerate() {
                bytes[60 + offset + 2 * index] = pair[1];
                bytes[60 + offset + 2 * index + 1] = pair[0];
            }
        };
        text(20, 20, serial);
        text(54, 40, model);
        bytes[60 + 168..60 + 170].copy_from_slice(&word_84.to_le_bytes());
        for (index, word) in (0..4).map(|index| (index, (wwn >> (48 - 16 * index)) & 0xffff)) {
            let word = u16::try_from(word).unwrap().to_le_bytes();
            bytes[60 + 216 + 2 * index..60 + 218 + 2 * index].copy_from_slice(&word);
        }
        bytes
    }

    #[test]
    fn ata_strings_are_swapped_and_the_name_is_only_read_when_valid() {
        let page = ata_page("SAMSUNG MZ7LH480HAHQ-00005", "S45PNA0M123456", 0x4100, 0x5002_538e_1234_5678);
        let identity = ata_identity(&page).unwrap();
        assert_eq!(identity.model.as_deref(), Some("SAMSUNG MZ7LH480HAHQ-00005"));
        assert_eq!(identity.serial.as_deref(), Some("S45PNA0M123456"));
        assert_eq!(identity.wwn, Some(0x5002_538e_1234_5678));
        assert_eq!(Wwn::of_ata(1).with_extension.as_deref(), Some("0x0000000000000001"));
        let unset = ata_identity(&ata_page("QEMU HARDDISK", "QM00001", 0, 7)).unwrap();
        assert_eq!(unset.wwn, None);
        assert_eq!(ata_identity(&page[..500]), None);
    }

    proptest! {
        #[test]
        fn any_page_is_survived(code in prop_oneof![Just(0x80_u8), Just(0x83), Just(0x89)], bytes in proptest::collection::vec(any::<u8>(), 0..700)) {
            let mut page = bytes;
            if page.len() > 1 {
                page[1] = code;
            }
            unit_serial(&page);
            scsi_identity(&page, "V", "M");
            ata_identity(&page);
            identify(&page);
        }

        #[test]
        fn any_designators_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            scsi_identity(&page(0x83, &bytes), "V", "M");
        }
    }
}
