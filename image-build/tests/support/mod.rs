//! A small kernel package and agent, made on the spot: no download, no compiler.

use std::fs;
use std::path::{Path, PathBuf};

use ferric_image_build::Options;
use ferric_image_build::kernel::Source;
use ferric_image_build::programs;
use object::write::{Object, Relocation, StandardSegment, Symbol, SymbolSection};
use object::{Architecture, BinaryFormat, RelocationFlags, SectionKind, SymbolFlags, SymbolKind, SymbolScope};
use tempfile::TempDir;

/// The kernel release of the fixture.
pub(crate) const RELEASE: &str = "6.1.0-99-test";

/// The modules of the fixture: path below `kernel/`, and the records of `.modinfo`.
const MODULES: &[(&str, &[&str])] = &[
    ("drivers/net/virtio_net.ko", &["depends=net-failover,virtio", "alias=virtio:d00000001v*", "version=1.0"]),
    ("drivers/net/net_failover.ko", &["depends=failover"]),
    ("net/core/failover.ko", &["depends="]),
    ("drivers/virtio/virtio.ko", &["depends="]),
    ("drivers/net/ethernet/intel/e1000/e1000.ko", &["depends=", "alias=pci:v00008086d00001000sv*sd*bc*sc*i*"]),
    ("drivers/net/ethernet/intel/e1000e/e1000e.ko", &["depends=", "firmware=intel/some.bin"]),
    ("drivers/net/ethernet/amd/pcnet32.ko", &["depends="]),
    ("fs/ext4/ext4.ko", &["depends=jbd2", "softdep=pre: crc32c", "alias=fs-ext4"]),
    ("fs/jbd2/jbd2.ko", &["depends=", "softdep=pre: crc32 no-such-thing post: later"]),
    ("crypto/crc32c_generic.ko", &["depends=", "alias=crypto-crc32c", "alias=crc32c"]),
    ("arch/x86/crypto/crc32c-intel.ko", &["depends=", "alias=crc32c", "alias=cpu:type:x86,ven*"]),
    ("fs/fat/vfat.ko", &["depends=fat"]),
    ("fs/fat/fat.ko", &["depends="]),
    ("fs/nls/nls_cp437.ko", &["depends="]),
    ("drivers/broken.ko", &["depends=not_shipped"]),
];

const BUILTIN: &str = "kernel/lib/crc32.ko\nkernel/drivers/input/keyboard/atkbd.ko\n";

/// A profile that uses the fixture's kernel; its table of modules is added.
const PROFILE: &str = r#"
name = "tiny"
description = "for tests"
skeleton = "skeleton"
[kernel]
package = "linux-image-test"
[modules]
"#;

/// An unpacked kernel package, a skeleton and an agent in a directory of their own.
#[derive(Debug)]
pub(crate) struct Fixture {
    directory: TempDir,
}

