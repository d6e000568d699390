//! Overwrites a disk or a file as the agent would, with samples read back, and says what became of it.
//!
//! `erase_disk TARGET [--passes N] [--no-zeroes]`; used to compare with `dd` and `blkdiscard` on the same machine. Everything
//! on the target is lost.
#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::error::Error;

use ferric_disk::erase::{Bus, Passes, Policy, Target, erase};
use ferric_sys::block_dev::{Access, BlockDev};
use ferric_types::Progress;
use ferric_types::error::chain;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [target, options @ ..] = args.as_slice() else {
        return Err("usage: erase_disk TARGET [--passes N] [--no-zeroes]".into());
    };
    let iterations = match options.iter().skip_while(|arg| *arg != "--passes").nth(1) {
        Some(number) => number.parse()?,
        None => 1,
    };
    let passes = Passes { iterations, zeroize: !options.iter().any(|arg| arg == "--no-zeroes") };
    let dev = BlockDev::open(target, Access::Exclusive)?;
    let progress = Progress::new();
    progress.phase("erase", None);
    let policy = Policy { passes, nvme: false, ata: false, sanitize: false, go_on: false };
    for progress in progress.disks([(target.clone(), passes.work_bytes(dev.size_bytes()))]) {
        let disk = Target { dev: &dev, firmware: &dev, progress: &progress, rotational: false };
        for verdict in erase(&[disk], Bus::Other, &[], &policy) {
            println!("{:?}", verdict.map_err(|error| chain(&error))?);
        }
    }
    Ok(())
}
