//! What an image server gives out: bytes, files, or a pattern of any length that takes no room.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use sha2::{Digest, Sha256, Sha512};

use crate::disk_file::pattern;

/// The body behind a path.
#[derive(Debug, Clone)]
pub enum Content {
    /// Bytes in memory.
    Bytes(Arc<[u8]>),
    /// A file, opened anew for each request.
    File(PathBuf),
    /// `len_bytes` of the pattern [`crate::disk_file::pattern`] with this seed; a disk it was written to passes
    /// [`crate::DiskFile::check_fill`].
    Pattern {
        /// Seed.
        seed: u64,
        /// Length.
        len_bytes: u64,
    },
}

impl Content {
    /// Bytes in memory.
    pub fn bytes(bytes: impl Into<Vec<u8>>) -> Self {
        Self::Bytes(Arc::from(bytes.into()))
    }

    /// A checksum list as `sha256sum` writes it: (hex digest, file name) pairs, `digest  name` in each line.
    pub fn checksums_gnu(entries: &[(&str, &str)]) -> Self {
        Self::bytes(entries.iter().map(|(digest, name)| format!("{digest}  {name}\n")).collect::<String>())
    }

    /// A checksum list as BSD's tools (and `sha256sum --tag`) write it: `SHA256 (name) = digest` in each line.
    pub fn checksums_bsd(algorithm: &str, entries: &[(&str, &str)]) -> Self {
        Self::bytes(
            entries.iter().map(|(digest, name)| format!("{algorithm} ({name}) = {digest}\n")).collect::<String>(),
        )
    }

    /// Length.
    ///
    /// # Errors
    /// When a file is gone.
    pub fn len_bytes(&self) -> Result<u64> {
        match self {
            Self::Bytes(bytes) => Ok(u64::try_from(bytes.len())?),
            Self::File(path) => Ok(path.metadata().with_context(|| format!("looking at {}", path.display()))?.len()),
            Self::Pattern { len_bytes, .. } => Ok(*len_bytes),
        }
    }

    /// SHA-256 of all of it, in hex.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn sha256(&self) -> Result<String> {
        self.digest::<Sha256>()
    }

    /// SHA-512 of all of it, in hex.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn sha512(&self) -> Result<String> {
        self.digest::<Sha512>()
    }

    /// Digest of all of it, in hex.
    pub(crate) fn digest<D: Digest>(&self) -> Result<String> {
        let mut hash = D::new();
        let body = self.open()?;
        let (mut at, end) = (0, self.len_bytes()?);
        while at < end {
            let chunk = body.read(at, end - at)?;
            hash.update(&chunk);
            at += u64::try_from(chunk.len())?;
        }
        Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    pub(super) fn open(&self) -> Result<Body> {
        Ok(match self {
            Self::Bytes(bytes) => Body::Bytes(Arc::clone(bytes)),
            Self::File(path) => Body::File(File::open(path).with_context(|| format!("opening {}", path.display()))?),
            Self::Pattern { seed, .. } => Body::Pattern(*seed),
        })
    }
}

/// Content opened for one request.
#[derive(Debug)]
pub(super) enum Body {
    Bytes(Arc<[u8]>),
    File(File),
    Pattern(u64),
}

/// Most bytes handed out at once.
const CHUNK: u64 = 256 << 10;

impl Body {
    /// At most `len` bytes at `offset`, at least one unless `len` is zero.
    pub(super) fn read(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        let len = usize::try_from(len.min(CHUNK))?;
        let mut chunk = vec![0; len];
        match self {
            Self::Bytes(bytes) => {
                let start = usize::try_from(offset)?;
                let part = bytes.get(start..start + len).context("reading past the end of the content")?;
                chunk.copy_from_slice(part);
            }
            Self::File(file) => file.read_exact_at(&mut chunk, offset)?,
            Self::Pattern(seed) => pattern(*seed, offset, &mut chunk),
        }
        Ok(chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_lists_have_the_form_of_the_tools() {
        let text = |content: Content| {
            String::from_utf8(content.open().unwrap().read(0, content.len_bytes().unwrap()).unwrap()).unwrap()
        };
        assert_eq!(text(Content::checksums_gnu(&[("ab", "x"), ("cd", "y")])), "ab  x\ncd  y\n");
        assert_eq!(text(Content::checksums_bsd("SHA256", &[("ab", "x")])), "SHA256 (x) = ab\n");
    }

    #[test]
    fn digest_is_the_same_from_memory_file_and_pattern() {
        assert_eq!(
            Content::bytes("abc").sha256().unwrap(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert!(Content::bytes("abc").sha512().unwrap().starts_with("ddaf35a193617abacc417349ae204131"));
        let generated = Content::Pattern { seed: 4, len_bytes: 700_001 };
        let mut bytes = vec![0; 700_001];
        pattern(4, 0, &mut bytes);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(generated.sha256().unwrap(), Content::bytes(bytes).sha256().unwrap());
        assert_eq!(generated.sha256().unwrap(), Content::File(path).sha256().unwrap());
    }
}
