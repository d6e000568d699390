//! Checksums, and the writing of a finished image directory.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

/// The SHA-256 of `bytes` in lower-case hexadecimal.
pub fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}

/// The text of a `SHA256SUMS` file, as `sha256sum --check` reads it.
pub fn sums_text(files: &[(&str, Vec<u8>)]) -> String {
    let mut lines: Vec<String> = files.iter().map(|(name, bytes)| format!("{}  {name}\n", sha256_hex(bytes))).collect();
    lines.sort_by(|a, b| a.get(64..).cmp(&b.get(64..)));
    lines.concat()
}

/// Writes `files` and their `SHA256SUMS` to `directory`; tells whether all of them were there already.
///
/// A file that holds the right bytes is left alone. A changed one appears whole or not at all, so that a machine
/// that is just booting from the directory never gets half of it.
pub fn write_directory(directory: &Path, files: &[(&str, Vec<u8>)]) -> Result<bool> {
    fs::create_dir_all(directory).with_context(|| format!("creating {}", directory.display()))?;
    let sums = sums_text(files).into_bytes();
    let mut unchanged = true;
    let all = files.iter().map(|(name, bytes)| (*name, bytes)).chain([("SHA256SUMS", &sums)]);
    for (name, bytes) in all {
        let path = directory.join(name);
        if fs::read(&path).is_ok_and(|present| present == *bytes) {
            continue;
        }
        unchanged = false;
        let partial = directory.join(format!("{name}.partial"));
        fs::write(&partial, bytes).with_context(|| format!("writing {}", partial.display()))?;
        fs::rename(&partial, &path).with_context(|| format!("renaming {} to {}", partial.display(), path.display()))?;
    }
    Ok(unchanged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_nothing_is_the_standard_one() {
        // FIPS 180-4 example vectors.
        let cases = [
            ("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            ("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        ];
        for (text, wanted) in cases {
            assert_eq!(sha256_hex(text.as_bytes()), wanted, "{text:?}");
        }
    }

    #[test]
    fn lines_are_sorted_by_name() {
        let text = sums_text(&[("b", b"1".to_vec()), ("a", b"2".to_vec())]);
        let names: Vec<&str> = text.lines().filter_map(|line| line.split_once("  ")).map(|(_, name)| name).collect();
        assert_eq!(names, ["a", "b"]);
    }

    #[test]
    fn writing_again_changes_nothing_and_a_change_is_seen() {
        let out = tempfile::tempdir().unwrap();
        let files = [("vmlinuz", b"kernel".to_vec())];
        assert!(!write_directory(out.path(), &files).unwrap());
        assert!(write_directory(out.path(), &files).unwrap());
        fs::write(out.path().join("vmlinuz"), "cut").unwrap();
        assert!(!write_directory(out.path(), &files).unwrap());
        assert_eq!(fs::read(out.path().join("vmlinuz")).unwrap(), b"kernel");
        assert_eq!(fs::read_dir(out.path()).unwrap().count(), 2, "a partial file was left");
    }
}
