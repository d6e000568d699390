//! The EFI system partition: a FAT file system with GRUB at the default path and at the distribution's own, and the
//! `BOOTX64.CSV` from which agents and the fallback loader take the label of the boot entry.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write as _};

use anyhow::{Context as _, Result};

use super::layout::Partition;

const VOLUME_ID: u32 = 0xFE44_1C0E;
/// Label of the boot entry, as Debian's own shim package names it.
const CSV: &str = "grubx64.efi,debian,,This is the boot entry for debian\n";

/// The bytes of the file system for `partition` on a disk with sectors of `sector_bytes`.
pub(super) fn make(disk: &mut File, partition: &Partition, sector_bytes: u32, grub: &[u8]) -> Result<()> {
    let mut volume = tempfile::tempfile().context("making a file for the EFI system partition")?;
    volume.set_len(partition.size_bytes).context("sizing the EFI system partition")?;
    fill(&mut volume, sector_bytes, grub).context("making the EFI system partition")?;
    volume.seek(SeekFrom::Start(0))?;
    copy_sparse(&mut volume, disk, partition.start_bytes).context("copying the EFI system partition into the image")
}

fn fill(volume: &mut File, sector_bytes: u32, grub: &[u8]) -> Result<()> {
    let options = fatfs::FormatVolumeOptions::new()
        .bytes_per_sector(u16::try_from(sector_bytes)?)
        .volume_id(VOLUME_ID)
        .volume_label(*b"ESP        ");
    fatfs::format_volume(&mut *volume, options)?;
    let fs = fatfs::FileSystem::new(volume, fatfs::FsOptions::new())?;
    let root = fs.root_dir();
    root.create_dir("EFI")?;
    root.create_dir("EFI/BOOT")?;
    root.create_dir("EFI/debian")?;
    let csv = csv();
    for (path, data) in
        [("EFI/BOOT/BOOTX64.EFI", grub), ("EFI/debian/grubx64.efi", grub), ("EFI/debian/BOOTX64.CSV", &csv)]
    {
        root.create_file(path)?.write_all(data).with_context(|| format!("writing {path}"))?;
    }
    drop(root);
    fs.unmount()?;
    Ok(())
}

/// UTF-16LE with a byte order mark, as shim's fallback program expects.
fn csv() -> Vec<u8> {
    std::iter::once(0xFEFF).chain(CSV.encode_utf16()).flat_map(u16::to_le_bytes).collect()
}

/// Copies all of `from` to `to` at `start_bytes`, leaving out blocks of zeros (the target is a fresh sparse file).
fn copy_sparse(from: &mut File, to: &mut File, start_bytes: u64) -> Result<()> {
    let mut block = vec![0u8; 64 << 10];
    let mut at = start_bytes;
    loop {
        let read = std::io::Read::read(from, &mut block)?;
        let Some(data) = block.get(..read).filter(|data| !data.is_empty()) else { return Ok(()) };
        if data.iter().any(|byte| *byte != 0) {
            to.seek(SeekFrom::Start(at))?;
            to.write_all(data)?;
        }
        at += u64::try_from(read)?;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::super::layout::{MIB, Role};
    use super::*;

    #[test]
    fn files_are_read_back_at_their_place_for_both_sector_sizes() {
        for sector in [512, 4096] {
            let partition = Partition { role: Role::Esp, start_bytes: 2 * MIB, size_bytes: 48 * MIB };
            let mut disk = tempfile::tempfile().unwrap();
            disk.set_len(64 * MIB).unwrap();
            make(&mut disk, &partition, sector, b"MZ grub").unwrap();
            let mut bytes = vec![0; 48 << 20];
            disk.seek(SeekFrom::Start(2 * MIB)).unwrap();
            disk.read_exact(&mut bytes).unwrap();
            assert_eq!(bytes[11..13], u16::try_from(sector).unwrap().to_le_bytes(), "bytes per sector");
            let fs = fatfs::FileSystem::new(std::io::Cursor::new(bytes), fatfs::FsOptions::new()).unwrap();
            for path in ["EFI/BOOT/BOOTX64.EFI", "EFI/debian/grubx64.efi"] {
                let mut data = Vec::new();
                fs.root_dir().open_file(path).unwrap().read_to_end(&mut data).unwrap();
                assert_eq!(data, b"MZ grub", "{path}, sectors of {sector}");
            }
        }
    }

    #[test]
    fn csv_is_utf16_with_mark_and_names_loader_and_label() {
        let bytes = csv();
        assert_eq!(bytes[..4], [0xFF, 0xFE, b'g', 0]);
        let units: Vec<u16> = bytes[2..].chunks(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
        let text = String::from_utf16(&units).unwrap();
        assert!(text.starts_with("grubx64.efi,debian,,"), "{text}");
    }
}
