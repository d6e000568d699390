//! Short benchmarks for the `extra-hardware` collector, under the names that `hardware-detect` gives to those of
//! `sysbench` and `fio`. They compare machines with each other that were measured by this program; the numbers of those
//! tools differ. Disks are read, never written.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferric_sys::aligned::AlignedBuf;
use ferric_sys::block_dev::{Access, BlockDev, BlockDevError};
use ferric_sys::{Root, attr, process};

use super::Items;
use crate::probe::cpu::parse_list;
use crate::probe::disks::Disk;
use crate::probe::memory::available_bytes;

/// How long each measurement takes.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Counting on one processor of each socket, and on all at once.
    pub cpu: Duration,
    /// Writing blocks of one size, likewise.
    pub memory: Duration,
    /// Reading from a disk in one way.
    pub disk: Duration,
    /// All disks, one after the other and together: with many of them each gets less.
    pub disks: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            cpu: Duration::from_secs(3),
            memory: Duration::from_millis(300),
            disk: Duration::from_secs(3),
            disks: Duration::from_secs(120),
        }
    }
}

/// Highest number tried by the count of primes, as for `sysbench`.
const PRIMES_UP_TO: u32 = 15_000;
/// Sizes of blocks of memory.
const BLOCKS: [(&str, usize); 7] = [
    ("1K", 1 << 10),
    ("4K", 4 << 10),
    ("1M", 1 << 20),
    ("16M", 16 << 20),
    ("128M", 128 << 20),
    ("1G", 1 << 30),
    ("2G", 2 << 30),
];
/// Most that is written to memory between two looks at the clock, bytes.
const STRETCH: usize = 1 << 20;
/// Readers of a disk at a time.
const READERS: usize = 4;
/// Ways to read: name, bytes of each transfer, whether anywhere on the disk.
const READS: [(&str, u64, bool); 2] = [("read_1M", 1 << 20, false), ("randread_4k", 4 << 10, true)];

/// The first processor of each socket, and all that are online.
fn processors(root: &Root) -> (Vec<usize>, usize) {
    let folder = root.path("sys/devices/system/cpu");
    let online = attr::read_optional(&folder.join("online")).map(|list| parse_list(&list)).unwrap_or_default();
    let mut first = BTreeMap::new();
    for cpu in &online {
        let socket = attr::read_u64(&folder.join(format!("cpu{cpu}/topology/physical_package_id"))).unwrap_or(0);
        first.entry(socket).or_insert(*cpu);
    }
    let first = first.into_values().filter_map(|cpu| usize::try_from(cpu).ok()).collect();
    (first, online.len().max(1))
}

/// Runs `work`, given the number of its thread, in so many threads, and tells what each of them counted.
fn threads(count: usize, work: &(dyn Fn(usize) -> u64 + Sync)) -> Vec<u64> {
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..count).map(|number| scope.spawn(move || work(number))).collect();
        started.into_iter().map(|thread| thread.join().unwrap_or(0)).collect()
    })
}

/// Runs `work` until `time` is over, on one processor or in so many threads, and sums what it counts.
fn measure(cpu: Option<usize>, count: usize, work: &(dyn Fn(Instant) -> u64 + Sync), time: Duration) -> u64 {
    let until = Instant::now() + time;
    let one = |_| {
        if let Some(cpu) = cpu
            && let Err(error) = process::pin_thread(cpu)
        {
            tracing::debug!(cpu, %error, "measuring on any processor");
        }
        work(until)
    };
    threads(count, &one).iter().sum()
}

/// `number` in a second, when it took this long.
fn each_second(number: u64, time: Duration) -> u64 {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
    number.saturating_mul(1000) / millis
}

