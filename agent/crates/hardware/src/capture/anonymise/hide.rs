//! The names that were found are replaced, and those in the places of serial numbers whatever they are like.

use std::ops::Range;
use std::path::{Path, PathBuf};

use ring::hmac;

use super::super::{Entry, smbios};
use super::words::is_placeholder;
use super::{ATA_SERIAL, IDENTIFY, Identities, SMBIOS_NAMES, TEXTS, swapped, trimmed};
use crate::probe::smbios::{Smbios, kind};

impl Identities {
    /// An entry with every name in it, in its path and in its target replaced.
    pub(in super::super) fn hide(&self, path: PathBuf, entry: Entry) -> (PathBuf, Entry) {
        let text = |path: &Path| {
            let replaced = self.known.replaced(path.as_os_str().as_encoded_bytes());
            PathBuf::from(String::from_utf8_lossy(&replaced).into_owned())
        };
        let entry = match entry {
            Entry::File(content) if path.ends_with("vpd_pg89") => {
                let fields = only(IDENTIFY + ATA_SERIAL.start..IDENTIFY + ATA_SERIAL.end);
                Entry::File(swapped(&self.hidden(&swapped(&content), &fields)))
            }
            Entry::File(content) => Entry::File(self.hidden(&content, &fields(&path, &content))),
            Entry::Link(target) => Entry::Link(text(&target)),
        };
        (text(&path), entry)
    }

    /// Bytes with the names in them replaced, and what their fields hold even when it is too short to be looked for.
    fn hidden(&self, content: &[u8], fields: &[Range<usize>]) -> Vec<u8> {
        let mut hidden = self.known.replaced(content);
        for field in fields {
            let Some(bytes) = content.get(field.clone()) else { continue };
            let text = trimmed(bytes);
            let place = field.start + text.start..field.start + text.end;
            let (Some(was), Some(is)) = (content.get(place.clone()), hidden.get_mut(place)) else { continue };
            if was == is && !is_placeholder(was) {
                is.copy_from_slice(&self.invent_bytes(was));
            }
        }
        hidden
    }

    /// A text of the same form that is another one; a number in hex with its first `kept` digits.
    pub(super) fn invent(&self, text: &str, kept: Option<usize>) -> String {
        let mut invented = text.to_owned();
        for round in 0_u8..8 {
            let stream = hmac::sign(&self.key, &[text.as_bytes(), &[round]].concat());
            let noise = stream.as_ref().iter().cycle();
            let letter = |(place, (c, noise)): (usize, (char, &u8))| match c {
                _ if kept.is_some_and(|kept| place < kept) => c,
                ':' | '-' | ' ' => c,
                _ if kept.is_some() => char::from_digit(u32::from(noise % 16), 16).unwrap_or(c),
                '0'..='9' => char::from(b'0' + noise % 10),
                'a'..='z' => char::from(b'a' + noise % 26),
                'A'..='Z' => char::from(b'A' + noise % 26),
                _ => c,
            };
            invented = text.chars().zip(noise).enumerate().map(letter).collect();
            if invented != text {
                break;
            }
        }
        invented
    }

    /// Bytes of the same form: letters and digits are others, and what is no ASCII becomes a letter.
    pub(super) fn invent_bytes(&self, bytes: &[u8]) -> Vec<u8> {
        let mut invented = bytes.to_vec();
        for round in 0_u8..8 {
            let stream = hmac::sign(&self.key, &[bytes, &[round]].concat());
            for ((to, from), noise) in invented.iter_mut().zip(bytes).zip(stream.as_ref().iter().cycle()) {
                *to = match from {
                    b'0'..=b'9' => b'0' + noise % 10,
                    b'A'..=b'Z' => b'A' + noise % 26,
                    b'a'..=b'z' => b'a' + noise % 26,
                    b' '..=b'~' => *from,
                    _ => b'x',
                };
            }
            if invented != bytes {
                break;
            }
        }
        invented
    }
}

/// Where a file has serial numbers and tags.
fn fields(path: &Path, content: &[u8]) -> Vec<Range<usize>> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    // The root hubs of USB have the address of their controller for a serial number.
    let text = content.get(trimmed(content)).unwrap_or_default();
    let is_place = path.iter().any(|folder| folder.as_encoded_bytes() == text);
    match name {
        _ if TEXTS.contains(&name) && !is_place => only(0..content.len()),
        "vpd_pg80" if content.len() > 4 => only(4..content.len()),
        "DMI" => {
            let tables = Smbios::new(content.to_vec(), &[]);
            let makes = [kind::SYSTEM, kind::BOARD].map(|of| tables.of(of).find_map(|structure| structure.string(5)));
            let is_make = |bytes: &[u8]| makes.iter().flatten().any(|make| make.as_bytes() == bytes);
            let mut fields = smbios::texts(content, SMBIOS_NAMES);
            fields.retain(|field| !content.get(field.clone()).is_some_and(|text| is_make(text.trim_ascii())));
            fields
        }
        _ => Vec::new(),
    }
}

fn only(field: Range<usize>) -> Vec<Range<usize>> {
    std::iter::once(field).collect()
}
