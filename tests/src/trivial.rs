//! The least a kernel can start: what any user space is measured against.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::overlay;

/// What the trivial init writes to the console.
pub const TRIVIAL_INIT_SAYS: &str = "TRIVIAL-INIT-REACHED";

/// Address at which the program is loaded.
const BASE: u64 = 0x40_0000;
/// ELF header and one program header.
const HEADERS: u64 = 64 + 56;

/// Machine code for x86-64: `write(1, text, len)`, then `pause()` for ever.
const CODE: [u8; 31] = [
    0xb8, 1, 0, 0, 0, // mov $1, %eax (write)
    0xbf, 1, 0, 0, 0, // mov $1, %edi
    0x48, 0x8d, 0x35, 14, 0, 0, 0, // lea 14(%rip), %rsi: the text behind the code
    0xba, 22, 0, 0, 0, // mov $22, %edx
    0x0f, 0x05, // syscall
    0xb0, 34, // mov $34, %al (pause)
    0x0f, 0x05, // syscall
    0xeb, 0xfa, // jmp to the mov
    0x90, // nop
];

/// A static program without a single library.
fn program() -> Vec<u8> {
    let mut code = CODE.to_vec();
    code.extend_from_slice(TRIVIAL_INIT_SAYS.as_bytes());
    code.extend_from_slice(b"\r\n");
    let size = HEADERS + u64::try_from(code.len()).unwrap_or(0);
    let mut elf = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let short = |elf: &mut Vec<u8>, value: u16| elf.extend(value.to_le_bytes());
    let word = |elf: &mut Vec<u8>, value: u32| elf.extend(value.to_le_bytes());
    let long = |elf: &mut Vec<u8>, value: u64| elf.extend(value.to_le_bytes());
    short(&mut elf, 2); // an executable
    short(&mut elf, 62); // for x86-64
    word(&mut elf, 1);
    long(&mut elf, BASE + HEADERS); // entry
    long(&mut elf, 64); // program headers
    long(&mut elf, 0); // no sections
    word(&mut elf, 0);
    [64, 56, 1, 64, 0, 0].into_iter().for_each(|value| short(&mut elf, value));
    word(&mut elf, 1); // load
    word(&mut elf, 5); // readable, executable
    for value in [0, BASE, BASE, size, size, 0x1000] {
        long(&mut elf, value);
    }
    elf.extend(code);
    elf
}

/// Writes an initramfs with nothing but this init into `dir`.
///
/// # Errors
/// It cannot be written.
pub fn trivial_initramfs(dir: &Path) -> Result<PathBuf> {
    let path = dir.join("trivial.cpio");
    let archive = overlay::archive(&[("init".to_owned(), program())], 0o755).context("packing the trivial init")?;
    std::fs::write(&path, archive).with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_where_and_as_long_as_the_code_says() {
        // lea is relative to the instruction behind it, which begins at byte 17.
        assert_eq!(17 + usize::from(CODE[13]), CODE.len());
        assert_eq!(usize::from(CODE[18]), TRIVIAL_INIT_SAYS.len() + 2);
    }
}
