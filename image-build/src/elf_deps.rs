//! What a dynamically linked program or library needs to be loaded: its `PT_INTERP` and its `DT_NEEDED` entries.

use anyhow::{Context, Result, ensure};
use object::read::elf::{Dyn, ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, elf};

/// What one file needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needs {
    /// Path of the program interpreter; libraries have none.
    pub interpreter: Option<String>,
    /// Names of shared libraries, in the file's order.
    pub libraries: Vec<String>,
}

/// Whether a file is an ELF file at all: scripts need no libraries.
pub fn is_elf(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x7fELF")
}

/// Reads what an x86-64 program or library needs.
///
/// # Errors
/// It is no such file, or a damaged one.
pub fn needs(bytes: &[u8]) -> Result<Needs> {
    let file = ElfFile64::<Endianness>::parse(bytes).context("reading the ELF structure")?;
    let (endian, header) = (file.endian(), file.elf_header());
    let machine = header.e_machine(endian);
    ensure!(machine == elf::EM_X86_64, "built for machine type {} (ELF e_machine), not for x86-64 (62)", machine.0);
    let mut found = Needs::default();
    for segment in file.elf_program_headers() {
        if let Some(path) = segment.interpreter(endian, bytes).context("reading the interpreter's path")? {
            found.interpreter = Some(text(path)?);
        }
    }
    let sections = file.elf_section_table();
    let Some((entries, link)) = sections.dynamic(endian, bytes).context("reading the dynamic section")? else {
        return Ok(found);
    };
    let strings = sections.strings(endian, bytes, link).context("reading the dynamic section's texts")?;
    for entry in entries.iter().filter(|entry| entry.tag(endian) == elf::DT_NEEDED) {
        let offset = u32::try_from(entry.val(endian)).context("the name of a needed library is out of reach")?;
        let name = strings.get(offset).ok().context("the name of a needed library is out of reach")?;
        found.libraries.push(text(name)?);
    }
    Ok(found)
}

fn text(bytes: &[u8]) -> Result<String> {
    Ok(std::str::from_utf8(bytes).context("a name in the file is not UTF-8")?.to_owned())
}
