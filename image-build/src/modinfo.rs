//! Reads a kernel module's `.modinfo` section: what it depends on and which devices it drives.
//!
//! The section is a run of NUL-terminated `key=value` strings (include/linux/module.h, `MODULE_INFO`); `depends` is
//! a comma separated list that the kernel's build derives from the symbols a module uses, so it is complete.
//! Reading it directly makes `depmod`, and its host-wide configuration, unnecessary.

use anyhow::{Context, Result};
use object::{Object, ObjectSection};

/// What a module says about itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModInfo {
    /// Modules whose symbols this one uses, names as written (`-` and `_` both occur).
    pub depends: Vec<String>,
    /// Patterns of device ids (`pci:v00001AF4d*...`) and other names (`fs-vfat`) that ask for this module.
    pub aliases: Vec<String>,
    /// Modules or aliases that should be loaded first when they exist (`softdep: pre`).
    pub soft_pre: Vec<String>,
    /// The module's own version, where it has one.
    pub version: Option<String>,
    /// Firmware files it may ask for.
    pub firmware: Vec<String>,
}

impl ModInfo {
    /// Reads the section from a module file's bytes.
    pub fn from_elf(bytes: &[u8]) -> Result<Self> {
        let file = object::File::parse(bytes).context("parsing the module's ELF header")?;
        let section = file.section_by_name(".modinfo").context("the module has no .modinfo section")?;
        Ok(Self::parse(section.data().context("reading .modinfo")?))
    }

    /// Parses the section's content. Keys that do not matter here are passed over.
    pub fn parse(section: &[u8]) -> Self {
        let mut info = Self::default();
        for record in section.split(|byte| *byte == 0) {
            let record = String::from_utf8_lossy(record);
            let Some((key, value)) = record.split_once('=') else { continue };
            match key {
                "depends" => {
                    info.depends.extend(value.split(',').filter(|name| !name.is_empty()).map(str::to_owned));
                }
                "alias" => info.aliases.push(value.to_owned()),
                "softdep" => info.soft_pre.extend(soft_pre(value)),
                "version" => info.version = Some(value.to_owned()),
                "firmware" => info.firmware.push(value.to_owned()),
                _ => {}
            }
        }
        info
    }
}

/// The names after `pre:` in a softdep line such as `pre: crc32c post: other`.
fn soft_pre(value: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut in_pre = false;
    for word in value.split_whitespace() {
        match word {
            "pre:" => in_pre = true,
            "post:" => in_pre = false,
            name if in_pre => names.push(name.to_owned()),
            _ => {}
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_kind_of_record_is_understood() {
        let section = b"version=1.2\0license=GPL\0depends=mbcache,jbd2\0softdep=pre: crc32c post: late pre: b\0\
            alias=fs-ext4\0alias=ext3\0firmware=a/b.bin\0depends=\0vermagic=6.1 SMP=y\0broken\0";
        let info = ModInfo::parse(section);
        let wanted = ModInfo {
            depends: vec!["mbcache".into(), "jbd2".into()],
            aliases: vec!["fs-ext4".into(), "ext3".into()],
            soft_pre: vec!["crc32c".into(), "b".into()],
            version: Some("1.2".into()),
            firmware: vec!["a/b.bin".into()],
        };
        assert_eq!(info, wanted);
    }

    #[test]
    fn a_file_that_is_no_module_is_refused() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for (what, bytes, wanted) in
            [("text", b"not elf".as_slice(), "ELF header"), ("a program", own.as_slice(), "no .modinfo")]
        {
            let text = format!("{:#}", ModInfo::from_elf(bytes).expect_err(what));
            assert!(text.contains(wanted), "{what}: {text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let info = ModInfo::parse(&bytes);
            prop_assert!(info.aliases.len() <= bytes.len());
            prop_assert!(ModInfo::from_elf(&bytes).is_err());
        }
    }
}
