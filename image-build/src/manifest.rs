//! `manifest.json`: every file, module, version and size in an image.

use anyhow::{Context, Result};
use serde::Serialize;

use crate::byte_count;
use crate::cpio::{Archive, Node};
use crate::kernel::Kernel;
use crate::kmods::Selection;
use crate::profile::Profile;
use crate::programs::{Package, Programs};
use crate::sums::sha256_hex;

/// Raised when a reader of the manifest would have to change.
const FORMAT: u32 = 1;

/// What is in an image.
#[derive(Debug, Clone, Serialize)]
pub struct Manifest {
    /// Version of this document's form.
    pub format: u32,
    /// Profile name.
    pub profile: String,
    /// What the profile is for.
    pub description: String,
    /// Version of Ferric that made the image.
    pub ferric_version: String,
    /// The profile's limit for kernel and initramfs together.
    pub budget_bytes: Option<u64>,
    /// The kernel.
    pub kernel: KernelEntry,
    /// The agent binary.
    pub agent: FileSum,
    /// The finished files.
    pub images: Vec<FileSum>,
    /// Packed modules by name.
    pub modules: Vec<ModuleEntry>,
    /// Wanted modules that are part of the kernel itself.
    pub builtin: Vec<String>,
    /// Distribution packages whose programs and libraries are in the ramdisk. Their licence texts are in `licenses.txt`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub packages: Vec<PackageEntry>,
    /// Everything in the ramdisk, in the order of the archive.
    pub files: Vec<FileEntry>,
}

/// A distribution package in an image.
#[derive(Debug, Clone, Serialize)]
pub struct PackageEntry {
    /// Name.
    pub name: String,
    /// Version.
    pub version: String,
    /// Name and version of its source package.
    pub source: String,
    /// Short names of its licences, where it gives them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub licenses: Vec<String>,
    /// Size of its files in bytes, before compression.
    pub size_bytes: u64,
    /// Paths in the ramdisk.
    pub files: Vec<String>,
}

/// The kernel in an image.
#[derive(Debug, Clone, Serialize)]
pub struct KernelEntry {
    /// Distribution package.
    pub package: String,
    /// Package version.
    pub version: String,
    /// What `uname -r` prints.
    pub release: String,
}

/// A file with its size and checksum.
#[derive(Debug, Clone, Serialize)]
pub struct FileSum {
    /// File name, or path in the ramdisk.
    pub name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// SHA-256 in hexadecimal.
    pub sha256: String,
}

/// A packed kernel module.
#[derive(Debug, Clone, Serialize)]
pub struct ModuleEntry {
    /// Name as `/proc/modules` has it.
    pub name: String,
    /// Path below `lib/modules/RELEASE`.
    pub path: String,
    /// The module's own version, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Modules loaded before it.
    pub needs: Vec<String>,
    /// Firmware it may ask for; not in the image.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub firmware: Vec<String>,
}

/// One thing in the ramdisk.
#[derive(Debug, Clone, Serialize)]
pub struct FileEntry {
    /// Path in the ramdisk.
    pub path: String,
    /// `file`, `directory`, `symlink` or `character device`.
    pub kind: &'static str,
    /// Permission bits in octal.
    pub mode: String,
    /// Size in bytes of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// SHA-256 of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Where a symbolic link points.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// The finished parts that a manifest describes.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    /// The agent binary.
    pub agent: &'a [u8],
    /// The kernel.
    pub vmlinuz: &'a [u8],
    /// The compressed initramfs.
    pub initramfs: &'a [u8],
}

impl Manifest {
    /// Describes an image.
    pub fn new(
        profile: &Profile,
        kernel: &Kernel,
        (selection, programs): (&Selection, &Programs),
        archive: &Archive,
        parts: Parts<'_>,
    ) -> Self {
        let modules = selection.modules.iter().map(|(name, module)| ModuleEntry {
            name: name.clone(),
            path: module.path.clone(),
            version: module.info.version.clone(),
            size_bytes: byte_count(&module.bytes),
            needs: module.needs.clone(),
            firmware: module.info.firmware.clone(),
        });
        Self {
            format: FORMAT,
            profile: profile.name.clone(),
            description: profile.description.clone(),
            ferric_version: env!("CARGO_PKG_VERSION").to_owned(),
            budget_bytes: profile.budget_bytes,
            kernel: KernelEntry {
                package: kernel.package.clone(),
                version: kernel.version.clone(),
                release: kernel.release.clone(),
            },
            agent: FileSum::of("init", parts.agent),
            images: vec![FileSum::of("initramfs.img", parts.initramfs), FileSum::of("vmlinuz", parts.vmlinuz)],
            modules: modules.collect(),
            builtin: selection.builtin.keys().cloned().collect(),
            packages: programs.packages.iter().map(|package| PackageEntry::of(package, programs)).collect(),
            files: archive.nodes().map(|(path, node)| FileEntry::of(path, node)).collect(),
        }
    }

    /// The manifest as indented JSON, ending in a line break.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        let mut json = serde_json::to_vec_pretty(self).context("writing the manifest as JSON")?;
        json.push(b'\n');
        Ok(json)
    }
}

impl FileSum {
    fn of(name: &str, bytes: &[u8]) -> Self {
        Self { name: name.to_owned(), size_bytes: byte_count(bytes), sha256: sha256_hex(bytes) }
    }
}

impl PackageEntry {
    fn of(package: &Package, programs: &Programs) -> Self {
        let sizes = package.files.iter().filter_map(|path| programs.files.get(path)).map(|node| match node {
            Node::File { bytes, .. } => byte_count(bytes),
            _ => 0,
        });
        Self {
            name: package.name.clone(),
            version: package.version.clone(),
            source: package.source.clone(),
            licenses: package.licenses().into_iter().map(str::to_owned).collect(),
            size_bytes: sizes.sum(),
            files: package.files.clone(),
        }
    }
}

impl FileEntry {
    fn of(path: &str, node: &Node) -> Self {
        let (kind, content, target) = match node {
            Node::File { bytes, .. } => ("file", Some(bytes), None),
            Node::Directory { .. } => ("directory", None, None),
            Node::Symlink { target } => ("symlink", None, Some(target.clone())),
            Node::CharDevice { .. } => ("character device", None, None),
        };
        Self {
            path: path.to_owned(),
            kind,
            mode: format!("{:04o}", node.mode()),
            size_bytes: content.map(|bytes| byte_count(bytes)),
            sha256: content.map(|bytes| sha256_hex(bytes)),
            target,
        }
    }
}
