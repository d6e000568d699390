//! The two ways of reading an image: by ranges, and from its beginning to its end.

use std::io::BufRead;

use ferric_types::Progress;

use super::ImageSpec;
use crate::image::compressed::{FileCompression, TAIL_BYTES, Unpacked, least_bytes};
use crate::image::download::{Chunks, Tally, pump};
use crate::image::error::ImageError;
use crate::image::format::{Format, FormatError, PROBE_BYTES, Reader, check_content, choose};
use crate::image::qcow2::{Header, Qcow2Error, Ranged, write_ranged, write_streamed};
use crate::image::sink::{self, Clusters, Sink};
use crate::image::source::{ImageSource, SourceError};
use crate::image::target::Target;
use crate::image::unpack::Compression;
use crate::image::vhd;
use crate::image::vmdk::{self, Sparse, write_marked};

/// The two ways of reading, and what both need.
pub(super) struct Attempt<'a> {
    pub(super) spec: &'a ImageSpec,
    pub(super) target: &'a Target<'a>,
    pub(super) progress: &'a Progress,
    pub(super) max_extents: usize,
}

/// What was found in an image.
pub(super) struct Content {
    pub(super) format: Format,
    pub(super) virtual_bytes: u64,
}

/// A raw image has no compressed clusters.
const NO_CLUSTERS: Clusters = Clusters { compression: Compression::Deflate, bytes: 0 };

