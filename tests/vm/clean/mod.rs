//! Cleaning: signatures and data go from disks of every kind, and what must be left alone is left alone.

mod erase;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ferric_qemu::conductor::flow::{CleanReport, Flow, FlowError, FlowEvent, Limits, NoPower, Progress, probe};
use ferric_qemu::conductor::{AgentClient, ProvisionState, Wait};
use ferric_qemu::{Disk, DiskBus, DiskFile, FaultyIo, IoFault, Throttle, artifacts};
use ferric_tests::{Bench, Bundle, Plan};
use serde_json::{Value, json};

use crate::kit::{self, MIB};

const SIZE: u64 = 24 * MIB;
/// How much of each disk holds old data beside its signatures.
const OLD_BYTES: u64 = 8 * MIB;
/// Where the disks with bad sectors have one, in sectors of 512 bytes: far from both ends.
const BAD_SECTOR: u64 = 12 * MIB / 512;
const VMFS_MAGIC: [u8; 4] = [0x5e, 0xf1, 0xab, 0x2f];
const VMFS_PLACE: u64 = 2 * MIB;

/// Serial number, bus and sector size of the disks that are to be cleaned.
const DISKS: [(&str, DiskBus, u32); 6] = [
    ("VIRTIO-512", DiskBus::VirtioBlk, 512),
    ("VIRTIO-4K", DiskBus::VirtioBlk, 4096),
    ("NVME-512", DiskBus::Nvme, 512),
    ("NVME-4K", DiskBus::Nvme, 4096),
    ("SATA", DiskBus::Ahci, 512),
    ("SCSI-4K", DiskBus::VirtioScsi, 4096),
];
const READ_ONLY: &str = "READ-ONLY";
/// Fails once at its bad sector.
const SHAKY: &str = "SHAKY";
/// Fails always at its bad sector.
const BROKEN: &str = "BROKEN";

/// A disk with the superblock of an md array that nobody has assembled: as good as any other, for all that a tenant wrote.
const MEMBER: &str = "MEMBER";
/// Takes a MiB in a second, no more.
const SLOW: &str = "SLOW";
const SLOW_SIZE: u64 = 8 * MIB;
/// An NVMe controller with three namespaces, of which the second cannot be formatted.
const NAMESPACES: &str = "NAMESPACES";
const SPACES: [&str; 3] = ["NAMESPACE-1", "NAMESPACE-2", "NAMESPACE-3"];
const STUCK: &str = SPACES[1];

/// Devices that the agent sees.
const DEVICES: usize = DISKS.len() + 5 + SPACES.len();
/// Bytes of all of them.
const ALL_BYTES: u64 = 10 * SIZE + 4 * SLOW_SIZE;
/// The conductor's patience, in seconds.
const PATIENCE: u64 = 12;

/// Magic of md's superblock, and where version 1.2 has it.
const MD: &[u8] = &0xa92b_4efc_u32.to_le_bytes();
const MD_PLACE: u64 = MIB + 4096;

/// Signatures as a used disk has them: offset and bytes. Three partitions, with an ext file system; LVM and swap; LUKS and
/// bcache; and on the disk itself old ones beside the partition table.
fn signatures() -> Vec<(u64, &'static [u8])> {
    vec![
        (MIB + 1080, &[0x53, 0xef]),
        (9 * MIB + 512, b"LABELONE"),
        (9 * MIB + 536, b"LVM2 001"),
        (9 * MIB + 4086, b"SWAPSPACE2"),
        (17 * MIB, b"LUKS\xba\xbe"),
        (17 * MIB + 4120, &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca]),
        (0x1_0040, b"_BHRfS_M"),
        (0x2_0000, &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0]),
        (SIZE - 1024, b"Intel Raid ISM"),
    ]
}

const PARTITIONS: [(u64, u64); 3] = [(MIB, 9 * MIB), (9 * MIB, 17 * MIB), (17 * MIB, 23 * MIB)];

