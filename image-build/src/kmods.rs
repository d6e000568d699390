//! Chooses kernel modules and closes the choice over what the modules need.
//!
//! A kernel package ships modules without `modules.dep` (its post-installation script would make it on the host), so
//! the dependencies are read from the modules themselves ([`crate::modinfo`]). Three kinds of edges are followed:
//!
//! 1. `depends`: symbols. Must be there, as a module or built in.
//! 2. `softdep: pre`: followed where the kernel has it. A softdep often names an alias that several modules offer
//!    (`crc32c`: `crc32c_generic`, `crc32c_intel`). Then the `_generic` one is taken, because it loads on every
//!    machine; the faster ones have a CPU alias and are loaded by it where a profile includes them.
//! 3. `requires` of the profile: what a kernel would ask user space for in the middle of loading or mounting.
//!
//! PID 1 gets all three in one `modules.dep`, in depmod's text form: after the colon stand all modules to load
//! before, to be loaded from right to left. A softdep is thus an ordinary dependency at run time.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::modinfo::ModInfo;
use crate::profile::ModuleChoice;
use crate::strip::strip_module;

/// One packed module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// Path below `lib/modules/RELEASE`, ending in `.ko`.
    pub path: String,
    /// The module file, uncompressed: the archive is compressed as a whole, which packs better.
    pub bytes: Vec<u8>,
    /// What the module says about itself.
    pub info: ModInfo,
    /// Names of the modules to load right before this one.
    pub needs: Vec<String>,
}

/// The modules of one kernel.
#[derive(Debug)]
pub struct ModuleTree {
    release: String,
    directory: PathBuf,
    /// Name to path below `directory`.
    modules: BTreeMap<String, String>,
    /// Name to the path the module would have.
    builtin: BTreeMap<String, String>,
    /// Alias to module names, filled when a softdep names something that is not a module.
    aliases: OnceCell<BTreeMap<String, BTreeSet<String>>>,
}

/// What a profile chose, closed over dependencies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Packed modules by name.
    pub modules: BTreeMap<String, Module>,
    /// Chosen or needed modules that are part of the kernel itself: name to path.
    pub builtin: BTreeMap<String, String>,
}

/// A module's name as the kernel writes it: the file name without suffix, `-` as `_`.
pub fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

impl ModuleTree {
    /// Lists the modules below `directory`, which is `lib/modules/RELEASE` of an unpacked kernel package.
    pub fn open(directory: &Path, release: &str) -> Result<Self> {
        let mut modules = BTreeMap::new();
        list_modules(directory, "kernel", &mut modules)?;
        let path = directory.join("modules.builtin");
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let builtin = text.lines().map(|line| (module_name(line), line.to_owned())).collect();
        Ok(Self {
            release: release.to_owned(),
            directory: directory.to_owned(),
            modules,
            builtin,
            aliases: OnceCell::new(),
        })
    }

    /// Makes a profile's choice: every module that is included, required or depended on.
    pub fn select(&self, choice: &ModuleChoice) -> Result<Selection> {
        let excluded = self.matching_any(&choice.exclude)?;
        let mut queue: Vec<(String, String)> = Vec::new();
        let mut selection = Selection::default();
        for pattern in &choice.include {
            let found = self.matching(pattern)?;
            ensure!(
                !found.is_empty(),
                "module {pattern:?} is not in kernel {}: neither as a module nor built in",
                self.release
            );
            let wanted = found.into_iter().filter(|name| !excluded.contains(name));
            queue.extend(wanted.map(|name| (name, "the profile".to_owned())));
        }
        while let Some((name, wanted_by)) = queue.pop() {
            if selection.modules.contains_key(&name) || selection.builtin.contains_key(&name) {
                continue;
            }
            ensure!(!excluded.contains(&name), "module {name:?} is excluded, but {wanted_by} needs it");
            if let Some(path) = self.builtin.get(&name) {
                selection.builtin.insert(name, path.clone());
                continue;
            }
            let module = self
                .load(&name, choice)
                .with_context(|| format!("module {name:?}, needed by {wanted_by}, in kernel {}", self.release))?;
            queue.extend(module.needs.iter().map(|need| (need.clone(), format!("module {name}"))));
            selection.modules.insert(name, module);
        }
        for name in choice.requires.keys() {
            let known = self.modules.contains_key(&name.replace('-', "_")) && !name.contains('-');
            ensure!(
                known || self.builtin.contains_key(name),
                "modules.requires names {name:?}, which is no module of kernel {} (write '_' for '-')",
                self.release
            );
        }
        Ok(selection)
    }

    /// Reads one module and finds what it needs.
    fn load(&self, name: &str, choice: &ModuleChoice) -> Result<Module> {
        let path = self.modules.get(name).context("it is neither a module nor built in")?;
        let bytes = read_module(&self.directory.join(path))?;
        let info = ModInfo::from_elf(&bytes).with_context(|| format!("reading {path}"))?;
        let mut needs: Vec<String> = info.depends.iter().map(|name| name.replace('-', "_")).collect();
        let required = choice.requires.get(name);
        needs.extend(required.into_iter().flatten().map(|name| name.replace('-', "_")));
        for soft in &info.soft_pre {
            needs.extend(self.resolve_soft(soft)?);
        }
        let bytes =
            if choice.strip { strip_module(&bytes).with_context(|| format!("stripping {path}"))? } else { bytes };
        let mut seen = BTreeSet::new();
        needs.retain(|need| need != name && seen.insert(need.clone()));
        let path = path.split_once(".ko").map_or(path.as_str(), |(stem, _)| stem);
        Ok(Module { path: format!("{path}.ko"), bytes, info, needs })
    }

