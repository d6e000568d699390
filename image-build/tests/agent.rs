//! What may become `/init`, and whether the built agent is that.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use crate::support::{program, static_program};
use ferric_image_build::agent_bin::{AgentBinError, check};
use object::elf;

#[test]
fn a_static_program_is_accepted() {
    assert_eq!(check(&static_program()), Ok(()));
    // Static programs may be position independent: they relocate themselves.
    assert_eq!(check(&program(elf::EM_X86_64.0, elf::ET_DYN.0, &[(elf::PT_LOAD.0, &[0x90; 16])])), Ok(()));
}

#[test]
fn what_cannot_be_pid_1_is_refused_with_the_reason() {
    let load = (elf::PT_LOAD.0, [0x90u8; 16].as_slice());
    let interpreter = (elf::PT_INTERP.0, b"/lib/ld-musl-x86_64.so.1\0".as_slice());
    let needed: Vec<u8> = [1u64, 17, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    let dynamic = (elf::PT_DYNAMIC.0, needed.as_slice());
    let x86 = |segments: &[(u32, &[u8])]| program(elf::EM_X86_64.0, elf::ET_DYN.0, segments);
    let cases = [
        ("a loader", x86(&[load, interpreter]), "asks for the loader /lib/ld-musl-x86_64.so.1"),
        ("a library", x86(&[load, dynamic]), "needs a library"),
        ("ARM", program(elf::EM_AARCH64.0, elf::ET_EXEC.0, &[load]), "machine type 183"),
        ("an object file", program(elf::EM_X86_64.0, elf::ET_REL.0, &[load]), "not a program: ELF type 1"),
        ("a script", b"#!/bin/sh\n".to_vec(), "not a readable 64-bit ELF file"),
        ("nothing", Vec::new(), "not a readable 64-bit ELF file"),
        ("half a file", static_program()[..70].to_vec(), "not a readable 64-bit ELF file"),
    ];
    for (what, bytes, wanted) in cases {
        let text = check(&bytes).expect_err(what).to_string();
        assert!(text.contains(wanted), "{what}: {text}");
    }
}

#[test]
fn a_program_of_the_host_is_refused_with_its_libraries() {
    // This test is linked against the host's C library.
    let own = crate::support::read(&std::env::current_exe().unwrap());
    assert!(matches!(check(&own), Err(AgentBinError::Interpreter(loader)) if loader.contains("ld-linux")));
}

/// The agent as `make agent` left it. Without it, the test that wanted it is counted as skipped.
fn built_agent(test: &str) -> Option<std::path::PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../build/ferric-agent");
    if path.is_file() {
        return Some(path);
    }
    // Not eprintln: the test runner would keep it to itself.
    let line = format!("SKIPPED: {test}: there is no build/ferric-agent, run `make agent`\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
    None
}

#[test]
fn the_built_agent_is_static() {
    let Some(agent) = built_agent("the_built_agent_is_static") else { return };
    assert_eq!(check(&crate::support::read(&agent)), Ok(()));
}

#[test]
fn the_built_agent_catches_its_panics() {
    let Some(agent) = built_agent("the_built_agent_catches_its_panics") else { return };
    let output = Command::new(&agent).args(["self-test", "panic"]).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "self-test panic ended with {}: {said}", output.status);
    for place in ["caught in main", "caught in thread"] {
        assert!(said.contains(place), "no panic was {place}: {said}");
    }
}
