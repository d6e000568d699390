//! Packs programs of distribution packages with the shared libraries they need.
//!
//! A profile names packages, programs and other files of them. What a program needs is read from the ELF files
//! themselves ([`crate::elf_deps`]), not from the packages' dependencies, which bring documentation tools, debconf and
//! the like; the dependencies only say in which package a library is looked for. Everything has one place in the
//! ramdisk, whether the distribution has merged `/usr` or not:
//!
//! | what | where |
//! |---|---|
//! | programs | `usr/sbin/NAME` |
//! | libraries | `lib/x86_64-linux-gnu/SONAME`, which glibc's loader searches without a cache file |
//! | the loader | the path that the programs ask for |
//! | other files | their own path |
//!
//! The packages' `copyright` files go into one text beside the image.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::cpio::Node;
use crate::profile::ProgramChoice;
use crate::{deb, elf_deps};

/// Folder of the cache for packages of programs.
const CACHE: &str = "packages";
/// Where Debian puts the libraries of this architecture.
const LIBRARY_PATH: &str = "lib/x86_64-linux-gnu";
/// Where a package may have a program.
const PROGRAM_PATHS: [&str; 4] = ["usr/sbin", "sbin", "usr/bin", "bin"];
/// Where a package may have a library.
const LIBRARY_PATHS: [&str; 4] = ["usr/lib/x86_64-linux-gnu", LIBRARY_PATH, "usr/lib", "lib"];
/// Longest chain of symbolic links that is followed.
const MAX_LINKS: usize = 8;

/// Where packages come from.
#[derive(Debug, Clone)]
pub enum Source {
    /// Downloaded with apt.
    Apt {
        /// Directory for downloads and unpacked packages.
        cache: PathBuf,
    },
    /// Unpacked packages: `NAME/` with the files of each, and `NAME.control` with its record.
    Trees(PathBuf),
}

/// What is packed, and from where.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Programs {
    /// Path in the ramdisk and content.
    pub files: BTreeMap<String, Node>,
    /// Packages that something was taken from, by name.
    pub packages: Vec<Package>,
}

/// A package that something was taken from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// Name.
    pub name: String,
    /// Version.
    pub version: String,
    /// Name and version of the source package it is built from.
    pub source: String,
    /// Paths in the ramdisk.
    pub files: Vec<String>,
    /// Text of its `copyright` file.
    pub copyright: String,
}

impl Package {
    /// Short names of its licences, where its `copyright` file is in the machine-readable form (DEP 5).
    pub fn licenses(&self) -> BTreeSet<&str> {
        let names = self.copyright.lines().filter_map(|line| line.strip_prefix("License:"));
        names.map(str::trim).filter(|name| !name.is_empty()).collect()
    }
}

impl Programs {
    /// Gets what a profile chooses.
    ///
    /// # Errors
    /// A package is not known, a program or file is in none of those named, or a library in none of what they depend on.
    pub fn obtain(source: &Source, choice: &ProgramChoice) -> Result<Self> {
        let mut packing = Packing { shelf: Shelf::new(source), made: BTreeMap::new(), queue: VecDeque::new() };
        packing.shelf.learn(&choice.packages)?;
        for package in &choice.packages {
            packing.shelf.open(package)?;
        }
        for name in &choice.include {
            packing.add_program(&choice.packages, name)?;
        }
        for path in &choice.files {
            let owner = choice.packages.iter().find(|package| packing.shelf.has(package, path));
            let owner = owner.with_context(|| format!("none of {} has the file {path}", choice.packages.join(", ")))?;
            packing.add_file(&owner.clone(), path, path)?;
        }
        packing.add_libraries()?;
        packing.finish()
    }

    /// The texts of all licences, one after another; empty without programs.
    pub fn copyright(&self) -> String {
        let part = |package: &Package| {
            let Package { name, version, source, copyright, .. } = package;
            format!("==== {name} {version} (source: {source}) ====\n\n{}\n\n", copyright.trim_end())
        };
        self.packages.iter().map(part).collect()
    }
}

/// Packages at hand.
struct Shelf<'a> {
    source: &'a Source,
    records: BTreeMap<String, String>,
    /// Where those are that have been opened.
    trees: BTreeMap<String, PathBuf>,
}

impl<'a> Shelf<'a> {
    const fn new(source: &'a Source) -> Self {
        Self { source, records: BTreeMap::new(), trees: BTreeMap::new() }
    }

