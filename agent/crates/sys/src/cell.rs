//! Programs of an image, run within the image's own file system and nothing else.
//!
//! Such a program is somebody else's and runs as root. It has namespaces of its own for mounts, processes, the network and
//! System V objects: it sees no process of the agent and no network at all. Its root is the image, its `/dev` has the few
//! devices that it was given, `/proc` and `/sys` cannot be written to. It has the rights of root on files and no others: it
//! cannot mount, load modules, make devices, trace or restart the machine, nor get any right by running something. When it
//! ends, or is killed, everything that it started is killed.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use rustix::fs::{CWD, Dev, FileType, Mode, OFlags, mknodat};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change, mount_remount};
use rustix::thread::{CapabilitySet, UnshareFlags};

/// Where a program of an image runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cell {
    /// The image's file system, mounted.
    pub root: PathBuf,
    /// Device nodes that it may use, besides harmless ones; each appears in `/dev` by its last name.
    pub devices: Vec<PathBuf>,
    /// Links in `/dev`: name and what it points to.
    pub links: Vec<(String, String)>,
}

/// Devices that every program expects.
const HARMLESS: [&str; 5] = ["null", "zero", "full", "random", "urandom"];
const LINKS: [(&str, &str); 4] = [("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")];
/// What root may still do: use files, whoever owns them.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID);
/// More than the last capability that the kernel knows.
const CAPABILITIES: u32 = 64;

const NOTHING_SPECIAL: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);
const NO_PROGRAMS: MountFlags = NOTHING_SPECIAL.union(MountFlags::NOEXEC);
const ONLY_READ: MountFlags = NO_PROGRAMS.union(MountFlags::RDONLY);

/// Starts a program in a cell.
pub(crate) fn spawn(cell: &Cell, command: &mut Command) -> io::Result<Child> {
    confine_at_start(command);
    // Namespaces and root belong to a thread: one that ends with this, so that nothing else ever runs in it.
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("cell".to_owned()).spawn_scoped(scope, || {
            // What is missing here is not the program.
            enter(cell).map_err(|error| io::Error::other(format!("locking it into its image: {error}")))?;
            command.spawn()
        })?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that starts it panicked")))
    })
}

/// Takes the calling thread into the cell.
#[expect(unsafe_code, reason = "a thread leaves what it shares with others")]
fn enter(cell: &Cell) -> io::Result<()> {
    let mut devices = Vec::new();
    let harmless = HARMLESS.iter().map(|name| Path::new("/dev").join(name));
    for path in harmless.chain(cell.devices.iter().cloned()) {
        let found = rustix::fs::stat(&path).map_err(|error| about(&path, error))?;
        devices.push((path, FileType::from_raw_mode(found.st_mode), found.st_rdev));
    }
    let own = UnshareFlags::FS
        | UnshareFlags::NEWNS
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWNET
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWUTS;
    // SAFETY: descriptors stay shared, as `FILES` is not among the flags.
    unsafe { rustix::thread::unshare_unsafe(own) }?;
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
    // In here programs of the image may run.
    mount_remount(&cell.root, MountFlags::BIND | NOTHING_SPECIAL, "").map_err(|error| about(&cell.root, error))?;
    rustix::process::chroot(&cell.root)?;
    rustix::process::chdir("/")?;
    // From here on no path leads out of the image.
    furnish(cell, &devices)
}

