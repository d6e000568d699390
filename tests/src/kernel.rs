//! The kernel without its compression.
//!
//! Under emulation a compressed kernel spends two thirds of a boot on unpacking itself. QEMU can start the ELF file inside
//! of it directly (the PVH entry that Linux has for Xen); from there on it is the same kernel.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::UNIX_EPOCH;

use anyhow::{Context as _, Result, ensure};
use ferric_qemu::artifacts;

const XZ_MAGIC: &[u8] = b"\xfd7zXZ\0";
const ELF_MAGIC: &[u8] = b"\x7fELF";

/// The unpacked form of a kernel, kept under `build/cache`; the kernel itself when it is packed in a way not known here.
pub(crate) fn unpacked(kernel: &Path) -> Result<PathBuf> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let data = kernel.metadata().with_context(|| format!("looking at {}", kernel.display()))?;
    let changed = data.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    let dir = artifacts::build_dir()?.join("cache/vmlinux");
    let target = dir.join(format!("{}-{}", data.len(), changed.as_nanos()));
    if target.is_file() {
        return Ok(target);
    }
    let packed = fs::read(kernel).with_context(|| format!("reading {}", kernel.display()))?;
    let Some(start) = packed.windows(XZ_MAGIC.len()).position(|window| window == XZ_MAGIC) else {
        return Ok(kernel.to_owned());
    };
    let elf = unpack(packed.get(start..).unwrap_or_default())?;
    ensure!(elf.starts_with(ELF_MAGIC), "{} holds something else than a kernel", kernel.display());
    fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    let mut file = tempfile::NamedTempFile::new_in(&dir).context("creating a file for the unpacked kernel")?;
    file.write_all(&elf).context("writing the unpacked kernel")?;
    file.persist(&target).context("keeping the unpacked kernel")?;
    Ok(target)
}

/// The first stream of `packed`; the boot loader's parts follow it.
fn unpack(packed: &[u8]) -> Result<Vec<u8>> {
    let mut command = Command::new(artifacts::program("xz", "xz-utils")?);
    command.args(["-dc", "--single-stream"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().context("starting xz")?;
    let mut input = child.stdin.take().context("xz takes no input")?;
    std::thread::scope(|scope| {
        // It stops reading at the end of the stream, which is no error.
        scope.spawn(move || drop(input.write_all(packed)));
        let output = child.wait_with_output().context("unpacking the kernel")?;
        ensure!(output.status.success(), "xz: {}", output.status);
        Ok(output.stdout)
    })
}
