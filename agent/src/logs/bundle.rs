//! The archive that `log.collect_system_logs` returns (commands section 2).
//!
//! Its members have the names that Ironic's own agent uses where it has them; their content comes from the kernel
//! directly, as there are no tools in the ramdisk to ask.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use ferric_sys::{Root, attr};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Map, Value, json};

use super::{kmsg, redact, ring};

/// More than this of one member is cut off; the archive travels as base64 in one JSON answer.
const MEMBER_BYTES: usize = 8 << 20;

struct Member {
    name: &'static str,
    collect: fn(&Root) -> Vec<u8>,
}

const MEMBERS: &[Member] = &[
    Member { name: "journal", collect: |_| ring().text() },
    Member { name: "dmesg", collect: |root| kmsg::records(&root.path("dev/kmsg")) },
    Member { name: "cmdline", collect: |root| file(root, "proc/cmdline") },
    Member { name: "df", collect: |root| df(root).into_bytes() },
    Member { name: "efivars", collect: |root| listing(root, "sys/firmware/efi/efivars").into_bytes() },
    Member { name: "interrupts", collect: |root| file(root, "proc/interrupts") },
    Member { name: "ip_addr", collect: |root| interfaces(root).into_bytes() },
    Member { name: "lsblk", collect: |root| block_devices(root).into_bytes() },
    Member { name: "mdstat", collect: |root| file(root, "proc/mdstat") },
    Member { name: "meminfo", collect: |root| file(root, "proc/meminfo") },
    Member { name: "modules", collect: |root| file(root, "proc/modules") },
    Member { name: "mount", collect: |root| file(root, "proc/self/mounts") },
    Member { name: "partitions", collect: |root| file(root, "proc/partitions") },
    Member { name: "pci", collect: |root| pci(root).into_bytes() },
    Member { name: "ps", collect: |root| processes(root).into_bytes() },
    Member { name: "pstore", collect: |root| listing(root, "sys/fs/pstore").into_bytes() },
];

/// Collects everything that tells what happened, as a gzip-compressed tar archive without the secrets known to
/// [`super::hide`]. A part that cannot be read is left out; there is always an archive.
pub fn collect(root: &Root) -> Vec<u8> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let members = MEMBERS.iter().map(|member| (member.name.to_owned(), (member.collect)(root)));
    for (name, content) in members.chain(extra_files(root)) {
        if content.is_empty() {
            continue;
        }
        let mut content = redact::redact(&content);
        content.truncate(MEMBER_BYTES);
        let mut header = tar::Header::new_gnu();
        header.set_size(u64::try_from(content.len()).unwrap_or(0));
        header.set_mode(0o600);
        header.set_mtime(now);
        // Writing to memory fails for no member of this size and these names.
        if let Err(error) = archive.append_data(&mut header, &name, content.as_slice()) {
            tracing::warn!("leaving {name} out of the log archive: {error}");
        }
    }
    archive.into_inner().and_then(GzEncoder::finish).unwrap_or_default()
}

/// Facts per disk, where udev's would be, and the files of `/var/log` when there are any.
fn extra_files(root: &Root) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for disk in attr::list(&root.path("sys/block")) {
        let facts = Value::Object(disk_facts(root, &disk));
        files.push((safe_name("udev", &disk), facts.to_string().into_bytes()));
    }
    for name in attr::list(&root.path("var/log")) {
        files.push((safe_name("var-log", &name), file(root, &format!("var/log/{name}"))));
    }
    files
}

/// A member name of plain characters only: a colon or an odd byte in one once broke the receiving side.
fn safe_name(folder: &str, name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let name: String = name.chars().map(|c| if plain(c) { c } else { '_' }).take(100).collect();
    format!("{folder}/{}", name.trim_start_matches('.'))
}

fn file(root: &Root, path: &str) -> Vec<u8> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let limit = u64::try_from(MEMBER_BYTES).unwrap_or(u64::MAX);
    if let Ok(file) = fs::File::open(root.path(path)) {
        // What was read before an error is still worth having.
        let _part = file.take(limit).read_to_end(&mut bytes);
    }
    bytes
}

fn listing(root: &Root, path: &str) -> String {
    let directory = root.path(path);
    let line = |name: &String| {
        let size = fs::symlink_metadata(directory.join(name)).map_or(0, |metadata| metadata.len());
        format!("{size:>10} {name}\n")
    };
    attr::list(&directory).iter().map(line).collect()
}

