//! The initramfs archive: newc cpio (Documentation/driver-api/early-userspace/buffer-format.rst).
//!
//! Everything that could differ between two builds is fixed here: order (by path), owner (root), times (0) and inode
//! numbers (position in the archive).

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use cpio::newc::{Builder, ModeFileType, trailer};

use crate::byte_count;

/// The kernel aligns nothing, but its own tools end archives on this boundary.
const BLOCK_BYTES: usize = 512;

/// One thing in the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// A regular file.
    File {
        /// Permission bits.
        mode: u32,
        /// Content.
        bytes: Vec<u8>,
    },
    /// A directory.
    Directory {
        /// Permission bits.
        mode: u32,
    },
    /// A symbolic link.
    Symlink {
        /// What it points to.
        target: String,
    },
    /// A character device.
    CharDevice {
        /// Permission bits.
        mode: u32,
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
}

impl Node {
    /// A regular file.
    pub fn file(mode: u32, bytes: Vec<u8>) -> Self {
        Self::File { mode, bytes }
    }

    /// Permission bits.
    pub fn mode(&self) -> u32 {
        match self {
            Self::File { mode, .. } | Self::Directory { mode } | Self::CharDevice { mode, .. } => *mode,
            Self::Symlink { .. } => 0o777,
        }
    }
}

/// The archive's content by path, without a leading slash.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Archive {
    nodes: BTreeMap<String, Node>,
}

