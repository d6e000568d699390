//! Whether a captured tree is one that can be read: such trees come from strangers, and what is in them must neither lead
//! out of them nor hold up or fill the machine that looks at them.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::ReplayError;

/// Files, folders and links of one tree; a machine with hundreds of disks has some ten thousand.
const MAX_ENTRIES: usize = 200_000;
/// Largest file: `/proc/cpuinfo` of the largest machines has some MiB, the tables of the firmware less.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Largest attribute of a device. The kernel gives a page of text, and what is longer than that, such as the pages of a
/// disk, is still not this long.
const MAX_ATTRIBUTE_BYTES: u64 = 64 << 10;
/// All files together.
const MAX_BYTES: u64 = 256 << 20;
/// Folders within each other; paths of devices behind many bridges and hubs have some thirty.
const MAX_DEPTH: usize = 100;

/// Looks at all that is in a tree before any of it is read: folders, regular files of a bounded size, and links that
/// stay in the tree, wherever one follows them.
pub(super) fn check(folder: &Path) -> Result<(), ReplayError> {
    let read = |source| ReplayError::Read { path: folder.to_owned(), source };
    let real = fs::canonicalize(folder).map_err(read)?;
    let mut waiting = vec![(folder.to_owned(), 0)];
    let (mut entries, mut total) = (0, 0);
    while let Some((folder, depth)) = waiting.pop() {
        let read = |path: &Path| {
            let path = path.to_owned();
            move |source| ReplayError::Read { path, source }
        };
        for entry in fs::read_dir(&folder).map_err(read(&folder))? {
            let path = entry.map_err(read(&folder))?.path();
            entries += 1;
            if entries > MAX_ENTRIES || depth >= MAX_DEPTH {
                return refuse(path, "at most 200000 files in at most 100 folders within each other");
            }
            let found = fs::symlink_metadata(&path).map_err(read(&path))?;
            if found.is_dir() {
                waiting.push((path, depth + 1));
            } else if found.is_symlink() {
                link(&real, path, depth)?;
            } else if !found.is_file() {
                return refuse(path, "a regular file, a folder or a link");
            } else {
                total += found.len();
                size(&real, path, found.len(), total)?;
            }
        }
    }
    Ok(())
}

fn refuse(path: PathBuf, expected: &'static str) -> Result<(), ReplayError> {
    Err(ReplayError::Refused { path, expected })
}

/// A file, with the sizes of it and of all so far.
fn size(tree: &Path, path: PathBuf, bytes: u64, total: u64) -> Result<(), ReplayError> {
    let real = fs::canonicalize(&path).unwrap_or_default();
    let below = |name: &str| real.starts_with(tree.join(name));
    if below("sys") && !below("sys/firmware") && bytes > MAX_ATTRIBUTE_BYTES {
        return refuse(path, "an attribute of at most 64 KiB");
    }
    if bytes > MAX_FILE_BYTES {
        return refuse(path, "a file of at most 4 MiB");
    }
    if total > MAX_BYTES {
        return refuse(path, "at most 256 MiB in all files together");
    }
    Ok(())
}