/// Space of each mounted file system, in KiB.
fn df(root: &Root) -> String {
    let mounts = attr::read_trimmed(&root.path("proc/self/mounts")).unwrap_or_default();
    let mut text = format!("{:<24} {:>12} {:>12} {:>12} {}\n", "file system", "KiB", "used", "free", "mounted on");
    for line in mounts.lines() {
        let mut words = line.split(' ');
        let (Some(source), Some(target)) = (words.next(), words.next()) else { continue };
        let Ok(stat) = rustix::fs::statvfs(Path::new(target)) else { continue };
        let kib = |blocks: u64| u128::from(blocks) * u128::from(stat.f_frsize) / 1024;
        let (total, free) = (kib(stat.f_blocks), kib(stat.f_bfree));
        // Writing to a String cannot fail.
        let _infallible =
            writeln!(text, "{source:<24} {total:>12} {:>12} {free:>12} {target}", total.saturating_sub(free));
    }
    text
}

fn interfaces(root: &Root) -> String {
    let mut text = String::new();
    let directory = root.path("sys/class/net");
    for name in attr::list(&directory) {
        let get = |attribute: &str| attr::read_optional(&directory.join(&name).join(attribute)).unwrap_or_default();
        // Writing to a String cannot fail.
        let _infallible = writeln!(
            text,
            "{name}: address {} state {} carrier {} mtu {} speed {} driver {} rx_bytes {} tx_bytes {} rx_errors {} tx_errors {}",
            get("address"),
            get("operstate"),
            get("carrier"),
            get("mtu"),
            get("speed"),
            attr::link_name(&directory.join(&name).join("device/driver")).unwrap_or_default(),
            get("statistics/rx_bytes"),
            get("statistics/tx_bytes"),
            get("statistics/rx_errors"),
            get("statistics/tx_errors"),
        );
    }
    for path in ["proc/net/fib_trie", "proc/net/if_inet6", "proc/net/route", "proc/net/ipv6_route", "etc/resolv.conf"] {
        let content = file(root, path);
        let _infallible = write!(text, "\n# /{path}\n{}", String::from_utf8_lossy(&content));
    }
    text
}

fn block_devices(root: &Root) -> String {
    let disks: Vec<Value> = attr::list(&root.path("sys/block"))
        .iter()
        .map(|disk| {
            let mut facts = disk_facts(root, disk);
            let directory = root.path("sys/block").join(disk);
            let partitions: Vec<Value> = attr::list(&directory)
                .iter()
                .filter(|name| directory.join(name).join("partition").exists())
                .map(|name| {
                    let get = |attribute| attr::read_optional(&directory.join(name).join(attribute));
                    json!({"name": name, "partition": get("partition"), "start_512": get("start"), "size_512": get("size"), "ro": get("ro")})
                })
                .collect();
            facts.insert("partitions".to_owned(), Value::Array(partitions));
            facts.insert("holders".to_owned(), json!(attr::list(&directory.join("holders"))));
            Value::Object(facts)
        })
        .collect();
    serde_json::to_string_pretty(&json!({"blockdevices": disks})).unwrap_or_default()
}

fn disk_facts(root: &Root, disk: &str) -> Map<String, Value> {
    const ATTRIBUTES: &[&str] = &[
        "dev",
        "size",
        "ro",
        "removable",
        "hidden",
        "wwid",
        "serial",
        "uuid",
        "queue/rotational",
        "queue/logical_block_size",
        "queue/physical_block_size",
        "queue/discard_max_bytes",
        "queue/write_zeroes_max_bytes",
        "queue/scheduler",
        "device/vendor",
        "device/model",
        "device/rev",
        "device/serial",
        "device/wwid",
        "device/state",
        "device/firmware_rev",
    ];
    let directory = root.path("sys/block").join(disk);
    let mut facts = Map::new();
    facts.insert("name".to_owned(), json!(disk));
    facts.insert("path".to_owned(), json!(fs::canonicalize(&directory).ok()));
    for attribute in ATTRIBUTES {
        if let Some(value) = attr::read_optional(&directory.join(attribute)) {
            facts.insert((*attribute).to_owned(), json!(value));
        }
    }
    facts
}

