//! Debian packages as trees of files: fetched by apt into the cache and unpacked there, never installed on the host.
//!
//! Nothing here needs root: `apt-get download` checks the archive's signatures and writes to the current directory,
//! `dpkg-deb --extract` only unpacks. The version is apt's candidate, so that kernel and programs of an image come from
//! one state of the archive.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// apt's record of the candidate version of each of `packages` that apt knows, in no order.
pub(crate) fn show(packages: &[&str]) -> Result<Vec<String>> {
    let text = run(Command::new("apt-cache").args(["show", "--no-all-versions", "--"]).args(packages))?;
    Ok(text.split("\n\n").map(str::trim).filter(|record| !record.is_empty()).map(str::to_owned).collect())
}

/// The value of a one-line field in a package record (deb822).
pub(crate) fn field<'a>(record: &'a str, name: &str) -> Option<&'a str> {
    record.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// The unpacked package of that version in the folder `kind` of the cache, fetched when it is not there.
pub(crate) fn obtain(cache: &Path, kind: &str, package: &str, version: &str) -> Result<PathBuf> {
    let tree = unpacked_path(cache, kind, package, version);
    if !tree.is_dir() {
        let deb = download(cache, package, version)?;
        unpack(&deb, &tree)?;
        fs::remove_file(&deb).with_context(|| format!("removing {}", deb.display()))?;
    }
    Ok(tree)
}

/// Where a version of a package is unpacked.
pub(crate) fn unpacked_path(cache: &Path, kind: &str, package: &str, version: &str) -> PathBuf {
    // A version's epoch colon and tilde are fine in a file name, a slash cannot occur (deb-version(7)).
    cache.join(kind).join(format!("{package}_{version}"))
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
pub(crate) fn describe(deb: &Path) -> Result<(String, String)> {
    let record = run(Command::new("dpkg-deb").arg("--field").arg(deb).args(["Package", "Version"]))
        .with_context(|| format!("reading package {}", deb.display()))?;
    let get = |name| field(&record, name).with_context(|| format!("{} has no {name}", deb.display()));
    Ok((get("Package")?.to_owned(), get("Version")?.to_owned()))
}

/// Unpacks `deb` to `target` unless that is there. An interrupted run leaves nothing under the final name.
pub(crate) fn unpack(deb: &Path, target: &Path) -> Result<()> {
    if target.is_dir() {
        return Ok(());
    }
    let partial = target.with_extension("partial");
    if partial.exists() {
        fs::remove_dir_all(&partial).with_context(|| format!("removing {}", partial.display()))?;
    }
    fs::create_dir_all(&partial).with_context(|| format!("creating {}", partial.display()))?;
    run(Command::new("dpkg-deb").arg("--extract").arg(deb).arg(&partial))
        .with_context(|| format!("unpacking {}", deb.display()))?;
    fs::rename(&partial, target).with_context(|| format!("renaming {} to {}", partial.display(), target.display()))
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

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let record = "Package: linux-image-amd64\nVersion: 6.1.192-3\nDescription: meta\n";
        assert_eq!(field("Versions: 1\nVersion: 2\n", "Version"), Some("2"));
        assert_eq!(field(record, "Pack"), None);
    }

    #[test]
    fn a_failing_program_is_named_with_what_it_said() {
        let error = run(Command::new("sh").args(["-c", "echo no such thing >&2; exit 3"])).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("sh ended with exit status: 3: no such thing"), "{text}");
        let error = run(&mut Command::new("no-such-program-here")).unwrap_err();
        assert!(format!("{error:#}").contains("starting no-such-program-here"));
    }
}
