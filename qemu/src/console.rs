//! A guest's serial console: its log file, and waiting for what it says.
//!
//! QEMU appends to the file; [`Console`] follows it line by line with control codes removed, because firmware and iPXE
//! paint their text. Waiting ends early when the guest shows a sign of a hang or QEMU ends.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use regex::Regex;

use crate::process::Process;
use crate::watchdog::HangMarkers;

/// Lines of the console in an error.
const SHOWN_LINES: usize = 40;
/// How often the log is looked at.
const POLL: Duration = Duration::from_millis(30);
/// A line without an end that has not grown for this long is a prompt.
const SETTLE: Duration = Duration::from_millis(100);

/// What to wait for: text that a line contains, or a regular expression that matches in it.
#[derive(Debug, Clone)]
pub enum Pattern {
    /// Plain text.
    Text(String),
    /// Regular expression.
    Regex(Regex),
}

impl Pattern {
    /// A regular expression.
    ///
    /// # Errors
    /// When it is not a valid one.
    pub fn regex(expression: &str) -> Result<Self> {
        Ok(Self::Regex(Regex::new(expression)?))
    }

    /// Whether `line` has it.
    pub fn matches(&self, line: &str) -> bool {
        match self {
            Self::Text(text) => line.contains(text.as_str()),
            Self::Regex(regex) => regex.is_match(line),
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Text(text) => format!("{text:?}"),
            Self::Regex(regex) => format!("/{regex}/"),
        }
    }
}

impl From<&str> for Pattern {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Pattern {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Regex> for Pattern {
    fn from(regex: Regex) -> Self {
        Self::Regex(regex)
    }
}

/// One serial console of a machine. Clones share what was read and the mark.
#[derive(Debug, Clone)]
pub struct Console {
    path: PathBuf,
    process: Arc<Process>,
    markers: HangMarkers,
    state: Arc<Mutex<State>>,
    input: Option<Arc<Input>>,
}

/// The way into a serial port.
#[derive(Debug)]
struct Input {
    socket: PathBuf,
    stream: Mutex<Option<UnixStream>>,
}

#[derive(Debug)]
struct State {
    /// Bytes of the file already taken.
    offset: u64,
    text: Lines,
    /// First line that waiting looks at.
    mark: usize,
}

impl Console {
    /// Follows the log at `path` from byte `offset` on.
    pub(crate) fn new(path: PathBuf, offset: u64, process: Arc<Process>, markers: HangMarkers) -> Self {
        let state = State { offset, text: Lines::default(), mark: 0 };
        Self { path, process, markers, state: Arc::new(Mutex::new(state)), input: None }
    }

    /// With the socket that takes input.
    pub(crate) fn with_input(mut self, socket: Option<PathBuf>) -> Self {
        self.input = socket.map(|socket| Arc::new(Input { socket, stream: Mutex::new(None) }));
        self
    }

    /// Types `text` on the serial port.
    ///
    /// # Errors
    /// When the machine was built without [`crate::VmBuilder::serial_input`], or is gone.
    pub fn send(&self, text: &str) -> Result<()> {
        let input = self.input.as_ref().context("the machine was built without serial input")?;
        let mut stream = input.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let open = match stream.take() {
            Some(open) => open,
            None => {
                let open = UnixStream::connect(&input.socket).context("connecting to the serial port")?;
                let mut output = open.try_clone()?;
                // The output is in the log already, but somebody must take it or the guest stands still. Ends with QEMU.
                drop(std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink())));
                open
            }
        };
        stream.insert(open).write_all(text.as_bytes()).context("typing on the serial port")
    }

    /// The log file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// From now on waits look only at what comes after this moment; e.g. before a reset.
    pub fn mark(&self) {
        let mut state = self.read();
        state.mark = state.text.complete.len();
    }

    /// Waits until a line since the last [`mark`](Self::mark) has `pattern`, and gives that line.
    ///
    /// # Errors
    /// When `limit` passes, the guest shows a sign of a hang, or QEMU ends; with the console's last 40 lines.
    pub fn wait_for(&self, pattern: impl Into<Pattern>, limit: Duration) -> Result<String> {
        let pattern = pattern.into();
        let found = self.wait_for_any(std::slice::from_ref(&pattern), limit)?;
        Ok(found.1)
    }

    /// Waits for the first of several patterns: gives its place in `patterns` and the line.
    ///
    /// # Errors
    /// As [`wait_for`](Self::wait_for).
    pub fn wait_for_any(&self, patterns: &[Pattern], limit: Duration) -> Result<(usize, String)> {
        let deadline = Instant::now() + limit;
        loop {
            // Asked before reading, so that the last words of an ended machine are still seen.
            let end = self.process.epitaph();
            let problem = {
                let state = self.read();
                if let Some(found) = state.find(patterns) {
                    drop(state);
                    return Ok((found.pattern, self.settled(found)));
                }
                let hang = state
                    .lines_since_mark()
                    .find_map(|line| self.markers.find(line))
                    .map(|m| format!("the guest hangs ({m:?})"));
                hang.or(end)
            };
            let problem = match problem {
                Some(problem) => problem,
                None if Instant::now() >= deadline => format!("nothing after {:.0} s", limit.as_secs_f64()),
                None => {
                    std::thread::sleep(POLL);
                    continue;
                }
            };
            let wanted: Vec<String> = patterns.iter().map(Pattern::describe).collect();
            bail!("waiting for {} on the console: {problem}\n{}", wanted.join(" or "), self.excerpt());
        }
    }

