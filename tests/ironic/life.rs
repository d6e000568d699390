//! The life of a server, from enrolment to the end, on BIOS and a virtio disk.

use std::time::SystemTime;

use anyhow::{Context as _, Result, ensure};
use ferric_qemu::Content;
use serde_json::{Value, json};

use crate::bench::{Bench, LIMIT, Order};
use crate::harness::{Case, Needs};
use crate::inside::Lab;
use crate::network::SWITCH;

const DISK: &str = "SYSTEM-1";

const fn case(name: &'static str, run: fn(&Lab) -> Result<()>) -> Case {
    Case { name, needs: Needs::Bios, run }
}

/// The cases.
pub(crate) const CASES: &[Case] = &[
    case("bios::inspection_fills_in_node_and_ports", inspection),
    case("bios::automated_cleaning_removes_what_was_on_the_disk", cleaning),
    case("bios::raw_image_is_deployed_and_boots_with_its_config_drive", deployment),
    case("bios::rebuild_writes_the_image_again_from_the_conductor", rebuild),
    case("bios::undeployed_node_is_cleaned", undeployment),
    case("bios::manual_cleaning_runs_the_ordered_steps", manual_cleaning),
    case("bios::failed_deployments_say_what_and_why", failures),
    case("bios::partition_image_is_refused_a_boot_loader", partition_image),
    case("bios::crash_of_the_agent_fails_the_step_and_says_why", crash),
];

/// Common to every boot of the ramdisk: version, lookup, reachability, first heartbeat.
pub(crate) const BOOT: &str = "a.root a.lookup a.root a.heartbeat ";

fn inspection(lab: &Lab) -> Result<()> {
    let bench = lab.bios();
    inspect(lab, bench, 1, 256, "bios")
}

/// Inspects a node and checks what Ironic has learnt.
pub(crate) fn inspect(lab: &Lab, bench: &Bench, cpus: u64, memory_mib: u64, boot_mode: &str) -> Result<()> {
    let node = bench.manageable()?;
    let began = SystemTime::now();
    node.order("inspect", &json!({}))?;
    node.wait_until("the inspection's begin", LIMIT, |node| node["provision_state"] != "manageable")?;
    let shown = node.wait("manageable", LIMIT)?;
    ensure!(shown["inspection_finished_at"].is_string(), "not inspected: {shown}");
    ensure!(shown["last_error"].is_null(), "{}", shown["last_error"]);
    let properties = &shown["properties"];
    // The disk of 5 GiB less one for partitions, as Ironic counts.
    for (key, expected) in
        [("cpu_arch", json!("x86_64")), ("cpus", json!(cpus)), ("memory_mb", json!(memory_mib)), ("local_gb", json!(4))]
    {
        ensure!(same(&properties[key], &expected), "{key} is {}, expected {expected}", properties[key]);
    }
    let capability = format!("boot_mode:{boot_mode}");
    ensure!(properties["capabilities"].as_str().is_some_and(|all| all.contains(&capability)), "{properties}");
    let place = bench.server.place;
    ensure!(node.ports()? == [place.mac, place.second_mac], "ports {:?}", node.ports()?);
    let data = node.inventory()?;
    let inventory = &data["inventory"];
    ensure!(inventory["bmc_address"] == place.bmc.to_string(), "BMC {}", inventory["bmc_address"]);
    ensure!(inventory["system_vendor"]["manufacturer"] == "Ferric", "vendor {}", inventory["system_vendor"]);
    ensure!(inventory["system_vendor"]["serial_number"] == place.name, "vendor {}", inventory["system_vendor"]);
    ensure!(inventory["boot"]["current_boot_mode"] == boot_mode, "boot {}", inventory["boot"]);
    ensure!(data["plugin_data"]["pci_devices"].as_array().is_some_and(|list| !list.is_empty()), "no PCI devices");
    let parsed = &data["plugin_data"]["parsed_lldp"];
    let heard = |link: &Value| {
        link["switch_chassis_id"] == SWITCH.0
            && link["switch_port_id"] == place.switch_port
            && link["switch_system_name"] == SWITCH.1
    };
    ensure!(parsed.as_object().is_some_and(|links| links.values().any(heard)), "what the switch said: {parsed}");
    let link = node.link(place.mac)?;
    let expected = json!({"switch_id": SWITCH.0, "switch_info": SWITCH.1, "port_id": place.switch_port});
    ensure!(link == expected, "the switch's port is {link}, expected {expected}");
    ensure!(!bench.server.is_on(), "the server was left on");
    bench.called(lab, began, "a.inspection")
}

/// Numbers may come as text.
fn same(found: &Value, expected: &Value) -> bool {
    found == expected || found.as_str().is_some_and(|text| text.parse::<f64>().ok() == expected.as_f64())
}

