//! UEFI and NVMe: root device hints among two disks, qcow2, boot entries.

use std::time::SystemTime;

use anyhow::{Result, ensure};
use ferric_qemu::os_image::{PARTITION_IMAGE_LABEL, PARTITION_IMAGE_UUID};
use serde_json::json;

use crate::api::Node;
use crate::bench::{Bench, LIMIT, MIB, Order};
use crate::harness::{Case, Needs};
use crate::inside::Lab;
use crate::life::{self, BOOT};
use crate::network::REDFISH;

const fn case(name: &'static str, run: fn(&Lab) -> Result<()>) -> Case {
    Case { name, needs: Needs::Uefi, run }
}

/// The cases.
pub(crate) const CASES: &[Case] = &[
    case("uefi::inspection_fills_in_node_and_ports", |lab| life::inspect(lab, lab.uefi(), 1, 384, "uefi")),
    case("uefi::partition_image_gets_its_partitions_and_boots_by_its_own_loader", partition_image),
    // Those after it go on with the node as it is left here.
    case("uefi::qcow2_image_goes_to_the_disk_of_the_hints_and_boots_by_its_entry", hinted),
    case("uefi::rescued_node_comes_back_as_it_was", rescue),
    case("uefi::serviced_node_comes_back_as_it_was", service),
    case("uefi::fast_track_inspects_cleans_and_deploys_on_one_boot", fast_track),
    case("uefi::node_is_deployed_by_redfish_too", by_redfish),
];

const ROOT: &str = "ROOT-2";

fn hinted(lab: &Lab) -> Result<()> {
    let bench = lab.uefi();
    let node = bench.available()?;
    let data = bench.disk("DATA-1")?;
    data.fill(11, 0, 4 * MIB)?;
    let began = SystemTime::now();
    bench.server.follow_own_order(true);
    let deployed = bench
        .deploy("active", &order(lab, "node-2.example.org"))
        .and_then(|()| node.wait("active", LIMIT))
        .and_then(|shown| bench.runs("node-2.example.org").map(|()| shown));
    bench.server.follow_own_order(false);
    let shown = deployed?;
    ensure!(shown["last_error"].is_null() && shown["power_state"] == "power on", "{shown}");
    bench.holds(ROOT, &lab.images.raw)?;
    data.check_fill(11, 0, 4 * MIB)?;
    data.check_zero(4 * MIB, data.len_bytes()? - 4 * MIB)?;
    // The image also has a loader where firmware looks without an entry; it must not be what was started.
    let console = bench.server.console()?.text();
    let by_entry = |line: &str| line.contains("starting Boot") && line.contains("\"debian\"");
    ensure!(console.lines().any(by_entry), "not started by the entry that was made:\n{}", bench.server.excerpt());
    bench.called(lab, began, &life::deployment_calls(true, true))
}

/// The image has no partition table, and no loader but the one under `/boot/efi`.
fn partition_image(lab: &Lab) -> Result<()> {
    let bench = lab.uefi();
    let node = bench.available()?;
    let began = SystemTime::now();
    let order = Order { hints: json!({"serial": ROOT}), ..Order::partition(lab, "node-5.example.org") };
    bench.server.follow_own_order(true);
    let deployed = bench
        .deploy("active", &order)
        .and_then(|()| node.wait("active", LIMIT))
        .and_then(|shown| bench.runs("node-5.example.org").map(|()| shown));
    bench.server.follow_own_order(false);
    let shown = deployed?;
    ensure!(shown["last_error"].is_null() && shown["power_state"] == "power on", "{shown}");
    let root = &shown["driver_internal_info"]["root_uuid_or_disk_id"];
    ensure!(root == PARTITION_IMAGE_UUID, "root UUID {root}");
    let disk = bench.disk(ROOT)?;
    disk.check_gpt()?;
    let console = bench.server.console()?.text();
    let by_entry = |line: &str| line.contains("starting Boot") && line.contains(PARTITION_IMAGE_LABEL);
    ensure!(console.lines().any(by_entry), "not started by the entry that was made:\n{}", bench.server.excerpt());
    ensure!(console.contains("root /dev/nvme1n1p4"), "ESP, swap and config drive come before the root partition");
    bench.called(lab, began, &life::deployment_calls(true, true))
}

fn order<'a>(lab: &'a Lab, hostname: &'a str) -> Order<'a> {
    Order { hints: json!({"serial": ROOT}), ..Order::qcow2(lab, hostname) }
}

fn rescue(lab: &Lab) -> Result<()> {
    let bench = lab.uefi();
    let node = bench.active(&order(lab, "node-2.example.org"))?;
    let began = SystemTime::now();
    node.order("rescue", &json!({"rescue_password": "correct horse"}))?;
    let shown = node.wait("rescue", LIMIT)?;
    ensure!(shown["last_error"].is_null() && shown["power_state"] == "power on", "{shown}");
    bench.called(lab, began, &rescue_calls())?;
    node.order("unrescue", &json!({}))?;
    let shown = node.wait("active", LIMIT)?;
    ensure!(shown["last_error"].is_null(), "{}", shown["last_error"]);
    bench.runs("node-2.example.org")
}

