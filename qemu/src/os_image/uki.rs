//! Unified kernel images: systemd's stub with kernel, initramfs and command line as further sections of the program, so that
//! one file on the ESP starts the system (UAPI group, Unified Kernel Image; Microsoft PE format for the headers).

use anyhow::{Context as _, Result, ensure};

const SECTION_HEADER_BYTES: usize = 40;
/// Initialised data that can be read.
const CHARACTERISTICS: u32 = 0x4000_0040;

/// Adds sections to a PE32+ program.
pub(super) fn add_sections(program: &[u8], sections: &[(&str, &[u8])]) -> Result<Vec<u8>> {
    let mut out = program.to_vec();
    let pe = usize::try_from(word(&out, 0x3c)?)?;
    ensure!(out.get(pe..pe + 4) == Some(b"PE\0\0"), "the boot stub is no PE program");
    let count = usize::from(half(&out, pe + 6)?);
    let optional = pe + 24;
    ensure!(half(&out, optional)? == 0x20b, "the boot stub is not PE32+");
    let table = optional + usize::from(half(&out, pe + 20)?);
    let (section_align, file_align) = (word(&out, optional + 32)?, word(&out, optional + 36)?);
    let mut address = word(&out, optional + 56)?.next_multiple_of(section_align);
    let headers_end = usize::try_from(word(&out, optional + 60)?)?;
    let mut header = table + count * SECTION_HEADER_BYTES;
    let free = out.get(header..headers_end).context("the boot stub's headers are cut short")?;
    ensure!(
        free.len() >= sections.len() * SECTION_HEADER_BYTES && free.iter().all(|byte| *byte == 0),
        "the boot stub has no room for more section headers"
    );
    for (name, content) in sections {
        ensure!(name.len() <= 8, "section name {name} is too long");
        let size = u32::try_from(content.len())?;
        out.resize(out.len().next_multiple_of(usize::try_from(file_align)?), 0);
        let place = u32::try_from(out.len())?;
        out.extend_from_slice(content);
        out.resize(out.len().next_multiple_of(usize::try_from(file_align)?), 0);
        put(&mut out, header, name.as_bytes())?;
        for (offset, value) in
            [(8, size), (12, address), (16, size.next_multiple_of(file_align)), (20, place), (36, CHARACTERISTICS)]
        {
            put(&mut out, header + offset, &value.to_le_bytes())?;
        }
        address = (address + size).next_multiple_of(section_align);
        header += SECTION_HEADER_BYTES;
    }
    let count = u16::try_from(count + sections.len())?;
    put(&mut out, pe + 6, &count.to_le_bytes())?;
    put(&mut out, optional + 56, &address.to_le_bytes())?;
    Ok(out)
}

fn word(bytes: &[u8], at: usize) -> Result<u32> {
    let bytes = bytes.get(at..at + 4).context("the boot stub is cut short")?;
    Ok(u32::from_le_bytes(bytes.try_into()?))
}

fn half(bytes: &[u8], at: usize) -> Result<u16> {
    let bytes = bytes.get(at..at + 2).context("the boot stub is cut short")?;
    Ok(u16::from_le_bytes(bytes.try_into()?))
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) -> Result<()> {
    bytes.get_mut(at..at + value.len()).context("the boot stub is cut short")?.copy_from_slice(value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program with headers of 1 KiB and one section.
    fn stub() -> Vec<u8> {
        let mut bytes = vec![0; 0x600];
        put(&mut bytes, 0x3c, &0x80_u32.to_le_bytes()).unwrap();
        put(&mut bytes, 0x80, b"PE\0\0").unwrap();
        put(&mut bytes, 0x86, &1_u16.to_le_bytes()).unwrap();
        put(&mut bytes, 0x94, &240_u16.to_le_bytes()).unwrap();
        put(&mut bytes, 0x98, &0x20b_u16.to_le_bytes()).unwrap();
        for (offset, value) in [(32, 0x1000_u32), (36, 0x200), (56, 0x2000), (60, 0x400)] {
            put(&mut bytes, 0x98 + offset, &value.to_le_bytes()).unwrap();
        }
        put(&mut bytes, 0x188, b".text").unwrap();
        bytes
    }

    #[test]
    fn added_sections_are_described_where_they_are() {
        let made = add_sections(&stub(), &[(".cmdline", b"root=x"), (".linux", &[7; 5000])]).unwrap();
        assert_eq!(half(&made, 0x86).unwrap(), 3);
        for (index, (name, content, address)) in
            [(".cmdline", &b"root=x"[..], 0x2000), (".linux", &[7; 5000], 0x3000)].into_iter().enumerate()
        {
            let header = 0x188 + 40 * (index + 1);
            assert!(made[header..].starts_with(name.as_bytes()), "{name}");
            assert_eq!(word(&made, header + 12).unwrap(), address, "{name}");
            let place = usize::try_from(word(&made, header + 20).unwrap()).unwrap();
            assert_eq!((&made[place..place + content.len()], place % 0x200), (content, 0), "{name}");
        }
        assert_eq!(word(&made, 0x98 + 56).unwrap(), 0x5000);
    }

    #[test]
    fn what_is_no_program_or_has_no_room_is_refused() {
        assert!(add_sections(b"MZ", &[]).is_err());
        let mut full = stub();
        full[0x188 + 40..0x400].fill(1);
        assert!(add_sections(&full, &[(".linux", b"x")]).unwrap_err().to_string().contains("no room"));
    }
}
