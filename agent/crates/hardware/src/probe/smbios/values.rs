//! Fields of structures in the words of `dmidecode`, for those that are more than a number with a name or a unit.

use serde_json::Value;

use super::dmi::UNKNOWN_NUMBER;
use super::names::{self, name};
use super::{Structure, Text, Version, size};

/// A text with a point for each character that is not printable ASCII.
pub(super) fn text(structure: &Structure<'_>, at: usize) -> String {
    match structure.text(at) {
        Text::None => "Not Specified".to_owned(),
        Text::Missing => "<BAD INDEX>".to_owned(),
        Text::Bytes(bytes) => {
            bytes.iter().map(|byte| if matches!(byte, 0x20..0x7f) { char::from(*byte) } else { '.' }).collect()
        }
    }
}

pub(super) fn hex(word: u16) -> String {
    format!("0x{word:04X}")
}

/// Names of the bits that are set; those without a name are left out.
pub(super) fn named_bits(list: &'static str, bits: u32) -> Vec<&'static str> {
    let is_set = |place: usize| u32::try_from(place).is_ok_and(|place| bits.checked_shr(place).unwrap_or(0) & 1 == 1);
    list.split('|')
        .enumerate()
        .filter(|(place, name)| is_set(*place) && !name.is_empty())
        .map(|(_, name)| name)
        .collect()
}

pub(super) fn voltage(millivolts: u16) -> String {
    match millivolts {
        0 => "Unknown".to_owned(),
        _ if millivolts.is_multiple_of(100) => format!("{}.{} V", millivolts / 1000, millivolts % 1000 / 100),
        _ => {
            let text = format!("{}.{:03}", millivolts / 1000, millivolts % 1000);
            format!("{} V", text.trim_end_matches('0'))
        }
    }
}

pub(super) fn address(structure: &Structure<'_>, _: Version, at: usize) -> Option<Value> {
    let segment = structure.word(at);
    (segment != 0).then(|| format!("0x{segment:04X}0").into())
}

pub(super) fn runtime_size(structure: &Structure<'_>, _: Version, at: usize) -> Option<Value> {
    let bytes = (0x1_0000 - u32::from(structure.word(at))) << 4;
    (bytes != 0x10_0000).then(|| match bytes & 0x3ff {
        0 => format!("{} kB", bytes >> 10).into(),
        _ => format!("{bytes} bytes").into(),
    })
}

pub(super) fn rom_size(structure: &Structure<'_>, _: Version, at: usize) -> Option<Value> {
    let blocks = structure.byte(at);
    if blocks != u8::MAX || structure.length() < 0x1a {
        return Some(size::text((u64::from(blocks) + 1) << 6, 1).into());
    }
    let extended = structure.word(0x18);
    let unit = match extended >> 14 {
        0 => "MB",
        1 => "GB",
        _ => UNKNOWN_NUMBER,
    };
    Some(format!("{} {unit}", extended & 0x3fff).into())
}

pub(super) fn firmware_traits(structure: &Structure<'_>, _: Version, at: usize) -> Option<Value> {
    let bits = structure.dword(at);
    let mut traits = if bits & 8 != 0 {
        vec!["BIOS characteristics not supported"]
    } else {
        named_bits(names::FIRMWARE_TRAITS, bits >> 4)
    };
    // The two bytes of extensions, of which short structures have one or none.
    let more = [0x12, 0x13].map(|at| if structure.length() > at { structure.byte(at) } else { 0 });
    traits.extend(named_bits(names::MORE_FIRMWARE_TRAITS, u16::from_le_bytes(more).into()));
    Some(traits.into())
}

pub(super) fn revision(structure: &Structure<'_>, _: Version, at: usize) -> Option<Value> {
    let (major, minor) = (structure.byte(at), structure.byte(at + 1));
    (major != u8::MAX && minor != u8::MAX).then(|| format!("{major}.{minor}").into())
}

/// Family of a processor, in the second field where the first has no room for it.
fn family_number(structure: &Structure<'_>) -> u32 {
    match structure.byte(0x06) {
        0xfe if structure.length() >= 0x2a => structure.word(0x28).into(),
        number => number.into(),
    }
}

pub(super) fn family(structure: &Structure<'_>, version: Version, _: usize) -> Option<Value> {
    let number = family_number(structure);
    let maker = structure.string(0x07).unwrap_or_default();
    let is_intel = maker.to_ascii_lowercase().contains("intel");
    let ambiguous = match number {
        0x30 if version == Version(2, 0) && is_intel => Some("Pentium Pro"),
        0xbe if is_intel => Some("Core 2"),
        0xbe if maker.contains("AMD") => Some("K7"),
        _ => None,
    };
    let more = || {
        names::MORE_FAMILIES
            .iter()
            .rev()
            .find(|(first, _)| *first <= number)
            .and_then(|(first, list)| name(list, number - first + 1))
    };
    Some(ambiguous.or_else(|| name(names::FAMILIES, number)).or_else(more).unwrap_or(UNKNOWN_NUMBER).into())
}

pub(super) fn id(structure: &Structure<'_>, _: Version, at: usize) -> Option<Value> {
    let bytes: Vec<String> = structure.bytes(at).iter().take(8).map(|byte| format!("{byte:02X}")).collect();
    Some(bytes.join(" ").into())
}

/// How the eight bytes that identify a processor are to be read.
enum Identity {
    Intel,
    Amd,
    Arm,
}

fn identity(structure: &Structure<'_>) -> Option<Identity> {
    Some(match family_number(structure) {
        0x0b..=0x15 | 0x28..=0x2f | 0xa1..=0xb3 | 0xb5 | 0xb9..=0xc7 | 0xcd..=0xcf | 0xd2..=0xdb | 0xdd..=0xe0 => {
            Identity::Intel
        }
        0x300..=0x307 => Identity::Intel,
        0x18..=0x1d | 0x1f | 0x38..=0x3f | 0x46..=0x4f | 0x66..=0x6b | 0x83..=0x8f | 0xb6..=0xb7 | 0xe4..=0xef => {
            Identity::Amd
        }
        0x100..=0x102 | 0x118..=0x119 => Identity::Arm,
        // Other and unknown ones go by their names.
        1 | 2 => {
            let version = structure.string(0x10).unwrap_or_default();
            let begins = |names: &[&str]| names.iter().any(|name| version.starts_with(name));
            if begins(&["Pentium III MMX", "Intel(R) Core(TM)2", "Intel(R) Pentium(R)", "Genuine Intel(R) CPU U1400"]) {
                Identity::Intel
            } else if begins(&["AMD Athlon(TM)", "AMD Opteron(tm)", "Dual-Core AMD Opteron(tm)"]) {
                Identity::Amd
            } else {
                return None;
            }
        }
        _ => return None,
    })
}

pub(super) fn signature(structure: &Structure<'_>, _: Version, at: usize) -> Option<Value> {
    let number = structure.dword(at);
    let bits = |shift: u32, mask: u32| (number >> shift) & mask;
    let text = match identity(structure)? {
        Identity::Intel => {
            let (family, model) = (bits(20, 0xff) + bits(8, 0xf), (bits(16, 0xf) << 4) + bits(4, 0xf));
            format!("Type {}, Family {family}, Model {model}, Stepping {}", bits(12, 3), bits(0, 0xf))
        }
        Identity::Amd => {
            let extended = bits(8, 0xf) == 0xf;
            let family = bits(8, 0xf) + if extended { bits(20, 0xff) } else { 0 };
            let model = bits(4, 0xf) + if extended { bits(16, 0xf) << 4 } else { 0 };
            format!("Family {family}, Model {model}, Stepping {}", bits(0, 0xf))
        }
        Identity::Arm if structure.length() >= 0x28 && structure.word(0x26) & 1 << 9 != 0 => format!(
            "JEP-106 Bank 0x{:02x} Manufacturer 0x{:02x}, SoC ID 0x{:04x}, SoC Revision 0x{:08x}",
            bits(24, 0x7f),
            bits(16, 0x7f),
            bits(0, 0xffff),
            structure.dword(at + 4)
        ),
        Identity::Arm if number == 0 => return None,
        Identity::Arm => format!(
            "Implementor 0x{:02x}, Variant 0x{:x}, Architecture {}, Part 0x{:03x}, Revision {}",
            bits(24, 0xff),
            bits(20, 0xf),
            bits(16, 0xf),
            bits(4, 0xfff),
            bits(0, 0xf)
        ),
    };
    Some(text.into())
}

pub(super) fn flags(structure: &Structure<'_>, _: Version, at: usize) -> Option<Value> {
    if let Identity::Arm = identity(structure)? {
        return None;
    }
    let flags = named_bits(names::CPUID_FLAGS, structure.dword(at));
    Some(if flags.is_empty() { "None".into() } else { flags.into() })
}

pub(super) fn socket_voltage(structure: &Structure<'_>, _: Version, at: usize) -> Option<Value> {
    let byte = structure.byte(at);
    Some(match byte {
        0x80.. => format!("{}.{} V", (byte & 0x7f) / 10, (byte & 0x7f) % 10).into(),
        _ if byte & 7 == 0 => "Unknown".into(),
        _ => named_bits("5.0 V|3.3 V|2.9 V", byte.into()).join(" ").into(),
    })
}

pub(super) fn status(structure: &Structure<'_>, _: Version, at: usize) -> Option<Value> {
    let byte = structure.byte(at);
    if byte & 0x40 == 0 {
        return Some("Unpopulated".into());
    }
    let state = match byte & 7 {
        0 => "Unknown",
        number => name(names::STATES, number.into()).unwrap_or(UNKNOWN_NUMBER),
    };
    Some(format!("Populated, {state}").into())
}

pub(super) fn cache(structure: &Structure<'_>, version: Version, at: usize) -> Option<Value> {
    Some(match structure.word(at) {
        u16::MAX if version < Version(2, 3) => format!("No L{} Cache", (at - 0x18) / 2).into(),
        u16::MAX => "Not Provided".into(),
        handle => hex(handle).into(),
    })
}

/// A count, which is in a field of two bytes when one is too small for it.
pub(super) fn cores(structure: &Structure<'_>, _: Version, at: usize) -> Option<Value> {
    let wide = 0x2a + (at - 0x23) * 2;
    match structure.byte(at) {
        0 => None,
        u8::MAX if structure.length() >= wide + 2 => Some(structure.word(wide).to_string().into()),
        count => Some(count.to_string().into()),
    }
}

pub(super) fn processor_traits(structure: &Structure<'_>, _: Version, at: usize) -> Option<Value> {
    let bits = structure.word(at);
    Some(match bits & 0xfc {
        0 => "None".into(),
        _ => named_bits(names::PROCESSOR_TRAITS, (bits >> 2).into()).into(),
    })
}

pub(super) fn location(structure: &Structure<'_>, _: Version, at: usize) -> Option<Value> {
    let number = u32::from(structure.byte(at));
    let more = || name(names::MORE_LOCATIONS, number.checked_sub(0x9f)?);
    Some(name(names::LOCATIONS, number).or_else(more).unwrap_or(UNKNOWN_NUMBER).into())
}

pub(super) fn capacity(structure: &Structure<'_>, _: Version, at: usize) -> Option<Value> {
    Some(match structure.dword(at) {
        0x8000_0000 if structure.length() < 0x17 => "Unknown".into(),
        0x8000_0000 => size::text(structure.qword(0x0f), 0).into(),
        kib => size::text(kib.into(), 1).into(),
    })
}

pub(super) fn errors(structure: &Structure<'_>, _: Version, at: usize) -> Option<Value> {
    Some(match structure.word(at) {
        0xfffe => "Not Provided".into(),
        u16::MAX => "No Error".into(),
        handle => hex(handle).into(),
    })
}

pub(super) fn module_size(structure: &Structure<'_>, _: Version, at: usize) -> Option<Value> {
    Some(match structure.word(at) {
        0 => "No Module Installed".into(),
        u16::MAX => "Unknown".into(),
        0x7fff if structure.length() >= 0x20 => size::extended(structure.dword(0x1c)).into(),
        kib if kib & 0x8000 != 0 => size::text((kib & 0x7fff).into(), 1).into(),
        mib => size::text(mib.into(), 2).into(),
    })
}

pub(super) fn set(structure: &Structure<'_>, _: Version, at: usize) -> Option<Value> {
    Some(match structure.byte(at) {
        0 => "None".into(),
        u8::MAX => "Unknown".into(),
        number => number.to_string().into(),
    })
}

/// A speed, which is in a field of four bytes when two are too small for it.
pub(super) fn transfers(structure: &Structure<'_>, at: usize, wide: usize) -> Option<Value> {
    let number = match structure.word(at) {
        u16::MAX if structure.length() >= 0x5c => structure.dword(wide),
        u16::MAX => 0,
        number => number.into(),
    };
    Some(if number == 0 { "Unknown".into() } else { format!("{number} MT/s").into() })
}

pub(super) fn rank(structure: &Structure<'_>, _: Version, at: usize) -> Option<Value> {
    Some(match structure.byte(at) & 0xf {
        0 => "Unknown".into(),
        number => number.to_string().into(),
    })
}
