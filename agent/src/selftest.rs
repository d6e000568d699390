//! Proofs that the finished binary can be asked for: what depends on how it was linked cannot be tested elsewhere.

use std::io::Write;
use std::panic::{catch_unwind, resume_unwind};

/// Shows that a panic is caught, in the main thread and in another one: with a wrongly linked unwinder the process is
/// aborted instead, and one command's bug would end the agent.
///
/// Gives whether both were caught, and prints so.
pub fn panics() -> bool {
    std::panic::set_hook(Box::new(|_| ()));
    let payload = || Box::new("self-test");
    let caught_here = catch_unwind(|| resume_or_panic(false)).is_err();
    let caught_in_thread = std::thread::spawn(|| resume_or_panic(false)).join().is_err();
    let resumed = catch_unwind(|| resume_unwind(payload())).is_err();
    // A real panic of the library too, with its own way through the runtime.
    let empty: Vec<u8> = Vec::new();
    let indexed = catch_unwind(|| std::hint::black_box(&empty).split_at(1).0.len()).is_err();
    let all = caught_here && caught_in_thread && resumed && indexed;
    let text = if all { "panic caught in main, panic caught in thread" } else { "a panic was NOT caught" };
    // The exit code says it as well.
    let _unread = writeln!(std::io::stdout(), "{text}");
    all
}

/// Panics without a `panic!` in the source.
fn resume_or_panic(no: bool) {
    #[expect(clippy::expect_used, reason = "this function is here to panic")]
    std::hint::black_box(no).then_some(()).expect("the self-test panics here");
}

#[cfg(test)]
mod tests {
    #[test]
    fn panics_are_caught() {
        assert!(super::panics());
    }
}
