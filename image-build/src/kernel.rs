//! Gets a kernel: fetches the distribution's package with apt and unpacks it into the cache.
//!
//! The kernel is never installed on the host, and nothing here needs root: `apt-get download` checks the archive's
//! signatures and writes to the current directory, `dpkg-deb -x` only unpacks. Wanted names are resolved as apt would:
//! `linux-image-amd64` is a meta package whose only kernel dependency is the real one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::profile::Profile;

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
            let (package, version) = describe_deb(deb)?;
            let tree = unpack(deb, cache, &package, &version)?;
            find(&tree, &package, &version)
        }
        Source::Package { cache } => {
            let (package, version) = resolve(&profile.kernel.package)?;
            let tree = unpacked_path(cache, &package, &version);
            if !tree.is_dir() {
                let deb = download(cache, &package, &version)?;
                unpack(&deb, cache, &package, &version)?;
                fs::remove_file(&deb).with_context(|| format!("removing {}", deb.display()))?;
            }
            find(&tree, &package, &version)
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
                let version = field(&record, "Version")
                    .with_context(|| format!("apt-cache show {package} printed no Version"))?;
                return Ok((package, version.to_owned()));
            }
        }
    }
    bail!("package {name} leads through more than four meta packages without reaching a kernel")
}

/// apt's record of the candidate version of `package`.
fn show(package: &str) -> Result<String> {
    run(Command::new("apt-cache").args(["show", "--no-all-versions", "--", package])).with_context(|| {
        format!("kernel package {package} is not known to apt; run `make setup`, or `apt-get update` if it is new")
    })
}

/// The kernel image that a meta package's record depends on, if it is one.
fn kernel_dependency(record: &str) -> Option<String> {
    // A real kernel package depends on tools only (kmod, initramfs-tools), a meta package on one linux-image.
    field(record, "Depends")?
        .split(',')
        .filter_map(|dependency| dependency.split_whitespace().next())
        .find(|dependency| dependency.starts_with("linux-image-"))
        .map(str::to_owned)
}

/// The value of a one-line field in a package record (deb822).
fn field<'a>(record: &'a str, name: &str) -> Option<&'a str> {
    record.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Downloads one package version into the cache.
fn download(cache: &Path, package: &str, version: &str) -> Result<PathBuf> {
    let directory = cache.join("download");
    // A leftover of an interrupted download must not be taken for the package.
    if directory.exists() {
        fs::remove_dir_all(&directory).with_context(|| format!("removing {}", directory.display()))?;
    }
    fs::create_dir_all(&directory).with_context(|| format!("creating {}", directory.display()))?;
    // Started by root, apt drops its privileges for downloads and then could not write here.
    let mut apt = Command::new("apt-get");
    apt.args(["--quiet", "--option", "APT::Sandbox::User=root", "download"]);
    run(apt.arg(format!("{package}={version}")).current_dir(&directory))
        .with_context(|| format!("downloading package {package} {version}"))?;
    let mut debs = fs::read_dir(&directory).with_context(|| format!("listing {}", directory.display()))?;
    let deb = debs.next().with_context(|| format!("apt-get download left no file for {package}"))?;
    Ok(deb.with_context(|| format!("listing {}", directory.display()))?.path())
}

/// Name and version in a package file.
fn describe_deb(deb: &Path) -> Result<(String, String)> {
    let record = run(Command::new("dpkg-deb").arg("--field").arg(deb).args(["Package", "Version"]))
        .with_context(|| format!("reading package {}", deb.display()))?;
    let get = |name| field(&record, name).with_context(|| format!("{} has no {name}", deb.display()));
    Ok((get("Package")?.to_owned(), get("Version")?.to_owned()))
}

fn unpacked_path(cache: &Path, package: &str, version: &str) -> PathBuf {
    // A version's epoch colon and tilde are fine in a file name, a slash cannot occur (deb-version(7)).
    cache.join("kernel").join(format!("{package}_{version}"))
}

/// Unpacks `deb` into the cache and gives the directory. An interrupted run leaves nothing under the final name.
fn unpack(deb: &Path, cache: &Path, package: &str, version: &str) -> Result<PathBuf> {
    let target = unpacked_path(cache, package, version);
    if target.is_dir() {
        return Ok(target);
    }
    let partial = target.with_extension("partial");
    if partial.exists() {
        fs::remove_dir_all(&partial).with_context(|| format!("removing {}", partial.display()))?;
    }
    fs::create_dir_all(&partial).with_context(|| format!("creating {}", partial.display()))?;
    run(Command::new("dpkg-deb").arg("--extract").arg(deb).arg(&partial))
        .with_context(|| format!("unpacking {}", deb.display()))?;
    fs::rename(&partial, &target).with_context(|| format!("renaming {} to {}", partial.display(), target.display()))?;
    Ok(target)
}

/// Runs a program to its end and gives its output; a failure carries the last lines of what it said.
fn run(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.env("LC_ALL", "C").output().with_context(|| format!("starting {program}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let mut tail: Vec<&str> = said.lines().rev().take(3).collect();
        tail.reverse();
        bail!("{program} ended with {}: {}", output.status, tail.join("; "));
    }
    String::from_utf8(output.stdout).with_context(|| format!("{program} printed bytes that are not UTF-8"))
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
    fn a_field_is_found_by_its_whole_name() {
        assert_eq!(field("Versions: 1\nVersion: 2\n", "Version"), Some("2"));
        assert_eq!(field(META, "Pack"), None);
    }

    #[test]
    fn a_failing_program_is_named_with_what_it_said() {
        let error = run(Command::new("sh").args(["-c", "echo no such thing >&2; exit 3"])).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("sh ended with exit status: 3: no such thing"), "{text}");
        let error = run(&mut Command::new("no-such-program-here")).unwrap_err();
        assert!(format!("{error:#}").contains("starting no-such-program-here"));
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
