//! Has the kernel put together what is on disks, as the system of a tenant would when it starts.

use std::path::Path;
use std::time::Duration;

use ferric_agent::command::{Command, Context, Mode};
use ferric_sys::ioctl::dm;
use ferric_sys::{attr, mount};
use ferric_types::CommandError;
use serde_json::{Value, json};

/// Assembles the array `members` as md127 and has two mappings on each other on it, registers the disk `cached` with bcache,
/// and mounts `mount`. Tells what did not work, and the block devices that there are then; with nothing asked for only that.
pub(crate) struct Stack;

impl Command for Stack {
    const NAME: &'static str = "stack";
    const MODE: Mode = Mode::Sync;
    type Params = Value;
    type Reply = Value;

    fn run(_context: &Context, params: Value) -> Result<Value, CommandError> {
        let mut errors: Vec<String> = Vec::new();
        let text = |key: &str| params.get(key).and_then(Value::as_str);
        let members = params.get("members").and_then(Value::as_array);
        let members: Vec<&str> = members.into_iter().flatten().filter_map(Value::as_str).collect();
        if !members.is_empty() {
            errors.extend(array(&members).and_then(|()| mappings()).err());
        }
        if let Some(disk) = text("cached") {
            errors.extend(write("sys/fs/bcache/register", disk).err());
        }
        if let Some(disk) = text("mount") {
            let target = Path::new("/mnt");
            let mounted =
                std::fs::create_dir_all(target).and_then(|()| mount::mount_foreign(Path::new(disk), target, "ext4"));
            errors.extend(mounted.map_err(|error| format!("mounting {disk}: {error}")).err());
        }
        // An array that came to nothing takes a moment to go.
        std::thread::sleep(Duration::from_millis(300));
        Ok(json!({"errors": errors, "block": attr::list(Path::new("/sys/block"))}))
    }
}

fn write(file: &str, value: &str) -> Result<(), String> {
    attr::write(&Path::new("/").join(file), value).map_err(|error| ferric_types::error::chain(&error))
}

fn array(members: &[&str]) -> Result<(), String> {
    write("sys/module/md_mod/parameters/new_array", "md127")?;
    let assembled = (|| {
        write("sys/block/md127/md/metadata_version", "1.2")?;
        for member in members {
            let name = member.trim_start_matches("/dev/");
            let number = attr::read_trimmed(&Path::new("/sys/class/block").join(name).join("dev"));
            write("sys/block/md127/md/new_dev", &number.map_err(|error| error.to_string())?)?;
        }
        write("sys/block/md127/md/array_state", "active")
    })();
    if assembled.is_err() {
        let _gone = write("sys/block/md127/md/array_state", "clear");
    }
    assembled
}

/// What LVM makes of its first volume, and a further mapping on that as an unlocked one is.
fn mappings() -> Result<(), String> {
    let failed = |error: std::io::Error| format!("making a mapping: {error}");
    dm::create_linear("vg0-root", "LVM-vg0root", 8192, "/dev/md127 2048").map_err(failed)?;
    let lower = attr::list(Path::new("/sys/block")).into_iter().find(|name| {
        attr::read_optional(&Path::new("/sys/block").join(name).join("dm/name")).as_deref() == Some("vg0-root")
    });
    let lower = lower.ok_or("the mapping is not there")?;
    dm::create_linear("secret", "CRYPT-PLAIN-secret", 4096, &format!("/dev/{lower} 4096")).map_err(failed)
}
