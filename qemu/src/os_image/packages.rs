//! Debian packages as files: fetched by `apt-get download` (apt checks their hashes), unpacked by `dpkg-deb`, never installed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};

use super::tool;

/// Package that always depends on the current kernel's package.
pub(super) const KERNEL_METAPACKAGE: &str = "linux-image-amd64";
/// Packages of the system besides the kernel.
pub(super) const SYSTEM_PACKAGES: &[&str] = &["base-files", "busybox-static"];

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

/// The package the kernel metapackage stands for now, such as `linux-image-6.1.0-57-amd64`.
pub(super) fn kernel_package() -> Result<String> {
    let shown = tool::text(tool::command("apt-cache").args(["show", "--no-all-versions", KERNEL_METAPACKAGE]))
        .with_context(|| format!("asking apt for {KERNEL_METAPACKAGE} (has `apt-get update` been run?)"))?;
    dependency_of(&shown)
        .map(str::to_owned)
        .ok_or_else(|| anyhow!("apt knows no kernel behind {KERNEL_METAPACKAGE} (has `apt-get update` been run?)"))
}

/// First package in the `Depends` field.
fn dependency_of(control: &str) -> Option<&str> {
    let depends = control.lines().find_map(|line| line.strip_prefix("Depends:"))?;
    depends.split([',', '|']).next()?.split_whitespace().next()
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
    fn kernel_behind_the_metapackage_is_its_first_dependency() {
        let shown =
            "Package: linux-image-amd64\nVersion: 6.1.192-3\nDepends: linux-image-6.1.0-57-amd64 (= 6.1.192-3)\n";
        assert_eq!(dependency_of(shown), Some("linux-image-6.1.0-57-amd64"));
        assert_eq!(dependency_of("Package: x\n"), None);
    }

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
