//! Where things are: the built image, QEMU, firmware, and the folders this library writes to.
//!
//! Nothing is written outside the checkout's `build/` folder. Every "not found" says what to do about it.

use std::path::{Path, PathBuf};
use std::sync::Once;

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;

/// A bootable image of ours: kernel and initramfs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Linux kernel (bzImage with an EFI stub).
    pub kernel: PathBuf,
    /// The initramfs that holds the agent.
    pub initramfs: PathBuf,
}

impl Image {
    /// The image of a profile (`virt`) as `make image` leaves it.
    ///
    /// # Errors
    /// When it has not been built, naming the command that builds it; when there is no such profile, naming those there
    /// are.
    pub fn built(profile: &str) -> Result<Self> {
        let image = Self::of_dir(&build_dir()?.join(profile));
        let Some(missing) = image.missing() else { return Ok(image) };
        let profiles = profiles(&workspace_root()?);
        bail!("{} does not exist: {}", missing.display(), how_to_build(profile, &profiles))
    }

    /// The image in a folder.
    ///
    /// # Errors
    /// When one of the two files is not there, naming both.
    pub fn in_dir(dir: &Path) -> Result<Self> {
        let image = Self::of_dir(dir);
        if let Some(missing) = image.missing() {
            let (kernel, initramfs) = (image.kernel.display(), image.initramfs.display());
            bail!("an image is two files, {kernel} and {initramfs}, and {} does not exist", missing.display());
        }
        Ok(image)
    }

    fn of_dir(dir: &Path) -> Self {
        Self { kernel: dir.join("vmlinuz"), initramfs: dir.join("initramfs.img") }
    }

    fn missing(&self) -> Option<&Path> {
        [&self.kernel, &self.initramfs].into_iter().find(|path| !path.is_file()).map(PathBuf::as_path)
    }
}

/// Names of the profiles in a checkout, sorted.
fn profiles(root: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(root.join("initramfs/profiles")).into_iter().flatten().flatten();
    let name = |path: PathBuf| {
        let is_profile = path.extension().is_some_and(|extension| extension == "toml");
        path.file_stem().filter(|_| is_profile).and_then(|name| name.to_str()).map(str::to_owned)
    };
    let mut names: Vec<String> = entries.filter_map(|entry| name(entry.path())).collect();
    names.sort();
    names
}

fn how_to_build(profile: &str, profiles: &[String]) -> String {
    if profile == "faulty" {
        "build it with `make faulty-image`".to_owned()
    } else if profiles.iter().any(|known| known == profile) {
        format!("build it with `make image PROFILE={profile}`")
    } else {
        format!("there is no profile {profile:?}; there are: {}", profiles.join(", "))
    }
}

/// The top folder of the checkout: the nearest folder with a workspace `Cargo.toml`, looking upwards from the current
/// folder and from the running program.
///
/// # Errors
/// When neither lies in a checkout; `FERRIC_BUILD` then says where `build/` is.
pub fn workspace_root() -> Result<PathBuf> {
    let from_cargo = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let starts = [from_cargo, std::env::current_dir().ok(), std::env::current_exe().ok()];
    for start in starts.into_iter().flatten() {
        if let Some(found) = start.ancestors().find(|dir| is_workspace(dir)) {
            return Ok(found.to_owned());
        }
    }
    bail!("not inside a Ferric checkout: change to one, or set FERRIC_BUILD to its build folder")
}

fn is_workspace(dir: &Path) -> bool {
    std::fs::read_to_string(dir.join("Cargo.toml"))
        .is_ok_and(|text| text.lines().any(|line| line.trim() == "[workspace]"))
}

/// The `build/` folder; `FERRIC_BUILD` overrides.
///
/// # Errors
/// As [`workspace_root`].
pub fn build_dir() -> Result<PathBuf> {
    match std::env::var_os("FERRIC_BUILD") {
        Some(dir) if !dir.is_empty() => Ok(PathBuf::from(dir)),
        _ => Ok(workspace_root()?.join("build")),
    }
}

/// The folder for the logs of the machine called `name`: `build/vm-logs/<name>`.
///
/// # Errors
/// As [`workspace_root`].
pub fn log_dir(name: &str) -> Result<PathBuf> {
    Ok(build_dir()?.join("vm-logs").join(name))
}

/// A fresh folder under `build/tmp` for disks, firmware variables and TFTP trees; removed when dropped.
///
/// Folders that killed processes left behind are removed on the first call.
///
/// # Errors
/// When it cannot be created.
pub fn temp_dir(purpose: &str) -> Result<TempDir> {
    static SWEEP: Once = Once::new();
    let parent = build_dir()?.join("tmp");
    std::fs::create_dir_all(&parent).with_context(|| format!("creating {}", parent.display()))?;
    SWEEP.call_once(|| remove_abandoned(&parent));
    tempfile::Builder::new()
        .prefix(&format!("{}-{purpose}-", std::process::id()))
        .tempdir_in(&parent)
        .with_context(|| format!("creating a folder in {}", parent.display()))
}

/// Removes folders named `<pid>-...` whose process is gone.
fn remove_abandoned(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|n| n.split_once('-')).and_then(|(pid, _)| pid.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // Somebody else may be sweeping at the same time.
            drop(std::fs::remove_dir_all(entry.path()));
        }
    }
}

