//! Makes checksums right, which a fuzzer hardly ever guesses.

/// The footers at both ends of a VHD file and the header behind the first.
pub(super) fn vhd(file: &mut [u8]) {
    let len = file.len();
    for (from, size, at) in [(0, 512, 64), (512, 1024, 36), (len.saturating_sub(512), 512, 64)] {
        let Some(part) = file.get_mut(from..from + size).filter(|part| part.starts_with(b"c")) else { continue };
        part[at..at + 4].fill(0);
        let sum = part.iter().fold(0_u32, |sum, byte| sum.wrapping_add(u32::from(*byte)));
        part[at..at + 4].copy_from_slice(&(!sum).to_be_bytes());
    }
}

/// The headers of a GPT in the second and the last sector, and the entries that they point to.
pub(super) fn gpt(disk: &mut [u8], sector: usize) {
    for at in [sector, disk.len() - sector] {
        if !disk[at..].starts_with(b"EFI PART") {
            continue;
        }
        let word = |from: usize| u32::from_le_bytes(disk[at + from..at + from + 4].try_into().unwrap());
        let long = |from: usize| u64::from_le_bytes(disk[at + from..at + from + 8].try_into().unwrap());
        let from = usize::try_from(long(72)).ok().and_then(|lba| lba.checked_mul(sector));
        let len = usize::try_from(u64::from(word(80)) * u64::from(word(84))).unwrap_or(usize::MAX);
        let header_len = usize::try_from(word(12)).unwrap_or(usize::MAX).clamp(92, sector);
        let entries = from.and_then(|from| disk.get(from..)?.get(..len)).map(crc32fast::hash);
        if let Some(crc) = entries {
            disk[at + 88..at + 92].copy_from_slice(&crc.to_le_bytes());
        }
        disk[at + 16..at + 20].fill(0);
        let crc = crc32fast::hash(&disk[at..at + header_len]);
        disk[at + 16..at + 20].copy_from_slice(&crc.to_le_bytes());
    }
}
