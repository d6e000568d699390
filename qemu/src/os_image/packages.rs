//! Debian packages as files: fetched by `apt-get download` (apt checks their hashes), unpacked by `dpkg-deb`, never installed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};

use super::tool;

/// Packages of the system besides the kernel.
pub(super) const SYSTEM_PACKAGES: &[&str] = &["base-files", "busybox-static", "systemd-boot-efi"];

/// An unpacked package.
#[derive(Debug)]
pub(super) struct Package {
    /// Where its files lie.
    pub(super) files: PathBuf,
    /// Its control paragraph, ended by a newline.
    pub(super) control: String,
}

/// Fetches `name` into `debs` unless it is there, and unpacks it into a folder of `work`.
pub(super) fn unpack(name: &str, debs: &Path, work: &Path) -> Result<Package> {
    let deb = fetch(name, debs)?;
    let files = work.join(name);
    tool::run(tool::command("dpkg-deb").arg("-x").arg(&deb).arg(&files))
        .with_context(|| format!("unpacking package {name}"))?;
    let control = tool::text(tool::command("dpkg-deb").arg("-f").arg(&deb))?;
    Ok(Package { files, control })
}

/// BusyBox as one static program, for tests that put a tool into a ramdisk.
pub fn static_busybox(cache_dir: &Path) -> Result<Vec<u8>> {
    file_of(cache_dir, "busybox-static", "bin/busybox")
}

/// systemd-boot for UEFI on x86-64, for tests that want to see a real boot loader start.
pub fn systemd_boot(cache_dir: &Path) -> Result<Vec<u8>> {
    file_of(cache_dir, "systemd-boot-efi", "usr/lib/systemd/boot/efi/systemd-bootx64.efi")
}

/// `grub-install`, which Debian has in a package that takes over the kernels of the machine that it is installed on.
pub fn grub_install(cache_dir: &Path) -> Result<Vec<u8>> {
    file_of(cache_dir, "grub2-common", "usr/sbin/grub-install")
}

fn file_of(cache_dir: &Path, package: &str, path: &str) -> Result<Vec<u8>> {
    let lock = cache_dir.join("os-image/lock");
    lock.parent()
        .map_or(Ok(()), fs::create_dir_all)
        .with_context(|| format!("making the folder of {}", lock.display()))?;
    let lock = fs::File::create(&lock).with_context(|| format!("making {}", lock.display()))?;
    lock.lock().context("waiting for a build of an operating system image")?;
    let work = tempfile::tempdir().context("making a folder")?;
    let package = unpack(package, &cache_dir.join("debs"), work.path())?;
    let file = package.files.join(path);
    fs::read(&file).with_context(|| format!("reading {}", file.display()))
}

fn fetch(name: &str, debs: &Path) -> Result<PathBuf> {
    fs::create_dir_all(debs).with_context(|| format!("making {}", debs.display()))?;
    if let Some(found) = newest(name, debs)? {
        return Ok(found);
    }
    // apt's own user may not write here; the sandbox only lowers rights when root runs it.
    let mut apt = tool::command("apt-get");
    apt.args(["-q", "-o", "APT::Sandbox::User=root", "download", name]).current_dir(debs);
    tool::run(&mut apt).with_context(|| format!("fetching package {name} (has `apt-get update` been run?)"))?;
    newest(name, debs)?.ok_or_else(|| anyhow!("apt-get download {name} left no package in {}", debs.display()))
}

/// The package file of that name changed last.
fn newest(name: &str, debs: &Path) -> Result<Option<PathBuf>> {
    let prefix = format!("{name}_");
    let mut found: Option<(std::time::SystemTime, PathBuf)> = None;
    for entry in fs::read_dir(debs).with_context(|| format!("listing {}", debs.display()))? {
        let entry = entry?;
        let file = entry.file_name();
        let file = file.to_string_lossy();
        if file.starts_with(&prefix) && file.ends_with(".deb") {
            let modified = entry.metadata()?.modified()?;
            if found.as_ref().is_none_or(|(best, _)| modified > *best) {
                found = Some((modified, entry.path()));
            }
        }
    }
    Ok(found.map(|(_, path)| path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_at_hand_is_found_by_whole_name() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(newest("busybox", dir.path()).unwrap(), None);
        fs::write(dir.path().join("busybox-static_1.35_amd64.deb"), "").unwrap();
        assert_eq!(newest("busybox", dir.path()).unwrap(), None);
        fs::write(dir.path().join("busybox_1.35_amd64.deb"), "").unwrap();
        assert_eq!(newest("busybox", dir.path()).unwrap(), Some(dir.path().join("busybox_1.35_amd64.deb")));
    }
}
