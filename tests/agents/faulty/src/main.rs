//! An agent outside of Ferric's own source: the standard extensions and one more, whose commands fail on order, and a
//! hardware manager with a cleaning step of that kind.
//!
//! It shows how an image with extensions of one's own is made (`make image AGENT=tests/agents/faulty`), and lets tests
//! see what a panic, a crash and a lack of memory do on a booted machine.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ferric_agent::command::{Command, CommandEntry, Context, Extension, Mode};
use ferric_agent::extensions::EXTENSIONS;
use ferric_hardware::{
    ArgInfo, HardwareError, HardwareManager, HardwareSupport, MANAGERS, Machine, Priorities, Priority, Probes, Step,
};
use ferric_sys::netlink::{LinkChange, Netlink};
use ferric_types::{CommandError, ErrorClass, MacAddress};
use serde_json::Value;

mod stack;

const FAULTY: Extension = Extension {
    name: "faulty",
    commands: &[
        CommandEntry::of::<Panic>(),
        CommandEntry::of::<Abort>(),
        CommandEntry::of::<Eat>(),
        CommandEntry::of::<Sleep>(),
        CommandEntry::of::<Hold>(),
        CommandEntry::of::<Readdress>(),
        CommandEntry::of::<stack::Stack>(),
    ],
};

fn main() -> ExitCode {
    ferric_agent::run([EXTENSIONS, &[&FAULTY]].concat().leak(), [MANAGERS, &[&FaultyHardwareManager]].concat().leak())
}

/// Brings the steps `abort_worker` and `pause`, which only an operator can order.
#[derive(Debug)]
struct FaultyHardwareManager;

impl HardwareManager for FaultyHardwareManager {
    fn name(&self) -> &'static str {
        "faulty_hardware_manager"
    }

    fn class_name(&self) -> &'static str {
        "FaultyHardwareManager"
    }

    fn version(&self) -> &'static str {
        "1.0"
    }

    fn support(&self, _machine: &Machine) -> HardwareSupport {
        HardwareSupport::Generic
    }

    fn initialize(&self, _machine: &Machine) -> Result<(), HardwareError> {
        Ok(())
    }

    fn steps(&self) -> &'static [Step] {
        const ABORT: Step = Step {
            name: "abort_worker",
            interface: "deploy",
            priorities: Priorities { clean: Some(Priority::Fixed(0)), ..Priorities::NONE },
            reboot_requested: false,
            abortable: Some(true),
            args: &[],
            run: |_, _| abort(),
        };
        const STEPS: &[Step] = &[
            ABORT,
            Step {
                name: "pause",
                priorities: Priorities { service: Some(Priority::Fixed(0)), ..Priorities::NONE },
                args: &[ArgInfo { name: "seconds", description: "How long.", required: true }],
                run: |_, args| {
                    std::thread::sleep(Duration::from_secs(args.get("seconds").and_then(Value::as_u64).unwrap_or(0)));
                    Ok(Value::from("rested"))
                },
                ..ABORT
            },
        ];
        STEPS
    }

    fn probes(&self) -> &'static Probes {
        const { &Probes::NONE }
    }
}

/// Ends the whole worker, as a bug in unsafe code would.
fn abort<T>() -> Result<T, CommandError> {
    // The answer to the request goes out first.
    std::thread::sleep(Duration::from_millis(500));
    std::process::abort()
}

struct Panic;

impl Command for Panic {
    const NAME: &'static str = "panic";
    const MODE: Mode = Mode::Async;
    type Params = Value;
    type Reply = ();

    #[expect(clippy::panic, reason = "what the command is for")]
    fn run(_context: &Context, _params: Value) -> Result<(), CommandError> {
        panic!("on purpose")
    }
}

struct Abort;

impl Command for Abort {
    const NAME: &'static str = "abort";
    const MODE: Mode = Mode::Async;
    type Params = Value;
    type Reply = ();

    fn run(_context: &Context, _params: Value) -> Result<(), CommandError> {
        abort()
    }
}

struct Eat;

impl Command for Eat {
    const NAME: &'static str = "eat";
    const MODE: Mode = Mode::Async;
    type Params = Value;
    type Reply = usize;

    /// Takes memory until the kernel kills the worker for it.
    fn run(context: &Context, _params: Value) -> Result<usize, CommandError> {
        std::thread::sleep(Duration::from_millis(500));
        let mut eaten = Vec::new();
        // More than any test machine has; by then something is wrong with the test.
        while eaten.len() < 4096 {
            context.progress.add(1 << 20);
            // Not zeroes: every page must really be there.
            eaten.push(std::hint::black_box(vec![1_u8; 1 << 20]));
        }
        Ok(eaten.len())
    }
}

struct Sleep;

impl Command for Sleep {
    const NAME: &'static str = "sleep";
    const MODE: Mode = Mode::Async;
    type Params = Value;
    type Reply = ();

    fn run(context: &Context, params: Value) -> Result<(), CommandError> {
        let seconds = params.get("seconds").and_then(Value::as_u64).unwrap_or(10);
        context.progress.phase("sleeping", Some(seconds));
        for _ in 0..seconds {
            std::thread::sleep(Duration::from_secs(1));
            context.progress.add(1);
        }
        Ok(())
    }
}

/// Disks that are held.
static HELD: Mutex<Vec<File>> = Mutex::new(Vec::new());
/// `O_EXCL` of open(2); on a block device it is what a mounted file system has, too.
const O_EXCL: i32 = 0o200;

struct Hold;

impl Command for Hold {
    const NAME: &'static str = "hold";
    const MODE: Mode = Mode::Sync;
    type Params = Value;
    type Reply = ();

    /// Holds the disk `device` as a mounted file system would; without one, lets go of all.
    fn run(_context: &Context, params: Value) -> Result<(), CommandError> {
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(device) = params.get("device").and_then(Value::as_str) else {
            held.clear();
            return Ok(());
        };
        let file = File::options().read(true).custom_flags(O_EXCL).open(device);
        held.push(file.map_err(|error| CommandError::from_chain(ErrorClass::BlockDevice, &error))?);
        Ok(())
    }
}

struct Readdress;

impl Command for Readdress {
    const NAME: &'static str = "readdress";
    const MODE: Mode = Mode::Sync;
    type Params = Value;
    type Reply = String;

    /// Gives the network interface `interface` the address `mac`, as a bond does with its members, and says what it has.
    fn run(_context: &Context, params: Value) -> Result<String, CommandError> {
        let text = |key: &str| params.get(key).and_then(Value::as_str).unwrap_or_default();
        let failed =
            |error: &(dyn std::error::Error + 'static)| CommandError::from_chain(ErrorClass::CommandExecution, error);
        let folder = std::path::Path::new("/sys/class/net").join(text("interface"));
        let index = ferric_sys::attr::read_u64(&folder.join("ifindex")).map_err(|error| failed(&error))?;
        let mac: MacAddress = text("mac").parse().map_err(|error| failed(&error))?;
        let change = LinkChange::Address(mac.0);
        let index = u32::try_from(index).map_err(|error| failed(&error))?;
        Netlink::open().and_then(|netlink| netlink.change_link(index, change)).map_err(|error| failed(&error))?;
        ferric_sys::attr::read_trimmed(&folder.join("address")).map_err(|error| failed(&error))
    }
}