struct Machine {
    files: BTreeMap<&'static str, DiskFile>,
    bench: Bench,
    agent: AgentClient,
}

impl Machine {
    fn boot(dir: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        let mut disks = Vec::new();
        for (index, (serial, bus, sector)) in DISKS.into_iter().enumerate() {
            let file = kit::used_disk(dir.join(serial), u64::try_from(index)?, SIZE, OLD_BYTES)?;
            let last = if serial == "SATA" { kit::TYPE_VMFS } else { kit::TYPE_LINUX };
            kit::partition(&file, u64::from(sector), &PARTITIONS, last)?;
            for (offset, bytes) in signatures() {
                file.write(offset, bytes)?;
            }
            disks.push(Disk::new(bus, file.path()).serial(serial).block_size(sector, sector));
            files.insert(serial, file);
        }
        for serial in [READ_ONLY, SHAKY, BROKEN, MEMBER] {
            let file = kit::used_disk(dir.join(serial), 40, SIZE, OLD_BYTES)?;
            let disk = Disk::new(DiskBus::VirtioBlk, file.path()).serial(serial);
            let fault = IoFault { io: FaultyIo::Write, sector: Some(BAD_SECTOR), errno: 5, once: serial == SHAKY };
            disks.push(match serial {
                READ_ONLY => {
                    kit::partition(&file, 512, &PARTITIONS, kit::TYPE_LINUX)?;
                    disk.read_only()
                }
                MEMBER => {
                    kit::partition(&file, 512, &PARTITIONS, kit::TYPE_LINUX)?;
                    file.write(MD_PLACE, MD)?;
                    disk
                }
                _ => disk.fault(fault),
            });
            files.insert(serial, file);
        }
        files["VIRTIO-4K"].write(VMFS_PLACE, &VMFS_MAGIC)?;
        for serial in SPACES.into_iter().chain([SLOW]) {
            files.insert(serial, kit::used_disk(dir.join(serial), 60, SLOW_SIZE, SLOW_SIZE)?);
        }
        let slow = Throttle { write_bytes: Some(MIB), ..Throttle::default() };
        disks.push(Disk::new(DiskBus::VirtioBlk, files[SLOW].path()).serial(SLOW).throttle(slow));
        let mut plan = Plan::new("clean");
        plan.state = ProvisionState::Manageable;
        plan.settings.heartbeat_timeout_secs = PATIENCE;
        plan.node = |node| {
            node.fast_track = true;
            // Until disks are erased.
            drop(node.properties.insert("skip_block_devices".to_owned(), json!([{"serial": SLOW}])));
        };
        plan.cmdline = kit::SHORT.to_owned();
        // As the other image, but with a command that holds a disk.
        plan.image = "faulty".to_owned();
        let bench = plan.boot(|vm| {
            let vm = disks.into_iter().fold(vm, |vm, disk| vm.disk(disk));
            let vm = vm.arg(&["-device", &format!("nvme,id=three,serial={NAMESPACES}")]);
            Ok(SPACES.into_iter().enumerate().fold(vm, |vm, (index, serial)| {
                let fault = IoFault { io: FaultyIo::WriteZeroes, sector: None, errno: 5, once: false };
                let disk = Disk::new(DiskBus::Nvme, files[serial].path());
                let disk = if serial == STUCK { disk.fault(fault) } else { disk };
                // A number that no other disk has.
                let (place, nsid) = (90 + index, index + 1);
                let space = format!("nvme-ns,bus=three,drive={},nsid={nsid}", Disk::node_name(place));
                vm.arg(&["-blockdev", &disk.blockdev(place).to_string(), "-device", &space])
            }))
        })?;
        let agent = bench.agent()?;
        Ok(Self { files, bench, agent })
    }

    /// Sets keys of the node's `driver_internal_info` and makes it ready for another cleaning.
    fn prepare(&self, internal: &[(&str, Value)]) -> Result<()> {
        self.bench.conductor.update_node(&self.bench.uuid, |node| {
            node.provision_state = ProvisionState::Manageable;
            node.maintenance = false;
            node.reservation = None;
            internal.iter().for_each(|(key, value)| node.set_internal(key, value.clone()));
        })
    }

