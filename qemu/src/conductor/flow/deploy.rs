//! Deploying an image of a whole disk or of one partition with the direct interface (spec/conductor.md section 5).

use super::steps::{Ended, sorted_by_priority};
use super::{BootTarget, Flow, FlowError, FlowEvent, StepKind, StepReport};
use crate::conductor::client::{AgentError, CommandRecord, Wait};
use crate::conductor::node::{Node, object};
use crate::conductor::state::ProvisionState;
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

/// The steps of the conductor itself and their priorities; steps of the agent run in between.
const CONDUCTOR_STEPS: &[(&str, u64)] = &[
    ("deploy", 100),
    ("write_image", 80),
    ("prepare_instance_boot", 60),
    ("tear_down_agent", 40),
    ("switch_to_tenant_network", 30),
    ("boot_instance", 20),
];
/// `[agent]command_wait_attempts`.
const BOOT_LOADER_POLLS: u32 = 100;

/// Where an image is and how to check it.
#[derive(Debug, Clone)]
pub struct ImageSource {
    /// URL the agent downloads.
    pub url: String,
    /// `raw`, `qcow2`.
    pub disk_format: String,
    /// `sha256`, `sha512`; `None` leaves `os_hash_algo` and `os_hash_value` out.
    pub hash: Option<(String, String)>,
    /// Members put into `image_info` last, null to remove one: for tests of odd requests.
    pub image_info_patch: Value,
}

/// Partitions around an image of one file system, in MiB.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Partitions {
    /// Root partition; the image goes there.
    pub root_mb: u64,
    /// Swap space, or 0.
    pub swap_mb: u64,
    /// Scratch space, or 0.
    pub ephemeral_mb: u64,
    /// File system of the scratch space.
    pub ephemeral_format: Option<String>,
    /// Keep the scratch space that there is.
    pub preserve_ephemeral: bool,
}

impl Partitions {
    /// Members of `image_info` and `instance_info`, as the conductor takes them from the flavor and the image.
    #[must_use]
    pub fn members(&self, uefi: bool) -> Map<String, Value> {
        object(json!({
            "kernel": "aki", "ramdisk": "ari", "image_type": "partition",
            "root_gb": self.root_mb.div_ceil(1024), "root_mb": self.root_mb, "swap_mb": self.swap_mb,
            "ephemeral_mb": self.ephemeral_mb, "ephemeral_format": self.ephemeral_format,
            "preserve_ephemeral": self.preserve_ephemeral, "boot_option": "local",
            "deploy_boot_mode": if uefi { "uefi" } else { "bios" },
        }))
    }
}

/// What to deploy.
#[derive(Debug, Clone)]
pub struct DeployRequest {
    /// The image.
    pub image: ImageSource,
    /// What is around an image of one file system; `None` for an image of a whole disk.
    pub partitions: Option<Partitions>,
    /// Configdrive as Ironic sends it: base64 of gzip, or a URL.
    pub configdrive: Option<String>,
    /// Whether the machine boots with UEFI.
    pub uefi: bool,
    /// `instance_info.root_device`.
    pub root_device: Option<Value>,
    /// `[agent]deploy_logs_collect=always`: logs are collected before the agent goes.
    pub collect_logs: bool,
    /// Boot the node from its disk at the end; else it stays off.
    pub boot_instance: bool,
}

/// What a deploy did.
#[derive(Debug, Clone, Default)]
pub struct DeployReport {
    /// All steps the agent offered.
    pub offered: Vec<Value>,
    /// The agent's steps that ran, in order; `write_image` among them.
    pub steps: Vec<StepReport>,
    /// The answer of `standby.get_partition_uuids`.
    pub partition_uuids: Value,
    /// The record of `image.install_bootloader`, with UEFI or a partition image.
    pub boot_loader: Option<CommandRecord>,
    /// The agent's logs, when asked for.
    pub logs: Option<Vec<u8>>,
    /// Whether the agent switched the machine off itself in time.
    pub powered_off_by_agent: bool,
}

