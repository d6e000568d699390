//! A captured machine as a tar archive, compressed as its name says.
//!
//! The zstd writer is our own: the library's would be a twentieth of the image, for the one command that needs it. Its
//! frames (RFC 8878 section 3.1.1) have blocks of bytes as they are and blocks of one byte repeated, which is what most of
//! a tar archive of small files consists of; other data is not compressed.

use std::io::{self, Write};
use std::path::Path;

use ferric_hardware::capture::{Entry, Tree, new_file};
use flate2::Compression;
use flate2::write::GzEncoder;

/// Forms of archives, by the end of their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `.tar.gz` or `.tgz`.
    Gzip,
    /// `.tar.zst`.
    Zstd,
    /// `.tar`.
    Plain,
}

impl Form {
    /// Names that archives may end with.
    pub const NAMES: &str = ".tar.gz, .tgz, .tar.zst or .tar";

    /// The form that a file's name asks for.
    pub fn of(path: &str) -> Option<Self> {
        let ends = [(".tar.gz", Self::Gzip), (".tgz", Self::Gzip), (".tar.zst", Self::Zstd), (".tar", Self::Plain)];
        ends.iter().find(|(end, _)| path.ends_with(end)).map(|(_, form)| *form)
    }
}

/// Writes files and links to a new archive, and waits until it is on the disk.
///
/// # Errors
/// There is such a file already, or the archive cannot be written; then nothing is left of it.
pub fn write(path: &Path, form: Form, tree: &Tree) -> io::Result<()> {
    new_file(path, |file| {
        match form {
            Form::Gzip => append(tree, GzEncoder::new(file, Compression::best()))?.finish()?,
            Form::Zstd => append(tree, Zstd::new(file)?)?.finish()?,
            Form::Plain => append(tree, file)?,
        }
        .sync_all()
    })
}

fn append<W: Write>(tree: &Tree, out: W) -> io::Result<W> {
    // One copy of the code that writes an archive is enough, whatever it is written to.
    let mut out = out;
    let mut archive = tar::Builder::new(&mut out as &mut dyn Write);
    for (path, entry) in tree {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        match entry {
            Entry::File(content) => {
                header.set_size(u64::try_from(content.len()).unwrap_or(0));
                archive.append_data(&mut header, path, content.as_slice())?;
            }
            Entry::Link(target) => {
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_size(0);
                archive.append_link(&mut header, path, target)?;
            }
        }
    }
    archive.into_inner()?;
    Ok(out)
}

/// Magic number, no flags, a window of 128 KiB.
const FRAME: [u8; 6] = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38];
/// Longest block.
const BLOCK_BYTES: usize = 128 << 10;
/// Shortest run that is worth a block of its own, which takes four bytes and ends another one.
const MIN_RUN: usize = 16;
/// Types of blocks.
const RAW: usize = 0;
const REPEATED: usize = 1;

/// A zstd frame of what is written.
struct Zstd<W: Write> {
    out: W,
    pending: Vec<u8>,
}

impl<W: Write> Zstd<W> {
    fn new(mut out: W) -> io::Result<Self> {
        out.write_all(&FRAME)?;
        Ok(Self { out, pending: Vec::with_capacity(BLOCK_BYTES) })
    }

    fn finish(mut self) -> io::Result<W> {
        self.blocks()?;
        header(&mut self.out, RAW, 0, true)?;
        Ok(self.out)
    }

    /// Blocks of all that is pending, at most the length of one.
    fn blocks(&mut self) -> io::Result<()> {
        let mut raw = 0;
        let mut place = 0;
        while let Some(byte) = self.pending.get(place).copied() {
            let rest = self.pending.get(place..).unwrap_or_default();
            let run = rest.iter().take_while(|other| **other == byte).count();
            if run >= MIN_RUN {
                raw_block(&mut self.out, self.pending.get(raw..place).unwrap_or_default())?;
                header(&mut self.out, REPEATED, run, false)?;
                self.out.write_all(&[byte])?;
                raw = place + run;
            }
            place += run;
        }
        raw_block(&mut self.out, self.pending.get(raw..).unwrap_or_default())?;
        self.pending.clear();
        Ok(())
    }
}

