//! `BOOTX64.CSV` and its like: the list of boot entries that a distribution's shim brings along.
//!
//! Format: UTF-16 text, a line an entry, `loader,label,options,comment` (shim's fallback program). Files without a
//! byte order mark are little-endian (pitfall D3).

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CsvEntry {
    /// File name of the loader, relative to the directory of the list.
    pub loader: String,
    /// Label of the boot entry.
    pub label: String,
}

/// Reads the first entry of a list, the one the reference agent takes; `None` when it has none.
pub fn first(bytes: &[u8]) -> Option<CsvEntry> {
    let text = decode(bytes);
    text.lines().find_map(|line| {
        let mut fields = line.trim_start_matches('\u{feff}').split(',').map(str::trim);
        let loader = fields.next().filter(|loader| !loader.is_empty())?;
        let label = fields.next().filter(|label| !label.is_empty())?;
        let clean = |text: &str| text.chars().all(|c| !c.is_control());
        (clean(loader) && clean(label)).then(|| CsvEntry { loader: loader.to_owned(), label: label.to_owned() })
    })
}

fn decode(bytes: &[u8]) -> String {
    let utf16 = |bytes: &[u8], word: fn([u8; 2]) -> u16| {
        let words = bytes.chunks_exact(2).map(|pair| word([pair[0], pair[1]]));
        char::decode_utf16(words).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
    };
    match bytes {
        [0xfe, 0xff, rest @ ..] => utf16(rest, u16::from_be_bytes),
        [0xff, 0xfe, rest @ ..] => utf16(rest, u16::from_le_bytes),
        [0xef, 0xbb, 0xbf, rest @ ..] => String::from_utf8_lossy(rest).into_owned(),
        [first, 0, ..] if *first != 0 => utf16(bytes, u16::from_le_bytes),
        [0, ..] => utf16(bytes, u16::from_be_bytes),
        _ => String::from_utf8_lossy(bytes).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(text: &str, word: fn(u16) -> [u8; 2], bom: &[u8]) -> Vec<u8> {
        bom.iter().copied().chain(text.encode_utf16().flat_map(word)).collect()
    }

    #[test]
    fn all_encodings_seen_in_the_field_are_read() {
        let text = "shimx64.efi,Débian,,This is the boot entry\r\nother.efi,Second\r\n";
        let want = CsvEntry { loader: "shimx64.efi".into(), label: "Débian".into() };
        let cases = [
            encoded(text, u16::to_le_bytes, &[0xff, 0xfe]),
            encoded(text, u16::to_be_bytes, &[0xfe, 0xff]),
            encoded(text, u16::to_le_bytes, &[]),
            encoded(text, u16::to_be_bytes, &[]),
            text.as_bytes().to_vec(),
            [b"\xef\xbb\xbf", text.as_bytes()].concat(),
        ];
        for (index, case) in cases.iter().enumerate() {
            assert_eq!(first(case), Some(want.clone()), "case {index}");
        }
    }

    #[test]
    fn a_list_without_an_entry_is_empty() {
        for text in ["", "\n\n", "only-loader.efi", ",label", "a\u{1}b,label"] {
            assert_eq!(first(text.as_bytes()), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _entry = first(&bytes);
        }
    }
}
