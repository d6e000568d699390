//! qcow2 from raw through `qemu-img`.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::tool;

/// How a qcow2 image's clusters are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Qcow2Kind {
    /// As they are.
    Plain,
    /// Compressed with zlib (deflate), which every reader knows.
    Zlib,
    /// Compressed with zstd (incompatible feature bit 3 of the format).
    Zstd,
}

impl Qcow2Kind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Plain, Self::Zlib, Self::Zstd];

    /// The word that tells the kinds apart in file names and on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Zlib => "zlib",
            Self::Zstd => "zstd",
        }
    }

    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Plain => &[],
            Self::Zlib => &["-c"],
            Self::Zstd => &["-c", "-o", "compression_type=zstd"],
        }
    }
}

/// Makes a qcow2 of that kind beside `raw` and returns its path; a file of that name is replaced.
pub fn qcow2_from(raw: &Path, kind: Qcow2Kind) -> Result<PathBuf> {
    let out = raw.with_extension(format!("{}.qcow2", kind.name()));
    convert(raw, kind, &out)?;
    Ok(out)
}

/// Makes the qcow2 `out` from `raw`.
pub(super) fn convert(raw: &Path, kind: Qcow2Kind, out: &Path) -> Result<()> {
    let mut command = tool::command("qemu-img");
    command.args(["convert", "-f", "raw", "-O", "qcow2"]).args(kind.arguments()).arg(raw).arg(out);
    tool::run(&mut command).with_context(|| format!("converting {} to qcow2 ({})", raw.display(), kind.name()))?;
    Ok(())
}
