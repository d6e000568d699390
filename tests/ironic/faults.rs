//! Trouble between Ironic and the agents.

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, anyhow, ensure};
use ferric_qemu::{Content, Fault};
use serde_json::{Value, json};

use crate::api::Node;
use crate::bench::{Bench, LIMIT, Order};
use crate::harness::{Case, Needs};
use crate::inside::Lab;
use crate::life;

/// The cases.
pub(crate) const CASES: &[Case] = &[
    Case {
        name: "uefi::machine_that_lost_power_while_written_to_does_not_boot_and_is_deployed_again",
        needs: Needs::Uefi,
        run: power_cycle,
    },
    // The restart would fail whatever else Ironic is doing.
    Case {
        name: "both::restarted_conductor_and_refused_heartbeats_do_not_stop_a_deployment",
        needs: Needs::Everything,
        run: restarted_conductor,
    },
];

/// Bytes a second of a download that shall last.
const SLOW: u64 = 6 << 20;
/// How many calls of each agent are refused before Ironic's API is open again,
const REFUSALS: usize = 3;
/// and for how long at least.
const SHUT: Duration = Duration::from_secs(60);

/// Runs something on both benches at the same time.
fn on_both(lab: &Lab, work: impl Fn(&Bench) -> Result<()> + Sync) -> Result<()> {
    thread::scope(|scope| {
        let handles = lab.benches().each_ref().map(|bench| scope.spawn(|| work(bench)));
        for (handle, bench) in handles.into_iter().zip(lab.benches()) {
            let outcome = handle.join().unwrap_or_else(|_panic| Err(anyhow!("it panicked")));
            outcome.with_context(|| format!("on {}", bench.server.place.name))?;
        }
        Ok(())
    })
}

fn slow_order<'a>(lab: &'a Lab, bench: &'a Bench, path: &'a str) -> Order<'a> {
    lab.files.add(path, Content::File(lab.images.raw.path.clone()));
    lab.files.fault(path, Fault::Throttle(SLOW), None);
    // On the machine with two disks, the one without old data.
    let hints = if bench.server.place.name == "uefi" { json!({"serial": "ROOT-2"}) } else { Value::Null };
    Order { path, hints, ..Order::raw(lab, "node-f.example.org") }
}

/// Waits until the agent downloads the image.
fn downloading(lab: &Lab, node: &Node, path: &str) -> Result<()> {
    let end = Instant::now() + LIMIT;
    while !lab.files.requests_for(path).iter().any(|request| request.method == "GET" && request.sent_bytes > 32 << 20) {
        let state = node.state()?;
        ensure!(!state.contains("failed") && Instant::now() < end, "no download of {path} in state {state:?}");
        thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

fn restarted_conductor(lab: &Lab) -> Result<()> {
    let paths = ["/restart-bios.raw", "/restart-uefi.raw"];
    let path = |bench: &Bench| paths[usize::from(bench.server.place.name == "uefi")];
    on_both(lab, |bench| {
        let node = bench.available()?;
        bench.deploy("active", &slow_order(lab, bench, path(bench)))?;
        downloading(lab, &node, path(bench))
    })?;
    let starts = lab.benches().each_ref().map(|bench| bench.server.starts());
    let (began, shut) = (SystemTime::now(), Instant::now());
    lab.gate.shut(true);
    lab.ironic.restart()?;
    // The agents have something to say as soon as the image is written.
    let refused = on_both(lab, |bench| {
        let end = Instant::now() + LIMIT;
        let from = bench.server.place.address.into();
        let refused = || lab.gate.calls(from, began).iter().filter(|call| call.status == 503).count();
        while refused() < REFUSALS {
            ensure!(Instant::now() < end, "the agent said something {} times only", refused());
            thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    });
    thread::sleep(SHUT.saturating_sub(shut.elapsed()));
    lab.gate.shut(false);
    refused?;
    on_both(lab, |bench| {
        let shown = bench.node()?.wait("active", LIMIT)?;
        ensure!(shown["last_error"].is_null(), "{}", shown["last_error"]);
        bench.runs("node-f.example.org")
    })?;
    let now = lab.benches().each_ref().map(|bench| bench.server.starts());
    // One more start each: that of the deployed system.
    ensure!(now == starts.map(|count| count + 1), "starts {starts:?}, then {now:?}");
    Ok(())
}

fn power_cycle(lab: &Lab) -> Result<()> {
    let bench = lab.uefi();
    let node = bench.available()?;
    let path = "/cycle.raw";
    bench.deploy("active", &slow_order(lab, bench, path))?;
    downloading(lab, &node, path)?;
    bench.server.pull_plug();
    lab.files.clear_faults(path);
    let disk = bench.disk("ROOT-2")?;
    disk.check_zero(0, life::TABLE_BYTES).context("a half-written disk must have neither boot record nor table")?;
    // The operator gives up on it and deploys anew.
    node.order("deleted", &json!({}))?;
    node.wait("available", LIMIT)?;
    let began = SystemTime::now();
    bench.deploy(
        "active",
        &Order { path, hints: json!({"serial": "ROOT-2"}), ..Order::raw(lab, "node-c.example.org") },
    )?;
    node.wait("active", LIMIT)?;
    bench.runs("node-c.example.org")?;
    ensure!(bench.ramdisk_journal(lab, began).is_ok(), "no logs of the second deployment");
    Ok(())
}
