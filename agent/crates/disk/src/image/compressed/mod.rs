//! Images that are compressed as a whole: gzip (RFC 1952), zstd (RFC 8878) or xz (the .xz file format 1.2) around a raw
//! disk.
//!
//! The reference agent writes such a file as it is, which gives a disk without a partition table, and then fails. Here
//! the content is written, in the same single pass. The checksum stays that of the file as downloaded; those inside the
//! file are compared as well. A file may be several members, frames or streams one after another; anything else behind
//! the last of them is an error, as is a file that ends early.

mod size;

use std::fmt;
use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};

use flate2::bufread::MultiGzDecoder;
use liblzma::bufread::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};

use super::format::PROBE_BYTES;
pub(super) use size::{TAIL_BYTES, least_bytes};

/// Content that is unpacked at a time.
const BUFFER_BYTES: usize = 256 << 10;
/// What a decoder needs beside its window.
const OVERHEAD_BYTES: u64 = 1 << 20;

/// How an image file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant is the program of the same name")]
pub enum FileCompression {
    Gzip,
    Zstd,
    Xz,
}

impl FileCompression {
    /// How the file of these first bytes is compressed. One with the signature of a partition table is a disk, whatever
    /// its boot code begins with.
    pub fn detect(prefix: &[u8]) -> Option<Self> {
        if prefix.get(510..512) == Some(&[0x55, 0xaa]) {
            return None;
        }
        match prefix {
            // Deflate is the only method there is.
            [0x1f, 0x8b, 8, ..] => Some(Self::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Zstd),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(Self::Xz),
            _ => None,
        }
    }

    /// Name of the program that makes such files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::Xz => "xz",
        }
    }
}

impl fmt::Display for FileCompression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The file cannot be unpacked: it is broken, ends early, has something behind its end, or needs too much memory.
#[derive(Debug, thiserror::Error)]
#[error("the {compression} file is broken, ends early or needs more than {} MiB of memory to be unpacked", memory_bytes >> 20)]
pub struct UnpackFileError {
    /// How it is compressed.
    pub compression: FileCompression,
    /// Memory that the decoder may have.
    pub memory_bytes: u64,
    /// What the decoder says.
    #[source]
    pub source: io::Error,
}

/// The content of a compressed file, by `BufRead`.
pub(super) struct Unpacked<'a> {
    content: Chain<Cursor<Vec<u8>>, BufReader<Decoder<'a>>>,
}

impl<'a> Unpacked<'a> {
    /// Begins to unpack `file`. Errors of `file` itself are passed on, all others are [`UnpackFileError`]s.
    pub(super) fn new(compression: FileCompression, file: &'a mut dyn BufRead, memory_bytes: u64) -> io::Result<Self> {
        let mut decoder = BufReader::with_capacity(BUFFER_BYTES, Decoder::new(compression, file, memory_bytes)?);
        let mut first = Vec::with_capacity(PROBE_BYTES);
        decoder.by_ref().take(u64::try_from(PROBE_BYTES).unwrap_or_default()).read_to_end(&mut first)?;
        Ok(Self { content: Cursor::new(first).chain(decoder) })
    }

    /// The first [`PROBE_BYTES`] of the content, or all of it.
    pub(super) fn first(&self) -> &[u8] {
        self.content.get_ref().0.get_ref()
    }
}

impl Read for Unpacked<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.content.read(buf)
    }
}

impl BufRead for Unpacked<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.content.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.content.consume(count);
    }
}

struct Decoder<'a> {
    compression: FileCompression,
    memory_bytes: u64,
    inner: Box<dyn Read + 'a>,
}

impl<'a> Decoder<'a> {
    fn new(compression: FileCompression, file: &'a mut dyn BufRead, memory_bytes: u64) -> io::Result<Self> {
        let file = Source(file);
        let inner: io::Result<Box<dyn Read + 'a>> = match compression {
            FileCompression::Gzip => Ok(Box::new(MultiGzDecoder::new(file))),
            FileCompression::Zstd => zstd_decoder(file, memory_bytes),
            FileCompression::Xz => Stream::new_stream_decoder(memory_bytes + OVERHEAD_BYTES, CONCATENATED)
                .map_err(io::Error::from)
                .map(|stream| -> Box<dyn Read + 'a> { Box::new(XzDecoder::new_stream(file, stream)) }),
        };
        let inner =
            inner.map_err(|source| UnpackFileError { compression, memory_bytes, source }).map_err(io::Error::other)?;
        Ok(Self { compression, memory_bytes, inner })
    }
}

fn zstd_decoder<'a>(file: Source<'a>, memory_bytes: u64) -> io::Result<Box<dyn Read + 'a>> {
    let mut decoder = zstd::Decoder::with_buffer(file)?;
    // 2^10 to 2^31 is what the format allows.
    decoder.window_log_max(memory_bytes.max(1 << 10).ilog2().min(31))?;
    Ok(Box::new(decoder))
}

impl Read for Decoder<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.inner.read(buf).map_err(|error| {
            if error.kind() == io::ErrorKind::Interrupted {
                return error;
            }
            match error.downcast::<OfSource>() {
                Ok(OfSource(error)) => error,
                Err(source) => {
                    let Self { compression, memory_bytes, .. } = *self;
                    io::Error::other(UnpackFileError { compression, memory_bytes, source })
                }
            }
        })
    }
}

/// The file, whose errors can be told from those of a decoder.
struct Source<'a>(&'a mut dyn BufRead);

/// An error of the file itself on its way through a decoder.
#[derive(Debug, thiserror::Error)]
#[error("reading the compressed file")]
struct OfSource(#[source] io::Error);

impl Read for Source<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf).map_err(|error| io::Error::other(OfSource(error)))
    }
}

impl BufRead for Source<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.0.fill_buf().map_err(|error| io::Error::other(OfSource(error)))
    }

    fn consume(&mut self, count: usize) {
        self.0.consume(count);
    }
}

#[cfg(test)]
pub(super) mod tests;
