//! Running the cases: one after the other on a server, both servers at once, then those that need both or all of Ironic.
//!
//! Before them come the checks of the lab itself, which need no Ironic.
//!
//! Not Rust's own harness, because the cases share one Ironic, which takes seconds to start, and go on from each other's
//! results. A case brings its node to the state it needs, so each can also run alone.

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Result, anyhow};

use crate::checks::Check;
use crate::inside::Lab;
use crate::{disks, faults, life};

/// Which part of the lab a case has for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// The BIOS machine.
    Bios,
    /// The UEFI machine.
    Uefi,
    /// All of it.
    Everything,
}

/// One case.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) needs: Needs,
    pub(crate) run: fn(&Lab) -> Result<()>,
}

/// The cases whose names are chosen, in order.
pub(crate) fn cases(choose: impl Fn(&str) -> bool) -> Vec<&'static Case> {
    let all = life::CASES.iter().chain(disks::CASES).chain(faults::CASES);
    all.filter(|case| choose(case.name)).collect()
}

/// Prints a line; tests have no other way to speak.
pub(crate) fn print(text: &str) {
    // Nobody is there to be told when it fails.
    drop(writeln!(std::io::stdout().lock(), "{text}"));
}

#[derive(Debug, Default)]
struct Tally {
    passed: usize,
    failed: Vec<String>,
    skipped: usize,
}

/// Runs the cases and says how they went.
pub(crate) fn run(lab: &Lab, cases: &[&Case]) -> ExitCode {
    let began = Instant::now();
    let tally = Mutex::new(Tally::default());
    let of = |needs| cases.iter().copied().filter(move |case| case.needs == needs);
    std::thread::scope(|scope| {
        for needs in [Needs::Bios, Needs::Uefi] {
            let (tally, own) = (&tally, of(needs));
            scope.spawn(move || own.for_each(|case| run_one(lab, case, tally)));
        }
    });
    of(Needs::Everything).for_each(|case| run_one(lab, case, &tally));
    let tally = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
    let passed = summary(&tally, began);
    if !passed {
        print(&format!("logs: {}", lab.ironic.logs().display()));
    }
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the checks of the lab itself, one after the other, and says whether all passed. Those for which something is
/// lacking here are skipped.
pub(crate) fn run_checks(checks: &[&Check], lacking: Option<&str>) -> bool {
    let began = Instant::now();
    let tally = Mutex::new(Tally::default());
    for check in checks {
        match lacking {
            Some(reason) if check.needs_programs => skip_one(check.name, reason, &tally),
            _ => drop(note(check.name, check.run, &tally)),
        }
    }
    let tally = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
    checks.is_empty() || summary(&tally, began)
}

/// Says of all these cases that they are skipped.
pub(crate) fn skip(names: &[&str], reason: &str, began: Instant) {
    let tally = Mutex::new(Tally::default());
    names.iter().for_each(|name| skip_one(name, reason, &tally));
    summary(&tally.into_inner().unwrap_or_else(PoisonError::into_inner), began);
}

fn skip_one(name: &str, reason: &str, tally: &Mutex<Tally>) {
    tally.lock().unwrap_or_else(PoisonError::into_inner).skipped += 1;
    print(&format!("test {name} ... SKIPPED ({reason})"));
}

/// The last line, as Rust's own harness has it, and whether none failed. Skipped tests do not count as passed.
fn summary(tally: &Tally, began: Instant) -> bool {
    let Tally { passed, failed, skipped } = tally;
    let good = failed.is_empty();
    if !good {
        print(&format!("\nfailed: {}", failed.join(", ")));
    }
    let (word, failed, seconds) = (if good { "ok" } else { "FAILED" }, failed.len(), began.elapsed().as_secs());
    print(&format!(
        "\ntest result: {word}. {passed} passed; {failed} failed; {skipped} skipped; finished in {seconds} s\n"
    ));
    good
}

fn run_one(lab: &Lab, case: &Case, tally: &Mutex<Tally>) {
    if !note(case.name, || (case.run)(lab), tally) {
        let [bios, uefi] = lab.benches();
        for (bench, other) in [(bios, Needs::Uefi), (uefi, Needs::Bios)] {
            if case.needs != other {
                print(&bench.server.excerpt());
            }
        }
    }
}

/// Runs one, says and counts how it went, and whether it went well.
fn note(name: &str, run: impl FnOnce() -> Result<()>, tally: &Mutex<Tally>) -> bool {
    let began = Instant::now();
    // A panic is a failure of this test alone.
    let outcome = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_panic| Err(anyhow!("it panicked")));
    let seconds = began.elapsed().as_secs();
    let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
    match outcome {
        Ok(()) => {
            tally.passed += 1;
            print(&format!("test {name} ... ok ({seconds} s)"));
            true
        }
        Err(error) => {
            tally.failed.push(name.to_owned());
            print(&format!("test {name} ... FAILED ({seconds} s)\n    {error:#}"));
            false
        }
    }
}
