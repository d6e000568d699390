//! `system`: leave the machine on, but out of reach.

use ferric_types::CommandError;

use super::NoParams;
use crate::command::{Command, CommandEntry, Context, Extension, Mode};

/// The extension.
pub const EXTENSION: Extension = Extension { name: "system", commands: &[CommandEntry::of::<Lockdown>()] };

struct Lockdown;

impl Command for Lockdown {
    const NAME: &'static str = "lockdown";
    const MODE: Mode = Mode::Sync;
    type Params = NoParams;
    type Reply = ();

    /// The API finishes the answers under way and stops; then every network interface goes down.
    fn run(context: &Context, _params: NoParams) -> Result<(), CommandError> {
        context.app.lock_down();
        Ok(())
    }
}
