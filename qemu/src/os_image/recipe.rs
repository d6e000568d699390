//! Which image is wanted, and making it once: the cache around the build.

use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::convert::{self, Qcow2Kind};
use super::layout::{DiskLabel, Layout, MIB, Role};
use super::system::{self, Packages};
use super::{esp, ext4, grub, packages, tool};

/// Raised when the code that makes images changes what comes out of it.
const RECIPE_VERSION: u32 = 1;
const DEMO_BYTES: u64 = 1024 * MIB;

/// How an image file is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageFormat {
    /// The disk's bytes (a sparse file).
    Raw,
    /// qcow2.
    Qcow2(Qcow2Kind),
}

impl ImageFormat {
    /// Ironic's name of it: `raw` or `qcow2`.
    #[must_use]
    pub const fn disk_format(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2(_) => "qcow2",
        }
    }

    fn file_name(self) -> String {
        match self {
            Self::Raw => "disk.raw".to_owned(),
            Self::Qcow2(kind) => format!("disk.{}.qcow2", kind.name()),
        }
    }
}

/// A finished image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OsImage {
    /// The file.
    #[serde(skip)]
    pub path: PathBuf,
    /// SHA-256 of the file in hexadecimal: what Ironic's `os_hash_value` holds.
    pub sha256: String,
    /// Length of the file.
    pub size_bytes: u64,
    /// Size of the disk in it.
    pub virtual_size_bytes: u64,
}

/// What image is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// Partition table, and by that the firmware it starts under.
    pub label: DiskLabel,
    /// How the file is stored.
    pub format: ImageFormat,
    /// Size of the disk, in whole MiB.
    pub virtual_size_bytes: u64,
    /// 512, or 4096 for an image for 4Kn disks (UEFI only).
    pub sector_bytes: u32,
    /// Whether it also starts from an md array: its initramfs has `mdadm` then.
    pub software_raid: bool,
}

/// The image of the demonstration: 1 GiB virtual, 512 byte sectors. A GPT image starts under BIOS and UEFI alike.
pub fn demo_image(label: DiskLabel, format: ImageFormat, cache_dir: &Path) -> Result<OsImage> {
    Recipe::new(label, format).make(cache_dir)
}

impl Recipe {
    /// 1 GiB virtual, 512 byte sectors.
    #[must_use]
    pub const fn new(label: DiskLabel, format: ImageFormat) -> Self {
        Self { label, format, virtual_size_bytes: DEMO_BYTES, sector_bytes: 512, software_raid: false }
    }

    /// The image, from `cache_dir` when it is there. Several processes may ask for it at the same time.
    pub fn make(&self, cache_dir: &Path) -> Result<OsImage> {
        let layout = Layout::plan(self.label, self.virtual_size_bytes, self.sector_bytes)?;
        let dir = cache_dir.join("os-image").join(self.key());
        fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
        if let Some(image) = self.cached(&dir, self.format) {
            return Ok(image);
        }
        // One for all recipes: they share the cache of packages.
        let lock = cache_dir.join("os-image/lock");
        let lock = File::create(&lock).with_context(|| format!("making {}", lock.display()))?;
        lock.lock().context("waiting for another build of an operating system image")?;
        let raw = match self.cached(&dir, ImageFormat::Raw) {
            Some(raw) => raw,
            None => {
                let work = workspace(&dir)?;
                let disk = work.path().join("disk.raw");
                build(&layout, cache_dir, work.path(), &disk, self.software_raid)?;
                self.publish(&disk, &dir, ImageFormat::Raw)?
            }
        };
        match (self.format, self.cached(&dir, self.format)) {
            (ImageFormat::Raw, _) => Ok(raw),
            (_, Some(image)) => Ok(image),
            (ImageFormat::Qcow2(kind), None) => {
                let work = workspace(&dir)?;
                let file = work.path().join("disk.qcow2");
                convert::convert(&raw.path, kind, &file)?;
                self.publish(&file, &dir, self.format)
            }
        }
    }

    /// Names the content of the disk: everything that goes into it but the packages' versions, which are those of the first build.
    pub(super) fn key(&self) -> String {
        let mut hash = Sha256::new();
        let parts = [
            format!("{RECIPE_VERSION} {:?} {} {}", self.label, self.virtual_size_bytes, self.sector_bytes),
            packages::SYSTEM_PACKAGES.join(" "),
            system::STORAGE_MODULES.join(" "),
            system::SYSTEM_MODULES.join(" "),
            grub::config("-"),
        ];
        let raid = if self.software_raid { &[system::RAID_TEXT][..] } else { &[] };
        let texts = system::TEXTS.iter().chain(esp::TEXTS).chain(raid).copied();
        for part in parts.iter().map(String::as_str).chain(texts) {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        }
        hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }

