//! From power-on to the first accepted heartbeat: firmware, consoles, settings, and how long it takes.

use std::time::Duration;

use anyhow::{Context as _, Result};
use ferric_qemu::conductor::ProvisionState;
use ferric_qemu::{Disk, DiskBus, DiskFile, Firmware, Image, Nic, Vm, artifacts};
use ferric_tests::{AGENT_ADDRESS, Bundle, MAC, Plan, TRIVIAL_INIT_SAYS, note, trivial_initramfs, uptime};

/// Said when the conductor has answered the first heartbeat with 202.
const BEATS: &str = "the conductor accepted the first heartbeat";
/// Peak memory a worker may have without a command, KiB; the budget for a deploy is twice that.
const PEAK_KIB: u64 = 16 * 1024;

#[test]
fn first_heartbeat_arrives_in_128_mib_whatever_the_settings() {
    let mut plan = Plan::new("first-heartbeat");
    plan.packed_kernel = true;
    // The kernel itself writes to one serial port only.
    plan.console = "console=tty0 console=ttyS0 console=ttyS1".to_owned();
    plan.cmdline =
        "run café ipa-frob=1 ipa_debug=1 ipa-listen-port=banana ipa-lookup-timeout=soon ipa-ntp-server=$(reboot)"
            .to_owned();
    let bench = plan.boot(|vm| Ok(vm.serial_ports(2).no_reboot())).unwrap();
    let beat = bench.heartbeat().unwrap();
    assert_eq!(beat.text("callback_url"), Some(format!("https://{AGENT_ADDRESS}").as_str()));
    assert!(beat.text("agent_verify_ca").unwrap().starts_with("-----BEGIN CERTIFICATE-----"));
    let agent = bench.agent().unwrap();
    assert!(agent.commands().unwrap().is_empty());
    for console in bench.vm().consoles() {
        console.wait_for(BEATS, bench.limit(3)).unwrap();
    }
    for (key, wanted) in [
        ("ipa-frob", "unknown option ipa-frob"),
        ("ipa_debug", "did you mean ipa-debug?"),
        ("ipa-listen-port", "ipa-listen-port=banana is not understood"),
        ("ipa-lookup-timeout", "using 600"),
        ("ipa-ntp-server", "ipa-ntp-server=$(reboot) is not understood"),
    ] {
        let lines = bench.vm().console().lines();
        assert!(lines.iter().any(|line| line.contains(key) && line.contains(wanted)), "{key}: {}", bench.excerpts());
    }
    let logs = Bundle::of(&agent).unwrap();
    assert!(logs.text("journal").contains(BEATS) && logs.text("dmesg").contains("Linux version"));
    let peak = logs.worker_peak_kib().unwrap();
    note(&format!("peak memory of the worker after its logs were collected: {peak} KiB"));
    assert!(peak <= PEAK_KIB, "the worker has used {peak} KiB of memory:\n{}", logs.text("ps"));
    assert_eq!(bench.worker_ends(), 0);
    assert!(bench.vm().is_running(), "a time server's name was run as a command");
}

#[test]
fn network_boot_by_bios_works_behind_the_second_nic_and_on_the_second_console() {
    let mut plan = Plan::new("network-boot-bios");
    plan.network_boot = true;
    plan.console = "console=ttyS1".to_owned();
    let bench = plan
        .boot(|mut vm| {
            // BOOTIF names the second; the first has a cable, but nobody gives out addresses there.
            vm.machine_mut().nics = vec![Nic::silent(), Nic::user().mac(MAC)];
            Ok(vm.memory_mib(256).serial_ports(2))
        })
        .unwrap();
    let beat = bench.heartbeat().unwrap();
    assert_eq!(beat.text("callback_url"), Some(format!("https://{AGENT_ADDRESS}").as_str()));
    let [firmware, kernel] = bench.vm().consoles() else { panic!("two serial ports") };
    kernel.wait_for(BEATS, bench.limit(3)).unwrap();
    assert!(!firmware.contains("ferric: "), "the first serial port is no console of the kernel");
}

#[test]
fn network_boot_by_uefi_inspects_and_serves_without_a_console() {
    let dir = artifacts::temp_dir("uefi").unwrap();
    let disk = DiskFile::create_raw(dir.path().join("disk.raw"), 5 << 30).unwrap();
    let mut plan = Plan::new("network-boot-uefi");
    plan.network_boot = true;
    plan.console = String::new();
    // As Ironic gives it without fast track: there is nobody to heartbeat to.
    plan.api_url = false;
    plan.state = ProvisionState::InspectWait;
    plan.cmdline = "ipa-inspection-callback-url={conductor}/v1/continue_inspection".to_owned();
    let bench = plan
        .boot(|vm| Ok(vm.memory_mib(256).firmware(Firmware::uefi()).disk(Disk::new(DiskBus::VirtioBlk, disk.path()))))
        .unwrap();
    let node = bench
        .conductor
        .wait_for_node(&bench.uuid, bench.limit(40), |node| node.provision_state == ProvisionState::Manageable)
        .with_context(|| bench.excerpts())
        .unwrap();
    let inventory = node.inspection.unwrap().inventory;
    assert_eq!(inventory["boot"]["current_boot_mode"], "uefi");
    assert_eq!(inventory["boot"]["pxe_interface"], MAC);
    assert!(!bench.vm().console().contains("ferric: "), "nobody asked for a console on the serial port");
    let status = plain_status(bench.vm().agent_port().unwrap(), bench.limit(5)).unwrap();
    assert!(status.starts_with("HTTP/1.1 200"), "{status}");
    assert!(bench.conductor.heartbeats().is_empty());
}