fn raw_block(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    header(out, RAW, bytes.len(), false)?;
    out.write_all(bytes)
}

/// Three bytes, the lowest first: whether it is the last one, its type, its length.
fn header(out: &mut impl Write, kind: usize, length: usize, is_last: bool) -> io::Result<()> {
    let [first, second, third, ..] = (length << 3 | kind << 1 | usize::from(is_last)).to_le_bytes();
    out.write_all(&[first, second, third])
}

impl<W: Write> Write for Zstd<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(BLOCK_BYTES - self.pending.len());
        self.pending.extend_from_slice(bytes.get(..taken).unwrap_or_default());
        if self.pending.len() == BLOCK_BYTES {
            self.blocks()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::fs::File;
    use std::path::PathBuf;

    fn zstd(pieces: &[Vec<u8>]) -> Vec<u8> {
        let mut out = Zstd::new(Vec::new()).unwrap();
        pieces.iter().for_each(|piece| out.write_all(piece).unwrap());
        out.finish().unwrap()
    }

    #[test]
    fn the_reference_decoder_reads_our_frames() {
        let long: Vec<u8> = (0..3 * BLOCK_BYTES).map(|place| u8::try_from(place / 7 % 251).unwrap()).collect();
        for pieces in [
            vec![],
            vec![b"x".to_vec()],
            vec![vec![0; 512], b"name".to_vec(), vec![0; 10 * BLOCK_BYTES], b"end".to_vec()],
            vec![vec![7; BLOCK_BYTES]],
            vec![long],
        ] {
            let frame = zstd(&pieces);
            assert_eq!(::zstd::decode_all(frame.as_slice()).unwrap(), pieces.concat());
        }
        assert!(zstd(&[vec![0; 1 << 20]]).len() < 64, "{}", zstd(&[vec![0; 1 << 20]]).len());
    }

    proptest! {
        #[test]
        fn any_bytes_come_back(pieces in proptest::collection::vec((any::<u8>(), 0_usize..40), 0..200)) {
            let pieces: Vec<Vec<u8>> = pieces.into_iter().map(|(byte, length)| vec![byte; length]).collect();
            prop_assert_eq!(::zstd::decode_all(zstd(&pieces).as_slice()).unwrap(), pieces.concat());
        }
    }

    #[test]
    fn the_name_decides_on_the_form_and_all_forms_hold_the_same() {
        let deep = PathBuf::from("sys/devices").join("pci0000:00/".repeat(20)).join("vendor");
        let tree: Tree = BTreeMap::from([
            (deep.clone(), Entry::File(b"0x8086\n".to_vec())),
            (PathBuf::from("sys/block/sda"), Entry::Link(PathBuf::from("../devices/x/block/sda"))),
        ]);
        let dir = tempfile::tempdir().unwrap();
        for (name, form) in
            [("m.tar.gz", Form::Gzip), ("m.tgz", Form::Gzip), ("m.tar.zst", Form::Zstd), ("m.tar", Form::Plain)]
        {
            assert_eq!(Form::of(name), Some(form));
            let path = dir.path().join(name);
            write(&path, form, &tree).unwrap();
            assert_eq!(write(&path, form, &tree).unwrap_err().kind(), io::ErrorKind::AlreadyExists, "{name}");
            let file = File::open(&path).unwrap();
            let reader: Box<dyn io::Read> = match form {
                Form::Gzip => Box::new(flate2::read::GzDecoder::new(file)),
                Form::Zstd => Box::new(::zstd::Decoder::new(file).unwrap()),
                Form::Plain => Box::new(file),
            };
            let unpacked = dir.path().join(format!("{name}.d"));
            tar::Archive::new(reader).unpack(&unpacked).unwrap();
            assert_eq!(std::fs::read_to_string(unpacked.join(&deep)).unwrap(), "0x8086\n", "{name}");
            let target = std::fs::read_link(unpacked.join("sys/block/sda")).unwrap();
            assert_eq!(target, Path::new("../devices/x/block/sda"), "{name}");
        }
        assert_eq!(Form::of("m.zip"), None);
    }
}
