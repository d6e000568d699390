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

/// More entries than any distribution has.
const MAX_ENTRIES: usize = 16;

/// Reads the entries of a list, in order. The reference agent takes the first one.
pub fn entries(bytes: &[u8]) -> Vec<CsvEntry> {
    let text = decode(bytes);
    let entry = |line: &str| {
        let mut fields = line.trim_start_matches('\u{feff}').split(',').map(str::trim);
        let loader = fields.next().filter(|loader| !loader.is_empty())?;
        let label = fields.next().filter(|label| !label.is_empty())?;
        let clean = |text: &str| text.chars().all(|c| !c.is_control());
        (clean(loader) && clean(label)).then(|| CsvEntry { loader: loader.to_owned(), label: label.to_owned() })
    };
    text.lines().filter_map(entry).take(MAX_ENTRIES).collect()
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
        let entry = |loader: &str, label: &str| CsvEntry { loader: loader.into(), label: label.into() };
        let want = [entry("shimx64.efi", "Débian"), entry("other.efi", "Second")];
        let cases = [
            encoded(text, u16::to_le_bytes, &[0xff, 0xfe]),
            encoded(text, u16::to_be_bytes, &[0xfe, 0xff]),
            encoded(text, u16::to_le_bytes, &[]),
            encoded(text, u16::to_be_bytes, &[]),
            text.as_bytes().to_vec(),
            [b"\xef\xbb\xbf", text.as_bytes()].concat(),
        ];
        for (index, case) in cases.iter().enumerate() {
            assert_eq!(entries(case), want, "case {index}");
        }
    }

    #[test]
    fn a_list_without_an_entry_is_empty() {
        for text in ["", "\n\n", "only-loader.efi", ",label", "a\u{1}b,label"] {
            assert_eq!(entries(text.as_bytes()), [], "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let found = entries(&bytes);
            prop_assert!(found.len() <= MAX_ENTRIES);
            prop_assert!(found.iter().all(|entry| !entry.loader.is_empty() && !entry.label.is_empty()));
        }

        #[test]
        fn what_is_written_is_read_whatever_the_encoding(loader in "[a-z0-9]{1,8}\\.efi", label in "[a-zA-Zäöü€😀]{1,12}") {
            let text = format!("{loader},{label},,\n");
            let want = vec![CsvEntry { loader, label }];
            for bytes in [
                encoded(&text, u16::to_le_bytes, &[]),
                encoded(&text, u16::to_le_bytes, &[0xff, 0xfe]),
                encoded(&text, u16::to_be_bytes, &[0xfe, 0xff]),
                text.clone().into_bytes(),
            ] {
                prop_assert_eq!(entries(&bytes), want.clone());
            }
        }
    }
}
