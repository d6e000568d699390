//! What the `dmi-decode` collector sends (inspection section 3.4): the output of `dmidecode -t bios -t processor -t
//! memory` in words and shape, made from the tables. Fields and lengths are those of DSP0134, section 7.

use serde_json::{Map, Value};

use super::names::{self, name};
use super::values::{
    address, cache, capacity, cores, errors, family, firmware_traits, flags, hex, id, location, module_size,
    named_bits, processor_traits, rank, revision, rom_size, runtime_size, set, signature, socket_voltage, status, text,
    transfers, voltage,
};
use super::{Smbios, Structure, Version, kind, size};

/// Most structures that are told of; a machine with 32 sockets has fewer than 1000.
const MAX_BLOCKS: usize = 2048;
/// A number that the standard does not know.
pub(super) const UNKNOWN_NUMBER: &str = "<OUT OF SPEC>";

/// The collector's object: `bios`, `cpu` and `memory`.
pub fn decode(smbios: &Smbios) -> Value {
    let (mut firmware, mut memory) = (Map::new(), Map::new());
    let (mut processors, mut devices) = (Vec::new(), Vec::new());
    let mut slots = None::<u64>;
    for structure in smbios.structures().filter(|structure| fields(structure.kind()).is_some()).take(MAX_BLOCKS) {
        let block = block(&structure, smbios.version());
        match structure.kind() {
            kind::FIRMWARE => firmware = block,
            kind::PROCESSOR => processors.push(Value::Object(block)),
            kind::MEMORY_DEVICE => devices.push(Value::Object(block)),
            // The first of several arrays stands for all, with the number of slots of all.
            _ => {
                if slots.is_none() {
                    memory = block;
                    memory.remove("Handle");
                }
                slots = Some(slots.unwrap_or(0) + u64::from(structure.word(0x0d)));
            }
        }
    }
    if let Some(slots) = slots {
        memory.insert("Number Of Devices".to_owned(), slots.into());
    }
    memory.insert("devices".to_owned(), devices.into());
    let mut all = Map::new();
    all.insert("bios".to_owned(), firmware.into());
    all.insert("cpu".to_owned(), processors.into());
    all.insert("memory".to_owned(), memory.into());
    Value::Object(all)
}

/// One line of a block.
struct Field {
    /// Shortest structure that has it.
    since: usize,
    label: &'static str,
    at: usize,
    form: Form,
}