fn pci(root: &Root) -> String {
    let directory = root.path("sys/bus/pci/devices");
    let line = |address: &String| {
        let get = |attribute: &str| attr::read_optional(&directory.join(address).join(attribute)).unwrap_or_default();
        let driver = attr::link_name(&directory.join(address).join("driver"));
        format!(
            "{address} class {} vendor {} device {} subsystem {}:{} driver {}\n",
            get("class"),
            get("vendor"),
            get("device"),
            get("subsystem_vendor"),
            get("subsystem_device"),
            driver.as_deref().unwrap_or("none")
        )
    };
    attr::list(&directory).iter().map(line).collect()
}

fn processes(root: &Root) -> String {
    let mut text = format!(
        "{:>7} {:>7} {:>5} {:>10} {:>10} {:>5} {}\n",
        "PID", "PPID", "STATE", "RSS KiB", "PEAK KiB", "OOM", "COMMAND"
    );
    let mut pids: Vec<u32> = attr::list(&root.path("proc")).iter().filter_map(|name| name.parse().ok()).collect();
    pids.sort_unstable();
    for pid in pids {
        let directory = root.path(format!("proc/{pid}"));
        let status = attr::read_trimmed(&directory.join("status")).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|line| line.split_whitespace().next()).unwrap_or("").to_owned()
        };
        let command = attr::read_trimmed(&directory.join("cmdline")).unwrap_or_default().replace('\0', " ");
        let command = if command.is_empty() { format!("[{}]", field("Name")) } else { command };
        let oom = attr::read_optional(&directory.join("oom_score_adj")).unwrap_or_default();
        // Writing to a String cannot fail.
        let _infallible = writeln!(
            text,
            "{pid:>7} {:>7} {:>5} {:>10} {:>10} {oom:>5} {command}",
            field("PPid"),
            field("State"),
            field("VmRSS"),
            field("VmHWM")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read;

    use super::*;

    fn unpack(bytes: &[u8]) -> BTreeMap<String, String> {
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(bytes));
        let mut members = BTreeMap::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            members.insert(name, String::from_utf8_lossy(&content).into_owned());
        }
        members
    }

    #[test]
    fn the_archive_of_a_machine_has_its_parts_and_no_secrets() {
        let dir = std::env::temp_dir().join(format!("ferric-bundle-{}", std::process::id()));
        for name in ["proc/7", "proc/self", "sys/block/sda/sda1", "sys/bus/pci/devices/0000:00:03.0", "var/log"] {
            fs::create_dir_all(dir.join(name)).unwrap();
        }
        let put = |name: &str, text: &[u8]| fs::write(dir.join(name), text).unwrap();
        put("proc/cmdline", b"quiet ipa-agent-token=verysecret\n");
        put("proc/7/status", b"Name:\tx\nPPid:\t1\nState:\tS (sleeping)\nVmHWM:\t 34 kB\nVmRSS:\t 12 kB\n");
        put("proc/7/cmdline", b"prog\0--flag\0");
        put("proc/self/mounts", b"tmpfs / tmpfs rw 0 0\n");
        put("sys/block/sda/size", b"2048\n");
        put("sys/block/sda/sda1/partition", b"1\n");
        put("sys/bus/pci/devices/0000:00:03.0/vendor", b"0x1af4\n");
        put("var/log/a:b\u{e9}.log", b"\xff\xfe odd bytes");
        let members = unpack(&collect(&Root::at(&dir)));
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(members["cmdline"], "quiet ipa-agent-token=******\n");
        assert!(
            members["ps"].contains("      7       1     S         12         34       prog --flag"),
            "{}",
            members["ps"]
        );
        assert!(members["lsblk"].contains("sda1") && members["udev/sda"].contains("\"2048\""));
        assert!(members["pci"].contains("vendor 0x1af4 device  subsystem : driver none"), "{}", members["pci"]);
        assert!(members["df"].contains("tmpfs"));
        assert!(members.contains_key("var-log/a_b_.log"), "{:?}", members.keys());
        assert!(!members.contains_key("mdstat"), "a missing part is left out");
    }

    #[test]
    fn the_archive_of_this_machine_is_one() {
        let members = unpack(&collect(&Root::host()));
        assert!(members["mount"].contains("proc"), "{:?}", members.keys());
    }

    #[test]
    fn member_names_stay_within_their_folder() {
        assert_eq!(safe_name("udev", "../../etc/passwd"), "udev/_.._etc_passwd");
        assert_eq!(safe_name("udev", ".."), "udev/");
    }
}
