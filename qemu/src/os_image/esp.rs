//! The EFI system partition: systemd-boot at the default path and at the distribution's own, its entry with kernel and
//! initramfs (Boot Loader Specification, type 1), and the `BOOTX64.CSV` from which agents take the label of the boot entry.
//!
//! systemd-boot and not GRUB, because Debian 12's GRUB for UEFI keeps a quarter of the memory as its heap and unpacks the
//! kernel there, which for this kernel (66.7 MB) takes a machine of more than 256 MB; with systemd-boot 192 MB do.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write as _};

use anyhow::{Context as _, Result};

use super::layout::Partition;
use super::system;

const VOLUME_ID: u32 = 0xFE44_1C0E;
/// Firmware reads a file cluster by cluster.
const CLUSTER_BYTES: u32 = 4096;
/// Label of the boot entry, as Debian's own shim package names it.
const CSV: &str = "systemd-bootx64.efi,debian,,This is the boot entry for debian\n";
const LOADER_CONFIG: &str = include_str!("../../assets/os-image/loader.conf");
const ENTRY: &str = include_str!("../../assets/os-image/loader-entry.conf");
/// The partition's fixed texts, part of the cache key.
pub(super) const TEXTS: &[&str] = &[CSV, LOADER_CONFIG, ENTRY];

/// The files of the partition: path and content.
pub(super) type Files = Vec<(String, Vec<u8>)>;

/// What goes onto the partition of a system with that kernel.
pub(super) fn files(release: &str, systemd_boot: Vec<u8>, kernel: Vec<u8>, initramfs: Vec<u8>) -> Files {
    let entry = ENTRY.replace("@RELEASE@", release).replace("@COMMAND_LINE@", &system::command_line());
    [
        ("EFI/BOOT/BOOTX64.EFI".to_owned(), systemd_boot.clone()),
        ("EFI/debian/systemd-bootx64.efi".to_owned(), systemd_boot),
        ("EFI/debian/BOOTX64.CSV".to_owned(), csv()),
        ("loader/loader.conf".to_owned(), LOADER_CONFIG.into()),
        (format!("loader/entries/debian-{release}.conf"), entry.into_bytes()),
        (format!("debian/{release}/linux"), kernel),
        (format!("debian/{release}/initrd.img"), initramfs),
    ]
    .into()
}

/// Makes the file system with `files` in `partition` of a disk with sectors of `sector_bytes`.
pub(super) fn make(disk: &mut File, partition: &Partition, sector_bytes: u32, files: &Files) -> Result<()> {
    let mut volume = tempfile::tempfile().context("making a file for the EFI system partition")?;
    volume.set_len(partition.size_bytes).context("sizing the EFI system partition")?;
    fill(&mut volume, sector_bytes, files).context("making the EFI system partition")?;
    volume.seek(SeekFrom::Start(0))?;
    copy_sparse(&mut volume, disk, partition.start_bytes).context("copying the EFI system partition into the image")
}

fn fill(volume: &mut File, sector_bytes: u32, files: &Files) -> Result<()> {
    let options = fatfs::FormatVolumeOptions::new()
        .bytes_per_sector(u16::try_from(sector_bytes)?)
        .bytes_per_cluster(CLUSTER_BYTES)
        .volume_id(VOLUME_ID)
        .volume_label(*b"ESP        ");
    fatfs::format_volume(&mut *volume, options)?;
    let fs = fatfs::FileSystem::new(volume, fatfs::FsOptions::new())?;
    let root = fs.root_dir();
    for (path, data) in files {
        for (slash, _) in path.match_indices('/') {
            let directory = path.get(..slash).unwrap_or_default();
            root.create_dir(directory).with_context(|| format!("making {directory}"))?;
        }
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
            let files = files("6.1", b"MZ boot".to_vec(), b"MZ kernel".to_vec(), b"initrd".to_vec());
            make(&mut disk, &partition, sector, &files).unwrap();
            let mut bytes = vec![0; 48 << 20];
            disk.seek(SeekFrom::Start(2 * MIB)).unwrap();
            disk.read_exact(&mut bytes).unwrap();
            assert_eq!(bytes[11..13], u16::try_from(sector).unwrap().to_le_bytes(), "bytes per sector");
            let fs = fatfs::FileSystem::new(std::io::Cursor::new(bytes), fatfs::FsOptions::new()).unwrap();
            for (path, wanted) in &files {
                let mut data = Vec::new();
                fs.root_dir().open_file(path).unwrap().read_to_end(&mut data).unwrap();
                assert_eq!(&data, wanted, "{path}, sectors of {sector}");
            }
        }
    }

    #[test]
    fn csv_is_utf16_with_mark_and_names_loader_and_label() {
        let bytes = csv();
        assert_eq!(bytes[..4], [0xFF, 0xFE, b's', 0]);
        let units: Vec<u16> = bytes[2..].chunks(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
        let text = String::from_utf16(&units).unwrap();
        assert!(text.starts_with("systemd-bootx64.efi,debian,,"), "{text}");
    }

    #[test]
    fn entry_names_kernel_initramfs_and_command_line() {
        let files = files("6.1.0-57-amd64", Vec::new(), Vec::new(), Vec::new());
        let (_, entry) = files.iter().find(|(path, _)| path == "loader/entries/debian-6.1.0-57-amd64.conf").unwrap();
        let entry = String::from_utf8(entry.clone()).unwrap();
        for key in ["linux", "initrd"] {
            let line = entry.lines().find(|line| line.starts_with(key)).unwrap();
            let path = line.split_whitespace().nth(1).unwrap().trim_start_matches('/');
            assert!(files.iter().any(|(file, _)| file == path), "{line}");
        }
        assert!(entry.contains("options root=UUID=") && !entry.contains('@'), "{entry}");
    }
}