    /// Gets the records of packages that are not known yet; one that does not exist stays unknown.
    fn learn(&mut self, packages: &[String]) -> Result<()> {
        let unknown: Vec<&str> =
            packages.iter().map(String::as_str).filter(|name| !self.records.contains_key(*name)).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let records = match self.source {
            Source::Apt { .. } => deb::show(&unknown).context("asking apt for the packages of programs")?,
            Source::Trees(trees) => {
                let path = |name: &&str| trees.join(format!("{name}.control"));
                unknown.iter().filter_map(|name| fs::read_to_string(path(name)).ok()).collect()
            }
        };
        for record in records {
            if let Some(name) = deb::field(&record, "Package") {
                self.records.insert(name.to_owned(), record);
            }
        }
        Ok(())
    }

    /// Unpacks a package unless that was done.
    fn open(&mut self, package: &str) -> Result<()> {
        if self.trees.contains_key(package) {
            return Ok(());
        }
        let version = self.field(package, "Version")?;
        let tree = match self.source {
            Source::Apt { cache } => deb::obtain(cache, CACHE, package, version)?,
            Source::Trees(trees) => trees.join(package),
        };
        self.trees.insert(package.to_owned(), tree);
        Ok(())
    }

    fn field(&self, package: &str, name: &str) -> Result<&str> {
        let record = self.records.get(package).with_context(|| {
            format!("package {package} is not known to apt; run `make setup`, or `apt-get update` if it is new")
        })?;
        deb::field(record, name).with_context(|| format!("the record of package {package} has no {name}"))
    }

    /// Libraries that a package depends on. The first of several alternatives is the one that apt would take.
    fn libraries_of(&self, package: &str) -> Vec<String> {
        let lists = ["Pre-Depends", "Depends"].map(|field| self.field(package, field).unwrap_or_default());
        let names = lists.into_iter().flat_map(|list| list.split(',')).filter_map(|one| one.split_whitespace().next());
        names.filter(|name| name.starts_with("lib")).map(|name| name.replace(":any", "")).collect()
    }

    fn has(&self, package: &str, path: &str) -> bool {
        self.trees.get(package).is_some_and(|tree| fs::symlink_metadata(tree.join(path)).is_ok())
    }

    /// Path of a library in a package that has been opened.
    fn library_in(&self, package: &str, name: &str) -> Option<String> {
        LIBRARY_PATHS.iter().map(|folder| format!("{folder}/{name}")).find(|path| self.has(package, path))
    }

    /// Package and path of a library that a file of `package` needs: in what is open already, then in what that package
    /// depends on, those named like the library first.
    fn find_library(&mut self, package: &str, name: &str) -> Result<(String, String)> {
        let open: Vec<String> = self.trees.keys().cloned().collect();
        let mut candidates = self.libraries_of(package);
        self.learn(&candidates)?;
        let stem = name.split(".so").next().unwrap_or(name).replace('_', "-");
        candidates.sort_by_key(|candidate| !candidate.starts_with(&stem));
        for candidate in open.into_iter().chain(candidates) {
            if self.records.contains_key(&candidate) {
                self.open(&candidate)?;
            }
            if let Some(path) = self.library_in(&candidate, name) {
                return Ok((candidate, path));
            }
        }
        bail!("the library {name} is in no package that {package} depends on")
    }

    /// What a path of a package leads to, itself a path of that package.
    fn follow(&self, package: &str, path: &str) -> Result<String> {
        let tree = self.trees.get(package).with_context(|| format!("package {package} was not opened"))?;
        let mut at = plain(Path::new(path));
        for _ in 0..MAX_LINKS {
            let place = tree.join(&at);
            match fs::read_link(&place) {
                Ok(target) => at = plain(&at.parent().unwrap_or(Path::new("")).join(target)),
                Err(_) if place.is_file() => return Ok(at.to_string_lossy().into_owned()),
                Err(_) => bail!("{path} of package {package} leads to {}, which is no file of it", at.display()),
            }
        }
        bail!("{path} of package {package} leads in circles")
    }

    fn read(&self, package: &str, path: &str) -> Result<Vec<u8>> {
        let tree = self.trees.get(package).with_context(|| format!("package {package} was not opened"))?;
        fs::read(tree.join(path)).with_context(|| format!("reading {path} of package {package}"))
    }