/// How often the primes up to 15,000 are counted in a second: `loops_per_sec`.
pub fn cpu(items: &mut Items, root: &Root, times: &Times) {
    let (first, online) = processors(root);
    let info = attr::read_trimmed(&root.path("proc/cpuinfo")).unwrap_or_default();
    for cpu in first {
        let item = format!("logical_{cpu}");
        for (theirs, ours) in [("bogomips", "bogomips"), ("cache size", "cache_size")] {
            let value = of_processor(&info, cpu, theirs).map(|value| value.replace(' ', ""));
            items.text("cpu", &item, ours, value);
        }
        let loops = measure(Some(cpu), 1, &count_primes, times.cpu);
        items.add("cpu", &item, "loops_per_sec", each_second(loops, times.cpu).to_string().into());
    }
    let loops = measure(None, online, &count_primes, times.cpu);
    items.add("cpu", "logical", "loops_per_sec", each_second(loops, times.cpu).to_string().into());
}

/// A line of `/proc/cpuinfo` for one processor.
fn of_processor<'a>(info: &'a str, cpu: usize, key: &str) -> Option<&'a str> {
    let pairs = info.lines().filter_map(|line| line.split_once(':').map(|(key, value)| (key.trim(), value.trim())));
    let own = pairs.skip_while(|(key, value)| *key != "processor" || value.parse() != Ok(cpu));
    own.skip(1).take_while(|(key, _)| *key != "processor").find(|(found, _)| *found == key).map(|(_, value)| value)
}

fn count_primes(until: Instant) -> u64 {
    let mut loops = 0;
    // At least once, however late this thread got its turn.
    loop {
        let is_prime = |number: u32| (2..=number.isqrt()).all(|factor| !number.is_multiple_of(factor));
        black_box((3..black_box(PRIMES_UP_TO)).filter(|number| is_prime(*number)).count());
        loops += 1;
        if Instant::now() >= until {
            return loops;
        }
    }
}

/// MiB written to memory in a second, for blocks of several sizes: `bandwidth_1M` and so on. Sizes for which there is
/// not enough memory are left out.
pub fn memory(items: &mut Items, root: &Root, times: &Times) {
    let (first, online) = processors(root);
    let all = (None, online, "logical".to_owned(), "threaded_bandwidth");
    let each = first.into_iter().map(|cpu| (Some(cpu), 1, format!("logical_{cpu}"), "bandwidth"));
    for (cpu, threads, item, key) in each.chain((online > 1).then_some(all)) {
        for (name, size) in BLOCKS {
            let free = available_bytes(root).and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0);
            // Half of it stays for everybody else.
            if size.saturating_mul(threads) > free / 2 {
                break;
            }
            let written = measure(cpu, threads, &|until| fill(size, until), times.memory);
            items.add(
                "cpu",
                &item,
                &format!("{key}_{name}"),
                (each_second(written, times.memory) >> 20).to_string().into(),
            );
        }
    }
}

/// Writes a block again and again; bytes written.
fn fill(size: usize, until: Instant) -> u64 {
    let mut block = vec![0_u8; size];
    let mut written = 0;
    let mut pattern = 0_u8;
    loop {
        pattern = pattern.wrapping_add(1);
        // Small blocks are written often between two looks at the clock, large ones in parts.
        for _ in 0..(STRETCH / size).max(1) {
            for part in block.chunks_mut(STRETCH) {
                part.fill(black_box(pattern));
                written += u64::try_from(black_box(part).len()).unwrap_or(0);
                if size > STRETCH && Instant::now() >= until {
                    return written;
                }
            }
        }
        if Instant::now() >= until {
            return written;
        }
    }
}

