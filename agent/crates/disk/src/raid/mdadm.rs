//! The calls of `mdadm`: the reference agent's, argument for argument.

use std::time::Duration;

use ferric_sys::Cmd;

use super::Level;

/// Making an array writes a superblock to each member, and a bitmap.
const CREATE_LIMIT: Duration = Duration::from_secs(300);

/// An array that is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array {
    /// Device path, such as `/dev/md0`.
    pub device: String,
    /// Name in its superblocks.
    pub name: String,
    /// RAID level.
    pub level: Level,
    /// Version of its superblocks as `mdadm` takes it: `1`, or `1.0` at the members' ends, where firmware does not see it.
    pub metadata: &'static str,
    /// Device paths of its members, in order.
    pub members: Vec<String>,
}

impl Array {
    /// Makes it; superblocks of former arrays on its members are no reason to ask.
    pub fn create(&self) -> Cmd {
        Cmd::new("mdadm")
            .args(["--create", &self.device, "--force", "--run"])
            .arg(format!("--metadata={}", self.metadata))
            .args(["--level", self.level.mdadm(), "--name", &self.name])
            .args(["--raid-devices".to_owned(), self.members.len().to_string()])
            .args(&self.members)
            .timeout(CREATE_LIMIT)
    }
}

/// Puts a member back that an array has lost.
pub fn add(array: &str, member: &str) -> Cmd {
    Cmd::new("mdadm").args(["--add", array, member])
}

/// Stops an array.
pub fn stop(array: &str) -> Cmd {
    Cmd::new("mdadm").args(["--stop", array])
}

/// Starts whatever arrays there are on the machine's devices.
pub fn assemble_all() -> Cmd {
    Cmd::new("mdadm").args(["--assemble", "--scan"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_those_of_the_reference_agent() {
        let array = Array {
            device: "/dev/md1".into(),
            name: "data".into(),
            level: Level::Raid10,
            metadata: "1",
            members: ["/dev/sda2", "/dev/nvme0n1p2"].map(str::to_owned).to_vec(),
        };
        let esp = Array {
            device: "/dev/md127".into(),
            name: "esp".into(),
            level: Level::Raid1,
            metadata: "1.0",
            ..array.clone()
        };
        for (cmd, want) in [
            (
                array.create(),
                "mdadm --create /dev/md1 --force --run --metadata=1 --level 10 --name data --raid-devices 2 /dev/sda2 \
                 /dev/nvme0n1p2",
            ),
            (
                esp.create(),
                "mdadm --create /dev/md127 --force --run --metadata=1.0 --level 1 --name esp --raid-devices 2 /dev/sda2 \
                 /dev/nvme0n1p2",
            ),
            (add("/dev/md1", "/dev/sda2"), "mdadm --add /dev/md1 /dev/sda2"),
            (stop("/dev/md1"), "mdadm --stop /dev/md1"),
            (assemble_all(), "mdadm --assemble --scan"),
        ] {
            assert_eq!(cmd.to_string(), want);
        }
    }
}
