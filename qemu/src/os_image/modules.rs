//! The few kernel modules the instance needs: their dependencies and aliases from `.modinfo`, and the index files
//! `modprobe` reads. (Debian's kernel package has no `modules.dep`; its maintainer script runs depmod.)

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use object::{Object as _, ObjectSection as _};

/// What has to be there to start from any disk QEMU or common hardware has, and to read a configdrive.
pub(super) const STORAGE: &[&str] = &[
    "crc32c_generic",
    "crc32c_intel",
    "ext4",
    "virtio_pci",
    "virtio_blk",
    "virtio_scsi",
    "nvme",
    "ahci",
    "ata_piix",
    "sd_mod",
    "megaraid_sas",
    "mptsas",
    "mptspi",
    "mpt3sas",
    "xhci_pci",
    "usb_storage",
    "uas",
    "sdhci_pci",
    "mmc_block",
];
/// Loaded after the root file system is there.
pub(super) const SYSTEM: &[&str] = &["button", "evdev", "isofs", "vfat", "nls_cp437", "nls_ascii", "nls_utf8"];

/// One module as its file describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Module {
    /// Name with `_` for `-`, as the kernel shows it.
    pub(super) name: String,
    /// Path below `lib/modules/<release>/`.
    pub(super) path: String,
    /// Modules it needs, directly.
    pub(super) depends: Vec<String>,
    /// Device and feature aliases it answers to.
    pub(super) aliases: Vec<String>,
    /// The file.
    pub(super) data: Vec<u8>,
}

/// The wanted modules and all they depend on, by name. `dir` is `lib/modules/<release>`.
pub(super) fn closure(dir: &Path, wanted: &[&str]) -> Result<BTreeMap<String, Module>> {
    let index = index(dir)?;
    let builtin = fs::read_to_string(dir.join("modules.builtin"))
        .with_context(|| format!("reading {}/modules.builtin", dir.display()))?;
    let builtin: BTreeSet<String> = builtin.lines().filter_map(|line| module_name(Path::new(line))).collect();
    let mut queue: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
    let mut found = BTreeMap::new();
    while let Some(name) = queue.pop() {
        if found.contains_key(&name) || builtin.contains(&name) {
            continue;
        }
        let path = index.get(&name).ok_or_else(|| anyhow!("the kernel package has no module {name}"))?;
        let data = fs::read(dir.join(path)).with_context(|| format!("reading module {path}"))?;
        let module = describe(&name, path, data).with_context(|| format!("reading module {path}"))?;
        queue.extend(module.depends.iter().cloned());
        found.insert(name, module);
    }
    Ok(found)
}

/// `modules.dep`: for each module the ones it needs, nearest first, so that loading goes from the end to the start.
pub(super) fn modules_dep(modules: &BTreeMap<String, Module>) -> String {
    let mut text = String::new();
    for module in modules.values() {
        let mut order = Vec::new();
        load_order(modules, &module.name, &mut order);
        order.pop();
        let needs: String =
            order.iter().rev().filter_map(|name| modules.get(name)).map(|module| format!(" {}", module.path)).collect();
        text.push_str(&format!("{}:{needs}\n", module.path));
    }
    text
}

/// `modules.alias`.
pub(super) fn modules_alias(modules: &BTreeMap<String, Module>) -> String {
    modules
        .values()
        .flat_map(|module| module.aliases.iter().map(move |alias| format!("alias {alias} {}\n", module.name)))
        .collect()
}

/// Depth first, each module after all it needs.
fn load_order(modules: &BTreeMap<String, Module>, name: &str, order: &mut Vec<String>) {
    if order.iter().any(|seen| seen == name) {
        return;
    }
    if let Some(module) = modules.get(name) {
        for need in &module.depends {
            load_order(modules, need, order);
        }
        order.push(name.to_owned());
    }
}

fn describe(name: &str, path: &str, data: Vec<u8>) -> Result<Module> {
    let (mut depends, mut aliases) = (Vec::new(), Vec::new());
    {
        let elf = object::File::parse(data.as_slice())?;
        let section = elf.section_by_name(".modinfo").ok_or_else(|| anyhow!("no .modinfo section"))?;
        for (key, value) in modinfo(section.data()?) {
            match key {
                "depends" => depends.extend(value.split(',').filter(|need| !need.is_empty()).map(underscored)),
                "alias" if !value.contains(char::is_whitespace) => aliases.push(value.to_owned()),
                _ => {}
            }
        }
    }
    Ok(Module { name: name.to_owned(), path: path.to_owned(), depends, aliases, data })
}

