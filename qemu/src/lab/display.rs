//! What a person sees: one line for each thing that happened, and a live line that is redrawn on a terminal.

use crate::conductor::flow::{BootTarget, FlowEvent, Progress};
use std::io::{IsTerminal as _, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Without a terminal progress is printed this often at most.
const PLAIN_INTERVAL: Duration = Duration::from_secs(5);

/// Prints; clones share the line.
#[derive(Debug, Clone)]
pub struct Display(Arc<Mutex<Screen>>);

#[derive(Debug)]
struct Screen {
    began: Instant,
    is_terminal: bool,
    /// The live line that is shown now.
    live: String,
    last_plain: Option<Instant>,
    stages: Vec<(String, Duration)>,
}

impl Default for Display {
    fn default() -> Self {
        Self::new()
    }
}

impl Display {
    /// A display on standard output; its clock starts now.
    #[must_use]
    pub fn new() -> Self {
        Display(Arc::new(Mutex::new(Screen {
            began: Instant::now(),
            is_terminal: std::io::stdout().is_terminal(),
            live: String::new(),
            last_plain: None,
            stages: Vec::new(),
        })))
    }

    /// Prints a line with the time in front.
    pub fn line(&self, text: &str) {
        self.screen().line(text);
    }

    /// Prints text as it is.
    pub fn plain(&self, text: &str) {
        self.screen().print_above(text);
    }

    /// Runs a stage and notes how long it took.
    pub fn stage<T, E>(&self, name: &str, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.line(&format!("== {name}"));
        let began = Instant::now();
        let result = work();
        let took = began.elapsed();
        let mut screen = self.screen();
        screen.erase_live();
        match &result {
            Ok(_) => screen.line(&format!("== {name}: done in {}", seconds(took))),
            Err(_) => screen.line(&format!("== {name}: FAILED after {}", seconds(took))),
        }
        screen.stages.push((name.to_owned(), took));
        result
    }

    /// The table of all stages and their times.
    pub fn summary(&self) {
        let mut screen = self.screen();
        let stages = std::mem::take(&mut screen.stages);
        let width = stages.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).max("total".len());
        screen.print_above("");
        for (name, took) in &stages {
            screen.print_above(&format!("  {name:<width$}  {:>8}", seconds(*took)));
        }
        let total = screen.began.elapsed();
        screen.print_above(&format!("  {:<width$}  {:>8}", "total", seconds(total)));
    }

    /// Shows an event of a flow.
    pub fn event(&self, event: &FlowEvent) {
        let text = match event {
            FlowEvent::Progress { step, progress } => {
                self.screen().show_live(&progress_text(step, progress));
                return;
            }
            FlowEvent::State(state) => format!("node is {state}"),
            FlowEvent::Booting(BootTarget::Ramdisk) => "power on, booting the ramdisk".to_owned(),
            FlowEvent::Booting(BootTarget::Disk) => "power on, booting from disk".to_owned(),
            FlowEvent::AgentReady { url, version, after } => {
                format!("agent {version} at {url}, {} after power on", seconds(*after))
            }
            FlowEvent::StepStarted { step } => format!("{step} ..."),
            FlowEvent::StepEnded { step, took } => format!("{step} done in {}", seconds(*took)),
            FlowEvent::Note(text) => text.clone(),
        };
        let mut screen = self.screen();
        screen.erase_live();
        screen.line(&format!("   {text}"));
    }

    fn screen(&self) -> MutexGuard<'_, Screen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Screen {
    fn line(&mut self, text: &str) {
        let time = self.began.elapsed().as_secs_f64();
        self.print_above(&format!("[{time:7.1}] {text}"));
    }

    /// Prints a line, and the live line again below it.
    fn print_above(&mut self, text: &str) {
        let live = std::mem::take(&mut self.live);
        if !live.is_empty() {
            write_out("\r\x1b[K");
        }
        write_out(&format!("{text}\n"));
        if !live.is_empty() {
            write_out(&live);
            self.live = live;
        }
    }

    fn show_live(&mut self, text: &str) {
        if self.is_terminal {
            let columns = terminal_columns();
            self.live = text.chars().take(columns.saturating_sub(1)).collect();
            write_out(&format!("\r\x1b[K{}", self.live));
        } else if self.last_plain.is_none_or(|at| at.elapsed() >= PLAIN_INTERVAL) {
            self.last_plain = Some(Instant::now());
            self.line(&format!("   {text}"));
        }
    }

    fn erase_live(&mut self) {
        if !self.live.is_empty() {
            write_out("\r\x1b[K");
            self.live.clear();
        }
        self.last_plain = None;
    }
}

fn write_out(text: &str) {
    let mut out = std::io::stdout().lock();
    // A reader that went away must not end a deployment.
    drop(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
}

fn terminal_columns() -> usize {
    // Some pseudo terminals say 0.
    rustix::termios::tcgetwinsize(std::io::stdout())
        .map_or(0, |size| usize::from(size.ws_col))
        .checked_sub(20)
        .map_or(80, |wide| wide + 20)
}

/// `12.3 s`.
#[must_use]
pub fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// One line of progress: step, phase, amount, rate, time left.
fn progress_text(step: &str, progress: &Progress) -> String {
    let mut text = format!("{step}: {}", progress.phase);
    match progress.total_bytes.filter(|total| *total > 0) {
        Some(total) => {
            let percent = u128::from(progress.done_bytes) * 100 / u128::from(total);
            text.push_str(&format!("  {} of {}  {percent:3} %", size(progress.done_bytes), size(total)));
        }
        None if progress.done_bytes > 0 => text.push_str(&format!("  {}", size(progress.done_bytes))),
        None => {}
    }
    if let Some(rate) = progress.rate.filter(|rate| *rate > 0.0) {
        text.push_str(&format!("  {:.1} MiB/s", rate / (1024.0 * 1024.0)));
    }
    if let Some(eta) = progress.eta {
        text.push_str(&format!("  {eta:.0} s left"));
    }
    text
}

/// `412.0 MiB`.
#[must_use]
pub fn size(bytes: u64) -> String {
    let mib = bytes / (1 << 20);
    let tenth = (bytes % (1 << 20)) * 10 / (1 << 20);
    format!("{mib}.{tenth} MiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_says_what_is_known() {
        let mut progress = Progress {
            phase: "write".to_owned(),
            done_bytes: 3 << 20,
            total_bytes: Some(12 << 20),
            rate: Some(1_572_864.0),
            eta: Some(6.0),
        };
        let text = progress_text("write_image", &progress);
        assert_eq!(text, "write_image: write  3.0 MiB of 12.0 MiB   25 %  1.5 MiB/s  6 s left");
        progress.total_bytes = None;
        progress.rate = None;
        progress.eta = None;
        assert_eq!(progress_text("s", &progress), "s: write  3.0 MiB");
    }

    #[test]
    fn stages_pass_their_result_on() {
        let display = Display::new();
        assert_eq!(display.stage("a", || Ok::<_, ()>(7)), Ok(7));
        assert_eq!(display.stage("b", || Err::<(), _>("no")), Err("no"));
        assert_eq!(display.screen().stages.len(), 2);
    }
}
