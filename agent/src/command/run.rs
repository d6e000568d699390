//! Running a command: inside the request or on a thread of its own. Only this module changes a command's status.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ferric_types::{CommandError, CommandRecord, ErrorClass, Progress};
use serde_json::{Map, Value, json};
use tracing::{error, info};

use super::dispatch;
use super::entry::{CommandEntry, Context, Job, Mode};
use super::store::Outcome;
use crate::app::App;

/// Runs `extension.command` as a POST asks for it. With `wait` the record is returned when the command has ended.
///
/// Checks come in the reference agent's order: name, busy, extension, command, parameters (protocol section 12).
/// Synchronous commands hold the command lock, so a second request waits for them instead of being told off.
///
/// # Errors
/// An error to be answered as an HTTP fault; everything else is in the record.
pub async fn execute(
    app: &Arc<App>,
    name: &str,
    params: Map<String, Value>,
    wait: bool,
) -> Result<CommandRecord, CommandError> {
    let id = {
        let _lock = app.command_lock.lock().await;
        let (extension, command) = dispatch::split(name)?;
        if let Some(running) = app.store.busy() {
            return Err(busy(&running));
        }
        let entry = dispatch::find(app.extensions, extension, command)?;
        info!(command = name, "command received");
        match entry.mode {
            Mode::Sync => return run_sync(app, &entry, name, params).await,
            Mode::Async => match start_async(app, &entry, params)? {
                Started::Running(id) => id,
                Started::Refused(record) => return Ok(*record),
            },
        }
    };
    let record = if wait { app.store.wait(&id).await } else { app.store.get(&id) };
    record.ok_or_else(|| CommandError::new(ErrorClass::Rest, format!("the record of {name} is gone")))
}

/// The error for whoever gives a command while another one runs.
pub fn busy(running: &str) -> CommandError {
    CommandError::new(ErrorClass::AgentIsBusy, format!("executing command {running}"))
}

async fn run_sync(
    app: &Arc<App>,
    entry: &CommandEntry,
    full_name: &str,
    params: Map<String, Value>,
) -> Result<CommandRecord, CommandError> {
    let context = Context { app: app.clone(), progress: Progress::new() };
    let entry = *entry;
    let worker = tokio::task::spawn_blocking(move || {
        let job = entry.prepare(&context, params)?;
        guarded(job, &context)
    });
    let outcome = worker.await.unwrap_or_else(|error| Err(panicked(entry.name, &error.into_panic())));
    match outcome {
        Err(error) if error.class.is_invalid_content() => Err(error),
        Err(error) => {
            error!(command = full_name, %error, "command failed");
            Ok(app.store.add_finished(full_name, Err(error)))
        }
        Ok(Value::String(text)) => Ok(app.store.add_finished(entry.name, Ok(json!({ "result": text })))),
        Ok(value) => Ok(app.store.add_finished(entry.name, Ok(value))),
    }
}

enum Started {
    Running(String),
    Refused(Box<CommandRecord>),
}

fn start_async(app: &Arc<App>, entry: &CommandEntry, params: Map<String, Value>) -> Result<Started, CommandError> {
    let context = Context { app: app.clone(), progress: Progress::new() };
    let job = match entry.prepare(&context, params) {
        Ok(job) => job,
        Err(error) if error.class.is_invalid_content() => return Err(error),
        Err(error) => {
            error!(command = entry.name, %error, "command refused");
            return Ok(Started::Refused(Box::new(app.store.add_finished(entry.name, Err(error)))));
        }
    };
    let id = app.store.begin(entry.name, context.progress.clone());
    app.save_handover();
    let name = entry.name;
    let spawned = {
        let id = id.clone();
        std::thread::Builder::new().name(name.chars().take(15).collect()).spawn(move || {
            let outcome = guarded(job, &context).map(|value| prefixed(name, value));
            finish(&context.app, &id, name, outcome);
        })
    };
    if let Err(source) = spawned {
        let error = CommandError::new(ErrorClass::CommandExecution, format!("starting a thread for {name}: {source}"));
        finish(app, &id, name, Err(error));
    }
    Ok(Started::Running(id))
}

/// A text result of a background command carries the command's name (protocol section 12).
fn prefixed(name: &str, value: Value) -> Value {
    match value {
        Value::String(text) => json!({ "result": format!("{name}: {text}") }),
        other => other,
    }
}

fn finish(app: &Arc<App>, id: &str, name: &str, outcome: Outcome) {
    match &outcome {
        Ok(_) => info!(command = name, "command succeeded"),
        Err(error) => error!(command = name, %error, "command failed"),
    }
    app.store.finish(id, outcome);
    app.save_handover();
    app.force_heartbeat();
}

fn guarded(job: Job, context: &Context) -> Outcome {
    // After a panic only the record is touched, and the state behind the locks stays whole: see `CommandStore`.
    catch_unwind(AssertUnwindSafe(|| job(context))).unwrap_or_else(|payload| Err(panicked("the command", &payload)))
}

fn panicked(what: &str, payload: &Box<dyn Any + Send>) -> CommandError {
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned());
    CommandError::new(ErrorClass::CommandExecution, format!("{what} panicked: {text}"))
}