/// The `key=value` strings of a `.modinfo` section, each ended by one or more zero bytes.
fn modinfo(section: &[u8]) -> impl Iterator<Item = (&str, &str)> {
    section
        .split(|byte| *byte == 0)
        .filter_map(|entry| std::str::from_utf8(entry).ok())
        .filter_map(|entry| entry.split_once('='))
}

/// Module name to path for every module below `dir/kernel`.
fn index(dir: &Path) -> Result<BTreeMap<String, String>> {
    let mut index = BTreeMap::new();
    let mut queue = vec![PathBuf::from("kernel")];
    while let Some(relative) = queue.pop() {
        let full = dir.join(&relative);
        for entry in fs::read_dir(&full).with_context(|| format!("listing {}", full.display()))? {
            let entry = entry?;
            let path = relative.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                queue.push(path);
            } else if let (Some(name), Some(path)) = (module_name(&path), path.to_str()) {
                index.insert(name, path.to_owned());
            }
        }
    }
    if index.is_empty() {
        bail!("{} has no uncompressed kernel modules", dir.display());
    }
    Ok(index)
}

fn module_name(path: &Path) -> Option<String> {
    Some(underscored(path.file_name()?.to_str()?.strip_suffix(".ko")?))
}

fn underscored(name: &str) -> String {
    name.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(name: &str, depends: &[&str], aliases: &[&str]) -> (String, Module) {
        let strings = |list: &[&str]| list.iter().map(|item| (*item).to_owned()).collect();
        let module = Module {
            name: name.to_owned(),
            path: format!("kernel/{name}.ko"),
            depends: strings(depends),
            aliases: strings(aliases),
            data: Vec::new(),
        };
        (name.to_owned(), module)
    }

    #[test]
    fn modinfo_gives_every_pair_and_skips_padding() {
        let section = b"license=GPL\0\0\0alias=pci:v00001AF4d*\0depends=libahci,libata\0broken\0\xff=x\0";
        let pairs: Vec<(&str, &str)> = modinfo(section).collect();
        assert_eq!(pairs, [("license", "GPL"), ("alias", "pci:v00001AF4d*"), ("depends", "libahci,libata")]);
    }

    #[test]
    fn dependencies_of_dependencies_come_after_those_that_need_them() {
        let modules = BTreeMap::from([
            module("ahci", &["libahci", "libata"], &[]),
            module("libahci", &["libata"], &[]),
            module("libata", &["scsi_mod"], &[]),
            module("scsi_mod", &[], &[]),
        ]);
        let text = modules_dep(&modules);
        assert!(text.contains("kernel/ahci.ko: kernel/libahci.ko kernel/libata.ko kernel/scsi_mod.ko\n"), "{text}");
        assert!(text.contains("kernel/scsi_mod.ko:\n"), "{text}");
    }

    #[test]
    fn aliases_name_their_module() {
        let modules = BTreeMap::from([module("nvme", &[], &["pci:v*d*bc01sc08i02*"])]);
        assert_eq!(modules_alias(&modules), "alias pci:v*d*bc01sc08i02* nvme\n");
    }

    #[test]
    fn builtin_module_is_left_out_and_missing_one_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("kernel/fs")).unwrap();
        fs::write(dir.path().join("kernel/fs/some-fs.ko"), "not elf").unwrap();
        fs::write(dir.path().join("modules.builtin"), "kernel/drivers/input/evdev.ko\n").unwrap();
        assert!(closure(dir.path(), &["evdev"]).unwrap().is_empty());
        let missing = closure(dir.path(), &["nosuch"]).unwrap_err().to_string();
        assert!(missing.contains("nosuch"), "{missing}");
        let broken = format!("{:#}", closure(dir.path(), &["some_fs"]).unwrap_err());
        assert!(broken.contains("kernel/fs/some-fs.ko"), "{broken}");
    }
}
