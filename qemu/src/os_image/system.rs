//! The installed system: root file system, initramfs and ESP, made from unpacked Debian packages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use ferric_image_build::cpio::{Archive, Node};
use ferric_image_build::kernel::{self, Kernel, Source};
use ferric_image_build::kmods::{ModuleTree, Selection};
use ferric_image_build::profile::{KernelChoice, ModuleChoice, Profile, ProgramChoice};
use ferric_image_build::programs::{self, Programs};

use super::ext4::ROOT_UUID;
use super::packages::{self, Package};
use super::{esp, grub, tool};

/// Modules of the initramfs: what it takes to start from any disk QEMU or common hardware has.
pub(super) const STORAGE_MODULES: &[&str] = &[
    "crc32c_generic",
    "crc32c_intel",
    "ext4",
    "virtio_pci",
    "virtio_blk",
    "virtio_scsi",
    "nvme",
    "ahci",
    "ata_piix",
    "sd_mod",
    "megaraid_sas",
    "mptsas",
    "mptspi",
    "mpt3sas",
    "xhci_pci",
    "usb_storage",
    "uas",
    "sdhci_pci",
    "mmc_block",
];
/// Modules loaded after the root file system is there.
pub(super) const SYSTEM_MODULES: &[&str] = &["button", "evdev", "isofs", "vfat", "nls_cp437", "nls_ascii", "nls_utf8"];

const INITRAMFS_INIT: &str = include_str!("../../assets/os-image/initramfs-init.sh");
/// What is done before each look for the root file system where it is on an array.
const INITRAMFS_ARRAYS: &str = include_str!("../../assets/os-image/initramfs-arrays.sh");
/// The line of [`INITRAMFS_INIT`] that looks for it.
const LOOK: &str = "    device=$(findfs ";
const RCS: &str = include_str!("../../assets/os-image/rcS.sh");
const INITTAB: &str = include_str!("../../assets/os-image/inittab");
const PROFILE: &str = include_str!("../../assets/os-image/profile.sh");
const POWER_BUTTON: &str = include_str!("../../assets/os-image/power-button.sh");
/// The files of this system that come from no package, part of the cache key.
pub(super) const TEXTS: &[&str] = &[INITRAMFS_INIT, RCS, INITTAB, PROFILE, POWER_BUTTON];

/// What an image that starts from software RAID has besides: modules of its initramfs, and its script for the cache key.
pub(super) const RAID_MODULES: &[&str] = &["raid0", "raid1", "raid10"];
pub(super) const RAID_TEXT: &str = INITRAMFS_ARRAYS;

const KERNEL_PACKAGE: &str = "linux-image-amd64";
const INITRAMFS_ZSTD_LEVEL: i32 = 15;
/// Merged into `/usr`, as Debian has it.
const MERGED: &[&str] = &["bin", "sbin", "lib", "lib64"];
const DIRECTORIES: &[(&str, u32)] = &[
    ("boot/efi", 0o755),
    ("dev", 0o755),
    ("etc/acpi/PWRF", 0o755),
    ("home", 0o755),
    ("mnt", 0o755),
    ("proc", 0o755),
    ("root", 0o700),
    ("run", 0o755),
    ("srv", 0o755),
    ("sys", 0o755),
    ("tmp", 0o1777),
    ("var/lib/dpkg", 0o755),
    ("var/log", 0o755),
];

/// Command line of the kernel, whichever boot loader starts it.
pub(super) fn command_line() -> String {
    format!("root=UUID={ROOT_UUID} ro console=tty0 console=ttyS0,115200n8")
}

/// What the disk's file systems hold.
#[derive(Debug)]
pub(super) struct System {
    /// Root file system.
    pub(super) root: Archive,
    /// EFI system partition.
    pub(super) esp: esp::Files,
}

/// The unpacked packages of the system.
#[derive(Debug)]
pub(super) struct Packages {
    kernel: Kernel,
    system: BTreeMap<&'static str, Package>,
    /// `mdadm` with its libraries, in an image that starts from software RAID.
    raid: Programs,
}

