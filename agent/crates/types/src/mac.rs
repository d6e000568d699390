//! Hardware addresses.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A 48-bit Ethernet address; prints as lower-case hex with colons, as Ironic stores port addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress(pub [u8; 6]);

/// The text is not an Ethernet address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an Ethernet address such as 52:54:00:12:34:56")]
pub struct ParseMacError {
    /// What was given.
    pub text: String,
}

impl MacAddress {
    /// Whether every byte is zero, which drivers report when they have no address.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 6]
    }

    /// Reads the value of the `BOOTIF` kernel parameter: `aa:bb:cc:dd:ee:ff` (iPXE) or `01-aa-bb-cc-dd-ee-ff`
    /// (pxelinux, where the first pair is the ARP hardware type).
    ///
    /// # Errors
    /// The text is in neither form.
    pub fn from_bootif(text: &str) -> Result<Self, ParseMacError> {
        let pxelinux = text.len() == 20
            && matches!(text.as_bytes(), [a, b, b'-', ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit());
        let stripped = if pxelinux { text.get(3..).unwrap_or(text) } else { text };
        stripped.parse().map_err(|_without_prefix: ParseMacError| ParseMacError { text: text.to_owned() })
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for MacAddress {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, ParseMacError> {
        let bad = || ParseMacError { text: text.to_owned() };
        let mut bytes = [0_u8; 6];
        let mut parts = text.trim().split([':', '-']);
        for byte in &mut bytes {
            let part = parts.next().ok_or_else(bad)?;
            if part.len() != 2 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(bad());
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_not_hex| bad())?;
        }
        if parts.next().is_some() { Err(bad()) } else { Ok(Self(bytes)) }
    }
}

impl Serialize for MacAddress {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MacAddress {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_bootif_name_the_same_address() {
        let want = MacAddress([0x52, 0x54, 0, 0xaa, 0xbb, 0xcc]);
        for text in ["52:54:00:aa:bb:cc", "01-52-54-00-aa-bb-cc", "52-54-00-AA-BB-CC"] {
            assert_eq!(MacAddress::from_bootif(text), Ok(want), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "52:54:00:aa:bb",
            "52:54:00:aa:bb:cc:dd",
            "52:54:00:aa:bb:+c",
            "zz:54:00:aa:bb:cc",
            "é-52-54-00-aa-bb-cc",
        ] {
            assert!(MacAddress::from_bootif(text).is_err(), "{text}");
        }
    }
}