    /// The module to load for a softdep, if the kernel has one.
    fn resolve_soft(&self, soft: &str) -> Result<Option<String>> {
        let name = soft.replace('-', "_");
        if self.builtin.contains_key(&name) {
            return Ok(None);
        }
        if self.modules.contains_key(&name) {
            return Ok(Some(name));
        }
        let aliases = match self.aliases.get() {
            Some(aliases) => aliases,
            None => {
                let read = self.read_aliases()?;
                self.aliases.get_or_init(|| read)
            }
        };
        let Some(providers) = aliases.get(soft) else { return Ok(None) };
        if providers.iter().any(|provider| self.builtin.contains_key(provider)) {
            return Ok(None);
        }
        let generic = providers.iter().find(|provider| provider.ends_with("_generic"));
        Ok(generic.or(providers.first()).cloned())
    }

    /// The plain aliases (no patterns, no device ids) of every module and builtin.
    fn read_aliases(&self) -> Result<BTreeMap<String, BTreeSet<String>>> {
        let mut aliases: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (name, path) in &self.modules {
            let info = ModInfo::from_elf(&read_module(&self.directory.join(path))?)
                .with_context(|| format!("reading {path}"))?;
            for alias in info.aliases.into_iter().filter(|alias| !alias.contains([':', '*'])) {
                aliases.entry(alias).or_default().insert(name.clone());
            }
        }
        let path = self.directory.join("modules.builtin.modinfo");
        let builtin = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        // Like .modinfo, but with the module's name in front: "crc32.alias=crypto-crc32\0".
        for record in builtin.split(|byte| *byte == 0) {
            let record = String::from_utf8_lossy(record);
            let Some((module, rest)) = record.split_once('.') else { continue };
            if let Some(alias) = rest.strip_prefix("alias=") {
                aliases.entry(alias.to_owned()).or_default().insert(module.replace('-', "_"));
            }
        }
        Ok(aliases)
    }

    fn matching_any(&self, patterns: &[String]) -> Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        for pattern in patterns {
            names.extend(self.matching(pattern)?);
        }
        Ok(names)
    }

    /// Names of modules and builtins that `pattern` means.
    fn matching(&self, pattern: &str) -> Result<BTreeSet<String>> {
        let by_path = pattern.contains('/');
        // In a character class a '-' is a range.
        let text = if by_path || pattern.contains('[') { pattern.to_owned() } else { pattern.replace('-', "_") };
        let glob = glob::Pattern::new(&text).with_context(|| format!("module pattern {pattern:?}"))?;
        let options = glob::MatchOptions { require_literal_separator: true, ..Default::default() };
        let all = self.modules.iter().chain(&self.builtin);
        let meant = all.filter(|(name, path)| {
            let subject = if by_path { path.strip_prefix("kernel/").unwrap_or(path) } else { name.as_str() };
            glob.matches_with(subject, options)
        });
        Ok(meant.map(|(name, _)| name.clone()).collect())
    }
}

impl Selection {
    /// The files that PID 1 finds modules by, as name and text: `modules.dep`, `modules.alias`, `modules.builtin`.
    pub fn index_files(&self) -> [(&'static str, String); 3] {
        let mut dep = BTreeMap::new();
        let mut alias = String::new();
        for (name, module) in &self.modules {
            let mut line = format!("{}:", module.path);
            for need in self.load_order(name).iter().rev() {
                line.push(' ');
                line.push_str(need);
            }
            dep.insert(module.path.as_str(), line);
            for pattern in &module.info.aliases {
                // Writing to a String cannot fail.
                let _infallible = writeln!(alias, "alias {pattern} {name}");
            }
        }
        let lines = |values: Vec<&str>| values.iter().fold(String::new(), |text, line| text + line + "\n");
        let dep = lines(dep.values().map(String::as_str).collect());
        let builtin = lines(self.builtin.values().map(String::as_str).collect());
        [("modules.alias", alias), ("modules.builtin", builtin), ("modules.dep", dep)]
    }

    /// Paths of all modules that must be loaded before `name`, first to load first.
    pub fn load_order(&self, name: &str) -> Vec<&str> {
        let mut order = Vec::new();
        if let Some((name, _)) = self.modules.get_key_value(name) {
            self.visit(name, &mut BTreeSet::from([name.as_str()]), &mut order);
        }
        order
    }

    fn visit<'a>(&'a self, name: &str, visited: &mut BTreeSet<&'a str>, order: &mut Vec<&'a str>) {
        let Some(module) = self.modules.get(name) else { return };
        for need in &module.needs {
            if visited.insert(need) {
                self.visit(need, visited, order);
                order.extend(self.modules.get(need).map(|needed| needed.path.as_str()));
            }
        }
    }
}

/// Adds every module file below `directory/below` to `modules`.
fn list_modules(directory: &Path, below: &str, modules: &mut BTreeMap<String, String>) -> Result<()> {
    let path = directory.join(below);
    for entry in fs::read_dir(&path).with_context(|| format!("listing {}", path.display()))? {
        let entry = entry.with_context(|| format!("listing {}", path.display()))?;
        let name = format!("{below}/{}", entry.file_name().to_string_lossy());
        if entry.file_type().with_context(|| format!("reading the type of {name}"))?.is_dir() {
            list_modules(directory, &name, modules)?;
        } else if name.ends_with(".ko") || name.contains(".ko.") {
            modules.insert(module_name(&name), name);
        }
    }
    Ok(())
}

/// Reads a module file, unpacking it if the distribution compressed it.
fn read_module(path: &Path) -> Result<Vec<u8>> {
    let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("ko") => Ok(bytes),
        Some("zst") => zstd::decode_all(bytes.as_slice()).with_context(|| format!("unpacking {}", path.display())),
        _ => bail!("{} is compressed in a way that is not understood; .ko and .ko.zst are", path.display()),
    }
}