    /// Sets the hints of disks that are to be left alone.
    fn skip(&self, hints: &[Value]) -> Result<()> {
        self.bench.conductor.update_node(&self.bench.uuid, |node| {
            drop(node.properties.insert("skip_block_devices".to_owned(), json!(hints)));
        })
    }

    /// Names of the devices by serial number, the namespaces by what they are called here.
    fn names(&self) -> Result<BTreeMap<String, String>> {
        let mut names = kit::names(&self.agent)?;
        let is_space = |disk: &&Value| disk["serial"] == NAMESPACES;
        let disks = kit::disks(&self.agent)?;
        let mut spaces: Vec<&str> = disks.iter().filter(is_space).filter_map(|disk| disk["name"].as_str()).collect();
        spaces.sort_unstable();
        names.remove(NAMESPACES);
        names.extend(SPACES.into_iter().zip(spaces).map(|(serial, name)| (serial.to_owned(), name.to_owned())));
        Ok(names)
    }

    /// What the agent shows of each disk that it works on now.
    fn disks_now(&self) -> Vec<Value> {
        let records = self.agent.commands().unwrap_or_default();
        let progress = records.last().and_then(|record| record.extra.get("progress"));
        progress.and_then(|progress| progress["disks"].as_array().cloned()).unwrap_or_default()
    }

    /// The automated cleaning with these steps only, and the progress that was seen meanwhile.
    fn clean(&self, steps: &[&str]) -> (Result<CleanReport, FlowError>, Vec<Progress>) {
        self.clean_seen(steps, |_| {})
    }

    /// As [`Self::clean`]; `look` is called each time progress is shown.
    fn clean_seen(
        &self,
        steps: &[&str],
        mut look: impl FnMut(&Self),
    ) -> (Result<CleanReport, FlowError>, Vec<Progress>) {
        let known = ["erase_devices", "erase_devices_metadata"];
        let off = known.into_iter().filter(|step| !steps.contains(step)).map(|step| (step.to_owned(), 0)).collect();
        let mut seen = Vec::new();
        let mut power = NoPower::default();
        let limits =
            Limits { step: self.bench.limit(60), progress: Some(Duration::from_millis(300)), ..Limits::default() };
        let result = Flow::new(&self.bench.conductor, &self.bench.uuid, &mut power)
            .limits(limits)
            .observer(|event| {
                if let FlowEvent::Progress { progress, .. } = event {
                    seen.push(progress.clone());
                    look(self);
                }
            })
            .clean(&off);
        (result, seen)
    }

    /// Holds a disk as a mounted file system does; `None` lets go.
    fn hold(&self, device: Option<&str>) -> Result<()> {
        let record = self.agent.command("faulty.hold", &json!({"device": device}), Wait::ForResult)?;
        ensure!(record.command_status == "SUCCEEDED", "{record:?}");
        Ok(())
    }

    fn digests(&self) -> Result<BTreeMap<&str, String>> {
        self.files.iter().map(|(serial, file)| Ok((*serial, kit::digest(file)?))).collect()
    }

    /// Partitions that the kernel knows of, from the agent's logs.
    fn partitions(&self) -> Result<Vec<String>> {
        let text = Bundle::of(&self.agent)?.text("partitions");
        let names = text.lines().filter_map(|line| line.split_whitespace().nth(3)).map(str::to_owned);
        let is_partition = |name: &String| {
            let disk = name.trim_end_matches(|c: char| c.is_ascii_digit());
            disk != name && (!disk.starts_with("nvme") || disk.ends_with('p')) && !disk.starts_with("sr")
        };
        Ok(names.filter(is_partition).collect())
    }
}

