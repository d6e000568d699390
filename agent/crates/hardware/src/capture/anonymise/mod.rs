//! What tells one machine from another, and what stands in its place.

mod hide;
mod network;
mod words;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use ring::hmac;

use super::known::Known;
use crate::probe::smbios::{Smbios, Text, host_interface, kind, uuid};
use crate::probe::text::{bytes_of, hex};
use words::{is_automatic_multipath, is_placeholder};

/// Attributes that hold a name in text, those that hold a number in hex, and those that hold an IP address.
const TEXTS: &[&str] = &["serial", "product_serial", "serial-number"];
const NUMBERS: &[&str] =
    &["address", "device_id", "eui", "ieee1394_id", "nguid", "node_name", "port_name", "sas_address", "uuid", "wwid"];
const ADDRESSES: &[&str] = &["persistent_address"];
/// Shorter names are not looked for elsewhere.
const MIN_TEXT: usize = 5;
/// Type and offset of serial numbers and asset tags in SMBIOS (SMBIOS 3.7 sections 7.2 to 7.5, 7.18, 7.23, 7.40).
const SMBIOS_NAMES: &[(u8, usize)] =
    &[(1, 7), (2, 7), (2, 8), (3, 7), (3, 8), (4, 0x20), (4, 0x21), (17, 0x18), (17, 0x19), (22, 7), (39, 8), (39, 9)];
/// Digits of a hardware address, and of a UUID.
const ADDRESS_DIGITS: usize = 12;
const UUID_DIGITS: usize = 32;
/// Where page 0x89 (SAT-3 section 12.4.2) has the words of IDENTIFY DEVICE, and where these have the serial number and the
/// world-wide name.
const IDENTIFY: usize = 60;
const ATA_SERIAL: std::ops::Range<usize> = 20..40;
const ATA_WWN: std::ops::Range<usize> = 216..224;

/// Names found so far, and their replacements.
pub(super) struct Identities {
    key: hmac::Key,
    known: Known,
}

impl Identities {
    pub(super) fn new() -> io::Result<Self> {
        let mut key = [0; 32];
        File::open("/dev/urandom")?.read_exact(&mut key)?;
        Ok(Self { key: hmac::Key::new(hmac::HMAC_SHA256, &key), known: Known::default() })
    }

