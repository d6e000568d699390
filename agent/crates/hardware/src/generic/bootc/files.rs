//! Files that podman reads. They are in memory, for nobody else to read, and gone when they are not needed any more.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use ferric_disk::inject;
use ferric_sys::Root;
use ferric_types::Secret;
use ferric_types::error::{CommandError, ErrorClass};
use serde_json::json;

/// Where they are.
const DIR: &str = "run/ferric/bootc";
/// Where the installer finds the public keys.
pub(super) const KEYS_INSIDE: &str = "/run/bootc-authorized-keys";
/// The root of this ramdisk is the kernel's first one, which nothing can be pivoted away from.
const SETTINGS: (&str, &str) = ("etc/containers/containers.conf.d/01-ferric.conf", "[engine]\nno_pivot_root = true\n");

/// A directory that goes with everything in it.
#[derive(Debug)]
pub(super) struct Files {
    dir: PathBuf,
}

/// A file that goes before.
#[derive(Debug)]
pub(super) struct SecretFile(PathBuf);

impl SecretFile {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        // What cannot be deleted is not there, or goes with its directory.
        let _gone = fs::remove_file(&self.0);
    }
}

impl Files {
    /// Makes the directory, and the settings that podman needs in a ramdisk.
    pub(super) fn new(root: &Root) -> Result<Self, CommandError> {
        let (settings, dir) = (root.path(SETTINGS.0), root.path(DIR));
        let make = || -> io::Result<()> {
            settings.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(&settings, SETTINGS.1)?;
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)
        };
        make().map_err(|error| not_written(&dir, &error))?;
        Ok(Self { dir })
    }

    /// What a registry is told (containers-auth.json(5)).
    pub(super) fn authentication(&self, secret: &Secret<String>, image: &str) -> Result<SecretFile, CommandError> {
        // The decoder's own words might quote the secret.
        let auth = io::read_to_string(inject::base64(secret.expose())).map_err(|_not_shown| {
            CommandError::new(ErrorClass::InvalidCommandParams, "the pull secret is not base64 of text")
        })?;
        let registry = image.split('/').next().unwrap_or_default();
        let content = json!({"auths": {registry: {"auth": auth.trim()}}}).to_string();
        let file = SecretFile(self.dir.join("auth.json"));
        write(file.path(), &content).map_err(|error| not_written(file.path(), &error))?;
        Ok(file)
    }

    /// Public keys, which the installer reads under [`KEYS_INSIDE`].
    pub(super) fn authorized_keys(&self, keys: &str) -> Result<PathBuf, CommandError> {
        let path = self.dir.join("authorized-keys");
        write(&path, keys).map_err(|error| not_written(&path, &error))?;
        Ok(path)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            tracing::warn!(reason = %error, dir = %self.dir.display(), "files of the container's installation stay");
        }
    }
}

fn write(path: &Path, content: &str) -> io::Result<()> {
    let mut file: File = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(content.as_bytes())
}

fn not_written(path: &Path, error: &io::Error) -> CommandError {
    CommandError::new(ErrorClass::CommandExecution, format!("writing {}: {error}", path.display()))
}
