//! Whole machines, in a second each: the guest is a boot sector that prints a line and then rests or powers off.

use super::builder::firmware_files;
use super::*;
use crate::artifacts;
use crate::disk::{DiskBus, FaultyIo, IoFault, Throttle};
use crate::disk_file::DiskFile;
use crate::machine::{Bmc, Boot, Firmware};
use crate::net::NicModel;
use crate::pxe::PxeTree;

/// What the guest does after its line.
#[derive(Clone, Copy)]
enum Then {
    Rest,
    PowerOff,
    Reset,
    Echo,
}

/// A disk whose boot sector prints "guest says hello" on the first serial port.
///
/// The code, at 0x7c00: `cli` (or the BIOS would take typed text, and print late text of its own); `xor %ax,%ax;
/// mov %ax,%ds; mov $text,%si; mov $0x3f8,%dx; 1: lodsb; test %al,%al; jz 2f; out %al,%dx;
/// jmp 1b; 2:` then `hlt; jmp 2b`, or `mov $0x604,%dx; mov $0x2000,%ax; out %ax,%dx` (q35's ACPI power off) or
/// `mov $6,%al; mov $0xcf9,%dx; out %al,%dx` (chipset reset).
fn disk(dir: &Path, then: Then) -> DiskFile {
    let mut code = vec![
        0xfa, 0x31, 0xc0, 0x8e, 0xd8, 0xbe, 0x40, 0x7c, 0xba, 0xf8, 0x03, 0xac, 0x84, 0xc0, 0x74, 0x03, 0xee, 0xeb,
        0xf8,
    ];
    code.extend(match then {
        Then::Rest => &[0xf4, 0xeb, 0xfd][..],
        Then::PowerOff => &[0xba, 0x04, 0x06, 0xb8, 0x00, 0x20, 0xef, 0xf4, 0xeb, 0xfd],
        // 2: mov $0x3fd,%dx; in %dx,%al; test $1,%al; jz 2b; mov $0x3f8,%dx; in %dx,%al; out %al,%dx; jmp 2b
        Then::Echo => &[0xba, 0xfd, 0x03, 0xec, 0xa8, 0x01, 0x74, 0xf8, 0xba, 0xf8, 0x03, 0xec, 0xee, 0xeb, 0xf1],
        Then::Reset => &[0xb0, 0x06, 0xba, 0xf9, 0x0c, 0xee, 0xf4, 0xeb, 0xfd],
    });
    code.resize(0x40, 0);
    code.extend(b"\r\nguest says hello\r\n\0");
    code.resize(510, 0);
    code.extend([0x55, 0xaa]);
    let file = DiskFile::create_raw(dir.join(format!("boot{}.raw", then as u8)), 1 << 20).unwrap();
    file.write(0, &code).unwrap();
    file
}

/// A machine on the boot sector, with the accelerator that always works.
fn machine(name: &str, dir: &Path, then: Then) -> VmBuilder {
    let disk = Disk::new(DiskBus::VirtioBlk, disk(dir, then).path());
    Vm::builder(&format!("unit-{name}")).accel(Accel::tcg()).memory_mib(64).disk(disk)
}

const LIMIT: Duration = Duration::from_secs(60);

fn gone(pid: u32) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn guest_that_powers_off_is_heard_and_seen_to_end() {
    let dir = tempfile::tempdir().unwrap();
    let vm = machine("off", dir.path(), Then::PowerOff).start().unwrap();
    assert_eq!(vm.console().wait_for("guest says", LIMIT).unwrap(), "guest says hello");
    let end = vm.wait_shutdown(LIMIT).unwrap();
    assert_eq!(end, Shutdown { by_guest: true, reason: "guest-shutdown".into() });
    assert!(!vm.is_running() && gone(vm.pid()));
    let log = std::fs::read_to_string(vm.log_dir().join("console0.log")).unwrap();
    assert!(log.contains("guest says hello"), "{log}");
}

#[test]
fn reset_by_host_and_by_guest_is_an_event_and_with_no_reboot_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let builder = machine("reset", dir.path(), Then::Rest);
    let vm = builder.start().unwrap();
    vm.console().wait_for("guest says", LIMIT).unwrap();
    vm.reset().unwrap();
    vm.console().wait_for("guest says", LIMIT).unwrap();
    vm.wait_reset(LIMIT).unwrap();
    assert_eq!(vm.qmp().status().unwrap(), "running");
    let pid = vm.pid();
    drop(vm);
    assert!(gone(pid), "dropped machine still runs");

    let dir = tempfile::tempdir().unwrap();
    let vm = machine("no-reboot", dir.path(), Then::Reset).no_reboot().start().unwrap();
    assert_eq!(vm.wait_shutdown(LIMIT).unwrap().reason, "guest-reset");
}