    /// Takes note of the names in a file.
    pub(super) fn learn(&mut self, path: &Path, content: &[u8]) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let in_folder = |folder: &str| path.parent().is_some_and(|parent| parent.ends_with(folder));
        let text = String::from_utf8_lossy(content);
        let trimmed = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
        let words = || text.split([' ', '\0', '\n', ',']).map(str::trim).filter(|word| !word.is_empty());
        // The root hubs of USB have the address of their controller for a serial number.
        let is_place = path.iter().any(|folder| folder == trimmed);
        if TEXTS.contains(&name) && !is_place {
            self.learn_bytes(content);
        }
        if NUMBERS.contains(&name) {
            self.learn_number(trimmed);
            words().for_each(|word| self.learn_number(word));
        }
        if ADDRESSES.contains(&name) {
            self.learn_ip(trimmed);
        }
        match name {
            "address" if text.contains("traddr=") => self.learn_fabric(trimmed),
            "address" if path.iter().any(|folder| folder == "iscsi_connection") => self.learn_ip(trimmed),
            "wwid" if trimmed.starts_with("t10.") => self.learn_t10(trimmed.trim_start_matches("t10.")),
            // PCI vendor, serial number and model, the last two in hex.
            "wwid" if trimmed.starts_with("nvme.") => {
                let serial = trimmed.split('-').nth(1).map(bytes_of).unwrap_or_default();
                self.learn_bytes(&serial);
            }
            // Page code and length, then text.
            "vpd_pg80" => self.learn_bytes(content.get(4..).unwrap_or_default()),
            "vpd_pg83" => self.learn_designators(content),
            "vpd_pg89" => self.learn_identify(&swapped(content)),
            "DMI" => self.learn_smbios(content),
            "targetname" => self.learn_target(trimmed),
            "cmdline" => self.learn_boot_interface(trimmed),
            "cpuinfo" => {
                let serial = text.lines().find_map(|line| line.strip_prefix("Serial")?.split_once(':'));
                self.learn_texts(serial.map_or("", |(_, serial)| serial.trim()));
            }
            // Volumes are named by people, but for those of the multipath tools.
            "name" if in_folder("dm") && !is_automatic_multipath(trimmed) => self.learn_text(trimmed, true),
            "uuid" if in_folder("dm") => trimmed.split('-').for_each(|word| self.learn_long(word)),
            _ if path.starts_with("run/udev/data") => {
                let values = text.lines().filter_map(|line| line.strip_prefix("E:")?.split_once('='));
                values.for_each(|(key, value)| self.learn_property(key, value));
            }
            _ => {}
        }
    }

    fn learn_property(&mut self, key: &str, value: &str) {
        match key {
            "ID_SERIAL" | "DM_SERIAL" => self.learn_long(value.rsplit('_').next().unwrap_or_default()),
            _ if key.contains("WWN") => self.learn_number(value),
            _ if key.contains("SERIAL") => self.learn_texts(value),
            _ => {}
        }
    }

    /// A hardware address: the half that names the maker stays.
    pub(super) fn learn_address(&mut self, address: &[u8]) {
        self.learn_number(&hex(address));
    }

    /// The name of the machine, with and without its domain.
    pub(super) fn learn_hostname(&mut self, name: &str) {
        let short = name.split('.').next().unwrap_or_default();
        for name in [name, short] {
            let has_length = name.len() >= 3 && !name.starts_with("localhost");
            if has_length && self.known.get(name.as_bytes()).is_none() {
                let invented = self.invent(name, None);
                self.insert_text(name, &invented, true);
            }
        }
    }

    /// A serial number or an asset tag as a whole, and its words that have digits.
    fn learn_texts(&mut self, text: &str) {
        if is_placeholder(text.as_bytes()) {
            return;
        }
        self.learn_text(text, true);
        for word in text.split_whitespace() {
            self.learn_text(word, false);
        }
    }

    /// The same from bytes, which may have some that do not print: its pieces between them are names too.
    fn learn_bytes(&mut self, bytes: &[u8]) {
        let bytes = bytes.get(trimmed(bytes)).unwrap_or_default();
        match std::str::from_utf8(bytes) {
            Ok(text) if text.bytes().all(prints) => return self.learn_texts(text),
            _ if bytes.len() < MIN_TEXT => return,
            _ => {}
        }
        let invented = self.invent_bytes(bytes);
        let mut place = 0;
        let mut names = vec![(bytes.to_vec(), invented.clone())];
        for piece in bytes.split(|byte| !prints(*byte)) {
            let other = invented.get(place..place + piece.len()).unwrap_or_default();
            names.push((piece.to_vec(), other.to_vec()));
            place += piece.len() + 1;
        }
        for (name, other) in names.into_iter().filter(|(name, _)| name.len() >= MIN_TEXT) {
            self.known.insert(hex(&name).into_bytes(), hex(&other).into_bytes(), false);
            self.known.insert(name, other, false);
        }
    }

    /// A word that is so long that it can only be a number or a name made by a program; in front of a number may be its
    /// kind, a digit.
    fn learn_long(&mut self, word: &str) {
        let is_hex = word.bytes().all(|byte| byte.is_ascii_hexdigit());
        match word.len() {
            17 | 33 if is_hex => self.learn_number(word.get(1..).unwrap_or_default()),
            ADDRESS_DIGITS.. if is_hex => self.learn_number(word),
            MIN_TEXT.. => self.learn_text(word, false),
            _ => {}
        }
    }

    /// Text that prints, and the same in hex, as some names of NVMe drives hold it. Without digits it is only a name
    /// where `letters` are believed to be one.
    fn learn_text(&mut self, text: &str, letters: bool) {
        let prints = text.bytes().all(prints);
        let is_constant = text.bytes().all(|byte| text.starts_with(char::from(byte)));
        let is_name = letters || text.bytes().any(|byte| byte.is_ascii_digit());
        let has = |kind: fn(&u8) -> bool| text.bytes().any(|byte| kind(&byte));
        let has_length = match text.len() {
            MIN_TEXT.. => true,
            4 => letters && has(u8::is_ascii_digit) && has(u8::is_ascii_alphabetic),
            _ => false,
        };
        if !prints || is_constant || !is_name || !has_length || self.known.get(text.as_bytes()).is_some() {
            return;
        }
        // Some serial numbers are names of the NAA.
        if matches!((text.len(), text.as_bytes().first()), (16, Some(b'5')) | (32, Some(b'6'))) {
            self.learn_number(text);
            if self.known.get(text.as_bytes()).is_some() {
                return;
            }
        }
        let is_long = text.len() >= 2 * ADDRESS_DIGITS;
        let short = text.len() <= MIN_TEXT || text.bytes().all(|byte| byte.is_ascii_digit()) && !is_long;
        let invented = self.invent(text, None);
        if text.len() >= MIN_TEXT {
            self.known.insert(hex(text.as_bytes()).into_bytes(), hex(invented.as_bytes()).into_bytes(), false);
        }
        self.insert_text(text, &invented, short);
        // As udev writes it.
        self.insert_text(&text.replace(' ', "_"), &invented.replace(' ', "_"), short);
    }

    fn insert_text(&mut self, text: &str, invented: &str, whole: bool) {
        for form in [str::to_owned, str::to_lowercase, str::to_uppercase] {
            self.known.insert(form(text).into_bytes(), form(invented).into_bytes(), whole);
        }
    }

    /// A number in hex, with or without `0x`, `naa.` or `eui.`, or colons, dashes or blanks between its bytes.
    fn learn_number(&mut self, text: &str) {
        let shown = text.rsplit(['.', 'x']).next().unwrap_or_default().trim_matches(['{', '}']);
        let is_uuid = shown.split('-').map(str::len).eq([8, 4, 4, 4, 12]);
        let digits = shown.replace([':', '-', ' '], "").to_lowercase();
        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_constant = digits.bytes().all(|byte| digits.starts_with(char::from(byte)));
        let dashes = shown.split('-').all(|part| part.len() == 2);
        if !is_hex || is_constant || digits.len() < ADDRESS_DIGITS || shown.contains('-') && !is_uuid && !dashes {
            return;
        }
        if is_uuid {
            return self.learn_uuid(&bytes_of(&digits));
        }
        // The same digits may have been found as a text.
        let known = self.known.get(digits.as_bytes()).map(|invented| String::from_utf8_lossy(invented).into_owned());
        // A hardware address begins with its maker; so does a name of the NAA, after a digit for its kind; and an EUI-64.
        // In the name of an FC port, and in the address of an InfiniBand port, it is further behind.
        let kept = match (digits.len(), digits.as_bytes().first()) {
            (16, Some(b'5')) | (32, _) => 7,
            (16, Some(b'1' | b'2')) => 10,
            (40, _) => 30,
            _ => 6,
        };
        let invented = known.unwrap_or_else(|| self.invent(&digits, Some(kept)));
        let mut next = invented.chars();
        let alike = shown.chars().map(|c| if c.is_ascii_hexdigit() { next.next().unwrap_or(c) } else { c });
        let alike: String = alike.collect();
        self.insert_text(shown, &alike, false);
        self.insert_text(&digits, &invented, false);
        for separator in [":", "-", " "] {
            self.insert_text(&pairs(&digits, separator), &pairs(&invented, separator), false);
        }
        if digits.len().is_multiple_of(2) {
            self.known.insert(bytes_of(&digits), bytes_of(&invented), false);
        }
    }

    /// A UUID in the order in which it is written. SMBIOS and EFI have its first three parts the other way round.
    fn learn_uuid(&mut self, ordered: &[u8]) {
        let Ok(ordered) = <[u8; UUID_DIGITS / 2]>::try_from(ordered) else { return };
        let invented = bytes_of(&self.invent(&hex(&ordered), Some(0)));
        let Ok(invented) = <[u8; UUID_DIGITS / 2]>::try_from(invented) else { return };
        if self.known.get(&ordered).is_some() {
            return;
        }
        for (from, to) in [(ordered, invented), (reversed(ordered), reversed(invented))] {
            self.known.insert(from.to_vec(), to.to_vec(), false);
            self.insert_text(&hex(&from), &hex(&to), false);
            self.insert_text(&dashed(&from), &dashed(&to), false);
        }
    }

    fn learn_ip(&mut self, text: &str) {
        let Ok(address) = text.parse::<std::net::IpAddr>() else { return };
        if address.is_loopback() || address.is_unspecified() || self.known.get(text.as_bytes()).is_some() {
            return;
        }
        let invented = if address.is_ipv4() {
            // Numbers of as many digits, none above 199.
            let stream = hmac::sign(&self.key, text.as_bytes());
            let digit = |(place, (c, noise)): (usize, (char, &u8))| {
                let starts = !text.get(..place).unwrap_or_default().ends_with(|c: char| c.is_ascii_digit());
                match c {
                    '.' => '.',
                    _ if starts => '1',
                    _ => char::from(b'0' + noise % 10),
                }
            };
            text.chars().zip(stream.as_ref()).enumerate().map(digit).collect()
        } else {
            let head = text.find(':').map_or(0, |place| place + 1);
            text.get(..head).unwrap_or_default().to_owned()
                + &self.invent(text.get(head..).unwrap_or_default(), Some(0))
        };
        self.insert_text(text, &invented, true);
    }

    /// Maker (eight characters) and what he calls the unit; of an ATA disk that is the model and the serial number.
    fn learn_t10(&mut self, text: &str) {
        let (maker, name) = text.split_at_checked(8).unwrap_or(("", text));
        self.learn_text(name.split_whitespace().last().unwrap_or_default(), false);
        let model = if maker.trim() == "ATA" { 40 } else { 0 };
        self.learn_texts(name.get(model..).unwrap_or_default().trim());
    }

    /// Designators of VPD page 0x83 (SPC-4 section 7.8.6): binary ones are numbers, others are text.
    fn learn_designators(&mut self, page: &[u8]) {
        let mut rest = page.get(4..).unwrap_or_default();
        while let Some(([code, kind, _, length], after)) = rest.split_first_chunk::<4>() {
            let Some((value, after)) = after.split_at_checked(usize::from(*length)) else { return };
            let text = String::from_utf8_lossy(value).into_owned();
            let text = text.trim_matches('\0');
            match (code & 0xf, kind & 0xf) {
                (1, _) => self.learn_address(value),
                (_, 1) => self.learn_t10(text),
                // A SCSI name: `naa.`, `eui.` or the name of an iSCSI target.
                (_, 8) => self.learn_number(text),
                _ => self.learn_bytes(value),
            }
            rest = after;
        }
    }

    fn learn_identify(&mut self, page: &[u8]) {
        let identify = page.get(IDENTIFY..).unwrap_or_default();
        self.learn_bytes(identify.get(ATA_SERIAL).unwrap_or_default());
        self.learn_address(identify.get(ATA_WWN).unwrap_or_default());
    }

    fn learn_smbios(&mut self, table: &[u8]) {
        let smbios = Smbios::new(table.to_vec(), &[]);
        let makes = [kind::SYSTEM, kind::BOARD].map(|of| smbios.of(of).find_map(|structure| structure.string(5)));
        for structure in smbios.structures() {
            for (_, offset) in SMBIOS_NAMES.iter().filter(|(of, _)| *of == structure.kind()) {
                let Text::Bytes(bytes) = structure.text(*offset) else { continue };
                let text = String::from_utf8_lossy(bytes);
                // Some makers repeat a product's name where its serial number or tag should be.
                if !makes.iter().flatten().any(|make| make.contains(text.trim())) {
                    self.learn_bytes(bytes);
                }
            }
            if structure.kind() == kind::SYSTEM
                && let Some(bytes) = structure.bytes(8).first_chunk()
            {
                self.learn_number(&uuid(bytes));
            }
        }
        for interface in host_interface::host_interfaces(&smbios) {
            self.learn_number(&interface.service_uuid);
            interface.mac_address.iter().for_each(|address| self.learn_number(address));
            interface.service_hostname.iter().for_each(|name| self.learn_hostname(name));
        }
    }
}

