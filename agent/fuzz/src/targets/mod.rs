//! What is done with an input of the fuzzer. A panic is a finding.

mod image;
mod lists;
mod seal;
mod tables;

pub use image::{packed, qcow2, vhd, vmdk};
pub use lists::{checksums, configdrive, csv};
pub use tables::{filesystem, table};

/// An input and what its first byte says to do with the rest.
fn choice(data: &[u8]) -> (u8, &[u8]) {
    data.split_first().map_or((0, data), |(first, rest)| (*first, rest))
}
