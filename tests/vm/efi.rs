//! OVMF's store of variables as a file, and a small disk image whose boot loader is only where its list says.
//!
//! Layout of the store: a firmware volume, whose header gives its own length at byte 48; a header of 28 bytes; then
//! authenticated variables, each aligned to 4 bytes (EDK II, `MdeModulePkg/Include/Guid/VariableFormat.h`).

use std::collections::BTreeMap;
use std::fs;
use std::io::{Cursor, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use ferric_qemu::os_image::systemd_boot;
use ferric_qemu::{DiskFile, artifacts};

use crate::kit::{self, MIB};

type Guid = [u8; 16];
/// Variables that the UEFI specification defines, and junk.
const GLOBAL: Guid = [0x61, 0xdf, 0xe4, 0x8b, 0xca, 0x93, 0xd2, 0x11, 0xaa, 0x0d, 0x00, 0xe0, 0x98, 0x03, 0x2b, 0x8c];
const JUNK: Guid = [0xfe; 16];
const HEADER_BYTES: usize = 60;
/// State of a variable that is there.
const ADDED: u8 = 0x3f;

struct Variable {
    is_there: bool,
    vendor: Guid,
    name: String,
    value: Vec<u8>,
    place: (usize, usize),
}

/// A store of variables.
pub(crate) struct Store {
    bytes: Vec<u8>,
    /// Where the first variable is, and where the store ends.
    range: (usize, usize),
}

impl Store {
    /// The store as the distribution has it, without a variable.
    pub(crate) fn pristine() -> Result<Self> {
        Self::read(&artifacts::ovmf()?.vars)
    }

    pub(crate) fn read(path: &Path) -> Result<Self> {
        let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        let start = usize::from(u16::from_le_bytes(bytes[48..50].try_into()?));
        let size = usize::try_from(u32::from_le_bytes(bytes[start + 16..start + 20].try_into()?))?;
        ensure!(bytes[start + 20..start + 22] == [0x5a, 0xfe], "{} is no formatted store", path.display());
        Ok(Self { bytes, range: (start + 28, start + size) })
    }

    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        fs::write(path, &self.bytes).with_context(|| format!("writing {}", path.display()))
    }

    /// Every variable, also those that are there no more, and where there is room for another one.
    fn walk(&self) -> (Vec<Variable>, usize) {
        let (mut at, end) = self.range;
        let mut found = Vec::new();
        while at + HEADER_BYTES < end && self.bytes[at..at + 2] == [0xaa, 0x55] {
            let header = &self.bytes[at..at + HEADER_BYTES];
            let size = |at: usize| usize::try_from(u32::from_le_bytes(header[at..at + 4].try_into().unwrap())).unwrap();
            let name_at = at + HEADER_BYTES;
            let value_at = name_at + size(36);
            let next = (value_at + size(40)).next_multiple_of(4);
            let words =
                self.bytes[name_at..value_at].chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
            found.push(Variable {
                is_there: header[2] == ADDED,
                vendor: header[44..60].try_into().unwrap(),
                name: String::from_utf16_lossy(&words.collect::<Vec<_>>()).trim_end_matches('\0').to_owned(),
                value: self.bytes[value_at..value_at + size(40)].to_vec(),
                place: (at, next),
            });
            at = next;
        }
        (found, at)
    }

    /// Takes out what is there no more.
    fn compact(&mut self) {
        let (found, _) = self.walk();
        let there = found.iter().filter(|variable| variable.is_there);
        let mut kept: Vec<u8> =
            there.flat_map(|variable| &self.bytes[variable.place.0..variable.place.1]).copied().collect();
        kept.resize(self.range.1 - self.range.0, 0xff);
        self.bytes[self.range.0..self.range.1].copy_from_slice(&kept);
    }

    /// The specification's variables that are there.
    pub(crate) fn variables(&self) -> BTreeMap<String, Vec<u8>> {
        let (found, _) = self.walk();
        let there = found.into_iter().filter(|variable| variable.is_there && variable.vendor == GLOBAL);
        there.map(|variable| (variable.name, variable.value)).collect()
    }

    /// Numbers of the boot entries with that label.
    pub(crate) fn entries(&self, label: &str) -> Vec<u16> {
        let number = |name: &str| u16::from_str_radix(name.strip_prefix("Boot").filter(|n| n.len() == 4)?, 16).ok();
        let variables = self.variables();
        let labelled = variables.iter().filter(|(_, value)| label_of(value) == label);
        labelled.filter_map(|(name, _)| number(name)).collect()
    }

    pub(crate) fn order(&self) -> Vec<u16> {
        let value = self.variables().remove("BootOrder").unwrap_or_default();
        value.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect()
    }

    pub(crate) fn free_bytes(&self) -> usize {
        self.range.1 - self.walk().1
    }

    pub(crate) fn add(&mut self, name: &str, value: &[u8]) -> Result<()> {
        self.add_of(GLOBAL, name, value)
    }

    fn add_of(&mut self, vendor: Guid, name: &str, value: &[u8]) -> Result<()> {
        let name: Vec<u8> = name.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
        let mut bytes = vec![0xaa, 0x55, ADDED, 0];
        bytes.extend(7_u32.to_le_bytes());
        // Count, time and key of authenticated variables.
        bytes.extend([0; 28]);
        bytes.extend(u32::try_from(name.len())?.to_le_bytes());
        bytes.extend(u32::try_from(value.len())?.to_le_bytes());
        bytes.extend(vendor);
        bytes.extend(name);
        bytes.extend(value);
        let (_, at) = self.walk();
        ensure!(at + bytes.len() < self.range.1, "the store is full");
        self.bytes[at..at + bytes.len()].copy_from_slice(&bytes);
        Ok(())
    }

    /// A boot entry that leads nowhere.
    pub(crate) fn add_entry(&mut self, number: u16, label: &str) -> Result<()> {
        // Active; a path of 4 bytes, which is its end.
        let mut entry = vec![1, 0, 0, 0, 4, 0];
        entry.extend(label.encode_utf16().chain([0]).flat_map(u16::to_le_bytes));
        entry.extend([0x7f, 0xff, 4, 0]);
        self.add(&format!("Boot{number:04X}"), &entry)
    }

    /// Fills it up with junk until so many bytes are left.
    pub(crate) fn fill(&mut self, left_bytes: usize) -> Result<()> {
        self.compact();
        for number in 0.. {
            let Some(room) = self.free_bytes().checked_sub(left_bytes + 128).filter(|room| *room > 0) else { break };
            self.add_of(JUNK, &format!("Junk{number}"), &vec![0x77; room.min(4096)])?;
        }
        Ok(())
    }
}

