//! QEMU's control protocol (QMP): JSON lines over a UNIX socket.
//!
//! One thread reads: answers go to whoever asked, events are kept until somebody waits for them.
//! Reference: QEMU's `docs/interop/qmp-spec.txt`.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::process::Process;

/// Time for QEMU to answer a command.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Something QEMU reported on its own, e.g. `SHUTDOWN`.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Name in capitals.
    pub name: String,
    /// Its data; null when it has none.
    pub data: Value,
}

/// A message from QEMU.
#[derive(Debug, Clone, PartialEq)]
enum Message {
    Greeting,
    Return { id: u64, value: Value },
    Error { id: u64, class: String, description: String },
    Event(Event),
}

/// A control connection. Dropping it leaves the machine running.
#[derive(Debug)]
pub struct Qmp {
    stream: Mutex<Sending>,
    inbox: Arc<Inbox>,
}

#[derive(Debug)]
struct Sending {
    stream: UnixStream,
    next_id: u64,
}

#[derive(Debug, Default)]
struct Inbox {
    state: Mutex<Received>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Received {
    answers: Vec<Message>,
    events: VecDeque<Event>,
    closed: bool,
}

impl Qmp {
    /// Connects to the socket at `path` as soon as `process` has made it.
    ///
    /// # Errors
    /// When QEMU ends, or does not offer the socket within `limit`.
    pub(crate) fn connect(path: &Path, process: &Process, limit: Duration) -> Result<Self> {
        let deadline = Instant::now() + limit;
        let stream = loop {
            match UnixStream::connect(path) {
                Ok(stream) => break stream,
                Err(error) => {
                    if let Some(end) = process.epitaph() {
                        bail!("{end}");
                    }
                    if Instant::now() >= deadline {
                        return Err(error).with_context(|| format!("connecting to {}", path.display()));
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        Self::over(stream)
    }

    fn over(stream: UnixStream) -> Result<Self> {
        let inbox = Arc::new(Inbox::default());
        let reader = BufReader::new(stream.try_clone()?);
        let theirs = Arc::clone(&inbox);
        // Detached: it ends when QEMU closes the socket.
        drop(std::thread::spawn(move || theirs.fill(reader)));
        let qmp = Self { stream: Mutex::new(Sending { stream, next_id: 1 }), inbox };
        qmp.execute("qmp_capabilities", Value::Null).context("negotiating qmp capabilities")?;
        Ok(qmp)
    }

    /// Runs `command` and gives what it returns.
    ///
    /// # Errors
    /// With QEMU's class and description when it refuses, and when the connection ends.
    pub fn execute(&self, command: &str, arguments: Value) -> Result<Value> {
        let id = self.send(command, arguments).with_context(|| format!("sending qmp {command}"))?;
        let deadline = Instant::now() + ANSWER_LIMIT;
        let mut state = self.inbox.lock();
        loop {
            let place = state.answers.iter().position(
                |answer| matches!(answer, Message::Return { id: i, .. } | Message::Error { id: i, .. } if *i == id),
            );
            match place.map(|place| state.answers.swap_remove(place)) {
                Some(Message::Return { value, .. }) => return Ok(value),
                Some(Message::Error { class, description, .. }) => bail!("qmp {command}: {class}: {description}"),
                _ if state.closed => bail!("qmp {command}: connection closed"),
                _ if Instant::now() >= deadline => bail!("qmp {command}: no answer in {} s", ANSWER_LIMIT.as_secs()),
                _ => state = self.inbox.pause(state, deadline),
            }
        }
    }

    fn send(&self, command: &str, arguments: Value) -> Result<u64> {
        let mut sending = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let id = sending.next_id;
        sending.next_id += 1;
        let mut request = json!({"execute": command, "id": id});
        if let (false, Some(map)) = (arguments.is_null(), request.as_object_mut()) {
            map.insert("arguments".into(), arguments);
        }
        sending.stream.write_all(format!("{request}\n").as_bytes())?;
        Ok(id)
    }

    /// Runs a command of the human monitor and gives its text.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    pub fn monitor(&self, line: &str) -> Result<String> {
        let answer = self.execute("human-monitor-command", json!({"command-line": line}))?;
        Ok(answer.as_str().unwrap_or_default().to_owned())
    }

    /// Waits for the first event with one of `names` and takes it; others stay for later.
    ///
    /// # Errors
    /// When `limit` passes or the connection ends first.
    pub fn wait_event(&self, names: &[&str], limit: Duration) -> Result<Event> {
        let deadline = Instant::now() + limit;
        let mut state = self.inbox.lock();
        loop {
            let place = state.events.iter().position(|event| names.contains(&event.name.as_str()));
            if let Some(event) = place.and_then(|place| state.events.remove(place)) {
                return Ok(event);
            }
            if state.closed {
                bail!("waiting for {}: qemu closed the control connection", names.join(" or "));
            }
            if Instant::now() >= deadline {
                bail!("waiting for {}: nothing after {:.0} s", names.join(" or "), limit.as_secs_f64());
            }
            state = self.inbox.pause(state, deadline);
        }
    }

    /// Takes all events so far.
    pub fn take_events(&self) -> Vec<Event> {
        self.inbox.lock().events.drain(..).collect()
    }

    /// Plugs or pulls the cable of the network card `nic` (see [`crate::net::Nic::id`]).
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    pub fn set_link(&self, nic: &str, up: bool) -> Result<()> {
        self.execute("set_link", json!({"name": nic, "up": up})).map(drop)
    }

    /// Asks the guest to let go of the device `id`, and waits until it is gone.
    ///
    /// # Errors
    /// As [`execute`](Self::execute), and when the guest does not let go within `limit`.
    pub fn unplug(&self, id: &str, limit: Duration) -> Result<()> {
        self.execute("device_del", json!({"id": id}))?;
        let deadline = Instant::now() + limit;
        loop {
            let event = self.wait_event(&["DEVICE_DELETED"], deadline.saturating_duration_since(Instant::now()))?;
            if event.data.get("device").and_then(Value::as_str) == Some(id) {
                return Ok(());
            }
        }
    }

    /// Whether the virtual CPUs run, paused or not: QEMU's `status`, e.g. `running`.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    pub fn status(&self) -> Result<String> {
        let answer = self.execute("query-status", Value::Null)?;
        Ok(answer.get("status").and_then(Value::as_str).unwrap_or_default().to_owned())
    }
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Received> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pause<'a>(&self, guard: MutexGuard<'a, Received>, deadline: Instant) -> MutexGuard<'a, Received> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.changed.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0
    }

