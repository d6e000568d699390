//! Tests of the programs of this crate.

#[cfg(test)]
mod lab;
