//! The steps on a machine whose disks are files.

use std::io::{Cursor, Read, Write as _};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ferric_disk::image::RetryPolicy;
use ferric_disk::image::source::{Fetch, FetchRequest, ImageSource, SourceError};
use ferric_sys::testing::exec::ScriptedExec;
use ferric_sys::testing::machine::MachineTree;
use ferric_types::error::CommandError;
use ferric_types::step::StepKind;
use ferric_types::{Node, Progress};
use serde_json::Value;

use crate::context::{Services, StepContext};
use crate::machine::Machine;
use crate::registry::Registry;
use crate::settings::Settings;

mod boot;
mod bootc;
mod clean;
mod deploy;
mod hidden;
mod inject;
mod partition;
mod raid;

const MIB: u64 = 1 << 20;

/// Serves one file under every URL.
#[derive(Debug, Default)]
struct OneFile {
    bytes: Vec<u8>,
    asked: Mutex<Vec<String>>,
}

impl Fetch for OneFile {
    fn open(&self, request: &FetchRequest) -> Result<Box<dyn ImageSource>, SourceError> {
        self.asked.lock().unwrap().push(request.url.clone());
        Ok(Box::new(Bytes(self.bytes.clone())))
    }
    fn get(&self, request: &FetchRequest, _: u64) -> Result<Vec<u8>, SourceError> {
        self.asked.lock().unwrap().push(request.url.clone());
        Ok(self.bytes.clone())
    }
}

struct Bytes(Vec<u8>);

impl ImageSource for Bytes {
    fn size_bytes(&self) -> Option<u64> {
        u64::try_from(self.0.len()).ok()
    }
    fn has_ranges(&self) -> bool {
        false
    }
    fn stream(&mut self, _: u64) -> Result<Box<dyn Read + Send + '_>, SourceError> {
        Ok(Box::new(Cursor::new(&self.0)))
    }
    fn read_exact_at(&mut self, _: u64, _: &mut [u8]) -> Result<(), SourceError> {
        unreachable!("a raw image has no metadata")
    }
}

#[derive(Debug, Default)]
struct TestServices {
    fetch: OneFile,
    refreshed: Option<Node>,
    uuids: Mutex<Value>,
    written: Mutex<Vec<String>>,
    /// Whether a bug shows once the image is there.
    panics: bool,
}

impl Services for TestServices {
    fn fetch(&self) -> &dyn Fetch {
        &self.fetch
    }
    fn refresh_node(&self) -> Option<Node> {
        self.refreshed.clone()
    }
    fn remember_partition_uuids(&self, uuids: Value) {
        assert!(!self.panics, "a bug");
        *self.uuids.lock().unwrap() = uuids;
    }
    fn partition_uuids(&self) -> Value {
        self.uuids.lock().unwrap().clone()
    }
    fn image_written(&self, id: &str) {
        self.written.lock().unwrap().push(id.to_owned());
    }
}

struct Lab {
    tree: MachineTree,
    machine: Machine,
    registry: Registry,
    settings: Settings,
    services: TestServices,
    progress: Progress,
    disks: usize,
}

fn lab() -> Lab {
    let tree = MachineTree::new().unwrap();
    let machine = Machine::at(tree.root(), Arc::new(ScriptedExec::new()));
    let registry = Registry::new(crate::MANAGERS, &machine).unwrap();
    let settings = Settings {
        disk_wait_attempts: 1,
        image_retry: RetryPolicy { tries: 1, interval: Duration::ZERO },
        ..Settings::default()
    };
    Lab { tree, machine, registry, settings, services: TestServices::default(), progress: Progress::new(), disks: 0 }
}

impl Lab {
    /// A disk full of old data, with the size that sysfs claims and one partition if asked for. One called `sd...` is on USB.
    fn disk(&mut self, name: &str, bytes: u64, partition: bool) -> &mut Self {
        let number = self.disks;
        self.disks += 1;
        let size = (bytes / 512).to_string();
        let place = if name.starts_with("sd") {
            format!("usb1/1-1/1-1:1.0/host{number}/target{number}:0:0/{number}:0:0:0")
        } else if name.starts_with("nvme") {
            "nvme/nvme0".to_owned()
        } else {
            format!("virtio{number}")
        };
        let device = format!("pci0000:00/0000:00:{:02x}.0/{place}", number + 3);
        let serial = format!("serial-{name}");
        self.tree
            .disk(name, &device, &format!("254:{}", number * 16), &[("size", &size), ("serial", &serial)])
            .unwrap();
        self.medium(name, bytes);
        if partition {
            let dir = format!("sys/devices/{device}/block/{name}/{name}1");
            for (file, value) in [("partition", "1"), ("size", "4096"), ("dev", &*format!("254:{}", number * 16 + 1))] {
                self.tree.file(&format!("{dir}/{file}"), value).unwrap();
            }
            self.tree.link(&format!("sys/class/block/{name}1"), &dir).unwrap();
            self.medium(&format!("{name}1"), 2 * MIB);
        }
        self
    }

    fn medium(&self, name: &str, bytes: u64) {
        self.tree.file(&format!("dev/{name}"), "").unwrap();
        let mut file = std::fs::File::create(self.tree.path(format!("dev/{name}"))).unwrap();
        file.write_all(&vec![0xa5; usize::try_from(bytes).unwrap().min(16 << 20)]).unwrap();
        file.set_len(bytes).unwrap();
    }

    fn write(&self, name: &str, offset: u64, bytes: &[u8]) {
        let file = std::fs::File::options().write(true).open(self.tree.path(format!("dev/{name}"))).unwrap();
        file.write_all_at(bytes, offset).unwrap();
    }

    fn byte(&self, name: &str, offset: u64) -> u8 {
        let mut byte = [0];
        std::fs::File::open(self.tree.path(format!("dev/{name}"))).unwrap().read_exact_at(&mut byte, offset).unwrap();
        byte[0]
    }

    fn with<T>(&self, node: &Value, run: impl FnOnce(&StepContext<'_>) -> T) -> T {
        let node: Node = serde_json::from_value(node.clone()).unwrap();
        run(&StepContext {
            machine: &self.machine,
            registry: &self.registry,
            node: &node,
            ports: &[],
            progress: &self.progress,
            settings: &self.settings,
            services: &self.services,
        })
    }

    fn clean(&self, step: &str, node: &Value) -> Result<Value, CommandError> {
        self.with(node, |context| self.registry.execute(StepKind::Clean, step, context, &serde_json::Map::new()))
    }
}
