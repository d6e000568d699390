//! Checks that an agent binary can be `/init`: nothing else is in the ramdisk that could load it.
//!
//! A binary with a program interpreter (`PT_INTERP`) or needed libraries (`DT_NEEDED`) makes the kernel panic with
//! "No working init found"; the cause is then hard to see, so the image is not made at all.

use object::elf;
use object::read::elf::{Dyn, ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object};
use thiserror::Error;

/// Why a file cannot be the ramdisk's `/init`.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum AgentBinError {
    /// Not a 64-bit ELF file, or a damaged one.
    #[error("not a readable 64-bit ELF file: {0}")]
    NotElf(String),
    /// Another machine's binary.
    #[error("built for machine type {0} (ELF e_machine), not for x86-64 (62)")]
    WrongMachine(u16),
    /// A library or an object file.
    #[error("not a program: ELF type {0}")]
    NotProgram(u16),
    /// Needs a dynamic loader.
    #[error("dynamically linked: asks for the loader {0}; build it with `make agent`")]
    Interpreter(String),
    /// Needs shared libraries.
    #[error("dynamically linked: needs {0}; build it with `make agent`")]
    Needed(String),
}

/// Accepts `bytes` if they are a static x86-64 program.
pub fn check(bytes: &[u8]) -> Result<(), AgentBinError> {
    let file = ElfFile64::<Endianness>::parse(bytes).map_err(not_elf)?;
    let endian = file.endian();
    let header = file.elf_header();
    let machine = header.e_machine(endian);
    if machine != elf::EM_X86_64 {
        return Err(AgentBinError::WrongMachine(machine.0));
    }
    let kind = header.e_type(endian);
    if kind != elf::ET_EXEC && kind != elf::ET_DYN {
        return Err(AgentBinError::NotProgram(kind.0));
    }
    if file.entry() == 0 {
        return Err(AgentBinError::NotProgram(kind.0));
    }
    for segment in file.elf_program_headers() {
        if let Some(loader) = segment.interpreter(endian, bytes).map_err(not_elf)? {
            return Err(AgentBinError::Interpreter(String::from_utf8_lossy(loader).into_owned()));
        }
    }
    let needed = needed_libraries(&file, bytes)?;
    if needed.is_empty() { Ok(()) } else { Err(AgentBinError::Needed(needed.join(", "))) }
}

/// The names in the dynamic segment's `DT_NEEDED` entries.
fn needed_libraries(file: &ElfFile64<'_, Endianness>, bytes: &[u8]) -> Result<Vec<String>, AgentBinError> {
    let endian = file.endian();
    let mut offsets = Vec::new();
    for segment in file.elf_program_headers() {
        let Some(entries) = segment.dynamic(endian, bytes).map_err(not_elf)? else { continue };
        offsets.extend(entries.iter().filter(|e| e.tag(endian) == elf::DT_NEEDED).map(|e| e.val(endian)));
    }
    // The string table's address is not worth following for a message: sections give the names where they exist.
    let strings = file
        .elf_section_table()
        .dynamic(endian, bytes)
        .ok()
        .flatten()
        .and_then(|(_, link)| file.elf_section_table().strings(endian, bytes, link).ok());
    let name = |offset: &u64| {
        let text = strings.and_then(|s| s.get(u32::try_from(*offset).ok()?).ok());
        text.map_or_else(|| format!("a library (name at offset {offset})"), |t| String::from_utf8_lossy(t).into_owned())
    };
    Ok(offsets.iter().map(name).collect())
}

fn not_elf(error: object::read::Error) -> AgentBinError {
    AgentBinError::NotElf(error.to_string())
}
