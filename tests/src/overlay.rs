//! Archives behind the image's own initramfs, as sites use them to bring a CA or settings into the ramdisk.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use anyhow::{Context as _, Result};
use cpio::newc::{Builder, ModeFileType, trailer};

/// Alignment at which the kernel looks for the next archive.
const ALIGNMENT: usize = 4;

/// Writes to `target` the initramfs `base` with an uncompressed archive of `files` (path and content) behind it.
pub(crate) fn append(base: &Path, files: &[(String, Vec<u8>)], target: &Path) -> Result<()> {
    let mut bytes = std::fs::read(base).with_context(|| format!("reading {}", base.display()))?;
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
    bytes.extend(archive(files, 0o644).context("packing further files")?);
    std::fs::write(target, bytes).with_context(|| format!("writing {}", target.display()))
}

/// A newc archive of these files and the folders they are in.
pub(crate) fn archive(files: &[(String, Vec<u8>)], mode: u32) -> io::Result<Vec<u8>> {
    let folders: BTreeSet<&Path> = files
        .iter()
        .flat_map(|(path, _)| Path::new(path).ancestors().skip(1))
        .filter(|p| *p != Path::new(""))
        .collect();
    let mut out = Vec::new();
    let mut number = 1;
    for folder in folders {
        let entry = Builder::new(&folder.display().to_string()).mode(0o755).set_mode_file_type(ModeFileType::Directory);
        entry.ino(number).nlink(2).write(&mut out, 0).finish()?;
        number += 1;
    }
    for (path, content) in files {
        // What lies with programs is one.
        let mode = if path.contains("bin/") { 0o755 } else { mode };
        let size = u32::try_from(content.len()).map_err(io::Error::other)?;
        let entry = Builder::new(path).mode(mode).set_mode_file_type(ModeFileType::Regular).ino(number).nlink(1);
        let mut file = entry.write(&mut out, size);
        io::Write::write_all(&mut file, content)?;
        file.finish()?;
        number += 1;
    }
    trailer(out)
}
