//! Gets a kernel: fetches the distribution's package with apt and unpacks it into the cache.
//!
//! The kernel is never installed on the host, see `deb.rs`. Wanted names are resolved as apt would:
//! `linux-image-amd64` is a meta package whose only kernel dependency is the real one.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::deb;
use crate::profile::Profile;

/// Folder of the cache for kernel packages.
const CACHE: &str = "kernel";

/// Where a kernel may come from.
#[derive(Debug, Clone)]
pub enum Source {
    /// The package that the profile names, downloaded with apt.
    Package {
        /// Directory for downloads and unpacked packages.
        cache: PathBuf,
    },
    /// A package file.
    Deb {
        /// The `.deb` file.
        deb: PathBuf,
        /// Directory for unpacked packages.
        cache: PathBuf,
    },
    /// An unpacked package: `boot/vmlinuz-RELEASE` and `lib/modules/RELEASE`.
    Tree(PathBuf),
}

/// A kernel ready to be packed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Package name, or `local` for an unpacked tree.
    pub package: String,
    /// Package version; empty for an unpacked tree.
    pub version: String,
    /// What `uname -r` will print.
    pub release: String,
    /// The bootable kernel file.
    pub vmlinuz: PathBuf,
    /// The directory `lib/modules/RELEASE`.
    pub modules: PathBuf,
}

/// Gets the kernel from `source`.
pub fn obtain(source: &Source, profile: &Profile) -> Result<Kernel> {
    match source {
        Source::Tree(tree) => find(tree, "local", ""),
        Source::Deb { deb, cache } => {
            let (package, version) = deb::describe(deb)?;
            let tree = deb::unpacked_path(cache, CACHE, &package, &version);
            deb::unpack(deb, &tree)?;
            find(&tree, &package, &version)
        }
        Source::Package { cache } => {
            let (package, version) = resolve(&profile.kernel.package)?;
            find(&deb::obtain(cache, CACHE, &package, &version)?, &package, &version)
        }
    }
}

/// Finds kernel and modules in an unpacked package.
fn find(tree: &Path, package: &str, version: &str) -> Result<Kernel> {
    let parent = [tree.join("lib/modules"), tree.join("usr/lib/modules")]
        .into_iter()
        .find(|path| path.is_dir())
        .with_context(|| format!("{} has no lib/modules: is package {package} a kernel?", tree.display()))?;
    let mut releases = Vec::new();
    for entry in fs::read_dir(&parent).with_context(|| format!("listing {}", parent.display()))? {
        let entry = entry.with_context(|| format!("listing {}", parent.display()))?;
        releases.push(entry.file_name().to_string_lossy().into_owned());
    }
    let [release] = releases.as_slice() else {
        bail!("{} holds {} kernel releases, expected one", parent.display(), releases.len());
    };
    let vmlinuz = tree.join(format!("boot/vmlinuz-{release}"));
    ensure!(vmlinuz.is_file(), "{} has no boot/vmlinuz-{release}", tree.display());
    Ok(Kernel {
        package: package.to_owned(),
        version: version.to_owned(),
        release: release.clone(),
        vmlinuz,
        modules: parent.join(release),
    })
}

/// Follows a meta package to the kernel package it depends on; gives that package's name and candidate version.
fn resolve(name: &str) -> Result<(String, String)> {
    let mut package = name.to_owned();
    for _ in 0..4 {
        let record = show(&package)?;
        match kernel_dependency(&record) {
            Some(dependency) => package = dependency,
            None => {
                let version = deb::field(&record, "Version")
                    .with_context(|| format!("apt-cache show {package} printed no Version"))?;
                return Ok((package, version.to_owned()));
            }
        }
    }
    bail!("package {name} leads through more than four meta packages without reaching a kernel")
}

/// apt's record of the candidate version of `package`.
fn show(package: &str) -> Result<String> {
    let unknown =
        || format!("kernel package {package} is not known to apt; run `make setup`, or `apt-get update` if it is new");
    deb::show(&[package]).with_context(unknown)?.pop().with_context(unknown)
}

/// The kernel image that a meta package's record depends on, if it is one.
fn kernel_dependency(record: &str) -> Option<String> {
    // A real kernel package depends on tools only (kmod, initramfs-tools), a meta package on one linux-image.
    deb::field(record, "Depends")?
        .split(',')
        .filter_map(|dependency| dependency.split_whitespace().next())
        .find(|dependency| dependency.starts_with("linux-image-"))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const META: &str = "Package: linux-image-amd64\nVersion: 6.1.192-3\n\
        Depends: linux-image-6.1.0-57-amd64 (= 6.1.192-3)\nDescription: meta\n";
    const REAL: &str = "Package: linux-image-6.1.0-57-amd64\nVersion: 6.1.192-3\n\
        Depends: kmod, linux-base (>= 4.3~), initramfs-tools (>= 0.120+deb8u2) | linux-initramfs-tool\n";

    #[test]
    fn a_meta_package_leads_to_the_kernel_and_a_kernel_to_nothing() {
        assert_eq!(kernel_dependency(META).as_deref(), Some("linux-image-6.1.0-57-amd64"));
        assert_eq!(kernel_dependency(REAL), None);
        assert_eq!(kernel_dependency("Package: x\n"), None);
    }

    #[test]
    fn a_tree_without_a_kernel_says_what_is_missing() {
        let tree = tempfile::tempdir().unwrap();
        let text = |tree: &Path| format!("{:#}", find(tree, "pkg", "1").unwrap_err());
        assert!(text(tree.path()).contains("has no lib/modules: is package pkg a kernel?"));
        fs::create_dir_all(tree.path().join("lib/modules/6.1.0")).unwrap();
        assert!(text(tree.path()).contains("has no boot/vmlinuz-6.1.0"));
        fs::create_dir_all(tree.path().join("lib/modules/6.2.0")).unwrap();
        assert!(text(tree.path()).contains("holds 2 kernel releases"));
    }
}
