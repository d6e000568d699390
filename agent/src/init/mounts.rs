//! File systems of the ramdisk.

use std::ffi::CString;
use std::fs;

use ferric_sys::Root;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tracing::{debug, warn};

/// One file system to mount.
struct Mount {
    source: &'static str,
    target: &'static str,
    fstype: &'static str,
    flags: MountFlags,
    data: &'static str,
    /// Only when this directory exists.
    when: Option<&'static str>,
}

const SAFE: MountFlags = MountFlags::NOSUID.union(MountFlags::NOEXEC).union(MountFlags::NODEV);

/// In order: later ones lie below earlier ones.
const MOUNTS: &[Mount] = &[
    Mount { source: "proc", target: "/proc", fstype: "proc", flags: SAFE, data: "", when: None },
    Mount { source: "sysfs", target: "/sys", fstype: "sysfs", flags: SAFE, data: "", when: None },
    Mount {
        source: "devtmpfs",
        target: "/dev",
        fstype: "devtmpfs",
        flags: MountFlags::NOSUID,
        data: "mode=0755",
        when: None,
    },
    Mount {
        source: "devpts",
        target: "/dev/pts",
        fstype: "devpts",
        flags: MountFlags::NOSUID.union(MountFlags::NOEXEC),
        data: "mode=0620,ptmxmode=0666",
        when: None,
    },
    Mount { source: "tmpfs", target: "/run", fstype: "tmpfs", flags: SAFE, data: "mode=0755,size=20%", when: None },
    Mount { source: "tmpfs", target: "/tmp", fstype: "tmpfs", flags: SAFE, data: "mode=1777,size=20%", when: None },
    Mount {
        source: "pstore",
        target: "/sys/fs/pstore",
        fstype: "pstore",
        flags: SAFE,
        data: "",
        when: Some("/sys/fs/pstore"),
    },
];

/// Needs its driver, so it is mounted once drivers can be loaded.
const EFIVARFS: Mount = Mount {
    source: "efivarfs",
    target: "/sys/firmware/efi/efivars",
    fstype: "efivarfs",
    flags: SAFE,
    data: "",
    when: Some("/sys/firmware/efi/efivars"),
};

/// Mounts what the agent needs. What fails is logged and left out: PID 1 goes on with what there is.
pub(super) fn mount_all() {
    MOUNTS.iter().for_each(mount_one);
}

/// Mounts the EFI variables, on a machine that booted by UEFI.
pub(super) fn mount_efivarfs() {
    mount_one(&EFIVARFS);
}

fn mount_one(entry: &Mount) {
    let root = Root::host();
    if entry.when.is_some_and(|directory| !root.path(directory).is_dir()) {
        return;
    }
    // Fails below /sys, where the directory is there already, and where it is missing the mount says so.
    let _exists = fs::create_dir_all(entry.target);
    let data = CString::new(entry.data).unwrap_or_default();
    match mount(entry.source, entry.target, entry.fstype, entry.flags, data.as_c_str()) {
        Ok(()) => {}
        Err(Errno::BUSY) => debug!("{} is mounted already", entry.target),
        Err(error) => warn!("mounting {} on {}: {error}", entry.fstype, entry.target),
    }
}

/// Unmounts every file system of a disk, last mounted first, so that each is clean when the power goes.
pub(super) fn unmount_disks() {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for target in disk_mounts(&mounts).iter().rev() {
        if let Err(error) = unmount(target.as_str(), UnmountFlags::empty()) {
            warn!("unmounting {target}: {error}");
        }
    }
}

/// Mount points of file systems on devices, in the order of mounting. Blanks in them are written as `\040`.
fn disk_mounts(mounts: &str) -> Vec<String> {
    let of_line = |line: &str| {
        let mut words = line.split(' ');
        let (source, target) = (words.next()?, words.next()?);
        source.starts_with("/dev/").then(|| target.replace("\\040", " ").replace("\\011", "\t"))
    };
    mounts.lines().filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_come_after_what_they_lie_below() {
        for (index, entry) in MOUNTS.iter().enumerate() {
            for above in MOUNTS.iter().filter(|above| entry.target.starts_with(&format!("{}/", above.target))) {
                let position = MOUNTS.iter().position(|other| other.target == above.target).unwrap();
                assert!(position < index, "{} before {}", above.target, entry.target);
            }
        }
    }

    #[test]
    fn only_file_systems_of_disks_are_unmounted() {
        let text = "proc /proc proc rw 0 0\n/dev/sda1 /mnt/a\\040b ext4 rw 0 0\ndevtmpfs /dev devtmpfs rw 0 0\n/dev/md0 /mnt/a\\040b/c xfs rw 0 0\n";
        assert_eq!(disk_mounts(text), ["/mnt/a b", "/mnt/a b/c"]);
    }
}
