//! The boot loader that an image of one file system brings along, put on the EFI system partition (deploy section 9.3).
//!
//! It is copied, never run or installed by the image's own programs (CVE-2026-43003). The EFI system partition is written by
//! the `fatfs` crate, the image's own file system is mounted for as long as it takes.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use ferric_sys::block_dev::{BlockDev, BlockDevError};
use ferric_types::ErrorClass;
use rustix::fs::FileType;

use super::foreign::ImageRoot;
use crate::filesystem::Slice;
use crate::partition::identity;
use crate::table::{self, Partition};
use crate::volume::{self, VolumeError};

/// Where an image keeps what belongs on an EFI system partition.
const SOURCE: &str = "boot/efi/EFI";
/// Where GRUB's configuration is that a loader may lack.
const GRUB: [&str; 2] = ["boot/grub2", "boot/grub"];
/// Bounds for what is copied; its bytes are bounded by the room that there is.
const MAX_FILES: usize = 4096;
const MAX_DEPTH: u32 = 8;
/// More than any table of file systems takes.
const MAX_FSTAB_BYTES: u64 = 1 << 20;
const FSTAB: &str = "etc/fstab";

/// The boot loader was not copied.
#[derive(Debug, thiserror::Error)]
pub enum AssetsError {
    /// The root file system cannot be used.
    #[error("copying the image's boot loader to the EFI system partition")]
    Volume(#[from] VolumeError),
    /// The image brings no boot loader.
    #[error(
        "the image on {} has no directory /{SOURCE}, so that there is no boot loader to copy; its own installer is never \
         run (CVE-2026-43003)", path.display()
    )]
    NoLoader {
        /// Partition.
        path: PathBuf,
    },
    /// A file could not be copied.
    #[error("copying /{file} of the image to the EFI system partition {}", path.display())]
    Copy {
        /// EFI system partition.
        path: PathBuf,
        /// File of the image.
        file: String,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// The table of file systems could not be changed.
    #[error("adding the EFI system partition to /{FSTAB} of the image on {}", path.display())]
    Fstab {
        /// Partition.
        path: PathBuf,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// What was written did not reach the disk.
    #[error("writing the EFI system partition {}", path.display())]
    Flush {
        /// Partition.
        path: PathBuf,
        /// Reason.
        #[source]
        source: BlockDevError,
    },
}

impl AssetsError {
    /// Error class for the conductor.
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::Volume(error) => error.class(),
            Self::NoLoader { .. } => ErrorClass::InvalidImage,
            _ => ErrorClass::CommandExecution,
        }
    }
}

/// Mounts the root file system at `mount_point`, copies its boot loader to the EFI system partition, and names that in
/// the image's table of file systems. Gives the number of files.
///
/// # Errors
/// Any [`AssetsError`].
pub fn install(dev: &BlockDev, root: &Partition, esp: &Partition, mount_point: &Path) -> Result<usize, AssetsError> {
    let path = table::partition_path(dev.path(), root.number);
    let kind = volume::driver(&path, identity::identify(dev, root.start_bytes, root.size_bytes))?;
    volume::with_volume(&path, mount_point, kind, |image| {
        let copied = copy(image, &path, dev, esp)?;
        add_to_fstab(image, &fstab_source(dev, esp))
            .map_err(|source| AssetsError::Fstab { path: path.clone(), source })?;
        Ok(copied)
    })?
}

/// How the system finds the EFI system partition.
fn fstab_source(dev: &BlockDev, esp: &Partition) -> String {
    let inside = identity::identify(dev, esp.start_bytes, esp.size_bytes).and_then(|found| found.uuid);
    inside.map_or_else(
        || format!("PARTUUID={}", identity::partition_uuid(dev, esp).unwrap_or_default()),
        |uuid| format!("UUID={uuid}"),
    )
}

/// Copies the loaders of an image to the EFI system partition.
fn copy(image: &ImageRoot, path: &Path, dev: &BlockDev, esp: &Partition) -> Result<usize, AssetsError> {
    if !image.list(SOURCE, MAX_FILES).is_ok_and(|entries| !entries.is_empty()) {
        return Err(AssetsError::NoLoader { path: path.to_owned() });
    }
    let esp_path = table::partition_path(dev.path(), esp.number);
    let mut copying = Copying { image, path: &esp_path, files: 0 };
    let failed = |source| AssetsError::Copy { path: esp_path.clone(), file: SOURCE.to_owned(), source };
    let volume = Slice::writable(dev, esp.start_bytes, esp.size_bytes);
    let fs = fatfs::FileSystem::new(volume, fatfs::FsOptions::new().update_accessed_date(false)).map_err(failed)?;
    let target = fs.root_dir().create_dir("EFI").map_err(failed)?;
    copying.directory(SOURCE, &target, 0)?;
    let files = copying.files;
    drop(target);
    fs.unmount().map_err(failed)?;
    dev.flush().map_err(|source| AssetsError::Flush { path: esp_path.clone(), source })?;
    Ok(files)
}

