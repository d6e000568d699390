//! A file that is there as a whole or not at all.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Makes a file that must not be there yet: as `NAME.part`, which gets its name when all is written and is removed when
/// that fails.
///
/// # Errors
/// There is a file of either name, or it cannot be written.
pub fn new_file(path: &Path, write: impl FnOnce(File) -> io::Result<()>) -> io::Result<()> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    for path in [path, &part] {
        if fs::symlink_metadata(path).is_ok() {
            let message = format!("{} exists already and is not overwritten", path.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
        }
    }
    let file = File::options().write(true).create_new(true).open(&part)?;
    let written = write(file).and_then(|()| fs::rename(&part, path));
    if written.is_err()
        && let Err(error) = fs::remove_file(&part)
    {
        tracing::warn!(path = %part.display(), %error, "an incomplete file is left");
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn a_file_is_whole_or_not_there_and_none_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.tar");
        let full = |mut file: File| {
            file.write_all(b"half")?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        };
        assert_eq!(new_file(&path, full).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        new_file(&path, |mut file| file.write_all(b"whole")).unwrap();
        let error = new_file(&path, |mut file| file.write_all(b"other")).unwrap_err();
        assert_eq!(error.to_string(), format!("{} exists already and is not overwritten", path.display()));
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
