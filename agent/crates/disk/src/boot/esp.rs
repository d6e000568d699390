//! Reading an EFI system partition: FAT, by the `fatfs` crate, without mounting it.

use std::io::{self, Read};

use ferric_sys::block_dev::BlockDev;

use super::csv;
use crate::filesystem::{self, Slice};

/// Loaders that are started directly, by their base name in lower case (deploy section 9.2).
const LOADERS: &[&str] = &[
    "bootia32.efi",
    "bootx64.efi",
    "bootia64.efi",
    "bootarm.efi",
    "bootaa64.efi",
    "bootriscv32.efi",
    "bootriscv64.efi",
    "bootriscv128.efi",
    "grubaa64.efi",
    "winload.efi",
];
/// Lists of loaders.
const LISTS: &[&str] = &["bootx64.csv", "bootaa64.csv", "boot.csv"];
/// Bounds for a hostile file system, which may hold loops.
const MAX_DEPTH: u32 = 6;
const MAX_ENTRIES: usize = 20_000;
const MAX_LIST_BYTES: u64 = 64 * 1024;

/// A loader to make a boot entry for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loader {
    /// Path such as `\EFI\BOOT\BOOTX64.EFI`.
    pub path: String,
    /// Label, when a list gives one.
    pub label: Option<String>,
}

/// Finds loaders on a partition. The first list met wins alone; else every known loader counts.
///
/// # Errors
/// The partition is no FAT file system or cannot be read.
pub fn loaders(dev: &BlockDev, start_bytes: u64, size_bytes: u64) -> io::Result<Vec<Loader>> {
    let fs = filesystem::fat(dev, start_bytes, size_bytes)?;
    let mut walk = Walk { loaders: Vec::new(), list: None, entries: 0 };
    walk.directory(&fs.root_dir(), "", 0)?;
    Ok(walk.list.map_or(walk.loaders, |loader| vec![loader]))
}

struct Walk {
    loaders: Vec<Loader>,
    list: Option<Loader>,
    entries: usize,
}

impl Walk {
    fn directory(&mut self, dir: &fatfs::Dir<'_, Slice<'_>>, path: &str, depth: u32) -> io::Result<()> {
        for entry in dir.iter() {
            let entry = entry?;
            self.entries += 1;
            if self.entries > MAX_ENTRIES || self.list.is_some() {
                return Ok(());
            }
            let name = entry.file_name();
            if name == "." || name == ".." {
                continue;
            }
            let full = format!("{path}\\{name}");
            if entry.is_dir() {
                if depth < MAX_DEPTH {
                    self.directory(&entry.to_dir(), &full, depth + 1)?;
                }
                continue;
            }
            let lower = name.to_lowercase();
            if LISTS.contains(&lower.as_str()) {
                let mut bytes = Vec::new();
                entry.to_file().take(MAX_LIST_BYTES).read_to_end(&mut bytes)?;
                if let Some(found) = csv::first(&bytes) {
                    let path = format!("{path}\\{}", found.loader);
                    self.list = Some(Loader { path, label: Some(found.label) });
                }
            } else if LOADERS.contains(&lower.as_str()) {
                self.loaders.push(Loader { path: full, label: None });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_sys::block_dev::Access;
    use ferric_sys::testing::disk::TestDisk;
    use std::io::Write;

    /// A FAT file system of 40 MiB at 1 MiB of a disk, with files.
    fn esp(files: &[(&str, &[u8])]) -> TestDisk {
        let disk = TestDisk::zeroed(48 << 20).unwrap();
        let mut image = io::Cursor::new(vec![0_u8; 40 << 20]);
        fatfs::format_volume(&mut image, fatfs::FormatVolumeOptions::new()).unwrap();
        {
            let fs = fatfs::FileSystem::new(&mut image, fatfs::FsOptions::new()).unwrap();
            for (path, content) in files {
                let mut dir = fs.root_dir();
                let parts: Vec<&str> = path.split('/').collect();
                let (name, parents) = parts.split_last().unwrap();
                for parent in parents {
                    dir = dir.create_dir(parent).unwrap();
                }
                dir.create_file(name).unwrap().write_all(content).unwrap();
            }
        }
        let dev = BlockDev::open(disk.path(), Access::Write).unwrap();
        dev.write_at(1 << 20, image.get_ref()).unwrap();
        disk
    }

    fn found(disk: &TestDisk) -> Vec<Loader> {
        loaders(&BlockDev::open(disk.path(), Access::Read).unwrap(), 1 << 20, 40 << 20).unwrap()
    }

    #[test]
    fn known_loaders_are_found_in_any_case_and_others_are_not() {
        let disk = esp(&[("EFI/BOOT/bootx64.EFI", b"MZ"), ("EFI/debian/shimx64.efi", b"MZ"), ("readme.txt", b"x")]);
        assert_eq!(found(&disk), [Loader { path: "\\EFI\\BOOT\\bootx64.EFI".into(), label: None }]);
    }

    #[test]
    fn a_list_wins_over_everything_else() {
        let disk = esp(&[("EFI/BOOT/BOOTX64.EFI", b"MZ"), ("EFI/debian/BOOTX64.CSV", b"shimx64.efi,debian,,comment")]);
        assert_eq!(found(&disk), [Loader { path: "\\EFI\\debian\\shimx64.efi".into(), label: Some("debian".into()) }]);
    }

    #[test]
    fn an_empty_partition_has_none_and_reading_changes_nothing() {
        let disk = esp(&[]);
        let before = std::fs::read(disk.path()).unwrap();
        assert_eq!(found(&disk), []);
        assert!(std::fs::read(disk.path()).unwrap() == before);
    }

    #[test]
    fn garbage_is_an_error_not_a_panic() {
        let disk = TestDisk::used(48 << 20).unwrap();
        let dev = BlockDev::open(disk.path(), Access::Read).unwrap();
        assert!(loaders(&dev, 1 << 20, 40 << 20).is_err());
    }
}
