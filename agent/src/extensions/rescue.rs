//! `rescue`: turn the ramdisk into a system to log in to.
//!
//! The command writes the password file and the rescue marker and stops the API, as the reference agent does; the
//! login itself is the business of a service in the image that waits for the password file.

use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ferric_sys::Root;
use ferric_types::{CommandError, ErrorClass, Secret};
use serde::Deserialize;
use tracing::warn;

use crate::command::{Command, CommandEntry, Context, Extension, Mode};

/// The extension.
pub const EXTENSION: Extension = Extension { name: "rescue", commands: &[CommandEntry::of::<FinalizeRescue>()] };

const PASSWORD_FILE: &str = "etc/ipa-rescue-config/ipa-rescue-password";
/// Marks a machine in rescue: an agent that finds it does not serve (protocol section 1).
pub const MARKER: &str = "etc/.rescued";

struct FinalizeRescue;

/// Parameters of `rescue.finalize_rescue`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    #[serde(default = "empty")]
    rescue_password: Secret<String>,
    #[serde(default)]
    hashed: bool,
}

fn empty() -> Secret<String> {
    Secret::new(String::new())
}

/// The password file could not be written.
#[derive(Debug, thiserror::Error)]
#[error("writing the rescue password to {}", path.display())]
struct WriteError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl Command for FinalizeRescue {
    const NAME: &'static str = "finalize_rescue";
    const MODE: Mode = Mode::Sync;
    type Params = Params;
    type Reply = ();

    /// An empty password would make a machine that anybody can log in to.
    fn validate(_context: &Context, params: &Params) -> Result<(), CommandError> {
        if params.rescue_password.expose().is_empty() {
            return Err(CommandError::new(ErrorClass::InvalidCommandParams, "rescue_password is empty"));
        }
        Ok(())
    }

    fn run(context: &Context, params: Params) -> Result<(), CommandError> {
        let root = &context.app.machine.root;
        let given = params.rescue_password.expose();
        let hash = if params.hashed { given.clone() } else { hash(given)? };
        write_password(root, &hash).map_err(|error| CommandError::from_chain(ErrorClass::CommandExecution, &error))?;
        let marker = root.path(MARKER);
        if let Err(error) = std::fs::write(&marker, b"") {
            warn!(%error, "creating {}", marker.display());
        }
        context.app.stop_serving();
        Ok(())
    }
}

/// SHA-256 crypt with a random salt, what `/etc/shadow` takes.
fn hash(password: &str) -> Result<String, CommandError> {
    use sha_crypt::{PasswordHasher, ShaCrypt};
    let failed = |error: &dyn std::fmt::Display| {
        CommandError::new(ErrorClass::CommandExecution, format!("hashing the rescue password: {error}"))
    };
    let hash = ShaCrypt::SHA256.hash_password(password.as_bytes()).map_err(|error| failed(&error))?;
    Ok(hash.to_string())
}

fn write_password(root: &Root, hash: &str) -> Result<(), WriteError> {
    let path = root.path(PASSWORD_FILE);
    let failed = |source| WriteError { path: path.clone(), source };
    std::fs::create_dir_all(path.parent().unwrap_or_else(|| Path::new("/"))).map_err(failed)?;
    let mut file =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path).map_err(failed)?;
    file.write_all(hash.as_bytes()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clear_password_becomes_a_sha256_crypt_hash_and_the_file_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        let hash = hash("correct horse").unwrap();
        assert!(hash.starts_with("$5$"), "{hash}");
        write_password(&root, &hash).unwrap();
        let path = root.path(PASSWORD_FILE);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), hash);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
