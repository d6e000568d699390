//! Trouble that a disk gives: I/O errors and slowness, as QEMU's blkdebug and throttle nodes make them.

use serde_json::{Value, json};

/// What an injected error hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultyIo {
    /// Reads.
    Read,
    /// Ordinary writes.
    Write,
    /// WRITE ZEROES.
    WriteZeroes,
    /// Discard (trim).
    Discard,
    /// Cache flushes.
    Flush,
}

impl FaultyIo {
    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::WriteZeroes => "write-zeroes",
            Self::Discard => "discard",
            Self::Flush => "flush",
        }
    }
}

/// An I/O error that the disk gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoFault {
    /// Which requests fail.
    pub io: FaultyIo,
    /// Only requests that touch this sector of 512 bytes; `None` for all.
    pub sector: Option<u64>,
    /// Error number: 5 (EIO), 28 (ENOSPC), ...
    pub errno: i32,
    /// Only the first such request fails. Linux repeats a failed request on NVMe, SCSI and SATA, so that only virtio-blk shows it to
    /// programs then.
    pub once: bool,
}

/// Speed limits of a disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Throttle {
    /// Bytes read in a second; `None` for no limit.
    pub read_bytes: Option<u64>,
    /// Bytes written in a second; `None` for no limit.
    pub write_bytes: Option<u64>,
    /// Requests in a second; `None` for no limit.
    pub iops: Option<u64>,
}

pub(super) fn throttle_id(index: usize) -> String {
    format!("throttle{index}")
}

pub(super) fn throttle_group(index: usize, limits: Throttle) -> Value {
    let mut values = serde_json::Map::new();
    let known = [("bps-read", limits.read_bytes), ("bps-write", limits.write_bytes), ("iops-total", limits.iops)];
    for (key, value) in known {
        if let Some(value) = value {
            values.insert(key.to_owned(), value.into());
        }
    }
    json!({"qom-type": "throttle-group", "id": throttle_id(index), "limits": values})
}

pub(super) fn fault_rule(fault: &IoFault) -> Value {
    let mut rule = json!({
        "event": "none", "iotype": fault.io.name(), "errno": fault.errno, "once": fault.once, "immediately": false,
    });
    if let (Some(sector), Some(map)) = (fault.sector, rule.as_object_mut()) {
        map.insert("sector".into(), sector.into());
    }
    rule
}