/// A link in a folder that is `depth` below the tree's own. It may lead nowhere, as some of sysfs do in a capture, but both
/// its text and what it really leads to, over other links, must stay in the tree.
fn link(tree: &Path, path: PathBuf, depth: usize) -> Result<(), ReplayError> {
    let target = fs::read_link(&path).map_err(|source| ReplayError::Read { path: path.clone(), source })?;
    let mut level = Some(depth);
    for component in target.components() {
        level = level.and_then(|level| match component {
            Component::Normal(_) => Some(level + 1),
            Component::CurDir => Some(level),
            Component::ParentDir => level.checked_sub(1),
            // Nothing in a captured machine is absolute.
            Component::RootDir | Component::Prefix(_) => None,
        });
    }
    let stays = match fs::canonicalize(&path) {
        Ok(real) => real.starts_with(tree),
        // Not there, a loop, or nothing that this user may see: what follows it fails likewise.
        Err(_) => true,
    };
    if level.is_none() || !stays {
        return refuse(path, "a relative link to something in the tree");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_sys::testing::machine::MachineTree;
    use std::os::unix::fs::symlink;

    fn refused(tree: &MachineTree) -> Option<(String, &'static str)> {
        match check(&tree.path("")) {
            Ok(()) => None,
            Err(ReplayError::Refused { path, expected }) => {
                Some((path.strip_prefix(tree.path("")).unwrap().display().to_string(), expected))
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn links_stay_in_the_tree_by_their_text_and_really() {
        let leads_out = "a relative link to something in the tree";
        for (target, good) in [
            ("../model", true),
            ("..", true),
            ("../../..", true),
            ("../../../nowhere/at/all", true),
            ("link", true),
            ("../../..//./sys", true),
            ("../../../..", false),
            ("../../../../etc/passwd", false),
            ("../../../../no-such-file-of-this-name", false),
            ("../model/../../../../..", false),
            ("/etc/passwd", false),
            ("/dev/zero", false),
            ("/sys", false),
            // Within the tree by its text alone, but over a link to a folder further up.
            ("../up/..", false),
        ] {
            let tree = MachineTree::new().unwrap();
            tree.file("sys/block/model", "x").unwrap();
            std::fs::create_dir_all(tree.path("sys/block/sda")).unwrap();
            symlink("../..", tree.path("sys/block/up")).unwrap();
            symlink(target, tree.path("sys/block/sda/link")).unwrap();
            let want = (!good).then(|| ("sys/block/sda/link".to_owned(), leads_out));
            assert_eq!(refused(&tree), want, "{target}");
        }
    }

    #[test]
    fn the_folder_given_may_itself_be_a_link() {
        let tree = MachineTree::new().unwrap();
        symlink("sys/block", tree.path("link")).unwrap();
        let dir = tempfile::tempdir().unwrap();
        symlink(tree.path(""), dir.path().join("machine")).unwrap();
        check(&dir.path().join("machine")).unwrap();
    }

    #[test]
    fn pipes_sockets_and_large_files_are_refused_with_what_was_expected() {
        let kind = "a regular file, a folder or a link";
        let tree = MachineTree::new().unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(tree.path("socket")).unwrap();
        assert_eq!(refused(&tree), Some(("socket".to_owned(), kind)));
        for (name, bytes, want) in [
            ("proc/cpuinfo", MAX_FILE_BYTES, None),
            ("proc/cpuinfo", MAX_FILE_BYTES + 1, Some("a file of at most 4 MiB")),
            ("proc/cpuinfo", 2 << 30, Some("a file of at most 4 MiB")),
            ("sys/model", MAX_ATTRIBUTE_BYTES, None),
            ("sys/model", MAX_ATTRIBUTE_BYTES + 1, Some("an attribute of at most 64 KiB")),
            ("sys/firmware/dmi/tables/DMI", MAX_FILE_BYTES, None),
        ] {
            let tree = MachineTree::new().unwrap();
            tree.file(name, "").unwrap();
            std::fs::File::create(tree.path(name)).unwrap().set_len(bytes).unwrap();
            assert_eq!(refused(&tree), want.map(|want| (name.to_owned(), want)), "{name} {bytes}");
        }
        let tree = MachineTree::new().unwrap();
        for number in 0..=MAX_BYTES / MAX_FILE_BYTES {
            std::fs::File::create(tree.path(number.to_string())).unwrap().set_len(MAX_FILE_BYTES).unwrap();
        }
        assert_eq!(refused(&tree).map(|(_, expected)| expected), Some("at most 256 MiB in all files together"));
        let tree = MachineTree::new().unwrap();
        tree.file(&format!("{}x", "d/".repeat(MAX_DEPTH)), "").unwrap();
        assert!(refused(&tree).is_some_and(|(_, expected)| expected.starts_with("at most 200000 files")));
    }
}
