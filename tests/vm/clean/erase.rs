//! Erasing: disks of every kind at once, and trouble with some of them.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ferric_qemu::conductor::flow::Progress;
use ferric_tests::Bundle;
use serde_json::{Value, json};

use super::{
    ALL_BYTES, BAD_SECTOR, BROKEN, DEVICES, DISKS, MEMBER, Machine, OLD_BYTES, PATIENCE, READ_ONLY, SHAKY, SLOW,
    SLOW_SIZE, SPACES, STUCK, failure,
};
use crate::kit::{self, MIB};

/// A disk that is in use until the very end of cleaning.
const HELD: &str = "NVME-512";

/// Erasing: all disks at once, nothing left on any of them; the one that cannot be written, the one with a broken sector,
/// the one that is in use and the namespace that cannot be formatted are named, and what is wrong with them.
pub(super) fn everything_goes_but_what_cannot(machine: &Machine, names: &BTreeMap<String, String>) -> Result<()> {
    machine.prepare(&[])?;
    machine.skip(&[])?;
    let held = &names[HELD];
    machine.hold(Some(held))?;
    let before = kit::digest(&machine.files[HELD])?;
    let first_beat = machine.bench.conductor.heartbeats().len();
    let mut disks = Vec::new();
    let (result, progress) = machine.clean_seen(&["erase_devices"], |machine| disks.push(machine.disks_now()));
    ensure!(kit::digest(&machine.files[HELD])? == before, "a disk in use was written to");
    machine.hold(None)?;
    let (text, class) = failure(result)?;
    ensure!(class == "BlockDeviceEraseError", "{class}: {text}");
    let (read_only, broken, stuck) = (&names[READ_ONLY], &names[BROKEN], &names[STUCK]);
    for words in [
        format!("{read_only}: it is read-only"),
        format!("{broken}: erasing {broken}: writing"),
        // The request that failed begins at a whole MiB.
        format!("at {} of {broken}", BAD_SECTOR * 512 / MIB * MIB),
        "I/O error".to_owned(),
        format!("failed on 4 of {DEVICES} disks"),
        format!("{held}: Destroying metadata failed on device {held}: it is still in use"),
        format!("{stuck}: erasing {stuck} by nvme-format-"),
        "the controller answered Format NVM with status 0x".to_owned(),
    ] {
        ensure!(text.contains(&words), "no {words:?} in {text:?}");
    }
    let erased = DISKS.iter().map(|(serial, ..)| *serial).chain([SHAKY, MEMBER, SLOW, SPACES[0], SPACES[2]]);
    for serial in erased.filter(|serial| *serial != HELD) {
        machine.files[serial].check_zero(0, machine.files[serial].len_bytes()?).with_context(|| serial.to_owned())?;
    }
    progress_was_shown(&progress, &disks, &names[SLOW])?;
    beats_came_in_time(machine, first_beat)?;
    let bundle = Bundle::of(&machine.agent)?;
    let (journal, shaky) = (bundle.text("journal"), &names[SHAKY]);
    ensure!(
        journal.contains(&format!("at {} of {shaky}", BAD_SECTOR * 512 / MIB * MIB)),
        "no error of {shaky} in the log"
    );
    certificate_tells(&bundle, names)?;
    let lines = machine.bench.vm().console().lines();
    let first_end =
        lines.iter().position(|line| line.contains("random_passes")).context("no verdict on the console")?;
    let begun = lines[..first_end].iter().filter(|line| line.contains("overwriting with random bytes")).count();
    ensure!(begun >= 4, "only {begun} disks were begun before the first one was done");
    Ok(())
}

/// Of all disks together, and of each: a slow one goes on alone, at its speed, with the time that it still needs.
fn progress_was_shown(progress: &[Progress], disks: &[Vec<Value>], slow: &str) -> Result<()> {
    let total = ALL_BYTES * 2;
    let shown = |seen: &Progress| {
        seen.phase.starts_with("erase /dev/")
            && (1..total).contains(&seen.done_bytes)
            && seen.total_bytes == Some(total)
    };
    ensure!(progress.iter().any(shown), "no progress was shown: {progress:?}");
    ensure!(
        progress.windows(2).all(|pair| pair[0].done_bytes <= pair[1].done_bytes),
        "progress goes back: {progress:?}"
    );
    let alone = |disks: &&Vec<Value>| {
        let done = disks.iter().filter(|disk| disk["state"] == "done").count();
        let of_slow = disks.iter().find(|disk| disk["name"] == slow);
        of_slow.is_some_and(|disk| {
            let at_work = disk["state"] == "overwrite" || disk["state"] == "zeroes";
            let part = disk["done_bytes"].as_u64().is_some_and(|bytes| (1..2 * SLOW_SIZE).contains(&bytes));
            let slowly = disk["rate"].as_u64().is_some_and(|rate| (MIB / 4..2 * MIB).contains(&rate));
            done >= 6 && at_work && part && slowly && disk["eta"].as_u64().is_some()
        })
    };
    ensure!(disks.iter().any(|disks| alone(&disks)), "{slow} was never seen to go on alone: {:?}", disks.last());
    Ok(())
}

