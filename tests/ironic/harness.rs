//! Running the cases: one after the other on a server, both servers at once, then those that need both or all of Ironic.
//!
//! Not Rust's own harness, because the cases share one Ironic, which takes seconds to start, and go on from each other's
//! results. A case brings its node to the state it needs, so each can also run alone.

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Result, anyhow};

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

/// All cases in order.
pub(crate) fn cases(filters: &[String]) -> Vec<&'static Case> {
    let all = life::CASES.iter().chain(disks::CASES).chain(faults::CASES);
    all.filter(|case| filters.is_empty() || filters.iter().any(|filter| case.name.contains(filter.as_str()))).collect()
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
    summary(tally.passed, tally.failed.len(), 0, began);
    if !tally.failed.is_empty() {
        print(&format!("failed: {}\nlogs: {}", tally.failed.join(", "), lab.ironic.logs().display()));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// The last line, as Rust's own harness has it.
pub(crate) fn summary(passed: usize, failed: usize, skipped: usize, began: Instant) {
    let word = if failed == 0 { "ok" } else { "FAILED" };
    let seconds = began.elapsed().as_secs();
    print(&format!(
        "\ntest result: {word}. {passed} passed; {failed} failed; {skipped} skipped; finished in {seconds} s\n"
    ));
}

fn run_one(lab: &Lab, case: &Case, tally: &Mutex<Tally>) {
    let began = Instant::now();
    // A panic is a failure of this case alone.
    let outcome =
        catch_unwind(AssertUnwindSafe(|| (case.run)(lab))).unwrap_or_else(|_panic| Err(anyhow!("it panicked")));
    let seconds = began.elapsed().as_secs();
    let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
    match outcome {
        Ok(()) => {
            tally.passed += 1;
            print(&format!("test {} ... ok ({seconds} s)", case.name));
        }
        Err(error) => {
            tally.failed.push(case.name.to_owned());
            print(&format!("test {} ... FAILED ({seconds} s)\n    {error:#}", case.name));
            let [bios, uefi] = lab.benches();
            for (bench, other) in [(bios, Needs::Uefi), (uefi, Needs::Bios)] {
                if case.needs != other {
                    print(&bench.server.excerpt());
                }
            }
        }
    }
}
