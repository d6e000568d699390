//! What tells one machine from another, and what stands in its place.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use ring::hmac;

use super::Entry;
use crate::probe::smbios::{Smbios, host_interface, kind};
use crate::probe::text::{bytes_of, hex};

/// Attributes that hold a name in text, and those that hold a number in hex.
const TEXTS: &[&str] = &["serial", "product_serial", "serial-number"];
const NUMBERS: &[&str] = &["address", "wwid", "sas_address", "port_name", "ieee1394_id", "uuid"];
/// Shorter names are no names: `0`, `None`.
const MIN_TEXT: usize = 5;
/// Type and offset of serial numbers and asset tags in SMBIOS (SMBIOS 3.7 sections 7.2 to 7.5, 7.18, 7.40).
const SMBIOS_NAMES: &[(u8, usize)] =
    &[(1, 7), (2, 7), (2, 8), (3, 7), (3, 8), (4, 0x20), (4, 0x21), (17, 0x18), (17, 0x19), (39, 8), (39, 9)];
/// Digits of a hardware address.
const ADDRESS_DIGITS: usize = 12;

/// Names found so far, and their replacements, as bytes.
pub(super) struct Identities {
    key: hmac::Key,
    known: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Of the names.
    lengths: BTreeSet<usize>,
}

impl Identities {
    pub(super) fn new() -> io::Result<Self> {
        let mut key = [0; 32];
        File::open("/dev/urandom")?.read_exact(&mut key)?;
        Ok(Self { key: hmac::Key::new(hmac::HMAC_SHA256, &key), known: BTreeMap::new(), lengths: BTreeSet::new() })
    }

