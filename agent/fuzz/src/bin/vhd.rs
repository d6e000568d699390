//! See `targets::vhd`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ferric_fuzz::targets::vhd(data));
