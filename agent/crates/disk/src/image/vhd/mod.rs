//! VHD files, fixed and dynamic (Microsoft Virtual Hard Disk Image Format Specification 1.0).
//!
//! The blocks of a dynamic file are found as the clusters of a qcow2 file are, by a table of one level. The bitmap before
//! each block, which says what of it was ever written, is not looked at: what was not is zero. A fixed file is a raw disk
//! with a footer at its end.

use std::io::{self, BufRead, Read};

use super::qcow2::{Family, Header};
use super::unpack::Compression;

/// Length of the footer, which is also the first sector of a dynamic file.
pub(super) const FOOTER_BYTES: usize = 512;
/// Footer and header of a dynamic file.
const HEADER_BYTES: usize = FOOTER_BYTES + 1024;
const FIXED: u64 = 2;
const DYNAMIC: u64 = 3;
const DIFFERENCING: u64 = 4;

/// Reads the footer and the header from the first bytes of a dynamic file.
///
/// # Errors
/// What is wrong with the file, as what follows "the vhd file".
pub(super) fn parse(bytes: &[u8]) -> Result<Header, &'static str> {
    let (footer, header) =
        bytes.get(..HEADER_BYTES).and_then(|all| all.split_at_checked(FOOTER_BYTES)).ok_or("is cut short")?;
    let (kind, virtual_bytes) = parse_footer(footer)?;
    if kind != DYNAMIC {
        return Err("has a header, but is of a kind without one");
    }
    if be(footer, 16, 8) != 512 || !header.starts_with(b"cxsparse") || be(header, 24, 4) != 0x1_0000 {
        return Err("has no header of a known version");
    }
    if be(header, 36, 4) != checksum(header, 36) {
        return Err("has a damaged header");
    }
    let (table, entries, block) = (be(header, 16, 8), be(header, 28, 4), be(header, 32, 4));
    if !block.is_power_of_two() || !(4096..=256 << 20).contains(&block) {
        return Err("has blocks of a size that is not supported");
    }
    let l1_entries = virtual_bytes.div_ceil(block);
    if l1_entries > entries || l1_entries > 8 << 20 {
        return Err("has a table that does not fit its size");
    }
    if !(1536..1 << 62).contains(&table) {
        return Err("has its table in an impossible place");
    }
    Ok(Header {
        // One bit for each sector of a block.
        family: Family::Vhd { bitmap_bytes: (block / 512 / 8).next_multiple_of(512) },
        version: 1,
        cluster_bits: block.trailing_zeros(),
        virtual_bytes,
        l1_offset: table,
        l1_entries,
        compression: Compression::Deflate,
        header_bytes: 1536,
    })
}

/// Judges the footer of a fixed file with a disk of `disk_bytes`.
///
/// # Errors
/// As for [`parse`].
pub(super) fn check_fixed(footer: &[u8], disk_bytes: u64) -> Result<(), &'static str> {
    match parse_footer(footer)? {
        (FIXED, virtual_bytes) if virtual_bytes == disk_bytes => Ok(()),
        (FIXED, _) => Err("is not as long as its footer says"),
        _ => Err("has no header, but is of a kind with one"),
    }
}

/// Type and size of the disk.
fn parse_footer(footer: &[u8]) -> Result<(u64, u64), &'static str> {
    if footer.len() != FOOTER_BYTES || !footer.starts_with(b"conectix") || be(footer, 12, 4) != 0x1_0000 {
        return Err("has no footer of a known version");
    }
    if be(footer, 64, 4) != checksum(footer, 64) {
        return Err("has a damaged footer");
    }
    let (virtual_bytes, kind) = (be(footer, 48, 8), be(footer, 60, 4));
    if !virtual_bytes.is_multiple_of(512) {
        return Err("has an impossible size");
    }
    match kind {
        DIFFERENCING => Err("has a parent"),
        FIXED | DYNAMIC => Ok((kind, virtual_bytes)),
        _ => Err("is of an unknown kind"),
    }
}

/// Complement of the sum of all bytes but the checksum itself.
fn checksum(bytes: &[u8], at: usize) -> u64 {
    let sum = |bytes: &[u8]| bytes.iter().fold(0_u32, |sum, byte| sum.wrapping_add(u32::from(*byte)));
    let own = bytes.get(at..at + 4).map_or(0, sum);
    u64::from(!sum(bytes).wrapping_sub(own))
}

/// A big-endian number.
fn be(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes.iter().skip(at).take(len).fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// A fixed file without its footer.
pub(super) struct WithoutFooter<'a> {
    file: &'a mut dyn BufRead,
    /// Bytes to give, from `at` on, and behind them what may be the footer.
    bytes: Vec<u8>,
    at: usize,
}

impl<'a> WithoutFooter<'a> {
    pub(super) const fn new(file: &'a mut dyn BufRead) -> Self {
        Self { file, bytes: Vec::new(), at: 0 }
    }

    /// What was held back; the footer once everything has been read.
    pub(super) fn footer(&self) -> &[u8] {
        self.bytes.get(self.end()..).unwrap_or_default()
    }

    const fn end(&self) -> usize {
        self.bytes.len().saturating_sub(FOOTER_BYTES)
    }
}

impl BufRead for WithoutFooter<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.at >= self.end() {
            let more = self.file.fill_buf()?;
            if more.is_empty() {
                return Ok(&[]);
            }
            self.bytes.drain(..self.at);
            self.at = 0;
            self.bytes.extend_from_slice(more);
            let len = more.len();
            self.file.consume(len);
        }
        Ok(self.bytes.get(self.at..self.end()).unwrap_or_default())
    }

    fn consume(&mut self, count: usize) {
        self.at += count;
    }
}

impl Read for WithoutFooter<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let bytes = self.fill_buf()?;
        let len = bytes.len().min(buf.len());
        if let (Some(from), Some(to)) = (bytes.get(..len), buf.get_mut(..len)) {
            to.copy_from_slice(from);
        }
        self.consume(len);
        Ok(len)
    }
}

#[cfg(test)]
mod tests;
