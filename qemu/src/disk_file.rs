//! The files behind disks, seen from the host: create, fill, read, compare.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{SeekFrom, seek};

use crate::artifacts;
use crate::disk::DiskFormat;

/// Bytes handled at once.
const CHUNK: usize = 1 << 20;

/// A file that is a disk of some machine. The file is removed by whoever owns its folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskFile {
    path: PathBuf,
    format: DiskFormat,
}

impl DiskFile {
    /// A new raw disk of `size_bytes`, all zero and taking no room.
    ///
    /// # Errors
    /// When it exists or cannot be created.
    pub fn create_raw(path: impl Into<PathBuf>, size_bytes: u64) -> Result<Self> {
        let path = path.into();
        let file = File::create_new(&path).with_context(|| format!("creating {}", path.display()))?;
        file.set_len(size_bytes).with_context(|| format!("sizing {}", path.display()))?;
        Ok(Self { path, format: DiskFormat::Raw })
    }

    /// A new qcow2 disk of `size_bytes`.
    ///
    /// # Errors
    /// When qemu-img is not installed or fails.
    pub fn create_qcow2(path: impl Into<PathBuf>, size_bytes: u64) -> Result<Self> {
        let path = path.into();
        qemu_img(&["create", "-q", "-f", "qcow2", &path.display().to_string(), &size_bytes.to_string()])?;
        Ok(Self { path, format: DiskFormat::Qcow2 })
    }

    /// An existing file.
    pub fn existing(path: impl Into<PathBuf>, format: DiskFormat) -> Self {
        Self { path: path.into(), format }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its format.
    pub fn format(&self) -> DiskFormat {
        self.format
    }

    /// Size of the file in bytes (for raw: of the disk).
    ///
    /// # Errors
    /// When it is gone.
    pub fn len_bytes(&self) -> Result<u64> {
        Ok(self.path.metadata().with_context(|| format!("looking at {}", self.path.display()))?.len())
    }

    /// Whether the file has no bytes.
    ///
    /// # Errors
    /// As [`len_bytes`](Self::len_bytes).
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len_bytes()? == 0)
    }

    /// Bytes that take room on the host.
    ///
    /// # Errors
    /// When it is gone.
    pub fn allocated_bytes(&self) -> Result<u64> {
        use std::os::unix::fs::MetadataExt as _;
        Ok(self.path.metadata().with_context(|| format!("looking at {}", self.path.display()))?.blocks() * 512)
    }

    /// `len` bytes at `offset`.
    ///
    /// # Errors
    /// When the range goes past the end.
    pub fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.open()?
            .read_exact_at(&mut bytes, offset)
            .with_context(|| format!("reading {len} bytes at {offset} of {}", self.path.display()))?;
        Ok(bytes)
    }

    /// Writes `bytes` at `offset`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let file = OpenOptions::new().write(true).open(&self.path);
        let file = file.with_context(|| format!("opening {}", self.path.display()))?;
        file.write_all_at(bytes, offset).with_context(|| format!("writing at {offset} of {}", self.path.display()))
    }

    /// Fills a range with bytes that are never zero for eight in a row and differ from place to place; see [`pattern`].
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn fill(&self, seed: u64, offset: u64, len_bytes: u64) -> Result<()> {
        for_chunks(offset, len_bytes, |at, len| {
            let mut bytes = vec![0; len];
            pattern(seed, at, &mut bytes);
            self.write(at, &bytes)
        })
    }

    /// Checks that a range is as [`fill`](Self::fill) left it.
    ///
    /// # Errors
    /// When it is not, naming the first byte that differs.
    pub fn check_fill(&self, seed: u64, offset: u64, len_bytes: u64) -> Result<()> {
        for_chunks(offset, len_bytes, |at, len| {
            let mut bytes = vec![0; len];
            pattern(seed, at, &mut bytes);
            self.check(at, &bytes)
        })
    }

    /// Checks that the bytes at `offset` are `expected`.
    ///
    /// # Errors
    /// When they are not, naming the first byte that differs.
    pub fn check(&self, offset: u64, expected: &[u8]) -> Result<()> {
        let found = self.read(offset, expected.len())?;
        match found.iter().zip(expected).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(place) => bail!(
                "{}: byte {} is {:#04x}, expected {:#04x}",
                self.path.display(),
                offset + u64::try_from(place)?,
                found.get(place).copied().unwrap_or_default(),
                expected.get(place).copied().unwrap_or_default()
            ),
        }
    }

    /// Checks that the disk begins with the content of the raw file `image`, but for the ranges (offset, length) in
    /// `except`, e.g. where a partition table was moved.
    ///
    /// # Errors
    /// When it does not, naming the first byte that differs.
    pub fn check_image(&self, image: &Path, except: &[(u64, u64)]) -> Result<()> {
        let source = Self::existing(image, DiskFormat::Raw);
        let mut starts = vec![(0, 0)];
        starts.extend(except);
        starts.sort_unstable();
        let total = source.len_bytes()?;
        for (place, (start, len)) in starts.iter().enumerate() {
            let from = (start + len).min(total);
            let to = starts.get(place + 1).map_or(total, |next| next.0.min(total));
            for_chunks(from, to.saturating_sub(from), |at, len| self.check(at, &source.read(at, len)?))?;
        }
        Ok(())
    }

    /// Checks that a range of a raw disk reads as zero. Holes in the file are not read.
    ///
    /// # Errors
    /// When it does not, naming the first byte that is not zero.
    pub fn check_zero(&self, offset: u64, len_bytes: u64) -> Result<()> {
        let file = self.open()?;
        let end = offset.checked_add(len_bytes).context("the range is too long")?;
        ensure!(end <= self.len_bytes()?, "{}: range {offset}+{len_bytes} goes past the end", self.path.display());
        let mut at = offset;
        while at < end {
            let data = match seek(&file, SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(rustix::io::Errno::NXIO) => return Ok(()), // only holes follow
                Err(error) => {
                    return Err(error).with_context(|| format!("looking for data in {}", self.path.display()));
                }
            };
            if data >= end {
                return Ok(());
            }
            let hole = seek(&file, SeekFrom::Hole(data))?.min(end);
            for_chunks(data, hole - data, |from, len| {
                let bytes = self.read(from, len)?;
                match bytes.iter().position(|byte| *byte != 0) {
                    None => Ok(()),
                    Some(place) => bail!("{}: byte {} is not zero", self.path.display(), from + u64::try_from(place)?),
                }
            })?;
            at = hole;
        }
        Ok(())
    }

    /// Checks the partition table with `sgdisk -v`, which also checks the GPT's backup.
    ///
    /// # Errors
    /// When it finds a problem, with its words.
    pub fn check_gpt(&self) -> Result<()> {
        let program = artifacts::program("sgdisk", "gdisk")?;
        let output = Command::new(program).arg("-v").arg(&self.path).output().context("starting sgdisk")?;
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).join("");
        // It repairs a damaged table in memory, or invents one there, and then finds no problems in that.
        let repaired =
            ["in memory", "corrupt GPT", "CRCs don't match", "invalid"].iter().any(|words| said.contains(words));
        ensure!(!repaired && said.contains("No problems found"), "sgdisk -v {}: {}", self.path.display(), said.trim());
        Ok(())
    }

    /// Converts it to a raw file with qemu-img.
    ///
    /// # Errors
    /// When qemu-img is not installed or fails.
    pub fn to_raw(&self, target: impl Into<PathBuf>) -> Result<Self> {
        let target = target.into();
        let (from, to) = (self.path.display().to_string(), target.display().to_string());
        qemu_img(&["convert", "-f", self.format.driver(), "-O", "raw", &from, &to])?;
        Ok(Self { path: target, format: DiskFormat::Raw })
    }

    fn open(&self) -> Result<File> {
        File::open(&self.path).with_context(|| format!("opening {}", self.path.display()))
    }
}

