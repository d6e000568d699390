//! Images of one file system whose programs tell that they were run, and one with a real GRUB.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use ferric_qemu::os_image::{grub_install, static_busybox};
use ferric_qemu::{Image, artifacts};
use ferric_tests::trivial_initramfs;

use crate::kit::MIB;
use crate::partition::tool;

/// UUID of the file systems made here.
pub(crate) const UUID: &str = "c0ffee00-1111-4222-8333-444455556666";
/// Every program that an installer of boot loaders has ever run in an image.
const PROGRAMS: &[&str] = &[
    "usr/sbin/grub-install",
    "usr/sbin/grub-mkconfig",
    "usr/sbin/grub2-install",
    "usr/sbin/grub2-mkconfig",
    "usr/sbin/update-grub",
    "usr/bin/env",
    "usr/bin/bootctl",
    "usr/bin/mount",
    "usr/sbin/efibootmgr",
    "usr/sbin/init",
];
/// Where a trap notes that it was run, and what it saw of the machine.
pub(crate) const NOTE: &str = "/TRAPPED";
const SCRIPT: &str = "#!/bin/busybox sh
# It was run as \"$0\", and says what it can reach.
exec >> /TRAPPED
echo \"run $0 $*\"
echo \"pid $$ of\" /proc/[0-9]*
echo \"interfaces\" $(busybox grep -c : /proc/net/dev)
echo \"dev\" $(busybox ls /dev)
echo \"uuid $(busybox readlink /dev/disk/by-uuid/@UUID@)\"
(busybox mount -t tmpfs none /mnt) 2>/dev/null && echo \"can mount\"
(busybox mknod /node c 1 1) 2>/dev/null && echo \"can make devices\"
(echo h > /proc/sysrq-trigger) 2>/dev/null && echo \"can reach switches\"
(echo x > /proc/sys/kernel/core_pattern) 2>/dev/null && echo \"can set core_pattern\"
busybox wget -q -T 3 -O - http://10.0.2.2/ 2>/dev/null && echo \"can reach the network\"
exit 0
";

/// A file system in a file, with a tree in it.
pub(crate) fn ext4(path: &Path, size_bytes: u64, uuid: &str, tree: &Path) -> Result<()> {
    File::create(path)?.set_len(size_bytes)?;
    let (tree, name) = (tree.to_string_lossy(), path.to_string_lossy());
    tool(
        "mke2fs",
        &["-q", "-F", "-t", "ext4", "-O", "^orphan_file,^metadata_csum_seed", "-U", uuid, "-d", &tree, &name],
    )
    .map(drop)
}

fn busybox() -> Result<Vec<u8>> {
    static_busybox(&artifacts::build_dir()?.join("cache"))
}

fn program(path: &Path, content: &[u8]) -> Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::write(path, content)?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}

/// Adds programs to the tree of an image that leave [`NOTE`] when any of them is run.
pub(crate) fn set(tree: &Path, uuid: &str) -> Result<()> {
    for place in ["usr/sbin", "usr/bin", "mnt"] {
        fs::create_dir_all(tree.join(place))?;
    }
    for (name, target) in [("bin", "usr/bin"), ("sbin", "usr/sbin")] {
        symlink(target, tree.join(name))?;
    }
    program(&tree.join("usr/bin/busybox"), &busybox()?)?;
    for name in PROGRAMS {
        program(&tree.join(name), SCRIPT.replace("@UUID@", uuid).as_bytes())?;
    }
    Ok(())
}

/// A file system with nothing but traps.
pub(crate) fn image(dir: &Path) -> Result<PathBuf> {
    let (tree, path) = (dir.join("traps"), dir.join("traps.raw"));
    set(&tree, UUID)?;
    // The family of programs that the agent looks for first is not the one that most systems have.
    for name in ["usr/sbin/grub2-install", "usr/sbin/grub2-mkconfig"] {
        fs::remove_file(tree.join(name))?;
    }
    ext4(&path, 16 * MIB, UUID, &tree)?;
    Ok(path)
}

