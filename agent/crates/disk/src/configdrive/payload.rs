//! A config drive as it came, unpacked anew whenever it is read: its content may have 64 MiB, which a machine with 128 MiB
//! has not to spare.

use std::fmt;
use std::io::{self, Cursor, Read, Seek, SeekFrom};

use flate2::read::MultiGzDecoder;

/// The first bytes of a gzip stream (RFC 1952).
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The image of a file system, perhaps compressed.
#[derive(Clone)]
pub struct Payload {
    stored: Vec<u8>,
    is_packed: bool,
    size_bytes: u64,
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What is in it is the tenant's own.
        f.debug_struct("Payload")
            .field("stored_bytes", &self.stored.len())
            .field("size_bytes", &self.size_bytes)
            .finish_non_exhaustive()
    }
}

impl Payload {
    /// The image itself.
    pub fn plain(image: Vec<u8>) -> Self {
        let size_bytes = u64::try_from(image.len()).unwrap_or(u64::MAX);
        Self { stored: image, is_packed: false, size_bytes }
    }

    /// The gzip-compressed image, unpacked once to learn its size; it ends after `limit` bytes and one.
    ///
    /// # Errors
    /// It is no gzip, or is damaged.
    pub(super) fn packed(gzip: Vec<u8>, limit: u64) -> io::Result<Self> {
        let mut payload = Self { stored: gzip, is_packed: true, size_bytes: 0 };
        payload.size_bytes = io::copy(&mut payload.reader().take(limit + 1), &mut io::sink())?;
        Ok(payload)
    }

    /// Whether bytes are compressed.
    pub(super) fn is_gzip(bytes: &[u8]) -> bool {
        bytes.starts_with(&GZIP_MAGIC)
    }

    /// Size of the image.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The image from its beginning.
    pub(super) fn reader(&self) -> Reader<'_> {
        let stream = if self.is_packed {
            Stream::Packed { gzip: &self.stored, decoder: Box::new(MultiGzDecoder::new(&self.stored)), position: 0 }
        } else {
            Stream::Plain(Cursor::new(&self.stored))
        };
        Reader { stream, size_bytes: self.size_bytes }
    }
}

/// Reads a payload. Seeking back in a compressed one begins anew and skips.
pub(super) struct Reader<'a> {
    stream: Stream<'a>,
    size_bytes: u64,
}

enum Stream<'a> {
    Plain(Cursor<&'a [u8]>),
    Packed { gzip: &'a [u8], decoder: Box<MultiGzDecoder<&'a [u8]>>, position: u64 },
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
        let (gzip, decoder, position) = match &mut self.stream {
            Stream::Plain(cursor) => return cursor.seek(to),
            Stream::Packed { gzip, decoder, position } => (gzip, decoder, position),
        };
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(delta) => position.checked_add_signed(delta),
            SeekFrom::End(delta) => self.size_bytes.checked_add_signed(delta),
        };
        let target = target.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        if target < *position {
            **decoder = MultiGzDecoder::new(gzip);
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
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;

    fn both(image: &[u8]) -> [Payload; 2] {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(image).unwrap();
        [Payload::plain(image.to_vec()), Payload::packed(gzip.finish().unwrap(), 1 << 20).unwrap()]
    }

    #[test]
    fn any_place_is_read_in_any_order() {
        let image: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        for payload in both(&image) {
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
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&vec![0; 1 << 20]).unwrap();
        assert_eq!(Payload::packed(gzip.finish().unwrap(), 1000).unwrap().size_bytes(), 1001);
    }
}