/// Makes `/dev` and what else a program needs.
fn furnish(cell: &Cell, devices: &[(PathBuf, FileType, Dev)]) -> io::Result<()> {
    let empty = |kind: &'static std::ffi::CStr, place: &str, flags, options: Option<&std::ffi::CStr>| {
        match std::fs::create_dir(place) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        mount(kind, place, kind, flags, options).map_err(|error| about(Path::new(place), error))
    };
    let own_devices = MountFlags::NOSUID | MountFlags::NOEXEC;
    empty(c"tmpfs", "/dev", own_devices, Some(c"mode=755,size=256k"))?;
    empty(c"sysfs", "/sys", ONLY_READ, None)?;
    for place in ["/run", "/tmp"] {
        empty(c"tmpfs", place, NO_PROGRAMS, Some(c"mode=1777,size=8m"))?;
    }
    std::fs::create_dir_all("/proc")?;
    for (path, kind, number) in devices {
        let Some(name) = path.file_name() else { continue };
        let node = Path::new("/dev").join(name);
        mknodat(CWD, &node, *kind, Mode::from_raw_mode(0o600), *number).map_err(|error| about(&node, error))?;
    }
    let links = LINKS.iter().map(|(name, target)| (*name, *target));
    for (name, target) in links.chain(cell.links.iter().map(|(name, target)| (name.as_str(), target.as_str()))) {
        let link = Path::new("/dev").join(name);
        link.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        std::os::unix::fs::symlink(target, link)?;
    }
    Ok(())
}