impl Packages {
    /// Fetches them into `cache_dir` where they are not there, and unpacks them (the kernel there, the others below `work`).
    pub(super) fn get(cache_dir: &Path, work: &Path, software_raid: bool) -> Result<Self> {
        let source = Source::Package { cache: cache_dir.to_owned() };
        let kernel = kernel::obtain(&source, &profile(&[])).context("getting the kernel of the operating system")?;
        let debs = cache_dir.join("debs");
        let system = packages::SYSTEM_PACKAGES
            .iter()
            .map(|name| Ok((*name, packages::unpack(name, &debs, work)?)))
            .collect::<Result<_>>()?;
        let mdadm = || vec!["mdadm".to_owned()];
        let choice = ProgramChoice { packages: mdadm(), include: mdadm(), ..ProgramChoice::default() };
        let choice = if software_raid { choice } else { ProgramChoice::default() };
        let raid = Programs::obtain(&programs::Source::Apt { cache: cache_dir.to_owned() }, &choice)?;
        Ok(Self { kernel, system, raid })
    }

    /// The system they make.
    pub(super) fn install(&self) -> Result<System> {
        let release = &self.kernel.release;
        let modules = ModuleTree::open(&self.kernel.modules, release)?;
        let raid = if self.raid.files.is_empty() { &[] } else { RAID_MODULES };
        let storage: Vec<&str> = STORAGE_MODULES.iter().chain(raid).copied().collect();
        let storage = modules.select(&profile(&storage).modules)?;
        let all: Vec<&str> = STORAGE_MODULES.iter().chain(SYSTEM_MODULES).chain(raid).copied().collect();
        let all = modules.select(&profile(&all).modules)?;
        let busybox_path = self.files("busybox-static")?.join("bin/busybox");
        let busybox = read(&busybox_path)?;
        let initramfs = initramfs(release, &busybox, &storage, &self.raid)?;
        let kernel = read(&self.kernel.vmlinuz)?;
        let config = read(&self.kernel.vmlinuz.with_file_name(format!("config-{release}")))?;

        let mut root = self.skeleton()?;
        add_busybox(&mut root, busybox, &busybox_path)?;
        add_modules(&mut root, "usr/lib", release, &all)?;
        file(&mut root, &format!("boot/vmlinuz-{release}"), 0o644, kernel.clone())?;
        file(&mut root, &format!("boot/config-{release}"), 0o644, config)?;
        file(&mut root, &format!("boot/initrd.img-{release}"), 0o644, initramfs.clone())?;
        file(&mut root, "boot/grub/grub.cfg", 0o644, grub::config(release))?;
        let systemd_boot = self.files("systemd-boot-efi")?.join("usr/lib/systemd/boot/efi/systemd-bootx64.efi");
        Ok(System { root, esp: esp::files(release, read(&systemd_boot)?, kernel, initramfs) })
    }

    /// systemd's stub, which becomes a unified kernel image with kernel and initramfs.
    pub(super) fn stub(&self) -> Result<Vec<u8>> {
        read(&self.files("systemd-boot-efi")?.join("usr/lib/systemd/boot/efi/linuxx64.efi.stub"))
    }

    /// Directories, base-files' content, and the configuration of this system.
    fn skeleton(&self) -> Result<Archive> {
        let mut root = Archive::default();
        for name in MERGED {
            root.add(&format!("usr/{name}"), Node::Directory { mode: 0o755 })?;
            root.add(name, Node::Symlink { target: format!("usr/{name}") })?;
        }
        for (path, mode) in DIRECTORIES {
            root.add(path, Node::Directory { mode: *mode })?;
        }
        let base = self.files("base-files")?;
        for part in ["etc", "usr/lib", "usr/share/base-files"] {
            add_folder(&mut root, base, part)?;
        }
        let root_line = format!("UUID={ROOT_UUID} / ext4 errors=remount-ro 0 1\n");
        file(&mut root, "etc/fstab", 0o644, root_line)?;
        file(&mut root, "etc/group", 0o644, "root:x:0:\ntty:x:5:\n")?;
        file(&mut root, "etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/sh\n")?;
        // No password is valid: the serial console gives a shell without one, and nothing else logs in.
        file(&mut root, "etc/shadow", 0o640, "root:*:19723:0:99999:7:::\n")?;
        file(&mut root, "etc/hostname", 0o644, "ferric-demo\n")?;
        file(&mut root, "etc/hosts", 0o644, "127.0.0.1 localhost\n::1 localhost\n")?;
        file(&mut root, "etc/inittab", 0o644, INITTAB)?;
        file(&mut root, "etc/profile", 0o644, PROFILE)?;
        file(&mut root, "etc/init.d/rcS", 0o755, RCS)?;
        file(&mut root, "etc/acpi/PWRF/00000080", 0o755, POWER_BUTTON)?;
        file(&mut root, "var/lib/dpkg/status", 0o644, self.dpkg_status())?;
        Ok(root)
    }