/// `GET /v1/status` without TLS, tried until the port is open.
fn plain_status(port: u16, limit: Duration) -> Result<String> {
    use std::io::{Read as _, Write as _};
    let end = std::time::Instant::now() + limit;
    loop {
        let mut text = String::new();
        // The forwarded port is always open; a guest that does not listen shows as a connection that ends at once.
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(limit))?;
        stream.write_all(b"GET /v1/status HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n")?;
        if stream.read_to_string(&mut text).is_ok() && !text.is_empty() {
            return Ok(text);
        }
        anyhow::ensure!(std::time::Instant::now() < end, "no answer on port {port}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// When the kernel reached the trivial init, by the wall clock from power-on and by the kernel's clock.
fn trivial_boot(initramfs: &std::path::Path) -> Result<(Duration, Duration)> {
    let image = Image { initramfs: initramfs.to_owned(), ..Image::built("virt")? };
    let vm = Vm::builder("trivial-init").memory_mib(128).nic(Nic::user().mac(MAC));
    let vm = vm.direct_boot(&image, "console=ttyS0 selinux=0 nofb vga=normal panic=-1").start()?;
    vm.console().wait_for(TRIVIAL_INIT_SAYS, vm.limit(Duration::from_secs(20)))?;
    let wall = vm.elapsed();
    let line = vm.console().lines().into_iter().find(|line| line.contains("Run /init as init process"));
    Ok((wall, line.as_deref().and_then(uptime).context("the kernel does not say when it starts /init")?))
}

/// By the kernel's clock: when the first heartbeat was accepted, user space began and the API was open.
struct AgentBoot {
    beat: Duration,
    init: Duration,
    listening: Duration,
}

fn agent_boot(name: &str, nics: &[Nic]) -> Result<AgentBoot> {
    let mut plan = Plan::new(name);
    plan.packed_kernel = true;
    plan.cmdline = "ipa-debug=0".to_owned();
    let bench = plan.boot(|mut vm| {
        vm.machine_mut().nics = nics.to_vec();
        Ok(vm)
    })?;
    bench.heartbeat()?;
    bench.says(BEATS, 5)?;
    Ok(AgentBoot {
        beat: bench.uptime_of(BEATS)?,
        init: bench.uptime_of("Run /init as init process")?,
        listening: bench.uptime_of("announcing https://")?,
    })
}

#[test]
fn agent_is_ready_soon_after_the_kernel_and_no_later_with_16_nics() {
    let dir = artifacts::temp_dir("trivial").unwrap();
    let trivial = trivial_initramfs(dir.path()).unwrap();
    let one = [Nic::user().mac(MAC)];
    let mut many: Vec<Nic> = (0..15).map(|_| Nic::unplugged()).collect();
    many.push(Nic::user().mac(MAC));
    // Each twice, the better counts: other tests run at the same time.
    let (first, second) = (trivial_boot(&trivial).unwrap(), trivial_boot(&trivial).unwrap());
    let (power_on, kernel) = (first.0.min(second.0), first.1.min(second.1));
    let (first, second) = (agent_boot("ready-1-nic", &one).unwrap(), agent_boot("ready-1-nic", &one).unwrap());
    let beat = first.beat.min(second.beat);
    let user = (first.listening - first.init).min(second.listening - second.init);
    let crowd = agent_boot("ready-16-nics", &many).unwrap();
    let crowd_user = crowd.listening - crowd.init;
    // The kernel's clock starts late: loading and unpacking the kernel belong to the time until init.
    let added = beat.saturating_sub(kernel);
    let ratio = 1.0 + added.as_secs_f64() / power_on.as_secs_f64();
    let report = format!(
        "power-on to a trivial init {power_on:.2?}, of that {kernel:.2?} by the kernel's clock; to the first heartbeat \
         {added:.2?} more, ratio {ratio:.2}; /init to listening API {user:.2?}, with 16 NICs {crowd_user:.2?}"
    );
    note(&report);
    assert!(ratio <= 1.6, "{report}");
    // One CPU looks at 15 more PCI devices, which takes time under emulation, and the host may be busier than a moment
    // ago; waiting for fifteen cables would take longer than all that.
    assert!(crowd_user <= 3 * user + Duration::from_secs(1), "{report}");
}
