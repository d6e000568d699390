//! The servers that Ironic manages: virtual machines behind management controllers that speak IPMI.
//!
//! OpenIPMI's `ipmi_sim` is the management controller, on the LAN for Ironic and behind the KCS interface for the guest.
//! It asks `bmc.sh` about the machine and orders changes through it; what that script is called with comes here.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, bail, ensure};
use ferric_qemu::{Boot, Console, Firmware, Vm, VmBuilder, artifacts};

use crate::network::{HOST, Place};
use crate::programs::{self, Program};

/// User of the management controllers.
pub(crate) const BMC_USER: &str = "admin";
/// Their password.
pub(crate) const BMC_PASSWORD: &str = "secret";
/// Guests under emulation are slow; a server that has not said it by then is stuck.
const CONSOLE_LIMIT: Duration = Duration::from_secs(150);

/// A server. The machine is killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) place: Place,
    machine: Arc<Machine>,
    _bmc: Program,
}

/// A way to switch a server.
#[derive(Debug, Clone)]
pub(crate) struct Controls(Arc<Machine>);

impl Controls {
    pub(crate) fn place(&self) -> Place {
        self.0.place
    }

    pub(crate) fn is_on(&self) -> bool {
        self.0.is_on(&self.0.lock())
    }

    /// Switches it on or off.
    pub(crate) fn switch(&self, on: bool) -> Result<()> {
        self.0.set("power", if on { "1" } else { "0" })
    }

    /// Chooses the network or the disk for the next start.
    pub(crate) fn boot_from_network(&self, network: bool) -> Result<()> {
        self.0.set("boot", if network { "pxe" } else { "default" })
    }
}

/// The machine as the management controller holds it.
#[derive(Debug)]
struct Machine {
    builder: VmBuilder,
    state: Mutex<State>,
    place: Place,
    log: PathBuf,
}

#[derive(Debug, Default)]
struct State {
    vm: Option<Vm>,
    /// Boot device of the next start, in ipmi_sim's words.
    boot: String,
    /// Whether a start that is not from the network follows the firmware's own boot order.
    own_order: bool,
    starts: usize,
}

impl Server {
    /// A server at that place of the network, switched off. `builder` has all of the machine but what it boots.
    pub(crate) fn start(place: Place, builder: VmBuilder, dir: &Path, logs: &Path) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("binding the port of the BMC's script")?;
        let port = listener.local_addr()?.port();
        let machine = Arc::new(Machine {
            builder: builder.append_logs(),
            state: Mutex::default(),
            place,
            log: logs.join(format!("bmc-{}.log", place.name)),
        });
        let theirs = Arc::clone(&machine);
        // Detached: it ends with the program, as does ipmi_sim, its only client.
        drop(std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // A script that was killed is asked again by ipmi_sim.
                drop(theirs.answer(client));
            }
        }));
        let bmc = start_bmc(place, port, dir, logs)?;
        Ok(Self { place, machine, _bmc: bmc })
    }

    /// The machine, for another kind of management controller.
    pub(crate) fn controls(&self) -> Controls {
        Controls(Arc::clone(&self.machine))
    }

    /// Whether the power is on.
    pub(crate) fn is_on(&self) -> bool {
        self.machine.is_on(&self.machine.lock())
    }

    /// How often it has been switched on.
    pub(crate) fn starts(&self) -> usize {
        self.machine.lock().starts
    }

    /// Whether a start from disk follows the boot order in the firmware's variables, where the agent has entered what it
    /// deployed. It holds up to the next start from the network, which begins with fresh variables.
    pub(crate) fn follow_own_order(&self, own: bool) {
        self.machine.lock().own_order = own;
    }

    /// Cuts the power, past the management controller.
    pub(crate) fn pull_plug(&self) {
        self.machine.lock().vm = None;
    }

    /// The console of the present run.
    pub(crate) fn console(&self) -> Result<Console> {
        Ok(self.machine.lock().vm.as_ref().context("the server is off")?.console().clone())
    }

    /// Waits until the present run says something on its console; waits for it to be switched on, too.
    pub(crate) fn says(&self, text: &str) -> Result<String> {
        let end = Instant::now() + CONSOLE_LIMIT;
        let console = loop {
            match self.console() {
                Ok(console) => break console,
                Err(error) if Instant::now() >= end => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        };
        console.wait_for(text, end.saturating_duration_since(Instant::now()))
    }

    /// The last lines of the console, for error messages.
    pub(crate) fn excerpt(&self) -> String {
        let name = self.place.name;
        self.console().map_or_else(|_| format!("server {name} is off"), |console| console.excerpt())
    }
}

impl Machine {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_on(&self, state: &State) -> bool {
        state.vm.as_ref().is_some_and(Vm::is_running)
    }