    /// What `dpkg -l` reads, so that the system tells which packages it is made of.
    fn dpkg_status(&self) -> String {
        let Kernel { package, version, .. } = &self.kernel;
        let kernel = format!("Package: {package}\nVersion: {version}\nArchitecture: amd64\n");
        let paragraphs: Vec<String> = std::iter::once(kernel.as_str())
            .chain(self.system.values().map(|package| package.control.as_str()))
            .map(|control| control.replacen('\n', "\nStatus: install ok installed\n", 1))
            .collect();
        paragraphs.join("\n")
    }

    fn files(&self, name: &str) -> Result<&Path> {
        let package = self.system.get(name).ok_or_else(|| anyhow!("package {name} is not among the system's"))?;
        Ok(&package.files)
    }
}

/// What the image builder needs to know to get the kernel and choose `modules`.
fn profile(modules: &[&str]) -> Profile {
    Profile {
        name: "os-image".to_owned(),
        description: "operating system of the demonstration".to_owned(),
        budget_bytes: None,
        skeleton: ".".into(),
        kernel: KernelChoice { package: KERNEL_PACKAGE.to_owned() },
        modules: ModuleChoice {
            include: modules.iter().map(|name| (*name).to_owned()).collect(),
            ..ModuleChoice::default()
        },
        programs: ProgramChoice::default(),
    }
}

/// The program at `usr/bin/busybox` and a link for each applet where BusyBox itself says it belongs.
fn add_busybox(root: &mut Archive, busybox: Vec<u8>, program: &Path) -> Result<()> {
    file(root, "usr/bin/busybox", 0o755, busybox)?;
    let listed = tool::text(std::process::Command::new(program).arg("--list-full"))?;
    for path in applet_paths(&listed) {
        root.add(&path, Node::Symlink { target: "/usr/bin/busybox".to_owned() })?;
    }
    Ok(())
}

/// Where the applets of `busybox --list-full` go in a system with `/bin` and `/sbin` merged into `/usr`.
fn applet_paths(listed: &str) -> BTreeSet<String> {
    listed
        .lines()
        .map(|applet| if applet.starts_with("usr/") { applet.to_owned() } else { format!("usr/{applet}") })
        .filter(|path| path != "usr/bin/busybox")
        .collect()
}

fn add_modules(tree: &mut Archive, lib: &str, release: &str, selection: &Selection) -> Result<()> {
    let dir = format!("{lib}/modules/{release}");
    for module in selection.modules.values() {
        file(tree, &format!("{dir}/{}", module.path), 0o644, module.bytes.clone())?;
    }
    for (name, text) in selection.index_files() {
        file(tree, &format!("{dir}/{name}"), 0o644, text)?;
    }
    Ok(())
}

fn initramfs(release: &str, busybox: &[u8], storage: &Selection, raid: &Programs) -> Result<Vec<u8>> {
    let mut tree = Archive::default();
    for path in ["dev", "proc", "sys", "root", "etc"] {
        tree.add(path, Node::Directory { mode: 0o755 })?;
    }
    // The kernel opens it for init before anything is mounted.
    tree.add("dev/console", Node::CharDevice { mode: 0o600, major: 5, minor: 1 })?;
    file(&mut tree, "bin/busybox", 0o755, busybox)?;
    for applet in ["sh", "cat", "findfs", "mount", "umount", "sleep", "sort"] {
        tree.add(&format!("bin/{applet}"), Node::Symlink { target: "busybox".to_owned() })?;
    }
    for applet in ["modprobe", "switch_root"] {
        tree.add(&format!("sbin/{applet}"), Node::Symlink { target: "../bin/busybox".to_owned() })?;
    }
    if raid.files.is_empty() {
        file(&mut tree, "init", 0o755, INITRAMFS_INIT)?;
    } else {
        file(&mut tree, "init", 0o755, INITRAMFS_INIT.replace(LOOK, &format!("    . /arrays.sh\n{LOOK}")))?;
        file(&mut tree, "arrays.sh", 0o644, INITRAMFS_ARRAYS)?;
        for (path, node) in &raid.files {
            tree.add(path, node.clone())?;
        }
    }
    add_modules(&mut tree, "lib", release, storage)?;
    zstd::bulk::compress(&tree.to_bytes()?, INITRAMFS_ZSTD_LEVEL).context("compressing the initramfs")
}