impl Archive {
    /// Everything in the archive, in the order it is written: a directory before what is in it.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.nodes.iter().map(|(path, node)| (path.as_str(), node))
    }

    /// Adds `node` at `path` and the directories above it. A path can be taken once; directories may repeat.
    pub fn add(&mut self, path: &str, node: Node) -> Result<()> {
        let is_plain = path.split('/').all(|part| !matches!(part, "" | "." | ".."));
        ensure!(is_plain, "{path:?} is not a plain relative path");
        for (end, _) in path.match_indices('/') {
            let parent = path.get(..end).unwrap_or(path);
            let above = self.nodes.entry(parent.to_owned()).or_insert(Node::Directory { mode: 0o755 });
            ensure!(matches!(above, Node::Directory { .. }), "{path} lies below {parent}, which is no directory");
        }
        match (self.nodes.get(path), &node) {
            (None, _) | (Some(Node::Directory { .. }), Node::Directory { .. }) => {}
            (Some(_), _) => bail!("{path} is in the image twice"),
        }
        self.nodes.insert(path.to_owned(), node);
        Ok(())
    }

    /// Adds everything below the host's directory `root`. Modes become 644 or 755, whatever the checkout's umask was.
    pub fn add_tree(&mut self, root: &Path) -> Result<()> {
        self.add_below(root, "")
    }

    fn add_below(&mut self, directory: &Path, prefix: &str) -> Result<()> {
        let listing = || format!("listing {}", directory.display());
        for entry in fs::read_dir(directory).with_context(listing)? {
            let entry = entry.with_context(listing)?;
            let host = entry.path();
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else {
                bail!("{} has a name that is not UTF-8", host.display());
            };
            let path = format!("{prefix}{name}");
            let metadata = fs::symlink_metadata(&host).with_context(|| format!("reading {}", host.display()))?;
            if metadata.is_dir() {
                if !self.nodes.contains_key(&path) {
                    self.add(&path, Node::Directory { mode: 0o755 })?;
                }
                self.add_below(&host, &format!("{path}/"))?;
            } else if metadata.is_symlink() {
                let target = fs::read_link(&host).with_context(|| format!("reading link {}", host.display()))?;
                let target = target.to_str().with_context(|| format!("{} points to no UTF-8", host.display()))?;
                self.add(&path, Node::Symlink { target: target.to_owned() })?;
            } else if metadata.is_file() {
                let mode = if metadata.permissions().mode() & 0o100 == 0 { 0o644 } else { 0o755 };
                let bytes = fs::read(&host).with_context(|| format!("reading {}", host.display()))?;
                self.add(&path, Node::file(mode, bytes))?;
            } else {
                bail!("{} is neither file, directory nor symbolic link", host.display());
            }
        }
        Ok(())
    }

    /// The nodes that `is_meant` says, with the directories above them, and all the others.
    pub fn split(&self, is_meant: impl Fn(&str) -> bool) -> (Self, Self) {
        let (mut meant, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
            self.nodes.clone().into_iter().partition(|(path, _)| is_meant(path));
        let above = |(path, _): (&String, &Node)| meant.keys().any(|below| below.starts_with(&format!("{path}/")));
        let directories: Vec<_> = others.iter().filter(|entry| above(*entry)).collect();
        let directories: Vec<_> = directories.into_iter().map(|(path, node)| (path.clone(), node.clone())).collect();
        meant.extend(directories);
        (Self { nodes: meant }, Self { nodes: others })
    }

    /// Writes the archive.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        for (position, (path, node)) in self.nodes.iter().enumerate() {
            let writing = || format!("writing {path} to the archive");
            let inode = u32::try_from(position + 1).with_context(writing)?;
            let entry = Builder::new(path).ino(inode).mode(node.mode());
            let (entry, content): (Builder, &[u8]) = match node {
                Node::File { bytes, .. } => (entry.set_mode_file_type(ModeFileType::Regular), bytes),
                Node::Directory { .. } => (entry.nlink(2).set_mode_file_type(ModeFileType::Directory), &[]),
                Node::Symlink { target } => (entry.set_mode_file_type(ModeFileType::Symlink), target.as_bytes()),
                Node::CharDevice { major, minor, .. } => {
                    let entry = entry.set_mode_file_type(ModeFileType::Char);
                    (entry.rdev_major(*major).rdev_minor(*minor), &[])
                }
            };
            let size = u32::try_from(byte_count(content)).with_context(writing)?;
            let mut writer = entry.write(&mut out, size);
            std::io::Write::write_all(&mut writer, content).with_context(writing)?;
            writer.finish().with_context(writing)?;
        }
        trailer(&mut out).context("ending the archive")?;
        out.resize(out.len().next_multiple_of(BLOCK_BYTES), 0);
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Archive {
        let mut archive = Archive::default();
        archive.add("init", Node::file(0o755, b"\x7fELF".to_vec())).unwrap();
        archive.add("dev/console", Node::CharDevice { mode: 0o600, major: 5, minor: 1 }).unwrap();
        archive.add("etc/mtab", Node::Symlink { target: "/proc/mounts".into() }).unwrap();
        archive
    }

    #[test]
    fn the_bytes_are_those_of_the_format() {
        let bytes = sample().to_bytes().unwrap();
        let header = |ino, mode, nlink, size, rmajor, rminor, namesize| {
            format!(
                "070701{ino:08x}{mode:08x}{:08x}{:08x}{nlink:08x}{:08x}{size:08x}{:08x}{:08x}{rmajor:08x}{rminor:08x}{namesize:08x}{:08x}",
                0, 0, 0, 0, 0, 0
            )
        };
        let mut wanted = Vec::new();
        for (head, name, content) in [
            (header(1, 0o40755, 2, 0, 0, 0, 4), "dev\0\0\0", ""),
            (header(2, 0o20600, 1, 0, 5, 1, 12), "dev/console\0\0\0", ""),
            (header(3, 0o40755, 2, 0, 0, 0, 4), "etc\0\0\0", ""),
            (header(4, 0o120777, 1, 12, 0, 0, 9), "etc/mtab\0\0", "/proc/mounts"),
            (header(5, 0o100755, 1, 4, 0, 0, 5), "init\0\0", "\x7fELF"),
            (header(0, 0, 1, 0, 0, 0, 11), "TRAILER!!!\0\0\0\0", ""),
        ] {
            wanted.extend_from_slice(head.as_bytes());
            wanted.extend_from_slice(name.as_bytes());
            wanted.extend_from_slice(content.as_bytes());
        }
        assert!(bytes.starts_with(&wanted), "{:?}", String::from_utf8_lossy(&bytes));
        assert_eq!(bytes.len() % BLOCK_BYTES, 0);
        assert!(bytes.iter().skip(wanted.len()).all(|byte| *byte == 0));
    }

    #[test]
    fn the_order_of_adding_does_not_matter() {
        let mut other = Archive::default();
        other.add("etc/mtab", Node::Symlink { target: "/proc/mounts".into() }).unwrap();
        other.add("init", Node::file(0o755, b"\x7fELF".to_vec())).unwrap();
        other.add("dev/console", Node::CharDevice { mode: 0o600, major: 5, minor: 1 }).unwrap();
        assert_eq!(other.to_bytes().unwrap(), sample().to_bytes().unwrap());
    }

    #[test]
    fn a_part_has_the_directories_it_lies_in() {
        let (meant, others) = sample().split(|path| path == "init" || path == "etc/mtab");
        assert_eq!(meant.nodes().map(|(path, _)| path).collect::<Vec<_>>(), ["etc", "etc/mtab", "init"]);
        assert_eq!(others.nodes().map(|(path, _)| path).collect::<Vec<_>>(), ["dev", "dev/console", "etc"]);
        let (meant, _) = sample().split(|path| path == "init");
        assert_eq!(meant.nodes().count(), 1);
    }

    #[test]
    fn a_path_that_is_not_plain_or_taken_is_refused() {
        let file = || Node::file(0o644, Vec::new());
        let cases = [
            ("/abs", "plain"),
            ("a//b", "plain"),
            ("../up", "plain"),
            ("", "plain"),
            ("init", "twice"),
            ("init/below", "no directory"),
            ("dev", "twice"),
        ];
        for (path, wanted) in cases {
            let text = sample().add(path, file()).expect_err(path).to_string();
            assert!(text.contains(wanted), "{path}: {text}");
        }
    }

    #[test]
    fn a_tree_keeps_the_executable_bit_and_nothing_else_of_the_mode() {
        let tree = tempfile::tempdir().unwrap();
        fs::create_dir(tree.path().join("etc")).unwrap();
        for (name, mode) in [("etc/plain", 0o600), ("etc/program", 0o700)] {
            let path = tree.path().join(name);
            fs::write(&path, name).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
        std::os::unix::fs::symlink("plain", tree.path().join("etc/link")).unwrap();
        let mut archive = Archive::default();
        archive.add_tree(tree.path()).unwrap();
        let modes: Vec<_> = archive.nodes().map(|(path, node)| (path, node.mode())).collect();
        assert_eq!(modes, [("etc", 0o755), ("etc/link", 0o777), ("etc/plain", 0o644), ("etc/program", 0o755)]);
    }
}
