//! Processors and NUMA nodes.

use std::collections::BTreeSet;

use ferric_sys::{Root, attr};
use ferric_types::inventory::Cpu;
use serde_json::Value;

use super::Items;
use crate::probe::cpu::parse_list;

/// What `/proc/cpuinfo` says of the first processor: key there, key here.
const INFO: [(&str, &str); 4] =
    [("vendor_id", "vendor"), ("cpu family", "family"), ("model", "model"), ("stepping", "stepping")];

/// Most sockets that are listed.
const MAX_SOCKETS: usize = 64;

pub(super) fn add(items: &mut Items, root: &Root, cpu: &Cpu) {
    let folder = root.path("sys/devices/system/cpu");
    let text = |path: &str| attr::read_optional(&folder.join(path));
    items.add("cpu", "physical", "number", cpu.socket_count.into());
    items.text("cpu", "physical", "smt", text("smt/control"));
    let listed = text("online").or_else(|| text("present")).map(|list| parse_list(&list)).unwrap_or_default();
    let of = |cpu: &u32, path: &str| attr::read_u64(&folder.join(format!("cpu{cpu}/topology/{path}"))).ok();
    let core = |cpu: &u32| Some((of(cpu, "physical_package_id").unwrap_or(0), of(cpu, "core_id")?));
    let threads: Vec<_> = listed.iter().filter_map(core).collect();
    let cores: BTreeSet<_> = threads.iter().collect();
    let sockets = usize::try_from(cpu.socket_count).unwrap_or(0).min(MAX_SOCKETS);
    let threads_per_core = threads.len().checked_div(cores.len()).unwrap_or(1).max(1);
    let cores_per_socket = cores.len().checked_div(sockets).unwrap_or(1).max(1);
    let mhz = |path: &str| attr::read_u64(&folder.join("cpu0/cpufreq").join(path)).ok().map(thousandth);
    let info = attr::read_trimmed(&root.path("proc/cpuinfo")).unwrap_or_default();
    let first = |wanted: &str| {
        let mut pairs = info.lines().filter_map(|line| line.split_once(':'));
        pairs.find(|(key, _)| key.trim() == wanted).map(|(_, value)| value.trim())
    };
    let caches = caches(root);
    for socket in 0..sockets {
        let item = format!("physical_{socket}");
        let mut add = |key: &str, value: Value| {
            if value != "" {
                items.add("cpu", &item, key, value);
            }
        };
        if let Some(boost) = text("cpufreq/boost") {
            add("boost", if boost == "1" { "enabled" } else { "disabled" }.into());
        }
        for (theirs, ours) in INFO {
            match first(theirs) {
                Some(value) => add(ours, value.parse::<u64>().map_or_else(|_| value.into(), Value::from)),
                None => continue,
            }
        }
        add("product", cpu.model_name.clone().into());
        add("cores", cores_per_socket.into());
        add("threads", (threads_per_core * cores_per_socket).into());
        add("architecture", cpu.architecture.clone().into());
        caches.iter().for_each(|(key, size)| add(key, size.clone().into()));
        for (key, value) in [("min_Mhz", mhz("cpuinfo_min_freq")), ("max_Mhz", mhz("cpuinfo_max_freq"))] {
            if let Some(value) = value {
                add(key, value.into());
            }
        }
        if let Some(now) = first("cpu MHz").and_then(|mhz| mhz.parse::<f64>().ok()) {
            add("current_Mhz", now.into());
        }
        add("flags", cpu.flags.join(" ").into());
        add("threads_per_core", threads_per_core.into());
    }
    items.add("cpu", "logical", "number", cpu.count.into());
    for cpu in &listed {
        items.text("cpu", &format!("logical_{cpu}"), "governor", text(&format!("cpu{cpu}/cpufreq/scaling_governor")));
    }
    nodes(items, root);
}

fn thousandth(khz: u64) -> f64 {
    u32::try_from(khz).map_or(f64::INFINITY, f64::from) / 1000.0
}

/// Caches of the first processor: `l2 cache` and its size.
fn caches(root: &Root) -> Vec<(String, String)> {
    let folder = root.path("sys/devices/system/cpu/cpu0/cache");
    let cache = |name: String| {
        let text = |path: &str| attr::read_optional(&folder.join(&name).join(path));
        let kind = match text("type")?.as_str() {
            "Data" => "d",
            "Instruction" => "i",
            _ => "",
        };
        Some((format!("l{}{kind} cache", text("level")?), text("size")?))
    };
    attr::list(&folder).into_iter().filter_map(cache).collect()
}

fn nodes(items: &mut Items, root: &Root) {
    let folder = root.path("sys/devices/system/node");
    let names = attr::list(&folder).into_iter();
    let mut numbers: Vec<u32> = names.filter_map(|name| name.strip_prefix("node")?.parse().ok()).collect();
    numbers.sort_unstable();
    if !numbers.is_empty() {
        items.add("numa", "nodes", "count", numbers.len().into());
    }
    for number in numbers {
        let text =
            |name: &str| attr::read_trimmed(&folder.join(format!("node{number}")).join(name)).unwrap_or_default();
        let item = format!("node_{number}");
        items.add("numa", &item, "cpu_count", parse_list(&text("cpulist")).len().into());
        // Groups of 32 bits with commas between them.
        let mask = text("cpumap").replace(',', "");
        let digits = mask.trim_start_matches('0');
        items.add("numa", &item, "cpu_mask", format!("0x{}", if digits.is_empty() { "0" } else { digits }).into());
    }
}