impl Flow<'_> {
    /// Deploys an available node and leaves it active.
    pub fn deploy(&mut self, request: &DeployRequest) -> Result<DeployReport, FlowError> {
        self.go(ProvisionState::Deploying)?;
        self.update(|node| prepare_node(node, request))?;
        let mut report = DeployReport::default();
        let result = self.deploy_steps(request, &mut report);
        self.failing_as(ProvisionState::DeployFail, result)?;
        self.update(|node| {
            node.deploy_step = json!({});
            for key in ["deploy_steps", "deploy_step_index", "agent_cached_deploy_steps", "steps_validated"] {
                node.driver_internal_info.remove(key);
            }
            node.target_provision_state = None;
        })?;
        self.go(ProvisionState::Active)?;
        Ok(report)
    }

    fn deploy_steps(&mut self, request: &DeployRequest, report: &mut DeployReport) -> Result<(), FlowError> {
        self.set_conductor_step("deploy")?;
        if !self.can_fast_track()? {
            self.go(ProvisionState::DeployWait)?;
            self.power_cycle(BootTarget::Ramdisk)?;
            self.first_heartbeat("booting to deploy")?;
            report.offered = self.refresh_steps(StepKind::Deploy)?;
            self.check_fresh()?;
            self.go(ProvisionState::Deploying)?;
        } else {
            report.offered = self.refresh_steps(StepKind::Deploy)?;
        }
        self.update(|node| node.set_internal("steps_validated", true))?;
        for (name, in_band) in plan(&report.offered) {
            match (name.as_str(), in_band) {
                (_, Some(step)) => self.in_band(&step, report)?,
                ("write_image", None) => {
                    self.set_conductor_step("write_image")?;
                    let step = self.write_image_step(request)?;
                    self.in_band(&step, report)?;
                }
                ("prepare_instance_boot", None) => self.prepare_instance_boot(request, report)?,
                ("tear_down_agent", None) => self.tear_down_agent(request, report)?,
                ("boot_instance", None) if request.boot_instance => {
                    self.set_conductor_step("boot_instance")?;
                    self.tell(&FlowEvent::Booting(BootTarget::Disk));
                    self.power.on(BootTarget::Disk).map_err(|source| FlowError::Machine { source })?;
                    self.update(|node| node.powered_on = true)?;
                }
                _ => {} // `deploy` is done; there is no tenant network to switch to
            }
        }
        Ok(())
    }

    /// After the first heartbeat Ironic reads the list, and goes on only when it holds nothing but `get_deploy_steps`.
    fn check_fresh(&mut self) -> Result<(), FlowError> {
        let doing = "reading the commands of a freshly booted agent";
        let records =
            self.agent()?.commands().map_err(|source| FlowError::Agent { doing: doing.to_owned(), source })?;
        match records.iter().find(|record| record.command_name != "get_deploy_steps") {
            None => Ok(()),
            Some(record) => {
                let what = format!("a freshly booted agent has run {} already", record.command_name);
                Err(FlowError::BadAnswer { what })
            }
        }
    }

    fn in_band(&mut self, step: &Value, report: &mut DeployReport) -> Result<(), FlowError> {
        match self.run_step(StepKind::Deploy, step)? {
            Ended::Well(ended) => {
                report.steps.push(ended);
                Ok(())
            }
            // Ironic restarts only cleaning after a mismatch; a deploy cannot go on.
            Ended::VersionMismatch => {
                let what = "the agent's hardware managers changed their version during the deploy".to_owned();
                Err(FlowError::BadAnswer { what })
            }
        }
    }

    fn set_conductor_step(&mut self, name: &str) -> Result<(), FlowError> {
        let place = CONDUCTOR_STEPS.iter().position(|(known, _)| *known == name);
        self.update(|node| {
            node.deploy_step = place.map_or(json!({}), |place| conductor_step(CONDUCTOR_STEPS[place]));
            node.set_internal("deploy_step_index", place);
        })
    }

    fn write_image_step(&self, request: &DeployRequest) -> Result<Value, FlowError> {
        let node = self.node()?;
        let image = &request.image;
        let mut info = object(json!({
            "id": image.url.rsplit('/').next().unwrap_or_default(),
            "urls": [image.url],
            "disk_format": image.disk_format,
            "container_format": null,
            "stream_raw_images": true,
        }));
        if let Some((algorithm, value)) = &image.hash {
            info.insert("os_hash_algo".to_owned(), json!(algorithm));
            info.insert("os_hash_value".to_owned(), json!(value));
        }
        info.insert("node_uuid".to_owned(), json!(node.uuid));
        info.extend(request.partitions.iter().flat_map(|partitions| partitions.members(request.uefi)));
        if let Some(drive) = &request.configdrive {
            info.insert("configdrive".to_owned(), json!(drive));
        }
        let mut info = Value::Object(info);
        crate::conductor::fault::merge_patch(&mut info, &image.image_info_patch);
        Ok(json!({
            "interface": "deploy", "step": "write_image",
            "args": {"image_info": info, "configdrive": request.configdrive},
        }))
    }

    fn prepare_instance_boot(&mut self, request: &DeployRequest, report: &mut DeployReport) -> Result<(), FlowError> {
        self.set_conductor_step("prepare_instance_boot")?;
        let uuids = self.command("standby.get_partition_uuids", &json!({}), Wait::ForResult)?.command_result;
        let root = uuids["root uuid"].clone();
        let esp = uuids["efi system partition uuid"].clone();
        report.partition_uuids = uuids;
        if root.is_string() {
            self.update(|node| node.set_internal("root_uuid_or_disk_id", root.clone()))?;
        }
        if !request.uefi && request.partitions.is_none() {
            return Ok(());
        }
        // Of a whole disk's image the conductor knows no ESP.
        let esp = if request.partitions.is_some() && request.uefi { esp } else { Value::Null };
        let mode = if request.uefi { "uefi" } else { "bios" };
        let record = self.install_boot_loader(&json!({
            "root_uuid": root, "efi_system_part_uuid": esp, "prep_boot_part_uuid": null, "target_boot_mode": mode,
        }))?;
        if record.command_status == "FAILED" {
            let text = format!(
                "Failed to install a bootloader when deploying node {}. Error: {}",
                self.uuid,
                record.error_text()
            );
            return Err(self.fail(ProvisionState::DeployFail, text, Some(record)));
        }
        report.boot_loader = Some(record);
        Ok(())
    }

    fn install_boot_loader(&mut self, params: &Value) -> Result<CommandRecord, FlowError> {
        let command = "image.install_bootloader";
        let began = Instant::now();
        self.tell(&FlowEvent::StepStarted { step: "install_bootloader".to_owned() });
        let mut params = params.clone();
        let interval = self.limits.boot_loader_poll;
        let limit = interval * BOOT_LOADER_POLLS;
        let agent = self.agent()?;
        let record = match agent.command_polled(command, &params, interval, limit) {
            Err(AgentError::Api { .. }) => {
                // An agent too old to know the boot mode gets the call without it.
                if let Some(members) = params.as_object_mut() {
                    members.remove("target_boot_mode");
                }
                agent.command_polled(command, &params, interval, limit)
            }
            other => other,
        }
        .map_err(|source| FlowError::Agent { doing: format!("calling {command}"), source })?;
        self.tell(&FlowEvent::StepEnded { step: "install_bootloader".to_owned(), took: began.elapsed() });
        Ok(record)
    }

    fn tear_down_agent(&mut self, request: &DeployRequest, report: &mut DeployReport) -> Result<(), FlowError> {
        self.set_conductor_step("tear_down_agent")?;
        if request.collect_logs {
            report.logs = self.collect_logs();
        }
        // As Ironic: a failed soft power-off is only noted, then the power is cut.
        if let Err(error) = self.command("standby.power_off", &json!({}), Wait::No) {
            self.tell(&FlowEvent::Note(format!("soft power-off failed: {error}")));
        }
        let machine = |source| FlowError::Machine { source };
        let end = Instant::now() + self.limits.power_off;
        while self.power.is_on().map_err(machine)? && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(100));
        }
        report.powered_off_by_agent = !self.power.is_on().map_err(machine)?;
        if !report.powered_off_by_agent {
            let limit = self.limits.power_off;
            self.tell(&FlowEvent::Note(format!("the machine did not switch itself off within {limit:?}")));
        }
        self.power_off()
    }
}

