//! An agent for tests: a fixture tree for a machine, an extension whose commands misbehave on order.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ferric_disk::image::source::{Fetch, FetchRequest, ImageSource, SourceError};
use ferric_hardware::{MANAGERS, Machine, Registry};
use ferric_sys::{Root, SystemExec};
use ferric_types::{CommandError, ErrorClass, Secret};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::{App, Parts, Refresh};
use crate::command::{Command, CommandEntry, Context, Extension, Mode};
use crate::conductor::heartbeat::Force;
use crate::config;
use crate::extensions;
use crate::handover::Handover;

/// Token of every agent made here.
pub(crate) const TOKEN: &str = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFG";

/// The standard extensions and `test`.
pub(crate) const EXTENSIONS: &[&Extension] = &[
    &TEST,
    &extensions::standby::EXTENSION,
    &extensions::clean::EXTENSION,
    &extensions::deploy::EXTENSION,
    &extensions::service::EXTENSION,
    &extensions::flow::EXTENSION,
    &extensions::poll::EXTENSION,
    &extensions::rescue::EXTENSION,
    &extensions::system::EXTENSION,
];

const TEST: Extension = Extension {
    name: "test",
    commands: &[
        CommandEntry::of::<Echo>(),
        CommandEntry::of::<SyncUntil>(),
        CommandEntry::of::<AsyncUntil>(),
        CommandEntry::of::<Panic>(),
        CommandEntry::of::<Say>(),
        CommandEntry::of::<Fail>(),
    ],
};

/// Downloads nothing.
#[derive(Debug)]
struct NoFetch;

impl Fetch for NoFetch {
    fn open(&self, request: &FetchRequest) -> Result<Box<dyn ImageSource>, SourceError> {
        panic!("a test without downloads asked for {}", request.url)
    }

    fn get(&self, request: &FetchRequest, _limit: u64) -> Result<Vec<u8>, SourceError> {
        panic!("a test without downloads asked for {}", request.url)
    }
}

/// An agent on a tree; `handover` carries state between two of them.
pub(crate) fn app(root: &Path, handover: Handover) -> Arc<App> {
    std::fs::create_dir_all(root.join("sys/block")).unwrap();
    std::fs::create_dir_all(root.join("proc/self")).unwrap();
    std::fs::write(root.join("proc/self/mountinfo"), "").unwrap();
    let machine = Machine::at(Root::at(root), Arc::new(SystemExec));
    let registry = Registry::new(MANAGERS, &machine).unwrap();
    let (mut config, _) = config::load(&Root::at(root));
    config.agent_token = Some(Secret::new(TOKEN.to_owned()));
    config.disk_wait_attempts = 0;
    Arc::new(App::new(Parts {
        extensions: EXTENSIONS,
        machine,
        registry,
        config,
        handover,
        force: Force::new(),
        fetch: Arc::new(NoFetch),
        refresh: Refresh(Box::new(|_, _| None)),
    }))
}

/// Waits until a file appears in the machine's tree: how a test lets a command end.
fn until_released(context: &Context, name: &str) {
    let path = context.app.machine.root.path(name);
    for _ in 0..2000 {
        if path.exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("nobody released {name}");
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Release {
    file: String,
}

struct SyncUntil;

impl Command for SyncUntil {
    const NAME: &'static str = "sync_until";
    const MODE: Mode = Mode::Sync;
    type Params = Release;
    type Reply = ();

    fn run(context: &Context, params: Release) -> Result<(), CommandError> {
        until_released(context, &params.file);
        Ok(())
    }
}

struct AsyncUntil;

impl Command for AsyncUntil {
    const NAME: &'static str = "async_until";
    const MODE: Mode = Mode::Async;
    type Params = Release;
    type Reply = ();

    fn run(context: &Context, params: Release) -> Result<(), CommandError> {
        context.progress.phase("waiting", Some(100));
        context.progress.add(25);
        until_released(context, &params.file);
        Ok(())
    }
}

struct Echo;

impl Command for Echo {
    const NAME: &'static str = "echo";
    const MODE: Mode = Mode::Sync;
    type Params = Value;
    type Reply = Value;

    fn run(_context: &Context, params: Value) -> Result<Value, CommandError> {
        Ok(json!({ "echo": params }))
    }
}

struct Panic;

impl Command for Panic {
    const NAME: &'static str = "panic";
    const MODE: Mode = Mode::Async;
    type Params = Value;
    type Reply = ();

    fn run(_context: &Context, _params: Value) -> Result<(), CommandError> {
        panic!("on purpose")
    }
}

struct Say;

impl Command for Say {
    const NAME: &'static str = "say";
    const MODE: Mode = Mode::Async;
    type Params = Value;
    type Reply = String;

    fn run(_context: &Context, _params: Value) -> Result<String, CommandError> {
        Ok("done".to_owned())
    }
}

struct Fail;

impl Command for Fail {
    const NAME: &'static str = "fail";
    const MODE: Mode = Mode::Sync;
    type Params = Value;
    type Reply = ();

    fn run(_context: &Context, _params: Value) -> Result<(), CommandError> {
        Err(CommandError::new(ErrorClass::CommandExecution, "no luck"))
    }
}
