//! The tables of SMBIOS (DMTF DSP0134): what the firmware says the machine is made of. They are foreign bytes: whatever
//! is damaged is left out, and nothing grows beyond the table.

pub mod dmi;
pub mod host_interface;
mod names;
mod size;
mod values;

use std::io::Read as _;
use std::path::Path;

use ferric_sys::Root;

/// Longest table that is read, bytes; those of machines with thousands of memory modules have some 300,000.
const TABLE_BYTES: u64 = 1 << 20;
/// Longest entry point, bytes: its length is one byte.
const ENTRY_POINT_BYTES: u64 = 256;
/// Most structures that are looked at: more memory modules, processors and slots than any machine has.
const MAX_STRUCTURES: usize = 8192;
/// Type of the structure that ends the table.
const END: u8 = 127;

/// Types of structures, DSP0134 section 7.
pub mod kind {
    /// Firmware.
    pub const FIRMWARE: u8 = 0;
    /// The machine.
    pub const SYSTEM: u8 = 1;
    /// Its main board.
    pub const BOARD: u8 = 2;
    /// A processor.
    pub const PROCESSOR: u8 = 4;
    /// A set of slots for memory.
    pub const MEMORY_ARRAY: u8 = 16;
    /// A slot for memory.
    pub const MEMORY_DEVICE: u8 = 17;
    /// A way from the host to its management controller.
    pub const HOST_INTERFACE: u8 = 42;
    /// A TPM.
    pub const TPM: u8 = 43;
}

/// The tables of a machine.
#[derive(Debug, Clone, Default)]
pub struct Smbios {
    version: Version,
    table: Vec<u8>,
    limit: usize,
}

/// Version of the standard that a table follows, major and minor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u8, pub u8);

impl Default for Version {
    /// The newest, which a table without a usable entry point is taken for.
    fn default() -> Self {
        Self(u8::MAX, u8::MAX)
    }
}

impl Smbios {
    /// The tables as the kernel has them, or `None` when the firmware has none.
    pub fn read(root: &Root) -> Option<Self> {
        let tables = root.path("sys/firmware/dmi/tables");
        let table = bounded(&tables.join("DMI"), TABLE_BYTES)?;
        let entry_point = bounded(&tables.join("smbios_entry_point"), ENTRY_POINT_BYTES).unwrap_or_default();
        Some(Self::new(table, &entry_point))
    }

    /// Tables from their bytes and those of their entry point, which may be empty.
    pub fn new(table: Vec<u8>, entry_point: &[u8]) -> Self {
        let (version, count) = entry(entry_point).unwrap_or_default();
        let limit = if count == 0 { MAX_STRUCTURES } else { usize::from(count).min(MAX_STRUCTURES) };
        Self { version, table, limit }
    }

    /// Version of the standard.
    pub const fn version(&self) -> Version {
        self.version
    }

    /// The whole structures of the table in its order, up to its end or the first one that is cut off.
    pub fn structures(&self) -> impl Iterator<Item = Structure<'_>> {
        let mut rest = self.table.as_slice();
        let next = move || {
            let (structure, after) = Structure::split(rest)?;
            rest = after;
            (structure.kind() != END).then_some(structure)
        };
        std::iter::from_fn(next).take(self.limit)
    }

    /// Those of one type.
    pub fn of(&self, kind: u8) -> impl Iterator<Item = Structure<'_>> {
        self.structures().filter(move |structure| structure.kind() == kind)
    }
}

