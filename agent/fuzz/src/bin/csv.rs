//! See `targets::csv`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ferric_fuzz::targets::csv(data));
