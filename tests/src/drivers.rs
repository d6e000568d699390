//! Drivers that the image leaves out for its size, in an archive behind it, as a site could bring them.

use std::path::Path;

use anyhow::{Context as _, Result};
use ferric_image_build::kernel::{self, Source};
use ferric_image_build::kmods::ModuleTree;
use ferric_image_build::profile::Profile;
use ferric_qemu::artifacts;
use serde_json::Value;

use crate::bench::Files;

/// Files that give the `virt` image these modules, and what they depend on, beside its own: for [`Plan::files`](crate::Plan).
/// They are of the kernel package that the image was built from, which the build keeps.
///
/// # Errors
/// The image is not built, or a module does not exist.
pub fn drivers(names: &[&str]) -> Result<Files> {
    let manifest = artifacts::build_dir()?.join("virt/manifest.json");
    let text =
        std::fs::read(&manifest).with_context(|| format!("reading {}; make image writes it", manifest.display()))?;
    let manifest: Value = serde_json::from_slice(&text).context("reading the image's manifest")?;
    let part = |key: &str| manifest["kernel"][key].as_str().with_context(|| format!("the manifest names no {key}"));
    let package = format!("{}_{}", part("package")?, part("version")?);
    let mut profile = Profile::load(&artifacts::workspace_root()?.join("initramfs/profiles/virt.toml"))?;
    let kernel = kernel::obtain(&Source::Tree(artifacts::build_dir()?.join("cache/kernel").join(package)), &profile)?;
    let tree = ModuleTree::open(&kernel.modules, &kernel.release)?;
    let own = tree.select(&profile.modules)?;
    profile.modules.include.extend(names.iter().map(|name| (*name).to_owned()));
    let selection = tree.select(&profile.modules)?;
    let base = Path::new("lib/modules").join(&kernel.release);
    let path = |name: &str| base.join(name).display().to_string();
    let more = selection.modules.iter().filter(|(name, _)| !own.modules.contains_key(*name));
    let modules = more.map(|(_, module)| (path(&module.path), module.bytes.clone()));
    let index = selection.index_files();
    Ok(modules.chain(index.into_iter().map(|(name, text)| (path(name), text.into_bytes()))).collect())
}
