//! Reading an EFI system partition: FAT, by the `fatfs` crate, without mounting it.

use std::io::{self, Read};

use ferric_sys::block_dev::BlockDev;

use super::csv::{self, CsvEntry};
use crate::filesystem::{self, Slice};

/// Loaders that are started directly, by their base name in lower case, and the architecture that each is for; empty for
/// any (deploy section 9.2).
const LOADERS: &[(&str, &str)] = &[
    ("bootia32.efi", "ia32"),
    ("bootx64.efi", "x64"),
    ("bootia64.efi", "ia64"),
    ("bootarm.efi", "arm"),
    ("bootaa64.efi", "aa64"),
    ("bootriscv32.efi", "riscv32"),
    ("bootriscv64.efi", "riscv64"),
    ("bootriscv128.efi", "riscv128"),
    ("bootloongarch64.efi", "loongarch64"),
    ("grubaa64.efi", "aa64"),
    ("winload.efi", ""),
];
/// Lists of loaders.
const LISTS: &[(&str, &str)] = &[
    ("bootia32.csv", "ia32"),
    ("bootx64.csv", "x64"),
    ("bootaa64.csv", "aa64"),
    ("bootriscv64.csv", "riscv64"),
    ("bootloongarch64.csv", "loongarch64"),
    ("boot.csv", ""),
];
/// Bounds for a hostile file system, which may hold loops.
const MAX_DEPTH: u32 = 6;
const MAX_ENTRIES: usize = 20_000;
const MAX_LISTS: usize = 64;
const MAX_LIST_BYTES: u64 = 64 * 1024;

/// A loader to make a boot entry for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loader {
    /// Path such as `\EFI\BOOT\BOOTX64.EFI`.
    pub path: String,
    /// Label, when a list gives one.
    pub label: Option<String>,
}

/// What an EFI system partition offers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Loaders for the machine.
    pub loaders: Vec<Loader>,
    /// Paths of loaders, or lists of them, for machines of another architecture; only told when there are no others.
    pub foreign: Vec<String>,
}

/// Finds loaders on a partition for firmware of an architecture ([`super::arch::suffix`]); for any when it is not known.
///
/// A list wins alone, one that names the architecture before one that does not, and among the same the first one met; but
/// one that names files that are not there counts for nothing (pitfall D3). Without a list every known loader counts.
///
/// # Errors
/// The partition is no FAT file system or cannot be read.
pub fn loaders(dev: &BlockDev, start_bytes: u64, size_bytes: u64, suffix: Option<&str>) -> io::Result<Found> {
    let fs = filesystem::fat(dev, start_bytes, size_bytes)?;
    let root = fs.root_dir();
    let mut walk = Walk { loaders: Vec::new(), lists: Vec::new(), entries: 0 };
    walk.directory(&root, "", 0)?;
    // What names the architecture first.
    walk.lists.sort_by_key(|list| list.arch.is_empty());
    let fits = |arch: &str| arch.is_empty() || suffix.is_none_or(|suffix| suffix == arch);
    for list in walk.lists.iter().filter(|list| fits(list.arch)) {
        let exists = |entry: &&CsvEntry| root.open_file(&slashed(&list.loader(entry))).is_ok();
        if let Some(entry) = list.entries.iter().find(exists) {
            let loader = Loader { path: list.loader(entry), label: Some(entry.label.clone()) };
            return Ok(Found { loaders: vec![loader], foreign: Vec::new() });
        }
        tracing::warn!(list = list.path(), "no loader that this list names is there: the list is left out");
    }
    let (own, foreign): (Vec<_>, Vec<_>) = walk.loaders.into_iter().partition(|(_, arch)| fits(arch));
    if !own.is_empty() {
        let loader = |(path, _)| Loader { path, label: None };
        return Ok(Found { loaders: own.into_iter().map(loader).collect(), foreign: Vec::new() });
    }
    let lists = walk.lists.iter().filter(|list| !fits(list.arch)).map(List::path);
    let foreign = foreign.into_iter().map(|(path, _)| path).chain(lists).collect();
    Ok(Found { loaders: Vec::new(), foreign })
}

/// A path as the FAT library takes it.
pub(super) fn slashed(path: &str) -> String {
    path.trim_start_matches('\\').replace('\\', "/")
}

/// A list of loaders and where it was found.
struct List {
    directory: String,
    name: String,
    arch: &'static str,
    entries: Vec<CsvEntry>,
}

impl List {
    fn path(&self) -> String {
        format!("{}\\{}", self.directory, self.name)
    }

    fn loader(&self, entry: &CsvEntry) -> String {
        format!("{}\\{}", self.directory, entry.loader.trim_start_matches(['\\', '/']))
    }
}

