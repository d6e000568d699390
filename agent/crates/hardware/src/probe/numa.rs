//! NUMA nodes as the `numa-topology` collector sends them (inspection section 3.3).

use std::collections::BTreeMap;

use ferric_sys::{Root, attr};
use serde::Serialize;

use super::cpu::MAX_CPUS;
use super::{memory, nics};

/// Highest number of nodes that a kernel can be made for (`NODES_SHIFT` is 10 at most).
const MAX_NODES: u32 = 1024;

/// What belongs to which NUMA node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NumaTopology {
    /// Memory of each node.
    pub ram: Vec<NumaMemory>,
    /// Cores.
    pub cpus: Vec<NumaCore>,
    /// Network interfaces.
    pub nics: Vec<NumaNic>,
}

/// Memory of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NumaMemory {
    /// Node.
    pub numa_node: u32,
    /// KiB.
    pub size_kb: u64,
}

/// A core with its threads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NumaCore {
    /// Number of the core within its socket.
    pub cpu: u32,
    /// Node.
    pub numa_node: u32,
    /// Logical processors of the core.
    pub thread_siblings: Vec<u32>,
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NumaNic {
    /// Kernel name.
    pub name: String,
    /// Node; -1 when the interface belongs to none.
    pub numa_node: i32,
}

/// Topology of the machine, or `None` when the kernel does not tell of any node with memory. Processors that are
/// offline and interfaces that do not say where they are are left out (pitfall G5).
pub fn topology(root: &Root) -> Option<NumaTopology> {
    let base = root.path("sys/devices/system/node");
    let mut found = NumaTopology::default();
    let mut left = usize::try_from(MAX_CPUS).unwrap_or(usize::MAX);
    for (number, name) in numbered(&attr::list(&base), "node", MAX_NODES) {
        let dir = base.join(&name);
        let meminfo = attr::read_trimmed(&dir.join("meminfo")).ok()?;
        let size_kb = memory::meminfo_bytes(&meminfo, "MemTotal")? / 1024;
        found.ram.push(NumaMemory { numa_node: number, size_kb });
        let mut cores: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (cpu, name) in numbered(&attr::list(&dir), "cpu", MAX_CPUS).into_iter().take(left) {
            left -= 1;
            let core = attr::read_u64(&dir.join(name).join("topology/core_id")).ok();
            if let Some(core) = core.and_then(|core| u32::try_from(core).ok()) {
                cores.entry(core).or_default().push(cpu);
            }
        }
        let core = |(cpu, thread_siblings)| NumaCore { cpu, numa_node: number, thread_siblings };
        found.cpus.extend(cores.into_iter().map(core));
    }
    for name in nics::names(root) {
        let path = root.path("sys/class/net").join(&name).join("device/numa_node");
        if let Some(numa_node) = attr::read_optional(&path).and_then(|text| text.parse().ok()) {
            found.nics.push(NumaNic { name, numa_node });
        }
    }
    (!found.ram.is_empty()).then_some(found)
}

/// Names that are a prefix and a number below `limit`, by number.
fn numbered(names: &[String], prefix: &str, limit: u32) -> Vec<(u32, String)> {
    let number = |name: &String| Some((name.strip_prefix(prefix)?.parse().ok()?, name.clone()));
    let mut found: Vec<_> = names.iter().filter_map(number).filter(|(number, _)| *number < limit).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferric_sys::testing::machine::MachineTree;
    use serde_json::json;

    #[test]
    fn cores_threads_memory_and_nics_are_told_by_node() {
        let tree = MachineTree::new().unwrap();
        for node in 0..2 {
            let dir = format!("sys/devices/system/node/node{node}");
            tree.file(
                &format!("{dir}/meminfo"),
                &format!("Node {node} MemTotal:       1024 kB\nNode {node} MemFree: 1 kB"),
            )
            .unwrap();
            for cpu in [node, node + 2, node + 10] {
                tree.file(&format!("{dir}/cpu{cpu}/topology/core_id"), if cpu < 10 { "0" } else { "1" }).unwrap();
            }
            // Offline: no topology.
            tree.file(&format!("{dir}/cpu{}/online", node + 20), "0").unwrap();
        }
        for (name, node) in [("eth0", Some("1")), ("eth1", Some("-1")), ("eth2", None)] {
            tree.file(&format!("sys/class/net/{name}/device/vendor"), "0x8086").unwrap();
            if let Some(node) = node {
                tree.file(&format!("sys/class/net/{name}/device/numa_node"), node).unwrap();
            }
        }
        assert_eq!(
            serde_json::to_value(topology(&tree.root()).unwrap()).unwrap(),
            json!({
                "ram": [{"numa_node": 0, "size_kb": 1024}, {"numa_node": 1, "size_kb": 1024}],
                "cpus": [
                    {"cpu": 0, "numa_node": 0, "thread_siblings": [0, 2]},
                    {"cpu": 1, "numa_node": 0, "thread_siblings": [10]},
                    {"cpu": 0, "numa_node": 1, "thread_siblings": [1, 3]},
                    {"cpu": 1, "numa_node": 1, "thread_siblings": [11]},
                ],
                "nics": [{"name": "eth0", "numa_node": 1}, {"name": "eth1", "numa_node": -1}],
            })
        );
    }

    #[test]
    fn nodes_without_memory_without_processors_and_with_odd_numbers_are_nodes() {
        let tree = MachineTree::new().unwrap();
        for (node, kib) in [("0", 2048), ("2", 0), ("10", 512)] {
            let text = format!("Node {node} MemTotal:       {kib} kB");
            tree.file(&format!("sys/devices/system/node/node{node}/meminfo"), &text).unwrap();
        }
        // One core with two threads; the second is offline. What is no processor is none.
        tree.file("sys/devices/system/node/node2/cpu8/topology/core_id", "4").unwrap();
        tree.file("sys/devices/system/node/node2/cpu9/online", "0").unwrap();
        tree.file("sys/devices/system/node/node2/cpumap", "300").unwrap();
        tree.file("sys/devices/system/node/has_memory", "0,10").unwrap();
        assert_eq!(
            serde_json::to_value(topology(&tree.root()).unwrap()).unwrap(),
            json!({
                "ram": [
                    {"numa_node": 0, "size_kb": 2048},
                    {"numa_node": 2, "size_kb": 0},
                    {"numa_node": 10, "size_kb": 512},
                ],
                "cpus": [{"cpu": 4, "numa_node": 2, "thread_siblings": [8]}],
                "nics": [],
            })
        );
    }

    #[test]
    fn a_kernel_without_nodes_or_with_malformed_ones_tells_nothing() {
        let tree = MachineTree::new().unwrap();
        assert_eq!(topology(&tree.root()), None);
        tree.file("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: much").unwrap();
        assert_eq!(topology(&tree.root()), None);
    }

    #[test]
    fn nodes_and_processors_beyond_any_kernel_are_left_out() {
        let tree = MachineTree::new().unwrap();
        for node in [1, 1023, 1024] {
            tree.file(&format!("sys/devices/system/node/node{node}/meminfo"), "Node 1 MemTotal: 1024 kB").unwrap();
        }
        for cpu in [8191, 8192] {
            tree.file(&format!("sys/devices/system/node/node1/cpu{cpu}/topology/core_id"), "0").unwrap();
        }
        let found = topology(&tree.root()).unwrap();
        assert_eq!(found.ram.iter().map(|node| node.numa_node).collect::<Vec<_>>(), [1, 1023]);
        assert_eq!(found.cpus, [NumaCore { cpu: 0, numa_node: 1, thread_siblings: vec![8191] }]);
    }
}