fn bounded(path: &Path, limit: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(limit).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Version and number of structures (0 when it does not say) of an entry point, DSP0134 section 5.2.
fn entry(bytes: &[u8]) -> Option<(Version, u16)> {
    if bytes.starts_with(b"_SM3_") {
        return Some((Version(*bytes.get(7)?, *bytes.get(8)?), 0));
    }
    if bytes.starts_with(b"_SM_") {
        let version = match (*bytes.get(6)?, *bytes.get(7)?) {
            // Versions that never were, as some firmware writes them.
            (2, 0x1f | 0x21) => Version(2, 3),
            (2, 0x33) => Version(2, 6),
            (major, minor) => Version(major, minor),
        };
        return Some((version, u16::from_le_bytes([*bytes.get(0x1c)?, *bytes.get(0x1d)?])));
    }
    bytes.starts_with(b"_DMI_").then_some(())?;
    let version = *bytes.get(0x0e)?;
    Some((Version(version >> 4, version & 0xf), u16::from_le_bytes([*bytes.get(0x0c)?, *bytes.get(0x0d)?])))
}

/// One structure of the table.
#[derive(Debug, Clone, Copy)]
pub struct Structure<'a> {
    /// Head and fields; at least [`HEAD`] bytes.
    fields: &'a [u8],
    /// Texts, each with a zero behind it.
    texts: &'a [u8],
}

/// Bytes of type, length and handle.
const HEAD: usize = 4;

/// A text that a structure refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Text<'a> {
    /// There is none.
    None,
    /// There is none with this number.
    Missing,
    /// Its bytes.
    Bytes(&'a [u8]),
}

impl<'a> Structure<'a> {
    /// Cuts the first structure off a table.
    fn split(table: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let length = usize::from(*table.get(1)?);
        let (fields, rest) = table.split_at_checked(length.max(HEAD))?;
        // A length below that of the head means that the rest cannot be trusted.
        (length >= HEAD).then_some(())?;
        let end = rest.windows(2).position(|pair| pair == [0, 0])?;
        let (texts, rest) = rest.split_at_checked(end + 2)?;
        Some((Self { fields, texts }, rest))
    }

    /// Type.
    pub fn kind(&self) -> u8 {
        self.byte(0)
    }

    /// Handle that other structures refer to it by.
    pub fn handle(&self) -> u16 {
        self.word(2)
    }

    /// Length of head and fields, bytes.
    pub const fn length(&self) -> usize {
        self.fields.len()
    }

    /// The bytes from `offset` on.
    pub fn bytes(&self, offset: usize) -> &'a [u8] {
        self.fields.get(offset..).unwrap_or_default()
    }

    /// A field of `N` bytes; 0 when the structure is too short to have it.
    fn field<const N: usize>(&self, offset: usize) -> [u8; N] {
        self.bytes(offset).first_chunk().copied().unwrap_or([0; N])
    }

    /// A byte.
    pub fn byte(&self, offset: usize) -> u8 {
        u8::from_le_bytes(self.field(offset))
    }

    /// Two bytes.
    pub fn word(&self, offset: usize) -> u16 {
        u16::from_le_bytes(self.field(offset))
    }

    /// Four bytes.
    pub fn dword(&self, offset: usize) -> u32 {
        u32::from_le_bytes(self.field(offset))
    }

    /// Eight bytes.
    pub fn qword(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self.field(offset))
    }

    /// The text whose number is at `offset`.
    pub fn text(&self, offset: usize) -> Text<'a> {
        let Some(before) = usize::from(self.byte(offset)).checked_sub(1) else { return Text::None };
        let text = self.texts.split(|byte| *byte == 0).nth(before);
        text.filter(|text| !text.is_empty()).map_or(Text::Missing, Text::Bytes)
    }

    /// The same without white space around it; `None` when there is none or an empty one.
    pub fn string(&self, offset: usize) -> Option<String> {
        let Text::Bytes(bytes) = self.text(offset) else { return None };
        Some(String::from_utf8_lossy(bytes).trim().to_owned()).filter(|text| !text.is_empty())
    }
}

/// A UUID as DSP0134 section 7.2.1 has it: the first three parts are little-endian.
pub(crate) fn uuid(bytes: &[u8; 16]) -> String {
    let mut ordered = *bytes;
    for part in [0..4, 4..6, 6..8] {
        if let Some(part) = ordered.get_mut(part) {
            part.reverse();
        }
    }
    let mut text = super::text::hex(&ordered);
    for place in [20, 16, 12, 8] {
        text.insert(place, '-');
    }
    text
}

#[cfg(test)]
pub(crate) mod tests;