/// Adds regular files and links of `base`/`part`, with their executable bit.
fn add_folder(tree: &mut Archive, base: &Path, part: &str) -> Result<()> {
    let folder = base.join(part);
    for entry in fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))? {
        let entry = entry?;
        let path = format!("{part}/{}", entry.file_name().to_string_lossy());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            add_folder(tree, base, &path)?;
        } else if kind.is_symlink() {
            let target = fs::read_link(entry.path())?.to_string_lossy().into_owned();
            tree.add(&path, Node::Symlink { target })?;
        } else {
            let mode = std::os::unix::fs::PermissionsExt::mode(&entry.metadata()?.permissions());
            file(tree, &path, if mode & 0o111 == 0 { 0o644 } else { 0o755 }, read(&entry.path())?)?;
        }
    }
    Ok(())
}

fn file(tree: &mut Archive, path: &str, mode: u32, bytes: impl Into<Vec<u8>>) -> Result<()> {
    tree.add(path, Node::file(mode, bytes.into()))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("reading {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packages(control: &str) -> Packages {
        Packages {
            kernel: Kernel {
                package: "linux-image-6.1.0-57-amd64".to_owned(),
                version: "6.1.192-3".to_owned(),
                release: "6.1.0-57-amd64".to_owned(),
                vmlinuz: "/nonexistent".into(),
                modules: "/nonexistent".into(),
            },
            system: BTreeMap::from([(
                "base-files",
                Package { files: "/nonexistent".into(), control: control.to_owned() },
            )]),
            raid: Programs::default(),
        }
    }

    #[test]
    fn dpkg_status_marks_every_package_installed() {
        let expected = "Package: linux-image-6.1.0-57-amd64\nStatus: install ok installed\nVersion: 6.1.192-3\n\
                        Architecture: amd64\n\nPackage: base-files\nStatus: install ok installed\nVersion: 12\n";
        assert_eq!(packages("Package: base-files\nVersion: 12\n").dpkg_status(), expected);
    }

    #[test]
    fn applets_go_below_usr_once_each() {
        let paths: Vec<String> =
            applet_paths("bin/busybox\nbin/sh\nsbin/init\nusr/bin/awk\nbin/awk\n").into_iter().collect();
        assert_eq!(paths, ["usr/bin/awk", "usr/bin/sh", "usr/sbin/init"]);
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
        let mut tree = Archive::default();
        add_folder(&mut tree, dir.path(), "etc").unwrap();
        let mut expected = Archive::default();
        file(&mut expected, "etc/update-motd.d/10-uname", 0o755, "#!/bin/sh\n").unwrap();
        expected.add("etc/os-release", Node::Symlink { target: "../usr/lib/os-release".to_owned() }).unwrap();
        assert_eq!(tree, expected);
    }

    #[test]
    fn initramfs_has_what_its_init_calls() {
        let made = |raid: &Programs| {
            let bytes = initramfs("6.1", b"ELF", &Selection::default(), raid).unwrap();
            String::from_utf8_lossy(&zstd::decode_all(bytes.as_slice()).unwrap()).into_owned()
        };
        let archive = made(&Programs::default());
        assert!(!archive.contains("arrays.sh"));
        let mut raid = Programs::default();
        raid.files.insert("usr/sbin/mdadm".into(), Node::file(0o755, Vec::new()));
        let with_raid = made(&raid);
        for text in ["usr/sbin/mdadm\0", "    . /arrays.sh\n    device=$(findfs ", "mdadm --assemble --scan"] {
            assert!(with_raid.contains(text), "{text} is missing");
        }
        for tool in ["cat", "findfs", "modprobe", "mount", "umount", "sleep", "sort", "switch_root"] {
            assert!(INITRAMFS_INIT.contains(tool), "{tool} is packed for nothing");
            assert!(archive.contains(&format!("bin/{tool}\0")), "{tool} is missing");
        }
    }
}
