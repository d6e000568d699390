//! Small disk images for tests of the write path: a valid partition table and content that tells where it belongs.

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::layout::{DiskLabel, MIB};

const SECTOR: u64 = 512;
const PARTITION_START_BYTES: u64 = MIB;
const DISK_GUID: Uuid = Uuid::from_u128(0xfe44_1c00_0000_4000_8000_0000_0000_00d0);
const PARTITION_GUID: Uuid = Uuid::from_u128(0xfe44_1c00_0000_4000_8000_0000_0000_00d1);
/// Linux file system data.
const TYPE_GUID: Uuid = Uuid::from_u128(0x0fc6_3daf_8483_4772_8e79_3d69_d847_7de4);
const CHUNK_BYTES: u64 = 64 << 10;

/// Writes a raw image of `size_bytes` (whole MiB, 3 at least) to `path`: one partition, `ferric-tiny` by name under GPT,
/// from the first MiB to one MiB before the end. Its content is [`tiny_chunk`]; every fourth chunk is left zero.
pub fn tiny_raw(path: &Path, label: DiskLabel, size_bytes: u64) -> Result<()> {
    if size_bytes < 3 * MIB || !size_bytes.is_multiple_of(MIB) {
        bail!("a tiny image of {size_bytes} bytes: it needs whole MiB, 3 at least");
    }
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .with_context(|| format!("making {}", path.display()))?;
    file.set_len(size_bytes).with_context(|| format!("sizing {}", path.display()))?;
    write_table(&mut file, label, size_bytes).with_context(|| format!("labelling {}", path.display()))?;
    file.seek(SeekFrom::Start(PARTITION_START_BYTES))?;
    for index in 0..(size_bytes - 2 * MIB) / CHUNK_BYTES {
        match tiny_chunk(index) {
            Some(chunk) => file.write_all(&chunk).with_context(|| format!("writing {}", path.display()))?,
            None => {
                file.seek_relative(CHUNK_BYTES.cast_signed()).with_context(|| format!("writing {}", path.display()))?;
            }
        }
    }
    Ok(())
}

/// The 64 KiB at chunk `index` of the partition, or `None` where it is all zero. A chunk starts with its own number in
/// text; the rest does not compress to nothing, and differs from chunk to chunk, so that a chunk at a wrong place is seen.
#[must_use]
pub fn tiny_chunk(index: u64) -> Option<Vec<u8>> {
    if index % 4 == 3 {
        return None;
    }
    // One digest a kilobyte, repeated: quick to make in an unoptimised build.
    let mut chunk: Vec<u8> = (0..CHUNK_BYTES / 1024)
        .flat_map(|block| Sha256::digest((index << 16 | block).to_le_bytes()).repeat(32))
        .collect();
    let text = format!("ferric-tiny chunk {index}\n");
    if let Some(start) = chunk.get_mut(..text.len()) {
        start.copy_from_slice(text.as_bytes());
    }
    Some(chunk)
}

fn write_table(file: &mut File, label: DiskLabel, size_bytes: u64) -> Result<()> {
    let (first, end) = (PARTITION_START_BYTES / SECTOR, (size_bytes - MIB) / SECTOR);
    match label {
        DiskLabel::Gpt => {
            let mut gpt = gptman::GPT::new_from(file, SECTOR, DISK_GUID.to_bytes_le())?;
            gpt[1] = gptman::GPTPartitionEntry {
                partition_type_guid: TYPE_GUID.to_bytes_le(),
                unique_partition_guid: PARTITION_GUID.to_bytes_le(),
                starting_lba: first,
                ending_lba: end - 1,
                attribute_bits: 0,
                partition_name: "ferric-tiny".into(),
            };
            gptman::GPT::write_protective_mbr_into(file, SECTOR)?;
            gpt.write_into(file)?;
        }
        DiskLabel::Mbr => {
            let mut mbr = mbrman::MBR::new_from(file, 512, [0x1c, 0x41, 0xfe, 0x02])?;
            mbr[1] = mbrman::MBRPartitionEntry {
                boot: mbrman::BOOT_INACTIVE,
                first_chs: mbrman::CHS::empty(),
                sys: 0x83,
                last_chs: mbrman::CHS::empty(),
                starting_lba: u32::try_from(first)?,
                sectors: u32::try_from(end - first).context("the image is too large for an MBR")?,
            };
            mbr.write_into(file)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_has_its_size_table_and_content_and_is_reproducible() {
        let dir = tempfile::tempdir().unwrap();
        for label in [DiskLabel::Gpt, DiskLabel::Mbr] {
            let path = dir.path().join("tiny.raw");
            tiny_raw(&path, label, 4 * MIB).unwrap();
            let bytes = std::fs::read(&path).unwrap();
            assert_eq!(bytes.len(), 4 << 20, "{label:?}");
            assert!(bytes[1 << 20..].starts_with(b"ferric-tiny chunk 0\n"), "{label:?}");
            assert!(bytes[(1 << 20) + (64 << 10)..].starts_with(b"ferric-tiny chunk 1\n"), "{label:?}");
            assert!(bytes[(1 << 20) + (192 << 10)..(1 << 20) + (256 << 10)].iter().all(|byte| *byte == 0));
            let mut file = File::open(&path).unwrap();
            match label {
                DiskLabel::Gpt => {
                    let gpt = gptman::GPT::find_from(&mut file).unwrap();
                    assert_eq!((gpt[1].starting_lba, gpt[1].ending_lba), (2048, 6143));
                    assert_eq!(gpt[1].partition_name.to_string(), "ferric-tiny");
                }
                DiskLabel::Mbr => {
                    let mbr = mbrman::MBR::read_from(&mut file, 512).unwrap();
                    assert_eq!((mbr[1].starting_lba, mbr[1].sectors), (2048, 4096));
                }
            }
            tiny_raw(&path, label, 4 * MIB).unwrap();
            assert!(std::fs::read(&path).unwrap() == bytes, "{label:?} differs when made again");
        }
    }

    #[test]
    fn odd_sizes_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        for size in [0, MIB, 3 * MIB + 1] {
            assert!(tiny_raw(&dir.path().join("x"), DiskLabel::Gpt, size).is_err(), "{size}");
        }
    }
}