/// The label of a boot entry, behind its attributes and the length of its path.
fn label_of(entry: &[u8]) -> String {
    let words = entry.get(6..).unwrap_or_default().chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    String::from_utf16_lossy(&words.take_while(|word| *word != 0).collect::<Vec<_>>())
}

/// What the menu of systemd-boot, the loader of [`whole_disk`], offers where there is no system.
pub(crate) const MENU: &str = "Reboot Into Firmware Interface";

/// An image of a whole disk with systemd-boot where its list of loaders says, and nowhere else.
pub(crate) fn whole_disk(dir: &Path) -> Result<PathBuf> {
    const ESP_BYTES: u64 = 4 * MIB;
    let path = dir.join("whole.raw");
    let disk = DiskFile::create_raw(&path, 8 * MIB)?;
    kit::partition(&disk, 512, &[(MIB, MIB + ESP_BYTES)], "c12a7328-f81f-11d2-ba4b-00a0c93ec93b")?;
    let mut volume = Cursor::new(vec![0; usize::try_from(ESP_BYTES)?]);
    fatfs::format_volume(&mut volume, fatfs::FormatVolumeOptions::new())?;
    {
        let fs = fatfs::FileSystem::new(&mut volume, fatfs::FsOptions::new())?;
        let write = |path: &str, content: &[u8]| -> Result<()> {
            for (slash, _) in path.match_indices('/') {
                fs.root_dir().create_dir(&path[..slash])?;
            }
            Ok(fs.root_dir().create_file(path)?.write_all(content)?)
        };
        write("EFI/vendor/systemd-bootx64.efi", &systemd_boot(&artifacts::build_dir()?.join("cache"))?)?;
        // For other machines, and first in the directory; then in upper case, big-endian with its mark.
        write("EFI/vendor/BOOTAA64.CSV", b"systemd-bootaa64.efi,arm,,")?;
        let list = "\u{feff}systemd-bootx64.efi,vendor,,comment\n";
        let list: Vec<u8> = list.encode_utf16().flat_map(u16::to_be_bytes).collect();
        write("EFI/vendor/BOOTX64.CSV", &list)?;
        write("loader/loader.conf", b"timeout menu-force\n")?;
    }
    disk.write(MIB, volume.get_ref())?;
    Ok(path)
}
