//! The place where firmware looks when it has no boot entry: `\EFI\BOOT\BOOTX64.EFI` and its like (UEFI specification 2.10,
//! section 3.5.1.1). It is what remains when the firmware's variables cannot be written (pitfall D5).

use std::io::{self, Read as _, Write as _};

use ferric_sys::block_dev::{Access, BlockDev};

use super::esp::{Loader, slashed};
use crate::filesystem::Slice;

/// Bound for what is copied beside a loader; its bytes are bounded by the room that there is.
const MAX_FILES: usize = 64;

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fallback {
    /// Path of the loader that the firmware will find.
    pub path: String,
    /// Whether the image had none there, so that one was copied.
    pub copied: bool,
}

/// Makes sure that firmware of an architecture finds a loader without a boot entry. Where the image has none in that place
/// its own is copied there, with the files beside it that it may load.
///
/// # Errors
/// The partition cannot be read or written, or has no room. No loader in that place is then left half copied.
pub fn ensure(
    disk: &std::path::Path,
    (start_bytes, size_bytes): (u64, u64),
    loader: &Loader,
    suffix: &str,
) -> io::Result<Fallback> {
    let dev = BlockDev::open(disk, Access::Write).map_err(io::Error::other)?;
    let name = format!("BOOT{}.EFI", suffix.to_uppercase());
    let path = format!("\\EFI\\BOOT\\{name}");
    let volume = Slice::writable(&dev, start_bytes, size_bytes);
    let fs = fatfs::FileSystem::new(volume, fatfs::FsOptions::new().update_accessed_date(false))?;
    if fs.root_dir().open_file(&slashed(&path)).is_ok() {
        return Ok(Fallback { path, copied: false });
    }
    let copied = copy(&fs, &slashed(&loader.path), &name);
    fs.unmount()?;
    dev.flush().map_err(io::Error::other)?;
    copied.map(|()| Fallback { path, copied: true })
}

type Fat<'d> = fatfs::FileSystem<Slice<'d>>;

/// Copies the files beside a loader, and the loader itself last.
fn copy(fs: &Fat<'_>, loader: &str, name: &str) -> io::Result<()> {
    let root = fs.root_dir();
    let (directory, own) = loader.rsplit_once('/').unwrap_or(("", loader));
    let from = if directory.is_empty() { fs.root_dir() } else { root.open_dir(directory)? };
    let to = root.create_dir("EFI")?.create_dir("BOOT")?;
    let mut names = Vec::new();
    // What lies in the root of the partition belongs to nobody in particular.
    for entry in from.iter().filter(|_| !directory.is_empty()) {
        let entry = entry?;
        let other = entry.file_name();
        if entry.is_file() && goes_along(&other.to_lowercase()) && !other.eq_ignore_ascii_case(own) {
            names.push(other);
        }
        if names.len() > MAX_FILES {
            return Err(io::Error::other(format!("more than {MAX_FILES} files are beside {loader}")));
        }
    }
    for other in names.iter().filter(|other| to.open_file(other).is_err()) {
        copy_file(&from, other, &to, other)?;
    }
    copy_file(&from, own, &to, name)
}

/// Whether a loader may want a file in its new place. Lists of loaders are not for there; and shim's fallback program would
/// try to write the very variables that cannot be written.
fn goes_along(name: &str) -> bool {
    let is = |ending: &str| name.ends_with(ending);
    !(is(".csv") || name.starts_with("fb") && is(".efi"))
}

type FatDir<'f, 'd> = fatfs::Dir<'f, Slice<'d>>;

fn copy_file(from: &FatDir<'_, '_>, source: &str, to: &FatDir<'_, '_>, target: &str) -> io::Result<()> {
    let copied = || {
        let mut input = from.open_file(source)?;
        let mut output = to.create_file(target)?;
        output.truncate()?;
        let mut buffer = vec![0; 64 << 10];
        loop {
            let len = input.read(&mut buffer)?;
            if len == 0 {
                return output.flush();
            }
            output.write_all(buffer.get(..len).unwrap_or_default())?;
        }
    };
    copied().inspect_err(|_| {
        // A part of a loader is worse than none.
        let _removed = to.remove(target);
    })
}

