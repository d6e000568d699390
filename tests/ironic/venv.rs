//! Programs from PyPI in a Python environment of their own.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use ferric_qemu::artifacts;

use crate::programs;

/// Says in an environment what it was made of.
const MARK: &str = "installed.txt";

/// An environment to be.
#[derive(Debug)]
pub(crate) struct Venv<'a> {
    /// Folder in which it is made, as `venv`, with pip's logs beside it.
    pub(crate) folder: &'a Path,
    /// What belongs into it: a file as pip reads it, with all versions pinned.
    pub(crate) requirements: &'a Path,
    /// More options for pip.
    pub(crate) options: &'a [&'a str],
}

/// Whether there is one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Provided {
    /// It is there.
    Venv(PathBuf),
    /// The package index cannot be reached, for this reason.
    Unreachable(String),
}

impl Venv<'_> {
    /// Makes it, unless it is there as it should be. All that goes wrong is an error, except that there is no way to the
    /// package index; then there is none to test with, and nothing is wrong with what is tested.
    pub(crate) fn provide(&self, note: impl FnOnce()) -> Result<Provided> {
        if !self.fits()? {
            note();
            self.make()?;
            if let Some(reason) = self.install()? {
                return Ok(Provided::Unreachable(reason));
            }
            self.sign()?;
        }
        Ok(Provided::Venv(self.path()))
    }

    fn path(&self) -> PathBuf {
        self.folder.join("venv")
    }

    /// Whether it is there as it should be: with these packages, at the place it was made for, with a Python that can be
    /// started and has not been upgraded meanwhile.
    pub(crate) fn fits(&self) -> Result<bool> {
        let wanted = self.mark()?;
        let signed = fs::read_to_string(self.path().join(MARK)).is_ok_and(|mark| mark == wanted);
        Ok(signed && programs::run(&self.path().join("bin/python"), &["-c", ""]).is_ok())
    }

    /// Says in it what it is.
    pub(crate) fn sign(&self) -> Result<()> {
        let path = self.path().join(MARK);
        fs::write(&path, self.mark()?).with_context(|| format!("writing {}", path.display()))
    }

    /// Makes it anew, without packages.
    pub(crate) fn make(&self) -> Result<()> {
        let path = self.path();
        if path.exists() {
            fs::remove_dir_all(&path).with_context(|| format!("removing {}", path.display()))?;
        }
        programs::run(&python()?, &["-m", "venv", &path.display().to_string()]).map(drop)
    }

    /// Installs the packages; the reason when the index cannot be reached.
    pub(crate) fn install(&self) -> Result<Option<String>> {
        let requirements = self.requirements.display().to_string();
        let install = ["install", "--quiet", "--no-deps", "--requirement", &requirements];
        let Err(failure) = self.pip(&install, "pip.log") else { return Ok(None) };
        if failure.unreachable.is_some() {
            // Part of the packages may have come, and a network be mended; whether there is an index, a package tells that
            // every index has.
            let index = self.pip(&["index", "versions", "pip"], "pip-index.log").err();
            if let Some(reason) = index.and_then(|failure| failure.unreachable) {
                return Ok(Some(reason));
            }
        }
        Err(failure.error)
    }

    /// What it is made of. Its programs name it by its path, and its libraries are found by this Python only.
    fn mark(&self) -> Result<String> {
        let requirements = fs::read_to_string(self.requirements);
        let requirements = requirements.with_context(|| format!("reading {}", self.requirements.display()))?;
        let version = programs::run(&python()?, &["--version"])?;
        Ok(format!("# {}\n# {}\n{requirements}", self.folder.display(), version.trim()))
    }
}

/// Why pip failed.
struct Failure {
    /// All that it said.
    error: anyhow::Error,
    /// Why it had no connection, if it had none at some point.
    unreachable: Option<String>,
}

impl Venv<'_> {
    /// Runs pip, with a log of all it does. What it prints does not tell a missing connection from a missing package.
    fn pip(&self, words: &[&str], log: &str) -> Result<(), Failure> {
        let log = self.folder.join(log);
        // It would be added to; there may be none.
        drop(fs::remove_file(&log));
        let path = log.display().to_string();
        let mut arguments = vec!["-m", "pip", "--disable-pip-version-check", "--log", &path];
        arguments.extend(words.iter().chain(self.options));
        let outcome = programs::run(&self.folder.join("venv/bin/python"), &arguments);
        outcome.map(drop).map_err(|error| {
            let told = fs::read_to_string(&log).unwrap_or_default();
            Failure { error: error.context(format!("all of it is in {path}")), unreachable: unreachable(&told) }
        })
    }
}

/// Why a server could not be connected to, by pip's log. One that answers, whatever it says, is not meant.
fn unreachable(log: &str) -> Option<String> {
    let refused = log.lines().filter_map(|line| line.split_once("Could not fetch URL ")?.1.split_once(": "));
    let mut reasons = refused.filter_map(|(url, reason)| {
        let is = ["connection error: ", "proxy connection error: "].iter().any(|words| reason.starts_with(words));
        is.then(|| format!("{url}: {}", reason.trim_end_matches(" - skipping")))
    });
    reasons.next()
}

fn python() -> Result<PathBuf> {
    artifacts::program("python3", "python3-venv")
}
