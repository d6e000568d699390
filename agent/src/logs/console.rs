//! Writing to every console of the machine without ever waiting for one.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ferric_sys::{Root, attr};
use rustix::fs::OFlags;

/// Lines a console may be behind: a 9600 baud line takes some 20 s for them.
const QUEUE_LINES: usize = 256;

#[derive(Debug)]
pub(super) struct Consoles(Vec<Console>);

#[derive(Debug)]
struct Console {
    queue: SyncSender<Arc<str>>,
    counters: Arc<Counters>,
}

/// Lines that went in, came out and were left out since the last one that went in.
#[derive(Debug, Default)]
struct Counters {
    sent: AtomicU64,
    dropped: AtomicU64,
    written: Mutex<u64>,
    progress: Condvar,
}

/// Names of the consoles in `/proc/consoles`, which has one a line: `ttyS0 -W- (EC a) 4:64`.
fn names(text: &str) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some(name), Some(flags)) = (words.next(), words.next()) else { continue };
        let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
        if plain && flags.contains('W') && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

impl Consoles {
    /// Opens every console; without any, the one that the kernel made `/dev/console`.
    pub(super) fn open(root: &Root) -> Self {
        let list = attr::read_trimmed(&root.path("proc/consoles")).unwrap_or_default();
        let mut consoles: Vec<Console> =
            names(&list).into_iter().filter_map(|name| Console::open(root, name)).collect();
        if consoles.is_empty() {
            consoles.extend(Console::open(root, "console"));
        }
        Self(consoles)
    }

    pub(super) fn send(&self, line: &str) {
        let line: Arc<str> = Arc::from(line);
        self.0.iter().for_each(|console| console.send(Arc::clone(&line)));
    }

    pub(super) fn flush(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        self.0.iter().for_each(|console| console.counters.wait(deadline));
    }
}

impl Console {
    fn open(root: &Root, name: &str) -> Option<Self> {
        // Without O_NONBLOCK the open itself can wait for a carrier that never comes.
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
        let path = root.path("dev").join(name);
        let file = OpenOptions::new().write(true).custom_flags(i32::try_from(flags).ok()?).open(path).ok()?;
        let flags = rustix::fs::fcntl_getfl(&file).ok()?;
        rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK).ok()?;
        let (queue, lines) = sync_channel(QUEUE_LINES);
        let counters = Arc::<Counters>::default();
        let shared = Arc::clone(&counters);
        let thread = std::thread::Builder::new().name(format!("console {name}")).stack_size(64 * 1024);
        thread.spawn(move || write_lines(file, &lines, &shared)).ok()?;
        Some(Self { queue, counters })
    }

    fn send(&self, line: Arc<str>) {
        if self.queue.try_send(line).is_ok() {
            self.counters.sent.fetch_add(1, Ordering::Relaxed);
        } else {
            self.counters.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Counters {
    fn wait(&self, deadline: Instant) {
        let sent = self.sent.load(Ordering::Relaxed);
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        while *written < sent {
            let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
                return;
            };
            written = self.progress.wait_timeout(written, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn write_lines(mut file: File, lines: &Receiver<Arc<str>>, counters: &Counters) {
    for line in lines {
        let dropped = counters.dropped.swap(0, Ordering::Relaxed);
        let mut text = String::with_capacity(line.len() + 64);
        if dropped > 0 {
            text.push_str(&format!("ferric: {dropped} lines left out, the console is too slow\n"));
        }
        // Control characters from the outside must not steer a terminal.
        text.extend(line.chars().map(|c| if c.is_control() && c != '\t' { ' ' } else { c }));
        text.push('\n');
        // A console that went away (a USB serial adapter) must not end the thread: it may come back.
        let _lost = file.write_all(text.as_bytes());
        *counters.written.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        counters.progress.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consoles_that_can_be_written_are_listed() {
        let text = "ttyS1                -W- (EC  a   )    4:65\ntty0                 -WU (E  p   )    4:1\nnetcon0              -W- (E      )\nhvc0 R-- (E) 1:2\n../x -W- (E)\n";
        assert_eq!(names(text), ["ttyS1", "tty0", "netcon0"]);
        assert!(names("").is_empty());
    }

    #[test]
    fn a_stuck_console_holds_up_nothing() {
        let dir = std::env::temp_dir().join(format!("ferric-console-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("proc")).unwrap();
        std::fs::create_dir_all(dir.join("dev")).unwrap();
        std::fs::write(dir.join("proc/consoles"), "good -W- (E)\nstuck -W- (E)\n").unwrap();
        std::fs::write(dir.join("dev/good"), "").unwrap();
        // A pipe that nobody empties: it takes 64 KiB and then blocks its writer for ever.
        let fifo = dir.join("dev/stuck");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let reader =
            OpenOptions::new().read(true).custom_flags(i32::try_from(OFlags::NONBLOCK.bits()).unwrap()).open(&fifo);
        let consoles = Consoles::open(&Root::at(&dir));
        assert_eq!(consoles.0.len(), 2);
        let start = Instant::now();
        for number in 0..2000 {
            consoles.send(&format!("{number} {}", "x".repeat(100)));
            if number % 200 == 0 {
                consoles.0[0].counters.wait(Instant::now() + Duration::from_secs(5));
            }
        }
        consoles.0[0].counters.wait(Instant::now() + Duration::from_secs(5));
        consoles.flush(Duration::from_millis(50));
        assert!(start.elapsed() < Duration::from_secs(5));
        assert!(consoles.0[1].counters.sent.load(Ordering::Relaxed) < 1000, "the rest was left out");
        let good = std::fs::read_to_string(dir.join("dev/good")).unwrap();
        assert!(good.contains("1999 xxx"), "{}", good.len());
        drop(reader);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
