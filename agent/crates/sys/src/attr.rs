//! Small text files of sysfs and procfs.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// The largest file that is read: `/proc/cpuinfo` of the largest machines has some MiB, an attribute of sysfs a page.
const MAX_BYTES: u64 = 16 << 20;

/// A sysfs or procfs file could not be read or does not hold what it should.
#[derive(Debug, thiserror::Error)]
pub enum AttrError {
    /// The file could not be read.
    #[error("reading {}", path.display())]
    Read {
        /// File.
        path: PathBuf,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// The file could not be written.
    #[error("writing {value:?} to {}", path.display())]
    Write {
        /// File.
        path: PathBuf,
        /// What was to be written.
        value: String,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// The file holds no number.
    #[error("{} holds {value:?} where a number was expected", path.display())]
    NotANumber {
        /// File.
        path: PathBuf,
        /// What it holds.
        value: String,
    },
}

/// The file's text without white space around it; bytes that are not UTF-8 are replaced.
///
/// # Errors
/// [`AttrError::Read`]; also for what is no regular file, as those of sysfs and procfs are, and for one above 16 MiB.
pub fn read_trimmed(path: &Path) -> Result<String, AttrError> {
    match read_bounded(path) {
        Ok(bytes) => {
            Ok(String::from_utf8_lossy(&bytes).trim_matches(|c: char| c.is_whitespace() || c == '\0').to_owned())
        }
        Err(source) => Err(AttrError::Read { path: path.to_owned(), source }),
    }
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    // A pipe that nobody writes to must not be waited for.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut bytes = Vec::new();
    let mut file = file.take(MAX_BYTES + 1);
    file.read_to_end(&mut bytes)?;
    if file.limit() == 0 { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes) }
}

/// The file's text, or `None` when it is missing, unreadable or empty: the usual case for optional attributes.
pub fn read_optional(path: &Path) -> Option<String> {
    read_trimmed(path).ok().filter(|text| !text.is_empty())
}

/// The file's decimal number.
///
/// # Errors
/// [`AttrError::Read`], or [`AttrError::NotANumber`].
pub fn read_u64(path: &Path) -> Result<u64, AttrError> {
    let value = read_trimmed(path)?;
    value.parse().map_err(|_not_a_number| AttrError::NotANumber { path: path.to_owned(), value })
}

/// Writes a value in one `write`, as sysfs and procfs want it.
///
/// # Errors
/// [`AttrError::Write`].
pub fn write(path: &Path, value: &str) -> Result<(), AttrError> {
    std::fs::OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()))
        .map_err(|source| AttrError::Write { path: path.to_owned(), value: value.to_owned(), source })
}

/// Names in a directory, sorted; empty when it is missing.
pub fn list(path: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(path) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.filter_map(Result::ok).filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Last component of what a symbolic link points to, as `driver` and `device` links are read.
pub fn link_name(path: &Path) -> Option<String> {
    std::fs::read_link(path).ok()?.file_name()?.to_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_trimmed_and_errors_name_the_file() {
        let dir = std::env::temp_dir().join(format!("ferric-attr-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("size"), " 2048\n").unwrap();
        std::fs::write(dir.join("model"), b"QEMU \xff\0\n").unwrap();
        std::fs::write(dir.join("empty"), "\n").unwrap();
        assert_eq!(read_u64(&dir.join("size")).unwrap(), 2048);
        assert_eq!(read_trimmed(&dir.join("model")).unwrap(), "QEMU \u{fffd}");
        assert_eq!(read_optional(&dir.join("empty")), None);
        let error = read_u64(&dir.join("model")).unwrap_err().to_string();
        assert!(error.contains("model") && error.contains("number"), "{error}");
        assert_eq!(list(&dir), ["empty", "model", "size"]);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn only_regular_files_of_a_bounded_size_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        std::os::unix::fs::symlink("/dev/zero", at("zero")).unwrap();
        for name in ["pipe", "zero", "."] {
            assert!(read_trimmed(&at(name)).is_err(), "{name}");
        }
        let file = std::fs::File::create(at("large")).unwrap();
        file.set_len(MAX_BYTES).unwrap();
        assert_eq!(read_trimmed(&at("large")).unwrap(), "");
        file.set_len(MAX_BYTES + 1).unwrap();
        let AttrError::Read { source, .. } = read_trimmed(&at("large")).unwrap_err() else { panic!("another error") };
        assert_eq!(source.kind(), io::ErrorKind::FileTooLarge);
    }
}