#[cfg(test)]
mod tests {
    use super::super::esp::tests::esp;
    use super::*;
    use ferric_sys::testing::disk::TestDisk;

    const PLACE: (u64, u64) = (1 << 20, 40 << 20);

    fn run(disk: &TestDisk, loader: &str) -> io::Result<Fallback> {
        ensure(disk.path(), PLACE, &Loader { path: loader.to_owned(), label: None }, "x64")
    }

    fn read(disk: &TestDisk, path: &str) -> Option<Vec<u8>> {
        let dev = BlockDev::open(disk.path(), Access::Read).unwrap();
        let fs = crate::filesystem::fat(&dev, PLACE.0, PLACE.1).unwrap();
        let mut bytes = Vec::new();
        fs.root_dir().open_file(path).ok()?.read_to_end(&mut bytes).unwrap();
        Some(bytes)
    }

    #[test]
    fn a_loader_that_is_in_place_stays_as_it_is() {
        let disk = esp(&[("EFI/Boot/bootx64.efi", b"MZ own"), ("EFI/debian/shimx64.efi", b"MZ shim")]);
        let fallback = run(&disk, "\\EFI\\debian\\shimx64.efi").unwrap();
        assert_eq!(fallback, Fallback { path: "\\EFI\\BOOT\\BOOTX64.EFI".into(), copied: false });
        assert_eq!(read(&disk, "EFI/BOOT/BOOTX64.EFI").unwrap(), b"MZ own");
    }

    #[test]
    fn a_missing_loader_is_copied_with_what_it_may_load() {
        let large = vec![7; 3 << 20];
        let disk = esp(&[
            ("EFI/debian/shimx64.efi", &large),
            ("EFI/debian/grubx64.efi", b"MZ grub"),
            ("EFI/debian/fbx64.efi", b"MZ fallback"),
            ("EFI/debian/BOOTX64.CSV", b"shimx64.efi,debian,,"),
            ("EFI/debian/grub.cfg", b"new"),
            ("EFI/debian/deep/er.efi", b"MZ"),
            ("EFI/BOOT/grub.cfg", b"kept"),
        ]);
        assert!(run(&disk, "\\EFI\\debian\\shimx64.efi").unwrap().copied);
        assert!(read(&disk, "EFI/BOOT/BOOTX64.EFI").unwrap() == large);
        assert_eq!(read(&disk, "EFI/BOOT/grubx64.efi").unwrap(), b"MZ grub");
        assert_eq!(read(&disk, "EFI/BOOT/grub.cfg").unwrap(), b"kept");
        for name in ["fbx64.efi", "BOOTX64.CSV", "shimx64.efi", "er.efi"] {
            assert_eq!(read(&disk, &format!("EFI/BOOT/{name}")), None, "{name}");
        }
        let disk = esp(&[("winload.efi", b"MZ root"), ("secret.txt", b"x")]);
        assert!(run(&disk, "\\winload.efi").unwrap().copied);
        assert_eq!(read(&disk, "EFI/BOOT/BOOTX64.EFI").unwrap(), b"MZ root");
        assert_eq!(read(&disk, "EFI/BOOT/secret.txt"), None);
    }

    #[test]
    fn without_room_no_loader_is_left_half_copied() {
        let disk = esp(&[("EFI/a/huge.efi", &vec![7; 21 << 20])]);
        assert!(run(&disk, "\\EFI\\a\\huge.efi").is_err());
        assert_eq!(read(&disk, "EFI/BOOT/BOOTX64.EFI"), None);
        assert!(run(&disk, "\\EFI\\a\\nothing.efi").is_err());
        assert!(run(&TestDisk::used(48 << 20).unwrap(), "\\x.efi").is_err());
    }
}