impl Fixture {
    /// Makes the fixture. With `reversed`, files are made in the opposite order, as another file system would list them.
    pub(crate) fn new(reversed: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let fixture = Self { directory };
        let mut files: Vec<(String, Vec<u8>)> = MODULES
            .iter()
            .map(|(path, records)| (format!("kernel/lib/modules/{RELEASE}/kernel/{path}"), module(records)))
            .collect();
        files.push((format!("kernel/lib/modules/{RELEASE}/modules.builtin"), BUILTIN.into()));
        files.push((format!("kernel/boot/vmlinuz-{RELEASE}"), b"bzImage".to_vec()));
        files.push(("skeleton/etc/passwd".into(), b"root:x:0:0::/root:/init\n".to_vec()));
        files.push(("agent".into(), static_program()));
        if reversed {
            files.reverse();
        }
        for (path, bytes) in files {
            let path = fixture.path(&path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        fixture
    }

    /// A path in the fixture.
    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.directory.path().join(below)
    }

    /// The fixture's `lib/modules/RELEASE`.
    pub(crate) fn modules(&self) -> PathBuf {
        self.path(&format!("kernel/lib/modules/{RELEASE}"))
    }

    /// Options that build the fixture with `modules` as the profile's table of modules.
    pub(crate) fn options(&self, modules: &str, out: &str) -> Options {
        let profile = self.path("tiny.toml");
        fs::write(&profile, format!("{PROFILE}{modules}")).unwrap();
        Options {
            profile,
            agent: self.path("agent"),
            out: self.path(out),
            kernel: Source::Tree(self.path("kernel")),
            packages: programs::Source::Trees(self.path("packages")),
            cache: Some(self.path("cache")),
            any_size: false,
        }
    }
}

/// What is in `path`.
pub(crate) fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A relocatable object like a kernel module: code that a table refers to, a `.modinfo`, and what stripping takes out.
pub(crate) fn module(records: &[&str]) -> Vec<u8> {
    let mut object = Object::new(BinaryFormat::Elf, Architecture::X86_64, object::Endianness::Little);
    let data_segment = object.segment_name(StandardSegment::Data).to_vec();
    let mut section = |name: &str, kind, bytes: &[u8]| {
        let id = object.add_section(data_segment.clone(), name.as_bytes().to_vec(), kind);
        object.set_section_data(id, bytes.to_vec(), 8);
        id
    };
    let text = section(".text", SectionKind::Text, &[0xc3; 32]);
    let orc = section(".orc_unwind_ip", SectionKind::ReadOnlyData, &[0; 8]);
    let table = section(".rodata", SectionKind::ReadOnlyData, &[0; 8]);
    section(".modinfo", SectionKind::ReadOnlyData, format!("{}\0", records.join("\0")).as_bytes());
    section(".BTF", SectionKind::Other, &[7; 64]);
    let mut symbol = |name: &str, value, scope| {
        object.add_symbol(Symbol {
            name: name.into(),
            value,
            size: 1,
            kind: SymbolKind::Text,
            scope,
            weak: false,
            section: SymbolSection::Section(text),
            flags: SymbolFlags::None,
        })
    };
    let used = symbol("used_by_table", 0, SymbolScope::Compilation);
    symbol("used_by_nothing", 8, SymbolScope::Compilation);
    symbol("init_module", 16, SymbolScope::Linkage);
    for section in [orc, table] {
        let flags = RelocationFlags::Elf { r_type: object::elf::R_X86_64_64 };
        object.add_relocation(section, Relocation { offset: 0, symbol: used, addend: 0, flags }).unwrap();
    }
    object.write().unwrap()
}

/// The smallest program that could be PID 1: an ELF header and one loaded segment.
pub(crate) fn static_program() -> Vec<u8> {
    program(object::elf::EM_X86_64.0, object::elf::ET_EXEC.0, &[(object::elf::PT_LOAD.0, &[0x90; 16])])
}

/// A 64-bit little-endian ELF file with the given machine, type and segments, each holding its bytes.
pub(crate) fn program(machine: u16, kind: u16, segments: &[(u32, &[u8])]) -> Vec<u8> {
    let mut out = b"\x7fELF\x02\x01\x01".to_vec();
    out.resize(16, 0);
    out.extend(kind.to_le_bytes());
    out.extend(machine.to_le_bytes());
    out.extend(1u32.to_le_bytes());
    let mut content = 64 + 56 * segments.len();
    for word in [0x40_1000, 64, 0u64] {
        out.extend(word.to_le_bytes());
    }
    out.extend(0u32.to_le_bytes());
    let count = u16::try_from(segments.len()).unwrap();
    for half in [64, 56, count, 64, 0, 0] {
        out.extend(half.to_le_bytes());
    }
    for (kind, bytes) in segments {
        let (offset, size) = (u64::try_from(content).unwrap(), u64::try_from(bytes.len()).unwrap());
        out.extend(kind.to_le_bytes());
        out.extend(5u32.to_le_bytes());
        for word in [offset, 0x40_0000 + offset, 0x40_0000 + offset, size, size, 1] {
            out.extend(word.to_le_bytes());
        }
        content += bytes.len();
    }
    for (_, bytes) in segments {
        out.extend_from_slice(bytes);
    }
    out
}

/// A program (with the loader's path) or library that needs these libraries, with the sections that say so.
pub(crate) fn dynamic(interpreter: Option<&str>, needed: &[&str]) -> Vec<u8> {
    let mut strings = vec![0];
    let mut dynamic = Vec::new();
    for name in needed {
        let offset = u64::try_from(strings.len()).unwrap();
        strings.extend_from_slice(name.as_bytes());
        strings.push(0);
        dynamic.extend([1_u64.to_le_bytes(), offset.to_le_bytes()].concat());
    }
    dynamic.extend([0; 16]);
    let interpreter = interpreter.map(|path| [path.as_bytes(), &[0]].concat());
    let segments: Vec<(u32, &[u8])> =
        interpreter.iter().map(|path| (object::elf::PT_INTERP.0, path.as_slice())).collect();
    let mut out = program(object::elf::EM_X86_64.0, object::elf::ET_DYN.0, &segments);
    let place = |out: &mut Vec<u8>, bytes: &[u8]| {
        out.resize(out.len().next_multiple_of(8), 0);
        let at = u64::try_from(out.len()).unwrap();
        out.extend_from_slice(bytes);
        (at, u64::try_from(bytes.len()).unwrap())
    };
    let (dynamic, strings) = (place(&mut out, &dynamic), place(&mut out, &strings));
    let mut table = vec![0; 64];
    // Type, link to the section with its texts, size of an entry.
    for ((at, size), kind, link, entry) in [(dynamic, 6_u32, 2_u32, 16_u64), (strings, 3, 0, 0)] {
        table.extend([0_u32.to_le_bytes(), kind.to_le_bytes()].concat());
        table.extend([0, 0, at, size].map(u64::to_le_bytes).concat());
        table.extend([link.to_le_bytes(), 0_u32.to_le_bytes()].concat());
        table.extend([8, entry].map(u64::to_le_bytes).concat());
    }
    let (table, _) = place(&mut out, &table);
    out[40..48].copy_from_slice(&table.to_le_bytes());
    for (at, value) in [(58, 64_u16), (60, 3), (62, 2)] {
        out[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    out
}
