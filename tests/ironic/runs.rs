//! The folders that keep the logs of runs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use time::OffsetDateTime;
use time::macros::format_description;

/// Of each kind.
pub(crate) const KEPT: usize = 5;

/// How much is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All tests.
    Whole,
    /// Some.
    Part,
}

impl Extent {
    /// How the folders' names begin.
    fn prefix(self) -> &'static str {
        match self {
            Self::Whole => "run-",
            Self::Part => "part-",
        }
    }
}

/// A new folder for a run that begins at `now`. Of older runs of the same extent the last few keep their logs, and no run
/// its disks: those were left by one that was killed.
pub(crate) fn new_folder(parent: &Path, extent: Extent, now: OffsetDateTime) -> Result<PathBuf> {
    for kind in [Extent::Whole, Extent::Part] {
        let kept = if kind == extent { KEPT - 1 } else { KEPT };
        for (age, run) in newest_first(parent, kind)?.into_iter().enumerate() {
            let doomed = if age < kept { run.join("tmp") } else { run };
            // There may be none.
            drop(fs::remove_dir_all(doomed));
        }
    }
    let time = now.format(format_description!("[year][month][day]-[hour][minute][second]"))?;
    let run = parent.join(format!("{}{time}", extent.prefix()));
    ensure!(run.is_absolute(), "{} is not an absolute path", run.display());
    fs::create_dir_all(run.join("logs/ramdisk")).with_context(|| format!("making {}", run.display()))?;
    Ok(run)
}

/// Their names hold the time.
pub(crate) fn newest_first(parent: &Path, extent: Extent) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(parent).with_context(|| format!("listing {}", parent.display()))?;
    let is_one =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(extent.prefix()));
    let mut runs: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_one).collect();
    runs.sort_by(|one, other| other.cmp(one));
    Ok(runs)
}
