//! A small reader of ISO 9660 file systems, for config drives: labels, and whole trees.
//!
//! Names come from the Joliet tree where there is one, else from Rock Ridge `NM` entries, else plain (ECMA-119;
//! IEEE P1282). Every size and depth is bounded: the content is the tenant's.

use std::io::{self, Read, Seek, SeekFrom};

/// Size of a logical sector.
const SECTOR: u64 = 2048;
/// First volume descriptor.
const DESCRIPTORS: u64 = 16 * SECTOR;
const MAX_DESCRIPTORS: u64 = 32;
const MAX_DEPTH: u32 = 16;
const MAX_ENTRIES: usize = 20_000;
const MAX_DIRECTORY_BYTES: u32 = 4 << 20;

/// A file of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Path with slashes, such as `openstack/latest/meta_data.json`.
    pub path: String,
    /// Where its content begins, bytes.
    pub offset: u64,
    /// Size of its content, bytes.
    pub size: u32,
}

struct Volume {
    label: String,
    root: Extent,
    joliet: bool,
}

#[derive(Clone, Copy)]
struct Extent {
    sector: u32,
    size: u32,
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("malformed ISO 9660 file system: {what}"))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Volume label of the primary descriptor; `None` when the image is not ISO 9660.
///
/// # Errors
/// Reading failed.
pub fn label<R: Read + Seek>(image: &mut R) -> io::Result<Option<String>> {
    Ok(volumes(image)?.into_iter().find(|volume| !volume.joliet).map(|volume| volume.label))
}

fn volumes<R: Read + Seek>(image: &mut R) -> io::Result<Vec<Volume>> {
    let mut volumes = Vec::new();
    let mut sector = [0_u8; 2048];
    for index in 0..MAX_DESCRIPTORS {
        image.seek(SeekFrom::Start(DESCRIPTORS + index * SECTOR))?;
        match image.read_exact(&mut sector) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        }
        if &sector[1..6] != b"CD001" || sector[0] == 255 {
            break;
        }
        let joliet = sector[0] == 2 && matches!(&sector[88..91], b"%/@" | b"%/C" | b"%/E");
        if sector[0] != 1 && !joliet {
            continue;
        }
        let extent = word(&sector, 156 + 2).zip(word(&sector, 156 + 10));
        let (start, size) = extent.ok_or_else(|| malformed("no root directory"))?;
        let label = if joliet { ucs2(&sector[40..72]) } else { String::from_utf8_lossy(&sector[40..72]).into_owned() };
        let label = label.trim_end_matches([' ', '\0']).to_owned();
        volumes.push(Volume { label, root: Extent { sector: start, size }, joliet });
    }
    Ok(volumes)
}

fn ucs2(bytes: &[u8]) -> String {
    let words = bytes.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
    char::decode_utf16(words).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
}

/// All files of an image, and its directories' paths, parents first.
///
/// # Errors
/// The image is not ISO 9660, is malformed, or cannot be read.
pub fn tree<R: Read + Seek>(image: &mut R) -> io::Result<(Vec<String>, Vec<File>)> {
    let volumes = volumes(image)?;
    let volume = volumes.iter().find(|volume| volume.joliet).or_else(|| volumes.first());
    let volume = volume.ok_or_else(|| malformed("no volume descriptor"))?;
    let (mut directories, mut files) = (Vec::new(), Vec::new());
    let mut pending = vec![(String::new(), volume.root, 0_u32)];
    while let Some((path, extent, depth)) = pending.pop() {
        if depth > MAX_DEPTH {
            return Err(malformed("directories too deep"));
        }
        for record in directory(image, extent, volume.joliet)? {
            if directories.len() + files.len() >= MAX_ENTRIES {
                return Err(malformed("too many files"));
            }
            let full = if path.is_empty() { record.name } else { format!("{path}/{}", record.name) };
            if record.is_directory {
                directories.push(full.clone());
                pending.push((full, record.extent, depth + 1));
            } else {
                let offset = u64::from(record.extent.sector) * SECTOR;
                files.push(File { path: full, offset, size: record.extent.size });
            }
        }
    }
    directories.sort();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok((directories, files))
}

struct Record {
    name: String,
    extent: Extent,
    is_directory: bool,
}

