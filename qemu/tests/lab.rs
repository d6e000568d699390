//! The `lab` program itself: what it refuses without booting a machine.

use std::process::Command;

/// What `lab` says with these arguments; it must fail.
fn refusal(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_lab")).args(arguments).output().unwrap();
    assert!(!output.status.success(), "{arguments:?} was done");
    let all = [output.stdout, output.stderr].concat();
    let text = String::from_utf8(all).unwrap();
    assert!(!text.contains("power on") && !text.contains("logs:"), "{arguments:?} started a machine: {text}");
    text
}

#[test]
fn an_image_that_is_not_what_the_options_say_is_refused_before_a_machine_starts() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "abc").unwrap();
    let path = file.path().to_str().unwrap();
    let zeros = format!("sha256:{}", "0".repeat(64));
    // FIPS 180-2, appendix B.1: the digest of "abc".
    let own = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let text = refusal(&["deploy", path, "--checksum", &zeros]);
    assert!(text.contains(own) && text.contains(&zeros[7..]), "{text}");
    for (image, option, value, why) in [
        (path, "--checksum", "sha256:12", "64 hex digits, not 2"),
        ("http://192.0.2.1/disk.img", "--checksum", "sha256:12", "64 hex digits, not 2"),
        ("http://192.0.2.1/disk.img", "--hostname", "x", "needs --checksum"),
        (path, "--format", "vmdk", "possible values: raw, qcow2"),
        (path, "--memory", "16", "104 to"),
        (path, "--cpus", "0", "1 to 255"),
        ("/nosuch/disk.img", "--hostname", "x", "opening the image /nosuch/disk.img"),
    ] {
        let text = refusal(&["deploy", image, option, value]);
        assert!(text.contains(why), "{image} {option} {value}: {text}");
    }
}
