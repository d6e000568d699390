//! A file tree in memory, owned by root whoever builds it, and its form as a `newc` cpio archive (the initramfs).

use std::collections::BTreeMap;
use std::io::Write as _;

use anyhow::{Context as _, Result, bail};
use cpio::newc::{self, ModeFileType};

/// One entry of a [`Tree`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    /// Directory with its permission bits.
    Dir { mode: u32 },
    /// Regular file.
    File { mode: u32, data: Vec<u8> },
    /// Symbolic link.
    Symlink { target: String },
    /// Character device.
    CharDevice { mode: u32, major: u32, minor: u32 },
}

/// Entries by path without a leading slash. The order of the map puts every directory before what is in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tree(BTreeMap<String, Node>);

impl Tree {
    /// Adds a directory; one that is there gets the new mode.
    pub(super) fn dir(&mut self, path: &str, mode: u32) -> Result<()> {
        self.insert(path, Node::Dir { mode })
    }

    /// Adds a regular file.
    pub(super) fn file(&mut self, path: &str, mode: u32, data: impl Into<Vec<u8>>) -> Result<()> {
        self.insert(path, Node::File { mode, data: data.into() })
    }

    /// Adds a symbolic link.
    pub(super) fn symlink(&mut self, path: &str, target: &str) -> Result<()> {
        self.insert(path, Node::Symlink { target: target.to_owned() })
    }

    /// Adds a character device.
    pub(super) fn char_device(&mut self, path: &str, mode: u32, major: u32, minor: u32) -> Result<()> {
        self.insert(path, Node::CharDevice { mode, major, minor })
    }

    /// Every entry, directories before their content.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.0.iter().map(|(path, node)| (path.as_str(), node))
    }

    /// Whether something has that path.
    pub(super) fn contains(&self, path: &str) -> bool {
        self.0.contains_key(path)
    }

    /// The archive the kernel unpacks: inode numbers in order, all times zero, so equal trees give equal bytes.
    pub(super) fn to_cpio(&self) -> Result<Vec<u8>> {
        let mut archive = Vec::new();
        for (ino, (path, node)) in (1u32..).zip(self.iter()) {
            let entry = newc::Builder::new(path).ino(ino);
            let (entry, data): (_, &[u8]) = match node {
                Node::Dir { mode } => (entry.mode(*mode).nlink(2).set_mode_file_type(ModeFileType::Directory), &[]),
                Node::File { mode, data } => (entry.mode(*mode).set_mode_file_type(ModeFileType::Regular), data),
                Node::Symlink { target } => {
                    (entry.mode(0o777).set_mode_file_type(ModeFileType::Symlink), target.as_bytes())
                }
                Node::CharDevice { mode, major, minor } => (
                    entry.mode(*mode).set_mode_file_type(ModeFileType::Char).rdev_major(*major).rdev_minor(*minor),
                    &[],
                ),
            };
            let size = u32::try_from(data.len()).with_context(|| format!("{path} is too large for a cpio archive"))?;
            let mut writer = entry.write(&mut archive, size);
            writer.write_all(data).with_context(|| format!("adding {path} to the initramfs"))?;
            writer.finish().with_context(|| format!("adding {path} to the initramfs"))?;
        }
        newc::trailer(&mut archive).context("closing the initramfs")?;
        Ok(archive)
    }

    fn insert(&mut self, path: &str, node: Node) -> Result<()> {
        // debugfs scripts have no quoting worth relying on, and nothing in this system needs odd names.
        if path.is_empty() || path.starts_with('/') || path.chars().any(|c| c.is_whitespace() || c == '"') {
            bail!("{path:?} cannot be a path in the image");
        }
        let mut end = 0;
        while let Some(slash) = path.get(end..).and_then(|rest| rest.find('/')) {
            end += slash;
            let parent = path.get(..end).unwrap_or_default();
            match self.0.get(parent) {
                None => {
                    self.0.insert(parent.to_owned(), Node::Dir { mode: 0o755 });
                }
                Some(Node::Dir { .. }) => {}
                Some(_) => bail!("{path} lies below {parent}, which is no directory"),
            }
            end += 1;
        }
        self.0.insert(path.to_owned(), node);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_are_made_and_come_first() {
        let mut tree = Tree::default();
        tree.file("etc/init.d/rcS", 0o755, "x").unwrap();
        tree.symlink("bin", "usr/bin").unwrap();
        let paths: Vec<&str> = tree.iter().map(|(path, _)| path).collect();
        assert_eq!(paths, ["bin", "etc", "etc/init.d", "etc/init.d/rcS"]);
    }

    #[test]
    fn odd_paths_are_refused() {
        let mut tree = Tree::default();
        tree.symlink("bin", "usr/bin").unwrap();
        for path in ["", "/etc", "a b", "a\nb", "bin/sh"] {
            assert!(tree.file(path, 0o644, "").is_err(), "{path:?}");
        }
    }

    #[test]
    fn archive_holds_every_entry_as_given_and_is_reproducible() {
        let mut tree = Tree::default();
        tree.file("init", 0o755, "#!/bin/sh\n").unwrap();
        tree.symlink("bin/sh", "busybox").unwrap();
        tree.char_device("dev/console", 0o600, 5, 1).unwrap();
        let archive = tree.to_cpio().unwrap();
        assert_eq!(archive, tree.clone().to_cpio().unwrap());
        let mut rest = archive.as_slice();
        let mut seen = Vec::new();
        loop {
            let reader = newc::Reader::new(rest).unwrap();
            let entry = reader.entry().clone();
            if entry.is_trailer() {
                break;
            }
            let mut data = Vec::new();
            rest = reader.to_writer(&mut data).unwrap();
            seen.push((entry.name().to_owned(), entry.mode(), entry.rdev_major(), String::from_utf8(data).unwrap()));
        }
        let expected = [
            ("bin", 0o040_755, 0, ""),
            ("bin/sh", 0o120_777, 0, "busybox"),
            ("dev", 0o040_755, 0, ""),
            ("dev/console", 0o020_600, 5, ""),
            ("init", 0o100_755, 0, "#!/bin/sh\n"),
        ]
        .map(|(name, mode, major, data)| (name.to_owned(), mode, major, data.to_owned()));
        assert_eq!(seen, expected);
    }
}
