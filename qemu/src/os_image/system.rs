//! The installed system: root file system and initramfs, made from unpacked Debian packages.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};

use super::ext4::ROOT_UUID;
use super::modules::{self, Module};
use super::packages::{self, Package};
use super::tree::Tree;
use super::{grub, tool};

const INITRAMFS_INIT: &str = include_str!("../../assets/os-image/initramfs-init.sh");
const RCS: &str = include_str!("../../assets/os-image/rcS.sh");
const INITTAB: &str = include_str!("../../assets/os-image/inittab");
const PROFILE: &str = include_str!("../../assets/os-image/profile.sh");
const POWER_BUTTON: &str = include_str!("../../assets/os-image/power-button.sh");
/// Everything that makes the system what it is besides the packages; part of the cache key.
pub(super) const TEXTS: &[&str] = &[INITRAMFS_INIT, RCS, INITTAB, PROFILE, POWER_BUTTON];
const INITRAMFS_ZSTD_LEVEL: i32 = 15;

/// The unpacked packages of the system.
#[derive(Debug)]
pub(super) struct Packages {
    kernel: Package,
    system: BTreeMap<&'static str, Package>,
}

impl Packages {
    /// Fetches them into `debs` where they are not there, and unpacks them below `work`.
    pub(super) fn get(debs: &Path, work: &Path) -> Result<Self> {
        let kernel = packages::unpack(&packages::kernel_package()?, debs, work)?;
        let system = packages::SYSTEM_PACKAGES
            .iter()
            .map(|name| Ok((*name, packages::unpack(name, debs, work)?)))
            .collect::<Result<_>>()?;
        Ok(Self { kernel, system })
    }

    fn system(&self, name: &str) -> Result<&Package> {
        self.system.get(name).ok_or_else(|| anyhow!("package {name} is not among the system's"))
    }
}

/// The root file system with kernel and initramfs in `/boot`.
pub(super) fn root(packages: &Packages) -> Result<Tree> {
    let kernel = &packages.kernel.files;
    let release = release(kernel)?;
    let module_dir = kernel.join("lib/modules").join(&release);
    let busybox_path = packages.system("busybox-static")?.files.join("bin/busybox");
    let busybox = read(&busybox_path)?;
    let storage = modules::closure(&module_dir, modules::STORAGE)?;
    let mut all = modules::closure(&module_dir, modules::SYSTEM)?;
    all.extend(storage.clone());
    let initramfs = initramfs(&release, &busybox, &storage)?;

    let mut tree = skeleton(packages)?;
    add_busybox(&mut tree, busybox, &busybox_path)?;
    add_modules(&mut tree, "usr/lib", &release, &all)?;
    tree.file(&format!("boot/vmlinuz-{release}"), 0o644, read(&kernel.join(format!("boot/vmlinuz-{release}")))?)?;
    tree.file(&format!("boot/config-{release}"), 0o644, read(&kernel.join(format!("boot/config-{release}")))?)?;
    tree.file(&format!("boot/initrd.img-{release}"), 0o644, initramfs)?;
    tree.file("boot/grub/grub.cfg", 0o644, grub::config(&release))?;
    Ok(tree)
}

/// Directories, base-files' content, and the configuration of this system.
fn skeleton(packages: &Packages) -> Result<Tree> {
    let mut tree = Tree::default();
    for name in ["bin", "sbin", "lib", "lib64"] {
        tree.dir(&format!("usr/{name}"), 0o755)?;
        tree.symlink(name, &format!("usr/{name}"))?;
    }
    for name in ["boot", "dev", "home", "mnt", "proc", "run", "srv", "sys", "var/log", "var/lib/dpkg", "etc/acpi/PWRF"]
    {
        tree.dir(name, 0o755)?;
    }
    tree.dir("root", 0o700)?;
    tree.dir("tmp", 0o1777)?;
    let base = &packages.system("base-files")?.files;
    for part in ["etc", "usr/lib", "usr/share/base-files"] {
        add_folder(&mut tree, base, part)?;
    }
    tree.file("etc/fstab", 0o644, format!("UUID={ROOT_UUID} / ext4 errors=remount-ro 0 1\n"))?;
    tree.file("etc/group", 0o644, "root:x:0:\ntty:x:5:\n")?;
    tree.file("etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/sh\n")?;
    // No password is valid: the serial console gives a shell without one, and nothing else logs in.
    tree.file("etc/shadow", 0o640, "root:*:19723:0:99999:7:::\n")?;
    tree.file("etc/hostname", 0o644, "ferric-demo\n")?;
    tree.file("etc/hosts", 0o644, "127.0.0.1 localhost\n::1 localhost\n")?;
    tree.file("etc/inittab", 0o644, INITTAB)?;
    tree.file("etc/profile", 0o644, PROFILE)?;
    tree.file("etc/init.d/rcS", 0o755, RCS)?;
    tree.file("etc/acpi/PWRF/00000080", 0o755, POWER_BUTTON)?;
    tree.file("var/lib/dpkg/status", 0o644, dpkg_status(packages))?;
    Ok(tree)
}

/// What `dpkg -l` reads, so that the system tells which packages it is made of.
fn dpkg_status(packages: &Packages) -> String {
    let installed = std::iter::once(&packages.kernel).chain(packages.system.values());
    let paragraphs: Vec<String> =
        installed.map(|package| package.control.replacen('\n', "\nStatus: install ok installed\n", 1)).collect();
    paragraphs.join("\n")
}