struct Copying<'a> {
    image: &'a ImageRoot,
    path: &'a Path,
    files: usize,
}

type FatDir<'f, 'd> = fatfs::Dir<'f, Slice<'d>>;

impl Copying<'_> {
    fn failed(&self, file: &str) -> impl Fn(io::Error) -> AssetsError {
        let (path, file) = (self.path.to_owned(), file.to_owned());
        move |source| AssetsError::Copy { path: path.clone(), file: file.clone(), source }
    }

    fn directory(&mut self, from: &str, to: &FatDir<'_, '_>, depth: u32) -> Result<(), AssetsError> {
        let entries = self.image.list(from, MAX_FILES).map_err(self.failed(from))?;
        let mut names = Vec::new();
        for (name, kind) in entries {
            let source = format!("{from}/{name}");
            self.files += 1;
            if self.files > MAX_FILES || depth > MAX_DEPTH {
                let text = format!("more than {MAX_FILES} files, or deeper than {MAX_DEPTH} directories");
                return Err(self.failed(&source)(io::Error::other(text)));
            }
            match kind {
                FileType::Directory => {
                    let target = to.create_dir(&name).map_err(self.failed(&source))?;
                    self.directory(&source, &target, depth + 1)?;
                }
                FileType::RegularFile | FileType::Symlink | FileType::Unknown => {
                    match self.image.file(&source, false) {
                        Ok(mut file) => self.file(&source, &mut file, to, &name)?,
                        // Such as a link to nowhere: a loader that is missing shows soon enough.
                        Err(error) => tracing::warn!(file = source, %error, "not copied to the EFI system partition"),
                    }
                }
                _ => tracing::warn!(file = source, "not copied to the EFI system partition: no file"),
            }
            names.push(name.to_lowercase());
        }
        let has = |name: &str| names.iter().any(|known| known == name);
        if names.iter().any(|name| name.starts_with("grub") && name.ends_with(".efi")) {
            for name in ["grub.cfg", "grubenv"].into_iter().filter(|name| !has(name)) {
                self.grub_file(name, to)?;
            }
        }
        Ok(())
    }

    /// A file of GRUB that a loader has not beside it.
    fn grub_file(&mut self, name: &str, to: &FatDir<'_, '_>) -> Result<(), AssetsError> {
        for directory in GRUB {
            let source = format!("{directory}/{name}");
            if let Ok(mut file) = self.image.file(&source, false) {
                self.files += 1;
                return self.file(&source, &mut file, to, name);
            }
        }
        Ok(())
    }

    fn file(&self, source: &str, file: &mut dyn Read, to: &FatDir<'_, '_>, name: &str) -> Result<(), AssetsError> {
        let write = |file: &mut dyn Read| {
            let mut out = to.create_file(name)?;
            out.truncate()?;
            let mut buffer = vec![0; 64 << 10];
            loop {
                let len = file.read(&mut buffer)?;
                if len == 0 {
                    return out.flush();
                }
                out.write_all(buffer.get(..len).unwrap_or_default())?;
            }
        };
        write(file).map_err(self.failed(source))
    }
}

/// Adds the EFI system partition to the image's table of file systems, unless it is in there.
fn add_to_fstab(image: &ImageRoot, source: &str) -> io::Result<()> {
    let mut file = match image.file(FSTAB, true) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            tracing::warn!("the image has no /{FSTAB}: the EFI system partition is not added to it");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let mut table = Vec::new();
    (&mut file).take(MAX_FSTAB_BYTES + 1).read_to_end(&mut table)?;
    if u64::try_from(table.len()).is_ok_and(|len| len > MAX_FSTAB_BYTES) {
        return Err(io::Error::other(format!("it has more than {MAX_FSTAB_BYTES} bytes")));
    }
    let text = String::from_utf8_lossy(&table);
    if text.lines().any(|line| line.split_ascii_whitespace().next() == Some(source)) {
        return Ok(());
    }
    let newline = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    file.seek(SeekFrom::End(0))?;
    file.write_all(format!("{newline}{source}\t/boot/efi\tvfat\tumask=0077\t0\t1\n").as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests;
