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

/// Longest password that `crypt(3)` takes, bytes.
const MAX_PASSWORD_BYTES: usize = 511;

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

    fn validate(_context: &Context, params: &Params) -> Result<(), CommandError> {
        check(params).map_err(|problem| CommandError::new(ErrorClass::InvalidCommandParams, problem))
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

/// An empty password would make a machine that anybody can log in to; a hash with a colon or a line end, a broken
/// `/etc/shadow`; and one of a hundred thousand characters takes minutes to hash.
fn check(params: &Params) -> Result<(), String> {
    let password = params.rescue_password.expose();
    if password.is_empty() {
        return Err("rescue_password is empty".to_owned());
    }
    if password.len() > MAX_PASSWORD_BYTES {
        return Err(format!(
            "rescue_password has {} bytes; at most {MAX_PASSWORD_BYTES} can be logged in with",
            password.len()
        ));
    }
    if params.hashed && password.contains(|c: char| c == ':' || c.is_whitespace() || c.is_control()) {
        return Err(
            "rescue_password is said to be hashed, but no hash has colons, blanks or control characters".to_owned()
        );
    }
    Ok(())
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
    fn passwords_that_nobody_should_or_could_log_in_with_are_refused() {
        let long = "x".repeat(512);
        for (password, hashed, want) in [
            ("", false, Some("is empty")),
            (long.as_str(), false, Some("has 512 bytes; at most 511")),
            ("$6$salt$hash:0:0", true, Some("no hash has colons")),
            ("$6$salt$hash\nroot::0", true, Some("no hash has colons")),
            ("a b:c", false, None),
            ("$6$salt$hash", true, None),
        ] {
            let problem = check(&Params { rescue_password: Secret::new(password.to_owned()), hashed }).err();
            assert_eq!(problem.is_some(), want.is_some(), "{password:?}");
            assert!(problem.unwrap_or_default().contains(want.unwrap_or_default()), "{password:?}");
        }
    }

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