/// What a field holds.
enum Form {
    Text,
    /// A byte with a name.
    Name(&'static str),
    /// A handle of a structure that there must be.
    Handle,
    /// Two bytes with a unit; 0 is unknown.
    Number(&'static str),
    /// Two bytes with a unit; 0 and the highest number are unknown.
    Width(&'static str),
    /// Millivolts.
    Voltage,
    /// Maker in the numbers of JEDEC.
    Maker,
    /// Two bytes in hex; 0 is unknown.
    Product,
    /// Eight bytes with a number of bytes.
    Size,
    /// Bits of two bytes with names, from bit 1.
    Bits(&'static str),
    /// Anything else; `None` when the line is left out.
    Other(fn(&Structure<'_>, Version, usize) -> Option<Value>),
}

const fn field(since: usize, label: &'static str, at: usize, form: Form) -> Field {
    Field { since, label, at, form }
}

use Form::{Bits, Handle, Maker, Name, Number, Other, Product, Size, Voltage, Width};

const FIRMWARE: &[Field] = &[
    field(0x12, "Vendor", 0x04, Form::Text),
    field(0x12, "Version", 0x05, Form::Text),
    field(0x12, "Release Date", 0x08, Form::Text),
    field(0x12, "Address", 0x06, Other(address)),
    field(0x12, "Runtime Size", 0x06, Other(runtime_size)),
    field(0x12, "ROM Size", 0x09, Other(rom_size)),
    field(0x12, "Characteristics", 0x0a, Other(firmware_traits)),
    field(0x18, "BIOS Revision", 0x14, Other(revision)),
    field(0x18, "Firmware Revision", 0x16, Other(revision)),
];

const PROCESSOR: &[Field] = &[
    field(0x1a, "Socket Designation", 0x04, Form::Text),
    field(0x1a, "Type", 0x05, Name(names::PROCESSOR_TYPES)),
    field(0x1a, "Family", 0x06, Other(family)),
    field(0x1a, "Manufacturer", 0x07, Form::Text),
    field(0x1a, "ID", 0x08, Other(id)),
    field(0x1a, "Signature", 0x08, Other(signature)),
    field(0x1a, "Flags", 0x0c, Other(flags)),
    field(0x1a, "Version", 0x10, Form::Text),
    field(0x1a, "Voltage", 0x11, Other(socket_voltage)),
    field(0x1a, "External Clock", 0x12, Number("MHz")),
    field(0x1a, "Max Speed", 0x14, Number("MHz")),
    field(0x1a, "Current Speed", 0x16, Number("MHz")),
    field(0x1a, "Status", 0x18, Other(status)),
    field(0x1a, "Upgrade", 0x19, Name(names::SOCKETS)),
    field(0x20, "L1 Cache Handle", 0x1a, Other(cache)),
    field(0x20, "L2 Cache Handle", 0x1c, Other(cache)),
    field(0x20, "L3 Cache Handle", 0x1e, Other(cache)),
    field(0x23, "Serial Number", 0x20, Form::Text),
    field(0x23, "Asset Tag", 0x21, Form::Text),
    field(0x23, "Part Number", 0x22, Form::Text),
    field(0x28, "Core Count", 0x23, Other(cores)),
    field(0x28, "Core Enabled", 0x24, Other(cores)),
    field(0x28, "Thread Count", 0x25, Other(cores)),
    field(0x28, "Characteristics", 0x26, Other(processor_traits)),
];

const MEMORY_ARRAY: &[Field] = &[
    field(0x0f, "Location", 0x04, Other(location)),
    field(0x0f, "Use", 0x05, Name(names::USES)),
    field(0x0f, "Error Correction Type", 0x06, Name(names::CORRECTIONS)),
    field(0x0f, "Maximum Capacity", 0x07, Other(capacity)),
    field(0x0f, "Error Information Handle", 0x0b, Other(errors)),
    field(0x0f, "Number Of Devices", 0x0d, Other(|structure, _, at| Some(structure.word(at).to_string().into()))),
];

/// Length of a memory device without what says nothing of an empty slot.
const EMPTY_SLOT: usize = 0x15;

const MEMORY_DEVICE: &[Field] = &[
    field(EMPTY_SLOT, "Array Handle", 0x04, Handle),
    field(EMPTY_SLOT, "Error Information Handle", 0x06, Other(errors)),
    field(EMPTY_SLOT, "Total Width", 0x08, Width("bits")),
    field(EMPTY_SLOT, "Data Width", 0x0a, Width("bits")),
    field(EMPTY_SLOT, "Size", 0x0c, Other(module_size)),
    field(EMPTY_SLOT, "Form Factor", 0x0e, Name(names::FORM_FACTORS)),
    field(EMPTY_SLOT, "Set", 0x0f, Other(set)),
    field(EMPTY_SLOT, "Locator", 0x10, Form::Text),
    field(EMPTY_SLOT, "Bank Locator", 0x11, Form::Text),
    field(EMPTY_SLOT, "Type", 0x12, Name(names::MEMORY_TYPES)),
    field(EMPTY_SLOT, "Type Detail", 0x13, Bits(names::MEMORY_DETAILS)),
    field(0x17, "Speed", 0x15, Other(|structure, _, at| transfers(structure, at, 0x54))),
    field(0x1b, "Manufacturer", 0x17, Form::Text),
    field(0x1b, "Serial Number", 0x18, Form::Text),
    field(0x1b, "Asset Tag", 0x19, Form::Text),
    field(0x1b, "Part Number", 0x1a, Form::Text),
    field(0x1c, "Rank", 0x1b, Other(rank)),
    field(0x22, "Configured Memory Speed", 0x20, Other(|structure, _, at| transfers(structure, at, 0x58))),
    field(0x28, "Minimum Voltage", 0x22, Voltage),
    field(0x28, "Maximum Voltage", 0x24, Voltage),
    field(0x28, "Configured Voltage", 0x26, Voltage),
    field(0x34, "Memory Technology", 0x28, Name(names::TECHNOLOGIES)),
    field(0x34, "Memory Operating Mode Capability", 0x29, Bits(names::OPERATING_MODES)),
    field(0x34, "Firmware Version", 0x2b, Form::Text),
    field(0x34, "Module Manufacturer ID", 0x2c, Maker),
    field(0x34, "Module Product ID", 0x2e, Product),
    field(0x34, "Memory Subsystem Controller Manufacturer ID", 0x30, Maker),
    field(0x34, "Memory Subsystem Controller Product ID", 0x32, Product),
    field(0x3c, "Non-Volatile Size", 0x34, Size),
    field(0x44, "Volatile Size", 0x3c, Size),
    field(0x4c, "Cache Size", 0x44, Size),
    field(0x54, "Logical Size", 0x4c, Size),
];

/// The lines of a type of structure; `None` when the collector does not tell of it.
fn fields(kind: u8) -> Option<&'static [Field]> {
    Some(match kind {
        kind::FIRMWARE => FIRMWARE,
        kind::PROCESSOR => PROCESSOR,
        kind::MEMORY_ARRAY => MEMORY_ARRAY,
        kind::MEMORY_DEVICE => MEMORY_DEVICE,
        _ => return None,
    })
}

fn block(structure: &Structure<'_>, version: Version) -> Map<String, Value> {
    let mut block = Map::new();
    let (kind, length) = (structure.kind(), structure.length());
    let head = format!("Handle 0x{:04X}, DMI type {kind}, {length} bytes", structure.handle());
    block.insert("Handle".to_owned(), head.into());
    let is_empty_slot = kind == kind::MEMORY_DEVICE && structure.word(0x0c) == 0;
    let length = if is_empty_slot { length.min(EMPTY_SLOT) } else { length };
    for field in fields(kind).unwrap_or_default().iter().filter(|field| field.since <= length) {
        let value = match field.form.value(structure, version, field.at) {
            // What the reference agent reads as a list without entries.
            Some(Value::String(text)) if text.trim().is_empty() => Value::Array(Vec::new()),
            Some(Value::String(text)) if text.trim().len() < text.len() => text.trim().into(),
            Some(value) => value,
            None => continue,
        };
        block.insert(field.label.to_owned(), value);
    }
    block
}

impl Form {
    fn value(&self, structure: &Structure<'_>, version: Version, at: usize) -> Option<Value> {
        let word = structure.word(at);
        let text = match *self {
            Self::Text => text(structure, at),
            Name(list) => name(list, structure.byte(at).into()).unwrap_or(UNKNOWN_NUMBER).to_owned(),
            Handle => hex(word),
            Number(_) | Product | Maker if word == 0 => "Unknown".to_owned(),
            Width(_) if word == 0 || word == u16::MAX => "Unknown".to_owned(),
            Number(unit) | Width(unit) => format!("{word} {unit}"),
            Voltage => voltage(word),
            Maker => format!("Bank {}, Hex 0x{:02X}", (word & 0x7f) + 1, word >> 8),
            Product => hex(word),
            Size => match structure.qword(at) {
                0 => "None".to_owned(),
                u64::MAX => "Unknown".to_owned(),
                bytes => size::text(bytes, 0),
            },
            Bits(list) => match word & 0xfffe {
                0 => "None".to_owned(),
                _ => named_bits(list, (word >> 1).into()).join(" "),
            },
            Other(read) => return read(structure, version, at),
        };
        Some(text.into())
    }
}