    /// Takes note of the names in a file.
    pub(super) fn learn(&mut self, path: &Path, content: &[u8]) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let text = String::from_utf8_lossy(content);
        let words = || text.split([' ', '\0', '\n', ',']).map(str::trim).filter(|word| !word.is_empty());
        if TEXTS.contains(&name) {
            words().for_each(|word| self.learn_text(word));
        }
        if NUMBERS.contains(&name) {
            words().for_each(|word| self.learn_number(word));
        }
        match name {
            // Maker, model and serial number.
            "wwid" if text.starts_with("t10.") => self.learn_text(text.split_whitespace().last().unwrap_or_default()),
            // PCI vendor, serial number and model, the last two in hex.
            "wwid" if text.starts_with("nvme.") => {
                let serial = text.split('-').nth(1).map(bytes_of).unwrap_or_default();
                self.learn_text(String::from_utf8_lossy(&serial).trim());
            }
            // Page code and length, then text.
            "vpd_pg80" => {
                let serial = String::from_utf8_lossy(content.get(4..).unwrap_or_default()).into_owned();
                serial.split_whitespace().for_each(|word| self.learn_text(word.trim_matches('\0')));
            }
            "vpd_pg83" => self.learn_designators(content),
            "DMI" => self.learn_smbios(content),
            _ => {}
        }
    }

    /// A hardware address: the half that names the maker stays.
    pub(super) fn learn_address(&mut self, address: &[u8]) {
        self.learn_number(&hex(address));
    }

    /// Text of letters and digits, and the same in hex, as some names of NVMe drives hold it.
    fn learn_text(&mut self, text: &str) {
        let plain = text.bytes().all(|byte| byte.is_ascii_graphic());
        let varied = text.bytes().any(|byte| byte.is_ascii_digit())
            && text.bytes().any(|byte| !text.starts_with(char::from(byte)));
        if !plain || !varied || text.len() < MIN_TEXT || self.known.contains_key(text.as_bytes()) {
            return;
        }
        let invented = self.invent(text, None);
        self.replace(hex(text.as_bytes()).into_bytes(), hex(invented.as_bytes()).into_bytes());
        self.replace(text.as_bytes().to_vec(), invented.into_bytes());
    }

    /// A number in hex, with or without `0x`, `naa.` or `eui.`, or colons between its bytes.
    fn learn_number(&mut self, text: &str) {
        let shown = text.rsplit(['.', 'x']).next().unwrap_or_default();
        let is_uuid = shown.split('-').map(str::len).eq([8, 4, 4, 4, 12]);
        if shown.contains('-') && !is_uuid {
            return;
        }
        let digits = shown.replace([':', '-'], "").to_lowercase();
        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_constant = digits.bytes().all(|byte| digits.starts_with(char::from(byte)));
        if !is_hex || is_constant || digits.len() < ADDRESS_DIGITS {
            return;
        }
        // A hardware address begins with its maker; so does a name of the NAA, after a digit for its kind; and an EUI-64.
        let kept = match digits.len() {
            _ if is_uuid => 0,
            16 if digits.starts_with('5') => 7,
            32 => 7,
            _ => 6,
        };
        let invented = self.invent(&digits, Some(kept));
        let mut next = invented.chars();
        let alike = shown.chars().map(|c| if c.is_ascii_hexdigit() { next.next().unwrap_or(c) } else { c });
        let alike: String = alike.collect();
        self.replace(shown.as_bytes().to_vec(), alike.into_bytes());
        let pairs = |digits: &str, separator: &str| {
            let bytes: Vec<String> =
                digits.as_bytes().chunks(2).map(|pair| String::from_utf8_lossy(pair).into_owned()).collect();
            bytes.join(separator)
        };
        for form in [|text: &str| text.to_owned(), |text: &str| text.to_uppercase()] {
            self.replace(form(&digits).into_bytes(), form(&invented).into_bytes());
            self.replace(form(&pairs(&digits, ":")).into_bytes(), form(&pairs(&invented, ":")).into_bytes());
        }
        if digits.len().is_multiple_of(2) {
            self.replace(bytes_of(&digits), bytes_of(&invented));
        }
    }

    fn replace(&mut self, name: Vec<u8>, invented: Vec<u8>) {
        self.lengths.insert(name.len());
        self.known.insert(name, invented);
    }

    /// Designators of VPD page 0x83 (SPC-4 section 7.8.6): binary ones are numbers, others are text.
    fn learn_designators(&mut self, page: &[u8]) {
        let mut rest = page.get(4..).unwrap_or_default();
        while let Some(([code, _, _, length], after)) = rest.split_first_chunk::<4>() {
            let Some((value, after)) = after.split_at_checked(usize::from(*length)) else { return };
            if code & 0xf == 1 {
                self.learn_address(value);
            } else {
                // Maker, model and serial number.
                let text = String::from_utf8_lossy(value).into_owned();
                self.learn_text(text.trim_matches('\0').split_whitespace().last().unwrap_or_default());
            }
            rest = after;
        }
    }

    fn learn_smbios(&mut self, table: &[u8]) {
        let smbios = Smbios::new(table.to_vec(), &[]);
        for structure in smbios.structures() {
            for (_, offset) in SMBIOS_NAMES.iter().filter(|(of, _)| *of == structure.kind()) {
                let text = structure.string(*offset).unwrap_or_default();
                text.split_whitespace().for_each(|word| self.learn_text(word));
            }
            if structure.kind() == kind::SYSTEM
                && let Some(uuid) = structure.bytes(8).get(..16)
            {
                self.learn_address(uuid);
            }
        }
        for interface in host_interface::host_interfaces(&smbios) {
            self.learn_number(&interface.service_uuid);
            interface.mac_address.iter().for_each(|address| self.learn_number(address));
        }
    }

    /// A text of the same form; a number in hex with its first `kept` digits.
    fn invent(&self, text: &str, kept: Option<usize>) -> String {
        let stream = hmac::sign(&self.key, text.as_bytes());
        let noise = stream.as_ref().iter().cycle();
        text.chars()
            .zip(noise)
            .enumerate()
            .map(|(place, (c, noise))| match c {
                _ if kept.is_some_and(|kept| place < kept) => c,
                _ if kept.is_some() => char::from_digit(u32::from(noise % 16), 16).unwrap_or(c),
                '0'..='9' => char::from(b'0' + noise % 10),
                'a'..='z' => char::from(b'a' + noise % 26),
                'A'..='Z' => char::from(b'A' + noise % 26),
                _ => c,
            })
            .collect()
    }

    /// An entry with every name in it, in its path and in its target replaced.
    pub(super) fn hide(&self, path: PathBuf, entry: Entry) -> (PathBuf, Entry) {
        let text = |path: &Path| {
            PathBuf::from(String::from_utf8_lossy(&self.replaced(path.as_os_str().as_encoded_bytes())).into_owned())
        };
        let entry = match entry {
            Entry::File(content) => Entry::File(self.replaced(&content)),
            Entry::Link(target) => Entry::Link(text(&target)),
        };
        (text(&path), entry)
    }

    /// The longest name that begins at each place is replaced.
    fn replaced(&self, content: &[u8]) -> Vec<u8> {
        let mut result = Vec::with_capacity(content.len());
        let mut rest = content;
        while let Some((first, after)) = rest.split_first() {
            let longest = self.lengths.iter().rev().filter_map(|length| rest.get(..*length));
            if let Some(invented) = longest.filter_map(|name| self.known.get(name)).next() {
                result.extend_from_slice(invented);
                rest = rest.get(invented.len()..).unwrap_or_default();
            } else {
                result.push(*first);
                rest = after;
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hidden(files: &[(&str, &[u8])]) -> Vec<Vec<u8>> {
        let mut identities = Identities::new().unwrap();
        files.iter().for_each(|(path, content)| identities.learn(Path::new(path), content));
        files
            .iter()
            .map(|(path, content)| match identities.hide(PathBuf::from(path), Entry::File(content.to_vec())) {
                (_, Entry::File(content)) => content,
                (_, Entry::Link(_)) => unreachable!(),
            })
            .collect()
    }

    fn text(bytes: &[u8]) -> &str {
        std::str::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_name_is_the_same_wherever_it_stands_and_has_its_form() {
        let page = b"\0\x80\0\x08S1A2-x9Z".as_slice();
        let files = hidden(&[
            ("d/serial", b"S1A2-x9Z\n"),
            ("d/vpd_pg80", page),
            ("d/wwid", b"t10.ATA     MODEL 5      S1A2-x9Z\n"),
            ("n/wwid", b"nvme.8086-533141322d78395a-4d4f44454c-00000001\n"),
            ("d/model", b"MODEL 5\n"),
        ]);
        let serial = text(&files[0]).trim();
        assert_ne!(serial, "S1A2-x9Z");
        let kinds = |text: &str| -> Vec<(bool, bool, bool)> {
            text.chars().map(|c| (c.is_ascii_digit(), c.is_ascii_uppercase(), c == '-')).collect()
        };
        assert_eq!(kinds(serial), kinds("S1A2-x9Z"));
        assert_eq!(&files[1][..4], &page[..4]);
        assert_eq!(text(&files[1][4..]), serial);
        assert_eq!(text(&files[2]), format!("t10.ATA     MODEL 5      {serial}\n"));
        let hex: String = serial.bytes().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text(&files[3]), format!("nvme.8086-{hex}-4d4f44454c-00000001\n"));
        assert_eq!(text(&files[4]), "MODEL 5\n");
    }

    #[test]
    fn numbers_keep_their_maker_in_text_and_in_binary() {
        let page = [&[0, 0x83, 0, 12, 1, 3, 0, 8][..], &[0x50, 0, 0xc5, 0, 0xa1, 0xb2, 0xc3, 0xd4]].concat();
        let files = hidden(&[
            ("d/wwid", b"naa.5000c500a1b2c3d4\n"),
            ("d/vpd_pg83", &page),
            ("d/uevent", b"WWN=0x5000C500A1B2C3D4\n"),
            ("n/address", b"52:54:00:aa:bb:cc\n"),
            ("n/uevent", b"525400aabbcc"),
        ]);
        let number = text(&files[0]).trim().trim_start_matches("naa.").to_owned();
        assert!(number.starts_with("5000c50") && number != "5000c500a1b2c3d4", "{number}");
        let binary: String = files[1][8..].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(binary, number);
        assert_eq!(text(&files[2]), format!("WWN=0x{}\n", number.to_uppercase()));
        let address = text(&files[3]).trim();
        assert!(address.starts_with("52:54:00:") && address != "52:54:00:aa:bb:cc", "{address}");
        assert_eq!(text(&files[4]), address.replace(':', ""));
    }

    #[test]
    fn what_is_no_name_stays() {
        for (path, content) in [
            ("d/serial", "None\n"),
            ("d/serial", "000000000000\n"),
            ("n/address", "00:00:00:00:00:00\n"),
            ("d/serial", "To be filled by O.E.M.\n"),
            ("d/address", "0000:00:1f.2\n"),
        ] {
            assert_eq!(text(&hidden(&[(path, content.as_bytes())])[0]), content, "{path}");
        }
    }
}
