//! Everything a run of the lab needs, started together: conductor, image server, machine; and the operations on them.

use super::configdrive::ConfigDrive;
use super::display::Display;
use super::image::{self, CheckedImage, Checksum};
use super::machine::LabMachine;
use super::options::{DeployOptions, FirmwareKind, MachineOptions};
use super::refusal::InspectionRefused;
use crate::artifacts;
use crate::conductor::flow::{
    BootTarget, CleanReport, DeployReport, DeployRequest, Flow, FlowError, FlowEvent, ImageSource, Limits, Power as _,
    probe,
};
use crate::conductor::{Conductor, ConductorConfig, InspectionData, Node, ProvisionState, Settings, Wait};
use crate::image_server::{Content, ImageServer};
use crate::net::HOST_ADDRESS;
use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// From power on to the first sign of the agent, under KVM.
const BOOT_LIMIT: Duration = Duration::from_secs(60);
/// For one step.
const STEP_LIMIT: Duration = Duration::from_secs(1800);

/// What the ramdisk is booted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Inspect,
    Operate,
}

/// A run of the lab.
#[derive(Debug)]
pub struct Session {
    options: MachineOptions,
    display: Display,
    conductor: Arc<Conductor>,
    images: ImageServer,
    machine: LabMachine,
    uuid: String,
    /// The agent's logs of a failure.
    agent_logs: Option<Vec<u8>>,
}

impl Session {
    /// Starts conductor and image server; the machine is off.
    ///
    /// # Errors
    /// When something is missing: the image, QEMU, a port.
    pub fn start(options: &MachineOptions, display: &Display) -> Result<Self> {
        let macs = LabMachine::macs(options);
        let mut node = Node::new("lab-node", &macs.iter().map(String::as_str).collect::<Vec<_>>());
        node.fast_track = options.fast_track;
        node.powered_on = false;
        let uuid = node.uuid.clone();
        let tls_names = options.https.then(|| vec![HOST_ADDRESS.to_owned(), "127.0.0.1".to_owned()]);
        // Shorter than the default, so that an agent that looks itself up at once is not sent away for five seconds.
        let settings = Settings { inspection_hooks: Duration::ZERO, ..Settings::default() };
        let config = ConductorConfig { nodes: vec![node], tls_names, settings, ..ConductorConfig::default() };
        let conductor = Arc::new(Conductor::start(config)?);
        let images = ImageServer::start()?;
        let machine = LabMachine::new(options, Arc::clone(&conductor), display.clone())?;
        Ok(Session {
            options: options.clone(),
            display: display.clone(),
            conductor,
            images,
            machine,
            uuid,
            agent_logs: None,
        })
    }

    /// The machine.
    pub fn machine(&self) -> &LabMachine {
        &self.machine
    }

    /// Boots the ramdisk and waits for the agent's first heartbeat, with no operation in mind.
    ///
    /// # Errors
    /// When it does not come.
    pub fn boot(&mut self) -> Result<()> {
        self.conductor.update_node(&self.uuid, |node| node.fast_track = true)?;
        self.prepare_boot(Purpose::Operate);
        self.conductor.update_node(&self.uuid, |node| {
            node.forget_agent();
            node.powered_on = true;
        })?;
        self.machine.on(BootTarget::Ramdisk)?;
        self.flow(|flow| flow.wait_until_announced())
    }

    /// Sends the agent what it must refuse.
    ///
    /// # Errors
    /// The first answer that is not as it must be.
    pub fn probe(&self) -> Result<()> {
        let agent = self.conductor.agent(&self.uuid)?;
        let node = self.conductor.node(&self.uuid)?;
        let said = |what: &str| self.display.line(&format!("   {what}: as it must be"));
        probe::token_is_required(&agent)?;
        said("requests without the token");
        probe::unknown_commands_are_refused(&agent)?;
        said("unknown commands");
        probe::broken_bodies_are_refused(&agent, node.agent_token().unwrap_or_default())?;
        said("broken bodies");
        probe::wrong_version_is_a_mismatch(&agent, &node, self.machine.limit(Duration::from_secs(10)))?;
        said("a step for another version of the hardware managers");
        let other = self.conductor.agent(&self.uuid)?;
        let params = json!({"node": node.as_dict(true), "ports": node.ports_list()});
        probe::list_answers_during_sync_command(&agent, &other, "clean.get_clean_steps", &params)?;
        said("the command list during a synchronous command");
        let logs = agent.command("log.collect_system_logs", &json!({}), Wait::ForResult)?;
        ensure!(logs.command_result["system_logs"].is_string(), "collect_system_logs returned no logs: {logs:?}");
        said("the agent's logs");
        Ok(())
    }