    /// One call of the script: `chassis|lan [controller] get NAME...` or `... set NAME VALUE...`.
    fn answer(&self, client: TcpStream) -> Result<()> {
        let mut line = String::new();
        BufReader::new(&client).read_line(&mut line)?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let place = words.iter().position(|word| matches!(*word, "get" | "set")).context("neither get nor set")?;
        let names = words.get(place + 1..).unwrap_or_default();
        let mut answer = String::new();
        if words.get(place) == Some(&"get") {
            for name in names {
                if let Some(value) = self.get(name) {
                    answer.push_str(&format!("{name}:{value}\n"));
                }
            }
        } else {
            for pair in names.chunks_exact(2) {
                if let Err(error) = self.set(pair[0], pair[1]) {
                    self.note(&format!("{error:#}"));
                }
            }
        }
        self.note(&format!("{} -> {}", words.join(" "), answer.trim().replace('\n', " ")));
        (&client).write_all(answer.as_bytes())?;
        Ok(())
    }

    fn get(&self, name: &str) -> Option<String> {
        Some(match name {
            "power" => u8::from(self.is_on(&self.lock())).to_string(),
            "boot" => Some(self.lock().boot.clone()).filter(|boot| !boot.is_empty()).unwrap_or("default".into()),
            "ip_addr" => self.place.bmc.to_string(),
            "ip_addr_src" => "static".into(),
            "mac_addr" => self.place.bmc_mac.into(),
            "subnet_mask" => "255.255.255.0".into(),
            "default_gw_ip_addr" => HOST.to_string(),
            "default_gw_mac_addr" | "backup_gw_mac_addr" => "00:00:00:00:00:00".into(),
            "backup_gw_ip_addr" => "0.0.0.0".into(),
            _ => return None,
        })
    }

    fn set(&self, name: &str, value: &str) -> Result<()> {
        let mut state = self.lock();
        match (name, value) {
            ("power", "1") if self.is_on(&state) => Ok(()),
            ("power", "1") => self.switch_on(&mut state),
            ("power", _) => {
                state.vm = None;
                Ok(())
            }
            ("reset", _) => {
                state.vm = None;
                self.switch_on(&mut state)
            }
            ("shutdown", _) => state.vm.as_ref().map_or(Ok(()), Vm::press_power_button),
            ("boot", device) => {
                state.boot = device.to_owned();
                Ok(())
            }
            _ => bail!("ipmi_sim sets {name} to {value}, which is not known here"),
        }
    }

    fn switch_on(&self, state: &mut State) -> Result<()> {
        // Its folder is in use until it is gone.
        state.vm = None;
        let boot = match state.boot.as_str() {
            "pxe" => Boot::Lan,
            _ if state.own_order => Boot::Firmware,
            _ => Boot::Disk,
        };
        let mut builder = self.builder.clone().boot(boot);
        let machine = builder.machine_mut();
        if let (Boot::Lan, Firmware::Uefi { vars: Some(vars) }) = (&machine.boot, &machine.firmware) {
            // OVMF would try HTTP boot for minutes before iPXE, once it has an entry for it; a fresh one has none.
            drop(fs::remove_file(vars));
        }
        state.vm = Some(builder.start()?);
        state.starts += 1;
        Ok(())
    }

    fn note(&self, text: &str) {
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let file = fs::File::options().create(true).append(true).open(&self.log);
        // Only for people to read.
        drop(file.and_then(|mut file| writeln!(file, "{time:.3} {text}")));
    }
}

fn start_bmc(place: Place, port: u16, dir: &Path, logs: &Path) -> Result<Program> {
    let dir = dir.join(format!("bmc-{}", place.name));
    fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
    let script = programs::own_file("bmc.sh")?;
    let script = script.display();
    ensure!(!script.to_string().contains('"'), "{script} cannot be named in ipmi_sim's configuration");
    let (address, serial) = (place.bmc, place.kcs_port);
    let auths =
        ["callback", "user", "operator", "admin"].map(|role| format!("    allowed_auths_{role} none md2 md5\n"));
    let auths = auths.concat();
    let lan = format!(
        "name \"{name}\"\n\
         set_working_mc 0x20\n\
         \x20 startlan 1\n\
         \x20   addr {address} 623\n\
         \x20   priv_limit admin\n\
         {auths}\
         \x20   guid {guid}\n\
         \x20   lan_config_program \"bash '{script}' {port} lan\"\n\
         \x20 endlan\n\
         \x20 chassis_control \"bash '{script}' {port} chassis\"\n\
         \x20 serial 15 127.0.0.1 {serial} codec VM\n\
         \x20 user 1 true \"\" \"\" user 10 none md2 md5\n\
         \x20 user 2 true \"{BMC_USER}\" \"{BMC_PASSWORD}\" admin 10 none md2 md5\n",
        name = place.name,
        guid = place.uuid.replace('-', ""),
    );
    // One controller at the usual address, with an event log and nothing to measure.
    let emulated = "mc_setbmc 0x20\n\
                    mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02\n\
                    sel_enable 0x20 1000 0x0a\n\
                    mc_enable 0x20\n";
    for (name, text) in [("lan.conf", lan.as_str()), ("emulated", emulated)] {
        fs::write(dir.join(name), text).with_context(|| format!("writing {name}"))?;
    }
    Program::start(
        artifacts::program("ipmi_sim", "openipmi")?,
        &logs.join(format!("ipmi_sim-{}.log", place.name)),
        |c| {
            c.arg("-n").arg("-c").arg(dir.join("lan.conf")).arg("-f").arg(dir.join("emulated")).arg("-s").arg(&dir);
        },
    )
}
