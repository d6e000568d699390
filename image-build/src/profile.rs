//! Profiles: what one kind of image consists of, read from `initramfs/profiles/NAME.toml`.
//!
//! A profile may stand on another one of the same folder (`base = "virt"`): it has all of that, its lists are added to
//! those of the base, and everything else that it says takes the place of what the base says.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use toml::{Table, Value as TomlValue};

/// One image profile.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Name of the profile and of its output directory: lower case letters, digits and `-`.
    pub name: String,
    /// One sentence on what the profile is for; copied to the manifest.
    pub description: String,
    /// Most bytes that kernel and initramfs may have together. The build fails above it.
    #[serde(default)]
    pub budget_bytes: Option<u64>,
    /// Directory whose files go into the image as they are, relative to the profile's own.
    pub skeleton: PathBuf,
    /// The kernel.
    pub kernel: KernelChoice,
    /// The kernel modules.
    pub modules: ModuleChoice,
    /// Programs of distribution packages; none unless said.
    #[serde(default)]
    pub programs: ProgramChoice,
}

/// Which kernel a profile boots.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelChoice {
    /// Debian package: the kernel itself or a meta package that depends on it.
    pub package: String,
}

/// Which modules a profile packs. What they depend on comes along by itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleChoice {
    /// Module names or globs (`virtio_*`), or globs over the path below `kernel/` where they contain a `/`
    /// (`drivers/net/ethernet/intel/**`). Each must match a module or a builtin.
    pub include: Vec<String>,
    /// Names or globs that `include` shall not bring in.
    #[serde(default)]
    pub exclude: Vec<String>,
    /// Names of packed modules to load at every start, because neither a device nor the kernel asks for them.
    #[serde(default)]
    pub load: Vec<String>,
    /// Whether to take out what the ramdisk does not use of a module, and with it the signature ([`crate::strip`]).
    #[serde(default)]
    pub strip: bool,
    /// Modules that a module needs at run time but does not name as a dependency, by the name of the module that
    /// needs them. A kernel would ask user space for them while it already waits for the first one.
    #[serde(default)]
    pub requires: BTreeMap<String, Vec<String>>,
}

/// Which programs a profile packs ([`crate::programs`]). The libraries they need come along by themselves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramChoice {
    /// Debian packages that have them.
    pub packages: Vec<String>,
    /// Names of programs, such as `mdadm`.
    pub include: Vec<String>,
    /// Paths of other files of the packages, such as `etc/mke2fs.conf`.
    #[serde(default)]
    pub files: Vec<String>,
}

/// Longest row of profiles that stand on each other.
const MAX_BASES: usize = 4;

impl Profile {
    /// Reads and checks the profile at `path`. When there is none, the error names those in the same folder.
    pub fn load(path: &Path) -> Result<Self> {
        let table = read(path, 0)?;
        Self::from_table(table).with_context(|| format!("profile {}", path.display()))
    }

    /// Parses a profile's text that stands on no other.
    pub fn parse(text: &str) -> Result<Self> {
        Self::from_table(toml::from_str(text).context("parsing TOML")?)
    }

    fn from_table(table: Table) -> Result<Self> {
        let profile: Self = table.try_into().context("parsing TOML")?;
        let name_is_plain = !profile.name.is_empty()
            && profile.name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        ensure!(name_is_plain, "name {:?} is not made of lower case letters, digits and '-'", profile.name);
        ensure!(!profile.kernel.package.is_empty(), "kernel.package is empty");
        ensure!(!profile.modules.include.is_empty(), "modules.include is empty");
        for pattern in profile.modules.include.iter().chain(&profile.modules.exclude) {
            glob::Pattern::new(pattern).with_context(|| format!("module pattern {pattern:?}"))?;
        }
        Ok(profile)
    }
}

/// The content of a profile's file, with that of its base below it.
fn read(path: &Path, depth: usize) -> Result<Table> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => bail!("{}", no_such_profile(path)),
        text => text.with_context(|| format!("reading profile {}", path.display()))?,
    };
    let parsed = toml::from_str(&text).context("parsing TOML");
    let mut table: Table = parsed.with_context(|| format!("profile {}", path.display()))?;
    let Some(base) = table.remove("base") else { return Ok(table) };
    let name = base.as_str().with_context(|| format!("profile {}: base is no name", path.display()))?;
    ensure!(depth < MAX_BASES, "profile {} stands on {name}, one too many: is it a circle?", path.display());
    for own in ["name", "description"] {
        ensure!(table.contains_key(own), "profile {}: missing field `{own}`", path.display());
    }
    let mut merged = read(&path.with_file_name(format!("{name}.toml")), depth + 1)?;
    merge(&mut merged, table);
    Ok(merged)
}