fn conductor_step((name, priority): (&str, u64)) -> Value {
    json!({"step": name, "priority": priority, "abortable": true, "argsinfo": null, "interface": "deploy"})
}

/// The conductor's steps and the agent's that run by themselves, highest priority first.
fn plan(offered: &[Value]) -> Vec<(String, Option<Value>)> {
    let mut all: Vec<(u64, String, Option<Value>)> =
        CONDUCTOR_STEPS.iter().map(|(name, priority)| (*priority, (*name).to_owned(), None)).collect();
    for step in sorted_by_priority(offered) {
        let name = step["step"].as_str().unwrap_or_default().to_owned();
        all.push((step["priority"].as_u64().unwrap_or(0), name, Some(step)));
    }
    all.sort_by_key(|(priority, ..)| std::cmp::Reverse(*priority));
    all.into_iter().map(|(_, name, step)| (name, step)).collect()
}

fn prepare_node(node: &mut Node, request: &DeployRequest) {
    let image = &request.image;
    node.target_provision_state = Some(ProvisionState::Active);
    node.last_error = None;
    let mut info = Map::new();
    info.insert("image_source".to_owned(), json!(image.url));
    if let Some((algorithm, value)) = &image.hash {
        info.insert("image_os_hash_algo".to_owned(), json!(algorithm));
        info.insert("image_os_hash_value".to_owned(), json!(value));
    }
    info.insert("image_disk_format".to_owned(), json!(image.disk_format));
    info.insert("image_type".to_owned(), json!("whole-disk"));
    info.extend(request.partitions.iter().flat_map(|partitions| partitions.members(request.uefi)));
    let boot_mode = if request.uefi { "uefi" } else { "bios" };
    info.insert("capabilities".to_owned(), json!({"boot_option": "local", "boot_mode": boot_mode}));
    info.insert("image_url".to_owned(), json!(image.url));
    if let Some(hints) = &request.root_device {
        info.insert("root_device".to_owned(), hints.clone());
    }
    if let Some(drive) = &request.configdrive {
        info.insert("configdrive".to_owned(), json!(drive));
    }
    node.instance_info = info;
    node.properties.insert("capabilities".to_owned(), json!(format!("boot_mode:{boot_mode}")));
    node.set_internal("is_whole_disk_image", request.partitions.is_none());
    node.set_internal("deploy_steps", CONDUCTOR_STEPS.iter().map(|s| conductor_step(*s)).collect::<Vec<_>>());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_the_agent_run_between_those_of_the_conductor() {
        let offered = [
            json!({"step": "write_image", "interface": "deploy", "priority": 0}),
            json!({"step": "inject_files", "interface": "deploy", "priority": 55}),
        ];
        let order: Vec<_> = plan(&offered).into_iter().map(|(name, step)| (name, step.is_some())).collect();
        let expected = [
            ("deploy", false),
            ("write_image", false),
            ("prepare_instance_boot", false),
            ("inject_files", true),
            ("tear_down_agent", false),
            ("switch_to_tenant_network", false),
            ("boot_instance", false),
        ];
        assert_eq!(order, expected.map(|(name, in_band)| (name.to_owned(), in_band)));
    }
}
