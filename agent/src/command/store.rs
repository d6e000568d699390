//! The records of all commands of this boot, in order.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ferric_types::{CommandError, CommandRecord, CommandStatus, ErrorClass, Progress};
use serde_json::Value;
use tokio::sync::watch;
use uuid::Uuid;

/// All commands since the agent started, oldest first. They stay in memory for the life of the agent, as the
/// conductor expects (protocol section 12).
#[derive(Debug, Default)]
pub struct CommandStore {
    entries: Mutex<Vec<Entry>>,
}

#[derive(Debug)]
struct Entry {
    record: CommandRecord,
    progress: Progress,
    finished: watch::Sender<bool>,
}

/// How a command ended.
pub type Outcome = Result<Value, CommandError>;

impl CommandStore {
    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        // Only short, panic-free sections hold the lock; a poisoned one still has whole records.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a running command and returns its id.
    pub fn begin(&self, name: &str, progress: Progress) -> String {
        let id = Uuid::new_v4().to_string();
        self.push(record(id.clone(), name, CommandStatus::Running), progress);
        id
    }

    /// Adds a command that has already ended.
    pub fn add_finished(&self, name: &str, outcome: Outcome) -> CommandRecord {
        let mut record = record(Uuid::new_v4().to_string(), name, CommandStatus::Running);
        conclude(&mut record, outcome);
        self.push(record.clone(), Progress::new());
        record
    }

    /// Puts back a command that was running when the worker before this one died.
    pub fn add_interrupted(&self, id: &str, name: &str, reason: &str) {
        let mut record = record(id.to_owned(), name, CommandStatus::Running);
        conclude(&mut record, Err(CommandError::new(ErrorClass::CommandExecution, reason)));
        self.push(record, Progress::new());
    }

    fn push(&self, record: CommandRecord, progress: Progress) {
        let finished = watch::Sender::new(record.command_status != CommandStatus::Running);
        self.lock().push(Entry { record, progress, finished });
    }

    /// Ends a running command.
    pub fn finish(&self, id: &str, outcome: Outcome) {
        let mut entries = self.lock();
        if let Some(entry) = entries.iter_mut().find(|entry| entry.record.id == id) {
            conclude(&mut entry.record, outcome);
            entry.finished.send_replace(true);
        }
    }

    /// Short name of the last command if it still runs. Only the last one counts (protocol section 12).
    pub fn busy(&self) -> Option<String> {
        let entries = self.lock();
        let last = &entries.last()?.record;
        (last.command_status == CommandStatus::Running).then(|| last.command_name.clone())
    }

    /// Every record, with live progress in those that run.
    pub fn all(&self) -> Vec<CommandRecord> {
        self.lock().iter().map(Entry::view).collect()
    }

    /// One record.
    pub fn get(&self, id: &str) -> Option<CommandRecord> {
        self.lock().iter().find(|entry| entry.record.id == id).map(Entry::view)
    }

    /// Ids and names of the commands that run.
    pub fn running(&self) -> Vec<(String, String)> {
        let entries = self.lock();
        entries
            .iter()
            .filter(|entry| entry.record.command_status == CommandStatus::Running)
            .map(|entry| (entry.record.id.clone(), entry.record.command_name.clone()))
            .collect()
    }

    /// A receiver that turns true when the command has ended.
    pub fn watch(&self, id: &str) -> Option<watch::Receiver<bool>> {
        self.lock().iter().find(|entry| entry.record.id == id).map(|entry| entry.finished.subscribe())
    }

    /// Waits until the command has ended and returns its record.
    pub async fn wait(&self, id: &str) -> Option<CommandRecord> {
        let mut finished = self.watch(id)?;
        // The sender lives in the store, so an error is not possible while the record exists.
        let _ended = finished.wait_for(|done| *done).await.is_ok();
        self.get(id)
    }
}

impl Entry {
    fn view(&self) -> CommandRecord {
        let mut record = self.record.clone();
        if record.command_status == CommandStatus::Running {
            record.progress = self.progress.report();
        }
        record
    }
}

fn record(id: String, name: &str, status: CommandStatus) -> CommandRecord {
    CommandRecord {
        id,
        command_name: name.to_owned(),
        command_status: status,
        command_error: None,
        command_result: None,
        progress: None,
    }
}

fn conclude(record: &mut CommandRecord, outcome: Outcome) {
    match outcome {
        Ok(result) => {
            record.command_status = CommandStatus::Succeeded;
            record.command_result = Some(result).filter(|value| !value.is_null());
        }
        Err(error) => {
            record.command_status = match error.class {
                ErrorClass::VersionMismatch => CommandStatus::VersionMismatch,
                _ => CommandStatus::Failed,
            };
            record.command_error = Some(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_the_last_command_makes_the_agent_busy() {
        let store = CommandStore::default();
        assert_eq!(store.busy(), None);
        let id = store.begin("execute_clean_step", Progress::new());
        assert_eq!(store.busy().as_deref(), Some("execute_clean_step"));
        store.add_finished("get_clean_steps", Ok(json!({})));
        assert_eq!(store.busy(), None);
        store.finish(&id, Ok(Value::Null));
        assert_eq!(store.running(), []);
    }

    #[test]
    fn a_record_has_exactly_the_five_keys_unless_it_runs_with_progress() {
        let store = CommandStore::default();
        let progress = Progress::new();
        let id = store.begin("execute_deploy_step", progress.clone());
        let text = serde_json::to_string(&store.get(&id).unwrap()).unwrap();
        assert_eq!(
            text,
            format!(
                "{{\"id\":\"{id}\",\"command_name\":\"execute_deploy_step\",\"command_status\":\"RUNNING\",\
                 \"command_error\":null,\"command_result\":null}}"
            )
        );
        progress.phase("write", Some(10));
        assert_eq!(serde_json::to_value(store.get(&id).unwrap()).unwrap()["progress"]["phase"], "write");
        store.finish(&id, Err(CommandError::new(ErrorClass::ImageWrite, "disk full")));
        let value = serde_json::to_value(store.get(&id).unwrap()).unwrap();
        assert_eq!(value["command_status"], "FAILED");
        assert_eq!(value["command_error"]["details"], "disk full");
        assert!(value.get("progress").is_none());
    }

    #[test]
    fn version_mismatch_has_its_own_status() {
        let store = CommandStore::default();
        let record = store.add_finished("x", Err(CommandError::new(ErrorClass::VersionMismatch, "old")));
        assert_eq!(serde_json::to_value(record).unwrap()["command_status"], "CLEAN_VERSION_MISMATCH");
    }

    #[tokio::test]
    async fn waiting_ends_with_the_command() {
        let store = std::sync::Arc::new(CommandStore::default());
        let id = store.begin("x", Progress::new());
        let waiter = {
            let (store, id) = (store.clone(), id.clone());
            tokio::spawn(async move { store.wait(&id).await })
        };
        tokio::task::yield_now().await;
        store.finish(&id, Ok(json!({"result": "x: done"})));
        let record = waiter.await.unwrap().unwrap();
        assert_eq!(record.command_result, Some(json!({"result": "x: done"})));
        assert!(store.wait("no such id").await.is_none());
    }
}
