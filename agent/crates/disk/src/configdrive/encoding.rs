//! base64 (RFC 4648) as config drives come in: with white space, perhaps without padding, and large.

use std::io::{self, Read};

use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::read::DecoderReader;

/// Padding may be missing: some clients leave it out.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Whether bytes can be base64 at all. No image of a file system and no gzip stream can: they hold other bytes.
pub(super) fn is_text(bytes: &[u8]) -> bool {
    bytes
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=') || byte.is_ascii_whitespace())
}

/// Whether bytes, base64 or not, are text for people: an error page, say. No image of a file system begins like that.
pub(super) fn is_prose(bytes: &[u8]) -> bool {
    let head = bytes.get(..512).unwrap_or(bytes);
    let is_char = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace() || !byte.is_ascii();
    !head.is_empty() && head.iter().all(is_char)
}

/// An error that [`is_malformed`] knows.
pub(super) fn malformed(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, Malformed(io::Error::new(io::ErrorKind::InvalidData, what)))
}

/// What a text stands for. An error in it is one that [`is_malformed`] knows.
pub(crate) fn decode(text: &[u8]) -> impl Read + '_ {
    Marked(DecoderReader::new(WithoutSpace(text), &BASE64))
}

/// Whether an error means that a text is no base64, rather than that what it stands for is damaged.
pub(super) fn is_malformed(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Malformed>())
}

#[derive(Debug, thiserror::Error)]
#[error("malformed base64")]
struct Malformed(#[source] io::Error);

/// Tells the decoder's errors from those of what reads from it.
struct Marked<R>(R);

impl<R: Read> Read for Marked<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf).map_err(|error| io::Error::new(error.kind(), Malformed(error)))
    }
}

/// Text as it is, but for its white space.
struct WithoutSpace<'a>(&'a [u8]);

impl Read for WithoutSpace<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut count = 0;
        while let (Some(place), Some((byte, rest))) = (buf.get_mut(count), self.0.split_first()) {
            self.0 = rest;
            if !byte.is_ascii_whitespace() {
                *place = *byte;
                count += 1;
            }
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use proptest::prelude::*;

    fn decoded(text: &[u8]) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        decode(text).read_to_end(&mut bytes).map(|_| bytes)
    }

    proptest! {
        #[test]
        fn what_was_encoded_comes_back(
            bytes in proptest::collection::vec(any::<u8>(), 0..5_000), padded in any::<bool>(), width in 1_usize..100,
        ) {
            let mut text = STANDARD.encode(&bytes);
            if !padded {
                text = text.trim_end_matches('=').to_owned();
            }
            let lines: Vec<u8> = text.as_bytes().chunks(width).flat_map(|line| [line, b"\n"].concat()).collect();
            prop_assert!(is_text(&lines));
            prop_assert_eq!(decoded(&lines).unwrap(), bytes);
        }

        #[test]
        fn foreign_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
            if let Err(error) = decoded(&bytes) {
                prop_assert!(is_malformed(&error), "{error}");
            }
        }
    }

    #[test]
    fn damaged_text_is_refused() {
        for text in ["AAA*", "A", "AA=A"] {
            let error = decoded(text.as_bytes()).unwrap_err();
            assert!(is_malformed(&error), "{text}: {error}");
        }
    }
}