fn cleaning(lab: &Lab) -> Result<()> {
    let bench = lab.bios();
    let node = bench.manageable()?;
    bench.use_disk(DISK)?;
    bench.is_cleaned(true)?;
    let began = SystemTime::now();
    node.order("provide", &json!({}))?;
    let shown = node.wait("available", LIMIT)?;
    ensure!(shown["last_error"].is_null(), "{}", shown["last_error"]);
    bench.is_blank(DISK)?;
    ensure!(!bench.server.is_on(), "the server was left on");
    bench.called(lab, began, &cleaning_calls(&["erase_devices_metadata"]))?;
    let journal = bench.ramdisk_journal(lab, began)?;
    ensure!(journal.contains("erase_devices_metadata"), "the agent's log tells nothing of the step: {journal}");
    Ok(())
}

/// The calls of a cleaning with these steps. A heartbeat that comes while Ironic is busy with the node is only noted.
pub(crate) fn cleaning_calls(steps: &[&str]) -> String {
    let each = "c.clean.execute_clean_step (a.heartbeat+ c.commands )+ ";
    format!("{BOOT} c.clean.get_clean_steps {} c.log.collect_system_logs a.heartbeat*", each.repeat(steps.len()))
}

fn deployment(lab: &Lab) -> Result<()> {
    let bench = lab.bios();
    let node = bench.available()?;
    let began = SystemTime::now();
    bench.deploy("active", &Order::raw(lab, "node-1.example.org"))?;
    let shown = node.wait("active", LIMIT)?;
    ensure!(shown["last_error"].is_null() && shown["power_state"] == "power on", "{shown}");
    let disk_id = &shown["driver_internal_info"]["root_uuid_or_disk_id"];
    ensure!(disk_id.as_str().is_some_and(|id| !id.is_empty()), "no root UUID in {}", shown["driver_internal_info"]);
    bench.runs("node-1.example.org")?;
    bench.holds(DISK, &lab.images.raw)?;
    bench.called(lab, began, &deployment_calls(false, false))?;
    let journal = bench.ramdisk_journal(lab, began)?;
    ensure!(journal.contains("write_image"), "the agent's log tells nothing of the step: {journal}");
    Ok(())
}

/// The calls of a deployment of a whole-disk image. Without hints the agent asks whether there are any by now.
pub(crate) fn deployment_calls(uefi: bool, hinted: bool) -> String {
    let lookup = if hinted { "" } else { "a.lookup-again " };
    let boot_loader = if uefi { "c.image.install_bootloader (c.commands |a.heartbeat )+ " } else { "" };
    format!(
        "{BOOT} c.deploy.get_deploy_steps c.commands c.deploy.execute_deploy_step {lookup}\
         (a.heartbeat+ c.commands )+ c.standby.get_partition_uuids a.heartbeat* {boot_loader} c.log.collect_system_logs \
         a.heartbeat? c.standby.power_off a.heartbeat?"
    )
}

fn rebuild(lab: &Lab) -> Result<()> {
    let bench = lab.bios();
    let node = bench.active(&Order::raw(lab, "node-1.example.org"))?;
    // What the rebuild has to put right.
    bench.server.pull_plug();
    bench.use_disk(DISK)?;
    // This time the conductor fetches the image, makes it a raw one and gives that to the agent.
    let source = |source: &str| node.set(&[("/driver_info/image_download_source", json!(source))]);
    source("local")?;
    let began = SystemTime::now();
    let rebuilt = bench.deploy("rebuild", &Order::qcow2(lab, "node-1b.example.org")).and_then(|()| {
        node.wait_until("the rebuild's begin", LIMIT, |node| node["provision_state"] != "active")?;
        node.wait("active", LIMIT)
    });
    source("http")?;
    rebuilt?;
    bench.runs("node-1b.example.org")?;
    bench.holds(DISK, &lab.images.raw)?;
    let path = format!("/agent_images/{}", node.uuid);
    ensure!(!lab.files.requests_for(&path).is_empty(), "the agent did not get the image from the conductor");
    bench.called(lab, began, &deployment_calls(false, false))
}

fn undeployment(lab: &Lab) -> Result<()> {
    let bench = lab.bios();
    let node = bench.active(&Order::raw(lab, "node-1.example.org"))?;
    bench.is_cleaned(true)?;
    let began = SystemTime::now();
    node.order("deleted", &json!({}))?;
    let shown = node.wait("available", LIMIT)?;
    ensure!(shown["last_error"].is_null() && shown["instance_info"] == json!({}), "{shown}");
    bench.is_blank(DISK)?;
    ensure!(!bench.server.is_on(), "the server was left on");
    bench.called(lab, began, &cleaning_calls(&["erase_devices_metadata"]))
}

fn manual_cleaning(lab: &Lab) -> Result<()> {
    let bench = lab.bios();
    let node = bench.manageable()?;
    bench.use_disk(DISK)?;
    let began = SystemTime::now();
    let steps = ["erase_devices_metadata", "erase_devices"];
    let ordered: Vec<Value> = steps.iter().map(|step| json!({"interface": "deploy", "step": step})).collect();
    node.order("clean", &json!({"clean_steps": ordered}))?;
    node.wait_until("the cleaning's begin", LIMIT, |node| node["provision_state"] != "manageable")?;
    let shown = node.wait("manageable", LIMIT)?;
    ensure!(shown["last_error"].is_null(), "{}", shown["last_error"]);
    let disk = bench.disk(DISK)?;
    disk.check_zero(0, disk.len_bytes()?).context("after erase_devices")?;
    bench.called(lab, began, &cleaning_calls(&steps))
}