/// Page 0x89 with the bytes of each word of IDENTIFY DEVICE the other way round: so its texts can be read.
fn swapped(page: &[u8]) -> Vec<u8> {
    let mut page = page.to_vec();
    for word in page.get_mut(IDENTIFY..).unwrap_or_default().chunks_exact_mut(2) {
        word.reverse();
    }
    page
}

/// A UUID with its first three parts the other way round.
fn reversed(mut uuid: [u8; UUID_DIGITS / 2]) -> [u8; UUID_DIGITS / 2] {
    for part in [0..4, 4..6, 6..8] {
        uuid.get_mut(part).unwrap_or_default().reverse();
    }
    uuid
}

fn dashed(uuid: &[u8; UUID_DIGITS / 2]) -> String {
    let mut text = hex(uuid);
    for place in [20, 16, 12, 8] {
        text.insert(place, '-');
    }
    text
}

/// Whether a byte is part of a text of ASCII.
const fn prints(byte: u8) -> bool {
    byte.is_ascii_graphic() || byte == b' '
}

/// Where bytes have their text, without white space and zeros around it.
fn trimmed(bytes: &[u8]) -> std::ops::Range<usize> {
    let is_text = |byte: &u8| !byte.is_ascii_whitespace() && *byte != 0;
    let start = bytes.iter().position(is_text).unwrap_or_default();
    start..bytes.iter().rposition(is_text).map_or(start, |last| last + 1)
}

fn pairs(digits: &str, separator: &str) -> String {
    let pairs = digits.as_bytes().chunks(2).map(|pair| String::from_utf8_lossy(pair).into_owned());
    pairs.collect::<Vec<_>>().join(separator)
}

#[cfg(test)]
mod tests;
