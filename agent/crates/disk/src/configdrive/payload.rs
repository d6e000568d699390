//! A config drive as it came, decoded and unpacked anew whenever it is read: its content may have 64 MiB, which a machine
//! with 128 MiB has not to spare.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Cursor, Read, Seek, SeekFrom};

use flate2::read::MultiGzDecoder;

use super::encoding;

/// The first bytes of a gzip stream (RFC 1952).
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The image of a file system, perhaps compressed and encoded.
#[derive(Clone)]
pub struct Payload<'a> {
    stored: Cow<'a, [u8]>,
    form: Form,
    size_bytes: u64,
}

/// How an image is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Plain,
    Gzip,
    /// base64 of gzip.
    Text,
}

impl fmt::Debug for Payload<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What is in it is the tenant's own.
        f.debug_struct("Payload")
            .field("stored_bytes", &self.stored.len())
            .field("size_bytes", &self.size_bytes)
            .finish_non_exhaustive()
    }
}

impl<'a> Payload<'a> {
    /// The image itself.
    pub fn plain(image: impl Into<Cow<'a, [u8]>>) -> Self {
        let stored = image.into();
        let size_bytes = u64::try_from(stored.len()).unwrap_or(u64::MAX);
        Self { stored, form: Form::Plain, size_bytes }
    }

    /// What a server gave: an image, gzip of one, or base64 of that.
    ///
    /// # Errors
    /// As [`Payload::text`]; text that is no base64 is malformed.
    pub(super) fn downloaded(content: Vec<u8>, limit: u64) -> io::Result<Self> {
        if content.starts_with(&GZIP_MAGIC) {
            Self { stored: content.into(), form: Form::Gzip, size_bytes: 0 }.measured(limit)
        } else if encoding::is_text(&content) {
            Self::text(content, limit)
        } else if encoding::is_prose(&content) {
            // The reference agent takes such letters as it finds for base64, and fails to unpack that.
            let is_markup = content.trim_ascii_start().starts_with(b"<");
            Err(encoding::malformed(if is_markup { "the URL has HTML or XML text" } else { "the URL has plain text" }))
        } else {
            Ok(Self::plain(content))
        }
    }

    /// base64 of gzip, unpacked once to learn the image's size; it ends after `limit` bytes and one.
    ///
    /// # Errors
    /// It is no base64 ([`encoding::is_malformed`]), no gzip, or is damaged.
    pub(super) fn text(text: impl Into<Cow<'a, [u8]>>, limit: u64) -> io::Result<Self> {
        Self { stored: text.into(), form: Form::Text, size_bytes: 0 }.measured(limit)
    }

    fn measured(mut self, limit: u64) -> io::Result<Self> {
        let size_bytes = io::copy(&mut self.reader().take(limit + 1), &mut io::sink())?;
        self.size_bytes = size_bytes;
        Ok(self)
    }

    /// Size of the image.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// What the image is, when it is no file system that is known.
    pub(super) fn describe(&self) -> &'static str {
        let mut head = Vec::new();
        // What cannot be read any more has been read before.
        let _read = self.reader().take(512).read_to_end(&mut head);
        match &*head {
            [] => "nothing",
            head if head.starts_with(&GZIP_MAGIC) => "gzip inside of gzip",
            head if encoding::is_prose(head) => "text",
            _ => "unknown",
        }
    }

    /// The image from its beginning.
    pub(super) fn reader(&self) -> Reader<'_> {
        let stream = match self.unpacked() {
            None => Stream::Plain(Cursor::new(&self.stored)),
            Some(decoder) => Stream::Packed { payload: self, decoder, position: 0 },
        };
        Reader { stream, size_bytes: self.size_bytes }
    }

    /// The image, when it is not stored as it is.
    fn unpacked(&self) -> Option<Unpacked<'_>> {
        let gzip: Box<dyn Read + '_> = match self.form {
            Form::Plain => return None,
            Form::Gzip => Box::new(self.stored.as_ref()),
            Form::Text => Box::new(encoding::decode(&self.stored)),
        };
        Some(Box::new(MultiGzDecoder::new(gzip)))
    }
}

type Unpacked<'a> = Box<MultiGzDecoder<Box<dyn Read + 'a>>>;

/// Reads a payload. Seeking back in a compressed one begins anew and skips.
pub(super) struct Reader<'a> {
    stream: Stream<'a>,
    size_bytes: u64,
}

enum Stream<'a> {
    Plain(Cursor<&'a [u8]>),
    Packed { payload: &'a Payload<'a>, decoder: Unpacked<'a>, position: u64 },
}

impl Reader<'_> {
    /// Whether going back means to begin anew.
    pub(super) const fn is_packed(&self) -> bool {
        matches!(self.stream, Stream::Packed { .. })
    }
}

impl Read for Reader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match &mut self.stream {
            Stream::Plain(cursor) => cursor.read(buf),
            Stream::Packed { decoder, position, .. } => {
                let count = decoder.read(buf)?;
                *position += u64::try_from(count).unwrap_or_default();
                Ok(count)
            }
        }
    }
}

impl Seek for Reader<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (payload, decoder, position) = match &mut self.stream {
            Stream::Plain(cursor) => return cursor.seek(to),
            Stream::Packed { payload, decoder, position } => (payload, decoder, position),
        };
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(delta) => position.checked_add_signed(delta),
            SeekFrom::End(delta) => self.size_bytes.checked_add_signed(delta),
        };
        let target = target.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        if target < *position {
            *decoder = payload.unpacked().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
            *position = 0;
        }
        *position += io::copy(&mut decoder.by_ref().take(target - *position), &mut io::sink())?;
        // Behind the end there is nothing to read, as with any file.
        *position = target;
        Ok(target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;

    fn gzip(image: &[u8]) -> Vec<u8> {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(image).unwrap();
        gzip.finish().unwrap()
    }

    fn all(image: &[u8]) -> [Payload<'static>; 3] {
        let gzip = gzip(image);
        let text = STANDARD.encode(&gzip).into_bytes();
        [image.to_vec(), gzip, text].map(|content| Payload::downloaded(content, 1 << 20).unwrap())
    }

    #[test]
    fn any_place_is_read_in_any_order() {
        let image: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        for payload in all(&image) {
            assert_eq!(payload.size_bytes(), 400_000);
            let mut reader = payload.reader();
            for place in [300_000, 8, 0, 399_996, 4] {
                let mut bytes = [0; 4];
                assert_eq!(reader.seek(SeekFrom::Start(place)).unwrap(), place);
                reader.read_exact(&mut bytes).unwrap();
                assert_eq!(u64::from(u32::from_le_bytes(bytes)), place / 4, "{payload:?}");
            }
            assert_eq!(reader.seek(SeekFrom::Current(-4)).unwrap(), 4);
            assert_eq!(reader.seek(SeekFrom::End(-1)).unwrap(), 399_999);
            assert_eq!(reader.seek(SeekFrom::Start(500_000)).unwrap(), 500_000);
            assert_eq!(reader.read(&mut [0; 4]).unwrap(), 0);
            assert!(reader.seek(SeekFrom::Current(-600_000)).is_err());
        }
    }

    #[test]
    fn nothing_beyond_the_limit_is_unpacked() {
        assert_eq!(Payload::downloaded(gzip(&vec![0; 1 << 20]), 1000).unwrap().size_bytes(), 1001);
    }
}