    /// Inspection. With fast track the agent stays, and has announced itself afterwards.
    ///
    /// # Errors
    /// When the data does not come or is refused.
    pub fn inspect(&mut self) -> Result<InspectionData> {
        self.prepare_boot(Purpose::Inspect);
        let stays = self.options.fast_track;
        self.flow(|flow| {
            let data = flow.inspect()?;
            if stays {
                flow.wait_until_announced()?;
            }
            Ok(data)
        })
    }

    /// Cleaning: automated, or these steps.
    ///
    /// # Errors
    /// When a step fails; the agent's logs are kept for [`Self::finish`].
    pub fn clean(&mut self, steps: &[Value], priorities: &BTreeMap<String, u64>) -> Result<CleanReport> {
        self.prepare_boot(Purpose::Operate);
        self.flow(|flow| if steps.is_empty() { flow.clean(priorities) } else { flow.clean_manually(steps) })
    }

    /// Deploying. A node that was never cleaned is taken as it is.
    ///
    /// # Errors
    /// When it fails; the agent's logs are kept for [`Self::finish`].
    pub fn deploy(&mut self, request: &DeployRequest) -> Result<DeployReport> {
        self.prepare_boot(Purpose::Operate);
        self.conductor.update_node(&self.uuid, |node| {
            if node.provision_state == ProvisionState::Manageable {
                node.provision_state = ProvisionState::Available;
            }
        })?;
        self.flow(|flow| flow.deploy(request))
    }

    /// Boots the machine from its disk, unless that has been done, and waits for `text` on its console.
    ///
    /// # Errors
    /// When the text does not come, with the console's last lines.
    pub fn boot_from_disk(&mut self, text: &str, under_kvm: Duration) -> Result<String> {
        if !self.machine.is_on()? {
            self.machine.on(BootTarget::Disk)?;
        }
        let limit = self.machine.limit(under_kvm);
        let vm = self.machine.vm().context("the machine is off")?;
        vm.console().wait_for(text, limit)
    }

    /// Puts a file on the image server and says how the machine reaches it.
    ///
    /// # Errors
    /// When the path ends in no name.
    pub fn serve_image(&self, file: &Path, format: &str, checksum: &Checksum) -> Result<ImageSource> {
        let name = file.file_name().context("the image has no name")?.to_string_lossy();
        let path = format!("/{}", name.replace(|c: char| !c.is_ascii_alphanumeric() && !"._-".contains(c), "_"));
        self.images.add(&path, Content::File(file.to_owned()));
        Ok(image_source(self.images.guest_url(&path), format, checksum))
    }

    /// What `lab deploy` asks for.
    ///
    /// # Errors
    /// When the user data cannot be read, or a hint is none.
    pub fn deploy_request(&self, options: &DeployOptions, checked: &CheckedImage) -> Result<DeployRequest> {
        let (format, checksum) = (checked.format.name(), &checked.checksum);
        let image = if image::is_url(&options.image) {
            image_source(options.image.clone(), format, checksum)
        } else {
            self.serve_image(Path::new(&options.image), format, checksum)?
        };
        let configdrive = if options.no_configdrive { None } else { Some(self.configdrive(options)?) };
        Ok(DeployRequest {
            image,
            partitions: None,
            configdrive,
            uefi: options.machine.firmware == FirmwareKind::Uefi,
            root_device: root_device(&options.hints)?,
            collect_logs: true,
            boot_instance: options.boot_until.is_some(),
        })
    }

    fn configdrive(&self, options: &DeployOptions) -> Result<String> {
        let mut drive = ConfigDrive::new(&self.uuid, &options.hostname);
        if let Some(file) = &options.user_data {
            drive.user_data = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        }
        drive.encoded()
    }

    /// The node's identifier.
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// What somebody who wants to talk to the agent needs to know.
    ///
    /// # Errors
    /// When the machine is off.
    pub fn how_to_talk(&self) -> Result<String> {
        let vm = self.machine.vm().context("the machine is off")?;
        let port = vm.agent_port()?;
        let node = self.conductor.node(&self.uuid)?;
        let token = node.agent_token().unwrap_or_default();
        Ok(format!(
            "\nThe agent runs; Ctrl-C ends the lab. Its API from here (the certificate names the guest's address):\n  \
             curl -k https://127.0.0.1:{port}/v1/status\n  \
             curl -k 'https://127.0.0.1:{port}/v1/commands/?agent_token={token}'\n\
             Console: {}\n",
            vm.console().path().display()
        ))
    }

    /// Returns when the machine is off.
    pub fn wait_until_off(&mut self) {
        while self.machine.is_on().unwrap_or(false) {
            std::thread::sleep(Duration::from_millis(300));
        }
        self.display.line("the machine is off");
    }