#[test]
fn typed_text_reaches_the_guest() {
    let dir = tempfile::tempdir().unwrap();
    let vm = machine("input", dir.path(), Then::Echo).serial_input().start().unwrap();
    vm.console().wait_for("guest says", LIMIT).unwrap();
    vm.console().send("one\r\n").unwrap();
    vm.console().wait_for("one", LIMIT).unwrap();
    vm.console().send("two\r\n").unwrap();
    assert_eq!(vm.console().wait_for("two", LIMIT).unwrap(), "two");
    let other = machine("no-input", dir.path(), Then::PowerOff);
    assert!(other.start().unwrap().console().send("x").is_err());
}

#[test]
fn resting_guest_is_no_shutdown_and_its_console_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let vm = machine("rest", dir.path(), Then::Rest).start().unwrap();
    vm.console().wait_for("guest says", LIMIT).unwrap();
    let error = vm.wait_shutdown(Duration::from_millis(100)).unwrap_err().to_string();
    assert!(error.contains("still running after 0 s") && error.contains("\nguest says hello"), "{error}");
    vm.quit();
    assert_eq!(vm.wait_shutdown(LIMIT).unwrap().reason, "host-qmp-quit");
}

#[test]
fn hang_marker_ends_the_wait_for_a_shutdown() {
    let dir = tempfile::tempdir().unwrap();
    let vm = machine("hang", dir.path(), Then::Rest).hang_marker("says hello").start().unwrap();
    let error = vm.wait_shutdown(LIMIT).unwrap_err().to_string();
    assert!(error.contains("the guest hangs"), "{error}");
}

#[test]
fn machine_is_killed_when_its_life_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let vm = machine("life", dir.path(), Then::Rest).life(Duration::from_secs(2)).start().unwrap();
    let error = vm.console().wait_for("never", LIMIT).unwrap_err().to_string();
    assert!(error.contains("killed by its time limit of 2 s"), "{error}");
    assert!(vm.wait_shutdown(LIMIT).unwrap_err().to_string().contains("time limit"));
}

#[test]
fn every_machine_has_a_forwarded_port_of_its_own_and_links_can_be_pulled() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let start = |name, dir: &TempDir| {
        let builder = machine(name, dir.path(), Then::Rest).nic(Nic::unplugged()).nic(Nic::user().forward(0, 22));
        builder.nic(Nic::silent().model(NicModel::E1000e)).start().unwrap()
    };
    let (one, two) = (start("port1", &dirs[0]), start("port2", &dirs[1]));
    assert_ne!(one.agent_port().unwrap(), two.agent_port().unwrap());
    assert_ne!(one.agent_port().unwrap(), one.forwarded(22).unwrap());
    assert_eq!(one.forwarded(80), None);
    std::net::TcpStream::connect(("127.0.0.1", one.agent_port().unwrap())).unwrap();
    // It was started paused to pull the first link, and runs now.
    one.console().wait_for("guest says", LIMIT).unwrap();
    one.set_link(1, false).unwrap();
    let error = one.set_link(7, false).unwrap_err().to_string();
    assert!(error.contains("nic7"), "{error}");
}

#[test]
fn disks_are_plugged_into_and_pulled_from_a_running_machine() {
    let dir = tempfile::tempdir().unwrap();
    let vm = machine("plug", dir.path(), Then::Rest)
        .hotplug_slots(1)
        .disk(spare(dir.path(), DiskBus::VirtioScsi))
        .start()
        .unwrap();
    vm.console().wait_for("guest says", LIMIT).unwrap();
    let second =
        Disk::new(DiskBus::VirtioScsi, DiskFile::create_raw(dir.path().join("second"), 1 << 20).unwrap().path());
    vm.plug_disk(&second, 5).unwrap();
    let third = Disk::new(DiskBus::Nvme, DiskFile::create_raw(dir.path().join("third"), 1 << 20).unwrap().path());
    vm.plug_disk(&third, 6).unwrap();
    let known = vm.qmp().execute("query-named-block-nodes", json!({"flat": true})).unwrap().to_string();
    assert!(known.contains("\"disk5\"") && known.contains("\"disk6\""), "{known}");
    // SCSI disks go without the guest's consent.
    vm.unplug_disk(5, LIMIT).unwrap();
    let error = format!("{:#}", vm.plug_disk(&third, 7).unwrap_err());
    assert!(error.contains("hotplug slot"), "{error}");
}

fn spare(dir: &Path, bus: DiskBus) -> Disk {
    Disk::new(bus, DiskFile::create_raw(dir.join("spare"), 1 << 20).unwrap().path())
}

