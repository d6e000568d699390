//! How large the content of a compressed file is at least, so that an image too large for the disk is refused before
//! anything is written.

use super::FileCompression;

/// Most of a file's end that [`least_bytes`] looks at.
pub(in crate::image) const TAIL_BYTES: usize = 64 << 10;

/// A lower bound to the size of the content: what the first zstd frame or the last xz stream says of itself. 0 when it
/// says nothing; a gzip member only gives its size modulo 2^32, which is no help with disks. `tail` is the file's end, or
/// empty when it is not known.
pub(in crate::image) fn least_bytes(compression: FileCompression, prefix: &[u8], tail: &[u8]) -> u64 {
    match compression {
        FileCompression::Zstd => zstd::zstd_safe::get_frame_content_size(prefix).ok().flatten(),
        FileCompression::Gzip => None,
        FileCompression::Xz => xz_index_bytes(tail),
    }
    .unwrap_or_default()
}

/// Sum of the uncompressed sizes in the index at the end of an .xz stream (.xz file format, 2.1.2 and 4).
fn xz_index_bytes(tail: &[u8]) -> Option<u64> {
    let (before, footer) = tail.split_last_chunk::<12>()?;
    let [_, _, _, _, a, b, c, d, _, _, b'Y', b'Z'] = footer else { return None };
    let index_bytes = usize::try_from((u64::from(u32::from_le_bytes([*a, *b, *c, *d])) + 1) * 4).ok()?;
    let index = before.get(before.len().checked_sub(index_bytes)?..)?;
    let (0, mut rest) = index.split_first().map(|(first, rest)| (*first, rest))? else { return None };
    let records = number(&mut rest)?;
    let mut sum = 0_u64;
    for _ in 0..records {
        let _unpadded = number(&mut rest)?;
        sum = sum.checked_add(number(&mut rest)?)?;
    }
    Some(sum)
}

/// A multibyte integer (1.2): seven bits a byte, the least first, the highest bit set but in the last.
fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..63).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::image::compressed::tests::{ALL, packed};

    #[test]
    fn the_size_of_one_frame_or_stream_is_known_from_its_ends() {
        for len in [0_usize, 1, 200, 300_000] {
            let content = vec![7; len];
            for compression in [FileCompression::Zstd, FileCompression::Xz] {
                let file = packed(compression, &content);
                let want = u64::try_from(len).unwrap();
                assert_eq!(least_bytes(compression, &file, &file), want, "{compression} {len}");
            }
        }
    }

    #[test]
    fn without_a_known_end_nothing_is_claimed() {
        for compression in [FileCompression::Gzip, FileCompression::Xz] {
            assert_eq!(least_bytes(compression, &packed(compression, b"content"), &[]), 0, "{compression}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..200), footer in any::<[u8; 6]>()) {
            let mut xz = bytes.clone();
            xz.extend([0; 4]);
            xz.extend([footer[0] % 40, 0, 0, 0, 0, 1, b'Y', b'Z']);
            for compression in ALL {
                least_bytes(compression, &bytes, &bytes);
                least_bytes(compression, &bytes, &xz);
            }
        }
    }
}
