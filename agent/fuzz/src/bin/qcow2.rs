//! See `targets::qcow2`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ferric_fuzz::targets::qcow2(data));