    pub(super) fn cached(&self, dir: &Path, format: ImageFormat) -> Option<OsImage> {
        let path = dir.join(format.file_name());
        let facts = fs::read(facts_path(&path)).ok()?;
        let image: OsImage = serde_json::from_slice(&facts).ok()?;
        let whole = fs::metadata(&path).is_ok_and(|file| file.len() == image.size_bytes);
        whole.then_some(OsImage { path, ..image })
    }

    /// Moves a finished file into the cache; its facts are written last, and only what has them is used.
    pub(super) fn publish(&self, file: &Path, dir: &Path, format: ImageFormat) -> Result<OsImage> {
        let path = dir.join(format.file_name());
        let size_bytes = fs::metadata(file).with_context(|| format!("looking at {}", file.display()))?.len();
        let sha256 = tool::sha256_file(file)?;
        fs::rename(file, &path).with_context(|| format!("moving the image to {}", path.display()))?;
        let image = OsImage { path, sha256, size_bytes, virtual_size_bytes: self.virtual_size_bytes };
        let facts = facts_path(&image.path);
        fs::write(&facts, serde_json::to_vec(&image)?).with_context(|| format!("writing {}", facts.display()))?;
        Ok(image)
    }
}

fn facts_path(image: &Path) -> PathBuf {
    let mut name = image.as_os_str().to_owned();
    name.push(".json");
    name.into()
}

pub(super) fn workspace(dir: &Path) -> Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .prefix("work-")
        .tempdir_in(dir)
        .with_context(|| format!("making a folder in {}", dir.display()))
}

/// Makes the raw disk.
fn build(layout: &Layout, cache_dir: &Path, work: &Path, disk: &Path, software_raid: bool) -> Result<()> {
    let system = Packages::get(cache_dir, work, software_raid)?.install()?;
    let mut file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(disk)
        .with_context(|| format!("making {}", disk.display()))?;
    file.set_len(layout.disk_bytes).with_context(|| format!("sizing {}", disk.display()))?;
    let bios = grub::bios(layout, work)?;
    layout.write_table(&mut file, bios.as_ref().map_or(&[], |grub| &grub.boot_code))?;
    if let Some(grub) = bios {
        file.seek(SeekFrom::Start(grub.core_start_bytes))
            .and_then(|_| file.write_all(&grub.core))
            .context("writing GRUB's core image")?;
    }
    if let Some((_, partition)) = layout.partition(Role::Esp) {
        esp::make(&mut file, partition, layout.sector_bytes, &system.esp)?;
    }
    file.sync_all().with_context(|| format!("writing {}", disk.display()))?;
    drop(file);
    let staging = work.join("staging");
    fs::create_dir(&staging).with_context(|| format!("making {}", staging.display()))?;
    let (_, partition) = layout.root()?;
    ext4::make(disk, partition, &system.root, &staging)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_follows_what_is_on_the_disk_and_not_how_it_is_stored() {
        let base = Recipe::new(DiskLabel::Gpt, ImageFormat::Raw);
        assert_eq!(base.key().len(), 16);
        let stored = Recipe { format: ImageFormat::Qcow2(Qcow2Kind::Zstd), ..base.clone() };
        assert_eq!(base.key(), stored.key());
        for other in [
            Recipe { label: DiskLabel::Mbr, ..base.clone() },
            Recipe { virtual_size_bytes: 2048 * MIB, ..base.clone() },
            Recipe { sector_bytes: 4096, ..base.clone() },
            Recipe { software_raid: true, ..base.clone() },
        ] {
            assert_ne!(base.key(), other.key(), "{other:?}");
        }
    }

    #[test]
    fn published_image_is_found_again_and_a_damaged_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let recipe = Recipe::new(DiskLabel::Gpt, ImageFormat::Raw);
        assert_eq!(recipe.cached(dir.path(), ImageFormat::Raw), None);
        let file = dir.path().join("new");
        fs::write(&file, "abc").unwrap();
        let image = recipe.publish(&file, dir.path(), ImageFormat::Raw).unwrap();
        assert_eq!((image.size_bytes, image.virtual_size_bytes), (3, 1 << 30));
        assert_eq!(recipe.cached(dir.path(), ImageFormat::Raw), Some(image.clone()));
        assert_eq!(recipe.cached(dir.path(), ImageFormat::Qcow2(Qcow2Kind::Plain)), None);
        fs::write(&image.path, "ab").unwrap();
        assert_eq!(recipe.cached(dir.path(), ImageFormat::Raw), None);
    }

    #[test]
    fn impossible_recipe_fails_before_anything_is_fetched() {
        let dir = tempfile::tempdir().unwrap();
        let recipe = Recipe { virtual_size_bytes: MIB, ..Recipe::new(DiskLabel::Gpt, ImageFormat::Raw) };
        assert!(recipe.make(dir.path()).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
