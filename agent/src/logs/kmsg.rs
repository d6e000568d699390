//! The kernel's log: our lines go in, all lines come out for the log bundle.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;
use tracing::Level;

/// The kernel cuts longer records (`LOG_LINE_MAX` is about 1 KiB less its prefix).
const LINE_BYTES: usize = 960;
/// More records than any kernel keeps.
const MAX_RECORDS: usize = 100_000;

/// `/dev/kmsg` open for writing.
#[derive(Debug)]
pub(super) struct Kmsg(File);

impl Kmsg {
    pub(super) fn open() -> Option<Self> {
        OpenOptions::new().write(true).open("/dev/kmsg").ok().map(Self)
    }

    /// One record. Its level is one step less urgent than the line's, so that the kernel does not print on the
    /// consoles what the agent prints there itself; the facility (1, user) tells it from the kernel's own.
    pub(super) fn write(&self, level: Level, text: &str) {
        let severity = match level {
            Level::ERROR => 4,
            Level::WARN => 5,
            Level::INFO => 6,
            Level::DEBUG | Level::TRACE => 7,
        };
        let mut end = text.len().min(LINE_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let record = format!("<{}>ferric: {}\n", 8 + severity, text.get(..end).unwrap_or_default());
        // A full or refused log is no reason to fail; the line is in the ring as well.
        let _lost = (&self.0).write_all(record.as_bytes());
    }
}

/// The kernel's log as `dmesg` shows it; empty when it cannot be read.
pub fn records(device: &Path) -> Vec<u8> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let Ok(mut file) = OpenOptions::new().read(true).custom_flags(flags).open(device) else { return Vec::new() };
    let mut text = Vec::new();
    let mut record = [0_u8; 8192];
    for _ in 0..MAX_RECORDS {
        match file.read(&mut record) {
            Ok(0) => break,
            Ok(length) => format_record(record.get(..length).unwrap_or_default(), &mut text),
            // EPIPE: the record was overwritten before it was read; the next read goes on after the gap.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
            Err(_) => break,
        }
    }
    text
}

/// `6,339,5140900,-;text\n KEY=value\n` (`Documentation/ABI/testing/dev-kmsg`) as `[    5.140900] text`.
fn format_record(record: &[u8], text: &mut Vec<u8>) {
    let Some(split) = record.iter().position(|byte| *byte == b';') else { return };
    let (head, message) = record.split_at(split);
    let head = String::from_utf8_lossy(head);
    let micros: u64 = head.split(',').nth(2).and_then(|field| field.parse().ok()).unwrap_or(0);
    let message = message.get(1..).unwrap_or_default();
    let line = message.split(|byte| *byte == b'\n').next().unwrap_or_default();
    text.extend_from_slice(format!("[{:5}.{:06}] ", micros / 1_000_000, micros % 1_000_000).as_bytes());
    text.extend_from_slice(line);
    text.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_look_like_dmesg() {
        let mut text = Vec::new();
        format_record(b"6,339,5140900,-;NET: Registered\n SUBSYSTEM=net\n", &mut text);
        format_record(b"nonsense", &mut text);
        format_record(b"6;short\n", &mut text);
        assert_eq!(String::from_utf8(text).unwrap(), "[    5.140900] NET: Registered\n[    0.000000] short\n");
    }

    #[test]
    fn a_missing_device_has_no_records() {
        assert_eq!(records(Path::new("/ferric-no-such-device")), b"");
    }
}
