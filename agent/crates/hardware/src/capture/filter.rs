//! What is left out of files before they are taken: words of people that no probe reads.

use std::path::Path;

/// Keys of a `uevent` that tell of the kind of a device only; others may hold labels, serial numbers and UUIDs.
const UEVENT: &[&str] = &[
    "BUSNUM",
    "DEVNAME",
    "DEVNUM",
    "DEVTYPE",
    "DRIVER",
    "IFINDEX",
    "INTERFACE",
    "MAJOR",
    "MINOR",
    "MMC_TYPE",
    "MODALIAS",
    "NVME_TRTYPE",
    "OF_COMPATIBLE_0",
    "OF_NAME",
    "PARTN",
    "PCI_CLASS",
    "PCI_ID",
    "PCI_SLOT_NAME",
    "PCI_SUBSYS_ID",
    "PRODUCT",
    "TYPE",
];
/// Keys of udev's database that the probes read.
const UDEV: &[&str] = &[
    "DM_MULTIPATH_DEVICE_PATH",
    "DM_SERIAL",
    "DM_SERIAL_SHORT",
    "DM_WWN",
    "DM_WWN_VENDOR_EXTENSION",
    "DM_WWN_WITH_EXTENSION",
    "ID_MODEL",
    "ID_MODEL_ENC",
    "ID_SCSI_SERIAL",
    "ID_SERIAL",
    "ID_SERIAL_SHORT",
    "ID_WWN",
    "ID_WWN_VENDOR_EXTENSION",
    "ID_WWN_WITH_EXTENSION",
    "SCSI_IDENT_SERIAL",
];
/// Mount points that every system has.
const MOUNT_POINTS: &[&str] = &["/", "/boot", "/boot/efi", "/home", "/usr", "/var"];

/// What is taken of a file.
pub(super) fn filtered(path: &Path, content: Vec<u8>) -> Vec<u8> {
    let is_in = |folder: &str| path.iter().any(|part| part == folder);
    if path.file_name().is_some_and(|name| name == "symbolic_name") {
        return without_host(&content);
    }
    if path.file_name().is_some_and(|name| name == "name") && is_in("input") {
        // What a person calls a device; no probe reads it.
        return b"\n".to_vec();
    }
    let keep: fn(&str) -> Option<String> = match path.to_str() {
        Some("proc/cmdline") => return boot_interface(&content),
        Some("proc/self/mountinfo") => mount,
        _ if path.file_name().is_some_and(|name| name == "uevent") => |line| assigned(line, "", UEVENT),
        _ if path.starts_with("run/udev/data") => |line| assigned(line, "E:", UDEV),
        _ => return content,
    };
    let text = String::from_utf8_lossy(&content);
    let mut kept: String = text.lines().filter_map(keep).map(|line| line + "\n").collect();
    if kept.is_empty() && path.file_name().is_some_and(|name| name == "uevent") {
        kept.push('\n');
    }
    kept.into_bytes()
}

fn assigned(line: &str, start: &str, keys: &[&str]) -> Option<String> {
    let (key, _) = line.strip_prefix(start)?.split_once('=')?;
    keys.contains(&key).then(|| line.to_owned())
}

/// The parameter that names the interface that the machine was booted over. Others hold addresses and tokens.
fn boot_interface(content: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(content);
    let found = text.split_whitespace().find(|word| word.starts_with("BOOTIF="));
    found.map(|word| format!("{word}\n")).unwrap_or_default().into_bytes()
}

/// What an FC adapter says of itself, without the name of a host that it has from its driver or its switch.
fn without_host(content: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(content);
    let Some((head, tail)) = text.split_once("HN:") else { return content.to_vec() };
    let rest = tail.find(char::is_whitespace).and_then(|end| tail.get(end..)).unwrap_or_default();
    format!("{head}HN:host.{rest}").into_bytes()
}

/// A mount of a disk (proc_pid_mountinfo(5)), without the folder in it, its options, the name of where it is and
/// those that people give to disks.
fn mount(line: &str) -> Option<String> {
    let (head, tail) = line.split_once(" - ")?;
    let mut head = head.split(' ');
    let (id, parent, devno) = (head.next()?, head.next()?, head.next()?);
    let point = head.nth(1)?;
    let mut tail = tail.split(' ');
    let (kind, source) = (tail.next()?, tail.next()?);
    let point = if MOUNT_POINTS.contains(&point) { point } else { "/mnt" };
    let disk = source.strip_prefix("/dev/")?;
    let source = if disk.contains('/') { "/dev/volume" } else { source };
    Some(format!("{id} {parent} {devno} / {point} rw - {kind} {source} rw"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_people_are_left_out() {
        for (path, content, want) in [
            (
                "sys/devices/x/uevent",
                "DEVTYPE=partition\nPARTN=1\nPARTNAME=payroll\nHID_UNIQ=a1\n",
                "DEVTYPE=partition\nPARTN=1\n",
            ),
            ("sys/devices/x/uevent", "PARTNAME=payroll\n", "\n"),
            (
                "run/udev/data/b8:0",
                "S:disk/by-label/payroll\nE:ID_FS_LABEL=payroll\nE:ID_SERIAL=x\nI:1\n",
                "E:ID_SERIAL=x\n",
            ),
            ("proc/cmdline", "quiet ipa-agent-token=t BOOTIF=01-52-54-00-aa-bb-cc\n", "BOOTIF=01-52-54-00-aa-bb-cc\n"),
            ("proc/cmdline", "root=/dev/sda1", ""),
            (
                "proc/self/mountinfo",
                "22 1 8:1 /sub / rw,noatime shared:1 - ext4 /dev/sda1 rw,errors=x\n\
                 23 22 0:40 / /nfs rw - nfs server:/payroll rw\n\
                 24 22 8:2 / /srv/payroll rw - xfs /dev/sda2 rw\n",
                "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n24 22 8:2 / /mnt rw - xfs /dev/sda2 rw\n",
            ),
            (
                "proc/self/mountinfo",
                "22 1 253:0 / / rw - xfs /dev/mapper/vgother-lvsalaries rw\n\
                 23 1 8:1 / /boot rw - xfs /dev/disk/by-uuid/7d1c rw\n",
                "22 1 253:0 / / rw - xfs /dev/volume rw\n23 1 8:1 / /boot rw - xfs /dev/volume rw\n",
            ),
            ("proc/self/mountinfo", "", ""),
            ("sys/devices/h/symbolic_name", "FV1 DV14. HN:other.example. OS:Linux\n", "FV1 DV14. HN:host. OS:Linux\n"),
            ("sys/devices/h/symbolic_name", "FV1 HN:other\n", "FV1 HN:host.\n"),
            ("sys/devices/h/symbolic_name", "fnic v1 over fnic0\n", "fnic v1 over fnic0\n"),
            ("sys/devices/usb1/input/input3/name", "Bob's phone\n", "\n"),
            ("sys/devices/virtual/block/dm-0/dm/name", "root\n", "root\n"),
            ("proc/meminfo", "MemTotal: 1 kB\n", "MemTotal: 1 kB\n"),
        ] {
            let kept = filtered(Path::new(path), content.as_bytes().to_vec());
            assert_eq!(String::from_utf8(kept).unwrap(), want, "{path}: {content}");
        }
    }
}