fn service(lab: &Lab) -> Result<()> {
    let bench = lab.uefi();
    let node = bench.active(&order(lab, "node-2.example.org"))?;
    let began = SystemTime::now();
    // Ferric's own steps for a node in service take arguments that Ironic does not let through, as do the reference agent's.
    bench.boots("faulty.img")?;
    let step = json!({"interface": "deploy", "step": "pause", "args": {"seconds": 2}});
    let served = node.order("service", &json!({"service_steps": [step]})).and_then(|()| {
        node.wait_until("the service's begin", LIMIT, |node| node["provision_state"] != "active")?;
        node.wait("active", LIMIT)
    });
    bench.boots("initramfs.img")?;
    let shown = served?;
    ensure!(shown["last_error"].is_null(), "{}", shown["last_error"]);
    bench.runs("node-2.example.org")?;
    bench.called(lab, began, &service_calls())
}

/// The calls of a rescue; the agent stays silent afterwards.
pub(crate) fn rescue_calls() -> String {
    format!("{BOOT} c.rescue.finalize_rescue")
}

/// The calls of a service with one step.
pub(crate) fn service_calls() -> String {
    format!(
        "{BOOT} c.service.get_service_steps c.service.execute_service_step (a.heartbeat+ c.commands )+ a.heartbeat*"
    )
}

/// The calls of inspection, cleaning and deployment on one boot. After the inspection the agent looks its node up, which
/// Ironic refuses while it works on the node, as it does heartbeats. Ironic knows of an agent that is up already that it has
/// nothing to go on with, and does not ask.
pub(crate) fn fast_track_calls() -> String {
    let cleaning = life::cleaning_calls(&["erase_devices_metadata"]).replacen(BOOT, "", 1);
    let deployment = life::deployment_calls(true, true).replacen(BOOT, "", 1);
    let deployment = deployment.replacen("get_deploy_steps c.commands", "get_deploy_steps", 1);
    format!(
        "a.inspection a.root a.lookup-again=409* a.lookup-again a.root (a.heartbeat |a.heartbeat=409 )+ {cleaning} {deployment}"
    )
}

fn fast_track(lab: &Lab) -> Result<()> {
    let bench = lab.uefi();
    let node = bench.manageable()?;
    ensure!(!bench.server.is_on(), "the server is on before it is needed");
    node.set(&[("/driver_info/fast_track", json!(true))])?;
    let outcome = fast_tracked(lab, bench, &node);
    // The node is as the other cases know it, whatever came of this one.
    node.set(&[("/driver_info/fast_track", json!(false))])?;
    outcome
}

fn fast_tracked(lab: &Lab, bench: &Bench, node: &Node) -> Result<()> {
    let starts = bench.server.starts();
    let began = SystemTime::now();
    node.order("inspect", &json!({}))?;
    node.wait_until("the inspection's begin", LIMIT, |node| node["provision_state"] != "manageable")?;
    node.wait("manageable", LIMIT)?;
    ensure!(bench.server.is_on(), "the server was switched off after the inspection");
    // Ironic believes in an agent once it has had a heartbeat of it.
    node.wait_until("a heartbeat", LIMIT, |node| node["driver_internal_info"]["agent_url"].is_string())?;
    bench.use_disk(ROOT)?;
    bench.is_cleaned(true)?;
    node.order("provide", &json!({}))?;
    node.wait("available", LIMIT)?;
    bench.is_blank(ROOT)?;
    ensure!(bench.server.is_on(), "the server was switched off after the cleaning");
    bench.deploy("active", &order(lab, "node-3.example.org"))?;
    node.wait("active", LIMIT)?;
    bench.runs("node-3.example.org")?;
    let count = bench.server.starts() - starts;
    ensure!(count == 2, "{count} starts: one for the ramdisk and one for the system are enough");
    bench.called(lab, began, &fast_track_calls())
}

fn by_redfish(lab: &Lab) -> Result<()> {
    let bench = lab.uefi();
    let node = bench.manageable()?;
    ensure!(!bench.server.is_on(), "the server is on before it is needed");
    let system = format!("/redfish/v1/Systems/{}", bench.server.place.uuid);
    let info = json!({"redfish_address": format!("http://{REDFISH}"), "redfish_system_id": system});
    node.change_driver("redfish", &info)?;
    let outcome = redfish_life(lab, bench, &node);
    // Back to the driver of the other cases, in a state that allows it.
    bench.manageable().and_then(|node| node.change_driver("ipmi", &bench.ipmi_info())).and(outcome)
}

fn redfish_life(lab: &Lab, bench: &Bench, node: &Node) -> Result<()> {
    bench.available()?;
    let began = SystemTime::now();
    bench.deploy("active", &order(lab, "node-4.example.org"))?;
    let shown = node.wait("active", LIMIT)?;
    ensure!(shown["power_interface"] == "redfish" && shown["management_interface"] == "redfish", "{shown}");
    bench.runs("node-4.example.org")?;
    bench.called(lab, began, &life::deployment_calls(true, true))
}
