//! `standby.power_off` and `standby.run_image`: the last acts of a deployment.

use std::time::Duration;

use ferric_types::CommandError;

use super::sync::full_sync;
use crate::command::{Command, Context, Mode};
use crate::extensions::NoParams;
use crate::init::power::PowerAction;

/// Time for the answer to reach the conductor before the machine goes down.
const ANSWER_TIME: Duration = Duration::from_millis(500);

/// Powers the machine off.
#[derive(Debug)]
pub struct PowerOff;

impl Command for PowerOff {
    const NAME: &'static str = "power_off";
    const MODE: Mode = Mode::Async;
    type Params = NoParams;
    type Reply = ();

    fn run(context: &Context, _params: NoParams) -> Result<(), CommandError> {
        leave(context, PowerAction::PowerOff)
    }
}

/// Reboots the machine into what was written.
#[derive(Debug)]
pub struct RunImage;

impl Command for RunImage {
    const NAME: &'static str = "run_image";
    const MODE: Mode = Mode::Async;
    type Params = NoParams;
    type Reply = ();

    fn run(context: &Context, _params: NoParams) -> Result<(), CommandError> {
        leave(context, PowerAction::Reboot)
    }
}

fn leave(context: &Context, action: PowerAction) -> Result<(), CommandError> {
    context.progress.phase("flush", None);
    full_sync(&context.app.machine.root);
    std::thread::sleep(ANSWER_TIME);
    context.app.power(action)
}
