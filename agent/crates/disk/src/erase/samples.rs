//! Places of a disk that are looked at before and after a pass.

use ferric_sys::block_dev::{BlockDev, BlockDevError};

/// Places spread over the disk, besides its first and last sector.
const SPREAD: u64 = 254;
/// Bytes of a sample.
const SAMPLE_BYTES: usize = 512;

#[derive(Debug)]
pub(super) struct Samples(Vec<(u64, [u8; SAMPLE_BYTES])>);

impl Samples {
    /// Reads the samples of a disk.
    pub(super) fn take(dev: &BlockDev) -> Result<Self, BlockDevError> {
        let last = dev.size_bytes().saturating_sub(512) / 512;
        let mut sectors: Vec<u64> = (0..=SPREAD)
            .map(|part| u64::try_from(u128::from(last) * u128::from(part) / u128::from(SPREAD)).unwrap_or(last))
            .collect();
        sectors.dedup();
        let read = |sector: u64| {
            let mut bytes = [0_u8; SAMPLE_BYTES];
            dev.read_at(sector * 512, &mut bytes)?;
            Ok((sector * 512, bytes))
        };
        Ok(Self(sectors.into_iter().map(read).collect::<Result<_, BlockDevError>>()?))
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The first place that is as it was, if any. The caller has flushed, so that the reads come from the medium.
    pub(super) fn must_have_changed(&self, dev: &BlockDev) -> Result<Option<u64>, BlockDevError> {
        let now = Self::take(dev)?;
        let mut pairs = self.0.iter().zip(&now.0);
        Ok(pairs.find(|(before, after)| before.1 == after.1).map(|(before, _)| before.0))
    }

    /// The first place that is not zero, if any.
    pub(super) fn must_be_zero(&self, dev: &BlockDev) -> Result<Option<u64>, BlockDevError> {
        let now = Self::take(dev)?;
        Ok(now.0.iter().find(|(_, bytes)| bytes.iter().any(|byte| *byte != 0)).map(|(offset, _)| *offset))
    }
}
