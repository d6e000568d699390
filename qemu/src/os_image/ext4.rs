//! An ext4 file system made inside the disk image by `mke2fs` and `debugfs`: no mount, no root rights, and everything in it is root's.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use ferric_image_build::cpio::{Archive, Node};

use super::layout::Partition;
use super::tool;

/// UUID of the root file system, by which boot loader and kernel find it.
pub(super) const ROOT_UUID: &str = "fe441c00-0000-4000-8000-0000000000e4";
const HASH_SEED: &str = "fe441c00-0000-4000-8000-0000000000e5";
/// Every time stamp in the image, in seconds since 1970 (2024-01-01), so that two builds give the same bytes.
const TIMESTAMP: &str = "1704067200";
/// Named one by one, so that a newer host's defaults do not give features GRUB cannot read.
const FEATURES: &str = "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,\
large_file,huge_file,dir_nlink,extra_isize,metadata_csum";

/// Makes the file system in `partition` of `disk` and puts `tree` into it. `staging` is an empty folder for file contents.
pub(super) fn make(disk: &Path, partition: &Partition, tree: &Archive, staging: &Path) -> Result<()> {
    let offset = partition.start_bytes;
    let mut mke2fs = tool::command("mke2fs");
    mke2fs
        .env("E2FSPROGS_FAKE_TIME", TIMESTAMP)
        .env("MKE2FS_CONFIG", "/dev/null")
        .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-N", "8192", "-m", "1", "-J", "size=4"])
        .args(["-O", FEATURES, "-L", "root", "-U", ROOT_UUID, "-E"])
        .arg(format!(
            "offset={offset},hash_seed={HASH_SEED},root_owner=0:0,lazy_itable_init=1,lazy_journal_init=1,nodiscard"
        ))
        .arg(disk)
        .arg(format!("{}k", partition.size_bytes / 1024));
    tool::run(&mut mke2fs).context("making the root file system")?;

    let script = staging.join("script");
    fs::write(&script, stage(tree, staging)?).with_context(|| format!("writing {}", script.display()))?;
    let device = format!("{}?offset={offset}", disk.display());
    let mut debugfs = tool::command("debugfs");
    debugfs.env("E2FSPROGS_FAKE_TIME", TIMESTAMP).args(["-w", "-f"]).arg(&script).arg(&device);
    let output = tool::run(&mut debugfs).context("filling the root file system")?;
    // debugfs goes on after an error and exits with 0; what it says on standard error is the only sign.
    let stderr = String::from_utf8_lossy(&output.stderr);
    let complaints = complaints(&stderr);
    if !complaints.is_empty() {
        let shown: Vec<&str> = complaints.iter().take(5).copied().collect();
        bail!("filling the root file system: {} complaints, first {}", complaints.len(), shown.join(" / "));
    }
    tool::run(tool::command("e2fsck").args(["-f", "-n"]).arg(&device)).context("checking the root file system")?;
    Ok(())
}

/// Lines of debugfs's standard error other than its version banner.
fn complaints(stderr: &str) -> Vec<&str> {
    stderr.lines().filter(|line| !line.trim().is_empty() && !line.starts_with("debugfs ")).collect()
}

/// Writes the content of each file into `staging` and returns the debugfs script that makes the tree.
fn stage(tree: &Archive, staging: &Path) -> Result<String> {
    let mut script = format!("set_current_time @{TIMESTAMP}\n");
    let mut directory = "";
    for (number, (path, node)) in tree.nodes().enumerate() {
        // debugfs has no quoting worth relying on, and nothing in this system needs odd names.
        ensure!(!path.contains(|c: char| c.is_whitespace() || c == '"'), "{path:?} cannot be a path in the image");
        // What makes an entry takes a bare name, which goes into the current directory.
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        if parent != directory {
            script.push_str(&format!("cd /{parent}\n"));
            directory = parent;
        }
        let mode = match node {
            Node::Directory { mode } => {
                script.push_str(&format!("mkdir {name}\n"));
                0o040_000 | mode
            }
            Node::File { mode, bytes } => {
                let content = staging.join(number.to_string());
                fs::write(&content, bytes).with_context(|| format!("writing {}", content.display()))?;
                script.push_str(&format!("write {} {name}\n", content.display()));
                0o100_000 | mode
            }
            Node::Symlink { target } => {
                script.push_str(&format!("symlink {name} {target}\n"));
                continue;
            }
            Node::CharDevice { .. } => bail!("/{path}: device nodes come from devtmpfs, not from the root file system"),
        };
        script.push_str(&format!("set_inode_field /{path} mode 0{mode:o}\n"));
        if let Node::File { .. } = node {
            for field in ["uid", "gid"] {
                script.push_str(&format!("set_inode_field /{path} {field} 0\n"));
            }
            for field in ["atime", "ctime", "mtime", "crtime"] {
                script.push_str(&format!("set_inode_field /{path} {field} @{TIMESTAMP}\n"));
            }
        }
    }
    Ok(script)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_makes_every_entry_with_its_mode() {
        let mut tree = Archive::default();
        tree.add("tmp", Node::Directory { mode: 0o1777 }).unwrap();
        tree.add("etc/hostname", Node::file(0o644, b"x\n".to_vec())).unwrap();
        tree.add("bin", Node::Symlink { target: "usr/bin".to_owned() }).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let script = stage(&tree, dir.path()).unwrap();
        for line in [
            "symlink bin usr/bin",
            "mkdir etc",
            "cd /etc",
            "set_inode_field /etc/hostname mode 0100644",
            "set_inode_field /etc/hostname uid 0",
            "set_inode_field /tmp mode 041777",
        ] {
            assert!(script.lines().any(|made| made == line), "{line} is missing in:\n{script}");
        }
    }

    #[test]
    fn only_the_banner_of_debugfs_is_no_complaint() {
        assert!(complaints("debugfs 1.47.0 (5-Feb-2023)\n\n").is_empty());
        assert_eq!(complaints("debugfs 1.47.0\nwrite: No space left\n"), ["write: No space left"]);
    }

    #[test]
    fn odd_names_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["a b", "a\nb", "a\"b"] {
            let mut tree = Archive::default();
            tree.add(path, Node::file(0o644, Vec::new())).unwrap();
            assert!(stage(&tree, dir.path()).is_err(), "{path:?}");
        }
    }
}
