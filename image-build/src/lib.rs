//! Makes bootable images: agent + `initramfs/` + a distribution's kernel package.
//!
//! | module | what it does |
//! |---|---|
//! | [`profile`] | reads `initramfs/profiles/*.toml` |
//! | [`agent_bin`] | checks that the agent can be PID 1: static, x86-64, no loader |
//! | `deb` | fetches and unpacks distribution packages |
//! | [`kernel`] | finds kernel and modules in the kernel package |
//! | [`kmods`] | chooses kernel modules and closes them over their dependencies |
//! | [`modinfo`] | reads what a module says about itself |
//! | [`strip`] | makes modules smaller |
//! | [`programs`], [`elf_deps`] | packs programs of packages with the libraries they need |
//! | [`cpio`] | lays out the archive: order, owners, times and inode numbers fixed |
//! | [`pack`] | compresses it |
//! | [`manifest`], [`sums`] | say what is in the image |
//!
//! [`build`] puts them together. Two builds from the same inputs give the same bytes.

pub mod agent_bin;
pub mod cpio;
mod deb;
pub mod elf_deps;
pub mod kernel;
pub mod kmods;
pub mod manifest;
pub mod modinfo;
pub mod pack;
pub mod profile;
pub mod programs;
pub mod strip;
pub mod sums;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::cpio::{Archive, Node};
use crate::kernel::Kernel;
use crate::kmods::{ModuleTree, Selection};
use crate::manifest::{Manifest, Parts};
use crate::pack::Content;
use crate::profile::Profile;
use crate::programs::Programs;

/// Compressed archives that the cache keeps of each profile.
const KEPT_ARCHIVES: usize = 4;

/// Directories of the running ramdisk that hold nothing in the archive: mount points and places to write to.
const EMPTY_DIRECTORIES: &[(&str, u32)] = &[
    ("dev", 0o755),
    ("etc", 0o755),
    ("mnt", 0o755),
    ("proc", 0o755),
    ("root", 0o700),
    ("run", 0o755),
    ("sys", 0o755),
    ("tmp", 0o1777),
    ("var", 0o755),
];

/// What an image is made of and where it goes.
#[derive(Debug, Clone)]
pub struct Options {
    /// The profile, a TOML file.
    pub profile: PathBuf,
    /// The static agent binary that becomes `/init`.
    pub agent: PathBuf,
    /// Directory that gets `vmlinuz`, `initramfs.img`, `manifest.json` and `SHA256SUMS`, and `licenses.txt` where there are
    /// programs.
    pub out: PathBuf,
    /// Where the kernel comes from.
    pub kernel: kernel::Source,
    /// Where the packages of programs come from.
    pub packages: programs::Source,
    /// Where the compressed archive is kept, so that an unchanged one is not compressed again.
    pub cache: Option<PathBuf>,
    /// Build an image that is over the profile's budget too, for one that is never shipped.
    pub any_size: bool,
}

/// What [`build`] made.
#[derive(Debug, Clone)]
pub struct Report {
    /// Size of the kernel in bytes.
    pub kernel_bytes: u64,
    /// Size of the compressed initramfs in bytes.
    pub initramfs_bytes: u64,
    /// Size of the unpacked initramfs in bytes.
    pub unpacked_bytes: u64,
    /// Number of packed kernel modules.
    pub modules: usize,
    /// Number of packages with programs or libraries.
    pub packages: usize,
    /// The profile's limit for kernel and initramfs together.
    pub budget_bytes: Option<u64>,
    /// Kernel release, as `uname -r` prints it.
    pub release: String,
    /// Whether the image was already there, made from these very inputs.
    pub unchanged: bool,
}

/// Makes the image that `options` describe.
pub fn build(options: &Options) -> Result<Report> {
    let profile = Profile::load(&options.profile)?;
    let agent = fs::read(&options.agent).with_context(|| format!("reading the agent {}", options.agent.display()))?;
    agent_bin::check(&agent).with_context(|| format!("checking the agent {}", options.agent.display()))?;
    let kernel = kernel::obtain(&options.kernel, &profile)?;
    let skeleton = options.profile.parent().unwrap_or(Path::new(".")).join(&profile.skeleton);

    let tree = ModuleTree::open(&kernel.modules, &kernel.release)?;
    let selection =
        tree.select(&profile.modules).with_context(|| format!("choosing modules for profile {}", profile.name))?;
    let programs = Programs::obtain(&options.packages, &profile.programs)
        .with_context(|| format!("packing programs for profile {}", profile.name))?;
    let mut archive = Archive::default();
    lay_out(&mut archive, &agent, &kernel, &selection, &skeleton)?;
    list_modules(&mut archive, &profile.modules.load, &selection)?;
    for (path, node) in &programs.files {
        archive.add(path, node.clone())?;
    }
    let (code, others) = archive.split(|path| path == "init" || programs.files.contains_key(path));
    let archives = [(code.to_bytes()?, Content::X86Program), (others.to_bytes()?, Content::Other)];
    // Named after the result, so that two images of one profile keep an archive each.
    let name = options.out.file_name().map_or_else(|| profile.name.clone(), |name| name.to_string_lossy().into_owned());
    let initramfs = compress(&archives, &name, options.cache.as_deref())?;
    let vmlinuz =
        fs::read(&kernel.vmlinuz).with_context(|| format!("reading the kernel {}", kernel.vmlinuz.display()))?;

    let report = Report {
        kernel_bytes: byte_count(&vmlinuz),
        initramfs_bytes: byte_count(&initramfs),
        unpacked_bytes: archives.iter().map(|(bytes, _)| byte_count(bytes)).sum(),
        modules: selection.modules.len(),
        packages: programs.packages.len(),
        budget_bytes: profile.budget_bytes,
        release: kernel.release.clone(),
        unchanged: false,
    };
    let manifest = Manifest::new(
        &profile,
        &kernel,
        (&selection, &programs),
        &archive,
        Parts { agent: &agent, vmlinuz: &vmlinuz, initramfs: &initramfs },
    );
    let mut written = vec![("initramfs.img", initramfs), ("manifest.json", manifest.to_json()?), ("vmlinuz", vmlinuz)];
    if !programs.packages.is_empty() {
        written.push(("licenses.txt", programs.copyright().into_bytes()));
    }
    let unchanged = sums::write_directory(&options.out, &written)?;
    if !options.any_size {
        check_budget(&report)?;
    }
    Ok(Report { unchanged, ..report })
}

