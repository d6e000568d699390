//! Packs the archives of an initramfs by xz.
//!
//! xz, because what a node downloads and keeps in memory counts here: the virt image is a tenth smaller than with zstd,
//! and the kernel needs a fifth of a second longer to unpack it. The agent's machine code gets the filter that makes
//! x86 code compress better, modules do not: their calls are relocations. So they are archives of their own, one after
//! another, as the kernel allows (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::io::{Read, Write};

use anyhow::{Context, Result};
use liblzma::read::XzDecoder;
use liblzma::stream::{Check, Filters, LzmaOptions, PRESET_EXTREME, Stream};
use liblzma::write::XzEncoder;

/// Changes with everything here that changes the bytes.
pub const METHOD: &str = "xz-1";

/// The kernel gets memory for a whole window while it unpacks, so that must be no larger than it is worth.
const MAX_WINDOW_BYTES: usize = 8 << 20;

/// What an archive holds most of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Machine code for x86-64 with its addresses filled in.
    X86Program,
    /// Anything else.
    Other,
}

/// Packs one archive.
///
/// # Errors
/// liblzma has no memory.
pub fn pack(archive: &[u8], content: Content) -> Result<Vec<u8>> {
    let packing = "compressing the initramfs";
    let mut options = LzmaOptions::new_preset(9 | PRESET_EXTREME).context(packing)?;
    let window = archive.len().next_power_of_two().clamp(1 << 16, MAX_WINDOW_BYTES);
    options.dict_size(u32::try_from(window).context(packing)?);
    let mut filters = Filters::new();
    if content == Content::X86Program {
        filters.x86();
    }
    filters.lzma2(&options);
    // The kernel's decompressor knows CRC32 only.
    let stream = Stream::new_stream_encoder(&filters, Check::Crc32).context(packing)?;
    let mut encoder = XzEncoder::new_stream(Vec::new(), stream);
    encoder.write_all(archive).context(packing)?;
    encoder.finish().context(packing)
}

/// Unpacks what [`pack`] made of one archive or of several, one after another.
///
/// # Errors
/// `packed` is not whole.
pub fn unpack(packed: &[u8]) -> Result<Vec<u8>> {
    let mut archives = Vec::new();
    XzDecoder::new_multi_decoder(packed).read_to_end(&mut archives).context("unpacking an initramfs")?;
    Ok(archives)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_come_back_one_after_another() {
        let (one, two) = (vec![0xe8; 5000], b"modules".repeat(900));
        let mut packed = pack(&one, Content::X86Program).unwrap();
        assert_eq!(packed.len() % 4, 0, "the next archive would not be found");
        packed.extend(pack(&two, Content::Other).unwrap());
        assert_eq!(unpack(&packed).unwrap(), [one, two].concat());
        packed.pop();
        assert!(unpack(&packed).is_err());
    }
}
