//! What only a real block device shows. Without root and a free loop device these tests are counted as skipped.

use std::io::Write as _;
use std::process::Command;

use tempfile::NamedTempFile;

use super::*;

/// A loop device over a temporary file full of old data; detached when dropped.
struct Loop {
    file: NamedTempFile,
    path: String,
}

/// Whether loop devices can be made here, as tried with one; says for `test` why not.
fn can_loop(test: &str) -> bool {
    let attempt = || -> Result<(), String> {
        if !rustix::process::geteuid().is_root() {
            return Err("needs root for loop devices".to_owned());
        }
        let file = NamedTempFile::new().map_err(|error| error.to_string())?;
        file.as_file().set_len(1 << 20).map_err(|error| error.to_string())?;
        let path = try_run("losetup", &["--find", "--show", file.path().to_str().unwrap_or_default()])?;
        try_run("losetup", &["--detach", &path]).map(|_| ())
    };
    attempt().map_err(|reason| skip(test, &reason)).is_ok()
}

/// Has a test counted as skipped.
fn skip(test: &str, reason: &str) {
    // Not eprintln: the test runner would keep it to itself.
    let line = format!("SKIPPED: {test}: {}\n", reason.replace('\n', " "));
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

impl Loop {
    fn new(size_bytes: u64, options: &[&str]) -> Self {
        let file = NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![0xa5; usize::try_from(size_bytes).unwrap()]).unwrap();
        let mut args = vec!["--find", "--show", "--partscan"];
        args.extend(options);
        args.push(file.path().to_str().unwrap());
        let path = run("losetup", &args);
        Self { file, path }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &["--detach", &self.path]);
    }
}

fn run(program: &str, args: &[&str]) -> String {
    try_run(program, args).unwrap()
}

#[expect(clippy::disallowed_methods, reason = "sets up what is tested")]
fn try_run(program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(args).output().map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn partition_bytes(disk: &str) -> Option<u64> {
    let name = disk.rsplit('/').next().unwrap();
    attr::read_u64(&Root::host().path(format!("sys/block/{name}/{name}p1/size"))).ok().map(|sectors| sectors * 512)
}

#[test]
fn a_loop_device_is_opened_measured_and_held() {
    if !can_loop("a_loop_device_is_opened_measured_and_held") {
        return;
    }
    let disk = Loop::new(8 << 20, &[]);
    let dev = BlockDev::open(&disk.path, Access::Exclusive).unwrap();
    assert!(dev.is_block() && !dev.is_read_only().unwrap());
    assert_eq!((dev.size_bytes(), dev.logical_sector()), (8 << 20, 512));
    assert!(dev.physical_sector() >= 512);
    let busy = BlockDev::open(&disk.path, Access::Exclusive).unwrap_err();
    assert!(busy.is_busy(), "{busy}");
    assert!(BlockDev::open(&disk.path, Access::Write).is_ok());
    drop(dev);
    let large = Loop::new(8 << 20, &["--sector-size", "4096"]);
    assert_eq!(BlockDev::open(&large.path, Access::Read).unwrap().logical_sector(), 4096);
    let locked = Loop::new(1 << 20, &["--read-only"]);
    assert!(BlockDev::open(&locked.path, Access::Read).unwrap().is_read_only().unwrap());
}

#[test]
fn direct_writes_zeroing_and_discards_reach_a_loop_device() {
    if !can_loop("direct_writes_zeroing_and_discards_reach_a_loop_device") {
        return;
    }
    let disk = Loop::new(8 << 20, &[]);
    let dev = BlockDev::open(&disk.path, Access::Exclusive).unwrap();
    let direct = dev.direct().unwrap();
    assert!(direct.is_direct());
    let mut buf = crate::aligned::AlignedBuf::zeroed(1 << 20);
    buf.fill(7);
    direct.write_at(2 << 20, &buf).unwrap();
    dev.write_at((4 << 20) + 3, b"buffered").unwrap();
    // Cached pages of the range must not come back after it was zeroed.
    dev.write_at(6 << 20, &[9; 4096]).unwrap();
    dev.zero_range((6 << 20) - 100, 10_000).unwrap();
    dev.flush().unwrap();
    let mut all = vec![0; 8 << 20];
    BlockDev::open(&disk.path, Access::Read).unwrap().read_at(0, &mut all).unwrap();
    let mut want = vec![0xa5; 8 << 20];
    want[2 << 20..3 << 20].fill(7);
    want[(4 << 20) + 3..][..8].copy_from_slice(b"buffered");
    want[(6 << 20) - 100..][..10_000].fill(0);
    assert!(all == want);
    assert!(dev.can_discard() && dev.zeroes_efficiently());
    dev.discard_range(1 << 20, 1 << 20).unwrap();
}

#[test]
fn a_disk_that_is_gone_is_called_gone_whatever_the_kernel_says() {
    if !can_loop("a_disk_that_is_gone_is_called_gone_whatever_the_kernel_says") {
        return;
    }
    let disk = Loop::new(8 << 20, &[]);
    let dev = BlockDev::open(&disk.path, Access::Exclusive).unwrap();
    let direct = dev.direct().unwrap();
    let buf = crate::aligned::AlignedBuf::zeroed(4096);
    // A smaller disk is still there.
    disk.file.as_file().set_len(1 << 20).unwrap();
    run("losetup", &["--set-capacity", &disk.path]);
    let smaller = direct.write_at(2 << 20, &buf).unwrap_err();
    assert_eq!(smaller.io().unwrap().raw_os_error(), Some(Errno::NOSPC.raw_os_error()), "{smaller}");
    // This is what the kernel does with a disk that was pulled.
    disk.file.as_file().set_len(0).unwrap();
    run("losetup", &["--set-capacity", &disk.path]);
    for error in [direct.write_at(0, &buf), dev.write_at(0, &buf), direct.write_at(2 << 20, &buf)] {
        let error = error.unwrap_err();
        assert!(!error.is_medium_error(), "{error}");
        let reason = error.io().unwrap().to_string();
        assert!(reason.starts_with("the disk is gone") && reason.contains("No space left"), "{error}: {reason}");
    }
}

#[test]
fn the_kernel_learns_of_partitions() {
    if !can_loop("the_kernel_learns_of_partitions") {
        return;
    }
    let disk = Loop::new(8 << 20, &[]);
    let dev = BlockDev::open(&disk.path, Access::Exclusive).unwrap();
    dev.add_partition(1, 8192, 1 << 20).unwrap();
    assert_eq!(partition_bytes(&disk.path), Some(1 << 20));
    assert!(dev.delete_partition(2).is_err());
    dev.delete_partition(1).unwrap();
    assert_eq!(partition_bytes(&disk.path), None);
    // There is no table on the disk, so that reading it makes the kernel forget what it was told.
    dev.add_partition(1, 8192, 1 << 20).unwrap();
    dev.reread_table().unwrap();
    assert_eq!(partition_bytes(&disk.path), None);
    // A partition in use makes it refuse, and is left alone.
    dev.add_partition(1, 8192, 1 << 20).unwrap();
    let node = format!("{}p1", disk.path);
    if !Path::new(&node).exists() {
        return skip("the_kernel_learns_of_partitions", "/dev is no devtmpfs, so a partition has no node");
    }
    let partition = BlockDev::open(node, Access::Write).unwrap();
    assert_eq!(partition.size_bytes(), 1 << 20);
    assert!(matches!(dev.reread_table(), Err(BlockDevError::Reread { .. })));
    drop(partition);
    dev.reread_table().unwrap();
}