impl Attempt<'_> {
    /// From a server that gives ranges: format and tables are read before the download begins.
    pub(super) fn with_ranges(
        &self,
        source: &mut dyn ImageSource,
        file_bytes: u64,
        tally: &mut Tally,
    ) -> Result<Content, ImageError> {
        let mut prefix = vec![0; usize::try_from(file_bytes).unwrap_or(usize::MAX).min(PROBE_BYTES)];
        source.read_exact_at(0, &mut prefix).map_err(|source| self.download_error(source))?;
        let (format, reader) = self.choose(&prefix)?;
        let virtual_bytes = match reader {
            Reader::Raw => {
                self.check_size(file_bytes)?;
                self.target.check_head(&prefix)?;
                drop(prefix);
                self.progress.phase("write", Some(file_bytes));
                let stream = source.stream(0).map_err(|source| self.download_error(source))?;
                pump(stream, tally, self.progress, |chunks| self.raw_file(chunks))?
            }
            Reader::Compressed(compression) => {
                let tail = self.tail(source, file_bytes, TAIL_BYTES)?;
                self.check_size(least_bytes(compression, &prefix, &tail))?;
                drop((prefix, tail));
                self.progress.phase("write", Some(file_bytes));
                let stream = source.stream(0).map_err(|source| self.download_error(source))?;
                return pump(stream, tally, self.progress, |chunks| self.compressed(compression, chunks));
            }
            Reader::FixedVhd => {
                let footer = self.tail(source, file_bytes, vhd::FOOTER_BYTES)?;
                let disk_bytes = file_bytes - u64::try_from(footer.len()).unwrap_or_default();
                vhd::check_fixed(&footer, disk_bytes).map_err(|reason| unsafe_file("vhd", reason))?;
                self.check_size(disk_bytes)?;
                self.target.check_head(&prefix)?;
                drop(prefix);
                self.progress.phase("write", Some(file_bytes));
                let stream = source.stream(0).map_err(|source| self.download_error(source))?;
                pump(stream, tally, self.progress, |chunks| self.fixed_vhd(chunks))?
            }
            Reader::Qcow2 | Reader::Vmdk | Reader::Vhd => {
                let (mut header, sparse) = self.header(reader, &prefix)?;
                prefix.truncate(usize::try_from(header.header_bytes).unwrap_or_default());
                prefix.shrink_to_fit();
                let mut tail = Vec::new();
                if let Some(sparse) = sparse {
                    tail = self.tail(source, file_bytes, vmdk::FOOTER_BYTES)?;
                    header = sparse.with_footer(&tail).map_err(|reason| unsafe_file("vmdk", reason))?;
                }
                let image = Ranged {
                    id: &self.spec.id,
                    header: &header,
                    header_bytes: &prefix,
                    tail: &tail,
                    file_bytes,
                    max_extents: self.max_extents,
                };
                self.target.check_head(&image.first_bytes(source)?)?;
                sink::run(self.target, clusters(&header), |sink| {
                    write_ranged(&image, source, tally, self.progress, sink)?;
                    self.pad(header.virtual_bytes, sink)
                })?;
                header.virtual_bytes
            }
        };
        Ok(Content { format, virtual_bytes })
    }

    /// From a server that gives the file from its beginning to its end and nothing else.
    pub(super) fn in_order(&self, source: &mut dyn ImageSource, tally: &mut Tally) -> Result<Content, ImageError> {
        let size_bytes = source.size_bytes();
        self.progress.phase("write", size_bytes);
        let stream = source.stream(0).map_err(|source| self.download_error(source))?;
        pump(stream, tally, self.progress, |chunks| {
            let first = chunks.fill_buf().map_err(|error| ImageError::from_stream(&self.spec.id, error))?;
            let prefix = first.get(..PROBE_BYTES).unwrap_or(first);
            let (format, reader) = self.choose(prefix)?;
            let virtual_bytes = match reader {
                Reader::Raw => {
                    self.check_size(size_bytes.unwrap_or_default())?;
                    self.target.check_head(prefix)?;
                    self.raw_file(chunks)?
                }
                Reader::Compressed(compression) => {
                    self.check_size(least_bytes(compression, prefix, &[]))?;
                    return self.compressed(compression, chunks);
                }
                Reader::FixedVhd => {
                    let footer_bytes = u64::try_from(vhd::FOOTER_BYTES).unwrap_or_default();
                    self.check_size(size_bytes.unwrap_or_default().saturating_sub(footer_bytes))?;
                    self.target.check_head(prefix)?;
                    self.fixed_vhd(chunks)?
                }
                Reader::Qcow2 | Reader::Vmdk | Reader::Vhd => {
                    let (header, sparse) = self.header(reader, prefix)?;
                    sink::run(self.target, clusters(&header), |sink| {
                        match sparse {
                            Some(sparse) => write_marked(&self.spec.id, &sparse, chunks, sink)?,
                            None => write_streamed(&self.spec.id, &header, self.max_extents, chunks, sink)?,
                        }
                        self.pad(header.virtual_bytes, sink)
                    })?;
                    header.virtual_bytes
                }
            };
            Ok(Content { format, virtual_bytes })
        })
    }

    fn choose(&self, prefix: &[u8]) -> Result<(Format, Reader), ImageError> {
        let spec = self.spec;
        Ok(choose(spec.disk_format.as_deref(), prefix, &spec.permitted_formats, spec.deep_inspection)?)
    }

    /// The last bytes of the file.
    fn tail(&self, source: &mut dyn ImageSource, file_bytes: u64, len: usize) -> Result<Vec<u8>, ImageError> {
        let mut tail = vec![0; usize::try_from(file_bytes).unwrap_or(usize::MAX).min(len)];
        let at = file_bytes - u64::try_from(tail.len()).unwrap_or_default();
        source.read_exact_at(at, &mut tail).map_err(|source| self.download_error(source))?;
        Ok(tail)
    }

    /// The header of a file with tables, when its disk fits; and what a VMDK file says, when its tables are at its end.
    fn header(&self, reader: Reader, prefix: &[u8]) -> Result<(Header, Option<Sparse>), ImageError> {
        let (header, sparse) = match reader {
            Reader::Vmdk => {
                let sparse = Sparse::parse(prefix).map_err(|reason| unsafe_file("vmdk", reason))?;
                (sparse.header, Some(sparse).filter(|sparse| sparse.tables_at_end))
            }
            Reader::Vhd => (vhd::parse(prefix).map_err(|reason| unsafe_file("vhd", reason))?, None),
            _ => (Header::parse(prefix).map_err(FormatError::Qcow2)?, None),
        };
        if header.virtual_bytes == 0 {
            return Err(FormatError::Empty.into());
        }
        self.check_size(header.virtual_bytes)?;
        Ok((header, sparse))
    }

    fn check_size(&self, image_bytes: u64) -> Result<(), ImageError> {
        let dev = self.target.dev();
        if image_bytes > dev.size_bytes() {
            let (device, device_bytes) = (dev.path().to_owned(), dev.size_bytes());
            return Err(ImageError::TooLarge { device, image_bytes, device_bytes });
        }
        Ok(())
    }

    /// Writes the content of a compressed file.
    fn compressed(&self, compression: FileCompression, file: &mut dyn BufRead) -> Result<Content, ImageError> {
        let spec = self.spec;
        let mut content = Unpacked::new(compression, file, spec.unpack_bytes)
            .map_err(|error| ImageError::from_stream(&spec.id, error))?;
        let believed = spec.is_declared_raw();
        let format =
            check_content(compression, content.first(), believed, &spec.permitted_formats, spec.deep_inspection)?;
        self.target.check_head(content.first())?;
        let virtual_bytes = self.raw(&mut content)?;
        Ok(Content { format, virtual_bytes })
    }

    /// Writes the bytes of a file as they are; says how many there were.
    fn raw_file(&self, file: &mut Chunks) -> Result<u64, ImageError> {
        file.widen();
        sink::run(self.target, NO_CLUSTERS, |sink| {
            let mut offset = 0;
            while let Some(piece) =
                file.next(usize::MAX).map_err(|error| ImageError::from_stream(&self.spec.id, error))?
            {
                let end = offset + u64::try_from(piece.len()).unwrap_or_default();
                self.check_size(end)?;
                sink.write_piece(offset, piece)?;
                offset = end;
            }
            self.pad(offset, sink)?;
            Ok(offset)
        })
    }

    /// The same for content that is made from the file.
    fn raw(&self, file: &mut dyn BufRead) -> Result<u64, ImageError> {
        sink::run(self.target, NO_CLUSTERS, |sink| {
            let mut offset = 0;
            loop {
                let bytes = file.fill_buf().map_err(|error| ImageError::from_stream(&self.spec.id, error))?;
                let len = bytes.len();
                if len == 0 {
                    self.pad(offset, sink)?;
                    return Ok(offset);
                }
                let end = offset + u64::try_from(len).unwrap_or_default();
                self.check_size(end)?;
                sink.write(offset, bytes)?;
                file.consume(len);
                offset = end;
            }
        })
    }

    /// Writes the content of a fixed VHD file; says how long it was.
    fn fixed_vhd(&self, file: &mut dyn BufRead) -> Result<u64, ImageError> {
        let mut content = vhd::WithoutFooter::new(file);
        let disk_bytes = self.raw(&mut content)?;
        match vhd::check_fixed(content.footer(), disk_bytes) {
            Ok(()) if disk_bytes > 0 => Ok(disk_bytes),
            Ok(()) => Err(FormatError::Empty.into()),
            Err(reason) => Err(ImageError::Broken(Qcow2Error::Ending { reason })),
        }
    }

    /// Zeroes the rest of the last sector, when the image ends within one.
    fn pad(&self, image_bytes: u64, sink: &mut Sink<'_>) -> Result<(), ImageError> {
        let dev = self.target.dev();
        let end = image_bytes.next_multiple_of(u64::from(dev.logical_sector())).min(dev.size_bytes());
        if end > image_bytes { sink.zero(image_bytes, end - image_bytes) } else { Ok(()) }
    }

    /// Hashes what has not been downloaded yet, after a failure.
    pub(super) fn hash_rest(&self, source: &mut dyn ImageSource, tally: &mut Tally) -> Result<(), ImageError> {
        let more = source.size_bytes().is_some_and(|size| tally.bytes < size);
        if !(more && source.has_ranges()) {
            return Ok(());
        }
        let stream = source.stream(tally.bytes).map_err(|source| self.download_error(source))?;
        pump(stream, tally, self.progress, |chunks| {
            chunks.skip_to_end().map_err(|error| ImageError::from_stream(&self.spec.id, error))
        })
    }

    /// Length and checksum of the file; gives the digest.
    pub(super) fn verify(&self, size_bytes: Option<u64>, tally: Tally) -> Result<String, ImageError> {
        let id = || self.spec.id.clone();
        if let Some(want_bytes) = size_bytes.filter(|size| *size != tally.bytes) {
            return Err(ImageError::Length { id: id(), got_bytes: tally.bytes, want_bytes });
        }
        let actual = tally.hasher.finish();
        if self.spec.checksum.matches(&actual) {
            return Ok(actual);
        }
        let location = self.target.dev().path().display().to_string();
        Err(ImageError::Checksum { location, id: id(), expected: self.spec.checksum.hex.clone(), actual })
    }

    fn download_error(&self, source: SourceError) -> ImageError {
        ImageError::Download { id: self.spec.id.clone(), source }
    }
}

fn unsafe_file(format: &'static str, reason: &'static str) -> ImageError {
    FormatError::UnsafeFile { format, reason }.into()
}

fn clusters(header: &Header) -> Clusters {
    let bytes = usize::try_from(header.cluster_bytes()).unwrap_or_default();
    Clusters { compression: header.compression, bytes }
}