/// A folder whose path is short enough for a UNIX socket inside it (108 bytes with its name).
///
/// # Errors
/// When it cannot be created.
pub(crate) fn socket_dir() -> Result<TempDir> {
    let dir = temp_dir("sock")?;
    if dir.path().as_os_str().len() <= 80 {
        return Ok(dir);
    }
    tempfile::Builder::new().prefix("ferric-").tempdir().context("creating a folder for a control socket")
}

/// The QEMU system emulator for x86-64.
///
/// # Errors
/// When it is not installed, with the package that has it.
pub fn qemu() -> Result<PathBuf> {
    program("qemu-system-x86_64", "qemu-system-x86")
}

/// A program on `PATH` (or in `/usr/sbin`), or an error naming the Debian package that has it.
///
/// # Errors
/// When it is not installed.
pub fn program(name: &str, package: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")])
        .map(|dir| dir.join(name))
        .find(|candidate| candidate.is_file())
        .with_context(|| format!("{name} is not installed (`make setup`, or Debian package {package})"))
}

/// UEFI firmware: the code, and the variable store to copy for each machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ovmf {
    /// Read-only code volume.
    pub code: PathBuf,
    /// Pristine variable store.
    pub vars: PathBuf,
}

/// The OVMF firmware without secure boot.
///
/// # Errors
/// When it is not installed, with the package that has it.
pub fn ovmf() -> Result<Ovmf> {
    let first = ovmf_builds().into_iter().next();
    first.with_context(|| format!("no OVMF firmware in {OVMF_DIR} (`make setup`, or Debian package ovmf)"))
}

const OVMF_DIR: &str = "/usr/share/OVMF";

/// Every build of OVMF without secure boot that is installed, that with the smallest store of variables last.
pub fn ovmf_builds() -> Vec<Ovmf> {
    let dir = Path::new(OVMF_DIR);
    let builds = [("OVMF_CODE_4M.fd", "OVMF_VARS_4M.fd"), ("OVMF_CODE.fd", "OVMF_VARS.fd")];
    let builds = builds.into_iter().map(|(code, vars)| Ovmf { code: dir.join(code), vars: dir.join(vars) });
    builds.filter(|found| found.code.is_file() && found.vars.is_file()).collect()
}

/// Checks that the iPXE option ROM that QEMU gives a NIC model is there. `rom` is e.g. `efi-virtio.rom`.
///
/// # Errors
/// When it is not installed, with the package that has it.
pub fn ipxe_rom(rom: &str) -> Result<PathBuf> {
    let dirs = ["/usr/lib/ipxe/qemu", "/usr/share/qemu", "/usr/share/qemu-kvm"];
    dirs.iter()
        .map(|dir| Path::new(dir).join(rom))
        .find(|path| path.is_file())
        .with_context(|| format!("iPXE ROM {rom} is not installed (`make setup`, or Debian package ipxe-qemu)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_an_image_is_told_which_files_belong_there() {
        let dir = tempfile::tempdir().unwrap();
        let (kernel, initramfs) = (dir.path().join("vmlinuz"), dir.path().join("initramfs.img"));
        let refused = |missing: &Path| {
            let error = Image::in_dir(dir.path()).unwrap_err().to_string();
            let both = format!("{} and {}", kernel.display(), initramfs.display());
            assert!(error.contains(&both), "{error}");
            assert!(error.ends_with(&format!("{} does not exist", missing.display())), "{error}");
            assert!(!error.contains("make"), "a folder is not made by make: {error}");
        };
        refused(&kernel);
        std::fs::write(&kernel, "k").unwrap();
        refused(&initramfs);
        std::fs::write(&initramfs, "i").unwrap();
        assert_eq!(Image::in_dir(dir.path()).unwrap(), Image { kernel: kernel.clone(), initramfs: initramfs.clone() });
    }

    #[test]
    fn an_image_that_is_not_built_comes_with_what_builds_it() {
        let profiles = profiles(&workspace_root().unwrap());
        assert!(profiles.contains(&"virt".to_owned()), "{profiles:?}");
        assert!(how_to_build("virt", &profiles).contains("make image PROFILE=virt"));
        assert!(how_to_build("faulty", &profiles).contains("make faulty-image"));
        let text = how_to_build("nosuch", &profiles);
        assert!(text.contains("no profile \"nosuch\"; there are:") && text.contains("virt"), "{text}");
        let error = Image::built("nosuch").unwrap_err().to_string();
        assert!(error.contains("nosuch/vmlinuz") && error.ends_with(&text), "{error}");
    }

    #[test]
    fn missing_program_names_its_package() {
        let error = program("no-such-program-here", "some-package").unwrap_err().to_string();
        assert!(error.contains("some-package"), "{error}");
    }

    #[test]
    fn workspace_is_found_from_a_crate_folder() {
        assert!(is_workspace(&workspace_root().unwrap()));
    }

    #[test]
    fn abandoned_folders_are_swept_and_live_ones_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mine = dir.path().join(format!("{}-vm-x", std::process::id()));
        let dead = dir.path().join("4294967290-vm-x");
        let other = dir.path().join("notes");
        for path in [&mine, &dead, &other] {
            std::fs::create_dir(path).unwrap();
        }
        remove_abandoned(dir.path());
        assert!(mine.exists() && other.exists() && !dead.exists());
    }
}
