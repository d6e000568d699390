//! Power off, reboot and lockdown, as the worker asks for them.

use ferric_sys::{Cmd, Exec, ExecError, Root, SystemExec, attr};

use super::link;

/// What shall become of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PowerAction {
    /// Flush everything and power off.
    PowerOff,
    /// Flush everything and start again from the firmware.
    Reboot,
    /// Take every network interface down and do nothing any more.
    Lockdown,
}

impl PowerAction {
    const ALL: [Self; 3] = [Self::PowerOff, Self::Reboot, Self::Lockdown];

    /// The word for it on the link between worker and PID 1.
    pub const fn word(self) -> &'static str {
        match self {
            Self::PowerOff => "power-off",
            Self::Reboot => "reboot",
            Self::Lockdown => "lockdown",
        }
    }

    pub(super) fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.word() == word)
    }
}

/// A request that came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum PowerError {
    /// PID 1 did not take the message.
    #[error("asking PID 1 for {}", action.word())]
    Link {
        /// What was asked for.
        action: PowerAction,
        /// Reason.
        #[source]
        source: std::io::Error,
    },
    /// This is somebody's installed system.
    #[error("refusing {}: the root file system is {fstype}, so this machine does not run from a ramdisk", action.word())]
    NotARamdisk {
        /// What was asked for.
        action: PowerAction,
        /// Type of the root file system.
        fstype: String,
    },
    /// The service manager of the ramdisk refused.
    #[error("asking the service manager for {}", action.word())]
    ServiceManager {
        /// What was asked for.
        action: PowerAction,
        /// Reason.
        #[source]
        source: ExecError,
    },
}

/// Asks for it. Below our own PID 1 this returns as soon as the request is on its way; the worker is ended soon after.
///
/// As a service of another ramdisk, systemd is asked. On an installed system the request is refused: a developer's
/// machine must not go down because a conductor says so.
///
/// # Errors
/// The request could not be made.
pub fn request(action: PowerAction) -> Result<(), PowerError> {
    if let Some(link) = link::get() {
        return link.send(action.word()).map_err(|source| PowerError::Link { action, source });
    }
    let root = Root::host();
    let mounts = attr::read_trimmed(&root.path("proc/self/mounts")).unwrap_or_default();
    let fstype = root_fstype(&mounts);
    if !matches!(fstype, "rootfs" | "ramfs" | "tmpfs" | "squashfs") {
        return Err(PowerError::NotARamdisk { action, fstype: fstype.to_owned() });
    }
    let service = |source| PowerError::ServiceManager { action, source };
    let commands: Vec<Cmd> = match action {
        PowerAction::PowerOff => vec![Cmd::new("systemctl").args(["--no-block", "poweroff"])],
        PowerAction::Reboot => vec![Cmd::new("systemctl").args(["--no-block", "reboot"])],
        PowerAction::Lockdown => attr::list(&root.path("sys/class/net"))
            .into_iter()
            .map(|name| Cmd::new("ip").args(["link", "set", &name, "down"]))
            .collect(),
    };
    commands
        .iter()
        .try_for_each(|cmd| ferric_sys::exec::check(&SystemExec as &dyn Exec, cmd).map(|_| ()))
        .map_err(service)
}

/// Type of the file system at `/`; the last mount there is the one in use.
fn root_fstype(mounts: &str) -> &str {
    let line = mounts.lines().rfind(|line| line.split(' ').nth(1) == Some("/"));
    line.and_then(|line| line.split(' ').nth(2)).unwrap_or("unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_back() {
        for action in PowerAction::ALL {
            assert_eq!(PowerAction::from_word(action.word()), Some(action));
        }
        assert_eq!(PowerAction::from_word("ping"), None);
    }

    #[test]
    fn the_last_mount_of_the_root_counts() {
        let mounts = "rootfs / rootfs rw 0 0\nproc /proc proc rw 0 0\n/dev/sda1 / ext4 rw 0 0\n";
        assert_eq!(root_fstype(mounts), "ext4");
        assert_eq!(root_fstype("rootfs / rootfs rw 0 0\n"), "rootfs");
        assert_eq!(root_fstype(""), "unknown");
    }
}
