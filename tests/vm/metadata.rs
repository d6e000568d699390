//! Erasing metadata of what the kernel has in use: an array with volumes on it, a disk of bcache, a mounted file system. All
//! of it is taken down, nothing is left, and nothing comes back after a reboot.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use ferric_qemu::conductor::Wait;
use ferric_qemu::{Disk, DiskBus, DiskFile, VmBuilder, artifacts};
use ferric_tests::{Bench, Plan, drivers};
use serde_json::{Value, json};

use crate::kit::{self, MIB};

const SIZE: u64 = 24 * MIB;
const MEMBERS: [&str; 2] = ["MEMBER-0", "MEMBER-1"];
const CACHED: &str = "CACHED";
const MOUNTED: &str = "MOUNTED";
/// Where the partition of a member begins, and the array's data in it: far enough in that nothing there is wiped for being at
/// the start of a disk or partition.
const PARTITION: u64 = MIB;
const DATA: u64 = PARTITION + 6 * MIB;
/// The first volume, and the mapping on it.
const VOLUME: u64 = DATA + MIB;
const INNER: u64 = VOLUME + 2 * MIB;
const BCACHE: [u8; 16] =
    [0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81];

/// What identifies each layer: disk, place and bytes.
fn signatures() -> Vec<(&'static str, u64, &'static [u8])> {
    let mut all: Vec<(&str, u64, &[u8])> = vec![(CACHED, 4096 + 24, &BCACHE), (MOUNTED, 1080, &[0x53, 0xef])];
    for member in MEMBERS {
        all.extend([
            (member, 512, &b"EFI PART"[..]),
            (member, PARTITION + 4096, &[0xfc, 0x4e, 0x2b, 0xa9]),
            (member, DATA + 512 + 24, b"LVM2 001"),
            (member, VOLUME, b"LUKS\xba\xbe"),
            (member, INNER, b"XFSB"),
        ]);
    }
    all
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Superblock 1.2 of a mirror (kernel `include/uapi/linux/raid/md_p.h`) that is clean.
fn md(number: u32) -> Vec<u8> {
    let mut bytes = vec![0; 256 + 2 * 2];
    let sectors = (10 * MIB / 512).to_le_bytes();
    for (at, value) in [
        (0, &0xa92b_4efc_u32.to_le_bytes()[..]),
        (4, &1_u32.to_le_bytes()),
        (16, &[5; 16]),
        (32, b"tenant:data"),
        (72, &1_u32.to_le_bytes()),
        (80, &sectors),
        (92, &2_u32.to_le_bytes()),
        (128, &((DATA - PARTITION) / 512).to_le_bytes()),
        (136, &sectors),
        (144, &8_u64.to_le_bytes()),
        (160, &number.to_le_bytes()),
        (168, &[6 + u8::try_from(number).unwrap(); 16]),
        (200, &1_u64.to_le_bytes()),
        (208, &u64::MAX.to_le_bytes()),
        (220, &2_u32.to_le_bytes()),
        (258, &1_u16.to_le_bytes()),
    ] {
        put(&mut bytes, at, value);
    }
    let words = bytes.chunks_exact(4).map(|word| u64::from(u32::from_le_bytes(word.try_into().unwrap())));
    let sum: u64 = words.sum();
    let folded = u32::try_from(((sum & 0xffff_ffff) + (sum >> 32)) & 0xffff_ffff).unwrap();
    put(&mut bytes, 216, &folded.to_le_bytes());
    bytes
}

/// Superblock of a disk that bcache uses without a cache (kernel `include/uapi/linux/bcache.h`).
fn bcache() -> Vec<u8> {
    let mut bytes = vec![0; 208];
    for (at, value) in [
        (8, &8_u64.to_le_bytes()[..]),
        (16, &1_u64.to_le_bytes()),
        (24, &BCACHE),
        (40, &[7; 16]),
        (192, &1_u16.to_le_bytes()),
    ] {
        put(&mut bytes, at, value);
    }
    let crc = bytes[8..].iter().fold(u64::MAX, |crc, byte| {
        (0..8).fold(crc ^ (u64::from(*byte) << 56), |crc, _| {
            if crc >> 63 == 1 { (crc << 1) ^ 0x42f0_e1eb_a9ea_3693 } else { crc << 1 }
        })
    });
    put(&mut bytes, 0, &(!crc).to_le_bytes());
    bytes
}

/// A physical volume whose only volume begins 1 MiB in, with the description that LVM would look at.
fn physical_volume() -> Vec<u8> {
    let text = "vg0 {\nextent_size = 2048\nlogical_volumes {\nroot {\nsegment1 {\nextent_count = 4\nstripes = [\n\"pv0\", 0\n]\n}\n}\n}\n}\n";
    let mut bytes = vec![0; 8192];
    put(&mut bytes, 512, b"LABELONE");
    put(&mut bytes, 512 + 20, &32_u32.to_le_bytes());
    put(&mut bytes, 512 + 24, b"LVM2 001");
    for (number, value) in [MIB, 0, 0, 0, 4096, MIB - 4096].iter().enumerate() {
        put(&mut bytes, 512 + 32 + 40 + number * 8, &value.to_le_bytes());
    }
    put(&mut bytes, 4096 + 4, b" LVM2 x[5A%r0N*>");
    put(&mut bytes, 4096 + 40, &512_u64.to_le_bytes());
    put(&mut bytes, 4096 + 48, &u64::try_from(text.len()).unwrap().to_le_bytes());
    put(&mut bytes, 4096 + 512, text.as_bytes());
    bytes
}

fn disks(dir: &Path) -> Result<Vec<(&'static str, DiskFile)>> {
    let mut files = Vec::new();
    for (number, serial) in (0_u32..).zip(MEMBERS) {
        let file = DiskFile::create_raw(dir.join(serial), SIZE)?;
        kit::partition(&file, 512, &[(PARTITION, SIZE - MIB)], kit::TYPE_LINUX)?;
        file.write(PARTITION + 4096, &md(number))?;
        file.write(DATA, &physical_volume())?;
        file.write(VOLUME, b"LUKS\xba\xbe")?;
        file.write(INNER, b"XFSB")?;
        files.push((serial, file));
    }
    let cached = DiskFile::create_raw(dir.join(CACHED), SIZE)?;
    cached.write(4096, &bcache())?;
    let mounted = DiskFile::create_raw(dir.join(MOUNTED), SIZE)?;
    let made = Command::new("mke2fs").args(["-q", "-F", "-t", "ext4"]).arg(mounted.path()).status()?;
    ensure!(made.success(), "mke2fs: {made}");
    files.extend([(CACHED, cached), (MOUNTED, mounted)]);
    Ok(files)
}

fn attached(vm: VmBuilder, files: &[(&'static str, DiskFile)]) -> VmBuilder {
    files.iter().fold(vm, |vm, (serial, file)| vm.disk(Disk::new(DiskBus::VirtioBlk, file.path()).serial(serial)))
}

/// Has the kernel put together what there is; errors, and the names of all block devices.
fn put_together(bench: &Bench) -> Result<(Vec<String>, Vec<String>)> {
    let agent = bench.agent()?;
    let names = kit::names(&agent)?;
    let members: Vec<String> = MEMBERS.iter().map(|serial| format!("{}1", names[*serial])).collect();
    ask(bench, &json!({"members": members, "cached": names[CACHED], "mount": names[MOUNTED]}))
}

fn ask(bench: &Bench, params: &Value) -> Result<(Vec<String>, Vec<String>)> {
    let record = bench.agent()?.command("faulty.stack", params, Wait::ForResult)?;
    ensure!(record.command_status == "SUCCEEDED", "{record:?}");
    let list = |key: &str| -> Result<Vec<String>> {
        let list = record.command_result[key].as_array().with_context(|| format!("{record:?}"))?;
        Ok(list.iter().filter_map(Value::as_str).map(str::to_owned).collect())
    };
    Ok((list("errors")?, list("block")?))
}

/// Devices that are on top of disks.
fn holders(block: &[String]) -> Vec<&str> {
    let kinds = ["md", "dm-", "bcache"];
    block.iter().map(String::as_str).filter(|name| kinds.iter().any(|kind| name.starts_with(kind))).collect()
}

#[test]
fn what_is_in_use_is_taken_down_and_does_not_come_back() {
    let dir = artifacts::temp_dir("metadata").unwrap();
    let files = disks(dir.path()).unwrap();
    let mut plan = Plan::new("metadata");
    plan.cmdline = kit::SHORT.to_owned();
    // As the other image, but with a command that puts together what is on the disks.
    plan.image = "faulty".to_owned();
    plan.files = |_| {
        let mut files = drivers(&["md_mod", "raid1", "dm_mod", "bcache"]).unwrap();
        files.push(("etc/modules-load.d/stack.conf".to_owned(), b"md_mod\nraid1\ndm_mod\nbcache\n".to_vec()));
        files
    };
    let mut bench = plan.boot(|vm| Ok(attached(vm.memory_mib(160), &files))).unwrap();
    let (errors, block) = put_together(&bench).unwrap();
    assert_eq!(errors, Vec::<String>::new());
    assert_eq!(holders(&block), ["bcache0", "dm-0", "dm-1", "md127"], "{block:?}");
    for (serial, place, bytes) in signatures() {
        let file = &files.iter().find(|(name, _)| *name == serial).unwrap().1;
        assert_eq!(file.read(place, bytes.len()).unwrap(), bytes, "{serial} at {place} before");
    }

    let node = bench.node().unwrap();
    let step = json!({
        "step": {"interface": "deploy", "step": "erase_devices_metadata", "priority": 10},
        "node": node.as_dict(false), "ports": node.ports_list(),
    });
    let agent = bench.agent().unwrap();
    let started = agent.command("clean.execute_clean_step", &step, Wait::No).unwrap();
    let record = kit::ended(&bench, &agent, &started).unwrap();
    assert_eq!(record.command_status, "SUCCEEDED", "{record:?}");
    let (_, block) = ask(&bench, &json!({})).unwrap();
    assert_eq!(holders(&block), Vec::<&str>::new(), "{block:?}");
    for (serial, place, bytes) in signatures() {
        let file = &files.iter().find(|(name, _)| *name == serial).unwrap().1;
        assert_ne!(file.read(place, bytes.len()).unwrap(), bytes, "{serial} at {place}");
    }

    bench.power_on(|vm| Ok(attached(vm.memory_mib(160).append_logs(), &files))).unwrap();
    let sequence = bench.conductor.last_heartbeat_sequence();
    bench.heartbeat_after(sequence, 20).unwrap();
    let (errors, block) = put_together(&bench).unwrap();
    assert_eq!(holders(&block), Vec::<&str>::new(), "{errors:?}");
    assert_eq!(errors.len(), 3, "something came back: {errors:?}");
}