/// The text of a failed cleaning and the class of its error.
fn failure(result: Result<CleanReport, FlowError>) -> Result<(String, String)> {
    match result {
        Err(FlowError::Failed { record: Some(record), .. }) => {
            let class = record.command_error["type"].as_str().unwrap_or_default().to_owned();
            Ok((record.error_text(), class))
        }
        Err(other) => Err(other).context("not the failure of a step"),
        Ok(report) => anyhow::bail!("cleaning did not fail: {report:?}"),
    }
}

#[test]
fn disks_of_every_kind_are_cleaned() {
    let dir = artifacts::temp_dir("clean").unwrap();
    let machine = Machine::boot(dir.path()).unwrap();
    let names = machine.names().unwrap();
    assert_eq!(names.len(), DEVICES, "{names:?}");
    stale_version_is_told(&machine).unwrap();
    protected_file_systems_stop_everything(&machine).unwrap();
    metadata_goes(&machine, &names).unwrap();
    erase::everything_goes_but_what_cannot(&machine, &names).unwrap();
    erase::exceptions_are_obeyed(&machine, &names).unwrap();
}

fn stale_version_is_told(machine: &Machine) -> Result<()> {
    let before = machine.digests()?;
    probe::wrong_version_is_a_mismatch(&machine.agent, &machine.bench.node()?, machine.bench.limit(20))?;
    ensure!(machine.digests()? == before, "a step of another version has written to a disk");
    Ok(())
}

/// A VMFS signature on one disk, then only a partition of that type on another one: no disk is touched at all.
fn protected_file_systems_stop_everything(machine: &Machine) -> Result<()> {
    let names = kit::names(&machine.agent)?;
    let both = [&names["VIRTIO-4K"], &names["SATA"]];
    for (step, protected) in [("erase_devices_metadata", &both[..]), ("erase_devices", &both[1..])] {
        let before = machine.digests()?;
        machine.prepare(&[])?;
        let (text, class) = failure(machine.clean(&[step]).0)?;
        ensure!(class == "ProtectedDeviceError", "{step}: {class}: {text}");
        let named = protected.iter().any(|name| text.contains(&format!("located on device {name}")));
        ensure!(text.contains("VMFS") && named, "{step}: no VMFS on one of {protected:?} in {text:?}");
        ensure!(machine.digests()? == before, "{step}: a disk was written to beside the protected one");
        // From here on only the partition's type says it.
        machine.files["VIRTIO-4K"].write(VMFS_PLACE, &[0; 4])?;
    }
    Ok(())
}

/// With the node's leave to wipe protected file systems every signature goes, and the kernel forgets the partitions.
fn metadata_goes(machine: &Machine, names: &BTreeMap<String, String>) -> Result<()> {
    let before = machine.partitions()?;
    ensure!(before.len() >= 3 * DISKS.len(), "partitions at the start: {before:?}");
    machine.prepare(&[("wipe_special_filesystems", json!(false))])?;
    let report = machine.clean(&["erase_devices_metadata"]).0.context("erasing metadata")?;
    ensure!(report.steps.len() == 1 && report.steps[0].result.is_null(), "{:?}", report.steps);
    for (serial, _, sector) in DISKS {
        let file = &machine.files[serial];
        // 33 sectors are what the reference agent takes; a GPT has at most as many bytes at each end.
        let ends = 34 * u64::from(sector);
        file.check_zero(0, ends)?;
        file.check_zero(SIZE - ends, ends)?;
        for (offset, bytes) in signatures() {
            ensure!(file.read(offset, bytes.len())? != bytes, "{serial}: the signature at {offset} is still there");
        }
    }
    let left = machine.partitions()?;
    let kept = names[READ_ONLY].trim_start_matches("/dev/");
    let of_kept = |partition: &String| partition.starts_with(kept);
    ensure!(left.len() == PARTITIONS.len() && left.iter().all(of_kept), "partitions left: {left:?}");
    ensure!(machine.files[MEMBER].read(MD_PLACE, MD.len())? != MD, "the superblock is still there");
    machine.files[MEMBER].check_zero(0, 34 * 512)
}