/// Compresses the archives, or takes what an earlier run made of the very same bytes.
fn compress(archives: &[(Vec<u8>, Content)], name: &str, cache: Option<&Path>) -> Result<Vec<u8>> {
    let pack = || -> Result<Vec<u8>> {
        let packed: Vec<_> =
            archives.iter().map(|(bytes, content)| pack::pack(bytes, *content)).collect::<Result<_>>()?;
        Ok(packed.concat())
    };
    let Some(cache) = cache else { return pack() };
    let directory = cache.join("initramfs").join(name);
    let unpacked: Vec<u8> = archives.iter().flat_map(|(bytes, _)| bytes).copied().collect();
    let path = directory.join(format!("{}-{}", sums::sha256_hex(&unpacked), pack::METHOD));
    // Checked, because a full disk or a kill may have cut it short.
    if let Ok(packed) = fs::read(&path)
        && pack::unpack(&packed).is_ok_and(|content| content == unpacked)
    {
        return Ok(packed);
    }
    let packed = pack()?;
    fs::create_dir_all(&directory).with_context(|| format!("creating {}", directory.display()))?;
    remove_old(&directory)?;
    fs::write(&path, &packed).with_context(|| format!("writing {}", path.display()))?;
    Ok(packed)
}

/// Leaves room for one more archive: those of a profile's last agents are kept, older ones go.
fn remove_old(directory: &Path) -> Result<()> {
    let mut kept = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| format!("listing {}", directory.display()))? {
        let entry = entry.with_context(|| format!("listing {}", directory.display()))?;
        let changed = entry.metadata().and_then(|metadata| metadata.modified());
        kept.push((changed.with_context(|| format!("reading {}", entry.path().display()))?, entry.path()));
    }
    kept.sort();
    for (_, path) in kept.iter().rev().skip(KEPT_ARCHIVES - 1) {
        fs::remove_file(path).with_context(|| format!("removing {}", path.display()))?;
    }
    Ok(())
}

/// Fails when kernel and initramfs together are over the profile's limit.
fn check_budget(report: &Report) -> Result<()> {
    let total = report.kernel_bytes + report.initramfs_bytes;
    if let Some(budget) = report.budget_bytes {
        ensure!(
            total <= budget,
            "kernel ({}) and initramfs ({}) make {total} bytes, {} over the profile's budget of {budget}",
            report.kernel_bytes,
            report.initramfs_bytes,
            total - budget
        );
    }
    Ok(())
}

/// Puts every file of the ramdisk into `archive`.
fn lay_out(archive: &mut Archive, agent: &[u8], kernel: &Kernel, selection: &Selection, skeleton: &Path) -> Result<()> {
    for (path, mode) in EMPTY_DIRECTORIES {
        archive.add(path, Node::Directory { mode: *mode })?;
    }
    // The kernel opens /dev/console for /init before anything is mounted; without the node PID 1 has no output.
    archive.add("dev/console", Node::CharDevice { mode: 0o600, major: 5, minor: 1 })?;
    archive.add_tree(skeleton)?;
    archive.add("init", Node::file(0o755, agent.to_vec()))?;
    let base = format!("lib/modules/{}", kernel.release);
    for module in selection.modules.values() {
        archive.add(&format!("{base}/{}", module.path), Node::file(0o644, module.bytes.clone()))?;
    }
    for (name, text) in selection.index_files() {
        archive.add(&format!("{base}/{name}"), Node::file(0o644, text.into_bytes()))?;
    }
    Ok(())
}

/// Lists the modules that PID 1 loads at every start, as modules-load.d(5) has it.
fn list_modules(archive: &mut Archive, load: &[String], selection: &Selection) -> Result<()> {
    for name in load {
        let is_there = selection.modules.contains_key(name) || selection.builtin.contains_key(name);
        ensure!(
            is_there,
            "modules.load names {name:?}, which is not among the modules of the image (write '_' for '-')"
        );
    }
    if load.is_empty() {
        return Ok(());
    }
    archive.add("etc/modules-load.d/profile.conf", Node::file(0o644, (load.join("\n") + "\n").into_bytes()))
}

/// The length of `bytes` as sizes are counted everywhere else.
pub(crate) fn byte_count(bytes: &[u8]) -> u64 {
    // A slice is never longer than isize::MAX, which fits.
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}