/// KiB and transfers in a second, of each disk alone and of all at once: `standalone_read_1M_KBps` and so on. A disk that
/// cannot be read has none.
pub fn disks(items: &mut Items, disks: &[Disk], times: &Times) {
    let mut opened = Vec::new();
    for disk in disks {
        match BlockDev::open(&disk.info.name, Access::Read) {
            Ok(device) => opened.push((disk.kname.as_str(), device)),
            Err(error) => tracing::warn!(%error, "not measured"),
        }
    }
    let mut runs: Vec<(&str, &[(&str, BlockDev)])> = opened.chunks(1).map(|one| ("standalone", one)).collect();
    if opened.len() > 1 {
        runs.push(("simultaneous", &opened));
    }
    // Each run goes through all ways to read.
    let count = u32::try_from(runs.len() * READS.len()).unwrap_or(u32::MAX);
    let time = times.disk.min(times.disks / count.max(1));
    for (how, devices) in runs {
        for (name, bytes, anywhere) in READS {
            let transfers = read(devices, bytes, anywhere, time);
            for ((disk, _), transfers) in devices.iter().zip(transfers).filter(|(_, transfers)| *transfers > 0) {
                for (unit, number) in [("KBps", transfers * (bytes >> 10)), ("IOps", transfers)] {
                    let key = format!("{how}_{name}_{unit}");
                    items.add("disk", disk, &key, each_second(number, time).to_string().into());
                }
            }
        }
    }
}

/// Transfers that several readers of each device got, around the page cache.
fn read(devices: &[(&str, BlockDev)], bytes: u64, anywhere: bool, time: Duration) -> Vec<u64> {
    let until = Instant::now() + time;
    let next = AtomicU64::new(0);
    let reader = |number: usize| {
        let Some((name, device)) = devices.get(number / READERS) else { return 0 };
        let mut transfers = 0;
        if let Err(error) = read_until(device, bytes, anywhere, until, &next, &mut transfers) {
            tracing::warn!(disk = name, %error, "measured in part");
        }
        transfers
    };
    threads(devices.len() * READERS, &reader).chunks(READERS).map(|readers| readers.iter().sum()).collect()
}

