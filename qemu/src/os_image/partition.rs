//! The same system as an image of one file system, as Ironic's partition images are: ext4, with a unified kernel image
//! under `/boot/efi/EFI` for the ESP that the deployment makes.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use ferric_image_build::cpio::Node;

use super::layout::{DiskLabel, MIB, Partition, Role};
use super::recipe::{ImageFormat, OsImage, Recipe, workspace};
use super::system::{self, Packages};
use super::{ext4, uki};

/// Raised when the code here changes what comes out of it.
const VERSION: u32 = 1;
/// Size of the file system.
const SIZE_BYTES: u64 = 256 * MIB;
/// Label and place of the boot entry that a deployment makes.
pub const PARTITION_IMAGE_LABEL: &str = "ferric-partition";
/// Path of the loader on the ESP.
pub const PARTITION_IMAGE_LOADER: &str = r"\EFI\ferric\linuxx64.efi";

/// UUID of the file system in a partition image.
pub const PARTITION_IMAGE_UUID: &str = ext4::ROOT_UUID;

/// A raw image of the system's root file system, from `cache_dir` when it is there.
pub fn partition_image(cache_dir: &Path) -> Result<OsImage> {
    let recipe = Recipe { virtual_size_bytes: SIZE_BYTES, ..Recipe::new(DiskLabel::Gpt, ImageFormat::Raw) };
    let dir = cache_dir.join("os-image").join(format!("partition-{VERSION}-{}", recipe.key()));
    fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
    let lock = cache_dir.join("os-image/lock");
    let lock = File::create(&lock).with_context(|| format!("making {}", lock.display()))?;
    lock.lock().context("waiting for another build of an operating system image")?;
    if let Some(image) = recipe.cached(&dir, ImageFormat::Raw) {
        return Ok(image);
    }
    let work = workspace(&dir)?;
    let file = work.path().join("root.raw");
    build(cache_dir, work.path(), &file)?;
    recipe.publish(&file, &dir, ImageFormat::Raw)
}

fn build(cache_dir: &Path, work: &Path, file: &Path) -> Result<()> {
    let packages = Packages::get(cache_dir, work, false)?;
    let mut system = packages.install()?;
    let part = |ending: &str| {
        let found = system.esp.iter().find(|(path, _)| path.ends_with(ending));
        found.map(|(_, bytes)| bytes.clone()).ok_or_else(|| anyhow!("the system has no {ending}"))
    };
    let (kernel, initramfs, command_line) = (part("/linux")?, part("/initrd.img")?, system::command_line());
    let sections =
        [(".cmdline", command_line.as_bytes()), (".linux", kernel.as_slice()), (".initrd", initramfs.as_slice())];
    let loader = uki::add_sections(&packages.stub()?, &sections).context("making a unified kernel image")?;
    // No byte order mark and upper case, as some distributions have it.
    let list = format!("linuxx64.efi,{PARTITION_IMAGE_LABEL},,This is the boot entry for Ferric\n");
    let list: Vec<u8> = list.encode_utf16().flat_map(u16::to_le_bytes).collect();
    for (path, bytes) in [("linuxx64.efi", loader), ("BOOTX64.CSV", list)] {
        system.root.add(&format!("boot/efi/EFI/ferric/{path}"), Node::file(0o700, bytes))?;
    }
    let disk = File::create_new(file).with_context(|| format!("making {}", file.display()))?;
    disk.set_len(SIZE_BYTES).with_context(|| format!("sizing {}", file.display()))?;
    let staging = work.join("staging");
    fs::create_dir(&staging).with_context(|| format!("making {}", staging.display()))?;
    let partition = Partition { role: Role::Root, start_bytes: 0, size_bytes: SIZE_BYTES };
    ext4::make(file, &partition, &system.root, &staging)
}