/// Runs qemu-img and gives what it prints.
///
/// # Errors
/// When it is not installed or fails, with its words.
pub fn qemu_img(args: &[&str]) -> Result<String> {
    run(&artifacts::program("qemu-img", "qemu-utils")?, args)
}

fn run(program: &Path, args: &[&str]) -> Result<String> {
    let output =
        Command::new(program).args(args).output().with_context(|| format!("starting {}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("{} {}: {} {}", program.display(), args.join(" "), error.trim(), said.trim());
    }
    Ok(said)
}

/// Bytes of the endless pattern `seed` from `offset` on. Every aligned group of eight holds its own place mixed with the seed,
/// so data that landed in the wrong place, twice, or not at all is noticed.
pub fn pattern(seed: u64, offset: u64, bytes: &mut [u8]) {
    let mut at = offset;
    let mut rest = bytes;
    while !rest.is_empty() {
        let word = mix(seed, at / 8).to_le_bytes();
        let skip = usize::try_from(at % 8).unwrap_or(0);
        let part = word.get(skip..).unwrap_or_default();
        let len = part.len().min(rest.len());
        let (head, tail) = rest.split_at_mut(len);
        head.copy_from_slice(part.get(..len).unwrap_or_default());
        at += u64::try_from(len).unwrap_or(0);
        rest = tail;
    }
}

/// A 64-bit mixing function (the finaliser of SplitMix64), never zero.
fn mix(seed: u64, place: u64) -> u64 {
    let mut x = place.wrapping_add(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 31)) | 1
}