#[test]
fn qemu_accepts_every_bus_with_faults_and_limits() {
    let buses = [
        DiskBus::VirtioBlk,
        DiskBus::VirtioScsi,
        DiskBus::Ahci,
        DiskBus::Nvme,
        DiskBus::Usb,
        DiskBus::Sas,
        DiskBus::MegaRaid,
    ];
    let dir = tempfile::tempdir().unwrap();
    let mut builder = machine("buses", dir.path(), Then::PowerOff).bmc(Bmc::Simulated).serial_ports(2);
    for (place, bus) in buses.into_iter().enumerate() {
        let path = dir.path().join(format!("d{place}"));
        let disk = Disk::new(bus, DiskFile::create_raw(path, 1 << 20).unwrap().path())
            .serial("S")
            .model("M")
            .wwn(0x5000_0000_0000_0001);
        let disk = if bus == DiskBus::Ahci { disk.block_size(512, 4096) } else { disk.block_size(4096, 4096) };
        let fault = IoFault { io: FaultyIo::WriteZeroes, sector: None, errno: 5, once: true };
        builder = builder.disk(disk.throttle(Throttle { iops: Some(100), ..Throttle::default() }).fault(fault));
    }
    let qcow2 = DiskFile::create_qcow2(dir.path().join("q"), 1 << 20).unwrap();
    builder = builder
        .disk(Disk::new(DiskBus::VirtioBlk, qcow2.path()).format(qcow2.format()).read_only().no_discard().durable());
    builder = builder.disk(Disk::new(DiskBus::Cdrom, qcow2.path()).format(qcow2.format()));
    let vm = builder.uuid("11111111-2222-3333-4444-555555555555").smbios(1, "product", "a, b").start().unwrap();
    vm.wait_shutdown(LIMIT).unwrap();
    assert_eq!(vm.consoles().len(), 2);
}

#[test]
fn bios_runs_the_network_script_and_a_failed_one_leads_to_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let tree = Arc::new(PxeTree::with_script("#!ipxe\necho script on ${mac}\nexit 1\n").unwrap());
    let builder = machine("pxe-bios", dir.path(), Then::PowerOff).nic(Nic::unplugged()).nic(Nic::user());
    let vm = builder.boot(Boot::Network(tree)).start().unwrap();
    assert_eq!(vm.console().wait_for("script on", LIMIT).unwrap(), "script on 52:54:00:fe:00:01");
    vm.console().wait_for("guest says", LIMIT).unwrap();
    vm.wait_shutdown(LIMIT).unwrap();
}

#[test]
fn uefi_runs_the_network_script() {
    let tree = Arc::new(PxeTree::with_script("#!ipxe\necho script on ${mac}\nexit 1\n").unwrap());
    let builder = Vm::builder("unit-pxe-uefi").accel(Accel::tcg()).memory_mib(128).firmware(Firmware::uefi());
    let vm = builder.nic(Nic::user().model(NicModel::E1000e)).boot(Boot::Network(tree)).start().unwrap();
    assert_eq!(vm.console().wait_for("script on", LIMIT).unwrap(), "script on 52:54:00:fe:00:00");
}

#[test]
fn refusal_of_qemu_is_told_in_its_words() {
    let dir = tempfile::tempdir().unwrap();
    let error =
        format!("{:#}", machine("refused", dir.path(), Then::Rest).arg(&["-no-such-option"]).start().unwrap_err());
    assert!(error.contains("no-such-option") && error.contains("unit-refused"), "{error}");
}

#[test]
fn logs_are_fresh_unless_they_shall_be_continued() {
    let dir = tempfile::tempdir().unwrap();
    let builder = machine("logs", dir.path(), Then::PowerOff);
    let run = |builder: &VmBuilder| {
        let vm = builder.start().unwrap();
        vm.wait_shutdown(LIMIT).unwrap();
        assert_eq!(vm.console().text().matches("guest says").count(), 1, "this run only");
        std::fs::read_to_string(vm.console().path()).unwrap().matches("guest says").count()
    };
    assert_eq!(run(&builder), 1);
    assert_eq!(run(&builder), 1);
    assert_eq!(run(&builder.clone().append_logs()), 2);
}

#[test]
fn variable_store_is_made_once_and_kept() {
    let pristine = artifacts::ovmf().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vars.fd");
    let firmware = Firmware::Uefi { vars: Some(path.clone()) };
    assert_eq!(firmware_files(&firmware, dir.path()).unwrap().unwrap().vars, path);
    assert_eq!(path.metadata().unwrap().len(), pristine.vars.metadata().unwrap().len());
    std::fs::write(&path, "boot entries").unwrap();
    firmware_files(&firmware, dir.path()).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "boot entries");
    assert_eq!(firmware_files(&Firmware::Bios, dir.path()).unwrap(), None);
}