    /// The line of `found` in full: one still being written, which may also be a prompt, is given a moment to end or to rest.
    fn settled(&self, found: Found) -> String {
        let mut line = found.line;
        for _ in 0..10 {
            let (now, complete) = {
                let state = self.read();
                (state.line(found.index).to_owned(), state.text.complete.len() > found.index)
            };
            let rests = now == line;
            line = now;
            if complete {
                break;
            }
            std::thread::sleep(SETTLE);
            // Unchanged over one pause at least.
            if rests && self.read().line(found.index) == line {
                break;
            }
        }
        line
    }

    /// The sign of a hang since the last mark, if there is one: (marker, line).
    pub fn hang(&self) -> Option<(String, String)> {
        let state = self.read();
        state.lines_since_mark().find_map(|line| Some((self.markers.find(line)?.to_owned(), line.to_owned())))
    }

    /// Whether a line since the last mark has `pattern`, without waiting.
    pub fn contains(&self, pattern: impl Into<Pattern>) -> bool {
        self.read().find(&[pattern.into()]).is_some()
    }

    /// All text of this run so far.
    pub fn text(&self) -> String {
        let state = self.read();
        let mut text = state.text.complete.join("\n");
        text.push('\n');
        text.push_str(&state.text.partial);
        text
    }

    /// All lines of this run so far, the unfinished one last.
    pub fn lines(&self) -> Vec<String> {
        let state = self.read();
        let mut lines = state.text.complete.clone();
        if !state.text.partial.is_empty() {
            lines.push(state.text.partial.clone());
        }
        lines
    }

    /// The last 40 lines with the log's place, for error messages.
    pub fn excerpt(&self) -> String {
        let lines = self.lines();
        let tail = lines.get(lines.len().saturating_sub(SHOWN_LINES)..).unwrap_or_default();
        format!("last {} lines of {}:\n{}", tail.len(), self.path.display(), tail.join("\n"))
    }

    /// Takes in what QEMU has written since the last look.
    fn read(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // A log that cannot be read looks like a silent guest; the limit of the wait shows it.
        if let Ok(bytes) = read_from(&self.path, state.offset) {
            state.offset += u64::try_from(bytes.len()).unwrap_or(0);
            state.text.push(&bytes);
        }
        state
    }
}

fn read_from(path: &Path, offset: u64) -> std::io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl State {
    fn lines_since_mark(&self) -> impl Iterator<Item = &str> {
        let complete = self.text.complete.get(self.mark..).unwrap_or_default();
        complete.iter().map(String::as_str).chain(std::iter::once(self.text.partial.as_str()))
    }

    fn find(&self, patterns: &[Pattern]) -> Option<Found> {
        self.lines_since_mark().enumerate().find_map(|(place, line)| {
            let pattern = patterns.iter().position(|pattern| pattern.matches(line))?;
            Some(Found { pattern, index: self.mark + place, line: line.to_owned() })
        })
    }

    fn line(&self, index: usize) -> &str {
        self.text.complete.get(index).unwrap_or(&self.text.partial)
    }
}

/// A line that has one of the patterns.
struct Found {
    pattern: usize,
    /// Its number in the log of this run.
    index: usize,
    line: String,
}

/// Bytes of a terminal turned into lines of text.
#[derive(Debug, Default)]
struct Lines {
    complete: Vec<String>,
    partial: String,
    /// Bytes of `partial` so far; decoded when they change.
    raw: Vec<u8>,
    escape: Escape,
}

/// Place inside a control sequence (ECMA-48).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Escape {
    #[default]
    None,
    /// After ESC.
    Started,
    /// After ESC `[`: parameters until a byte from `@` to `~`.
    Control,
}