    fn describe(&self, name: &str, files: Vec<String>) -> Result<Package> {
        let version = self.field(name, "Version")?.to_owned();
        // "Source: glibc (2.36-9)": the version is there only where it differs.
        let source = self.field(name, "Source").unwrap_or(name);
        let source = match source.split_once(" (") {
            Some((source, version)) => format!("{source} {}", version.trim_end_matches(')')),
            None => format!("{source} {version}"),
        };
        let path = format!("usr/share/doc/{name}/copyright");
        // A package may refer to that of another one, from the same source.
        let copyright = self.follow(name, &path).and_then(|path| self.read(name, &path));
        let copyright =
            copyright.with_context(|| format!("package {name} has no licence text that could be passed on"))?;
        let copyright = String::from_utf8_lossy(&copyright).into_owned();
        Ok(Package { name: name.to_owned(), version, source, files, copyright })
    }
}

/// What has been packed so far.
struct Packing<'a> {
    shelf: Shelf<'a>,
    /// Path in the ramdisk: package and content.
    made: BTreeMap<String, (String, Node)>,
    /// ELF files whose needs have not been looked at: path in the ramdisk.
    queue: VecDeque<String>,
}

impl Packing<'_> {
    fn add_program(&mut self, packages: &[String], name: &str) -> Result<()> {
        let places = || packages.iter().flat_map(|package| PROGRAM_PATHS.map(|folder| (package, folder)));
        let place = places().find(|(package, folder)| self.shelf.has(package, &format!("{folder}/{name}")));
        let (package, folder) =
            place.with_context(|| format!("none of {} has the program {name}", packages.join(", ")))?;
        let (package, path) = (package.clone(), format!("{folder}/{name}"));
        let real = self.shelf.follow(&package, &path)?;
        let real_name = real.rsplit('/').next().unwrap_or(&real).to_owned();
        if real_name != name {
            // One program under several names, as mke2fs is: it is packed once.
            let target = real_name.clone();
            self.made.insert(format!("usr/sbin/{name}"), (package.clone(), Node::Symlink { target }));
        }
        self.add_file(&package, &real, &format!("usr/sbin/{real_name}"))
    }

    /// Adds the file that `path` of a package leads to.
    fn add_file(&mut self, package: &str, path: &str, to: &str) -> Result<()> {
        if self.made.contains_key(to) {
            return Ok(());
        }
        let bytes = self.shelf.read(package, &self.shelf.follow(package, path)?)?;
        let is_elf = elf_deps::is_elf(&bytes);
        if is_elf {
            self.queue.push_back(to.to_owned());
        }
        let mode = if is_elf { 0o755 } else { 0o644 };
        self.made.insert(to.to_owned(), (package.to_owned(), Node::file(mode, bytes)));
        Ok(())
    }

    /// Adds what programs and libraries need, until nothing is missing.
    fn add_libraries(&mut self) -> Result<()> {
        while let Some(at) = self.queue.pop_front() {
            let Some((package, Node::File { bytes, .. })) = self.made.get(&at) else { continue };
            let package = package.clone();
            let needs = elf_deps::needs(bytes).with_context(|| format!("{at} of package {package}"))?;
            if let Some(loader) = needs.interpreter {
                let name = loader.rsplit('/').next().unwrap_or(&loader);
                let (owner, path) = self.shelf.find_library(&package, name)?;
                self.add_file(&owner, &path, loader.trim_start_matches('/'))?;
            }
            for name in needs.libraries {
                if self.made.keys().any(|made| made.rsplit('/').next() == Some(&name)) {
                    continue;
                }
                ensure!(!name.contains('/'), "{at} of package {package} needs {name} by its path");
                let (owner, path) =
                    self.shelf.find_library(&package, &name).with_context(|| format!("needed by {at}"))?;
                self.add_file(&owner, &path, &format!("{LIBRARY_PATH}/{name}"))?;
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<Programs> {
        let mut by_package: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (path, (package, _)) in &self.made {
            by_package.entry(package).or_default().push(path.clone());
        }
        let packages = by_package.into_iter().map(|(name, files)| self.shelf.describe(name, files));
        let packages = packages.collect::<Result<_>>()?;
        Ok(Programs { files: self.made.into_iter().map(|(path, (_, node))| (path, node)).collect(), packages })
    }
}

/// A path without `.`, `..` and a leading slash; none of them leads out of the tree.
fn plain(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => out.push(name),
            Component::ParentDir => {
                out.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    out
}