fn about(path: &Path, error: rustix::io::Errno) -> io::Error {
    let error = io::Error::from(error);
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Has the child give up what it may not have, right before the program begins.
#[expect(unsafe_code, reason = "code between fork and exec")]
fn confine_at_start(command: &mut Command) {
    use std::os::unix::process::CommandExt as _;
    // SAFETY: the function only makes system calls, with texts that are constants: it takes no lock and no memory.
    unsafe { command.pre_exec(confine) };
}

/// The first process of its namespace: only it can mount what shows the processes of this namespace.
fn confine() -> io::Result<()> {
    mount(c"proc", c"/proc", c"proc", NO_PROGRAMS, None)?;
    // The agent is never killed for lack of memory; this is the first to be.
    let score = rustix::fs::open(c"/proc/self/oom_score_adj", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&score, b"1000")?;
    drop(score);
    // Root may write to switches of the machine there, whatever its capabilities.
    mount_remount(c"/proc", ONLY_READ, c"")?;
    for number in 0..CAPABILITIES {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if KEPT.contains(capability) {
            continue;
        }
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // The kernel does not know it.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    rustix::thread::set_no_new_privs(true)?;
    rustix::process::setsid()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::exec::{Cmd, Exec, ExecError, SystemExec};

    /// A directory that is a file system of its own in the cell: the host's, read through a bind mount, with a place to write.
    struct Lab {
        dir: tempfile::TempDir,
    }

    /// Namespaces take root, and a kernel or container that lets root make them; then there is nothing to test.
    fn lab(test: &str) -> Option<Lab> {
        use std::io::Write as _;
        let dir = tempfile::tempdir().unwrap();
        let lab = Lab { dir };
        let root = lab.root();
        let Err(error) = std::fs::create_dir(&root).and_then(|()| {
            mount(c"tmpfs", &root, c"tmpfs", NO_PROGRAMS, None)?;
            for name in ["bin", "lib", "lib64", "usr", "etc"] {
                match std::fs::read_link(Path::new("/").join(name)) {
                    Ok(target) => std::os::unix::fs::symlink(target, root.join(name))?,
                    Err(_) if !Path::new("/").join(name).exists() => {}
                    Err(_) => {
                        std::fs::create_dir(root.join(name))?;
                        rustix::mount::mount_bind(Path::new("/").join(name), root.join(name))?;
                    }
                }
            }
            SystemExec.run(&lab.cmd("true")).map(drop).map_err(io::Error::other)
        }) else {
            return Some(lab);
        };
        let line = format!("SKIPPED: {test}: no namespaces here: {error}\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        None
    }

    impl Lab {
        fn root(&self) -> PathBuf {
            self.dir.path().join("image")
        }

        fn cmd(&self, program: &str) -> Cmd {
            Cmd::new(program).within(Cell { root: self.root(), ..Cell::default() })
        }

        fn shell(&self, script: &str) -> (i32, String) {
            let output = SystemExec.run(&self.cmd("sh").args(["-c", script])).unwrap();
            (output.code, output.text() + &String::from_utf8_lossy(&output.stderr))
        }
    }

    impl Drop for Lab {
        fn drop(&mut self) {
            let _gone = rustix::mount::unmount(self.root(), rustix::mount::UnmountFlags::DETACH);
        }
    }

    #[test]
    fn a_program_of_an_image_has_its_files_and_nothing_of_the_machine() {
        let Some(lab) = lab("cell") else { return };
        let (code, text) = lab.shell("echo $$; echo /proc/[0-9]*; ls /dev /; tail -n +3 /proc/net/dev; pwd");
        assert_eq!(code, 0, "{text}");
        assert!(text.starts_with("1\n/proc/1"), "other processes are seen: {text}");
        assert!(text.contains("urandom") && !text.contains("kmsg") && !text.contains("mem"), "{text}");
        assert_eq!(text.lines().filter(|line| line.contains(':')).count(), 3, "more than two headings and lo: {text}");
        assert!(text.ends_with("/\n"), "{text}");
        let (code, text) = lab.shell("echo made > /etc-of-image && cat /etc-of-image");
        assert_eq!((code, text.as_str()), (0, "made\n"));
        assert_eq!(std::fs::read_to_string(lab.root().join("etc-of-image")).unwrap(), "made\n");
    }

    #[test]
    fn what_could_reach_the_machine_is_refused() {
        let Some(lab) = lab("cell") else { return };
        for script in [
            "mount -t tmpfs none /tmp",
            "mknod /made c 1 1",
            "echo b > /proc/sysrq-trigger",
            "echo x > /proc/sys/kernel/core_pattern",
            "echo x > /proc/sys/kernel/hostname",
            "echo 1 > /sys/kernel/mm/ksm/run",
            "chroot / true",
            "head -c 1 /dev/mem",
            "unshare -n true",
            "grep -q 'NoNewPrivs:.0' /proc/self/status",
            "cp /bin/true /run/x && /run/x",
        ] {
            let (code, text) = lab.shell(script);
            assert_ne!(code, 0, "{script}: {text}");
        }
        let (_, text) =
            lab.shell("grep -e CapEff -e CapBnd -e NoNewPrivs /proc/self/status; cat /proc/self/oom_score_adj");
        let words: Vec<&str> = text.split_whitespace().collect();
        let caps = format!("{:016x}", KEPT.bits());
        assert_eq!(words, ["CapEff:", &caps, "CapBnd:", &caps, "NoNewPrivs:", "1", "1000"], "{text}");
    }

    #[test]
    fn a_program_that_ends_takes_everything_along_that_it_started() {
        let Some(lab) = lab("cell") else { return };
        // Its output would stay open for as long as the background process lives.
        let began = std::time::Instant::now();
        assert_eq!(lab.shell("sleep 60 & echo done"), (0, "done\n".to_owned()));
        let cmd = lab.cmd("sh").args(["-c", "sleep 61 & sleep 62"]).timeout(Duration::from_millis(300));
        assert!(matches!(SystemExec.run(&cmd), Err(ExecError::Timeout { .. })));
        assert!(began.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn missing_programs_and_devices_are_told_apart_and_the_agent_stays_where_it_is() {
        let Some(lab) = lab("cell") else { return };
        assert!(matches!(SystemExec.run(&lab.cmd("ferric-nothing")), Err(ExecError::NotFound { .. })));
        let cell = Cell { root: lab.root(), devices: vec!["/dev/ferric-nothing".into()], ..Cell::default() };
        let error = SystemExec.run(&Cmd::new("true").within(cell)).unwrap_err();
        let ExecError::Io { source, .. } = &error else { panic!("{error:?}") };
        assert!(source.to_string().contains("/dev/ferric-nothing"), "{source}");
        assert!(!lab.root().join("dev").join("null").exists() && std::env::current_dir().unwrap() != Path::new("/"));
        let links = vec![("disk/by-uuid/abc".to_owned(), "../../null".to_owned())];
        let cell = Cell { root: lab.root(), devices: vec![], links };
        let cmd = Cmd::new("readlink").args(["-f", "/dev/disk/by-uuid/abc"]).within(cell);
        assert_eq!(SystemExec.run(&cmd).unwrap().text(), "/dev/null\n");
    }
}