    /// Switches the machine off and gives the folder with all logs.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn finish(&mut self) -> Result<PathBuf> {
        let logs = self.machine.stop().to_owned();
        fs::create_dir_all(&logs).with_context(|| format!("making {}", logs.display()))?;
        let requests: String = self.conductor.requests().iter().map(request_line).collect();
        fs::write(logs.join("conductor.log"), requests).context("writing conductor.log")?;
        if let Some(bundle) = &self.agent_logs {
            fs::write(logs.join("agent-logs.tar.gz"), bundle).context("writing agent-logs.tar.gz")?;
        }
        let Some(target) = &self.options.log_dir else { return Ok(logs) };
        copy_files(&logs, target)?;
        Ok(target.clone())
    }

    /// Runs part of a flow with the lab's limits and display.
    fn flow<T>(&mut self, act: impl FnOnce(&mut Flow<'_>) -> Result<T, FlowError>) -> Result<T> {
        let limits = Limits {
            boot: self.machine.limit(BOOT_LIMIT),
            step: STEP_LIMIT,
            progress: Some(Duration::from_millis(700)),
            ..Limits::default()
        };
        let display = self.display.clone();
        let mut flow = Flow::new(&self.conductor, &self.uuid, &mut self.machine)
            .limits(limits)
            .observer(move |event: &FlowEvent| display.event(event));
        match act(&mut flow) {
            Ok(value) => Ok(value),
            Err(FlowError::Failed { last_error, record, logs }) => {
                self.agent_logs = logs;
                let details = record.map(|r| format!("\ncommand error: {}", r.command_error)).unwrap_or_default();
                bail!("{last_error}{details}")
            }
            // Nothing is wrong with the machine: it only ended the waiting.
            Err(FlowError::Machine { source }) if source.is::<InspectionRefused>() => Err(source),
            Err(error) => Err(error.into()),
        }
    }

    /// Sets the kernel parameters as Ironic would for this purpose.
    fn prepare_boot(&mut self, purpose: Purpose) {
        let api = self.conductor.url_at(HOST_ADDRESS);
        let mut cmdline = "console=ttyS0 nofb vga=normal ipa-debug=1".to_owned();
        if purpose == Purpose::Inspect {
            cmdline.push_str(&format!(" ipa-inspection-callback-url={api}/v1/continue_inspection"));
        }
        if purpose == Purpose::Operate || self.options.fast_track {
            cmdline.push_str(&format!(" ipa-api-url={api}"));
        }
        if self.options.https {
            cmdline.push_str(" ipa-insecure=1");
        }
        if !self.options.append.is_empty() {
            cmdline.push(' ');
            cmdline.push_str(&self.options.append);
        }
        self.machine.set_cmdline(&cmdline);
        self.machine.expect_inspection(purpose == Purpose::Inspect);
    }
}

fn image_source(url: String, format: &str, checksum: &Checksum) -> ImageSource {
    ImageSource {
        url,
        disk_format: format.to_owned(),
        hash: Some((checksum.algorithm.to_owned(), checksum.hex.clone())),
        image_info_patch: json!({}),
    }
}

fn root_device(hints: &[String]) -> Result<Option<Value>> {
    let mut found = Map::new();
    for hint in hints {
        let (name, value) = hint.split_once('=').with_context(|| format!("hint {hint:?} is not NAME=VALUE"))?;
        let value = value.parse::<u64>().map_or_else(|_| json!(value), |number| json!(number));
        found.insert(name.to_owned(), value);
    }
    Ok((!found.is_empty()).then_some(Value::Object(found)))
}

fn request_line(request: &crate::conductor::RecordedRequest) -> String {
    let status = request.status.map_or_else(|| "-".to_owned(), |s| s.to_string());
    let body = String::from_utf8_lossy(&request.body);
    let shown: String = body.chars().take(2000).collect();
    let time = request.since_start.as_secs_f64();
    format!("{time:9.3} {} {} {status} {shown}\n", request.method, request.target)
}

fn copy_files(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("making {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("listing {}", from.display()))? {
        let path = entry?.path();
        if let (true, Some(name)) = (path.is_file(), path.file_name()) {
            fs::copy(&path, to.join(name)).with_context(|| format!("copying {}", path.display()))?;
        }
    }
    Ok(())
}

/// The folder for things that are made once.
///
/// # Errors
/// When this is not a checkout.
pub fn cache_dir() -> Result<PathBuf> {
    Ok(artifacts::build_dir()?.join("cache"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_numbers_where_they_look_like_ones() {
        let hints = ["serial=LAB0".to_owned(), "size=10".to_owned(), "size=>= 10".to_owned()];
        assert_eq!(root_device(&hints[..2]).unwrap(), Some(json!({"serial": "LAB0", "size": 10})));
        assert_eq!(root_device(&hints[2..]).unwrap(), Some(json!({"size": ">= 10"})));
        assert_eq!(root_device(&[]).unwrap(), None);
        assert!(root_device(&["serial".to_owned()]).is_err());
    }
}
