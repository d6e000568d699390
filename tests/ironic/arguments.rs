//! The arguments of this program: those that `cargo test` and its users give to test programs.

use anyhow::{Context as _, Result, bail};

/// What `--help` says.
pub(crate) const USAGE: &str = "\
Usage: ironic [OPTIONS] [NAME]...

Runs the tests with Ironic whose names hold one of the NAMEs, or all.

  --exact            a NAME is the whole name
  --skip NAME        leave out tests whose names hold this, or with --exact are this
  --list             list the tests instead of running them
  --help             say this

Other options of Rust's test programs (--nocapture, --quiet, --test-threads N, ...) are taken, but change nothing: output
is never held back, and the two machines are worked on at the same time.";

/// What was asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Arguments {
    pub(crate) help: bool,
    pub(crate) list: bool,
    exact: bool,
    /// Only tests marked as ignored are wanted; there are none.
    none: bool,
    names: Vec<String>,
    skipped: Vec<String>,
}

impl Arguments {
    /// Reads them.
    pub(crate) fn read(words: &[String]) -> Result<Self> {
        let mut read = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let (option, mut value) = match word.split_once('=') {
                Some((option, value)) if option.starts_with("--") => (option, Some(value.to_owned())),
                _ => (word.as_str(), None),
            };
            let mut value = || {
                let given = value.take().or_else(|| words.next().cloned());
                given.with_context(|| format!("{option} wants a value"))
            };
            match option {
                "--help" | "-h" => read.help = true,
                "--list" => read.list = true,
                "--exact" => read.exact = true,
                "--ignored" => read.none = true,
                "--skip" => read.skipped.push(value()?),
                "--test-threads" | "--color" | "--format" | "--logfile" | "--shuffle-seed" | "-Z" => drop(value()?),
                "--nocapture"
                | "--no-capture"
                | "--show-output"
                | "--quiet"
                | "-q"
                | "--include-ignored"
                | "--test"
                | "--shuffle"
                | "--report-time"
                | "--force-run-in-process" => {}
                "--" => {}
                _ if option.starts_with('-') => bail!("there is no option {option}; --help lists those there are"),
                _ => read.names.push(word.clone()),
            }
        }
        Ok(read)
    }

    /// Whether the test of that name is wanted.
    pub(crate) fn choose(&self, name: &str) -> bool {
        let is = |word: &String| if self.exact { name == word } else { name.contains(word.as_str()) };
        !self.none && (self.names.is_empty() || self.names.iter().any(is)) && !self.skipped.iter().any(is)
    }
}