fn read_until(
    device: &BlockDev,
    bytes: u64,
    anywhere: bool,
    until: Instant,
    next: &AtomicU64,
    transfers: &mut u64,
) -> Result<(), BlockDevError> {
    let Some(places) = (device.size_bytes() / bytes).checked_sub(1) else { return Ok(()) };
    let direct = device.direct()?;
    let mut memory = AlignedBuf::zeroed(usize::try_from(bytes).unwrap_or_default());
    while Instant::now() < until {
        let number = next.fetch_add(1, Ordering::Relaxed);
        // Multiplied by 2^64 over the golden ratio: far from the one before.
        let number = if anywhere { number.wrapping_mul(0x9e37_79b9_7f4a_7c15) } else { number };
        direct.read_at(number % (places + 1) * bytes, &mut memory)?;
        *transfers += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_sys::testing::machine::MachineTree;
    use ferric_types::inventory::BlockDevice;
    use serde_json::Value;

    const SHORT: Times = Times {
        cpu: Duration::from_millis(30),
        memory: Duration::from_millis(5),
        disk: Duration::from_millis(30),
        disks: Duration::from_secs(1),
    };

    /// Two sockets with two processors each, of which this host has one at least.
    fn machine() -> MachineTree {
        let tree = MachineTree::new().unwrap();
        tree.file("sys/devices/system/cpu/online", "0-3").unwrap();
        for (cpu, socket) in [(0, "0"), (1, "1"), (2, "0"), (3, "1")] {
            let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id");
            tree.file(&path, socket).unwrap();
        }
        let text = "processor\t: 0\nbogomips\t: 4190.15\ncache size\t: 512 KB\n\nprocessor\t: 1\nbogomips\t: 4000.00\n";
        tree.file("proc/cpuinfo", text).unwrap();
        tree.file("proc/meminfo", "MemAvailable: 65536 kB").unwrap();
        tree
    }

    fn keys(items: Items) -> Vec<(String, String, String)> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let Value::Array(items) = items.into_value() else { panic!("no list") };
        items
            .iter()
            .map(|item| (format!("{} {}", text(&item[0]), text(&item[1])), text(&item[2]), text(&item[3])))
            .collect()
    }

    #[test]
    fn one_processor_of_each_socket_is_measured_and_all_together() {
        let mut items = Items::default();
        cpu(&mut items, &machine().root(), &SHORT);
        let found = keys(items);
        let shown: Vec<_> = found.iter().map(|(item, key, _)| format!("{item} {key}")).collect();
        let want = [
            "cpu logical_0 bogomips",
            "cpu logical_0 cache_size",
            "cpu logical_0 loops_per_sec",
            "cpu logical_1 bogomips",
            "cpu logical_1 loops_per_sec",
            "cpu logical loops_per_sec",
        ];
        assert_eq!(shown, want);
        assert_eq!((found[0].2.as_str(), found[1].2.as_str()), ("4190.15", "512KB"));
        for (item, _, loops) in found.iter().filter(|(_, key, _)| key == "loops_per_sec") {
            assert!(loops.parse::<u64>().unwrap() > 0, "{item}: {loops}");
        }
    }

    #[test]
    fn memory_is_written_as_far_as_there_is_any() {
        let mut items = Items::default();
        memory(&mut items, &machine().root(), &SHORT);
        let found = keys(items);
        let of = |wanted: &str| {
            found.iter().filter(|(item, ..)| item == wanted).map(|(_, key, _)| key.as_str()).collect::<Vec<_>>()
        };
        // 64 MiB are there, and half of it may be used: by one thread, or by four.
        let want = ["bandwidth_1K", "bandwidth_4K", "bandwidth_1M", "bandwidth_16M"];
        assert_eq!((of("cpu logical_0"), of("cpu logical_1")), (want.to_vec(), want.to_vec()));
        assert_eq!(of("cpu logical"), ["threaded_bandwidth_1K", "threaded_bandwidth_4K", "threaded_bandwidth_1M"]);
        assert!(found.iter().all(|(.., speed)| speed.parse::<u64>().unwrap() > 0), "{found:?}");
    }

    #[test]
    fn disks_are_read_alone_and_together_and_never_written() {
        let dir = tempfile::tempdir().unwrap();
        let content: Vec<u8> = (0..4 << 20).map(|byte| u8::try_from(byte % 251).unwrap()).collect();
        let disk = |name: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, &content).unwrap();
            Disk::plain(BlockDevice { name: path.to_str().unwrap().to_owned(), ..BlockDevice::default() })
        };
        let mut some = vec![disk("a"), disk("b")];
        some[0].kname = "sda".to_owned();
        some[1].kname = "sdb".to_owned();
        some.push(Disk::plain(BlockDevice { name: "/nonexistent/sdc".to_owned(), ..BlockDevice::default() }));
        let mut items = Items::default();
        disks(&mut items, &some, &SHORT);
        let found = keys(items);
        for name in ["disk sda", "disk sdb"] {
            for how in ["standalone", "simultaneous"] {
                for (way, kib) in [("read_1M", 1024), ("randread_4k", 4)] {
                    let value = |unit: &str| {
                        let key = format!("{how}_{way}_{unit}");
                        let row = found.iter().find(|(item, found, _)| item == name && *found == key);
                        row.unwrap_or_else(|| panic!("no {key} in {found:?}")).2.parse::<u64>().unwrap()
                    };
                    // No fixed rate: one read may take more than a second on a busy machine.
                    assert!(value("KBps") > 0 && value("KBps") >= value("IOps") * kib, "{name} {how} {way}");
                }
            }
        }
        assert_eq!(found.len(), 16, "the third disk cannot be opened: {found:?}");
        for name in ["a", "b"] {
            assert!(std::fs::read(dir.path().join(name)).unwrap() == content, "{name} was changed");
        }
        // One disk alone has nothing to be compared with.
        let mut items = Items::default();
        disks(&mut items, &some[..1], &SHORT);
        assert_eq!(keys(items).len(), 4);
    }

    #[test]
    fn many_disks_take_no_longer_than_few() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        std::fs::write(&path, vec![0; 2 << 20]).unwrap();
        let one = Disk::plain(BlockDevice { name: path.to_str().unwrap().to_owned(), ..BlockDevice::default() });
        let times = Times { disks: Duration::from_millis(600), ..Times::default() };
        let begun = Instant::now();
        disks(&mut Items::default(), &vec![one; 12], &times);
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }
}