fn directory<R: Read + Seek>(image: &mut R, extent: Extent, joliet: bool) -> io::Result<Vec<Record>> {
    if extent.size > MAX_DIRECTORY_BYTES {
        return Err(malformed("a directory is too large"));
    }
    let mut bytes = vec![0_u8; usize::try_from(extent.size).unwrap_or(0)];
    image.seek(SeekFrom::Start(u64::from(extent.sector) * SECTOR))?;
    image.read_exact(&mut bytes)?;
    let mut records = Vec::new();
    for sector in bytes.chunks(2048) {
        let mut rest = sector;
        while let Some(length) = rest.first().map(|length| usize::from(*length)).filter(|length| *length >= 34) {
            let Some(record) = rest.get(..length) else { return Err(malformed("a directory record is cut")) };
            if let Some(record) = parse(record, joliet) {
                records.push(record);
            }
            rest = rest.get(length..).unwrap_or_default();
        }
    }
    Ok(records)
}

/// One directory record; `None` for `.`, `..` and names that could leave the tree.
fn parse(record: &[u8], joliet: bool) -> Option<Record> {
    let extent = Extent { sector: word(record, 2)?, size: word(record, 10)? };
    let is_directory = record.get(25)? & 2 != 0;
    let length = usize::from(*record.get(32)?);
    let raw = record.get(33..33 + length)?;
    if matches!(raw, [0] | [1]) {
        return None;
    }
    let system_use = record.get(33 + length + usize::from(length % 2 == 0)..).unwrap_or_default();
    let name = if joliet {
        strip_version(&ucs2(raw)).to_owned()
    } else {
        rock_ridge_name(system_use).unwrap_or_else(|| {
            let plain = String::from_utf8_lossy(raw).into_owned();
            strip_version(&plain).trim_end_matches('.').to_lowercase()
        })
    };
    let good = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0']);
    good.then_some(Record { name, extent, is_directory })
}

fn strip_version(name: &str) -> &str {
    name.split_once(';').map_or(name, |(name, _version)| name)
}

fn rock_ridge_name(mut fields: &[u8]) -> Option<String> {
    let mut name = Vec::new();
    while let [a, b, length, ..] = fields {
        let length = usize::from(*length);
        let field = fields.get(..length).filter(|_| length >= 4)?;
        if (*a, *b) == (b'N', b'M') {
            name.extend_from_slice(field.get(5..)?);
        }
        fields = fields.get(length..)?;
        if fields.len() < 4 {
            break;
        }
    }
    (!name.is_empty()).then(|| String::from_utf8_lossy(&name).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Cursor;
    use std::process::Command;

    fn image(options: &[&str]) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let latest = dir.path().join("tree/openstack/latest");
        std::fs::create_dir_all(&latest).unwrap();
        std::fs::write(latest.join("meta_data.json"), br#"{"uuid": "x"}"#).unwrap();
        std::fs::write(latest.join("user_data"), vec![b'u'; 5000]).unwrap();
        let out = dir.path().join("config.iso");
        #[expect(clippy::disallowed_methods, reason = "config drives are made by this tool in the field")]
        let made = Command::new("xorrisofs")
            .args(["-quiet", "-V", "config-2"])
            .args(options)
            .arg("-o")
            .arg(&out)
            .arg(dir.path().join("tree"))
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        std::fs::read(out).unwrap()
    }

    #[test]
    fn trees_are_read_by_joliet_and_by_rock_ridge() {
        for options in [&["-J", "-r"][..], &["-r"], &["-J"]] {
            let bytes = image(options);
            let mut cursor = Cursor::new(&bytes);
            assert_eq!(label(&mut cursor).unwrap().as_deref(), Some("config-2"), "{options:?}");
            let (directories, files) = tree(&mut cursor).unwrap();
            assert_eq!(directories, ["openstack", "openstack/latest"], "{options:?}");
            let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
            assert_eq!(paths, ["openstack/latest/meta_data.json", "openstack/latest/user_data"], "{options:?}");
            let start = usize::try_from(files[0].offset).unwrap();
            assert_eq!(&bytes[start..start + 13], br#"{"uuid": "x"}"#, "{options:?}");
        }
    }

    #[test]
    fn other_images_have_no_label() {
        assert_eq!(label(&mut Cursor::new(vec![0_u8; 100_000])).unwrap(), None);
        assert_eq!(label(&mut Cursor::new(Vec::<u8>::new())).unwrap(), None);
    }

    proptest! {
        #[test]
        fn damaged_images_never_panic(at in 32768_usize..60_000, byte in any::<u8>(), cut in 0_usize..70_000) {
            static IMAGE: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
            let mut bytes = IMAGE.get_or_init(|| image(&["-J", "-r"])).clone();
            if let Some(target) = bytes.get_mut(at) {
                *target = byte;
            }
            bytes.truncate(bytes.len().saturating_sub(cut));
            let _tree = tree(&mut Cursor::new(bytes)).is_ok();
        }
    }
}