impl Lines {
    fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.escape = match (self.escape, byte) {
                (_, 0x1b) => Escape::Started,
                (Escape::Started, b'[') => Escape::Control,
                (Escape::Control, b'@'..=b'~') | (Escape::Started, _) => Escape::None,
                (Escape::Control, _) => Escape::Control,
                (Escape::None, b'\n') => {
                    let line = String::from_utf8_lossy(&self.raw).into_owned();
                    self.raw.clear();
                    self.complete.push(line);
                    Escape::None
                }
                (Escape::None, 0x08) => {
                    self.raw.pop();
                    Escape::None
                }
                (Escape::None, b'\t' | b' '..) => {
                    self.raw.push(byte);
                    Escape::None
                }
                (Escape::None, _) => Escape::None,
            };
        }
        if !bytes.is_empty() {
            self.partial = String::from_utf8_lossy(&self.raw).into_owned();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(120);
    const LONG: Duration = Duration::from_secs(20);

    struct Rig {
        dir: tempfile::TempDir,
        process: Arc<Process>,
    }

    impl Rig {
        fn new() -> Self {
            let process = Process::start(Path::new("/bin/sleep"), |command| {
                command.arg("60");
            });
            Self { dir: tempfile::tempdir().unwrap(), process: Arc::new(process.unwrap()) }
        }

        fn write(&self, text: &str) {
            let path = self.dir.path().join("log");
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        }

        fn console(&self) -> Console {
            Console::new(self.dir.path().join("log"), 0, Arc::clone(&self.process), HangMarkers::default())
        }
    }

    #[test]
    fn text_and_expressions_are_found_across_writes_and_without_a_line_end() {
        let rig = Rig::new();
        let console = rig.console();
        rig.write("first line\r\n[    1.0] up");
        assert_eq!(console.wait_for("irst li", LONG).unwrap(), "first line");
        rig.write("time 42");
        assert_eq!(console.wait_for(Pattern::regex(r"uptime \d+").unwrap(), LONG).unwrap(), "[    1.0] uptime 42");
        assert!(!console.contains("first line\n"), "patterns live within a line");
    }

    #[test]
    fn waiting_sees_what_is_written_later() {
        let rig = Rig::new();
        let console = rig.console();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(100));
                rig.write("login: ");
            });
            assert_eq!(console.wait_for("login:", LONG).unwrap(), "login: ");
        });
    }

    #[test]
    fn line_that_is_still_being_written_is_given_in_full() {
        let rig = Rig::new();
        let console = rig.console();
        rig.write("address 52:");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for part in ["54:", "00\r", "\nnext"] {
                    std::thread::sleep(Duration::from_millis(40));
                    rig.write(part);
                }
            });
            assert_eq!(console.wait_for("address", LONG).unwrap(), "address 52:54:00");
        });
    }

    #[test]
    fn error_shows_the_last_forty_lines_and_the_limit() {
        let rig = Rig::new();
        for line in 1..=60 {
            rig.write(&format!("line {line}\n"));
        }
        let error = rig.console().wait_for("never", SHORT).unwrap_err().to_string();
        assert!(error.contains("\"never\"") && error.contains("nothing after 0 s"), "{error}");
        assert!(error.contains("line 21\n") && error.ends_with("line 60"), "{error}");
        assert!(!error.contains("line 20\n"), "{error}");
    }

    #[test]
    fn hang_marker_ends_the_wait_at_once_but_may_itself_be_awaited() {
        let rig = Rig::new();
        rig.write("[ 1.0] Kernel panic - not syncing: no init\n");
        let console = rig.console();
        let start = Instant::now();
        let error = console.wait_for("never", LONG).unwrap_err().to_string();
        assert!(error.contains("the guest hangs (\"Kernel panic\")"), "{error}");
        assert!(start.elapsed() < LONG / 2);
        assert_eq!(console.hang().unwrap().0, "Kernel panic");
        assert!(console.wait_for("no init", LONG).is_ok());
        console.mark();
        assert!(console.hang().is_none());
    }

    #[test]
    fn ended_machine_ends_the_wait_but_its_last_words_count() {
        let rig = Rig::new();
        let console = rig.console();
        rig.write("last words\n");
        rig.process.kill();
        assert!(console.wait_for("last words", LONG).is_ok());
        let error = console.wait_for("never", LONG).unwrap_err().to_string();
        assert!(error.contains("qemu ended (signal: 9"), "{error}");
    }

    #[test]
    fn mark_hides_what_came_before() {
        let rig = Rig::new();
        let console = rig.console();
        rig.write("booted\n");
        console.wait_for("booted", LONG).unwrap();
        console.mark();
        assert!(console.clone().wait_for("booted", SHORT).is_err(), "clones share the mark");
        rig.write("booted again\n");
        assert_eq!(console.wait_for("booted", LONG).unwrap(), "booted again");
        assert_eq!(console.lines(), ["booted", "booted again"]);
    }

    #[test]
    fn first_of_several_patterns_is_told() {
        let rig = Rig::new();
        rig.write("b came\na came\n");
        let found = rig.console().wait_for_any(&["a came".into(), "b came".into()], LONG).unwrap();
        assert_eq!(found, (1, "b came".to_owned()));
    }

    #[test]
    fn control_codes_of_firmware_are_removed() {
        let cases: [(&[u8], &str); 5] = [
            (b"\x1bc\x1b[?7l\x1b[2J\x1b[0mSeaBIOS\r\n", "SeaBIOS"),
            (b"\x1b[0;1miPXE\x1b[0m -- \x1b[0;36mhttp\r\n", "iPXE -- http"),
            (b"...\x08 \x08\x08ok\n", ".ok"),
            (b"a\x00b\x07\tc\n", "ab\tc"),
            (b"caf\xc3\xa9 \xff\n", "caf\u{e9} \u{fffd}"),
        ];
        for (bytes, expected) in cases {
            let mut lines = Lines::default();
            // In two halves: sequences are cut anywhere.
            let (head, tail) = bytes.split_at(bytes.len() / 3);
            lines.push(head);
            lines.push(tail);
            assert_eq!(lines.complete, [expected], "{bytes:?}");
        }
    }
}
