//! The machine's power switch, as a BMC gives it to Ironic.

/// What a machine boots next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootTarget {
    /// The ramdisk, over the network or however the caller does it.
    Ramdisk,
    /// Its own disk.
    Disk,
}

/// Power control of one machine.
pub trait Power {
    /// Whether it is on.
    fn is_on(&mut self) -> anyhow::Result<bool>;
    /// Cuts the power; nothing happens when it is off already.
    fn off(&mut self) -> anyhow::Result<()>;
    /// Switches it on.
    fn on(&mut self, target: BootTarget) -> anyhow::Result<()>;
    /// Looks whether the machine is beyond hope (a kernel panic, a lost QEMU); called while waiting for it.
    fn check(&mut self) -> anyhow::Result<()>;
}

/// For agents that run without a machine of their own: remembers what was asked for.
#[derive(Debug, Default)]
pub struct NoPower {
    /// Every switch-on, in order.
    pub boots: Vec<BootTarget>,
    on: bool,
}

impl Power for NoPower {
    fn is_on(&mut self) -> anyhow::Result<bool> {
        Ok(self.on)
    }

    fn off(&mut self) -> anyhow::Result<()> {
        self.on = false;
        Ok(())
    }

    fn on(&mut self, target: BootTarget) -> anyhow::Result<()> {
        self.boots.push(target);
        self.on = true;
        Ok(())
    }

    fn check(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}
