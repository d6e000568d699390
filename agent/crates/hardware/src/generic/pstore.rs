//! `erase_pstore`: delete the kernel messages that earlier tenants' crashes left in the machine's persistent store
//! (hardware section 5.7).

use ferric_sys::{Root, attr};
use ferric_types::error::{CommandError, ErrorClass};
use serde_json::Value;

use crate::context::StepContext;

/// Deletes every entry. A machine without such a store has nothing to erase.
pub(super) fn erase_pstore(context: &StepContext<'_>) -> Result<Value, CommandError> {
    let root = &context.machine.root;
    let mounts = attr::read_trimmed(&root.path("proc/mounts")).unwrap_or_default();
    let Some(place) = mount_point(&mounts) else {
        tracing::info!("no pstore is mounted");
        return Ok(Value::Null);
    };
    let failures: Vec<String> = entries(root, place)
        .into_iter()
        .filter_map(|path| {
            let error = std::fs::remove_file(&path).err()?;
            Some(format!("{}: {error}", path.display()))
        })
        .collect();
    if failures.is_empty() {
        return Ok(Value::Null);
    }
    let details = format!("Erasing pstore failed: {}", failures.join("; "));
    Err(CommandError::new(ErrorClass::Cleaning, details))
}

fn mount_point(mounts: &str) -> Option<&str> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        match (fields.next(), fields.next(), fields.next()) {
            (Some("pstore"), Some(place), Some("pstore")) => Some(place),
            _ => None,
        }
    })
}

fn entries(root: &Root, place: &str) -> Vec<std::path::PathBuf> {
    let directory = root.path(place);
    attr::list(&directory).into_iter().map(|name| directory.join(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_pstore_file_system_counts() {
        let mounts = "proc /proc proc rw 0 0\npstore /sys/fs/pstore pstore rw,nosuid 0 0\n";
        assert_eq!(mount_point(mounts), Some("/sys/fs/pstore"));
        assert_eq!(mount_point("none /mnt/pstore tmpfs rw 0 0\npstore"), None);
    }
}