fn for_chunks(offset: u64, len_bytes: u64, mut act: impl FnMut(u64, usize) -> Result<()>) -> Result<()> {
    let end = offset.checked_add(len_bytes).ok_or_else(|| std::io::Error::from(ErrorKind::InvalidInput))?;
    let mut at = offset;
    while at < end {
        let len = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
        act(at, len)?;
        at += u64::try_from(len)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn sparse_disk_is_zero_until_written() {
        let dir = tempfile::tempdir().unwrap();
        let disk = DiskFile::create_raw(dir.path().join("d"), 4096 * MIB).unwrap();
        assert_eq!(disk.len_bytes().unwrap(), 4096 * MIB);
        assert_eq!(disk.allocated_bytes().unwrap(), 0);
        disk.check_zero(0, 4096 * MIB).unwrap();
        disk.write(3000 * MIB + 5, &[7]).unwrap();
        disk.check_zero(0, 3000 * MIB + 5).unwrap();
        disk.check_zero(3000 * MIB + 6, MIB).unwrap();
        let error = disk.check_zero(0, 4096 * MIB).unwrap_err().to_string();
        assert!(error.contains(&format!("byte {} is not zero", 3000 * MIB + 5)), "{error}");
        assert!(disk.check_zero(4095 * MIB, 2 * MIB).is_err(), "past the end");
        assert!(DiskFile::create_raw(disk.path(), MIB).is_err(), "an existing disk is not emptied");
    }

    #[test]
    fn filled_range_is_recognised_and_one_wrong_byte_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let disk = DiskFile::create_raw(dir.path().join("d"), 8 * MIB).unwrap();
        disk.fill(1, 100, 3 * MIB).unwrap();
        disk.check_fill(1, 100, 3 * MIB).unwrap();
        disk.check_fill(1, 1000, 77).unwrap();
        disk.check_zero(0, 100).unwrap();
        assert!(disk.check_fill(2, 100, 8).is_err(), "other seed");
        let byte = disk.read(2 * MIB, 1).unwrap()[0];
        disk.write(2 * MIB, &[byte ^ 1]).unwrap();
        let error = disk.check_fill(1, 100, 3 * MIB).unwrap_err().to_string();
        assert!(error.contains(&format!("byte {}", 2 * MIB)), "{error}");
    }

    #[test]
    fn pattern_does_not_depend_on_where_reading_starts() {
        let mut whole = vec![0; 64];
        pattern(9, 0, &mut whole);
        for start in 0..40usize {
            let mut part = vec![0; 20];
            pattern(9, start as u64, &mut part);
            assert_eq!(part, whole[start..start + 20], "from {start}");
        }
    }

    #[test]
    fn image_is_compared_but_for_the_excepted_ranges() {
        let dir = tempfile::tempdir().unwrap();
        let image = DiskFile::create_raw(dir.path().join("i"), 3 * MIB).unwrap();
        image.fill(1, 0, 3 * MIB).unwrap();
        let disk = DiskFile::create_raw(dir.path().join("d"), 4 * MIB).unwrap();
        disk.fill(1, 0, 3 * MIB).unwrap();
        disk.check_image(image.path(), &[]).unwrap();
        disk.write(512, &[0; 512]).unwrap();
        assert!(disk.check_image(image.path(), &[]).is_err());
        assert!(disk.check_image(image.path(), &[(513, 511)]).is_err());
        disk.check_image(image.path(), &[(2 * MIB, 9 * MIB), (512, 512)]).unwrap();
    }

    #[test]
    fn sound_gpt_passes_and_one_without_its_backup_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let disk = DiskFile::create_raw(dir.path().join("d"), 8 * MIB).unwrap();
        assert!(disk.check_gpt().is_err(), "no table at all");
        let path = disk.path().display().to_string();
        run(&artifacts::program("sgdisk", "gdisk").unwrap(), &["-n", "1:2048:4095", &path]).unwrap();
        disk.check_gpt().unwrap();
        disk.write(8 * MIB - 512, &[0; 512]).unwrap();
        let error = disk.check_gpt().unwrap_err().to_string();
        assert!(error.contains("Backup header: ERROR"), "{error}");
    }

    #[test]
    fn qcow2_converts_back_to_the_same_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let raw = DiskFile::create_raw(dir.path().join("r"), 2 * MIB).unwrap();
        raw.fill(3, MIB, 4096).unwrap();
        let target = dir.path().join("q");
        qemu_img(&["convert", "-O", "qcow2", &raw.path().display().to_string(), &target.display().to_string()])
            .unwrap();
        let back = DiskFile::existing(target, DiskFormat::Qcow2).to_raw(dir.path().join("b")).unwrap();
        back.check_image(raw.path(), &[]).unwrap();
        let empty = DiskFile::create_qcow2(dir.path().join("e"), 64 * MIB).unwrap();
        assert!(empty.len_bytes().unwrap() < MIB);
        let error = qemu_img(&["info", "/no/such/file"]).unwrap_err().to_string();
        assert!(error.contains("/no/such/file"), "{error}");
    }
}
