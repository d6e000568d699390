//! Bytes as text of hex digits, and back.

use std::fmt::Write as _;

/// Two lower-case digits for each byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    joined(bytes, "")
}

/// The same with colons between the bytes, as hardware addresses are written.
pub(crate) fn with_colons(bytes: &[u8]) -> String {
    joined(bytes, ":")
}

fn joined(bytes: &[u8], separator: &str) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 3), |mut text, byte| {
        let separator = if text.is_empty() { "" } else { separator };
        // Writing to a String cannot fail.
        let _infallible = write!(text, "{separator}{byte:02x}");
        text
    })
}

/// What a text of hex digits stands for; pairs that are none are left out.
pub(crate) fn bytes_of(digits: &str) -> Vec<u8> {
    let value = |pair: &[u8]| std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
    digits.as_bytes().chunks(2).filter_map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_and_read() {
        assert_eq!(hex(&[0, 0xab, 0x7f]), "00ab7f");
        assert_eq!(with_colons(&[0, 0xab, 0x7f]), "00:ab:7f");
        assert_eq!((hex(&[]), with_colons(&[])), (String::new(), String::new()));
        assert_eq!(bytes_of("00ab7f"), [0, 0xab, 0x7f]);
        assert_eq!(bytes_of("zz01\u{e9}"), [1]);
    }
}
