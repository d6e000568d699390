//! Disks.

use ferric_sys::{Root, attr};

use super::Items;
use crate::probe::disks::Disk;

/// Attributes of a disk's folder in sysfs; a revision has one of two names.
const ATTRIBUTES: [&str; 8] = [
    "device/vendor",
    "device/model",
    "device/rev",
    "device/revision",
    "queue/optimal_io_size",
    "queue/physical_block_size",
    "queue/rotational",
    "queue/nr_requests",
];

pub(super) fn add(items: &mut Items, root: &Root, disks: &[Disk]) {
    items.add("disk", "logical", "count", disks.len().to_string().into());
    for disk in disks {
        let name = disk.kname.as_str();
        let folder = root.path("sys/block").join(name);
        items.add("disk", name, "size", (disk.info.size / 1_000_000_000).to_string().into());
        for path in ATTRIBUTES {
            let key = path.split('/').next_back().unwrap_or(path);
            // NVMe drives have theirs one folder deeper.
            let value = [folder.join(path), folder.join("device").join(path)];
            items.text("disk", name, key, value.iter().find_map(|path| attr::read_optional(path)));
        }
        let schedulers = attr::read_optional(&folder.join("queue/scheduler")).unwrap_or_default();
        let chosen = schedulers.split_once('[').and_then(|(_, rest)| Some(rest.split_once(']')?.0.to_owned()));
        items.text("disk", name, "scheduler", chosen);
        if let Some(hctl) = &disk.info.hctl
            && let Some(cache) = attr::read_optional(&folder.join("device/scsi_disk").join(hctl).join("cache_type"))
        {
            let (writes, no_reads) = match cache.as_str() {
                "write through" => ("0", "0"),
                "none" => ("0", "1"),
                _ if cache.contains("daft") => ("1", "1"),
                _ => ("1", "0"),
            };
            items.add("disk", name, "Write Cache Enable", writes.into());
            items.add("disk", name, "Read Cache Disable", no_reads.into());
        }
        for link in disk.by_ids.iter().filter_map(|link| link.strip_prefix("/dev/disk/by-id/")) {
            let key = match link {
                _ if link.starts_with("wwn") => "wwn-id",
                _ if link.starts_with("scsi") => "scsi-id",
                _ => "id",
            };
            items.add("disk", name, key, link.into());
        }
    }
}