/// The program at `usr/bin/busybox` and a link for each applet where BusyBox itself says it belongs.
fn add_busybox(tree: &mut Tree, busybox: Vec<u8>, program: &Path) -> Result<()> {
    tree.file("usr/bin/busybox", 0o755, busybox)?;
    let applets = tool::text(std::process::Command::new(program).arg("--list-full"))?;
    for applet in applets.lines() {
        let path = if applet.starts_with("usr/") { applet.to_owned() } else { format!("usr/{applet}") };
        if !tree.contains(&path) {
            tree.symlink(&path, "/usr/bin/busybox")?;
        }
    }
    Ok(())
}

fn add_modules(tree: &mut Tree, lib: &str, release: &str, modules: &BTreeMap<String, Module>) -> Result<()> {
    let dir = format!("{lib}/modules/{release}");
    for module in modules.values() {
        tree.file(&format!("{dir}/{}", module.path), 0o644, module.data.clone())?;
    }
    tree.file(&format!("{dir}/modules.dep"), 0o644, modules::modules_dep(modules))?;
    tree.file(&format!("{dir}/modules.alias"), 0o644, modules::modules_alias(modules))
}

fn initramfs(release: &str, busybox: &[u8], storage: &BTreeMap<String, Module>) -> Result<Vec<u8>> {
    let mut tree = Tree::default();
    for name in ["dev", "proc", "sys", "root", "etc"] {
        tree.dir(name, 0o755)?;
    }
    // The kernel opens it for init before anything is mounted.
    tree.char_device("dev/console", 0o600, 5, 1)?;
    tree.file("bin/busybox", 0o755, busybox)?;
    for applet in ["sh", "cat", "findfs", "mount", "umount", "sleep", "sort"] {
        tree.symlink(&format!("bin/{applet}"), "busybox")?;
    }
    for applet in ["modprobe", "switch_root"] {
        tree.symlink(&format!("sbin/{applet}"), "../bin/busybox")?;
    }
    tree.file("init", 0o755, INITRAMFS_INIT)?;
    add_modules(&mut tree, "lib", release, storage)?;
    zstd::bulk::compress(&tree.to_cpio()?, INITRAMFS_ZSTD_LEVEL).context("compressing the initramfs")
}

/// Adds regular files and links of `base`/`part`, with their executable bit.
fn add_folder(tree: &mut Tree, base: &Path, part: &str) -> Result<()> {
    let folder = base.join(part);
    for entry in fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))? {
        let entry = entry?;
        let path = format!("{part}/{}", entry.file_name().to_string_lossy());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            add_folder(tree, base, &path)?;
        } else if kind.is_symlink() {
            tree.symlink(&path, &fs::read_link(entry.path())?.to_string_lossy())?;
        } else {
            let mode = std::os::unix::fs::PermissionsExt::mode(&entry.metadata()?.permissions());
            tree.file(&path, if mode & 0o111 == 0 { 0o644 } else { 0o755 }, read(&entry.path())?)?;
        }
    }
    Ok(())
}

/// The kernel's release, from the name of its file.
fn release(kernel: &Path) -> Result<String> {
    let boot = kernel.join("boot");
    fs::read_dir(&boot)
        .with_context(|| format!("listing {}", boot.display()))?
        .filter_map(Result::ok)
        .find_map(|entry| entry.file_name().to_str()?.strip_prefix("vmlinuz-").map(str::to_owned))
        .ok_or_else(|| anyhow!("the kernel package has no boot/vmlinuz-*"))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("reading {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fake_package(control: &str) -> Package {
        Package { files: "/nonexistent".into(), control: control.to_owned() }
    }

    #[test]
    fn dpkg_status_marks_every_package_installed() {
        let packages = Packages {
            kernel: fake_package("Package: linux-image\nVersion: 6.1\n"),
            system: BTreeMap::from([("base-files", fake_package("Package: base-files\nVersion: 12\n"))]),
        };
        let expected = "Package: linux-image\nStatus: install ok installed\nVersion: 6.1\n\n\
                        Package: base-files\nStatus: install ok installed\nVersion: 12\n";
        assert_eq!(dpkg_status(&packages), expected);
    }

    #[test]
    fn release_comes_from_the_kernel_file_name() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("boot")).unwrap();
        assert!(release(dir.path()).is_err());
        fs::write(dir.path().join("boot/vmlinuz-6.1.0-57-amd64"), "").unwrap();
        assert_eq!(release(dir.path()).unwrap(), "6.1.0-57-amd64");
    }

    #[test]
    fn folder_keeps_links_and_executable_bits() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("etc/update-motd.d")).unwrap();
        let script = dir.path().join("etc/update-motd.d/10-uname");
        fs::write(&script, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o775)).unwrap();
        std::os::unix::fs::symlink("../usr/lib/os-release", dir.path().join("etc/os-release")).unwrap();
        let mut tree = Tree::default();
        add_folder(&mut tree, dir.path(), "etc").unwrap();
        let mut expected = Tree::default();
        expected.file("etc/update-motd.d/10-uname", 0o755, "#!/bin/sh\n").unwrap();
        expected.symlink("etc/os-release", "../usr/lib/os-release").unwrap();
        assert_eq!(tree, expected);
    }
}