/// What a program of an image noted, from the file system at an offset of a disk; nothing when none was run.
pub(crate) fn note(disk: &Path, offset: u64) -> Result<String> {
    tool("debugfs", &["-R", &format!("cat {NOTE}"), &format!("{}?offset={offset}", disk.display())])
}

/// Programs that GRUB's scripts want.
const APPLETS: &[&str] = &[
    "awk", "basename", "cat", "chmod", "cmp", "cp", "cut", "date", "dirname", "echo", "env", "expr", "find", "grep",
    "head", "id", "ls", "mkdir", "mktemp", "mv", "printf", "pwd", "readlink", "rm", "sed", "sh", "sort", "stat",
    "tail", "test", "touch", "tr", "true", "umount", "uname", "uniq", "wc", "which",
];
/// Programs of GRUB, from the host.
const GRUB: &[&str] = &[
    "/usr/sbin/grub-mkconfig",
    "/usr/sbin/grub-probe",
    "/usr/bin/grub-mkrelpath",
    "/usr/bin/grub-script-check",
    "/usr/bin/grub-mkimage",
    "/usr/bin/grub-editenv",
];
const SCRIPTS: &[&str] = &["/usr/share/grub/grub-mkconfig_lib", "/etc/grub.d/00_header", "/etc/grub.d/10_linux"];
const DEFAULTS: &str = "GRUB_TIMEOUT=0\nGRUB_DISTRIBUTOR=Ferric\nGRUB_TERMINAL=serial\n\
                        GRUB_CMDLINE_LINUX=\"console=ttyS0\"\nGRUB_DISABLE_SUBMENU=y\n";

/// A file system with Debian's GRUB and what it needs, and a kernel that says when it has come up.
pub(crate) fn grub(dir: &Path) -> Result<PathBuf> {
    let (tree, path) = (dir.join("grub"), dir.join("grub.raw"));
    for place in ["usr/sbin", "usr/bin", "usr/lib", "usr/lib64", "boot", "etc/default"] {
        fs::create_dir_all(tree.join(place))?;
    }
    for name in ["bin", "sbin", "lib", "lib64"] {
        symlink(format!("usr/{name}"), tree.join(name))?;
    }
    program(&tree.join("usr/bin/busybox"), &busybox()?)?;
    for name in APPLETS {
        symlink("busybox", tree.join("usr/bin").join(name))?;
    }
    let installer = tree.join("usr/sbin/grub-install");
    program(&installer, &grub_install(&artifacts::build_dir()?.join("cache"))?)?;
    let mut files: BTreeSet<PathBuf> = GRUB.iter().chain(SCRIPTS).map(PathBuf::from).collect();
    for name in GRUB.iter().map(Path::new).chain([installer.as_path()]) {
        files.extend(libraries(name)?);
    }
    for entry in fs::read_dir("/usr/lib/grub/i386-pc")? {
        files.insert(entry?.path());
    }
    for file in files {
        let inside = tree.join(file.strip_prefix("/")?);
        program(&inside, &fs::read(&file).with_context(|| format!("reading {}", file.display()))?)?;
    }
    fs::write(tree.join("etc/default/grub"), DEFAULTS)?;
    fs::copy(&Image::built("virt")?.kernel, tree.join("boot/vmlinuz-9.9.9-test"))?;
    fs::copy(trivial_initramfs(dir)?, tree.join("boot/initrd.img-9.9.9-test"))?;
    ext4(&path, 48 * MIB, UUID, &tree)?;
    Ok(path)
}

/// The libraries of a program, as its loader finds them.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    if fs::read(program)?.starts_with(b"#!") {
        return Ok(Vec::new());
    }
    let output = Command::new("ldd").arg(program).output().context("running ldd")?;
    ensure!(output.status.success(), "ldd {}: {output:?}", program.display());
    let text = String::from_utf8(output.stdout)?;
    Ok(text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect())
}