/// As with the reference agent, unless it is told to run the image's own GRUB.
fn partition_image(lab: &Lab) -> Result<()> {
    let bench = lab.bios();
    let node = bench.available()?;
    bench.deploy("active", &Order::partition(lab, "node-6.example.org"))?;
    let shown = node.wait_until("a failure", LIMIT, |node| {
        let state = &node["provision_state"];
        state == "deploy failed" || state == "active"
    })?;
    ensure!(shown["provision_state"] == "deploy failed", "deployed all the same");
    let error = shown["last_error"].as_str().context("no last_error")?;
    ensure!(error.contains("Install of legacy BIOS bootloaders disabled"), "{error:?}");
    Ok(())
}

fn crash(lab: &Lab) -> Result<()> {
    let bench = lab.bios();
    let node = bench.manageable()?;
    let began = SystemTime::now();
    bench.boots("faulty.img")?;
    let step = json!({"interface": "deploy", "step": "abort_worker"});
    let ordered = node.order("clean", &json!({"clean_steps": [step]}));
    let failed = ordered.and_then(|()| {
        node.wait_until("a failure", LIMIT, |node| {
            node["provision_state"] == "clean failed" && node["last_error"].is_string()
        })
    });
    bench.boots("initramfs.img")?;
    let (shown, on) = (failed?, bench.server.is_on());
    node.end_maintenance()?;
    let error = shown["last_error"].as_str().unwrap_or_default();
    ensure!(error.contains("abort_worker") && error.contains("SIGABRT"), "{error:?} tells neither what nor why");
    ensure!(on, "Ironic leaves a machine on that it failed to clean");
    let journal = bench.ramdisk_journal(lab, began)?;
    ensure!(journal.contains("SIGABRT"), "the agent's log tells nothing of the crash: {journal}");
    bench.called(lab, began, &crash_calls())
}

/// The calls of a cleaning in whose step the agent crashes. It comes again in the same boot, where it knows its node and
/// token, and has a record of the step that failed.
pub(crate) fn crash_calls() -> String {
    format!(
        "{BOOT} c.clean.get_clean_steps c.clean.execute_clean_step a.root a.lookup-again=409* a.lookup-again \
         (a.heartbeat+ c.commands )+ c.log.collect_system_logs a.heartbeat*"
    )
}

/// Boot record, GPT header and entries.
pub(crate) const TABLE_BYTES: u64 = 34 * 512;

fn failures(lab: &Lab) -> Result<()> {
    let mut wrong = lab.images.raw.clone();
    wrong.sha256 = wrong.sha256.chars().rev().collect();
    let good = Order::raw(lab, "node-1.example.org");
    let cases = [
        ("bad checksum", Order { image: &wrong, ..good.clone() }, vec!["checksum", wrong.sha256.as_str()]),
        ("missing image", Order { path: "/gone.raw", ..good.clone() }, vec!["/gone.raw", "404"]),
    ];
    for (case, order, words) in cases {
        let missing = case == "missing image";
        fail(lab, &order, missing, &words).with_context(|| case.to_owned())?;
    }
    Ok(())
}

fn fail(lab: &Lab, order: &Order<'_>, missing: bool, words: &[&str]) -> Result<()> {
    let bench = lab.bios();
    let node = bench.available()?;
    bench.use_disk(DISK)?;
    lab.files.add("/gone.raw", Content::File(lab.images.raw.path.clone()));
    let began = SystemTime::now();
    bench.deploy("active", order)?;
    // Ironic itself asks for the image before it accepts the order.
    node.wait("wait call-back", LIMIT)?;
    lab.files.remove("/gone.raw");
    let shown = node.wait_until("a failure", LIMIT, |node| {
        let state = &node["provision_state"];
        state == "deploy failed" || state == "active"
    })?;
    ensure!(shown["provision_state"] == "deploy failed", "deployed all the same");
    let error = shown["last_error"].as_str().context("no last_error")?;
    for word in words {
        ensure!(error.contains(word), "no {word:?} in {error:?}");
    }
    let disk = bench.disk(DISK)?;
    if missing {
        disk.check_gpt().context("nothing was to be written, so the disk should be as it was")?;
    } else {
        disk.check_zero(0, TABLE_BYTES).context("the disk may boot")?;
    }
    let journal = bench.ramdisk_journal(lab, began)?;
    ensure!(journal.contains("write_image"), "the agent's log tells nothing of the step: {journal}");
    bench.called(lab, began, &failed_deployment_calls())
}

/// The calls of a deployment without hints whose image is not written.
pub(crate) fn failed_deployment_calls() -> String {
    format!(
        "{BOOT} c.deploy.get_deploy_steps c.commands c.deploy.execute_deploy_step a.lookup-again \
         (a.heartbeat+ c.commands )+ c.log.collect_system_logs a.heartbeat*"
    )
}