    fn fill(&self, reader: BufReader<UnixStream>) {
        for line in reader.lines() {
            let Ok(line) = line else { break };
            let Some(message) = parse(&line) else { continue };
            let mut state = self.lock();
            match message {
                Message::Greeting => {}
                Message::Event(event) => state.events.push_back(event),
                answer => state.answers.push(answer),
            }
            self.changed.notify_all();
        }
        self.lock().closed = true;
        self.changed.notify_all();
    }
}

/// One line from QEMU; `None` for what is no message of the protocol.
fn parse(line: &str) -> Option<Message> {
    let mut value: Value = serde_json::from_str(line).ok()?;
    let map = value.as_object_mut()?;
    if map.contains_key("QMP") {
        return Some(Message::Greeting);
    }
    if let Some(name) = map.get("event") {
        let name = name.as_str()?.to_owned();
        return Some(Message::Event(Event { name, data: map.remove("data").unwrap_or(Value::Null) }));
    }
    let id = map.get("id")?.as_u64()?;
    if let Some(error) = map.get("error") {
        let field = |key: &str| error.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        return Some(Message::Error { id, class: field("class"), description: field("desc") });
    }
    Some(Message::Return { id, value: map.remove("return")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_apart() {
        let event = |name: &str, data| Some(Message::Event(Event { name: name.into(), data }));
        let cases = [
            (r#"{"QMP": {"version": {}, "capabilities": ["oob"]}}"#, Some(Message::Greeting)),
            (r#"{"return": {}, "id": 3}"#, Some(Message::Return { id: 3, value: json!({}) })),
            (
                r#"{"id": 4, "error": {"class": "GenericError", "desc": "Device 'x' not found"}}"#,
                Some(Message::Error {
                    id: 4,
                    class: "GenericError".into(),
                    description: "Device 'x' not found".into(),
                }),
            ),
            (
                r#"{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-shutdown"}}"#,
                event("SHUTDOWN", json!({"guest": true, "reason": "guest-shutdown"})),
            ),
            (r#"{"event": "RESUME"}"#, event("RESUME", Value::Null)),
            (r#"{"return": {}}"#, None),
            ("[]", None),
            ("{", None),
        ];
        for (line, expected) in cases {
            assert_eq!(parse(line), expected, "{line}");
        }
    }

    /// A stand-in QEMU that answers each command with what `script` says for its name, then closes.
    fn against(script: &'static [(&'static str, &'static str)]) -> Qmp {
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::spawn(move || {
            let mut writer = theirs.try_clone().unwrap();
            writer.write_all(b"{\"QMP\": {}}\n").unwrap();
            let mut lines = BufReader::new(theirs).lines();
            for (command, answer) in script {
                let Some(Ok(line)) = lines.next() else { return };
                let request: Value = serde_json::from_str(&line).unwrap();
                assert_eq!(request["execute"], *command);
                let answer = answer.replace("ID", &request["id"].to_string());
                writer.write_all(format!("{answer}\n").as_bytes()).unwrap();
            }
        });
        Qmp::over(ours).unwrap()
    }

    #[test]
    fn answers_events_and_errors_reach_the_right_caller() {
        let qmp = against(&[
            ("qmp_capabilities", r#"{"return": {}, "id": ID}"#),
            (
                "query-status",
                "{\"event\": \"RESET\"}\n{\"event\": \"STOP\"}\n{\"return\": {\"status\": \"running\"}, \"id\": ID}",
            ),
            ("set_link", r#"{"error": {"class": "DeviceNotFound", "desc": "no nic9"}, "id": ID}"#),
        ]);
        assert_eq!(qmp.status().unwrap(), "running");
        let error = qmp.set_link("nic9", false).unwrap_err().to_string();
        assert_eq!(error, "qmp set_link: DeviceNotFound: no nic9");
        let limit = Duration::from_secs(10);
        assert_eq!(qmp.wait_event(&["STOP", "SHUTDOWN"], limit).unwrap().name, "STOP");
        assert_eq!(qmp.wait_event(&["RESET"], limit).unwrap().name, "RESET");
        let error = qmp.wait_event(&["RESET"], limit).unwrap_err().to_string();
        assert!(error.contains("closed"), "{error}");
        assert!(qmp.execute("quit", Value::Null).is_err());
    }

    #[test]
    fn missing_event_is_an_error_after_the_limit() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"{\"return\": {}, \"id\": 1}\n").unwrap();
        let qmp = Qmp::over(ours).unwrap();
        let error = qmp.wait_event(&["SHUTDOWN"], Duration::from_millis(50)).unwrap_err().to_string();
        assert!(error.contains("waiting for SHUTDOWN"), "{error}");
        drop(theirs);
    }
}
