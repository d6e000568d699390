//! A machine on the bench: booted with our image, known to a conductor.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use ferric_qemu::conductor::{AgentClient, Conductor, ConductorConfig, Heartbeat, Node, ProvisionState, Settings};
use ferric_qemu::{Image, ImageServer, Nic, Vm, VmBuilder};

/// Address of the first NIC.
pub const MAC: &str = "52:54:00:fe:00:01";
/// Where the agent listens, as QEMU's user network hands out addresses.
pub const AGENT_ADDRESS: &str = "10.0.2.15:9999";
/// The host as the guest sees it.
const HOST: &str = "10.0.2.2";

/// What to put on the bench.
#[derive(Debug)]
pub struct Plan {
    /// Name of the test, also of its log folder.
    pub name: String,
    /// More kernel parameters.
    pub cmdline: String,
    /// State of the node when the machine boots.
    pub state: ProvisionState,
    /// Whether `ipa-api-url` is on the kernel command line.
    pub api_url: bool,
    /// Boot through iPXE instead of directly.
    pub network_boot: bool,
    /// Behaviour of the conductor.
    pub settings: Settings,
    /// Changes the node before the machine boots.
    pub node: fn(&mut Node),
}

impl Plan {
    /// A machine that waits to be cleaned.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            cmdline: String::new(),
            state: ProvisionState::CleanWait,
            api_url: true,
            network_boot: false,
            settings: Settings::default(),
            node: |_| {},
        }
    }

    /// Starts the conductor, the image server and the machine; `machine` adds disks and the like.
    ///
    /// # Errors
    /// The image is not built, or something cannot be started.
    pub fn boot(self, machine: impl FnOnce(VmBuilder) -> Result<VmBuilder>) -> Result<Bench> {
        let mut node = Node::new(&self.name, &[MAC]);
        node.provision_state = self.state;
        (self.node)(&mut node);
        let uuid = node.uuid.clone();
        let conductor = Conductor::start(ConductorConfig {
            nodes: vec![node],
            settings: self.settings.clone(),
            ..ConductorConfig::default()
        })?;
        let mut bench = Bench { vm: None, conductor, images: ImageServer::start()?, uuid, plan: self };
        bench.power_on(machine)?;
        Ok(bench)
    }
}

/// A machine, the conductor that knows it, and an image server.
#[derive(Debug)]
pub struct Bench {
    vm: Option<Vm>,
    /// The stand-in conductor.
    pub conductor: Conductor,
    /// The image server.
    pub images: ImageServer,
    /// UUID of the node.
    pub uuid: String,
    plan: Plan,
}

impl Bench {
    /// The machine.
    ///
    /// # Panics
    /// While it is powered off.
    pub fn vm(&self) -> &Vm {
        self.vm.as_ref().unwrap_or_else(|| unreachable!("the machine is off"))
    }

    /// Kernel parameters as Ironic's iPXE template gives them.
    pub fn cmdline(&self) -> String {
        let url = if self.plan.api_url {
            format!("ipa-api-url={}", self.conductor.url_at(HOST))
        } else {
            String::new()
        };
        format!(
            "console=ttyS0 selinux=0 nofb vga=normal ipa-debug=1 panic=-1 {url} BOOTIF={MAC} {}",
            self.plan.cmdline.replace("{conductor}", &self.conductor.url_at(HOST))
        )
    }

    /// Boots the image; a machine that was there before is gone, its agent forgotten by the conductor.
    ///
    /// # Errors
    /// The image is not built, or QEMU refuses.
    pub fn power_on(&mut self, machine: impl FnOnce(VmBuilder) -> Result<VmBuilder>) -> Result<()> {
        if self.vm.take().is_some() {
            self.conductor.update_node(&self.uuid, Node::forget_agent)?;
        }
        let image = Image::built("virt")?;
        let builder = Vm::builder(&self.plan.name).memory_mib(128).cpus(1).nic(Nic::user().mac(MAC));
        let builder = if self.plan.network_boot {
            builder.network_boot(&image, &self.cmdline())?
        } else {
            builder.direct_boot(&image, &self.cmdline())
        };
        self.start(machine(builder)?)
    }

    /// Starts a machine that boots something else, such as its own disk.
    ///
    /// # Errors
    /// QEMU refuses.
    pub fn start(&mut self, builder: VmBuilder) -> Result<()> {
        self.vm = None;
        let vm = builder.start()?;
        if let Ok(port) = vm.agent_port() {
            self.conductor.map_agent_address(AGENT_ADDRESS, SocketAddr::from(([127, 0, 0, 1], port)));
        }
        self.vm = Some(vm);
        Ok(())
    }

    /// Cuts the power.
    pub fn power_off(&mut self) {
        self.vm = None;
    }

    /// A time limit that is right under KVM.
    pub fn limit(&self, seconds: u64) -> Duration {
        self.vm().limit(Duration::from_secs(seconds))
    }

    /// Waits for the first heartbeat.
    ///
    /// # Errors
    /// None comes; the error shows the console.
    pub fn heartbeat(&self) -> Result<Heartbeat> {
        self.conductor
            .wait_for_heartbeat(self.limit(20))
            .with_context(|| format!("no heartbeat; the console says\n{}", self.vm().console().excerpt()))
    }

    /// The agent as the conductor reaches it, after its first heartbeat.
    ///
    /// # Errors
    /// There is no heartbeat.
    pub fn agent(&self) -> Result<AgentClient> {
        self.heartbeat()?;
        Ok(self.conductor.agent(&self.uuid)?)
    }

    /// The node.
    ///
    /// # Errors
    /// The conductor has lost it.
    pub fn node(&self) -> Result<Node> {
        self.conductor.node(&self.uuid)
    }
}
