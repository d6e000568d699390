//! Makes kernel modules smaller: takes out what the ramdisk never uses.
//!
//! What goes: BTF type information (`.BTF`, read only by BPF programs), ORC unwind tables (`.orc_unwind*`; the kernel
//! loads modules without them, and stack traces then mark frames inside modules with `?`), the places to patch on a
//! machine with one processor (`.smp_locks`: locked instructions stay locked), compiler notes, local symbols that no
//! relocation refers to, and with them the signature, which covered the file as it was. A stock kernel then says once
//! that it is tainted by an unsigned module; one locked down by Secure Boot refuses it. So a profile chooses this, and
//! one for Secure Boot must not.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use object::build::elf::{Builder, SectionData, SectionId, SymbolId};
use object::elf;

/// Sections that the running ramdisk has no use for. The relocations that belong to them go along.
const UNUSED_SECTIONS: &[&[u8]] = &[
    b".BTF",
    b".comment",
    b".note.GNU-stack",
    b".note.gnu.build-id",
    b".orc_unwind",
    b".orc_unwind_ip",
    b".smp_locks",
];

/// The module file `bytes` without the parts that are not needed to load and run it.
pub fn strip_module(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut builder = Builder::read(bytes).context("reading the module's ELF structure")?;
    ensure!(builder.header.e_type == elf::ET_REL, "it is not a relocatable object, so it is no module");
    delete_sections(&mut builder);
    delete_local_symbols(&mut builder);
    place_sections(&mut builder);
    let mut out = Vec::new();
    builder.write(&mut out).context("writing the smaller module")?;
    Ok(out)
}

fn delete_sections(builder: &mut Builder<'_>) {
    let mut deleted: Vec<SectionId> = Vec::new();
    for section in &mut builder.sections {
        section.delete = UNUSED_SECTIONS.contains(&section.name.as_slice());
        if section.delete {
            deleted.push(section.id());
        }
    }
    for section in &mut builder.sections {
        section.delete |= section.sh_info_section.is_some_and(|target| deleted.contains(&target));
    }
    builder.delete_orphan_symbols();
}

/// Deletes local symbols that no kept relocation refers to, as `strip --strip-unneeded` does.
fn delete_local_symbols(builder: &mut Builder<'_>) {
    let mut used: BTreeSet<usize> = BTreeSet::new();
    let index = |id: SymbolId| object::build::Id::index(&id);
    for section in &builder.sections {
        if let SectionData::Relocation(relocations) = &section.data {
            used.extend(relocations.iter().filter_map(|relocation| relocation.symbol).map(index));
        }
    }
    for symbol in &mut builder.symbols {
        if symbol.st_bind() == elf::STB_LOCAL && !used.contains(&index(symbol.id())) {
            symbol.delete = true;
        }
    }
}

/// Closes the gaps: sections with memory are written where their offset says, one after the other from here on.
fn place_sections(builder: &mut Builder<'_>) {
    let mut offset = builder.file_header_size();
    for section in &mut builder.sections {
        if section.delete || !section.is_alloc() {
            continue;
        }
        offset = offset.next_multiple_of(section.sh_addralign.max(1));
        section.sh_offset = offset;
        if section.sh_type != elf::SHT_NOBITS {
            offset += section.sh_size;
        }
    }
}
