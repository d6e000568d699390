//! The file system of an image, mounted for a moment: what is in it may be hostile.
//!
//! Nothing of it is run, no device in it can be opened, and no path leads out of it: every name is looked up by the kernel
//! with the file system as its root (openat2(2), `RESOLVE_IN_ROOT`), without magic links or other mounts.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ferric_sys::mount;
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, openat2};

/// How often a file system is taken away again while somebody still looks at it.
const UNMOUNT_TRIES: u32 = 3;
const UNMOUNT_PAUSE: Duration = Duration::from_secs(1);

/// A directory from which no path leads out.
#[derive(Debug)]
pub struct ImageRoot(OwnedFd);

impl ImageRoot {
    /// Takes a directory as the root.
    ///
    /// # Errors
    /// It is none.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(path, flags, Mode::empty())?))
    }

    fn look_up(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        self.look_up_or_make(path, flags, Mode::empty())
    }

    /// Opens what is at a path, which also `O_CREAT` makes within the image only, with the given rights.
    pub(crate) fn look_up_or_make(&self, path: &str, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        let path = CString::new(path)?;
        // A pipe would make the reader wait for a writer.
        let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        Ok(openat2(&self.0, path.as_c_str(), flags, mode, within)?)
    }

    /// Opens a regular file, for writing if asked for; links to one are followed within the image.
    ///
    /// # Errors
    /// It is none, or cannot be opened.
    pub fn file(&self, path: &str, write: bool) -> io::Result<File> {
        let file = File::from(self.look_up(path, if write { OFlags::RDWR } else { OFlags::RDONLY })?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(file)
    }

    /// Names and types of what is in a directory, `limit` at most. A directory that is a link is none, so that there are no
    /// circles.
    ///
    /// # Errors
    /// It is no directory or cannot be read.
    pub fn list(&self, path: &str, limit: usize) -> io::Result<Vec<(String, FileType)>> {
        let directory = self.look_up(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW)?;
        let mut found = Vec::new();
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            // A name that is no text cannot be one on FAT.
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name != "." && name != ".." {
                found.push((name.to_owned(), entry.file_type()));
            }
            if found.len() > limit {
                return Err(io::Error::other(format!("more than {limit} files")));
            }
        }
        found.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Ok(found)
    }
}

/// A file system that is mounted until it is taken away, or this is dropped.
#[derive(Debug)]
pub struct Mounted {
    target: PathBuf,
    gone: bool,
}

impl Mounted {
    /// Mounts a file system of the kind at a place that is made if need be.
    ///
    /// # Errors
    /// The kernel cannot.
    pub fn new(device: &Path, target: &Path, kind: &str) -> io::Result<Self> {
        std::fs::create_dir_all(target)?;
        mount::mount_foreign(device, target, kind)?;
        Ok(Self { target: target.to_owned(), gone: false })
    }

    /// Takes it away, with everything written to it on the disk.
    ///
    /// # Errors
    /// It stays in use.
    pub fn unmount(mut self) -> io::Result<()> {
        let mut tries = 0;
        loop {
            tries += 1;
            match mount::unmount_from(&self.target, false) {
                Ok(()) => {
                    self.gone = true;
                    return Ok(());
                }
                Err(_) if tries < UNMOUNT_TRIES => std::thread::sleep(UNMOUNT_PAUSE),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.gone
            && let Err(error) = mount::unmount_from(&self.target, true)
        {
            tracing::warn!(target = %self.target.display(), %error, "the image's file system stays mounted");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::unix::fs::symlink;

    /// An image beside a file that is none of its business.
    fn image() -> (tempfile::TempDir, ImageRoot) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("image");
        std::fs::create_dir_all(root.join("etc")).unwrap();
        std::fs::create_dir_all(root.join("boot/efi/EFI")).unwrap();
        std::fs::write(dir.path().join("secret"), "outside").unwrap();
        std::fs::write(root.join("secret"), "inside").unwrap();
        let opened = ImageRoot::open(&root).unwrap();
        (dir, opened)
    }

    fn read(root: &ImageRoot, path: &str) -> io::Result<String> {
        let mut text = String::new();
        root.file(path, false)?.read_to_string(&mut text)?;
        Ok(text)
    }

    #[test]
    fn no_path_leads_out_of_the_image() {
        let (dir, root) = image();
        let place = dir.path().join("image/etc");
        let outside = dir.path().join("secret");
        symlink("../../secret", place.join("up")).unwrap();
        symlink("../../../../../../../../../../secret", place.join("far-up")).unwrap();
        symlink("/secret", place.join("absolute")).unwrap();
        symlink(&outside, place.join("real")).unwrap();
        symlink("/", place.join("root")).unwrap();
        symlink("/proc/self/root", place.join("magic")).unwrap();
        for path in
            ["etc/up", "etc/far-up", "etc/absolute", "etc/root/secret", "../secret", "/secret", "etc/../../secret"]
        {
            assert_eq!(read(&root, path).unwrap(), "inside", "{path}");
        }
        // Absolute places of the machine do not exist in the image.
        let path = format!("etc/root{}", outside.display());
        for path in ["etc/real", "etc/magic/etc/passwd", "/proc/self/environ", &path] {
            assert!(read(&root, path).is_err(), "{path}");
        }
        assert_eq!(std::fs::read_to_string(outside).unwrap(), "outside");
    }

    #[test]
    fn only_regular_files_are_opened_and_no_link_is_a_directory() {
        let (dir, root) = image();
        let place = dir.path().join("image");
        let fifo = place.join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::from_raw_mode(0o600)).unwrap();
        symlink("boot", place.join("loop")).unwrap();
        symlink("circle", place.join("circle")).unwrap();
        for path in ["fifo", "etc", "nothing", "circle", "a\0b"] {
            assert!(root.file(path, false).is_err(), "{path:?}");
        }
        assert!(root.list("loop", 9).is_err() && root.list("secret", 9).is_err());
        let names: Vec<String> = root.list("/", 9).unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["boot", "circle", "etc", "fifo", "loop", "secret"]);
        assert!(root.list("/", 3).unwrap_err().to_string().contains("more than 3"));
    }
}
