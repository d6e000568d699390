//! A machine on the bench: booted with our image, known to a conductor.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use ferric_qemu::conductor::{AgentClient, Conductor, ConductorConfig, Heartbeat, Node, ProvisionState, Settings};
use ferric_qemu::{Boot, Console, Image, ImageServer, Nic, Vm, VmBuilder, artifacts};
use tempfile::TempDir;

use crate::kernel::unpacked;
use crate::overlay;

/// Address of the first NIC.
pub const MAC: &str = "52:54:00:fe:00:01";
/// Where the agent listens, as QEMU's user network hands out addresses.
pub const AGENT_ADDRESS: &str = "10.0.2.15:9999";
/// The host as the guest sees it.
pub const HOST: &str = "10.0.2.2";

/// Path and content of files.
pub type Files = Vec<(String, Vec<u8>)>;

/// What to put on the bench.
#[derive(Debug)]
pub struct Plan {
    /// Name of the test, also of its log folder.
    pub name: String,
    /// The image to boot: `virt`, or `faulty` for the agent with commands that fail on order.
    pub image: String,
    /// `console=` parameters.
    pub console: String,
    /// More kernel parameters; `{conductor}` stands for the conductor's URL.
    pub cmdline: String,
    /// State of the node when the machine boots.
    pub state: ProvisionState,
    /// Whether `ipa-api-url` is on the kernel command line.
    pub api_url: bool,
    /// Boot through iPXE instead of directly.
    pub network_boot: bool,
    /// Let a directly booted kernel unpack itself, as it does on a real machine; slow under emulation.
    pub packed_kernel: bool,
    /// The conductor serves HTTPS, with a certificate of its own CA.
    pub tls: bool,
    /// Further files of the ramdisk, path and content, in an archive behind the image's own.
    pub files: fn(&Conductor) -> Files,
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
            image: "virt".to_owned(),
            console: "console=ttyS0".to_owned(),
            cmdline: String::new(),
            state: ProvisionState::CleanWait,
            api_url: true,
            network_boot: false,
            packed_kernel: false,
            tls: false,
            files: |_| Vec::new(),
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
            tls_names: self.tls.then(|| vec![HOST.to_owned()]),
            settings: self.settings.clone(),
            ..ConductorConfig::default()
        })?;
        let mut bench = Bench { vm: None, conductor, images: ImageServer::start()?, uuid, plan: self, overlay: None };
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
    /// Folder of the initramfs with [`Plan::files`].
    overlay: Option<TempDir>,
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
        let url =
            if self.plan.api_url { format!("ipa-api-url={}", self.conductor.url_at(HOST)) } else { String::new() };
        format!(
            "{} selinux=0 nofb vga=normal ipa-debug=1 panic=-1 {url} BOOTIF={MAC} {}",
            self.plan.console,
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
        let image = self.image()?;
        let builder = Vm::builder(&self.plan.name).memory_mib(128).cpus(1).nic(Nic::user().mac(MAC));
        let builder = if self.plan.network_boot {
            builder.network_boot(&image, &self.cmdline())?
        } else {
            builder.direct_boot(&image, &self.cmdline())
        };
        let mut builder = machine(builder)?;
        let description = builder.machine_mut();
        if !self.plan.packed_kernel
            && !description.firmware.is_uefi()
            && let Boot::Direct { kernel, .. } = &mut description.boot
        {
            *kernel = unpacked(kernel)?;
        }
        self.start(builder)
    }

    fn image(&mut self) -> Result<Image> {
        let image = Image::built(&self.plan.image)?;
        let files = (self.plan.files)(&self.conductor);
        if files.is_empty() {
            return Ok(image);
        }
        let dir = artifacts::temp_dir("overlay")?;
        let initramfs = dir.path().join("initramfs.img");
        overlay::append(&image.initramfs, &files, &initramfs)?;
        self.overlay = Some(dir);
        Ok(Image { initramfs, ..image })
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
            .with_context(|| format!("no heartbeat; the consoles say\n{}", self.excerpts()))
    }

    /// The last lines of every console, for error messages.
    pub fn excerpts(&self) -> String {
        self.vm().consoles().iter().map(Console::excerpt).collect::<Vec<_>>().join("\n")
    }

    /// Waits for a text on the first console.
    ///
    /// # Errors
    /// It does not come; with the console's last lines.
    pub fn says(&self, text: &str, seconds: u64) -> Result<String> {
        self.vm().console().wait_for(text, self.limit(seconds))
    }

    /// How often PID 1 has told that the worker ended.
    pub fn worker_ends(&self) -> usize {
        self.vm().console().lines().iter().filter(|line| line.contains("the agent ended (")).count()
    }

    /// Time since the kernel started at which the agent said `text`.
    ///
    /// # Errors
    /// It has not.
    pub fn uptime_of(&self, text: &str) -> Result<Duration> {
        let lines = self.vm().console().lines();
        let line = lines.iter().find(|line| line.contains(text));
        line.and_then(|line| uptime(line)).with_context(|| format!("{text:?} is not on the console with its time"))
    }

    /// Waits for an accepted heartbeat with a higher request number.
    ///
    /// # Errors
    /// None comes.
    pub fn heartbeat_after(&self, sequence: u64, seconds: u64) -> Result<Heartbeat> {
        self.conductor
            .wait_for_heartbeat_after(sequence, self.limit(seconds), Heartbeat::accepted)
            .with_context(|| format!("no further heartbeat; the consoles say\n{}", self.excerpts()))
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

/// The kernel's clock at the beginning of a console line: `[    4.377702] ferric: ...`.
pub fn uptime(line: &str) -> Option<Duration> {
    let (_, rest) = line.split_once('[')?;
    let (seconds, _) = rest.split_once(']')?;
    Duration::try_from_secs_f64(seconds.trim().parse().ok()?).ok()
}
