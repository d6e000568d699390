//! The agent of the standard image.

use std::process::ExitCode;

fn main() -> ExitCode {
    ferric_agent::run(ferric_agent::extensions::EXTENSIONS, ferric_hardware::MANAGERS)
}
