//! Places of a disk that are looked at before and after it is erased.

use ferric_sys::block_dev::{BlockDev, BlockDevError};

/// Places spread over the disk, besides its first and last sector.
const SPREAD: u64 = 254;
/// Bytes of a sample.
const SAMPLE_BYTES: usize = 512;
/// So many unreadable places are bad luck; more, and the disk is broken.
const BAD_PLACES: usize = 3;

type Sample = [u8; SAMPLE_BYTES];

#[derive(Debug)]
pub(super) struct Samples {
    known: Vec<(u64, Sample)>,
    places: usize,
}

impl Samples {
    /// Reads the samples of a disk. A few places that cannot be read do not matter: erasing may mend them.
    pub(super) fn take(dev: &BlockDev) -> Result<Self, BlockDevError> {
        let mut known = Vec::new();
        let mut bad = 0;
        let places = places(dev);
        for offset in &places {
            match read(dev, *offset) {
                Ok(sample) => known.push((*offset, sample)),
                Err(error) if bad < BAD_PLACES && error.is_medium_error() => {
                    bad += 1;
                    tracing::warn!(error = ferric_types::error::chain(&error), "a sample cannot be read");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Self { known, places: places.len() })
    }

    /// How many places are looked at.
    pub(super) fn len(&self) -> usize {
        self.places
    }

    /// The first place that is as it was, if any. The caller has flushed, so that the reads come from the medium.
    pub(super) fn must_have_changed(&self, dev: &BlockDev) -> Result<Option<u64>, BlockDevError> {
        self.first(dev, |before, now| before == now)
    }

    /// The first place that still has what it had, if any; one that had nothing may have nothing again.
    pub(super) fn must_be_gone(&self, dev: &BlockDev) -> Result<Option<u64>, BlockDevError> {
        let blank = |sample: &Sample| [0, 0xff].iter().any(|empty| sample.iter().all(|byte| byte == empty));
        self.first(dev, |before, now| before == now && !blank(before))
    }

    /// The first place that is not zero, if any.
    pub(super) fn must_be_zero(&self, dev: &BlockDev) -> Result<Option<u64>, BlockDevError> {
        for offset in places(dev) {
            if read(dev, offset)?.iter().any(|byte| *byte != 0) {
                return Ok(Some(offset));
            }
        }
        Ok(None)
    }

    fn first(&self, dev: &BlockDev, bad: impl Fn(&Sample, &Sample) -> bool) -> Result<Option<u64>, BlockDevError> {
        for (offset, before) in &self.known {
            if bad(before, &read(dev, *offset)?) {
                return Ok(Some(*offset));
            }
        }
        Ok(None)
    }
}

fn places(dev: &BlockDev) -> Vec<u64> {
    let last = dev.size_bytes().saturating_sub(512) / 512;
    let place = |part: u64| u64::try_from(u128::from(last) * u128::from(part) / u128::from(SPREAD)).unwrap_or(last);
    let mut offsets: Vec<u64> = (0..=SPREAD).map(|part| place(part) * 512).collect();
    offsets.dedup();
    offsets
}

fn read(dev: &BlockDev, offset: u64) -> Result<Sample, BlockDevError> {
    let mut bytes = [0_u8; SAMPLE_BYTES];
    dev.read_at(offset, &mut bytes)?;
    Ok(bytes)
}