/// Lays `above` over `below`: lists are added, tables merged, other values replaced.
fn merge(below: &mut Table, above: Table) {
    for (key, value) in above {
        match (below.get_mut(&key), value) {
            (Some(TomlValue::Table(below)), TomlValue::Table(above)) => merge(below, above),
            (Some(TomlValue::Array(below)), TomlValue::Array(above)) => below.extend(above),
            (_, value) => drop(below.insert(key, value)),
        }
    }
}

fn no_such_profile(path: &Path) -> String {
    let folder = path.parent().unwrap_or(Path::new(""));
    let name = |path: PathBuf| {
        let is_profile = path.extension().is_some_and(|extension| extension == "toml");
        path.file_stem().filter(|_| is_profile).map(|name| name.to_string_lossy().into_owned())
    };
    let mut names: Vec<String> =
        fs::read_dir(folder).into_iter().flatten().flatten().filter_map(|entry| name(entry.path())).collect();
    names.sort();
    let there_are = if names.is_empty() { "no profiles".to_owned() } else { names.join(", ") };
    format!("there is no profile {}; in {} there are: {there_are}", path.display(), folder.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
name = "tiny"
description = "for tests"
skeleton = "skeleton"
[kernel]
package = "linux-image-amd64"
[modules]
include = ["virtio_net"]
[modules.requires]
vfat = ["nls_cp437"]
"#;

    #[test]
    fn a_profile_is_read_with_its_defaults() {
        let profile = Profile::parse(GOOD).unwrap();
        assert_eq!(profile.name, "tiny");
        assert_eq!(profile.budget_bytes, None);
        assert!(profile.modules.exclude.is_empty());
        assert_eq!(profile.modules.requires["vfat"], ["nls_cp437"]);
    }

    #[test]
    fn a_bad_profile_is_refused_with_what_is_wrong() {
        let cases = [
            ("name = \"tiny\"", "name = \"Tiny image\"", "is not made of lower case letters"),
            ("package = \"linux-image-amd64\"", "package = \"\"", "kernel.package is empty"),
            ("include = [\"virtio_net\"]", "include = []", "modules.include is empty"),
            ("include = [\"virtio_net\"]", "include = [\"a[\"]", "module pattern \"a[\""),
            ("include = [\"virtio_net\"]", "includes = [\"virtio_net\"]", "unknown field `includes`"),
            ("skeleton = \"skeleton\"", "", "missing field `skeleton`"),
            ("description = \"for tests\"", "description = 3", "invalid type"),
        ];
        for (from, to, wanted) in cases {
            let error = Profile::parse(&GOOD.replace(from, to)).expect_err(to);
            let text = format!("{error:#}");
            assert!(text.contains(wanted), "{to:?} gave {text:?}, wanted {wanted:?}");
        }
    }

    #[test]
    fn a_profile_has_what_its_base_has_and_more() {
        let dir = tempfile::tempdir().unwrap();
        let above = r#"
base = "tiny"
name = "more"
description = "with programs"
budget_bytes = 5
[modules]
include = ["raid1"]
requires.raid1 = ["md_mod"]
[programs]
packages = ["mdadm"]
include = ["mdadm"]
"#;
        let circle = above.replace("tiny", "circle");
        for (name, text) in
            [("tiny", GOOD), ("more", above), ("circle", &circle), ("lost", &above.replace("tiny", "no"))]
        {
            fs::write(dir.path().join(format!("{name}.toml")), text).unwrap();
        }
        let load = |name: &str| Profile::load(&dir.path().join(format!("{name}.toml")));
        let (base, more) = (load("tiny").unwrap(), load("more").unwrap());
        assert_eq!(base.programs, ProgramChoice::default());
        assert_eq!((more.name.as_str(), more.budget_bytes), ("more", Some(5)));
        assert_eq!((&more.kernel, &more.skeleton), (&base.kernel, &base.skeleton));
        assert_eq!(more.modules.include, ["virtio_net", "raid1"]);
        assert_eq!(more.modules.requires.keys().collect::<Vec<_>>(), ["raid1", "vfat"]);
        assert_eq!(more.programs.packages, ["mdadm"]);
        for (name, wanted) in [("circle", "is it a circle?"), ("lost", "no.toml")] {
            let text = format!("{:#}", load(name).expect_err(name));
            assert!(text.contains(wanted), "{name}: {text}");
        }
    }

    #[test]
    fn a_missing_profile_names_the_path_and_those_there_are() {
        let error = Profile::load(Path::new("no/such.toml")).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("no/such.toml") && text.ends_with("there are: no profiles"), "{text}");
        let dir = tempfile::tempdir().unwrap();
        for name in ["virt.toml", "metal.toml", "notes.txt"] {
            fs::write(dir.path().join(name), GOOD).unwrap();
        }
        let text = format!("{:#}", Profile::load(&dir.path().join("nosuch.toml")).unwrap_err());
        assert!(text.contains("nosuch.toml") && text.ends_with("there are: metal, virt"), "{text}");
    }
}