struct Walk {
    loaders: Vec<(String, &'static str)>,
    lists: Vec<List>,
    entries: usize,
}

impl Walk {
    fn directory(&mut self, dir: &fatfs::Dir<'_, Slice<'_>>, path: &str, depth: u32) -> io::Result<()> {
        for entry in dir.iter() {
            let entry = entry?;
            self.entries += 1;
            if self.entries > MAX_ENTRIES {
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
            let known = |names: &[(&str, &'static str)]| names.iter().find(|(name, _)| *name == lower).map(|row| row.1);
            if let Some(arch) = known(LISTS) {
                let mut bytes = Vec::new();
                entry.to_file().take(MAX_LIST_BYTES).read_to_end(&mut bytes)?;
                let entries = csv::entries(&bytes);
                if !entries.is_empty() && self.lists.len() < MAX_LISTS {
                    self.lists.push(List { directory: path.to_owned(), name, arch, entries });
                }
            } else if let Some(arch) = known(LOADERS) {
                self.loaders.push((full, arch));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use ferric_sys::block_dev::Access;
    use ferric_sys::testing::disk::TestDisk;
    use std::io::Write;

    /// A FAT file system of 40 MiB at 1 MiB of a disk, with files.
    pub(crate) fn esp(files: &[(&str, &[u8])]) -> TestDisk {
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

    fn found(disk: &TestDisk, suffix: Option<&str>) -> Found {
        loaders(&BlockDev::open(disk.path(), Access::Read).unwrap(), 1 << 20, 40 << 20, suffix).unwrap()
    }

    fn paths(disk: &TestDisk, suffix: Option<&str>) -> Vec<String> {
        found(disk, suffix).loaders.into_iter().map(|loader| loader.path).collect()
    }

    #[test]
    fn known_loaders_are_found_in_any_case_and_others_are_not() {
        let disk = esp(&[("EFI/BOOT/bootx64.EFI", b"MZ"), ("EFI/debian/shimx64.efi", b"MZ"), ("readme.txt", b"x")]);
        let want = Loader { path: "\\EFI\\BOOT\\bootx64.EFI".into(), label: None };
        assert_eq!(found(&disk, Some("x64")), Found { loaders: vec![want], foreign: vec![] });
    }

    #[test]
    fn a_list_wins_over_everything_else_whatever_the_case_of_its_name() {
        for (list, loader) in
            [("BOOTX64.CSV", "shimx64.efi"), ("bootx64.csv", "SHIMX64.EFI"), ("Boot.Csv", "shimx64.efi")]
        {
            let disk = esp(&[
                ("EFI/BOOT/BOOTX64.EFI", b"MZ"),
                (&format!("EFI/debian/{list}"), b"shimx64.efi,debian,,comment"),
                (&format!("EFI/debian/{loader}"), b"MZ"),
            ]);
            let want = Loader { path: "\\EFI\\debian\\shimx64.efi".into(), label: Some("debian".into()) };
            assert_eq!(found(&disk, Some("x64")).loaders, [want], "{list}");
        }
    }

    #[test]
    fn lists_and_loaders_are_chosen_by_architecture() {
        let disk = esp(&[
            ("EFI/a/BOOTAA64.CSV", b"shimaa64.efi,arm,,"),
            ("EFI/a/shimaa64.efi", b"MZ"),
            ("EFI/b/BOOT.CSV", b"any.efi,any,,"),
            ("EFI/b/any.efi", b"MZ"),
            ("EFI/c/BOOTX64.CSV", b"shimx64.efi,intel,,"),
            ("EFI/c/shimx64.efi", b"MZ"),
        ]);
        assert_eq!(paths(&disk, Some("x64")), ["\\EFI\\c\\shimx64.efi"]);
        assert_eq!(paths(&disk, Some("aa64")), ["\\EFI\\a\\shimaa64.efi"]);
        assert_eq!(paths(&disk, Some("riscv64")), ["\\EFI\\b\\any.efi"]);
        assert_eq!(paths(&disk, None), ["\\EFI\\a\\shimaa64.efi"]);
        let disk = esp(&[("EFI/BOOT/BOOTIA32.EFI", b"MZ"), ("EFI/BOOT/BOOTX64.EFI", b"MZ"), ("x/winload.efi", b"MZ")]);
        assert_eq!(paths(&disk, Some("x64")), ["\\EFI\\BOOT\\BOOTX64.EFI", "\\x\\winload.efi"]);
        assert_eq!(paths(&disk, Some("ia32")), ["\\EFI\\BOOT\\BOOTIA32.EFI", "\\x\\winload.efi"]);
        let disk =
            esp(&[("EFI/BOOT/BOOTAA64.EFI", b"MZ"), ("EFI/x/BOOTAA64.CSV", b"x.efi,x,,"), ("EFI/x/x.efi", b"MZ")]);
        let found = found(&disk, Some("x64"));
        let foreign = ["\\EFI\\BOOT\\BOOTAA64.EFI".to_owned(), "\\EFI\\x\\BOOTAA64.CSV".to_owned()];
        assert_eq!(found, Found { loaders: vec![], foreign: foreign.to_vec() });
    }

    #[test]
    fn a_list_that_names_nothing_that_is_there_is_left_out() {
        let disk = esp(&[("EFI/BOOT/BOOTX64.EFI", b"MZ"), ("EFI/a/BOOTX64.CSV", b"gone.efi,gone,,")]);
        assert_eq!(paths(&disk, Some("x64")), ["\\EFI\\BOOT\\BOOTX64.EFI"]);
        let disk = esp(&[("EFI/a/BOOTX64.CSV", b"gone.efi,gone,,\n\\there.efi,there,,"), ("EFI/a/there.efi", b"MZ")]);
        let want = Loader { path: "\\EFI\\a\\there.efi".into(), label: Some("there".into()) };
        assert_eq!(found(&disk, Some("x64")).loaders, [want]);
    }

    #[test]
    fn an_empty_partition_has_none_and_reading_changes_nothing() {
        let disk = esp(&[]);
        let before = std::fs::read(disk.path()).unwrap();
        assert_eq!(found(&disk, Some("x64")), Found::default());
        assert!(std::fs::read(disk.path()).unwrap() == before);
    }

    #[test]
    fn garbage_is_an_error_not_a_panic() {
        let disk = TestDisk::used(48 << 20).unwrap();
        let dev = BlockDev::open(disk.path(), Access::Read).unwrap();
        assert!(loaders(&dev, 1 << 20, 40 << 20, None).is_err());
    }
}
