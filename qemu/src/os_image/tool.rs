//! Running the host's tools (`mke2fs`, `debugfs`, `grub-mkimage`, `apt-get`, `qemu-img`), with errors that show the command and what it said.

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context as _, Result, bail};

/// A command for `program`, also found when `sbin` is not in the caller's `PATH` (Debian leaves it out for users other than root).
pub(super) fn command(program: &str) -> Command {
    let mut path = env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    path.push(":/usr/sbin:/sbin");
    let mut command = Command::new(program);
    command.env("PATH", path).env("LC_ALL", "C");
    command
}

/// Runs it to its end. An exit status other than zero is an error with the end of its standard error.
pub(super) fn run(command: &mut Command) -> Result<Output> {
    let shown = shown(command);
    let output = command
        .output()
        .with_context(|| format!("starting {shown} (is its package installed? `make setup` does that)"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let tail: Vec<&str> = stderr.lines().rev().take(5).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        bail!("{shown}: {}: {}", output.status, tail.join(" / "));
    }
    Ok(output)
}

/// Runs it and gives its standard output as text.
pub(super) fn text(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8_lossy(&run(command)?.stdout).into_owned())
}

/// SHA-256 of a file in lower-case hexadecimal, by `sha256sum`: unoptimised builds of our own hash code are far slower.
pub(super) fn sha256_file(path: &Path) -> Result<String> {
    let out = text(command("sha256sum").arg("--binary").arg(path))?;
    let digest = out.trim_start_matches('\\').split_whitespace().next().unwrap_or_default();
    if digest.len() != 64 {
        bail!("sha256sum of {} printed {out:?}", path.display());
    }
    Ok(digest.to_owned())
}

fn shown(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|arg| arg.to_string_lossy().into_owned()));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failing_tool_is_reported_with_command_and_stderr() {
        let error = run(command("sh").args(["-c", "echo no such thing >&2; exit 3"])).unwrap_err().to_string();
        assert!(error.contains("sh -c") && error.contains("no such thing") && error.contains('3'), "{error}");
    }

    #[test]
    fn missing_tool_says_how_to_install_it() {
        let error = run(&mut command("ferric-no-such-tool")).unwrap_err().to_string();
        assert!(error.contains("make setup"), "{error}");
    }

    #[test]
    fn sha256_of_a_file_is_the_known_digest() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("abc");
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(sha256_file(&path).unwrap(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
