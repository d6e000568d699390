//! Writing a `streamOptimized` file whose tables come last, from its beginning to its end, by its markers alone.

use std::io::BufRead;

use super::{DIRECTORY, END, FOOTER, Marker, Sparse, TABLE};
use crate::image::error::ImageError;
use crate::image::qcow2::{MARKER_BYTES, Qcow2Error, marked_len};
use crate::image::sink::Sink;

/// Writes the whole image from `file`, which is at the beginning of the file. What no grain fills is zeroed.
///
/// The grains must come in the order of the disk, as every program writes them; each may be there only once.
pub(in crate::image) fn write_marked(
    id: &str,
    sparse: &Sparse,
    file: &mut dyn BufRead,
    sink: &mut Sink<'_>,
) -> Result<(), ImageError> {
    let header = &sparse.header;
    let mut file = Sectors { id, file, position: 0 };
    let (mut next, mut has_footer, mut grain) = (0, false, Vec::new());
    file.skip(sparse.data_offset)?;
    loop {
        let begin = file.position;
        let sector = file.sector()?;
        let marker = Marker::parse(&sector);
        let wrong = || ImageError::Broken(Qcow2Error::Marker { offset: begin });
        match marker {
            Marker { size: 1.., value, .. } => {
                let guest = value.checked_mul(512).filter(|guest| *guest < header.virtual_bytes).ok_or_else(wrong)?;
                if !guest.is_multiple_of(header.cluster_bytes()) {
                    return Err(wrong());
                }
                if guest < next {
                    return Err(ImageError::NotSequential { reason: "its grains are not in the order of the disk" });
                }
                let end = MARKER_BYTES + marked_len(&sector, header, guest, begin).map_err(ImageError::Broken)?;
                grain.clear();
                grain.extend_from_slice(&sector);
                while grain.len() < end {
                    grain.extend_from_slice(&file.sector()?);
                }
                if guest > next {
                    sink.zero(next, guest - next)?;
                }
                let len = header.cluster_bytes().min(header.virtual_bytes - guest);
                let packed = grain.get(MARKER_BYTES..end).unwrap_or_default();
                sink.unpack(guest, usize::try_from(len).unwrap_or_default(), packed)?;
                next = guest + len;
            }
            Marker { kind: TABLE | DIRECTORY, value, .. } => {
                file.skip(begin.saturating_add(value.saturating_add(1).saturating_mul(512)))?;
            }
            Marker { kind: FOOTER, value: 1, .. } => {
                let footer = file.sector()?;
                sparse.check_footer(&footer).map_err(ending)?;
                has_footer = true;
            }
            Marker { kind: END, value: 0, .. } if has_footer => break,
            _ => return Err(wrong()),
        }
    }
    if next < header.virtual_bytes {
        sink.zero(next, header.virtual_bytes - next)?;
    }
    if file.fill()?.is_empty() { Ok(()) } else { Err(ending("something follows its end")) }
}

fn ending(reason: &'static str) -> ImageError {
    ImageError::Broken(Qcow2Error::Ending { reason })
}

/// The file, sector by sector.
struct Sectors<'a> {
    id: &'a str,
    file: &'a mut dyn BufRead,
    position: u64,
}

impl Sectors<'_> {
    fn fill(&mut self) -> Result<&[u8], ImageError> {
        self.file.fill_buf().map_err(|error| ImageError::from_stream(self.id, error))
    }

    /// Up to `len` bytes; an error at the end of the file.
    fn some(&mut self, len: u64, mut take: impl FnMut(&[u8])) -> Result<(), ImageError> {
        let offset = self.position;
        let bytes = self.fill()?;
        let bytes = bytes.get(..usize::try_from(len).unwrap_or(usize::MAX)).unwrap_or(bytes);
        if bytes.is_empty() {
            return Err(ImageError::Broken(Qcow2Error::CutShort { offset }));
        }
        take(bytes);
        let len = bytes.len();
        self.file.consume(len);
        self.position += u64::try_from(len).unwrap_or_default();
        Ok(())
    }

    fn skip(&mut self, to: u64) -> Result<(), ImageError> {
        while self.position < to {
            self.some(to - self.position, |_| ())?;
        }
        Ok(())
    }

    fn sector(&mut self) -> Result<[u8; 512], ImageError> {
        let (mut sector, mut have) = ([0; 512], 0);
        while let Some(room) = sector.get_mut(have..).filter(|room| !room.is_empty()) {
            self.some(u64::try_from(room.len()).unwrap_or_default(), |bytes| {
                if let Some(place) = room.get_mut(..bytes.len()) {
                    place.copy_from_slice(bytes);
                }
                have += bytes.len();
            })?;
        }
        Ok(sector)
    }
}
