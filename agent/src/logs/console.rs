//! Writing to every console of the machine without ever waiting for one.
//!
//! The kernel writes to one serial line only, however many `console=` parameters there are; whoever gives two wants to
//! see the machine on whichever is connected. So the others of the command line are opened here, at their speed.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ferric_sys::{Root, attr};
use rustix::fs::OFlags;
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

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

/// Serial lines of `console=` parameters that are not among the kernel's consoles, with their speeds in baud:
/// `console=ttyS1,115200n8` (`Documentation/admin-guide/serial-console.rst`).
fn more_serial<'a>(cmdline: &'a str, names: &[&str]) -> Vec<(&'a str, u32)> {
    let mut more: Vec<(&str, u32)> = Vec::new();
    for value in cmdline.split_whitespace().filter_map(|word| word.strip_prefix("console=")) {
        let (name, options) = value.split_once(',').unwrap_or((value, ""));
        let plain = name.bytes().all(|b| b.is_ascii_alphanumeric());
        // A virtual terminal has a number and no letter behind "tty".
        let serial = name.strip_prefix("tty").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_alphabetic()));
        if plain && serial && !names.contains(&name) && !more.iter().any(|(known, _)| *known == name) {
            let digits = options.bytes().take_while(u8::is_ascii_digit).count();
            let speed = options.get(..digits).and_then(|digits| digits.parse().ok());
            more.push((name, speed.filter(|speed| *speed > 0).unwrap_or(9600)));
        }
    }
    more
}

impl Consoles {
    /// Opens every console; without any, the one that the kernel made `/dev/console`.
    pub(super) fn open(root: &Root) -> Self {
        let list = attr::read_trimmed(&root.path("proc/consoles")).unwrap_or_default();
        let names = names(&list);
        let mut consoles: Vec<Console> = names.iter().filter_map(|name| Console::open(root, name, None)).collect();
        if consoles.is_empty() {
            consoles.extend(Console::open(root, "console", None));
        }
        let cmdline = attr::read_trimmed(&root.path("proc/cmdline")).unwrap_or_default();
        let more = more_serial(&cmdline, &names);
        consoles.extend(more.into_iter().filter_map(|(name, speed)| Console::open(root, name, Some(speed))));
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
    /// The speed of a serial line is set when given; the kernel has set that of its own consoles.
    fn open(root: &Root, name: &str, speed: Option<u32>) -> Option<Self> {
        // Without O_NONBLOCK the open itself can wait for a carrier that never comes.
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
        let path = root.path("dev").join(name);
        let file = OpenOptions::new().write(true).custom_flags(i32::try_from(flags).ok()?).open(path).ok()?;
        let flags = rustix::fs::fcntl_getfl(&file).ok()?;
        rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK).ok()?;
        if let Some(speed) = speed {
            // No terminal there, or a speed it does not have: the writes show.
            let _set = tcgetattr(&file).and_then(|mut settings| {
                settings.set_speed(speed)?;
                tcsetattr(&file, OptionalActions::Now, &settings)
            });
        }
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
    fn serial_lines_that_the_kernel_leaves_out_are_found() {
        let cmdline = "quiet console=tty0 console=ttyS2,115200n8 console=ttyS1 console=ttyS1,57600 console=ttyAMA0,38400 console=../x";
        assert_eq!(more_serial(cmdline, &["tty0", "ttyS2"]), [("ttyS1", 9600), ("ttyAMA0", 38_400)]);
        assert!(more_serial("", &[]).is_empty());
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
