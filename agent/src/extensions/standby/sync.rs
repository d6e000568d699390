//! `standby.sync`: everything written is on the disks when it ends (commands section 2).

use ferric_sys::{Root, attr, block_dev};
use ferric_types::CommandError;
use tracing::warn;

use crate::command::{Command, Context, Mode};
use crate::extensions::NoParams;

/// The command.
#[derive(Debug)]
pub struct Sync;

impl Command for Sync {
    const NAME: &'static str = "sync";
    const MODE: Mode = Mode::Sync;
    type Params = NoParams;
    type Reply = ();

    fn run(context: &Context, _params: NoParams) -> Result<(), CommandError> {
        full_sync(&context.app.machine.root);
        Ok(())
    }
}

/// Writes back all dirty pages, drops clean ones, and flushes the cache of every block device. A device that cannot
/// be flushed is only logged, as by the reference agent.
pub fn full_sync(root: &Root) {
    rustix::fs::sync();
    if let Err(error) = attr::write(&root.path("proc/sys/vm/drop_caches"), "3") {
        warn!(error = ferric_types::error::chain(&error), "dropping caches");
    }
    for name in attr::list(&root.path("sys/class/block")) {
        let size = attr::read_u64(&root.path(format!("sys/class/block/{name}/size"))).unwrap_or(0);
        let path = root.path(format!("dev/{name}"));
        if size == 0 || !path.exists() {
            continue;
        }
        let flushed = block_dev::BlockDev::open(&path, block_dev::Access::Read).and_then(|device| device.flush());
        if let Err(error) = flushed {
            warn!(error = ferric_types::error::chain(&error), device = name, "flushing");
        }
    }
}