/// No beat later than the conductor waits for.
fn beats_came_in_time(machine: &Machine, first: usize) -> Result<()> {
    let beats = machine.bench.conductor.heartbeats();
    let times: Vec<Duration> = beats.iter().skip(first.saturating_sub(1)).map(|beat| beat.since_start).collect();
    let longest = times.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap_or_default();
    ensure!(times.len() >= 3 && longest < Duration::from_secs(PATIENCE), "{longest:?} between beats at {times:?}");
    Ok(())
}

/// Each disk with its verdict, in the logs.
fn certificate_tells(bundle: &Bundle, names: &BTreeMap<String, String>) -> Result<()> {
    let document: Value =
        serde_json::from_str(&bundle.text("var-log/erase-certificate-1.json")).context("certificate")?;
    let media = document["media"].as_array().context("no media")?;
    ensure!(media.len() == DEVICES, "{document}");
    for (serial, result, sanitization) in [
        ("SATA", "sanitized", json!("clear")),
        (SLOW, "sanitized", json!("clear")),
        ("NVME-4K", "sanitized", json!("purge")),
        (SPACES[0], "sanitized", json!("purge")),
        (STUCK, "failed", Value::Null),
        (READ_ONLY, "failed", Value::Null),
        (BROKEN, "failed", Value::Null),
    ] {
        let medium = media.iter().find(|medium| medium["device"] == names[serial]).context(serial)?;
        ensure!(medium["result"] == result && medium["sanitization"] == sanitization, "{serial}: {medium}");
        let verified = medium["verification"] == "samples read back";
        ensure!(verified == (result == "sanitized"), "{serial}: {medium}");
    }
    Ok(())
}

/// `agent_erase_skip_read_only` and the skip list make the same machine clean; the answer tells what became of each disk. QEMU
/// answers nothing but errors for a namespace whose format has failed.
pub(super) fn exceptions_are_obeyed(machine: &Machine, names: &BTreeMap<String, String>) -> Result<()> {
    machine.prepare(&[("agent_erase_skip_read_only", json!(true)), ("agent_erase_devices_iterations", json!(0))])?;
    machine.skip(&[json!({"serial": BROKEN}), json!({"serial": SLOW}), json!({"name": names[STUCK]})])?;
    let refilled = ["VIRTIO-512", "NVME-4K", "SATA", "SCSI-4K", SPACES[0], SPACES[2]];
    for serial in refilled {
        kit::refill(&machine.files[serial], 50, OLD_BYTES)?;
    }
    let untouched = [BROKEN, READ_ONLY].map(|serial| kit::digest(&machine.files[serial]).unwrap());
    let report = machine.clean(&["erase_devices"]).0.context("erasing with exceptions")?;
    let result = &report.steps[0].result;
    ensure!(result[&names[READ_ONLY]] == json!({"skipped": "read-only"}), "{result}");
    for serial in [BROKEN, SLOW, STUCK] {
        ensure!(result.get(&names[serial]).is_none(), "{serial} of the skip list was worked on: {result}");
    }
    for serial in DISKS.iter().map(|(serial, ..)| *serial).chain([SHAKY, MEMBER, SPACES[0], SPACES[2]]) {
        let verdict = &result[&names[serial]];
        let formatted = verdict["method"].as_str().is_some_and(|method| method.starts_with("nvme-format-"));
        ensure!(formatted == serial.starts_with('N'), "{serial}: {verdict}");
        ensure!(formatted || verdict["zeroed"] == true, "{serial}: {verdict}");
        ensure!(verdict["asked"] == verdict["method"], "{serial}: {verdict}");
        ensure!(verdict["bytes"] == machine.files[serial].len_bytes()?, "{serial}: {verdict}");
        ensure!(verdict["verified"] == true && verdict["samples_checked"].as_u64() > Some(2), "{serial}: {verdict}");
    }
    for serial in refilled.into_iter().chain([HELD]) {
        machine.files[serial].check_zero(0, machine.files[serial].len_bytes()?).with_context(|| serial.to_owned())?;
    }
    let now = [BROKEN, READ_ONLY].map(|serial| kit::digest(&machine.files[serial]).unwrap());
    ensure!(now == untouched, "a disk that must be left alone has changed");
    Ok(())
}
